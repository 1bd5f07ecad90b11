"""Can tasks load the code that a job names? Asked of the cluster, with a short memory."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from optimus_contract import answers
from optimus_service.api.http.problems import Problem, unavailable
from optimus_service.clusters.base import TaskObjection, TaskSizes

Question = tuple[str, str | None]
"""What is asked, and the working directory in which it is looked for."""
Check = Callable[[str, str | None], str | None]
Trial = Callable[[Mapping[str, Any]], TaskObjection | TaskSizes | None]

_REMEMBERED_SECONDS = 60.0
"""Code that could be loaded a minute ago most likely still can, and a task that cannot load it says so itself."""
_MAX_REMEMBERED = 256
_HANGS_SECONDS = 40.0
"""A cluster gives up after 30 s by itself, unless what it waits for cannot be interrupted: a network file system whose
server is away."""
_MAX_HANGING = 32
"""Checks that hang at one time, each with a thread; no other is begun then."""
_AT_ONCE = 4
"""Submissions that are looked at together. A check starts an interpreter and may load large libraries; and those that
wait must not take the threads that all other calls need."""

_TRIALS_AT_ONCE = 2
"""Trials run the user's code, which may take half a minute and much memory. Fewer than `_AT_ONCE`, so that slow ones
leave turns for the submissions of others."""
_TRIAL_WAIT_SECONDS = 10.0
"""A submission that has waited so long for its trial goes without one; the job itself reports what is wrong."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Answer:
    """One question to the cluster; whoever comes while it is being asked waits for the answer."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    loadable_at: float | None = None
    sizes: TaskSizes | None = None
    """What a trial that went well has found."""


def _hangs(question: Question) -> Problem:
    field, of = ("task", "its code") if question[1] is None else ("working_directory", "this directory")
    message = f"looking at {of} takes too long: its file system may hang; try again later"
    return unavailable(f"{field}: {message}", [answers.ProblemError(field=field, message=message)])


def _question_of(job: Mapping[str, Any]) -> Question:
    return json.dumps(job, sort_keys=True), job.get("working_directory")


class TaskChecks:
    """Asks the cluster whether tasks can load some code, once for many equal questions. Thread-safe.

    Only good news is remembered: who repairs his code and submits again must not be told of old errors.
    """

    def __init__(
        self,
        check: Check,
        try_task: Trial = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        hangs_seconds: float = _HANGS_SECONDS,
        trial_wait_seconds: float = _TRIAL_WAIT_SECONDS,
    ) -> None:
        """`hangs_seconds`: how long a check may take before it is given up.

        `trial_wait_seconds`: how long a submission waits for its turn to try its task, before it goes untried.
        """
        self._check = check
        self._try = try_task
        self._clock = clock
        self._hangs_seconds = hangs_seconds
        self._hanging: set[Question] = set()
        self._lock = threading.Lock()
        self._answers: OrderedDict[Question, _Answer] = OrderedDict()
        self._turns = CapacityLimiter(_AT_ONCE)
        self._trial_wait_seconds = trial_wait_seconds
        self._trials = threading.BoundedSemaphore(_TRIALS_AT_ONCE)

    async def in_turn(
        self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run something that checks tasks in a thread, a few at a time; the others wait without a thread."""
        return await to_thread.run_sync(partial(call, *args, **kwargs), limiter=self._turns)

    def why_not_loadable(self, import_path: str, working_directory: str | None) -> str | None:
        """Why not, None when tasks can load it or that is not known.

        Raises:
            Problem: the check hangs, as an earlier one in this working directory may do still (503).
        """
        answer = self._answer((import_path, working_directory))
        with answer.turn:
            if answer.loadable_at is not None and self._clock() - answer.loadable_at < _REMEMBERED_SECONDS:
                return None
            why_not = self._asked(
                (import_path, working_directory), partial(self._check, import_path, working_directory)
            )
            answer.loadable_at = self._clock() if why_not is None else None
            return why_not

    def why_not_trainable(self, job: Mapping[str, Any]) -> TaskObjection | None:
        """What stands in the way of this job's task (see `Cluster.try_task`).

        None: nothing, or that is not known, as while the trials of others take all turns.

        Raises:
            Problem: the trial hangs, as `why_not_loadable` (503).
        """
        question = _question_of(job)
        answer = self._answer(question)
        with self._turn(answer.turn) as mine, self._turn(self._trials) as free:
            if not (mine and free):
                return None
            if answer.loadable_at is not None and self._clock() - answer.loadable_at < _REMEMBERED_SECONDS:
                return None
            found = self._asked(question, partial(self._try, job))
            objection = found if isinstance(found, TaskObjection) else None
            answer.loadable_at = self._clock() if objection is None else None
            answer.sizes = found if isinstance(found, TaskSizes) else None
            return objection

    def sizes_of(self, job: Mapping[str, Any]) -> TaskSizes | None:
        """What the newest trial of this very job has found; None: it was not tried, or that is forgotten."""
        with self._lock:
            answer = self._answers.get(_question_of(job))
        return None if answer is None else answer.sizes

    @contextmanager
    def _turn(self, lock: threading.Lock | threading.Semaphore) -> Iterator[bool]:
        """Hold the lock; False when it was not free in time."""
        acquired = lock.acquire(timeout=self._trial_wait_seconds)
        try:
            yield acquired
        finally:
            if acquired:
                lock.release()

    def _asked(self, question: Question, ask: Callable[[], Result]) -> Result:
        """The cluster's answer, waited for in a thread that may be left behind."""
        answer: Future[Result] = Future()
        with self._lock:
            if any(directory == question[1] for _, directory in self._hanging) or len(self._hanging) >= _MAX_HANGING:
                raise _hangs(question)
        threading.Thread(target=self._ask, args=(question, ask, answer), name="task-check", daemon=True).start()
        try:
            return answer.result(self._hangs_seconds)
        except TimeoutError as error:
            with self._lock:
                if not answer.done():
                    self._hanging.add(question)
            raise _hangs(question) from error

    def _ask(self, question: Question, ask: Callable[[], Result], answer: Future[Result]) -> None:
        try:
            found = ask()
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self._give(question, partial(answer.set_exception, error))
        else:
            self._give(question, partial(answer.set_result, found))

    def _give(self, question: Question, give: Callable[[], None]) -> None:
        with self._lock:
            give()
            self._hanging.discard(question)

    def _answer(self, question: Question) -> _Answer:
        with self._lock:
            answer = self._answers.setdefault(question, _Answer())
            self._answers.move_to_end(question)
            if len(self._answers) > _MAX_REMEMBERED:
                self._answers.popitem(last=False)
            return answer
