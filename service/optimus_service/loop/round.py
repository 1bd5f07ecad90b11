"""One scheduling round: look, notice, decide, act, remember."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import structlog

from optimus_scheduler.granted_places import Timer
from optimus_scheduler.model import Plan, Snapshot, TaskKey, TaskPhase
from optimus_scheduler.round import learns
from optimus_service.clusters.base import Cluster
from optimus_service.loop.apply import Applier
from optimus_service.loop.changed_paces import ExpectedPaces, expected_paces
from optimus_service.loop.decisions import News, decision_records
from optimus_service.loop.exits import ExitNotices
from optimus_service.loop.expected_ends import ExpectedEnds, expected_ends
from optimus_service.loop.restored import adopt
from optimus_service.loop.silent_coordinators import SilentCoordinators
from optimus_service.loop.told_predictions import Told
from optimus_service.loop.unknown_tasks import UnknownTasks
from optimus_service.observe.shown_predictions import PARTS, PredictedParts, plan_predictions
from optimus_service.observe.snapshot import ClusterState, Observer
from optimus_service.observe.unknown_tasks import without_record
from optimus_service.process.gc_pause import collector_paused
from optimus_service.store.records import PredictionRecord, RoundRecord
from optimus_service.store.repository import LeaderRepository

Planner = Callable[[Snapshot, Timer], Plan]
"""`optimus_scheduler.round.plan` with its policy and constants: pure, but for the timer round its steps."""

RoundListener = Callable[[Snapshot, Plan, LeaderRepository], None]
"""Is called with what a round saw and decided."""


def nobody(_snapshot: Snapshot, _plan: Plan, _leader: LeaderRepository) -> None:
    """Nobody looks ahead."""


_FORGET_LOGS_SECONDS = 3600.0
_AWAITED_SECONDS = 1.0
"""So soon a round that waits for results looks again, if none of them brings it about."""

_log = structlog.get_logger(__name__)


class Phases:
    """Measures how long the parts of a round take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()

    @property
    def total_seconds(self) -> float:
        """Since the round began."""
        return time.monotonic() - self._started

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Measure a part; one that a round goes through twice takes as long as both times together."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


