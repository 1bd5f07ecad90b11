"""One module per command or family of commands; each parses flags, asks the API, and hands the answer to a renderer."""
