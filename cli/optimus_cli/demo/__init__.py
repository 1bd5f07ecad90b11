"""`optimus demo`: the real service and real training on this machine, from an empty directory to a summary."""
