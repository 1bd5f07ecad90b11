"""The ways by which a script's steps and losses become known to its agent."""
