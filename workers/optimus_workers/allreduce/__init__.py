"""The all-reduce architecture: workers that hold all parameters and average their gradients among themselves (DDP).

loop           joining, one step from top to bottom, checkpoints
session        one membership epoch: the process group and the shared gradients
process_group  torch's process group (gloo, NCCL), which can be aborted
rendezvous     how the members find each other: through the coordinator
gradients      DistributedDataParallel and its hooks, compression among members
gloo_sockets   gloo's TCP connections, found among the process's own
abort          ends operations that gloo does not end
"""
