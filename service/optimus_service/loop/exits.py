"""Step 2 of a round: what ended on the cluster becomes events in the life of its job."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping

import structlog

from optimus_scheduler.lifecycle import AllTasksGone, Event, TooManyFailures
from optimus_scheduler.model import Directive, JobState, Role, Task, TaskKey, TaskPhase
from optimus_scheduler.model.format import time_words
from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_service.observe.histories import Histories
from optimus_service.observe.snapshot import ClusterState
from optimus_service.observe.standstills import HUNG
from optimus_service.store.records import JobRecord, Observed, TaskRecord
from optimus_service.store.repository import LeaderRepository

CODE_OF_THE_USER = 3
"""The user's code failed (docs/protocol.md)."""
_LOST_COORDINATOR = 4
"""Follows from the death of the coordinator, whose own crash is counted."""
_UNREACHED_TIMES = 2
"""One time, each task that waits for a coordinator which died may end so."""
HANG_SECONDS = 3600.0
"""A job whose workers hang as often within this time as tasks may crash without progress is failed, whatever its other
workers did meanwhile."""
RESULT_SECONDS = 6.0
"""A job's result comes no later than this after the service listens again: workers try each 5 s."""
_STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
WORKER_HUNG = "WorkerHung"
"""The event of a job that lost a worker whose code hung."""
COORDINATOR_UNREACHABLE = "CoordinatorUnreachable"
"""The event of a job of which a task could not reach its coordinator, again and again. Its message begins with the
task's name."""
_TRACEBACK_BYTES = 4000
"""Of what the task printed, in the job's failure: a traceback with its message."""

_log = structlog.get_logger(__name__)


