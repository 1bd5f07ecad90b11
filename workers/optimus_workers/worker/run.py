"""The life of a worker: load the task, meet the coordinator, do steps until let go."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

from optimus_workers.environment import TaskEnvironment
from optimus_workers.exits import COORDINATOR_GONE, LEAVE_SECONDS, LET_GO, TERMINATED, USER_CODE_FAILED
from optimus_workers.loading import load_task
from optimus_workers.pacing import CpuPacer
from optimus_workers.sampler import epoch_of
from optimus_workers.service_client import ServiceClient
from optimus_workers.task import TrainingTask
from optimus_workers.telemetry import Record, Telemetry
from optimus_workers.wire.control import Control, CoordinatorGone, CoordinatorLost, Delivered, dial
from optimus_workers.wire.errors import ConnectionOver, WireError
from optimus_workers.wire.messages import (
    DataLost,
    Done,
    Evaluate,
    Evaluated,
    Exit,
    Failed,
    Go,
    Halt,
    Hello,
    Join,
    Joined,
    Leave,
    TaskProfile,
    TaskRole,
    UpdateRule,
)
from optimus_workers.wire.sockets import Transport
from optimus_workers.worker.compressor import make_compressor
from optimus_workers.worker.compute import Computed, async_slots, compute_slots, evaluate, sync_slots
from optimus_workers.worker.describing import tell_network
from optimus_workers.worker.evaluating import EVALUATING_RANK, Evaluations
from optimus_workers.worker.export import export_model
from optimus_workers.worker.flat import FlatModel
from optimus_workers.worker.session import DataOptions, Exchanged, Session
from optimus_workers.worker.watchdog import Watchdog

log = logging.getLogger(__name__)

TELEMETRY_SECONDS = 5.0
"""How long a worker that was let go stays for its last samples."""
FAREWELL_SECONDS = 5.0
"""How long a worker waits for the coordinator to take note of its user's error."""

T = TypeVar("T")


class UserCodeFailed(Exception):
    """The user's code raised; its exception is the cause."""


class Interrupted(ConnectionOver):
    """The coordinator wants something else than the step at hand."""


def run_worker(environment: TaskEnvironment) -> int:
    """Work until let go; the exit code."""
    torch.set_num_threads(1)
    return _Worker(environment).run()


