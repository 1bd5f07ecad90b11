"""What trainings report: tasks of jobs, and trainings that run elsewhere."""
