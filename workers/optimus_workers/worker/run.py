"""The life of a worker: load the task, connect to the coordinator, obey it until it releases this worker."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any

import torch

from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import (
    COORDINATOR_GONE,
    LEAVE_SECONDS,
    LET_GO,
    TERMINATED,
    USER_CODE_FAILED,
    SpecificationError,
)
from optimus_workers.task.user_code import UserCodeFailed, explained
from optimus_workers.wire.control import ControlConnection, CoordinatorGone, CoordinatorLost, Delivered, Inbox, dial
from optimus_workers.wire.messages import Evaluate, Exit, Failed, Go, Halt, Hello, Join, Leave, Recount
from optimus_workers.wire.values import TaskProfile, TaskRole
from optimus_workers.worker.training import Answer, Training

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 5.0
"""How long a worker waits until the coordinator has its user's error."""


MakeTraining = Callable[[TaskEnvironment, Inbox, Callable[[Answer], None]], Training[Any]]


def run_worker(environment: TaskEnvironment, make_training: MakeTraining) -> int:
    """Work until the coordinator releases this worker; the exit code.

    `make_training`: `worker.loop` or `allreduce.loop`, by the job's architecture.
    """
    torch.set_num_threads(1)
    return _Worker(environment, make_training).run()


class _Worker:
    def __init__(self, environment: TaskEnvironment, make_training: MakeTraining) -> None:
        self._environment = environment
        self._make_training = make_training
        self._inbox = Inbox(self._abort)
        self._control: ControlConnection | None = None
        self._training: Training[Any] | None = None
        self._stop_dialling = threading.Event()
        self._terminated = False
        self._job_is_over = False
        self._epoch = 0
        """The newest membership epoch that a coordinator has named."""

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self._terminate())
        try:
            code = self._live()
        except CoordinatorGone as error:
            log.error("%s", error)  # noqa: TRY400 - its text says all
            code = COORDINATOR_GONE
        except (UserCodeFailed, SystemExit) as error:  # nothing of Optimus' own raises SystemExit in here
            code = self._report_user_error(error)
        if self._training is not None:
            self._training.deliver()
        if self._control is not None:
            self._control.close()
        if self._training is not None:
            self._training.close(lambda: self._terminated or not self._job_is_over)
        return TERMINATED if self._terminated else code

    def _live(self) -> int:
        training = self._training = self._make_training(self._environment, self._inbox, self._send)
        while True:
            self._control = self._dial(training.profile)
            reason = self._serve(training)
            if isinstance(reason, Exit):
                log.info("let go: %s", reason.reason)
                self._job_is_over = reason.job_is_over
                return LET_GO
            log.warning("the coordinator is lost: %s", reason.reason)
            self._control.close()

    def _dial(self, profile: TaskProfile | None) -> ControlConnection:
        environment = self._environment
        control = dial(
            environment.coordinator_address,
            environment.job_token,
            lambda host: self._hello(host, profile),
            self._deliver,
            self._stop_dialling,
        )
        if self._terminated:
            control.send(Leave())
        return control

    def _hello(self, host: str, profile: TaskProfile | None) -> Hello:
        name, rank, training = self._environment.task_name, self._environment.rank, self._training
        if training is None:
            return Hello(name, TaskRole.WORKER, rank, "", "", profile=profile)
        training.host = host
        return Hello(
            name,
            TaskRole.WORKER,
            rank,
            "",
            "",
            training.address,
            profile=profile,
            version=training.newest_version,
            epoch=self._epoch,
        )

    def _deliver(self, message: Delivered) -> None:
        """On the control connection's reading thread."""
        if self._training is None or not self._training.deliver_at_once(message):
            self._inbox.deliver(message)

    def _serve(self, training: Training[Any]) -> Exit | CoordinatorLost:
        """Do what the coordinator says; the message that ended it."""
        while True:
            message = self._inbox.take()
            match message:
                case Exit() | CoordinatorLost():
                    training.halt()
                    return message
                case Halt():
                    self._epoch = max(self._epoch, message.epoch)
                    training.halt()
                    training.answer_halt(message)
                case Join():
                    training.transfer(partial(training.join, message))
                case Go():
                    training.transfer(partial(training.step, message))
                case Recount():
                    training.recount(message)
                case Evaluate():
                    training.evaluate(message)
                case _:
                    if not training.obey(message):
                        log.warning("not for a worker: %s", type(message).__name__)

    def _abort(self) -> None:
        if self._training is not None:
            self._training.abort()

    def _send(self, message: Answer | Failed) -> None:
        if self._control is not None:
            self._control.send(message)

    def _terminate(self) -> None:
        """SIGTERM: ask the coordinator for release; exit in time either way. Runs between any two lines of `run`."""
        self._terminated = True
        self._stop_dialling.set()
        if self._control is None:
            os._exit(TERMINATED)
        self._control.send(Leave())
        timer = threading.Timer(LEAVE_SECONDS, os._exit, (TERMINATED,))
        timer.daemon = True
        timer.start()

    def _report_user_error(self, error: UserCodeFailed | SystemExit) -> int:
        """Report what the user's code raised to the coordinator, which ends the job."""
        text = explained(error)
        sys.stderr.write(text)
        try:
            self._control = self._control or self._dial(None)
        except CoordinatorGone:
            return USER_CODE_FAILED  # the traceback is in the log
        self._send(Failed(text, permanent=isinstance(error.__cause__, SpecificationError)))
        with suppress(Empty):
            while not isinstance(self._inbox.take(FAREWELL_SECONDS), Exit | CoordinatorLost):
                pass
        return USER_CODE_FAILED