class ExitNotices:
    """Reports to the database what ended on the cluster, each exit once."""

    def __init__(self, cluster: Cluster, histories: Histories, max_failures: int) -> None:
        self._cluster = cluster
        self._histories = histories
        self._max_failures = max_failures
        self._troubles: dict[TaskKey, str] = {}
        """What was reported of each task's trouble, so that it is reported once (again after a restart)."""
        self._has_looked = False
        """What had ended before this process first looked did so while the service was away."""
        self._awaited: dict[str, float] = {}
        """Until when the results of jobs are awaited whose tasks seem to have been let go while the service was away,
        POSIX seconds."""

    def notice(self, cluster_state: ClusterState, observed: Observed, now: float, leader: LeaderRepository) -> bool:
        """Record exits that are new, give up jobs that keep failing, end jobs whose last task has left.

        Returns:
            Whether anything was recorded that `observed` does not have.

        Raises:
            StaleLeader: another process leads by now; the rest was not recorded.
        """
        jobs = {job.id: job for job in observed.jobs}
        records = {record.key: record for record in observed.tasks if record.exited_at is None}
        exited = False
        for task in cluster_state.tasks:
            record = records.get(task.key)
            if record is not None and task.phase is TaskPhase.EXITED:
                self._exited(task, record, jobs.get(task.key.job_id), now, leader)
                exited = True
            elif record is not None:
                self._troubled(task, now, leader)
        self._troubles = {
            task.key: self._troubles[task.key] for task in cluster_state.tasks if task.key in self._troubles
        }
        vanished = self._vanished(cluster_state, observed.tasks, now, leader)
        gone = self._tasks_gone(cluster_state, jobs, now, leader)
        self._has_looked = True
        return exited or vanished or gone

    def awaits_results(self, observed: Observed, now: float) -> bool:
        """Whether a job that seems to train may have ended while the service was away: its result is on its way."""
        active = {job.id for job in observed.jobs if not job.state.is_final}
        self._awaited = {
            job_id: until
            for job_id, until in self._awaited.items()
            if job_id in active and 0.0 < until - now <= RESULT_SECONDS
        }
        return bool(self._awaited)

    def _troubled(self, task: Task, now: float, leader: LeaderRepository) -> None:
        """Report to the job's owner why a task does not run (any more)."""
        key, trouble = task.key, task.trouble
        if trouble is None or self._troubles.get(key) == trouble.code:
            return
        self._troubles[key] = trouble.code
        data = {"task": key.name, "node": task.node, "reason": trouble.code}
        leader.events.add(key.job_id, "TaskTrouble", f"{key.name}: {trouble.message}", data, now)

    def _exited(
        self, task: Task, record: TaskRecord, job: JobRecord | None, now: float, leader: LeaderRepository
    ) -> None:
        key = task.key
        data = {
            "task": key.name,
            "role": key.role.value,
            "rank": key.rank,
            "node": record.node,
            "exit_code": task.exit_code,
            "wanted": record.unwanted_since is None,
            "reason": task.trouble.code if task.trouble is not None else None,
        }
        _log.info("task exited", **data)
        with leader.write() as tx:
            tx.events.add(key.job_id, "TaskExited", _words(task, record, job, unseen=not self._has_looked), data, now)
            # Marked before it is judged, so that the count below has it.
            tx.tasks.mark_exited(key, task.exit_code, now)
        if job is None or job.directive is Directive.CANCEL:
            return
        seems_wanted = record.unwanted_since is None and not job.wanted.is_empty
        if not self._has_looked and task.exit_code == 0 and seems_wanted:
            self._awaited[job.id] = now + RESULT_SECONDS
        if task.exit_code == _LOST_COORDINATOR and seems_wanted:
            self._unreached(task, job, now, leader)
        if is_failure(task.exit_code, record.unwanted_since):
            self._judge(task, record, job, now, leader)

    def _judge(self, task: Task, record: TaskRecord, job: JobRecord, now: float, leader: LeaderRepository) -> None:
        if record.attempt < job.attempt:
            return  # training has begun anew since, or is about to
        if task.exit_code == CODE_OF_THE_USER:
            reason = f"the job's own code failed in {task.key.name}"
        elif task.exit_code == 0:
            # One more than of crashes: at its end a job lets its tasks go, and reports the result after that.
            if (n_failures := self._failures_without_progress(task.key, job, leader)) <= self._max_failures:
                return
            times = f"{task.key.role} {task.key.rank} ended {n_failures} times with exit code 0 without being told to"
            reason = f"{times}: does the training code call sys.exit() or os._exit()?"
        elif task.exit_code == HUNG and self._hangs(task, job, now, leader) >= self._max_failures:
            times = f"its workers hung {self._max_failures} times within {time_words(HANG_SECONDS)}"
            reason = f"{times}, the last time {task.key.name}: {_no_further(job)}"
        elif (n_failures := self._failures_without_progress(task.key, job, leader)) >= self._max_failures:
            times = f"{task.key.role} {task.key.rank} failed {n_failures} times in a row"
            last = _words(task, record, job).rstrip(".")
            reason = f"{times}, and the job came no further in between; the last time {last}"
        else:
            return
        tail = self._log_tail(task)
        message = f"{reason}; the end of its log:\n{tail}"
        # A coordinator that ends so has reported why, and whether a retry may help.
        of_worker = task.exit_code == CODE_OF_THE_USER and task.key.role is not Role.COORDINATOR
        error = tail if of_worker else None
        leader.jobs.advance(job.id, TooManyFailures(message, error, record.attempt), now)

    def _unreached(self, task: Task, job: JobRecord, now: float, leader: LeaderRepository) -> None:
        """Tell its owner of a task that ends as it cannot reach the coordinator, once that is no consequence of one
        death of the coordinator any more."""
        key = task.key
        progressed_at = self._progressed_at(job, leader)
        if progressed_at is None:
            return
        n_times = sum(
            (record.key.role, record.key.rank) == (key.role, key.rank)
            and record.exit_code == _LOST_COORDINATOR
            and record.attempt == job.attempt
            and record.exited_at is not None
            and record.exited_at > progressed_at
            for record in leader.tasks.select(active_only=False, job_id=job.id)
        )
        if n_times < _UNREACHED_TIMES:
            return
        where = f" at {job.coordinator_address}" if job.coordinator_address else ""
        message = (
            f"{key.name} ended as it could not reach the job's coordinator{where}: {n_times} times in a row {key.role} "
            f"{key.rank} did, and the job came no further in between. It is started again; the logs of both say more."
        )
        leader.events.add(job.id, COORDINATOR_UNREACHABLE, message, {"task": key.name, "times": n_times}, now)

    def _hangs(self, task: Task, job: JobRecord, now: float, leader: LeaderRepository) -> int:
        """How often workers of the job's attempt hung lately, this time counted; its owner is told."""
        n_hangs = sum(
            record.exit_code == HUNG
            and is_failure(record.exit_code, record.unwanted_since)
            and record.attempt == job.attempt
            and record.exited_at is not None
            and record.exited_at > now - HANG_SECONDS
            for record in leader.tasks.select(active_only=False, job_id=job.id)
        )
        since = " and since training began anew" if job.attempt else ""
        message = (
            f"{task.key.name} hung: {_no_further(job)}; its log shows where. "
            f"Hangs within {time_words(HANG_SECONDS)}{since}: {n_hangs}; at {self._max_failures} the job fails."
        )
        leader.events.add(job.id, WORKER_HUNG, message, {"task": task.key.name, "times": n_hangs}, now)
        return n_hangs

    def _failures_without_progress(self, key: TaskKey, job: JobRecord, leader: LeaderRepository) -> int:
        """Of this role and rank since the job last got further; 0 for as long as that is not known."""
        progressed_at = self._progressed_at(job, leader)
        if progressed_at is None:
            return 0
        return sum(
            (record.key.role, record.key.rank) == (key.role, key.rank)
            and record.exited_at is not None
            and record.attempt == job.attempt
            and record.exited_at > progressed_at
            and is_failure(record.exit_code, record.unwanted_since)
            for record in leader.tasks.select(active_only=False, job_id=job.id)
        )

    def _progressed_at(self, job: JobRecord, leader: LeaderRepository) -> float | None:
        """When the job last got further, POSIX seconds (0: it never did); None: that is not known yet.

        After a restart the samples of a long job are read in some rounds. Its failures are not forgotten meanwhile:
        they count at the next one.
        """
        history = self._histories.updated(job, leader.memberships.of_job(job.id))
        return (history.progressed_at or 0.0) if history.is_current else None

    def _log_tail(self, task: Task) -> str:
        try:
            return self._cluster.log_tail(task.key, _TRACEBACK_BYTES).strip() or "(it printed nothing)"
        except ClusterUnavailable:
            return "(its log cannot be read now)"

    def _vanished(
        self, cluster_state: ClusterState, records: Iterable[TaskRecord], now: float, leader: LeaderRepository
    ) -> bool:
        """Tasks that are not there (any more) have left if they should, or if there is a later one in their place, as
        where an older backup was restored; other wanted ones are started by reconcile."""
        seen = {task.key for task in cluster_state.tasks}
        newest: dict[tuple[str, Role, int], int] = {}
        for record in records:
            place = record.key[:3]
            newest[place] = max(newest.get(place, 0), record.key.incarnation)
        vanished = [
            each.key
            for each in records
            if each.key not in seen
            and each.exited_at is None
            and (each.unwanted_since is not None or each.key.incarnation < newest[each.key[:3]])
        ]
        for key in vanished:
            leader.tasks.mark_exited(key, None, now)
        return bool(vanished)

    def _tasks_gone(
        self, cluster_state: ClusterState, jobs: Mapping[str, JobRecord], now: float, leader: LeaderRepository
    ) -> bool:
        alive = {task.key.job_id for task in cluster_state.tasks if task.phase is not TaskPhase.EXITED}
        gone: dict[str, Event] = {
            job.id: AllTasksGone() for job in jobs.values() if _waits_for_its_tasks(job) and job.id not in alive
        }
        after = leader.jobs.advance_together(gone, now) if gone else {}
        return any(not isinstance(job, JobRecord) or job.version != jobs[job.id].version for job in after.values())


