"""A worker's part in one membership epoch of an all-reduce job."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from optimus_workers.allreduce.gradients import GroupCompression, SharedGradients, StepParts
from optimus_workers.allreduce.process_group import ProcessGroup
from optimus_workers.allreduce.rendezvous import Board
from optimus_workers.task.definition import TrainingTask
from optimus_workers.wire.frames import FLOAT_BYTES
from optimus_workers.wire.messages import Join
from optimus_workers.wire.values import Group
from optimus_workers.worker.compute import Computed
from optimus_workers.worker.flat_model import FlatModel
from optimus_workers.worker.session import Exchanged, Session

BYTES_PER_VALUE = {GroupCompression.FP16: 2, GroupCompression.BF16: 2}


class GroupSession(Session):
    """A session without servers: the other members instead. A single worker needs no group."""

    def __init__(self, join: Join, board: Board, host: str, flat: FlatModel, compression: GroupCompression) -> None:
        assert join.group is not None, "an all-reduce job's membership is a group"
        super().__init__(join, flat.parameter_floats)
        self.group: Group = join.group
        self._flat = flat
        self._compression = compression
        self._gradients: SharedGradients | None = None
        self._members = (
            ProcessGroup(board, join.epoch, join.rank, join.n_workers, host, flat.values.device, self._cannot_reach)
            if join.n_workers > 1
            else None
        )

    def _cannot_reach(self, host: str) -> None:
        """A member that is there, named as in its hello to the coordinator."""
        self.lost = host, 0

    def meet(self, bytes_per_second: float | None) -> None:
        """Raises `ConnectionOver` when a member does not come."""
        if self._members is not None:
            self._members.open(bytes_per_second)

    def share_state(self, sections: list[Tensor]) -> None:
        """Everybody gets the root's. Raises `ConnectionOver`."""
        if self._members is not None and self.group.shares_state:
            for section in sections:
                self._members.broadcast(section, self.group.root)

    def share_gradients_of(self, task: TrainingTask, on_ready: Callable[[], None]) -> TrainingTask:
        """The task whose backward passes leave the sum over all members."""
        if self._members is None:
            return task
        self._gradients = SharedGradients(self._flat.model, task.loss, self._compression, on_ready, self._members.guard)
        return replace(task, loss=self._gradients.loss)

    @property
    def is_alone(self) -> bool:
        return self._members is None

    def begin_step(self, n_slots: int, *, measures: bool) -> None:
        """`measures`: `finish_step` is given what is to be measured."""
        if self._gradients is not None:
            self._gradients.begin(n_slots, measures=measures)

    def finish_step(self, computed: Computed, parts: StepParts | None = None) -> Exchanged:
        """After all slots: until gradients and buffers of all members are in `flat.push`, and what all of them measured
        in `parts`. Raises `ConnectionOver`."""
        if self._members is None or self._gradients is None:
            return Exchanged()
        if computed.n_examples:
            # The last slot's backward pass ends when all members have sent their part.
            computed.compute_seconds -= time.perf_counter() - self._gradients.ready_at
        else:
            self._members.run(self._gradients.take_part)
        buffers = self._flat.push[self._flat.parameter_floats :]
        if len(buffers):
            self._members.sum(buffers)
        if parts is not None:
            parts.share_done(self._gradients.local_square())
            parts.sums = parts.sums.to(self._flat.values.device)
            self._members.sum(parts.sums)
        n_bytes = self._bytes_of_a_ring()
        waited = time.perf_counter() - self._gradients.ready_at
        return Exchanged(wait_seconds=waited, sent_bytes=n_bytes, received_bytes=n_bytes)

    def _bytes_of_a_ring(self) -> int:
        """What each member of a ring sends, and receives: 2·(w − 1)/w times what is summed. PowerSGD sends less."""
        per_value = BYTES_PER_VALUE.get(self._compression, FLOAT_BYTES)
        n_bytes = per_value * self._flat.parameter_floats
        n_bytes += FLOAT_BYTES * (self._flat.total_floats - self._flat.parameter_floats)
        return 2 * n_bytes * (self.join.n_workers - 1) // self.join.n_workers

    @property
    def is_broken(self) -> bool:
        return self._members is not None and self._members.is_broken

    def abort(self) -> None:
        """End what is going on. Safe from other threads."""
        if self._members is not None:
            self._members.abort()

    def close(self) -> None:
        """The membership is over."""
        self.abort()
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        if self._members is not None:
            self._members.close()
        if self._flat.values.is_cuda:
            torch.cuda.synchronize(self._flat.values.device)
