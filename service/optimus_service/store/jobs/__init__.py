"""Jobs: submission, what they should have, what they had, their tasks, what was predicted of them, and their
deletion."""
