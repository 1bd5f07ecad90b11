"""What all workers do: load the task, report, halt, evaluate. `worker.run` decides when.

How a worker joins a membership and takes a step is in `worker.loop` and `allreduce.loop`.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from optimus_contract.job import JobSpec
from optimus_contract.result import PlannedRates
from optimus_contract.telemetry import Sample
from optimus_workers.data.prefetching import Prefetcher
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import TaskError, WireError
from optimus_workers.service_client import ServiceClient
from optimus_workers.task.definition import TrainingTask
from optimus_workers.task.network import report_network
from optimus_workers.task.user_code import load_job_task, run_user_code
from optimus_workers.telemetry import Telemetry
from optimus_workers.telemetry.gradients import GradientStatistics, period_of_spec
from optimus_workers.telemetry.planned_rates import planned, sampled_steps, send_planned_rates
from optimus_workers.telemetry.sender import Aggregator
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
from optimus_workers.wire.values import Address
from optimus_workers.worker.compute import Batches, Computed, Steps
from optimus_workers.worker.device import ComputeOptions, UsageMeter
from optimus_workers.worker.evaluation import EVALUATING_RANK, Evaluations, evaluate
from optimus_workers.worker.flat_model import export_model, make_flat, task_profile
from optimus_workers.worker.session import Exchanged
from optimus_workers.worker.staging import Staging
from optimus_workers.worker.watchdog import Watchdog

log = logging.getLogger(__name__)

REPORTING_RANK = 0
"""The worker whose estimates of the gradients count."""
TELEMETRY_SECONDS = 5.0
"""How long a worker that was released stays for its last samples."""

Answer = Joined | Done | DataLost | Evaluated | Halted | Publish | SnapshotTaken | Saved | SaveFailed


class MembershipSession(Protocol):
    """A worker's part in one membership epoch."""

    join: Join
    lost: Address | None
    """The task whose connection failed."""

    def abort(self) -> None:
        """End a transfer that is going on. Safe from other threads."""

    def close(self) -> None:
        """The membership is over."""


AnySession = TypeVar("AnySession", bound=MembershipSession)


