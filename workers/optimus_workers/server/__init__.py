"""The parameter server: one contiguous range of the flat vector, its optimizer state, and the updates of both.

run         control messages and the life of the process
connection  one data connection
sending     what it sends
shard       the range at its versions; sums pushes, applies updates
update      the optimizer
fetching    getting a range from other servers or from a checkpoint
"""
