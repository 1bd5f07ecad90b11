"""Step 4 of a round: a plan's actions are performed, each on its own. What fails is repaired by the next round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Protocol

import structlog

from optimus_scheduler.lifecycle import ConvergenceReached, InvalidTransition
from optimus_scheduler.model import (
    Action,
    Directive,
    JobState,
    Plan,
    Role,
    SetWanted,
    Snapshot,
    StartTask,
    StopTask,
)
from optimus_service.clusters.base import Cluster, ClusterUnavailable, TaskLaunch, TaskRefused
from optimus_service.loop.launch import LaunchContext, NoFreePort, Starter, choose_address, is_free
from optimus_service.observe.snapshot import mark_unwanted_tasks
from optimus_service.store.leases import ACTS_WITHIN_SECONDS
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import LeaderRepository

_log = structlog.get_logger(__name__)

_WANTED_AT_ONCE = 64
"""Jobs whose wanted tasks one transaction writes: short enough that others do not wait long."""
_FENCE_SECONDS = ACTS_WITHIN_SECONDS
"""While tasks are started one after the other, who leads is asked again after so long."""
_REPORT_AGAIN_SECONDS = 600.0
"""A failure that goes on is an event again after so long: within the time for which explanations name it."""
_FORGET_SECONDS = 2 * _REPORT_AGAIN_SECONDS
"""An action that was not tried for so long is not wanted any more."""


class Notifier(Protocol):
    """Wakes long polls (`optimus_service.push.long_poll.LongPolls`)."""

    def notify(self, job_id: str, generation: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    at: float


class Applier:
    """Performs plans. Everything it does may be done again without harm."""

    def __init__(
        self,
        cluster: Cluster,
        notifier: Notifier,
        context: LaunchContext,
        clock: Callable[[], float],
        starts_at_once: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`starts_at_once`: tasks that this cluster may be asked to start at the same time.

        `monotonic` only grows; it tells when who leads is to be asked again.
        """
        self._monotonic = monotonic
        self._cluster = cluster
        self._notifier = notifier
        self._context = context
        self._clock = clock
        self._starter = Starter(cluster, starts_at_once)
        self._refusals: dict[str, _Failure] = {}
        """What failed, by action, and what was reported of it last."""

    def apply(self, plan: Plan, snapshot: Snapshot, leader: LeaderRepository) -> tuple[str, ...]:
        """Perform the plan of this snapshot; what could not be done, in words.

        Raises:
            StaleLeader: somebody else leads by now; the rest of the plan was not performed.
            DatabaseNotAvailable: the rest of the plan was not performed.
        """
        converged = self._finish_converged(plan, snapshot, leader)
        failures = [failure for failure in self._perform_all(plan.actions, leader) if failure is not None]
        if plan.actions or converged:
            mark_unwanted_tasks(leader, leader.wanted.of_active_jobs(), leader.tasks.select(), self._clock())
        return tuple(failures)

    def _perform_all(self, actions: Iterable[Action], leader: LeaderRepository) -> Iterator[str | None]:
        """In the plan's order, but that those of one kind which follow each other are written together."""
        for kind, group in groupby(actions, type):
            if kind is StartTask:
                starts = (action for action in group if isinstance(action, StartTask))
                while batch := list(islice(starts, self._starter.batch_size)):
                    yield from self._start_all(batch, leader)
            elif kind is SetWanted:
                changes = (action for action in group if isinstance(action, SetWanted))
                while several := list(islice(changes, _WANTED_AT_ONCE)):
                    self._set_wanted(several, leader)
            else:
                yield from (self._stop(action, leader) for action in group if isinstance(action, StopTask))

    def _finish_converged(self, plan: Plan, snapshot: Snapshot, leader: LeaderRepository) -> bool:
        """Whether there was any."""
        jobs, found = {job.id: job for job in snapshot.jobs}, False
        for decision in plan.decisions:
            job = jobs[decision.job_id]
            if job.spec.tracked:
                continue  # it ends when its owner ends it
            # One that waits has nothing to finish with: it ends as soon as it goes on.
            has_tasks = job.state is JobState.PAUSED and not decision.allocation.is_empty
            trains = job.state is JobState.RUNNING or has_tasks
            if decision.forecast.converged and trains and job.directive in (Directive.RUN, Directive.PAUSE):
                rule = decision.forecast.rule or "its convergence rule"
                self._advance(job.id, ConvergenceReached(rule), leader)
                found = True
        return found

    def _set_wanted(self, changes: Sequence[SetWanted], leader: LeaderRepository) -> None:
        for job_id, generation in leader.wanted.put(changes, self._clock()):
            self._notifier.notify(job_id, generation)

    def _stop(self, action: StopTask, leader: LeaderRepository) -> str | None:
        leader.check_fence()
        try:
            self._cluster.stop(action.key, force=action.force)
        except (ClusterUnavailable, OSError) as error:
            return self._failed(action, error, leader)
        self._refusals.pop(_words(action), None)
        return None

    def _start_all(self, actions: Sequence[StartTask], leader: LeaderRepository) -> list[str | None]:
        """Failures by action. All are noted in the database before the first one is started."""
        leader.check_fence()
        self._starter.prepare(sorted({action.task.key.job_id for action in actions}))
        launches, addresses, problems = self._launches(actions, leader)
        asked_at = self._monotonic()  # the transaction asks as it begins, and may have to wait for its end
        if launches:
            # The records come first: whatever is on the cluster is known to the database.
            starts = [
                (launch.key, launch.node, next(iter(launch.resources.gpus), None)) for launch in launches.values()
            ]
            leader.tasks.put(starts, addresses, self._clock())
        asked_at = self._ask_again(asked_at, leader)
        outcomes = self._starter.start(list(launches.values()))
        for (action, launch), problem in zip(launches.items(), outcomes, strict=True):
            if problem is not None:
                problems[action] = self._failed(action, problem, leader)
            else:
                self._started(action, launch)
            asked_at = self._ask_again(asked_at, leader)
        return [problems.get(action) for action in actions]

    def _ask_again(self, asked_at: float, leader: LeaderRepository) -> float:
        """When it was asked last who leads: now, if that is long ago.

        Raises:
            StaleLeader: somebody else does.
        """
        now = self._monotonic()
        if now - asked_at <= _FENCE_SECONDS:
            return asked_at
        leader.check_fence()
        return now

    def _launches(
        self, actions: Sequence[StartTask], leader: LeaderRepository
    ) -> tuple[dict[StartTask, TaskLaunch], dict[str, str], dict[StartTask, str | None]]:
        """What to start; new addresses of coordinators by job; what cannot be started, in words."""
        jobs = leader.jobs.by_id({action.task.key.job_id for action in actions})
        launches: dict[StartTask, TaskLaunch] = {}
        problems: dict[StartTask, str | None] = {}
        addresses = _Addresses(self._cluster, leader)
        for action in actions:
            job = jobs[action.task.key.job_id]
            if job.state.is_final or job.wanted.is_empty:
                continue  # it ended, or failed and waits for a retry, after the snapshot was taken
            try:
                launches[action] = self._context.launch(action.task, job, addresses.of(job, action.task.key.role))
            except (ClusterUnavailable, NoFreePort, OSError) as error:
                problems[action] = self._failed(action, error, leader)
        return launches, addresses.new, problems

    def _started(self, action: StartTask, launch: TaskLaunch) -> None:
        self._refusals.pop(_words(action), None)
        _log.info("task started", task=launch.key.name, node=launch.node)

    def _advance(self, job_id: str, event: ConvergenceReached, leader: LeaderRepository) -> None:
        try:
            job = leader.jobs.advance(job_id, event, self._clock())
        except InvalidTransition:
            return  # the job ended after the snapshot was taken
        self._notifier.notify(job_id, job.generation)

    def _failed(self, action: StartTask | StopTask, error: Exception, leader: LeaderRepository) -> str:
        message = f"{_words(action)} failed: {error}"
        _log.warning("action failed", action=_words(action), error=str(error))
        reason = error.trouble.code if isinstance(error, TaskRefused) else None
        if self._is_news(_words(action), message):
            task = action.task.key.name if isinstance(action, StartTask) else None
            data = {"error": str(error), "reason": reason, "task": task}
            leader.events.add(_job_id(action), "ActionFailed", message, data, self._clock())
        return message

    def _is_news(self, action: str, message: str) -> bool:
        """Whether this failure is to be reported: not when it was lately, in the same words."""
        now = self._clock()
        last = self._refusals.get(action)
        if last is not None and last.message == message and now - last.at < _REPORT_AGAIN_SECONDS:
            return False
        recent = {each: failure for each, failure in self._refusals.items() if now - failure.at < _FORGET_SECONDS}
        self._refusals = {**recent, action: _Failure(message, now)}
        return True


