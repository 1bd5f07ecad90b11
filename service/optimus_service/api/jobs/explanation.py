"""Why a job has what it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fastapi import APIRouter

from optimus_contract import answers
from optimus_scheduler.allocate.optimus.guarantees import Turn, turn_of
from optimus_scheduler.allocate.optimus.policy import OptimusPolicy
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.forecast.prices import seconds_paid
from optimus_scheduler.lifecycle import (
    CANCEL_REQUESTED,
    JOB_CANCELLED,
    JOB_FAILED,
    JOB_PAUSED,
    NOT_RETRIED,
    PAUSED_BY_OWNER,
)
from optimus_scheduler.model import Job, JobState, Quota, Role, TaskPhase
from optimus_scheduler.what_if import NEXT_ROUND, Advice, ToldOfEnds
from optimus_service.api.access.callers import Caller
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import documented
from optimus_service.api.jobs.awaited import RECENT_SECONDS, REPLACED, dated, is_over, is_recent, until_replaced
from optimus_service.api.jobs.details import stands, with_the_rest, worker_starts
from optimus_service.api.services import CallerDep, HistoriesDep, Services, ServicesDep
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.insight.explanations.queue import in_queue
from optimus_service.insight.explanations.start_and_end import started_with_ends
from optimus_service.insight.jobs.reasons import CHECKPOINTS, PATTERN_TOO_SLOW, PRINTS_TOO_MUCH, WORKER_SILENT
from optimus_service.insight.jobs.speeds_here import speeds_here
from optimus_service.insight.predictions.feasibility import may_have_workers
from optimus_service.insight.predictions.predictions import HistoryCache
from optimus_service.loop.exits import COORDINATOR_UNREACHABLE, WORKER_HUNG
from optimus_service.loop.silent_coordinators import COORDINATOR_SILENT
from optimus_service.observe.divergence import LOSS_NOT_FINITE
from optimus_service.observe.silence import END_NOT_TOLD
from optimus_service.observe.standstills import USUAL_SAMPLES, Standstills, awaited_by, stalled, standstills
from optimus_service.store.jobs.transitions import RETRY_SCHEDULED
from optimus_service.store.records import DecisionRecord, JobRecord, MembershipRecord
from optimus_service.store.repository import MAX_PAGE, Repository

_RECENT_EVENTS = 20
"""Newest events of the job among which refusals are looked for."""

_MOST_READ = 3
"""So often all is read, as long as rounds come while it is planned."""

_MOST_AWAITED = 2
"""Ends that a job waits for, the likeliest first, that are tried before all other advice."""

_WARNINGS = (
    *(WORKER_HUNG, WORKER_SILENT, COORDINATOR_SILENT, COORDINATOR_UNREACHABLE),
    *(LOSS_NOT_FINITE, CHECKPOINTS, PRINTS_TOO_MUCH, PATTERN_TOO_SLOW),
)
_AT_THE_END = ("EndedEarly", END_NOT_TOLD, NOT_RETRIED)

_STOPS = (CANCEL_REQUESTED, JOB_PAUSED, PAUSED_BY_OWNER)
"""Events from which on a job's tasks stop, or are gone."""

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.get("/v1/jobs/{job_id}/explanation", responses=documented(404))
def explain_job(job_id: str, services: ServicesDep, histories: HistoriesDep, caller: CallerDep) -> answers.Explanation:
    """Why the job has the tasks that it has, what would have to happen for it to get more, when it starts and ends."""
    for _ in range(_MOST_READ):
        case = _read(services, histories, caller, job_id)
        if case.job.state.is_final:
            return explanation_of(case)
        planned = _planned(services, case, caller)
        if _is_as_read(services, case):
            return explanation_of(planned)
    # That which comes next then may have come by now.
    return explanation_of(planned if NEXT_ROUND not in (planned.gives_more or ()) else case)


def _read(services: Services, histories: HistoryCache, caller: Caller, job_id: str) -> Case:
    """All that is known now, but what would give it more. Everything is read once: an answer tells of one time."""
    repository = services.repository
    newest_round = _newest_round(repository)
    job, memberships, active, decisions = _as_decided(services, job_id)
    others = {each.id: each for each in active if caller.reads(each.project)}
    now = services.clock()
    seen = histories.job(job, memberships, now)
    still = _still(services, job, active, decisions, now)
    quotas = [each.quota for each in repository.projects.all()]
    errors, ends = _stops(services, job)
    warnings = _warnings(services, job, _AT_THE_END if job.state.is_final else _WARNINGS, memberships)
    return Case(
        job=job,
        decision=decisions.get(job_id),
        now=now,
        newest_round=newest_round,
        memberships=memberships,
        sizes_given=repository.rounds.sizes_given(job_id),
        began=worker_starts(repository, job),
        starts=_worker_starts(services, job),
        last_steps=histories.last_steps(job, memberships),
        n_figures=_n_figures(seen),
        others=others,
        decisions={each: decision for each, decision in decisions.items() if each in others or each == job_id},
        queue=in_queue(active, decisions, now, still, services.settings.policy),
        troubles=() if job.state.is_final else _troubles(services, job_id),
        warnings=warnings,
        awaits_answer=any(each.endswith(REPLACED) for each in warnings),
        still=still,
        speed=speeds_here(repository, [job], decisions, now).get(job_id),
        silence_at_its_end=_silence_at_its_end(services, job, memberships),
        policy=services.settings.policy,
        quotas=() if caller.projects is not None else quotas,
        may_have_two=_may_have_two(services, job, quotas),
        may_borrow=all(each.may_borrow for each in quotas if each.project == job.project),
        turn=_turn(services, job, seen, now),
        seconds_paid=seconds_paid(seen, services.settings.scheduling),
        errors=errors,
        ends=ends,
        held_by=_held_by(repository, job) if job.is_starting else (),
    )


