"""Step 1 of a round: what is on the cluster and in the database becomes one immutable snapshot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import structlog

from optimus_models.calibration import NO_EXPERIENCE
from optimus_scheduler.forecast.prices import cost_per_second, has_prices
from optimus_scheduler.lifecycle import ResultReported, TooManyFailures
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    Directive,
    Job,
    JobSpec,
    JobState,
    Node,
    Nodes,
    PlacedTask,
    Quota,
    Resources,
    Role,
    Snapshot,
    SpeedSample,
    Task,
    TaskKey,
    TaskPhase,
    WorkerLimit,
)
from optimus_scheduler.settings import Settings
from optimus_service.clusters.base import Cluster
from optimus_service.observe.divergence import LOSS_NOT_FINITE, first_words, why_failed
from optimus_service.observe.finished_runs import FinishedRunHistory
from optimus_service.observe.histories import KEPT_AFTER, Histories, basis_of, begun
from optimus_service.observe.jobs import job_of
from optimus_service.observe.joins import Joins
from optimus_service.observe.silence import END_NOT_TOLD, end_of_silent, last_heard, not_told
from optimus_service.observe.spec import (
    UnreadableSpecification,
    began_at,
    begins_anew,
    most_steps,
    readable_spec,
    spec_of,
)
from optimus_service.observe.standstills import is_replaced
from optimus_service.observe.telemetry import JobHistory
from optimus_service.observe.unknown_tasks import less, without_record
from optimus_service.observe.unsaved_work import since_its_beginning, worked_seconds
from optimus_service.store.records import JobRecord, MembershipRecord, Observed, TaskRecord, WantedRecord
from optimus_service.store.repository import LeaderRepository, Repository

NO_TASKS: Mapping[TaskKey, Task] = MappingProxyType({})
_TOLD_AGAIN_SECONDS = 600.0
"""The owner of a job whose losses are finite and not in turn is told so no more often."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the cluster said when it was asked."""

    nodes: tuple[Node, ...]
    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> ClusterState:
        return cls(cluster.nodes(), cluster.tasks())


