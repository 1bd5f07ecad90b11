"""The worker: computes gradients on its slots of the batch, pushes them, pulls the new parameters.

run       control messages and the life of the process
session   one membership epoch: connections to the servers, the exchange of a step
link      one data connection, without blocking
compute   gradients of slots
flat      the model as one flat vector
"""