class Round:
    """Runs rounds. Knows nothing of time between them; used by one thread."""

    def __init__(
        self,
        leader_with: Callable[[int], LeaderRepository],
        cluster: Cluster,
        exits: ExitNotices,
        observer: Observer,
        planner: Planner,
        applier: Applier,
        clock: Callable[[], float],
        keep_seconds: float,
        unknown: UnknownTasks,
        on_planned: RoundListener = nobody,
        without_end: Callable[[], Container[str]] = tuple,
        told: Told = list,
    ) -> None:
        """`leader_with`: gives the database to the holder of a fencing token; there is no other way to write.

        `keep_seconds`: logs of tasks that ended longer ago are deleted. `on_planned`: called after each round that went
        well; it must return at once. `without_end`: the ids of jobs of which nothing tells now when they end. `told`:
        what users are told now of predictions, once the decisions that they are of are stored.
        """
        self._leader_with = leader_with
        self._cluster = cluster
        self._exits = exits
        self._observer = observer
        self._planner = planner
        self._applier = applier
        self._clock = clock
        self._keep_seconds = keep_seconds
        self.unknown = unknown
        self._on_planned = on_planned
        self._without_end = without_end
        self._told = told
        self._predicted = PredictedParts(PARTS)
        self._silent = SilentCoordinators(cluster, clock)
        self._news = News()
        self._logs_forgotten_at: float | None = None  # the first round forgets: services restart
        self.seen: ClusterState | None = None
        self.decided = Plan((), ())
        """What the last round that went well saw and decided."""
        self.wakes_at: float | None = None
        """When a job that waits for a retry may begin: a round is due then."""
        self.ends = ExpectedEnds()
        """From which step on each job may be done."""
        self.paces = ExpectedPaces()
        """How long its steps are expected to take."""
        self.learning = False
        """Whether the next round will know more: see `learns`."""

    @collector_paused()
    def run(self, trigger: str, fence: int, phases: Phases | None = None) -> RoundRecord:
        """One round, for the reason `trigger`, by the leader with the token `fence`.

        Raises:
            ClusterUnavailable: nothing was changed.
            DatabaseNotAvailable: what was not applied yet is left to the next round.
            StaleLeader: somebody else leads by now.
        """
        phases = phases or Phases()
        now, leader = self._clock(), self._leader_with(fence)
        # 1. What is there?
        with phases.measure("observe"):
            cluster_state = ClusterState.of(self._cluster)
            # 2. What ended, and what does that mean for its job?
            observed = leader.observed()
            if adopt(self._cluster, cluster_state, observed, now, leader):
                observed = leader.observed()
            if self._exits.notice(cluster_state, observed, now, leader):
                observed = leader.observed()
            if self._exits.awaits_results(observed, now):
                # Until they are there, tasks would be started for jobs that have ended.
                self.wakes_at = now + _AWAITED_SECONDS
                return RoundRecord(
                    at=now,
                    trigger=trigger,
                    seconds=phases.total_seconds,
                    phase_seconds=phases.seconds,
                    n_jobs=len(observed.jobs),
                    n_actions=0,
                )
            snapshot = self._observer.snapshot(cluster_state, now, leader, observed)
            records = observed.jobs
            del observed  # of many jobs tens of megabytes, and what follows needs as much
        # 3. What should be there, and what has to change? (forecast, allocate, place, reconcile)
        plan = self._planner(snapshot, phases.measure)
        # 4. Do it.
        with phases.measure("apply"):
            failures = self._applier.apply(plan, snapshot, leader)
        self.learning = learns(snapshot, plan)
        self.wakes_at = next_moment(snapshot, plan)
        self.ends.put(expected_ends(snapshot, plan))
        self.paces.put(expected_paces(plan))
        # 5. Remember what was decided, forget what is over.
        record = RoundRecord(
            at=now,
            trigger=trigger,
            seconds=phases.total_seconds,
            phase_seconds=phases.seconds,
            n_jobs=len(snapshot.jobs),
            n_actions=len(plan.actions),
            error="; ".join(failures) or None,
        )
        without_end = self._without_end()
        news = self._news.of(plan, fence, without_end)
        leader.rounds.add(record, decision_records(news, now, records, without_end))
        self._news.stored(news, plan, without_end)
        predictions = self._told(self._predictions(snapshot, plan, leader))
        leader.rounds.add_predictions(predictions)
        self._predicted.stored(predictions, (job.id for job in snapshot.jobs))
        self.seen, self.decided = cluster_state, plan
        self._on_planned(snapshot, plan, leader)
        self._cluster.forget(forgettable(cluster_state, snapshot))  # the token was in force as the round was stored
        kept = self.unknown.handle(without_record(cluster_state.tasks, snapshot.tasks), now, leader)
        self._cluster.retain(retained(snapshot) | kept)
        self._observer.keep(leader)
        self._forget_logs(now, leader)
        _log.debug("round", trigger=trigger, jobs=record.n_jobs, actions=record.n_actions, error=record.error)
        return record

    def look(self, fence: int) -> None:
        """What cannot wait for the next round: tasks that are silent. To be called every second or so.

        Raises:
            DatabaseNotAvailable: it is not known.
            StaleLeader: somebody else leads by now.
        """
        self._silent.look(self._leader_with(fence))

    def keep_histories(self, fence: int) -> None:
        """Store all that is known of jobs by their samples: who leads next need not read them again.

        Raises:
            DatabaseNotAvailable: not all was stored.
            StaleLeader: somebody else leads by now.
        """
        self._observer.keep(self._leader_with(fence), least=1)

    def _predictions(self, snapshot: Snapshot, plan: Plan, leader: LeaderRepository) -> list[PredictionRecord]:
        """What this round predicts of jobs that have come further, to be judged by their ends."""
        steps = {job.id: job.step for job in snapshot.jobs}
        if unknown := self._predicted.unknown(decision.job_id for decision in plan.decisions):
            self._predicted.know(leader.shown_predictions.parts_of(unknown), {each: steps[each] for each in unknown})
        return self._predicted.new(plan_predictions(snapshot.jobs, plan, snapshot.now))

    def note_failure(self, record: RoundRecord, fence: int) -> None:
        """Remember a round that an error ended.

        Raises:
            DatabaseNotAvailable: it was not remembered.
            StaleLeader: another process leads by now; it was not remembered.
        """
        self._leader_with(fence).rounds.add(record, [])

    def _forget_logs(self, now: float, leader: LeaderRepository) -> None:
        if self._logs_forgotten_at is not None and 0 <= now - self._logs_forgotten_at < _FORGET_LOGS_SECONDS:
            return
        self._logs_forgotten_at = now
        leader.check_fence()
        self._cluster.forget_logs(now - self._keep_seconds)


def next_moment(snapshot: Snapshot, plan: Plan) -> float | None:
    """When the next round has something new to say, if nothing happens, POSIX seconds: the first wait after an error
    is over, the first deadline passes, or the first job has to begin for its own."""
    retries = (job.retry.at for job in snapshot.jobs if job.retry is not None and not job.retry.is_due(snapshot.now))
    deadlines = (job.spec.deadline_at for job in snapshot.jobs)
    moments = (*retries, *(at for at in (*deadlines, plan.again_at) if at is not None and at > snapshot.now))
    return min(moments, default=None)


def forgettable(cluster_state: ClusterState, snapshot: Snapshot) -> list[TaskKey]:
    """Exited tasks that no later round needs to see on the cluster.

    Those in the snapshot are kept: they are the newest of their rank in an active job. The database knows all exits.
    """
    kept = {task.key for task in snapshot.tasks}
    return [task.key for task in cluster_state.tasks if task.phase is TaskPhase.EXITED and task.key not in kept]


def retained(snapshot: Snapshot) -> frozenset[str]:
    """Jobs whose things on the cluster are still needed: active ones, and those whose tasks have not left yet."""
    leaving = {task.key.job_id for task in snapshot.tasks if task.phase is not TaskPhase.EXITED}
    return frozenset({job.id for job in snapshot.jobs} | leaving)
