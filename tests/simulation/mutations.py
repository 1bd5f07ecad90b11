"""Bugs that are put into the product one at a time, each with accidents under which the simulation has to notice it.

Some are bugs that Optimus has had: deposed leaders whose exit notices were not fenced, a read-only database that ended
the loop for ever, a step of the clock that ended jobs, tasks started in the place of tasks that had not left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest import mock

from optimus_world import replica, world
from optimus_world.faults import Fault
from optimus_world.users import Act
from optimus_world.world import Script
from sqlalchemy import update

from optimus_scheduler import lifecycle, reconcile
from optimus_scheduler.allocate import allocate_with_quotas
from optimus_scheduler.model import Directive, Job, JobState, Role, StartTask, TaskPhase
from optimus_service.api.jobs import submission
from optimus_service.api.reports import from_tasks
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.kubernetes import job_objects
from optimus_service.loop import apply as applying
from optimus_service.loop import exits
from optimus_service.loop.leader import Leadership
from optimus_service.loop.loop import SchedulingLoop
from optimus_service.observe.snapshot import Observer
from optimus_service.store import leases
from optimus_service.store.database.tables import LeaseRow
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.jobs import retention, wanted
from optimus_service.store.jobs.memberships import Memberships
from optimus_service.store.records import AddedSamples
from optimus_service.store.repository import LEADER_LEASE, LeaderRepository, Repository
from optimus_service.store.samples import sample_queue, samples
from optimus_service.store.samples.counting import Counted, blocks_of
from optimus_simulator.running import RunningJob
from optimus_workers.coordinator import attempt
from optimus_workers.coordinator.handlers import membership_change, tasks
from optimus_workers.coordinator.membership import VersionSources
from optimus_workers.wire.ranges import worker_micro_batches

EXITED = TaskPhase.EXITED
Patch = Callable[[ExitStack], None]

TWO_JOBS = (Act(0, 5.0, "submit", 0), Act(1, 20.0, "submit", 1))
EIGHT_JOBS = tuple(Act(number, 5.0 + 90 * number, "submit", number) for number in range(8))


@dataclass(frozen=True)
class Mutation:
    """One bug."""

    name: str
    patch: Patch
    invariant: str
    """Which the simulation must find broken."""
    faults: tuple[Fault, ...] = ()
    acts: tuple[Act, ...] = TWO_JOBS
    seed: int = 1
    seconds: float = 3600.0
    """Simulated: the budget."""
    on_kubernetes: bool = False

    @property
    def script(self) -> Script:
        return Script(self.seed, 1.0, self.faults, self.acts, self.on_kubernetes)


def _replaced(target: object, name: str, new: object) -> Patch:
    def patch(stack: ExitStack) -> None:
        stack.enter_context(mock.patch.object(target, name, new))

    return patch


def _both(*patches: Patch) -> Patch:
    def patch(stack: ExitStack) -> None:
        for each in patches:
            each(stack)

    return patch


def _pauses(*numbers: int) -> tuple[Fault, ...]:
    """Both replicas in turn stand still for longer than a lease, in the middle of a round."""
    return tuple(
        Fault(index, 30.0 + 300.0 * index, "pause", "ab"[index % 2], 150.0, "begin", number, 0.1, "round")
        for index, number in enumerate(numbers)
    )


# --- the bugs ---------------------------------------------------------------------------------------------------------


def _claim_of_everybody(self: Leadership) -> int | None:
    lease = self._repository.leases.current(LEADER_LEASE)
    return self._acquire() if lease is None else lease.token


def _unguarded_run(self: SchedulingLoop) -> None:
    while not self._stopping:
        self._turn()


def _unguarded_claim(self: SchedulingLoop) -> int | None:
    fence = self._leadership.claim()
    self._leads = fence is not None
    return fence


def _set_clock(_file: object, wall: Callable[[], float], _since_boot: object) -> Callable[[], float]:
    return wall


def _all_starts(sides: Any, _ended: Any, _nodes: Any) -> list[StartTask]:
    return sorted((StartTask(placed) for side in sides for placed in side.starts()), key=lambda start: start.task.key)


_starts = reconcile._starts_with_available


def _starts_beside_ended(sides: Any, _ended: Any, nodes: Any) -> Any:
    return _starts(sides, (), nodes)


def _leaving_at_once(side: Any) -> list[Any]:
    waits = any(placed.key.role is not Role.COORDINATOR for placed in side.starts())
    return [] if waits else [task for task in side._observed if task.phase is not EXITED and not side._wants(task)]


def _unwanted_by_old_news(state: Any, task: Any) -> bool:
    is_known = state.wanted is None or task.name in state.wanted_tasks
    return not is_known and state.now >= task.arrived_at + 5.0


_slots = worker_micro_batches


def _overlapping_slots(n_slots: int, rank: int, n_workers: int) -> tuple[int, int]:
    first, end = _slots(n_slots, rank, n_workers)
    return max(first - 1, 0), end


class _WrongVersion(VersionSources):
    """Says that the state is one step further than it is."""

    def __init__(self, version: int, sources: Any) -> None:
        super().__init__(version + 1 if sources else version, sources)


def _hasty_commit(store: Any, group: Any) -> None:
    try:
        answers = store([post for post, _ in group]) if group else ()
    except DatabaseNotAvailable:
        answers = [AddedSamples(len(post.columns), ()) for post, _ in group]
    for (_, answer), added in zip(group, answers, strict=True):
        answer.set_result(added)


def _forgotten_blocks(_connection: Any, posts: Any, jobs: Any) -> None:
    for post in posts:
        for block in blocks_of(post.columns):
            jobs[post.job_id].blocks[block] = Counted()


_prune = retention.prune


def _eager_prune(session: Any, before: float, now: float, limit: int) -> Any:
    return _prune(session, before + 1e9, now, limit)


def _start_again(self: applying.Applier, actions: Any, leader: LeaderRepository) -> list[str | None]:
    launches, addresses, _ = self._launches(actions, leader)
    leader.tasks.put([(each.key, each.node, None) for each in launches.values()], addresses, self._clock())
    for launch in launches.values():
        try:
            self._cluster.start(launch)
        except ClusterUnavailable:
            continue
    return [None for _ in actions]


_acquire = leases.acquire


def _acquire_with_one_token(session: Any, name: str, holder: str, ttl_seconds: float) -> Any:
    before = leases.current(session, name)
    lease = _acquire(session, name, holder, ttl_seconds)
    if lease is None or before is None or before.token == lease.token:
        return lease
    session.execute(update(LeaseRow).values(token=before.token))
    return leases.current(session, name)


_notice = exits.ExitNotices.notice


def _unfenced_notice(self: exits.ExitNotices, view: Any, observed: Any, now: float, leader: LeaderRepository) -> bool:
    plain = Repository(leader._engine, leader._observe, leader._backoff, leader._turn)
    return _notice(self, view, observed, now, cast(LeaderRepository, plain))


def _unchecked_advance(tx: Repository, job_id: str, report: Any, now: float) -> None:
    tx.jobs.advance(job_id, lifecycle.MembershipFormed(report.epoch), now)


def _noted_membership(self: Memberships, job_id: str, report: Any) -> bool:
    return True


_REVIVED = {
    **lifecycle._TRANSITIONS,
    (JobState.CANCELLED, lifecycle.MembershipFormed): lifecycle._start,
    (JobState.SUCCEEDED, lifecycle.MembershipFormed): lifecycle._start,
}

_job_of, _job_seen = Observer._job, RunningJob.seen


def _job_without_since(self: Observer, *known: Any) -> Job:
    return replace(_job_of(self, *known), allocated_at=None)


def _simulated_without_since(self: RunningJob, *known: Any) -> Job:
    return replace(_job_seen(self, *known), allocated_at=None)


MUTATIONS = (
    Mutation(
        "exit notices of a deposed leader are not fenced",
        _replaced(exits.ExitNotices, "notice", _unfenced_notice),
        "one leader writes",
        (
            *(Fault(index, 300.0, "pause", "ab"[index], 150.0, "begin", 0, 0.0, "exits") for index in range(2)),
            *(Fault(2 + index, 320.0 + 5.0 * index, "crashed task", after_n=index) for index in range(6)),
        ),
        seconds=900.0,
    ),
    Mutation(
        "a late report brings an ended job back",
        _both(
            _replaced(from_tasks, "_advance", _unchecked_advance),
            _replaced(Memberships, "report", _noted_membership),
            _replaced(lifecycle, "_TRANSITIONS", _REVIVED),
        ),
        "the end of a job is kept",
        (Fault(0, 1.0, "network", seconds=1200.0, strength=0.4),),
        tuple(
            Act(
                number, 5.0 + 40.0 * number + 25.0 * (number % 2), ("submit", "cancel")[number % 2], number - number % 2
            )
            for number in range(24)
        ),
        seconds=1800.0,
    ),
    Mutation(
        "an older plan undoes a cancellation",
        _replaced(wanted, "_RANK", dict.fromkeys(Directive, 0)),
        "a cancelled job ends",
        tuple(Fault(index, 360.0, "pause", "ab"[index], 25.0, "begin", 0, 0.0, "apply") for index in range(2)),
        (
            *(Act(number, 5.0 + 10.0 * number, "submit", number) for number in range(5)),
            Act(5, 370.0, "cancel", 1),  # which the round after the pause gives other tasks
        ),
        seconds=600.0,
    ),
    Mutation(
        "what belonged to a deleted anchor is not made anew",
        _replaced(job_objects.AnchorMirror, "is_gone", lambda *_: False),
        "no job fails by accidents",
        (Fault(0, 300.0, "anchor deleted"),),
        on_kubernetes=True,
    ),
    Mutation(
        "a coordinator dismisses tasks by what it heard before they came",
        _replaced(tasks, "_is_unwanted", _unwanted_by_old_news),
        "no job fails by accidents",
        (
            Fault(0, 60.0, "network", seconds=1700.0, strength=0.42),
            Fault(1, 61.0, "network", seconds=1700.0, strength=0.49),
            *(Fault(2 + n, 200.0 + 60.0 * n, "crashed task", after_n=3 * n) for n in range(8)),
        ),
        tuple(Act(number, 5.0 + 30.0 * number, "submit", number) for number in range(5)),
        seed=3,
        seconds=900.0,
    ),
    Mutation(
        "no transaction of a round is fenced",
        _replaced(leases, "check_fence", lambda *_: None),
        "one leader writes",
        _pauses(0, 0, 1, 1, 2, 2),
    ),
    Mutation(
        "a new holder of the lease gets no higher token",
        _replaced(leases, "acquire", _acquire_with_one_token),
        "one leader writes",
        _pauses(0, 0, 1, 1, 2, 2),
    ),
    Mutation(
        "everybody leads, whoever has the lease",
        _replaced(Leadership, "claim", _claim_of_everybody),
        "one leader writes",
    ),
    Mutation(
        "who leads is not asked again between starts",
        _replaced(applying.Applier, "_start_all", _start_again),
        "one leader acts",
        (Fault(0, 4.0, "pause", "a", 150.0, "cluster"),),
        (*TWO_JOBS, Act(2, 40.0, "cancel", 0), Act(3, 60.0, "cancel", 1)),
        seconds=300.0,
    ),
    Mutation(
        "what was counted is forgotten",
        _replaced(samples, "_load_blocks", _forgotten_blocks),
        "no sample counts twice",
        (Fault(0, 60.0, "network", seconds=3000.0, strength=0.3),),
    ),
    Mutation(
        "idempotency keys are not kept",
        _replaced(submission, "own_key", lambda *_: None),
        "a submission makes one job",
        (Fault(0, 1.0, "network", seconds=600.0, strength=0.5),),
        tuple(Act(number, 5.0 + 10 * number, "submit", number) for number in range(4)),
    ),
    Mutation(
        "a read-only database ends the loop",
        _both(_replaced(SchedulingLoop, "run", _unguarded_run), _replaced(SchedulingLoop, "_claim", _unguarded_claim)),
        "no thread dies",
        (Fault(0, 100.0, "read-only", seconds=60.0),),
    ),
    Mutation(
        "the service goes by the machine's clock",
        _replaced(replica, "SteadyClock", _set_clock),
        "no clock ends a job",
        (Fault(0, 300.0, "clock step", "a", 90_000.0), Fault(1, 300.0, "clock step", "b", 90_000.0)),
        tuple(Act(number, 5.0 + 10 * number, "submit", number) for number in range(4)),
    ),
    Mutation(
        "tasks start in the place of tasks of ended jobs",
        _replaced(reconcile, "_starts_with_available", _starts_beside_ended),
        "no node over capacity",
        (),
        tuple(Act(number, 5.0 + 90 * number, "submit", number) for number in range(10)),
        seconds=7200.0,
    ),
    Mutation(
        "tasks start in the place of tasks of other jobs",
        _replaced(reconcile, "_starts_with_available", _all_starts),
        "no node over capacity",
        (),
        EIGHT_JOBS,
    ),
    Mutation(
        "tasks start in the place of tasks of jobs that move",
        _replaced(reconcile._JobSide, "leaving", _leaving_at_once),
        "no node over capacity",
        (),
        tuple(Act(number, 5.0 + 90 * number, "submit", number) for number in range(10)),
        seconds=7200.0,
    ),
    Mutation(
        "quotas may be borrowed over",
        _replaced(allocate_with_quotas, "may_not_borrow", lambda _quotas: frozenset()),
        "quotas hold",
        (),
        tuple(Act(number, 5.0 + 90 * number, "submit", number) for number in range(10)),
    ),
    Mutation(
        "workers share a micro-batch",
        _replaced(attempt, "worker_micro_batches", _overlapping_slots),
        "exactly once",
    ),
    Mutation(
        "training goes on from a step later than the checkpoint",
        _replaced(membership_change, "VersionSources", _WrongVersion),
        "exactly once",
        tuple(Fault(number, 600.0 + number, "crashed task", after_n=number) for number in range(8)),
    ),
    Mutation(
        "telemetry is acknowledged before it is stored",
        _replaced(sample_queue, "_commit", _hasty_commit),
        "no acknowledged sample is lost",
        (Fault(0, 300.0, "read-only", seconds=120.0),),
    ),
    Mutation(
        "samples of young jobs are pruned",
        _replaced(retention, "prune", _eager_prune),
        "no acknowledged sample is lost",
        (Fault(0, 3300.0, "crash", "a", 5.0), Fault(1, 3350.0, "crash", "b", 5.0)),
        seconds=7200.0,
    ),
    Mutation(
        "the service forgets since when a job has its size",
        _replaced(Observer, "_job", _job_without_since),
        world.EQUAL,
        acts=EIGHT_JOBS,
    ),
    Mutation(
        "the simulator forgets since when a job has its size",
        _replaced(RunningJob, "seen", _simulated_without_since),
        world.EQUAL,
        acts=EIGHT_JOBS,
    ),
)
