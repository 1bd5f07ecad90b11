"""One step of a worker of an all-reduce job, from top to bottom: `GroupTraining.step`. Before it, `join`.

Each member holds all parameters and the optimizer's state. `GroupSession` is its part in one membership epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from optimus_workers.allreduce.gradients import GroupCompression, SharedGradients, StepParts
from optimus_workers.allreduce.own_state import OwnState
from optimus_workers.allreduce.process_group import ProcessGroup
from optimus_workers.allreduce.rendezvous import Rendezvous
from optimus_workers.allreduce.state import MemberState
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import ConnectionOver
from optimus_workers.task.definition import TrainingTask
from optimus_workers.task.user_code import UserCodeFailed, run_user_code
from optimus_workers.telemetry.gradients import GradientStatistics
from optimus_workers.wire.control import Delivered, Inbox
from optimus_workers.wire.frames import FLOAT_BYTES
from optimus_workers.wire.messages import Done, Go, Halt, Halted, Join, Joined, Published, Save
from optimus_workers.wire.values import Address, Group
from optimus_workers.worker.compute import Computed, compute_micro_batches
from optimus_workers.worker.flat_model import FlatModel
from optimus_workers.worker.session import Exchanged
from optimus_workers.worker.staging import Staging, stage
from optimus_workers.worker.training import REPORTING_RANK, Answer, Training

BYTES_PER_VALUE = {GroupCompression.FP16: 2, GroupCompression.BF16: 2}


class GroupTraining(Training["GroupSession"]):
    """`Training` with a process group in place of servers; it answers for the state as a server would."""

    def __init__(self, environment: TaskEnvironment, inbox: Inbox, send: Callable[[Answer], None]) -> None:
        super().__init__(environment, inbox, send)
        self._rendezvous = Rendezvous(send)
        self._compression = GroupCompression(environment.spec.compression)
        self._state = MemberState(self._flat, self.profile, environment, self._own)
        self._shared_task = self._task
        """The task whose backward passes leave the sum over all members."""
        # Every member can measure, so whichever becomes the one that reports has estimates already.
        is_elastic = environment.spec.elastic_batch is not None
        self._gradients = GradientStatistics(self.profile.gradient_period, is_elastic=is_elastic)
        self._parts: StepParts | None = None
        """The parts of the step at hand, if it is measured."""
        self._is_waiting = False
        """This member's gradients are made, the rest is up to the others."""

    def _extra_sections(self) -> int:
        self._own = OwnState(self._task, self._flat)
        return self._own.n_sections

    def step(self, go: Go) -> None:
        """Step `go.step`: fetch batches, compute, sum over all members, update, report."""
        session, held, flat = self._session, self._state.held, self._flat
        if session is None or session.join.epoch != go.epoch or held is None:
            return  # an earlier membership's
        join, started_at = session.join, time.perf_counter()

        # The micro-batches that this member computes. The prefetching process makes their batches, and the next ones.
        micro_batches = self._steps.micro_batches(join, go.step)
        self._batches.expect(self._steps.micro_batches_ahead(join, go.step, micro_batches))
        parts = self._parts = StepParts(micro_batches) if self._gradients.measures(go.step) else None

        # Compute. The last micro-batch's backward pass sums the gradients over all members, bucket by bucket; then the
        # rest.
        session.begin_step(len(micro_batches), measures=parts is not None)
        self._is_waiting = False
        with self._watchdog.watching():
            try:
                computed = run_user_code(
                    lambda: compute_micro_batches(
                        self._shared_task,
                        flat,
                        micro_batches,
                        self._after_micro_batch,
                        batches=self._batches,
                        options=self._compute_options,
                    )
                )
                exchanged = session.finish_step(computed, parts)
            except UserCodeFailed as error:
                # A member that dies ends the backward passes of all others, within their own code.
                if session.is_broken:
                    raise ConnectionOver(f"the process group is broken: {error}") from error
                raise

        # Measure the noise of the gradient, before it is clipped.
        if parts is not None:
            gradient = flat.push[: flat.parameter_floats]
            self._gradients.parts_done(*parts.sums.tolist())
            self._gradients.step_done(float(torch.dot(gradient, gradient)), self._steps.batch(join).size)

        # Count the loss of all members, where the next rates go by it.
        if self._own.counts_losses:
            sums = torch.tensor([computed.loss * computed.n_examples, computed.n_examples], device=flat.device)
            session.sum(sums)
            epochs = [self._steps.data_epoch(join, steps) for steps in (go.step, go.step + 1)]

        # Update: every member does the same.
        learning_rate = self._steps.learning_rate(join, go.step) * self._own.rate_factor
        self._state.update(learning_rate, held.version)
        if self._own.counts_losses:
            self._own.count_loss(sums, ends_epoch=math.floor(epochs[0]) < math.floor(epochs[1]))
        self._state.is_now(go.epoch, go.step + 1)
        self.newest_version = exchanged.version = go.step + 1

        # Report.
        noise = self._gradients.noise_scale if join.rank == REPORTING_RANK else None
        self._send(Done(go.epoch, go.step, computed.loss, computed.n_examples, noise))
        self._report(join, go.step + 1, computed, exchanged, time.perf_counter() - started_at, learning_rate)

    def join(self, join: Join) -> None:
        """Become a member of the group, and have what its root has."""
        self.halt()
        self._inbox.check()
        session = GroupSession(join, self._rendezvous, self.host, self._flat, self._compression)
        self._session = session
        self._inbox.check()
        session.meet(self._environment.network_bytes_per_second)
        state, group = self._state, session.group
        # What is overwritten with what it was anyway stays whole even when the root dies meanwhile.
        if state.held is None or state.held.version != join.version or group.sources or join.brings_parameters:
            state.held = None
        if join.rank == group.root and join.brings_parameters:
            self._restore_initial()
            state.reset_optimizer()
        elif join.rank == group.root and group.sources:
            state.read(join, group.sources)
        state.gather()
        session.share_state(state.sections)
        state.scatter(join.version)
        state.is_now(join.epoch, join.version)
        self._shared_task = session.share_gradients_of(self._task, self._gradients_are_ready)
        self._joined(join)
        self._send(Joined(join.epoch))

    @property
    def address(self) -> Address:
        return self.host, 0

    def deliver_at_once(self, message: Delivered) -> bool:
        """On the reading thread: whether the message is one that the main thread may be waiting for."""
        if isinstance(message, Published):
            self._rendezvous.received(message)
        return isinstance(message, Published)

    def answer_halt(self, halt: Halt) -> None:
        self._rendezvous.close(halt.epoch - 1)
        held = self._state.held
        self._send(Halted(halt.epoch, () if held is None else (held,)))

    def obey(self, message: Delivered) -> bool:
        """Save a part of the state; whether it was asked for that."""
        if isinstance(message, Save):
            self._state.save(message, None if self._session is None else self._session.join, self._send)
        return isinstance(message, Save)

    def _stage(self, device: torch.device, values: Tensor, push: Tensor) -> Staging:
        return stage(device, values, push, servers=False)

    def _gradients_are_ready(self) -> None:
        """From here on it is up to the others: they may take their time without this worker being hung."""
        self._watchdog.progress()
        self._watchdog.end()
        self._is_waiting = True

    def _after_micro_batch(self) -> None:
        if not self._is_waiting:
            self._watchdog.progress()
        if self._parts is not None and self._session is not None and self._session.is_alone:
            self._parts.micro_batch_done(self._flat.staging.gradients[: self._flat.parameter_floats])
        self._pacer.pace()
        self._inbox.check()


