"""What jobs really do, by laws or as measured; no scheduler is shown it."""