class _Addresses:
    """Where coordinators listen, for one batch of starts."""

    def __init__(self, cluster: Cluster, leader: LeaderRepository) -> None:
        self._cluster = cluster
        self._leader = leader
        self._taken: set[str] | None = None
        self.new: dict[str, str] = {}
        """Those that the database does not know yet, by job."""

    def of(self, job: JobRecord, role: Role) -> str:
        """The job's address; another one if a coordinator is to be started where somebody else listens by now.

        Raises:
            ClusterUnavailable: the cluster gives addresses, and cannot now.
            NoFreePort: there is none on this machine.
        """
        known = self.new.get(job.id, job.coordinator_address)
        address = self._cluster.coordinator_address(job.id)
        if address is None and known is not None and (role is not Role.COORDINATOR or is_free(known)):
            address = known
        if address is None:
            address = choose_address(self._known_addresses())
        if address != known:
            self.new[job.id] = address
        return address

    def _known_addresses(self) -> set[str]:
        if self._taken is None:
            self._taken = self._leader.jobs.coordinator_addresses()
        return self._taken | set(self.new.values())


def _words(action: StartTask | StopTask) -> str:
    match action:
        case StartTask(task=task):
            return f"starting {task.key.name} on {task.node}"
        case StopTask(key=key):
            return f"stopping {key.name}"


def _job_id(action: StartTask | StopTask) -> str:
    match action:
        case StartTask(task=task):
            return task.key.job_id
        case StopTask(key=key):
            return key.job_id
