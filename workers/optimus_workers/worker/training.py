"""What training is for any worker: load the task, halt, tell, evaluate. `run` decides when.

How a member joins and takes a step is in `worker.server_training` and `allreduce.training`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from optimus_workers.data.prefetching import Prefetcher
from optimus_workers.environment import TaskEnvironment
from optimus_workers.loading import load_job_task
from optimus_workers.pacing import CpuPacer
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry import Telemetry
from optimus_workers.telemetry.gradients import GradientStatistics, period_of_spec
from optimus_workers.telemetry.samples import Aggregator
from optimus_workers.wire.control import Delivered
from optimus_workers.wire.errors import WireError
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
from optimus_workers.wire.values import Address
from optimus_workers.worker.batches import Batches
from optimus_workers.worker.compute import Computed, evaluate
from optimus_workers.worker.describing import tell_network
from optimus_workers.worker.device import ComputeOptions
from optimus_workers.worker.evaluating import EVALUATING_RANK, Evaluations
from optimus_workers.worker.export import export_model
from optimus_workers.worker.inbox import Inbox, Interrupted
from optimus_workers.worker.profile import make_flat, task_profile
from optimus_workers.worker.session import Exchanged, Session
from optimus_workers.worker.staging import Staging
from optimus_workers.worker.steps import Steps
from optimus_workers.worker.usage import UsageMeter
from optimus_workers.worker.user_code import users
from optimus_workers.worker.watchdog import Watchdog

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
            tell_network(self._task, self._flat, client)
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