class Observer:
    """Reads the database and makes the snapshot."""

    def __init__(
        self,
        repository: Repository,
        histories: Histories,
        settings: Settings,
        finished_runs: FinishedRunHistory | None = None,
        member_workers: int | None = None,
    ) -> None:
        """`finished_runs`: what ended jobs taught; None: jobs are judged by themselves alone.

        `member_workers`: so many the jobs of one member hold together, unless the user has a limit; None: no limit.
        """
        self._member_workers = member_workers
        self._repository = repository.reading()
        self._histories = histories
        self._settings = settings
        self._finished_runs = finished_runs
        self._nodes = Nodes()
        """Those of the last look."""
        self._tasks: dict[TaskKey, Task] = {}
        """Those of the last round: it passes over tasks that are the very same objects."""
        self._announced: set[tuple[str, str]] = set()
        self._diverged_at: dict[str, float] = {}
        """When it was told last of each active job that its loss is not finite."""
        self._since: float | None = None
        """When the first look was: before that nobody may have listened."""
        self._unreadable: list[UnreadableSpecification] = []
        """Active jobs that the last look left out."""
        self._joins = Joins(self._repository)

    def snapshot(
        self, cluster_state: ClusterState, now: float, leader: LeaderRepository, observed: Observed
    ) -> Snapshot:
        """The world as of `now`, for the leader. The exits in `cluster_state` should have been noticed before.

        `observed`: read after that.

        Raises:
            StaleLeader: another process leads by now.
        """
        if mark_unwanted_tasks(leader, observed.wanted, observed.tasks, now):
            observed = leader.observed()
        self._learn(now, leader)
        self._histories.keep(leader, self._histories.others(job.id for job in observed.jobs), least=1)
        histories = self._updated(observed)
        seen = self._seen(cluster_state, now, observed, histories)
        self._tasks = {task.key: task for task in seen.tasks}
        self._give_up_unreadable(now, leader)
        seen = self._without_diverged(seen, observed.jobs, histories, now, leader)
        seen = self._without_silent(seen, observed.jobs, histories, now, leader)
        self._tell_stragglers(seen, now, leader)
        return seen

    def _without_diverged(
        self,
        seen: Snapshot,
        jobs: Iterable[JobRecord],
        histories: Mapping[str, JobHistory],
        now: float,
        leader: LeaderRepository,
    ) -> Snapshot:
        """Say once of each job that its loss is not finite any more, and end those of which that stays so."""
        failed = set()
        for job in jobs:
            history, notice = histories[job.id], (job.id, LOSS_NOT_FINITE)
            with history.turn:
                since, why = history.nonfinite_since, why_failed(job, history)
            if since is None:
                self._announced.discard(notice)  # it may become so again, by the same step, too
                continue
            if job.directive in (Directive.FINISH, Directive.CANCEL):
                continue
            if job.state is not JobState.RUNNING:
                continue  # it is to go on after such an end, and what is known is from before
            if notice not in self._announced and now - self._diverged_at.get(job.id, -math.inf) >= _TOLD_AGAIN_SECONDS:
                self._announced.add(notice)
                self._diverged_at[job.id] = now
                leader.events.add(job.id, LOSS_NOT_FINITE, first_words(since), {"step": since}, now)
            if why is not None:
                leader.jobs.advance(job.id, TooManyFailures(why), now)
                failed.add(job.id)
        self._diverged_at = {each: at for each, at in self._diverged_at.items() if each in histories}
        return replace(seen, jobs=tuple(job for job in seen.jobs if job.id not in failed)) if failed else seen

    def _without_silent(
        self,
        seen: Snapshot,
        jobs: Iterable[JobRecord],
        histories: Mapping[str, JobHistory],
        now: float,
        leader: LeaderRepository,
    ) -> Snapshot:
        """End the tracked jobs that report no more."""
        self._since = now if self._since is None else min(self._since, now)
        silent = set()
        for job in jobs:
            if job.heard_at is None:
                continue
            end = end_of_silent(job, histories[job.id], now - max(job.heard_at, self._since))
            if end is not None:
                ended_at = min(last_heard(job), now)
                leader.jobs.advance(job.id, end, ended_at)
                if isinstance(end, ResultReported):
                    leader.events.add(job.id, END_NOT_TOLD, not_told(job), {}, ended_at)
                silent.add(job.id)
        return replace(seen, jobs=tuple(job for job in seen.jobs if job.id not in silent)) if silent else seen

    def _give_up_unreadable(self, now: float, leader: LeaderRepository) -> None:
        """No later round could do anything with these jobs either; all others are scheduled."""
        for problem in self._unreadable:
            _log.error("job given up", job=problem.job_id, why=problem.why)
            leader.jobs.advance(problem.job_id, TooManyFailures(f"{problem}; submit the job again"), now)

    def _tell_stragglers(self, snapshot: Snapshot, now: float, leader: LeaderRepository) -> None:
        """To the job's owner, once for each task."""
        slow = {(job.id, key.name) for job in snapshot.jobs for key in job.stragglers}
        for job_id, name in sorted(slow - self._announced):
            words = f"{name} is slower than half the median of the job's workers"
            leader.events.add(job_id, "Straggler", words, {"task": name}, now)
        active = {job.id for job in snapshot.jobs}
        self._announced |= slow
        self._announced = {each for each in self._announced if each[0] in active}

    def keep(self, leader: LeaderRepository, least: int = KEPT_AFTER) -> None:
        """Store what is known of jobs of which at least so many samples are new: see `Histories.keep`."""
        self._histories.keep(leader, least=least)

    def look(self, cluster_state: ClusterState, now: float) -> Snapshot:
        """The same for anybody: nothing is written. Jobs that have ended since the last round teach what the next one
        learns from them before it decides."""
        observed = self._repository.observed()
        if self._finished_runs is not None:
            self._finished_runs.refresh()
            self._finished_runs.look_ahead(self._history_of_ended, now)
        return self._seen(cluster_state, now, observed, self._updated(observed))

    def count_active(self) -> int:
        """The number of jobs that have not ended."""
        counts = self._repository.jobs.count_by_state()
        return sum(count for state, count in counts.items() if not state.is_final)

    def _updated(self, observed: Observed) -> Mapping[str, JobHistory]:
        """The histories of active jobs, as of now."""
        ahead = frozenset[str]() if self._finished_runs is None else self._finished_runs.ahead
        self._histories.keep_only({record.id for record in observed.jobs} | ahead)
        return self._histories.update(observed.jobs, observed.memberships)

    def _seen(
        self, cluster_state: ClusterState, now: float, observed: Observed, histories: Mapping[str, JobHistory]
    ) -> Snapshot:
        memberships = observed.memberships
        self._read_networks(observed, histories)
        self._read_tasks(observed.jobs)
        nodes = self._nodes = Nodes.of(cluster_state.nodes) if cluster_state.nodes != self._nodes else self._nodes
        jobs, self._unreadable = [], []
        self._joins.update(observed)
        for record in observed.jobs:
            wanted, history = observed.wanted[record.id], histories[record.id]
            try:
                with history.turn:
                    jobs.append(self._job(record, wanted, memberships.get(record.id, []), history, nodes, now))
            except UnreadableSpecification as problem:
                self._unreadable.append(problem)
        tasks = merge_tasks(cluster_state.tasks, observed.tasks, self._tasks)
        quotas = tuple(each.quota for each in observed.projects if each.quota != Quota(each.quota.project))
        limits = worker_limits(observed, self._member_workers)
        # What the database has no record of takes room all the same: else it would be given away a second time.
        return Snapshot(
            now,
            less(cluster_state.nodes, without_record(cluster_state.tasks, tasks)),
            tuple(jobs),
            tasks,
            quotas,
            limits,
            self._joins.start_ups,
        )

    def _read_networks(self, observed: Observed, histories: Mapping[str, JobHistory]) -> None:
        """Of jobs that have told their layers and have not measured anything: all together, once."""
        if self._finished_runs is not None:
            unmeasured = {job_id for job_id, history in histories.items() if not history.last_id}
            self._finished_runs.read_networks(unmeasured & observed.with_network)

    def _read_tasks(self, records: Iterable[JobRecord]) -> None:
        """What ended jobs taught of their tasks: all together, once."""
        if self._finished_runs is not None:
            specs = [readable_spec(record) for record in records]
            self._finished_runs.read_tasks(spec.family for spec in specs if spec is not None)

    def _calculated_speeds(self, record: JobRecord, spec: JobSpec, history: JobHistory) -> tuple[SpeedSample, ...]:
        """For as long as nothing is measured."""
        if self._finished_runs is None or history.last_id:
            return ()
        return self._finished_runs.calculated_speeds(record, spec)

    def _learn(self, now: float, leader: LeaderRepository) -> None:
        """From jobs that ended since the last round, while their histories are still in memory."""
        if self._finished_runs is not None:
            self._finished_runs.learn(self._history_of_ended, now, leader)
            self._finished_runs.refresh()

    def _history_of_ended(self, job: JobRecord) -> JobHistory:
        return self._histories.updated(job, self._repository.memberships.of_job(job.id))

    def as_submitted(self, record: JobRecord, cluster_state: ClusterState, now: float) -> Job:
        """What `record`, which is not stored, would be in a snapshot if it were submitted now."""
        nothing = WantedRecord(generation=0, directive=record.directive, allocation=record.wanted, tasks=())
        history = begun(basis_of(record))
        self._read_tasks([record])
        return self._job(record, nothing, [], history, Nodes.of(cluster_state.nodes), now)

    def _job(
        self,
        record: JobRecord,
        wanted: WantedRecord,
        memberships: Sequence[MembershipRecord],
        history: JobHistory,
        nodes: Nodes,
        now: float,
    ) -> Job:
        if _begins_anew_in_others(record, memberships, wanted):
            record = replace(record, step=began_at(record))
        spec = spec_of(record)
        allocation = record.running if spec.tracked else wanted.allocation
        return job_of(
            record,
            spec,
            memberships,
            history,
            backoff=self._settings.retry_backoff,
            calculated_speeds=self._calculated_speeds(record, spec, history),
            similar=() if self._finished_runs is None else self._finished_runs.similar_to(spec.family),
            experience=NO_EXPERIENCE if self._finished_runs is None else self._finished_runs.experience_of(spec.family),
            spent=spent(memberships, spec, allocation.gpu_type, self._settings, now),
            allocation=allocation,
            batch=wanted.batch,
            formed=record.running if record.state is JobState.RUNNING else NOTHING,
            joining_seconds=self._joins.seconds_of(record.id),
            unsaved_seconds=unsaved_seconds(record, memberships, history, now),
            wanted_tasks=wanted.tasks,
            stragglers=stragglers(history, memberships, wanted.tasks),
            attained_share_seconds=attained_share_seconds(memberships, spec, nodes.capacity, now),
            boundary=None if self._finished_runs is None else self._finished_runs.boundary_of(spec, nodes),
        )