class GroupSession:
    """A worker's part in one membership epoch of an all-reduce job. A single worker needs no process group."""

    def __init__(
        self, join: Join, rendezvous: Rendezvous, host: str, flat: FlatModel, compression: GroupCompression
    ) -> None:
        assert join.group is not None, "an all-reduce job's membership is a group"
        self.join = join
        self.group: Group = join.group
        self.lost: Address | None = None
        """A member that does not answer, named as in its hello to the coordinator."""
        self._flat = flat
        self._compression = compression
        self._gradients: SharedGradients | None = None
        self._members: ProcessGroup | None = None
        if join.n_workers > 1:
            device = flat.values.device
            self._members = ProcessGroup(
                rendezvous, join.epoch, join.rank, join.n_workers, host, device, self._cannot_reach
            )

    def _cannot_reach(self, host: str) -> None:
        self.lost = host, 0

    @property
    def is_alone(self) -> bool:
        return self._members is None

    @property
    def is_broken(self) -> bool:
        """Whether a member is gone: what failed meanwhile is not the user's code."""
        return self._members is not None and self._members.is_broken

    def meet(self, bytes_per_second: float | None) -> None:
        """Connect to the other members. Raises `ConnectionOver` when one of them does not come."""
        if self._members is not None:
            self._members.open(bytes_per_second)

    def share_state(self, sections: list[Tensor]) -> None:
        """Every member gets the root's. Raises `ConnectionOver`."""
        if self._members is not None and self.group.shares_state:
            for section in sections:
                self._members.broadcast(section, self.group.root)

    def sum(self, values: Tensor) -> None:
        """Add up what all members have, in place. Raises `ConnectionOver`."""
        if self._members is not None:
            self._members.sum(values)

    def share_gradients_of(self, task: TrainingTask, on_ready: Callable[[], None]) -> TrainingTask:
        """The task whose backward passes leave the sum over all members."""
        if self._members is None:
            return task
        self._gradients = SharedGradients(self._flat.model, task.loss, self._compression, on_ready, self._members.guard)
        return replace(task, loss=self._gradients.loss)

    def begin_step(self, n_micro_batches: int, *, measures: bool) -> None:
        """`measures`: `finish_step` is given what is to be measured."""
        if self._gradients is not None:
            self._gradients.begin(n_micro_batches, measures=measures)

    def finish_step(self, computed: Computed, parts: StepParts | None = None) -> Exchanged:
        """After all micro-batches: wait until gradients and buffers of all members are in `flat.push`, and what all of
        them measured in `parts`. Raises `ConnectionOver`."""
        if self._members is None or self._gradients is None:
            return Exchanged()
        if computed.n_examples:
            # The last micro-batch's backward pass ends when all members have sent their part.
            computed.compute_seconds -= time.perf_counter() - self._gradients.ready_at
        else:
            self._members.run(self._gradients.take_part)
        flat, n_workers = self._flat, self.join.n_workers
        buffers = flat.push[flat.parameter_floats :]
        if len(buffers):
            self._members.sum(buffers)
        if parts is not None:
            parts.share_done(self._gradients.local_square())
            parts.sums = parts.sums.to(flat.values.device)
            self._members.sum(parts.sums)
        # Each member of a ring sends, and receives, 2·(w − 1)/w times what is summed. PowerSGD sends less.
        summed_bytes = BYTES_PER_VALUE.get(self._compression, FLOAT_BYTES) * flat.parameter_floats
        summed_bytes += FLOAT_BYTES * (flat.total_floats - flat.parameter_floats)
        n_bytes = 2 * summed_bytes * (n_workers - 1) // n_workers
        waited = time.perf_counter() - self._gradients.ready_at
        return Exchanged(wait_seconds=waited, sent_bytes=n_bytes, received_bytes=n_bytes)

    def abort(self) -> None:
        """End a transfer that is going on. Safe from other threads."""
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
