"""The all-reduce architecture: workers that hold all parameters and average their gradients among themselves (DDP).

loop           one step from top to bottom; joining; a member's part in one membership epoch
state          parameters and the optimizer's state on each member: update, checkpoints
process_group  torch's process group (gloo, NCCL); ends operations that gloo does not end
rendezvous     how the members find each other: through the coordinator
gradients      DistributedDataParallel and its hooks, compression among members
gloo_sockets   gloo's TCP connections, found among the process's own
"""
