"""Tasks that run for a job that is known, although the database knows nothing of them: an older backup was restored.

They began after the backup was taken. Left alone, the next tasks of their job would get their names, and none of the
two would be what the other takes it for. So they are written down, before anything is decided, and the next names are
beyond theirs. What runs is then what its job wants, as if it had been granted today: it trains on, and the next rounds
change it as they would any other. A job that is to have nothing (its owner had paused it) lets them go as always, with
a checkpoint. Where a task's coordinator cannot be found any more nobody could lead it: it is ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import structlog

from optimus_scheduler.model import (
    Allocation,
    Directive,
    PlacedTask,
    Role,
    SetWanted,
    Task,
    TaskPhase,
)
from optimus_service.clusters.base import Cluster
from optimus_service.observe.snapshot import ClusterState
from optimus_service.store.records import JobRecord, Observed, TaskRecord
from optimus_service.store.repository import LeaderRepository

TASKS_ADOPTED = "TasksAdopted"
"""The event of their job."""
_MOST_NAMED = 20
"""Tasks that one event names."""
_WORDS = "Tasks of this job run that the database had no record of, as after the restore of an older backup: {}. {}"

_log = structlog.get_logger(__name__)


def adopt(cluster: Cluster, state: ClusterState, observed: Observed, now: float, leader: LeaderRepository) -> bool:
    """Write down all tasks of known jobs that the database has no record of; whether there were any.

    Raises:
        ClusterUnavailable: those without a coordinator could not be ended.
        StaleLeader: somebody else leads by now.
    """
    candidates = beyond_records(state.tasks, observed.tasks)
    jobs = leader.jobs.by_id({task.key.job_id for task in candidates}) if candidates else {}
    candidates = [task for task in candidates if task.key.job_id in jobs]
    if not candidates:
        return False
    # Of ended jobs not all records are observed.
    records = leader.tasks.select(active_only=False, job_ids=jobs.keys())
    found = beyond_records(candidates, records)
    for job_id, of_job in groupby(found, lambda task: task.key.job_id):
        _adopt(cluster, jobs[job_id], list(of_job), state.tasks, observed, now, leader)
    return bool(found)


def beyond_records(seen: Iterable[Task], records: Iterable[TaskRecord]) -> list[Task]:
    """Tasks of the cluster, exited or not, that are newer than all of their role and rank which the database knows.

    Older ones have had their records, or their job has gone on without them.
    """
    newest: dict[tuple[str, Role, int], int] = {}
    for record in records:
        slot = record.key[:3]
        newest[slot] = max(newest.get(slot, -1), record.key.incarnation)
    return [task for task in seen if task.key.incarnation > newest.get(task.key[:3], -1)]


def running_set(seen: Iterable[Task]) -> tuple[Task, ...] | None:
    """The newest living worker or server of each rank among these tasks of one job, by key; None where ranks are
    missing, as in the middle of a change, or where there is no worker."""
    newest: dict[tuple[Role, int], Task] = {}
    for task in sorted(seen, key=lambda task: task.key):
        if task.phase is not TaskPhase.EXITED and task.key.role is not Role.COORDINATOR:
            newest[task.key.role, task.key.rank] = task
    ranks: Mapping[Role, list[int]] = {
        role: sorted(rank for of, rank in newest if of is role) for role in (Role.WORKER, Role.SERVER)
    }
    if not ranks[Role.WORKER] or any(each != list(range(len(each))) for each in ranks.values()):
        return None
    return tuple(sorted(newest.values(), key=lambda task: task.key))


def _adopt(
    cluster: Cluster,
    job: JobRecord,
    found: Sequence[Task],
    seen: Iterable[Task],
    observed: Observed,
    now: float,
    leader: LeaderRepository,
) -> None:
    leader.check_fence()
    living = [task for task in found if task.phase is not TaskPhase.EXITED]
    address = cluster.coordinator_address(job.id) or job.coordinator_address
    is_led = address is not None
    if not is_led:
        for task in living:
            cluster.stop(task.key, force=True)
    with leader.write() as tx:
        starts = [(task.key, task.node, _gpu_type(task)) for task in found]
        tx.tasks.put(starts, {job.id: address} if address is not None else {}, now)
        for task in found:
            if task not in living or not is_led:
                tx.tasks.mark_exited(task.key, task.exit_code, now)
        if living:
            names = [task.key.name for task in living]
            becomes = _becomes(job, is_led=is_led)
            data = {"tasks": names[:_MOST_NAMED], "n_tasks": len(names), "kept": is_led}
            _log.warning("tasks without a record", job=job.id, **data)
            tx.events.add(job.id, TASKS_ADOPTED, _WORDS.format(_named(names), becomes), data, now)
    wanted = observed.wanted.get(job.id)
    runs = running_set(task for task in seen if task.key.job_id == job.id)
    is_to_train = job.owner_paused_at is None and job.directive is not Directive.CANCEL and not job.state.is_final
    if living and is_led and is_to_train and runs is not None and wanted is not None:
        leader.wanted.put([_as_it_runs(job, runs, wanted.batch)], now)


def _as_it_runs(job: JobRecord, runs: Sequence[Task], batch: int | None) -> SetWanted:
    n_workers = sum(task.key.role is Role.WORKER for task in runs)
    gpu_type = next((of for task in runs if (of := _gpu_type(task)) is not None), None)
    allocation = Allocation(n_workers, len(runs) - n_workers, gpu_type)
    directive = Directive.FINISH if job.directive is Directive.FINISH else Directive.RUN
    return SetWanted(job.id, allocation, directive, tuple(PlacedTask(task.key, task.node) for task in runs), batch)


def _becomes(job: JobRecord, *, is_led: bool) -> str:
    if not is_led:
        return "Where their coordinator listens is not known, so they are ended; others take their places."
    if job.owner_paused_at is not None or job.state.is_final or job.directive is Directive.CANCEL:
        return "The job is to have none: they are let go."
    return "They train on; steps that they told after the backup, and before it was restored, are not known."


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _gpu_type(task: Task) -> str | None:
    return None if task.resources is None else next(iter(task.resources.gpus), None)
