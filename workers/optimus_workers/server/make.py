"""Which kind of shard an order of the coordinator asks for."""

from __future__ import annotations

from optimus_workers.server.async_shard import AsyncShard
from optimus_workers.server.clipping_shard import ClippingShard
from optimus_workers.server.shard import Shard
from optimus_workers.server.state import RangeState
from optimus_workers.server.sync_shard import SyncShard
from optimus_workers.wire.messages import Assume


def make_shard(assume: Assume, state: RangeState | None) -> Shard:
    """The shard of one membership epoch, from the state that was collected (None: worker 0 brings it)."""
    if assume.is_async:
        return AsyncShard(assume, state)  # workers clip what they push
    clips = assume.profile.update.max_gradient_norm is not None
    return (ClippingShard if clips and assume.first < assume.profile.parameter_floats else SyncShard)(assume, state)
