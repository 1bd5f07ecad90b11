"""The parameter server: one contiguous range of the flat vector, its optimizer state, and the updates of both.

run          the life of the process: control messages, signals
listener     accepts data connections
connection   one data connection: handshake, frames, what is sent
service      what the frames of all connections do to the shard
shard        the range at its versions: sums pushes, applies updates (async here, sync in sync_shard)
range_state  one range at one version, and how it is put together from its sources
update       the optimizer
"""