def _planned(services: Services, case: Case, caller: Caller) -> Case:
    """With what would give it more."""
    advice = _gives_more(services, case, caller)
    if advice is None:
        return case
    is_kept = not advice.changes and not case.job.is_without_tasks
    return replace(
        case,
        gives_more=advice.changes,
        loses_to=advice.loses_to,
        behind=advice.behind,
        with_one_end=advice.with_one_end,
        decided_now=advice.now,
        kept_on_larger_cluster=_kept_on_larger_cluster(services, case.job.id) if is_kept else None,
    )


def _is_as_read(services: Services, case: Case) -> bool:
    """Whether no round has come, and no other membership of the job, while it was planned: that takes a while."""
    repository = services.repository
    return _newest_round(repository) == case.newest_round and stands(repository.jobs.get(case.job.id)) == stands(
        case.job
    )


def _newest_round(repository: Repository) -> int | None:
    return next((each.id for each in repository.rounds.page(limit=1).items), None)


def _still(
    services: Services,
    job: JobRecord,
    active: Sequence[JobRecord],
    decisions: Mapping[str, DecisionRecord],
    now: float,
) -> Standstills:
    """Of the job as of now, and of all by which the queue is put in order, as whoever lists that sees them; of all
    others, which are in the way of one that waits, as of a few seconds ago: they are many."""
    waiting = [each for each in active if each.waits] if job.waits else []
    near = {each.id: each for each in [*waiting, job]}
    known = {each: decisions[each] for each in near if each in decisions}
    now_known = near.keys() | awaited_by(known.values()).keys()
    others = services.still_now() if job.waits else {}
    still = {job_id: each for job_id, each in others.items() if job_id not in now_known}
    return still | standstills(services.repository, near.values(), known, now, services.listens_since)


def _held_by(repository: Repository, job: JobRecord) -> list[str]:
    """Jobs whose tasks are being stopped on the nodes where tasks of this one have yet to be started."""
    wanted, tasks = repository.wanted.get(job.id).tasks, repository.tasks.select()
    begun = {task.key for task in tasks}
    nodes = {placed.node for placed in wanted if placed.key not in begun}
    leave = (task for task in tasks if task.unwanted_since is not None and task.key.role is not Role.COORDINATOR)
    return sorted({task.key.job_id for task in leave if task.node in nodes})


def _turn(services: Services, job: JobRecord, seen: Job, now: float) -> Turn | None:
    """From when on no other job starts before this one, where the policy says so of jobs that wait."""
    settings = services.settings
    if not job.waits or job.state.is_final or settings.policy != OptimusPolicy.name:
        return None
    return turn_of(forecast(seen, now, settings.scheduling), settings.scheduling)


def _n_figures(seen: Job) -> dict[str, int]:
    """Of a job whose rule asks for losses or a metric, how many are known of each."""
    metric, found = seen.spec.convergence.target_metric, {"loss": len(seen.losses)}
    return found if metric is None else {**found, metric.name: len(seen.metric_values)}


def _worker_starts(services: Services, job: JobRecord) -> list[float]:
    """When the workers of an ended job were started."""
    if not job.state.is_final:
        return []
    return [begin for begin, _ in services.repository.tasks.worker_spans([job.id]).get(job.id, [])]


def _stops(services: Services, job: JobRecord) -> tuple[list[float], list[float]]:
    """When errors were after which an ended job was tried again, and when it failed or was cancelled."""
    if not job.state.is_final or job.started_at is None:
        return [], []
    events = services.repository.events.page(job.id, limit=MAX_PAGE).items
    errors = [event.at for event in events if event.type == RETRY_SCHEDULED]
    return errors, [event.at for event in events if event.type in (JOB_FAILED, JOB_CANCELLED)]