class _Worker:
    def __init__(self, environment: TaskEnvironment) -> None:
        self._environment = environment
        self._seed = int(environment.spec.get("seed", 0))
        self._inbox: SimpleQueue[Delivered] = SimpleQueue()
        self._control: Control | None = None
        self._session: Session | None = None
        self._n_interruptions = 0  # delivered and not yet taken from the inbox
        self._interruptions = threading.Lock()
        self._stop_dialling = threading.Event()
        self._terminated = False
        self._newest_version = 0
        self._evaluations = Evaluations(environment.spec)
        self._pacer = CpuPacer(environment.cpu_limit)
        self._watchdog = Watchdog(environment.spec.get("hang_seconds"))
        self._options = DataOptions(Transport(environment.transport), environment.network_bytes_per_second)
        self._client = ServiceClient(environment.service_url, environment.job_id, environment.job_token)
        self._telemetry = Telemetry(self._client.post_telemetry)

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._terminate())
        try:
            code = self._live()
        except CoordinatorGone as error:
            log.error("%s", error)  # noqa: TRY400 - its text says all
            code = COORDINATOR_GONE
        except UserCodeFailed as error:
            code = self._report_user_error(error)
        self._telemetry.close(TELEMETRY_SECONDS)
        if self._control is not None:
            self._control.close()
        return TERMINATED if self._terminated else code

    def _live(self) -> int:
        self._task = _users(self._load)
        _users(lambda: self._evaluations.check(self._task))
        self._flat = _users(lambda: FlatModel(self._task.build_model(self._seed)))
        if self._environment.rank == EVALUATING_RANK:
            tell_network(self._task, self._flat, self._client)
        self._profile = _profile(self._task, self._flat)
        self._compressor = make_compressor(self._environment.spec, self._flat.parameter_floats)
        while True:
            self._control = self._dial(self._profile)
            reason = self._serve()
            if isinstance(reason, Exit):
                log.info("let go: %s", reason.reason)
                return LET_GO
            log.warning("the coordinator is lost: %s", reason.reason)
            self._control.close()

    def _load(self) -> TrainingTask:
        spec = self._environment.spec
        task = load_task(spec["task"], spec.get("task_args"), spec.get("working_directory"))
        return task.with_global_batch_size(spec.get("global_batch_size"))

    def _dial(self, profile: TaskProfile | None) -> Control:
        environment = self._environment
        control = dial(
            environment.coordinator_address,
            environment.job_token,
            lambda _: Hello(
                environment.task_name,
                TaskRole.WORKER,
                environment.rank,
                "",
                "",
                profile=profile,
                version=self._newest_version,
            ),
            self._deliver,
            self._stop_dialling,
        )
        if self._terminated:
            control.send(Leave())
        return control

    def _serve(self) -> Exit | CoordinatorLost:
        """Do what the coordinator says; the word that ended it."""
        while True:
            message = self._take()
            match message:
                case Exit() | CoordinatorLost():
                    self._close_session()
                    return message
                case Halt():
                    self._close_session()
                case Join():
                    self._transfer(partial(self._join, message))
                case Go():
                    self._transfer(partial(self._step, message))
                case Evaluate():
                    self._evaluate(message)
                case _:
                    log.warning("not for a worker: %s", type(message).__name__)

    # --- messages, and interruptions by them -------------------------------------------------------------------------

    def _deliver(self, message: Delivered) -> None:
        """On the control connection's reading thread."""
        if isinstance(message, Halt | Exit | CoordinatorLost):
            with self._interruptions:
                self._n_interruptions += 1
            session = self._session
            if session is not None:
                session.abort()
        self._inbox.put(message)

    def _take(self) -> Delivered:
        message = self._inbox.get()
        if isinstance(message, Halt | Exit | CoordinatorLost):
            with self._interruptions:
                self._n_interruptions -= 1
        return message

    def _check_interrupted(self) -> None:
        if self._n_interruptions:
            raise Interrupted("the coordinator wants something else")

    def _terminate(self) -> None:
        """SIGTERM: ask to be let go; be gone in time either way. Runs between any two lines of the main thread."""
        self._terminated = True
        self._stop_dialling.set()
        if self._control is None:
            os._exit(TERMINATED)
        self._control.send(Leave())
        timer = threading.Timer(LEAVE_SECONDS, os._exit, (TERMINATED,))
        timer.daemon = True
        timer.start()

    def _send(self, message: Joined | Done | DataLost | Evaluated | Failed) -> None:
        if self._control is not None:
            self._control.send(message)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- work --------------------------------------------------------------------------------------------------------

    def _transfer(self, work: Callable[[], None]) -> None:
        """Do work that needs the servers; when they fail it, the coordinator decides what comes next."""
        session = self._session
        try:
            work()
        except Interrupted:
            return
        except (OSError, WireError) as error:
            session = self._session or session
            if session is not None and not self._n_interruptions:
                self._send(DataLost(session.join.epoch, f"{type(error).__name__}: {error}", session.lost))

    def _join(self, join: Join) -> None:
        self._close_session()
        self._check_interrupted()
        session = Session(join, self._flat.parameter_floats, self._options, self._compressor)
        self._session = session
        self._check_interrupted()
        session.open(self._environment.job_token, self._flat.values, self._flat.push_memory)
        if join.brings_parameters:
            self._restore_initial()
        session.fetch(self._flat.values)
        session.version = join.version
        if self._compressor is not None:
            self._compressor.joined(join.version)
        self._newest_version = max(self._newest_version, join.version)
        self._evaluations.begin(self._data_epoch(join.version))
        self._send(Joined(join.epoch))

    def _restore_initial(self) -> None:
        """The parameters that training begins with, however far this process has trained before."""
        initial = _users(lambda: FlatModel(self._task.build_model(self._seed)))
        self._flat.values.copy_(initial.values)

    def _step(self, go: Go) -> None:
        session = self._session
        if session is None or session.join.epoch != go.epoch:
            return
        started_at = time.perf_counter()
        computed = self._compute(session.join, go.step)
        used_version = session.version
        learning_rate = _users(lambda: self._task.learning_rate(go.step))
        exchanged = session.push_and_pull(go.step, learning_rate, self._flat.push)
        self._newest_version = max(self._newest_version, exchanged.version)
        if self._compressor is not None:
            self._compressor.completed(exchanged.version)
        self._send(Done(go.epoch, go.step, computed.loss, computed.n_examples))
        staleness = exchanged.version - 1 - used_version if session.join.is_async else None
        seconds = time.perf_counter() - started_at
        self._record(session.join, go.step, computed, exchanged, seconds, staleness)

    def _compute(self, join: Join, step: int) -> Computed:
        def after_each() -> None:
            self._watchdog.sign()
            self._pacer.pace()
            self._check_interrupted()

        if join.is_async:
            slots = async_slots(self._task, self._seed, step)
        else:
            slots = sync_slots(self._task, self._seed, step, join.first_slot, join.end_slot)
        self._watchdog.begin()
        try:
            return _users(lambda: compute_slots(self._task, self._flat, slots, after_each))
        finally:
            self._watchdog.end()

    def _record(
        self, join: Join, step: int, computed: Computed, exchanged: Exchanged, seconds: float, staleness: float | None
    ) -> None:
        # Async: the job's steps, not this ticket's number, which may be ahead of others still at work.
        completed = exchanged.version if join.is_async else step + 1
        record = Record(
            membership_epoch=join.epoch,
            rank=join.rank,
            workers=join.n_workers,
            servers=len(join.servers),
            at=time.time(),
            step=completed,
            data_epoch=self._data_epoch(completed),
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
            metrics=self._metrics(join, completed),
        )
        self._telemetry.record(record)

    def _metrics(self, join: Join, completed: int) -> dict[str, float] | None:
        """The figures of an evaluation, if one is due after this many steps."""
        if join.rank != EVALUATING_RANK or not self._evaluations.is_due(self._data_epoch(completed)):
            return None
        return _users(lambda: self._evaluations.figures(self._task, self._flat))

    def _data_epoch(self, steps: int) -> float:
        return epoch_of(steps, self._task.global_batch_size, self._task.n_examples)

    def _evaluate(self, message: Evaluate) -> None:
        if self._session is None or self._session.join.epoch != message.epoch:
            return
        metrics = _users(lambda: evaluate(self._task, self._flat))
        model: str | None = None
        try:
            model = str(export_model(self._flat, self._environment.job_directory))
        except OSError as error:
            log.warning("the model is in the checkpoint only: %s", error)
        self._send(Evaluated(message.epoch, metrics, model))

    def _report_user_error(self, error: UserCodeFailed) -> int:
        """Tell the coordinator what the user's code raised; it ends the job."""
        cause = error.__cause__ or error
        text = "".join(traceback.format_exception(cause))
        sys.stderr.write(text)
        try:
            self._control = self._control or self._dial(None)
        except CoordinatorGone:
            return USER_CODE_FAILED  # the traceback is in the log
        self._send(Failed(text))
        with suppress(Empty):
            while not isinstance(self._inbox.get(timeout=FAREWELL_SECONDS), Exit | CoordinatorLost):
                pass
        return USER_CODE_FAILED


def _users(call: Callable[[], T]) -> T:
    """The result of the user's code. What it raises becomes `UserCodeFailed`."""
    try:
        return call()
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeFailed(str(error)) from error


def _profile(task: TrainingTask, flat: FlatModel) -> TaskProfile:
    spec = task.optimizer
    betas = (float(spec.betas[0]), float(spec.betas[1]))
    rule = UpdateRule(
        spec.kind, float(spec.momentum), bool(spec.nesterov), float(spec.weight_decay), betas, float(spec.eps)
    )
    return TaskProfile(
        n_parameters=flat.n_parameters,
        parameter_floats=flat.parameter_floats,
        total_floats=flat.total_floats,
        n_examples=_users(lambda: task.n_examples),
        global_batch_size=task.global_batch_size,
        micro_batches=task.micro_batches,
        update=rule,
    )
