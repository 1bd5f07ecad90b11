"""The `optimus` command: a client of the REST API, and the ways to start the service and the demo."""