def _silence_at_its_end(services: Services, job: JobRecord, memberships: Sequence[MembershipRecord]) -> str | None:
    """That no step came for long before the job failed or its cancellation was asked for, by the rule for jobs that
    train; None: steps came, it had no tasks then, or it succeeded (the end of its training takes time)."""
    has_tasks = bool(memberships) and bool(memberships[-1].workers) and not job.is_tracked
    formed, ended = job.formed_at, job.finished_at
    if job.state not in (JobState.FAILED, JobState.CANCELLED) or not has_tasks or formed is None or ended is None:
        return None
    events = services.repository.events.page(job.id, limit=MAX_PAGE).items
    stops = [(event.at, event.type) for event in events if event.type in _STOPS and event.at >= formed]
    until, kind = min(stops, default=(ended, CANCEL_REQUESTED))
    if kind != CANCEL_REQUESTED:
        return None  # it was being paused, or was
    # When the service listened before it was started anew is not known; then steps that came late came soon.
    heard = services.listens_since if services.listens_since <= until else formed
    newest = services.repository.samples.newest_of_each([job.id], USUAL_SAMPLES).get(job.id, ())
    return stalled(newest, until, max(heard, formed))


def _as_decided(
    services: Services, job_id: str
) -> tuple[JobRecord, list[MembershipRecord], list[JobRecord], Mapping[str, DecisionRecord]]:
    """The job with its memberships, the active jobs and what was decided of them, as of one round and one membership.
    Of a job that has ended no others."""
    repository = services.repository

    def rest(job: JobRecord) -> tuple[list[MembershipRecord], list[JobRecord], Mapping[str, DecisionRecord]]:
        active = [] if job.state.is_final else repository.jobs.active()
        decisions = repository.rounds.latest_decisions([job_id, *(each.id for each in active)])
        return repository.memberships.of_job(job_id), active, decisions

    job, (memberships, active, decisions) = with_the_rest(repository, job_id, rest)
    return job, memberships, active, decisions


def _troubles(services: Services, job_id: str) -> tuple[str, ...]:
    """What keeps its tasks from running: what the cluster says of them, and what it refused in the last rounds."""
    try:
        tasks = [task for task in services.cluster.tasks() if task.key.job_id == job_id]
    except ClusterUnavailable as error:
        return (f"it cannot be asked: {error}",)
    troubles = {
        task.key.name: f"{task.key.name}: {task.trouble.code}: {task.trouble.message}"
        for task in tasks
        if task.trouble is not None and task.phase is not TaskPhase.EXITED
    }
    there = {task.key.name for task in tasks}
    for event in services.repository.events.page(job_id, limit=_RECENT_EVENTS).items:
        is_recent = event.at > services.clock() - RECENT_SECONDS
        refused = event.data.get("task") if event.type == "ActionFailed" and is_recent else None
        if refused is not None and refused not in there and refused not in troubles:
            troubles[refused] = event.message
    return tuple(troubles[name] for name in sorted(troubles))


def _warnings(
    services: Services, job: JobRecord, types: Collection[str], memberships: Sequence[MembershipRecord]
) -> tuple[str, ...]:
    """The newest word of each of these kinds: about what hinders its training lately, and how long ago that was told,
    or what was odd at its end."""
    now, found, is_earlier = services.clock(), dict[str, str](), False
    for event in services.repository.events.page(job.id, limit=_RECENT_EVENTS).items:
        if event.type == NOT_RETRIED and event.at < (job.finished_at or 0.0):
            continue  # of an earlier end
        is_earlier |= event.type in (JOB_FAILED, JOB_CANCELLED, RETRY_SCHEDULED)
        if event.type in types and (types is _AT_THE_END or is_recent(event, job, now)):
            # Hangs before training began anew do not count any more.
            is_retired = is_over(event, job, memberships) or (is_earlier and event.type == WORKER_HUNG)
            message = event.message if types is _AT_THE_END else dated(event, now) + until_replaced(event, job, now)
            found.setdefault(event.type, "" if is_retired else message)
    return tuple(message for message in found.values() if message)


def _gives_more(services: Services, case: Case, caller: Caller) -> Advice | None:
    """What was tried and gives it more; None: nothing could be tried."""
    if services.preview is None:
        return None
    job, names = case.job, {each.id: f"{each.name} ({each.id})" for each in case.others.values()}
    expected = None if case.decision is None or not job.waits else case.decision.expected
    ends = () if expected is None else expected.behind
    awaited = [each.job.id for each in sorted(ends, key=lambda each: -each.part) if each.job is not None]
    told = ToldOfEnds(awaited[:_MOST_AWAITED], started_with_ends(case.queue, job.id) if job.waits else {})
    try:
        is_of_some = caller.projects is not None
        return services.preview.what_gives_more(job.id, lambda: names, only_named=is_of_some, told=told)
    except ClusterUnavailable:
        return None


def _may_have_two(services: Services, job: JobRecord, quotas: Sequence[Quota]) -> bool:
    try:
        return may_have_workers(job.asked, 2, quotas, services.cluster.nodes())
    except ClusterUnavailable:
        return True


def _kept_on_larger_cluster(services: Services, job_id: str) -> str | None:
    try:
        return None if services.preview is None else services.preview.kept_on_larger_cluster(job_id)
    except ClusterUnavailable:
        return None
