"""What the steps of a job are: which slots this worker computes, at what learning rate, where in the data; and what is
told of each."""

from __future__ import annotations

import time
from dataclasses import replace

from optimus_workers.global_batch import GlobalBatch, constant_batch
from optimus_workers.task import TrainingTask
from optimus_workers.telemetry import Record
from optimus_workers.telemetry.gradients import ELASTIC_PERIOD
from optimus_workers.wire.messages import Join
from optimus_workers.worker.batches import Slot
from optimus_workers.worker.compute import Computed, async_slots, sync_slots
from optimus_workers.worker.session import Exchanged
from optimus_workers.worker.user_code import users


class Steps:
    """Of one job; what differs between memberships is in their `Join`."""

    def __init__(self, task: TrainingTask, seed: int) -> None:
        self._task = task
        self._seed = seed

    def batch(self, join: Join) -> GlobalBatch:
        """What each step of this membership trains on."""
        return join.batch or constant_batch(self._task.global_batch_size, self._task.micro_batches)

    def slots(self, join: Join, step: int, *, in_parts: bool = False) -> list[Slot]:
        """What this worker computes in a step. Where the noise of an elastic batch's gradient is measured, it is two
        pieces at least: one does not tell it. `in_parts` (async): likewise."""
        if join.is_async:
            return async_slots(self._task, self._seed, step, 2 if in_parts else 1)
        batch = join.batch
        if batch is not None and batch.is_elastic and batch.slots == 1 and step % ELASTIC_PERIOD == 0:
            return sync_slots(self._task, self._seed, step, 0, 2, replace(batch, slots=2))
        return sync_slots(self._task, self._seed, step, join.first_slot, join.end_slot, join.batch)

    def slots_ahead(self, join: Join, step: int, slots: list[Slot]) -> list[Slot]:
        """`slots` of this step and, as far as they are known, those of the next ones, as many as are made ahead."""
        found = list(slots)
        while slots and not join.is_async and len(found) < len(slots) + self._task.prefetch:
            step += 1
            found += self.slots(join, step)
        return found

    def data_epoch(self, join: Join, steps: int) -> float:
        """Passes over the data after so many steps of the job."""
        return self.batch(join).position(steps) / self._task.n_examples

    def learning_rate(self, join: Join, step: int) -> float:
        """Of a step, the batch's factor included. Raises `UserCodeFailed`."""
        batch = self.batch(join)
        rate = users(lambda: self._task.learning_rate(batch.told_step(step), batch.told_examples(step)))
        return rate * batch.learning_rate_factor(step)

    def record(
        self,
        join: Join,
        completed: int,
        computed: Computed,
        exchanged: Exchanged,
        seconds: float,
        *,
        staleness: float | None,
        gradients: dict[str, float] | None,
        metrics: dict[str, float] | None,
    ) -> Record:
        """The step that has just ended, after which so many steps of the job are completed."""
        batch = self.batch(join)
        return Record(
            membership_epoch=join.epoch,
            rank=join.rank,
            workers=join.n_workers,
            servers=len(join.servers),
            at=time.time(),
            step=batch.told_step(completed),
            n_steps=batch.told_step(completed) - batch.told_step(completed - 1),
            global_batch=batch.size if batch.is_elastic else None,
            data_epoch=self.data_epoch(join, completed),
            loss=computed.loss,
            n_examples=computed.n_examples,
            seconds=seconds,
            data_seconds=computed.data_seconds,
            compute_seconds=computed.compute_seconds,
            push_seconds=exchanged.push_seconds,
            wait_seconds=exchanged.wait_seconds,
            pull_seconds=exchanged.pull_seconds,
            sent_bytes=exchanged.sent_bytes,
            received_bytes=exchanged.received_bytes,
            staleness=staleness,
            gradients=gradients,
            metrics=metrics,
        )
