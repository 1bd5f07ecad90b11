"""What is submitted: a job file and flags become specifications, and a refused field is found in them again."""
