"""How fast the parameter servers move gradients, beside DDP on gloo and beside bare sockets.

    python -m benchmarks.parameter_server [--json] [--realtime] [--millions 1 10 25]

`groups` starts the processes of one contender, `roles` is what they do (the project's own server and worker code, the
all-reduce of torch, an echo), `measure` times them in turns, `report` makes the summary and the table.
"""
