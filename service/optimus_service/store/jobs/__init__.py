"""Jobs: submission, what they should have, what they had, their tasks, their promises, and their deletion."""
