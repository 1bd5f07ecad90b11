"""The training that a worker of a parameter-server job does: join a membership, compute, push, pull."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from optimus_workers.environment import TaskEnvironment
from optimus_workers.task.user_code import users
from optimus_workers.telemetry.gradients import GradientStatistics, period_of
from optimus_workers.wire.control import Inbox
from optimus_workers.wire.messages import Done, Go, Halt, Join, Joined
from optimus_workers.wire.ranges import block_floats
from optimus_workers.wire.sockets import Transport
from optimus_workers.worker.buckets import GradientHooks
from optimus_workers.worker.compression import make_compressor
from optimus_workers.worker.compute import Computed, compute_slots
from optimus_workers.worker.flat_model import clip
from optimus_workers.worker.session import DataOptions, Session
from optimus_workers.worker.staging import Staging, stage
from optimus_workers.worker.training import Answer, Training


class ServerTraining(Training):
    """`Training` whose parameters and optimizer state are on servers."""

    def __init__(self, environment: TaskEnvironment, inbox: Inbox, send: Callable[[Answer], None]) -> None:
        super().__init__(environment, inbox, send)
        self._options = DataOptions(Transport(environment.transport), environment.network_bytes_per_second)
        self._hooks = GradientHooks(self._flat.trained)
        self._compressor = make_compressor(environment.spec, self._flat.parameter_floats)
        self._n_async = 0
        """Steps that this worker has made in mode async, where it has not all numbers."""
        self._own_square: float | None = None
        """|gradient of this step's mini-batch|², where it is measured in mode async."""

    def _stage(self, device: torch.device, values: Tensor, push: Tensor) -> Staging:
        return stage(device, values, push)

    def answer_halt(self, halt: Halt) -> None:
        """Nothing: what there is, is on servers."""

    def join(self, join: Join) -> None:
        """Become a member: connect to the servers, get the parameters (or bring them)."""
        self.halt()
        self._inbox.check()
        limit, period = self.profile.update.max_gradient_norm, self.profile.gradient_period
        self._gradients = GradientStatistics(period_of(self.profile, join.rank))
        flat = self._flat
        flat.staging.end()
        ranges = flat.parameter_ranges if self._compute_options.overlap else ()
        session = Session(
            join, flat.parameter_floats, self._options, self._compressor, limit, ranges, flat.staging, period
        )
        self._session = session
        self._inbox.check()
        session.open(self._environment.job_token, self._flat.values, self._flat.push_memory)
        if join.brings_parameters:
            self._restore_initial()
        session.fetch(self._flat.values)
        session.version = join.version
        if self._compressor is not None:
            self._compressor.joined(join.version)
        self.newest_version = max(self.newest_version, join.version)
        self._evaluations.begin(self._steps.data_epoch(join, join.version))
        self._send(Joined(join.epoch))

    def step(self, go: Go) -> None:
        """Compute, push, pull, tell."""
        session = self._session
        if session is None or session.join.epoch != go.epoch:
            return
        started_at = time.perf_counter()
        used_version = session.version
        learning_rate = self._steps.learning_rate(session.join, go.step)
        session.begin_push(go.step, learning_rate, self._flat.push)
        computed = self._compute(session, go.step)
        session.finish_push()
        self._fetch_ahead(session, go.step + 1)
        fetched_at = time.perf_counter()
        exchanged = session.wait()
        square = self._own_square if session.join.is_async else session.gradient_square
        self._gradients.step_done(square, self._steps.batch(session.join).size)
        computed.data_seconds += max(0.0, fetched_at - exchanged.ended_at)
        self.newest_version = max(self.newest_version, exchanged.version)
        if self._compressor is not None:
            self._compressor.completed(exchanged.version)
        self._send(Done(go.epoch, go.step, computed.loss, computed.n_examples))
        staleness = exchanged.version - 1 - used_version if session.join.is_async else None
        seconds = time.perf_counter() - started_at
        self._record(session.join, go.step, computed, exchanged, seconds, staleness)

    def _compute(self, session: Session, step: int) -> Computed:
        """Leave the gradients in `flat.push`; those of the last slot are pushed while they are made."""
        is_async = session.join.is_async
        number = self._n_async if is_async else step
        measures_own = is_async and self._gradients.measures(number)
        self._n_async, self._own_square = self._n_async + is_async, None
        slots = self._steps.slots(session.join, step, in_parts=measures_own)
        self._batches.expect(self._steps.slots_ahead(session.join, step, slots))
        if slots:
            self._gradients.begin(number, len(slots[0].indices), slots[0].weight)
        clips_own = is_async and self._max_gradient_norm is not None
        tells = self._compute_options.overlap and not clips_own
        self._watchdog.begin()
        try:
            computed = users(
                lambda: compute_slots(
                    self._task,
                    self._flat,
                    slots,
                    self._after_slot,
                    batches=self._batches,
                    options=self._compute_options,
                    last_pass=self._hooks.telling(session.gradient_ready) if tells else nullcontext(),
                )
            )
            if measures_own:
                self._own_square = self._square()  # before it is clipped
            if clips_own:  # async: each worker clips what it pushes; sync: the servers clip the sum
                flat = self._flat
                gradients = flat.staging.gradients[: flat.parameter_floats]
                clip(gradients, self._max_gradient_norm or 0.0, block_floats(flat.total_floats))
            return computed
        finally:
            self._flat.staging.end()
            self._watchdog.end()

    @property
    def _max_gradient_norm(self) -> float | None:
        return self.profile.update.max_gradient_norm

    def _after_slot(self) -> None:
        self._watchdog.sign()
        self._gradients.slot_done(self._square)
        self._pacer.pace()
        self._inbox.check()

    def _square(self) -> float:
        """|what is in the gradients|²."""
        gradients = self._flat.staging.gradients[: self._flat.parameter_floats]
        return float(torch.dot(gradients, gradients))

    def _fetch_ahead(self, session: Session, step: int) -> None:
        """Fetch batches of the next step while this one's parameters arrive. Async, nobody knows which step is next."""
        if session.join.is_async or not self._compute_options.overlap:
            return
        slots = self._steps.slots(session.join, step)
        self._watchdog.begin()
        try:
            users(lambda: self._batches.fetch_ahead(slots, lambda: session.needs_attention))
        finally:
            self._watchdog.end()
