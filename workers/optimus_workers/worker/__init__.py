"""The worker: computes gradients on its micro-batches, pushes them, pulls the new parameters.

run                the life of the process: control messages, signals, the user's errors
training           what all workers do: load the task, join, halt, report, evaluate
loop               one step with parameter servers, from top to bottom
compute            what a step trains on (micro-batches, learning rate), and the gradients of it
session            one membership epoch: the exchange of a step with all servers
server_connection  the connection to one server
flat_model         the model as one flat vector
"""
