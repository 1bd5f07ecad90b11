"""One step of a worker with parameter servers, from top to bottom: `ServerTraining.step`. Before it, `join`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from optimus_workers.environment import TaskEnvironment
from optimus_workers.task.user_code import run_user_code
from optimus_workers.telemetry.gradients import GradientStatistics, period_of
from optimus_workers.wire.control import Inbox
from optimus_workers.wire.messages import Done, Go, Halt, Join, Joined
from optimus_workers.wire.ranges import block_floats
from optimus_workers.wire.sockets import Transport
from optimus_workers.worker.buckets import GradientHooks
from optimus_workers.worker.compression import make_compressor
from optimus_workers.worker.compute import compute_micro_batches
from optimus_workers.worker.flat_model import clip
from optimus_workers.worker.session import DataOptions, Session
from optimus_workers.worker.staging import Staging, stage
from optimus_workers.worker.training import Answer, Training


class ServerTraining(Training[Session]):
    """`Training` whose parameters and optimizer state are on servers."""

    def __init__(self, environment: TaskEnvironment, inbox: Inbox, send: Callable[[Answer], None]) -> None:
        super().__init__(environment, inbox, send)
        self._options = DataOptions(Transport(environment.transport), environment.network_bytes_per_second)
        self._hooks = GradientHooks(self._flat.trained)
        self._compressor = make_compressor(environment.spec, self._flat.parameter_floats)
        self._n_async = 0
        """Steps that this worker has made in mode async, where it does not get all numbers."""

    def step(self, go: Go) -> None:
        """Step `go.step`: fetch batches, compute, push, wait for the other workers, pull, report.

        Mode sync: every worker takes this step, and the servers are the barrier: they send new parameters once all
        workers have pushed. Mode async: the step is this worker's alone, and the servers answer at once.
        """
        session, flat = self._session, self._flat
        if session is None or session.join.epoch != go.epoch:
            return  # an earlier membership's
        join, started_at, used_version = session.join, time.perf_counter(), session.version
        max_norm = self.profile.update.max_gradient_norm
        clips_own = join.is_async and max_norm is not None  # mode sync: the servers clip the sum

        # The micro-batches that this worker computes. The prefetching process makes their batches, and the next ones.
        learning_rate = self._steps.learning_rate(join, go.step)
        number = self._n_async if join.is_async else go.step
        self._n_async += join.is_async
        measures_own = join.is_async and self._gradients.measures(number)
        micro_batches = self._steps.micro_batches(join, go.step, in_parts=measures_own)
        self._batches.expect(self._steps.micro_batches_ahead(join, go.step, micro_batches))
        if micro_batches:
            self._gradients.begin(number, len(micro_batches[0].indices), micro_batches[0].weight)

        # Compute. The last micro-batch's backward pass pushes each gradient as soon as it is final.
        session.begin_push(go.step, learning_rate, flat.push)
        pushes_early = self._compute_options.overlap and not clips_own
        own_square: float | None = None
        with self._watchdog.watching():
            try:
                computed = run_user_code(
                    lambda: compute_micro_batches(
                        self._task,
                        flat,
                        micro_batches,
                        self._after_micro_batch,
                        batches=self._batches,
                        options=self._compute_options,
                        last_pass=self._hooks.reporting(session.gradient_ready) if pushes_early else nullcontext(),
                    )
                )
                if measures_own:
                    own_square = self._gradient_square()  # before it is clipped
                if clips_own:
                    clip(
                        flat.staging.gradients[: flat.parameter_floats],
                        max_norm or 0.0,
                        block_floats(flat.total_floats),
                    )
            finally:
                flat.staging.end()

        # Push the rest. While the other workers finish, fetch the next batches (async, the next step is not known).
        session.finish_push()
        if self._compute_options.overlap and not join.is_async:
            next_ones = self._steps.micro_batches(join, go.step + 1)
            with self._watchdog.watching():
                run_user_code(lambda: self._batches.fetch_ahead(next_ones, lambda: session.needs_attention))
        fetched_at = time.perf_counter()

        # The barrier, and the new parameters.
        exchanged = session.wait()
        self.newest_version = max(self.newest_version, exchanged.version)
        if self._compressor is not None:
            self._compressor.completed(exchanged.version)

        # Report: the coordinator needs to know that the step is done, the service what it took.
        self._gradients.step_done(
            own_square if join.is_async else session.gradient_square, self._steps.batch(join).size
        )
        self._send(Done(go.epoch, go.step, computed.loss, computed.n_examples))
        computed.data_seconds += max(0.0, fetched_at - exchanged.ended_at)  # the parameters waited for the batches
        seconds = time.perf_counter() - started_at
        # Async: the job's steps, not this step's number, which may be ahead of others still at work.
        completed = exchanged.version if join.is_async else go.step + 1
        staleness = exchanged.version - 1 - used_version if join.is_async else None
        self._report(join, completed, computed, exchanged, seconds, learning_rate, staleness)

    def join(self, join: Join) -> None:
        """Become a member: connect to the servers, get the parameters (or bring the initial ones)."""
        self.halt()
        self._inbox.check()
        self._gradients = GradientStatistics(period_of(self.profile, join.rank))
        flat = self._flat
        flat.staging.end()
        session = self._session = Session(
            join,
            flat.parameter_floats,
            self._options,
            self._compressor,
            self.profile.update.max_gradient_norm,
            flat.parameter_ranges if self._compute_options.overlap else (),
            flat.staging,
            self.profile.gradient_period,
        )
        self._inbox.check()
        session.open(self._environment.job_token, flat.values, flat.push_memory)
        if join.brings_parameters:
            self._restore_initial()
        session.fetch(flat.values)
        session.version = join.version
        if self._compressor is not None:
            self._compressor.joined(join.version)
        self._joined(join)
        self._send(Joined(join.epoch))

    def answer_halt(self, halt: Halt) -> None:
        """Nothing: the servers have all state."""

    def _stage(self, device: torch.device, values: Tensor, push: Tensor) -> Staging:
        return stage(device, values, push)

    def _after_micro_batch(self) -> None:
        self._watchdog.progress()
        self._gradients.micro_batch_done(self._gradient_square)
        self._pacer.pace()
        self._inbox.check()

    def _gradient_square(self) -> float:
        """|what the micro-batches so far have added up to|²."""
        gradients = self._flat.staging.gradients[: self._flat.parameter_floats]
        return float(torch.dot(gradients, gradients))
