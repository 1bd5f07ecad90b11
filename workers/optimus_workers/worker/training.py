"""What the steps of a job are: which slots this worker computes, at what learning rate, where in the data; and what is
told of each.

What training is for any worker: load the task, halt, tell, evaluate. `run` decides when.

How a member joins and takes a step is in `worker.server_training` and `allreduce.training`.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from optimus_workers.data.prefetching import Prefetcher
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import WireError
from optimus_workers.service_client import ServiceClient
from optimus_workers.task.definition import TrainingTask
from optimus_workers.task.network import report_network
from optimus_workers.task.user_code import load_job_task, users
from optimus_workers.telemetry import Record, Telemetry
from optimus_workers.telemetry.gradients import ELASTIC_PERIOD, GradientStatistics, period_of_spec
from optimus_workers.telemetry.samples import Aggregator
from optimus_workers.telemetry.usage import CpuPacer
from optimus_workers.wire.control import Delivered, Inbox, Interrupted
from optimus_workers.wire.messages import (
    DataLost,
    Done,
    Evaluate,
    Evaluated,
    Go,
    Halt,
    Halted,
    Join,
    Joined,
    Publish,
    Recount,
    Saved,
    SaveFailed,
    SnapshotTaken,
)
from optimus_workers.wire.values import Address, GlobalBatch, constant_batch
from optimus_workers.worker.compute import Batches, Computed, Slot, async_slots, sync_slots
from optimus_workers.worker.device import ComputeOptions, UsageMeter
from optimus_workers.worker.evaluation import EVALUATING_RANK, Evaluations, evaluate
from optimus_workers.worker.flat_model import export_model, make_flat, task_profile
from optimus_workers.worker.session import Exchanged, Session
from optimus_workers.worker.staging import Staging
from optimus_workers.worker.watchdog import Watchdog


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


log = logging.getLogger(__name__)

TELLING_RANK = 0
"""Of the worker whose figures of the gradients count."""
TELEMETRY_SECONDS = 5.0
"""How long a worker that was let go stays for its last samples."""

Answer = Joined | Done | DataLost | Evaluated | Halted | Publish | SnapshotTaken | Saved | SaveFailed


class Training(ABC):
    """The loaded task, its model, and the session of the present membership."""

    def __init__(self, environment: TaskEnvironment, inbox: Inbox, send: Callable[[Answer], None]) -> None:
        """Load the user's task; raises `UserCodeFailed`. `send`: takes what the coordinator is to be told."""
        self._environment = environment
        self._inbox = inbox
        self._send = send
        self._seed = int(environment.spec.get("seed", 0))
        self._compute_options = ComputeOptions.from_spec(environment.spec)
        self._compute_options.prepare_process()
        self._session: Session | None = None
        self.host = ""
        """This machine's address, as the coordinator sees it."""
        self.newest_version = 0
        """The newest version of the parameters that was here in full."""
        self._evaluations = Evaluations(environment.spec)
        self._pacer = CpuPacer(environment.cpu_limit)
        self._watchdog = Watchdog(environment.spec.get("hang_seconds"))
        client = ServiceClient(environment.service_url, environment.job_id, environment.job_token)
        self._task = users(lambda: load_job_task(environment.spec))
        users(lambda: self._evaluations.check(self._task))
        self._steps = Steps(self._task, self._seed)
        prefetcher = Prefetcher(self._task.batch, self._task.prefetch) if self._task.prefetch else None
        device = users(lambda: self._compute_options.choose_device(environment.rank))
        self._telemetry = Telemetry(client.post_telemetry, aggregator=Aggregator(usage=UsageMeter(device).read))
        self._flat, groups = users(
            lambda: make_flat(self._task, self._task.build_model(self._seed), partial(self._stage, device))
        )
        log.info("computing on %s, %s", device, self._compute_options)
        if environment.rank == EVALUATING_RANK:
            report_network(self._task, self._flat.model, client)
        self._compute_options.prepare_model(self._flat.model)
        self._batches = Batches(self._task, device, prefetcher)
        self.profile = task_profile(self._task, self._flat, groups, period_of_spec(environment.spec))
        self._gradients = GradientStatistics(0)

    @abstractmethod
    def _stage(self, device: torch.device, values: Tensor, push: Tensor) -> Staging:
        """What lies between the vector and the model."""

    @abstractmethod
    def join(self, join: Join) -> None:
        """Become a member: connect, get the parameters (or bring them)."""

    @abstractmethod
    def step(self, go: Go) -> None:
        """Take a step, and tell the coordinator."""

    def abort(self) -> None:
        """End a transfer that is going on. Safe from other threads."""
        session = self._session
        if session is not None:
            session.abort()

    def halt(self) -> None:
        """The membership is over."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @abstractmethod
    def answer_halt(self, halt: Halt) -> None:
        """Say what is held here, if the parameters are not on servers."""

    @property
    def address(self) -> Address | None:
        """What others may say to complain that they cannot reach this worker; None: nobody has to."""
        return None

    def deliver_at_once(self, message: Delivered) -> bool:  # noqa: ARG002 - of those that have something to wait for
        """On the reading thread: take a message that the main thread may be waiting for; whether it was one."""
        return False

    def obey(self, message: Delivered) -> bool:  # noqa: ARG002 - of those that hold parameters
        """Do what is otherwise asked of servers; whether it was that."""
        return False

    def close(self) -> None:
        """Send the last samples."""
        self._batches.close()
        self._telemetry.close(TELEMETRY_SECONDS)

    def transfer(self, work: Callable[[], None]) -> None:
        """Do work that needs the servers; when they fail it, the coordinator decides what comes next."""
        session = self._session
        try:
            work()
        except Interrupted:
            return
        except (OSError, WireError) as error:
            session = self._session or session
            if session is not None and not self._inbox.is_interrupted:
                self._send(DataLost(session.join.epoch, f"{type(error).__name__}: {error}", session.lost))

    def recount(self, message: Recount) -> None:
        """Count the steps from now on as this batch says."""
        session = self._session
        if session is not None and session.join.epoch == message.epoch:
            session.join = replace(session.join, batch=message.batch)

    def _restore_initial(self) -> None:
        """The parameters that training begins with, however far this process has trained before."""
        initial, _ = users(lambda: make_flat(self._task, self._task.build_model(self._seed)))
        self._flat.values.copy_(initial.values)

    def _record(
        self, join: Join, step: int, computed: Computed, exchanged: Exchanged, seconds: float, staleness: float | None
    ) -> None:
        # Async: the job's steps, not this ticket's number, which may be ahead of others still at work.
        completed = exchanged.version if join.is_async else step + 1
        figures = self._gradients.figures if join.rank == TELLING_RANK else None
        metrics = self._metrics(join, completed)
        record = self._steps.record(
            join, completed, computed, exchanged, seconds, staleness=staleness, gradients=figures, metrics=metrics
        )
        self._telemetry.record(record)

    def _metrics(self, join: Join, completed: int) -> dict[str, float] | None:
        """The figures of an evaluation, if one is due after this many steps."""
        if join.rank != EVALUATING_RANK or not self._evaluations.is_due(self._steps.data_epoch(join, completed)):
            return None
        return users(lambda: self._evaluations.figures(self._task, self._flat))

    def evaluate(self, message: Evaluate) -> None:
        """The final figures, and the model as a file."""
        if self._session is None or self._session.join.epoch != message.epoch:
            return
        metrics = users(lambda: evaluate(self._task, self._flat))
        model: str | None = None
        try:
            model = str(export_model(self._flat, self._environment.job_directory))
        except OSError as error:
            log.warning("the model is in the checkpoint only: %s", error)
        self._send(Evaluated(message.epoch, metrics, model))
