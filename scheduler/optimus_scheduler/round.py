"""One scheduling round: a snapshot goes in, a plan comes out, nothing else happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

from optimus_scheduler.allocate.allocate import batch_for
from optimus_scheduler.allocate.policy import Grant, Policy
from optimus_scheduler.allocate.staying import CurrentSlots, room_of
from optimus_scheduler.explain import by_urgency, decide, decide_tracked, paused_by, with_fewer_nodes, with_move
from optimus_scheduler.forecast.forecast import Forecaster, forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.gather import Gathered, WithoutRoom, gather
from optimus_scheduler.gpu_types.choose import choose_and_forecast, with_fallback_types
from optimus_scheduler.granted_places import Asked, GrantedPlaces, Timer, granted_places, untimed, with_lent_room
from optimus_scheduler.model import (
    NOTHING,
    Directive,
    Job,
    Node,
    Nodes,
    Plan,
    Reason,
    Resources,
    Snapshot,
    total_of,
)
from optimus_scheduler.model.format import QUOTAS
from optimus_scheduler.moves import move_stragglers
from optimus_scheduler.place.place import Placed, Placements, Placer
from optimus_scheduler.quota_words import with_quotas_told
from optimus_scheduler.reconcile import Reconciler, Want
from optimus_scheduler.settings import Settings

MOST_PASSES = 16
"""How often one round plans at most, because jobs found no place on their GPU type (`gpu_types/choose.py`). One
pass moves all jobs that are stuck, so that passes are about as many as types; after the last one they wait a round."""


class RoundMemory:
    """What a shell keeps from round to round, so that a round does anew only what has changed.

    It changes no plan. Things are recognised by their values, and sooner where they are the very same objects. Its size
    is that of the last round. It belongs to one shell and one thread; `forecast.RememberingForecaster` does the same
    for models.
    """

    def __init__(self) -> None:
        self.placer, self.slots, self.reconciler = Placer(), CurrentSlots(), Reconciler()
        self.without_room = WithoutRoom()
        self._nodes = Nodes()

    def nodes(self, nodes: Sequence[Node]) -> Nodes:
        """Those of the round before, if these are equal."""
        if nodes is not self._nodes and nodes != self._nodes:
            self._nodes = Nodes.of(nodes)
        return self._nodes


_NEW_SECONDS = 60.0
"""For so long after its start a job is asked often for its end: one that tells none has none to tell."""


def learns(snapshot: Snapshot, plan: Plan) -> bool:
    """Whether a job keeps its size only until that has been measured, or has just begun and its end is not known."""
    new = {
        job.id
        for job in snapshot.jobs
        if job.started_at is not None and 0 <= snapshot.now - job.started_at < _NEW_SECONDS and job.wanted_tasks
    }
    return any(
        decision.reason is Reason.LEARNING_SPEED or (decision.job_id in new and decision.forecast.rule is None)
        for decision in plan.decisions
    )


def plan(
    snapshot: Snapshot,
    policy: Policy,
    settings: Settings | None = None,
    timer: Timer = untimed,
    forecaster: Forecaster = forecast_all,
    memory: RoundMemory | None = None,
    *,
    worded: bool = True,
) -> Plan:
    """What to do with the cluster now. Deterministic, and independent of the order of anything in `snapshot`.

    A shell that passes the same `memory` every time gets the same plan sooner. Not `worded`, the decisions are the same
    but for their sentences, which are empty: for a shell that shows none.
    """
    settings, memory = settings or Settings(), memory or RoundMemory()
    snapshot = replace(snapshot, nodes=memory.nodes(snapshot.nodes))
    if settings.scale_batches and not policy.scales_batches:
        settings = replace(settings, scale_batches=False)

    snapshot, watched = _without_tracked(snapshot, forecaster)
    asked, (grants, placements, moves) = _granted(snapshot, watched, policy, settings, timer, memory)
    snapshot, outlooks = asked.snapshot, asked.outlooks

    # 4. Reconcile: what has to be started, stopped and sent, given what is there?
    with timer("reconcile"):
        pausers = _Pausers(outlooks, grants, placements, policy)
        wants = dict[str, Want]()
        for one in outlooks:
            job_id, known = one.id, one.steady.want
            if known is not None and known[0] is placements.get(job_id):  # most, without a call
                wants[job_id] = known[1]
            else:
                wants[job_id] = _want(one, placements, settings, pausers)
        wants = move_stragglers(snapshot, wants)
        gathered: Mapping[str, Gathered] = {}
        if policy.gathers:
            wants, gathered = gather(snapshot, outlooks, wants, settings, memory.without_room)
        actions = memory.reconciler.reconcile(snapshot, wants, settings)

    # 5. Say why: what moves, then for which quota. Jobs that run outside the cluster are forecast, too.
    by_id = {one.id: one for one in outlooks} if moves.made else {}
    for moved, waiting in moves.made.items():
        grants[moved] = with_move(grants[moved], by_id[moved], by_id[waiting])
    for job_id, move in gathered.items():
        grants[job_id] = with_fewer_nodes(grants[job_id], *move)
    if snapshot.quotas:
        grants |= with_quotas_told(outlooks, grants, snapshot.quotas, room_of(snapshot, asked.current))
    decisions = decide(outlooks, grants, placements, wants, worded=worded)
    decisions += [decide_tracked(outlook) for outlook in watched.outlooks]
    again_at = min((grant.again_at for grant in grants.values() if grant.again_at is not None), default=None)
    return Plan(tuple(sorted(decisions, key=attrgetter("job_id"))), actions, again_at=again_at)


def _granted(
    reported: Snapshot, watched: _WithTracked, policy: Policy, settings: Settings, timer: Timer, memory: RoundMemory
) -> tuple[Asked, GrantedPlaces]:
    """Steps 1 to 3, again with other GPU types for jobs that found no place on theirs."""
    for passes_left in reversed(range(MOST_PASSES)):
        # 1. Forecast: what will each job do, on the GPU type that suits it?
        with timer("forecast"):
            snapshot, outlooks = choose_and_forecast(reported, watched, settings)

        # 2. Allocate: how many workers and servers does each job get?
        # 3. Place: on which nodes? Fragmentation may leave a job with less than it was granted.
        with timer("allocate"):
            asked = Asked(outlooks, snapshot, memory.slots.of(snapshot), memory.placer, policy, settings)
        granted = granted_places(asked, timer)
        elsewhere = with_fallback_types(reported, outlooks, granted.placements) if passes_left else None
        if elsewhere is None:
            break
        reported = elsewhere
    return asked, with_lent_room(granted, asked, timer)


class _WithTracked:
    """A forecaster that also forecasts the jobs which run outside the cluster.

    All in one call: a forecaster remembers the fits of its last call only.
    """

    def __init__(self, forecaster: Forecaster, tracked: tuple[Job, ...]) -> None:
        self._forecaster, self._tracked = forecaster, tracked
        self.outlooks: tuple[Outlook, ...] = ()
        """Of the tracked jobs, as of the last call."""

    def __call__(self, jobs: Sequence[Job], now: float, settings: Settings) -> tuple[Outlook, ...]:
        """The outlook of every job but the tracked ones, sorted by job id."""
        if not self._tracked:
            return self._forecaster(jobs, now, settings)
        found = self._forecaster((*jobs, *self._tracked), now, settings)
        self.outlooks = tuple(outlook for outlook in found if outlook.job.spec.tracked)
        return tuple(outlook for outlook in found if not outlook.job.spec.tracked)


def _without_tracked(snapshot: Snapshot, forecaster: Forecaster) -> tuple[Snapshot, _WithTracked]:
    """The snapshot of the jobs that are scheduled, and the forecaster of all."""
    tracked = tuple([job for job in snapshot.jobs if job.spec.tracked])
    if tracked:
        snapshot = replace(snapshot, jobs=tuple(job for job in snapshot.jobs if not job.spec.tracked))
    return snapshot, _WithTracked(forecaster, tracked)


def _grows(outlook: Outlook, placements: Placements) -> bool:
    placed, before = placements.get(outlook.id), outlook.present
    if not isinstance(placed, Placed):
        return False
    size = placed.allocation
    return size.workers + size.servers > before.workers + before.servers


def _growth(outlook: Outlook, placements: Placements) -> Resources:
    """What a job gets beside what it has."""
    placed = placements.get(outlook.id)
    size = placed.allocation if isinstance(placed, Placed) else outlook.present
    return outlook.demand(size) - outlook.demand(outlook.present)


class _Pausers:
    """Who has jobs pause: those that grow."""

    def __init__(
        self, outlooks: Sequence[Outlook], grants: Mapping[str, Grant], placements: Placements, policy: Policy
    ) -> None:
        self._outlooks, self._grants, self._placements, self._policy = outlooks, grants, placements, policy

    @cached_property
    def _growing(self) -> list[tuple[Outlook, Grant]]:
        """In most rounds, no job pauses, and nobody asks."""
        return by_urgency((one, self._grants[one.id]) for one in self._outlooks if _grows(one, self._placements))

    def cause(self, one: Outlook) -> str | None:
        """Who takes the tasks of a job, also where it has not trained with them yet."""
        reason = self._grants[one.id].reason
        if reason is Reason.WAITING_FOR_QUOTA:
            return self._pauser(one, reason) or QUOTAS
        return self._pauser(one, reason) if reason is Reason.WAITING_FOR_RESOURCES else None

    def _pauser(self, one: Outlook, reason: Reason) -> str | None:
        found = self._growing
        if reason is Reason.WAITING_FOR_QUOTA:
            # A job of its own project may have taken the room that quotas leave it.
            found = [each for each in found if each[0].job.spec.project == one.job.spec.project]
            got = total_of(_growth(grower, self._placements) for grower, _ in found)
            if not one.demand(one.minimum).fits_in(got):  # they got only what quotas leave of its room
                found = []
        return paused_by(one, found, self._policy.name)


def _want(outlook: Outlook, placements: Placements, settings: Settings, pausers: _Pausers) -> Want:
    """What the job should have: what was placed, with the directive that goes with it."""
    job, placed = outlook.job, placements.get(outlook.id)
    if job.directive is Directive.CANCEL:
        return Want(Directive.CANCEL, NOTHING, {}, job.batch)
    if not isinstance(placed, Placed):
        if job.allocation.is_empty:
            return Want(job.directive, NOTHING, {}, job.batch)
        return Want(Directive.PAUSE, NOTHING, {}, job.batch, pausers.cause(outlook))
    directive = Directive.FINISH if outlook.forecast.converged else Directive.RUN
    batch = job.batch if job.spec.elastic_batch is None else batch_for(outlook, placed.allocation, settings)
    want = tuple.__new__(Want, (directive, *placed, batch, None))  # in half the time that `Want` itself takes
    if batch is None:  # else it is a function of settings, too
        outlook.steady.want = placed, want
    return want
