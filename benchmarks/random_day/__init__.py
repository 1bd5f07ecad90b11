"""A day of random jobs on a live service, and how true was what they were told."""
