"""The whole control plane in a deterministic simulation with faults: `python -m optimus_world --seed 1 --hours 4`.

Real are the scheduling loop, the lease, the store on SQLite, the API's handlers, and the coordinators' state machines,
journals and checkpoints. Models are the machines, the network, users, workers and servers (docs/faults.md).
"""