class Training(ABC, Generic[AnySession]):
    """The loaded task, its model, and the session of the present membership."""

    def __init__(self, environment: TaskEnvironment, inbox: Inbox, send: Callable[[Answer], None]) -> None:
        """Load the user's task; raises `UserCodeFailed`. `send`: takes messages to the coordinator."""
        spec = environment.spec
        self._environment = environment
        self._inbox = inbox
        self._send = send
        self._seed = spec.seed
        self._compute_options = ComputeOptions.from_spec(spec)
        self._compute_options.prepare_process()
        self._session: AnySession | None = None
        self.host = ""
        """This machine's address, as the coordinator sees it."""
        self.newest_version = 0
        """The newest version of the parameters that was here in full."""
        self._evaluations = Evaluations(spec)
        self._pacer = CpuPacer(environment.cpu_limit)
        self._watchdog = Watchdog(spec.hang_seconds)
        client = ServiceClient(environment.service_url, environment.job_id, environment.job_token)
        self._task = run_user_code(lambda: load_job_task(spec))
        run_user_code(lambda: self._evaluations.check(self._task))
        self._steps = Steps(self._task, self._seed)
        prefetcher = Prefetcher(self._task.batch, self._task.prefetch) if self._task.prefetch else None
        device = run_user_code(lambda: self._compute_options.choose_device(environment.rank))
        self._telemetry = Telemetry(client.post_telemetry, aggregator=Aggregator(usage=UsageMeter(device).read))
        self._flat, groups = run_user_code(
            lambda: make_flat(self._task, self._task.build_model(self._seed), partial(self._stage, device))
        )
        log.info("computing on %s, %s", device, self._compute_options)
        if environment.rank == EVALUATING_RANK:
            report_network(self._task, self._flat.model, client)
            report_planned_rates(self._task, spec, client)
        self._compute_options.prepare_model(self._flat.model)
        self._batches = Batches(self._task, device, prefetcher)
        extra = run_user_code(self._extra_sections)
        self.profile = task_profile(self._task, self._flat, groups, period_of_spec(spec), extra)
        self._gradients = GradientStatistics(0)

    # --- what the two architectures do differently -------------------------------------------------------------------

    @abstractmethod
    def join(self, join: Join) -> None:
        """Become a member: connect, get the parameters (or bring them)."""

    @abstractmethod
    def step(self, go: Go) -> None:
        """Take a step, and report it to the coordinator and to the service."""

    @abstractmethod
    def answer_halt(self, halt: Halt) -> None:
        """Report what this worker holds, if the parameters are not on servers."""

    def _extra_sections(self) -> int:
        """Vectors of state beside those that servers keep. Raises `TaskError` where the task needs other workers."""
        why_not = self._task.why_no_servers
        if why_not is not None:
            raise TaskError(why_not)
        return 0

    @abstractmethod
    def _stage(self, device: torch.device, values: Tensor, push: Tensor) -> Staging:
        """What lies between the flat vector and the model."""

    @property
    def address(self) -> Address | None:
        """What others name in a complaint that they cannot reach this worker; None: no other task connects to it."""
        return None

    def deliver_at_once(self, message: Delivered) -> bool:  # noqa: ARG002 - of those that have something to wait for
        """On the reading thread: take a message that the main thread may be waiting for; whether it was one."""
        return False

    def obey(self, message: Delivered) -> bool:  # noqa: ARG002 - of those that hold parameters
        """Do what is otherwise asked of servers; whether it was that."""
        return False

    # --- what they share ---------------------------------------------------------------------------------------------

    def transfer(self, work: Callable[[], None]) -> None:
        """Join or take a step; when a connection fails meanwhile, the coordinator decides what comes next."""
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

    def evaluate(self, message: Evaluate) -> None:
        """Report the final metrics, and write the model to a file."""
        if self._session is None or self._session.join.epoch != message.epoch:
            return
        metrics = run_user_code(lambda: evaluate(self._task, self._flat))
        model: str | None = None
        try:
            model = str(export_model(self._flat, self._environment.job_directory))
        except OSError as error:
            log.warning("the model is in the checkpoint only: %s", error)
        self._send(Evaluated(message.epoch, metrics, model))

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

    def deliver(self) -> None:
        """Send the last samples; waits some seconds for the service."""
        self._batches.close()
        self._telemetry.flush(TELEMETRY_SECONDS)

    def close(self, is_over: Callable[[], bool]) -> None:
        """`deliver` while the service is away, until `is_over()`: see `Telemetry.outlast`."""
        self._telemetry.outlast(is_over)
        self._telemetry.close(TELEMETRY_SECONDS)

    def _restore_initial(self) -> None:
        """The parameters that training begins with, however far this process has trained before."""
        initial, _ = run_user_code(lambda: make_flat(self._task, self._task.build_model(self._seed)))
        self._flat.values.copy_(initial.values)

    def _joined(self, join: Join) -> None:
        """The parameters of `join.version` are here: training goes on from them."""
        self.newest_version = max(self.newest_version, join.version)
        self._evaluations.begin(self._steps.data_epoch(join, join.version))

    def _report(
        self,
        join: Join,
        completed: int,
        computed: Computed,
        exchanged: Exchanged,
        seconds: float,
        learning_rate: float,
        staleness: float | None = None,
    ) -> None:
        """Record a step for the service; after it `completed` steps of the job are done. Evaluates if that is due."""
        batch, data_epoch = self._steps.batch(join), self._steps.data_epoch(join, completed)
        metrics: dict[str, float] | None = None
        if join.rank == EVALUATING_RANK and self._evaluations.is_due(data_epoch):
            metrics = run_user_code(lambda: self._evaluations.metrics(self._task, self._flat))
        step = Sample(
            membership_epoch=join.epoch,
            rank=join.rank,
            sequence=0,  # telemetry counts
            workers=join.n_workers,
            servers=len(join.servers),
            at=time.time(),
            step=batch.reported_step(completed),
            n_steps=batch.reported_step(completed) - batch.reported_step(completed - 1),
            global_batch=batch.size if batch.is_elastic else None,
            data_epoch=data_epoch,
            loss=computed.loss,
            learning_rate=learning_rate if math.isfinite(learning_rate) else None,
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
            gradients=self._gradients.estimates if join.rank == REPORTING_RANK else None,
            metrics=metrics,
        )
        self._telemetry.record(step)


# --- the learning rates that a task is to have, by its own schedule --------------------------------------------------

UNLIMITED_EPOCHS = 300.0
"""How far a schedule is looked at whose job has no limit of steps or epochs."""


def report_planned_rates(task: TrainingTask, spec: JobSpec, client: ServiceClient) -> None:
    """Tell the service what the schedule says for all steps to come; sent in the background."""
    plan = planned_rates(task, spec)
    if plan is not None:
        send_planned_rates(plan, client.put_planned_rates)


def planned_rates(task: TrainingTask, spec: JobSpec) -> PlannedRates | None:
    """By steps of the base batch; None when it cannot be found out, or depends on the loss. What a larger batch
    multiplies is not in it."""
    if task.plateau is not None:
        return None
    end = 1 if task.learning_rate_at is None else _last_step(task, spec)
    try:
        return planned([(step, float(task.learning_rate(step))) for step in sampled_steps(0, end)])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may refuse steps that never come
        log.info("the planned learning rates are not told: %s: %s", type(error).__name__, error)
        return None


def _last_step(task: TrainingTask, spec: JobSpec) -> int:
    """Steps after which the job ends at the latest, or how far ahead its schedule is looked at."""
    rule = spec.convergence
    epochs = rule.max_epochs
    if epochs is None and rule.max_steps is None:
        epochs = UNLIMITED_EPOCHS
    limits = [float(rule.max_steps)] if rule.max_steps is not None else []
    if epochs is not None:
        limits.append(epochs * task.steps_per_epoch)
    return max(1, math.ceil(min(limits)))