def _begins_anew_in_others(record: JobRecord, memberships: Sequence[MembershipRecord], wanted: WantedRecord) -> bool:
    """Whether the processes of a script that keeps no checkpoint are gone, and others take their place: all its steps
    are made again. One that has reached a limit with them is ended by it."""
    trains = record.state is JobState.RUNNING and record.directive is Directive.RUN and record.running == record.wanted
    is_replacing = trains and begins_anew(record) and is_replaced(memberships, wanted.tasks)
    return is_replacing and record.step < most_steps(record)


def stragglers(
    history: JobHistory, memberships: Sequence[MembershipRecord], wanted: Iterable[PlacedTask]
) -> tuple[TaskKey, ...]:
    """Wanted workers that are much slower than the others of the present membership."""
    slow = history.slow_workers
    if not slow.ranks():
        return ()
    names = next((each.workers for each in memberships if each.epoch == slow.epoch), ())
    keys = {placed.key.name: placed.key for placed in wanted}
    found = (names[rank] for rank in slow.ranks() if rank < len(names))
    return tuple(keys[name] for name in found if name in keys)


def merge_tasks(
    seen: Iterable[Task], records: Iterable[TaskRecord], before: Mapping[TaskKey, Task] = NO_TASKS
) -> tuple[Task, ...]:
    """Tasks of the cluster together with what the database knows of them, sorted by key; the very ones of `before`
    where they are equal.

    `records` are the newest of each active job's ranks, and all that have not exited. What the cluster has but the
    database has no record of is left out: `unknown_tasks.py` deals with it. A task that was recorded but is not on the
    cluster was never started (or vanished, or ended after the backup that was restored): leaving it out lets reconcile
    start it. Of a worker or a server its job knows the incarnation; of a coordinator the one before it is told, as
    exited, for an earlier one than its journal knows would quit at once.
    """
    on_cluster = {task.key: task for task in seen}
    found: dict[TaskKey, Task] = {}
    for record in records:
        task = on_cluster.get(record.key)
        if record.exited_at is not None:
            task = Task(record.key, record.node, TaskPhase.EXITED, exit_code=record.exit_code)
        if task is not None:
            known = before.get(record.key)
            found[record.key] = known if known is not None and _is_same(known, task, record) else _merged(task, record)
        elif record.key.role is Role.COORDINATOR and record.key.incarnation:
            earlier = record.key._replace(incarnation=record.key.incarnation - 1)
            found[earlier] = Task(earlier, record.node, TaskPhase.EXITED)
    return tuple(found[key] for key in sorted(found))


