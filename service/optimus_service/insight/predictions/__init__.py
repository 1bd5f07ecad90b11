"""What a job will take, with each size or if it were submitted now, and how earlier predictions turned out."""
