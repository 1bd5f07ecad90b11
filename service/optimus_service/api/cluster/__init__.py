"""The cluster: nodes, rounds, projects, usage, and what watchers are shown of it."""