def _merged(task: Task, record: TaskRecord) -> Task:
    return replace(task, unwanted_since=record.unwanted_since, gpu_type=record.gpu_type)


def _is_same(known: Task, task: Task, record: TaskRecord) -> bool:
    """Whether `known` is what would be made of the other two: quicker found out than made."""
    return (
        known.phase is task.phase
        and known.node == task.node
        and known.exit_code == task.exit_code
        and known.unwanted_since == record.unwanted_since
        and known.gpu_type == record.gpu_type
        and known.trouble == task.trouble
        and known.resources == task.resources
    )


def mark_unwanted_tasks(
    leader: LeaderRepository, wanted: Mapping[str, WantedRecord], tasks: Iterable[TaskRecord], now: float
) -> bool:
    """Write down since when each task is not wanted any more: its time to leave by itself runs from there.

    A coordinator is wanted as long as its job is to have any tasks. `wanted` is by job id; exited tasks stay as they
    are.

    Returns:
        Whether anything was written.
    """
    leaving, wanted_again = [], []
    keys = {task.key for each in wanted.values() for task in each.tasks}
    for record in tasks:
        if record.exited_at is not None:
            continue
        is_wanted = record.key in keys or _is_coordinator_wanted(record.key, wanted.get(record.key.job_id))
        if is_wanted and record.unwanted_since is not None:
            wanted_again.append(record.key)
        if not is_wanted and record.unwanted_since is None:
            leaving.append(record.key)
    if leaving:
        leader.tasks.mark_unwanted(leaving, now)
    if wanted_again:
        leader.tasks.mark_wanted(wanted_again)
    return bool(leaving or wanted_again)