def _waits_for_its_tasks(job: JobRecord) -> bool:
    """Whether something happens to it once none of its tasks is left; a job that is paused already has had that."""
    is_paused = job.state is JobState.PAUSED and job.directive is Directive.PAUSE
    return job.directive in (Directive.CANCEL, Directive.PAUSE) and not is_paused


def _no_further(job: JobRecord) -> str:
    """What a worker that hangs did, and for how long."""
    seconds = job.asked.hang_seconds
    if seconds is None:
        return "it got no further for longer than is usual for it (60 s at least; `hang_seconds` sets another time)"
    return f"it got no further for longer than the {seconds:g} s that `hang_seconds` allows"


def is_failure(exit_code: int | None, unwanted_since: float | None) -> bool:
    """Whether a task that ended so should not have: it speaks against its job.

    A lost node (None) does not, nor does a task that left, was stopped or hung after it was not wanted any more.
    """
    if exit_code in (None, _LOST_COORDINATOR):
        return False
    return not (unwanted_since is not None and exit_code in (0, HUNG, *_STOPPED))


def _words(task: Task, record: TaskRecord, job: JobRecord | None, *, unseen: bool = False) -> str:
    """`unseen`: it ended while the service was away."""
    code, when = task.exit_code, " while the service was away" if unseen else ""
    if code is None:
        why = f": {task.trouble.message}" if task.trouble is not None else " with its node"
        return f"{task.key.name} is gone{why}."
    meaning = {
        0: "it ended by itself",
        CODE_OF_THE_USER: "the job's own code failed",
        _LOST_COORDINATOR: "it lost its coordinator",
        HUNG: "its training code hung",
        128 + signal.SIGTERM: "it was stopped",
        128 + signal.SIGKILL: "it was killed",
    }.get(code, "it crashed")
    is_over = job is None or job.state.is_final or record.unwanted_since is not None
    runs_command = task.key.role is Role.WORKER and job is not None and job.asked.command is not None
    if code == 0 and (is_over or runs_command):
        # Of a script this is the code of the worker, which outlives the command.
        meaning = f"it was let go{', whatever the code of its command' * runs_command}"
    elif code == 0 and unseen:
        meaning = "it was let go, or ended by itself"
    if code == CODE_OF_THE_USER and task.key.role is Role.COORDINATOR:
        ended = "the job" if job is None or job.attempt == record.attempt else "this try"
        meaning = f"it ended {ended}, as the job's own code failed in a worker"
    was_stopped_here = record.unwanted_since is not None or (job is not None and job.directive is Directive.CANCEL)
    if unseen and code in _STOPPED and not was_stopped_here:
        meaning = "it was stopped or killed, and not by Optimus"
    if code == HUNG and not is_failure(code, record.unwanted_since):
        meaning += ", after it was asked to leave: that is not counted among its hangs"
    if task.trouble is not None:
        meaning = task.trouble.message
    return f"{task.key.name} exited with {code}{when}: {meaning}."
