"""Training scripts that know nothing of Optimus: the agent that runs a command, learns its steps, and stops it."""