def _is_coordinator_wanted(key: TaskKey, wanted: WantedRecord | None) -> bool:
    return key.role is Role.COORDINATOR and wanted is not None and not wanted.allocation.is_empty


def unsaved_seconds(job: JobRecord, memberships: Sequence[MembershipRecord], history: JobHistory, now: float) -> float:
    """For how long a script has trained since it last began, which is lost when it is paused: 0 for one that is known
    to go on from its checkpoint, and for every other job. Of one whose steps stay away, until the last one that came
    since that beginning, whether it had made it before or not."""
    newest = memberships[-1] if memberships else None
    if newest is None or not newest.workers or not begins_anew(job):
        return 0.0
    until = now
    if history.last_steps:  # else it is silent, and trains for all that is known
        last = history.last_steps.get(newest.epoch)
        until = min(now, (newest.at if last is None else last.at) + history.longest_seconds)
    return worked_seconds(since_its_beginning(memberships, began_at(job)), until)


def spent(
    memberships: Sequence[MembershipRecord], spec: JobSpec, gpu_type: str | None, settings: Settings, now: float
) -> float:
    """Money spent by memberships, each on its GPU type (`gpu_type` where it is not known), until `now`."""
    if not has_prices(settings):
        return 0.0
    ends = [later.at for _, later in pairwise(memberships)] + [now]
    return sum(
        cost_per_second(spec, Allocation(len(each.workers), len(each.servers), each.gpu_type or gpu_type), settings)
        * max(each.until(end) - each.at, 0.0)
        for each, end in zip(memberships, ends, strict=False)
    )


def attained_share_seconds(
    memberships: Sequence[MembershipRecord], spec: JobSpec, capacity: Resources, now: float
) -> float:
    """Dominant share held in each membership, times how long it lasted."""
    ends = [later.at for _, later in pairwise(memberships)] + [now]
    return sum(
        _share(membership, spec, capacity) * max(membership.until(end) - membership.at, 0.0)
        for membership, end in zip(memberships, ends, strict=False)
    )


def _share(membership: MembershipRecord, spec: JobSpec, capacity: Resources) -> float:
    allocated = spec.on(membership.gpu_type).demand(len(membership.workers), len(membership.servers))
    return min(allocated.dominant_share(capacity), 1.0)


def worker_limits(observed: Observed, of_members: int | None) -> tuple[WorkerLimit, ...]:
    """How many workers the jobs of members and of projects hold together. `of_members`: of one without a limit of its
    own. Users with a role have none, and so have those who are no users any more."""
    of_owners = [
        WorkerLimit(most, owner=each.name, since=each.since)
        for each in observed.members
        if (most := each.limits.get("workers_together") or of_members) is not None
    ]
    of_projects = [
        WorkerLimit(most, project=each.quota.project)
        for each in observed.projects
        if (most := each.limits.get("workers_together")) is not None
    ]
    return (*of_owners, *of_projects)
