"""What would happen if a job were submitted now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Body

from optimus_contract import answers
from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS
from optimus_scheduler.allocate.deadline_budget import says_it_is_missed
from optimus_scheduler.model import Interval, Quota, Reason
from optimus_scheduler.model.format import lasted, money_words, time_words
from optimus_scheduler.quota_words import quotas_told
from optimus_service.api.access.callers import Caller
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import invalid_field, unavailable
from optimus_service.api.jobs import seen, submission
from optimus_service.api.services import CallerDep, Services, ServicesDep, TaskChecksDep
from optimus_service.api.task_checks import TaskChecks
from optimus_service.insight.explanations.start_and_end import (
    deadline_of_a_paused_job,
    paid_words,
    until_places_are_left,
)
from optimus_service.insight.format import by_deadline, counted, finite, foreseen, moment, size, span
from optimus_service.insight.jobs.bodies import allocation_body
from optimus_service.insight.jobs.lost_work import Loss
from optimus_service.insight.jobs.needs import figures_asked, is_of_a_script, on_epochs
from optimus_service.insight.jobs.progress import progress_of, tells_no_end
from optimus_service.insight.jobs.reasons import gives_more, text_of
from optimus_service.insight.jobs.speeds_here import speeds_here
from optimus_service.insight.predictions.dry_run import Effect, Previewed, PutOff
from optimus_service.observe.spec import deadline_of, goes_on_from_checkpoints
from optimus_service.observe.standstills import standstills
from optimus_service.store.records import JobRecord

_TO_SUBMIT_SECONDS, _ANOTHER_LOOK = 30.0, 0.1
"""A deadline that could be promised is offered so much later, at least by the first, and by this part of the time until
it."""

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


class Shown(NamedTuple):
    """What lists and explanations say of a job now."""

    left: answers.Interval | None
    """Seconds to its end ..."""
    start: answers.Interval | None
    """... and until its start; None: nothing, or it has tasks."""
    is_without_end: bool = False
    """That nothing tells when it ends, whatever size it has."""


ShownNow = Mapping[str, Shown]


@router.post("/v1/plan")
async def plan_job(
    spec: Annotated[JobSpec, Body(openapi_examples=examples.JOB_SPECS)],
    services: ServicesDep,
    task_checks: TaskChecksDep,
    caller: CallerDep,
) -> answers.Plan:
    """What a job would get if it were submitted now, when it would end, what it would cost, and what others would lose.

    Nothing is stored. The answer comes from the scheduler's own plan, on the present state of the cluster with the job
    and without it. Refused with 422 for the same reasons as submitting.
    """
    with services.plans.place():
        return await task_checks.in_turn(_planned, services, task_checks, spec, caller)


def _planned(services: Services, task_checks: TaskChecks, spec: JobSpec, caller: Caller) -> answers.Plan:
    if spec.tracked:
        raise invalid_field("tracked", "a tracked job is not scheduled: there is nothing to plan; leave tracked out")
    submission.refuse_project(caller, spec.project)
    submission.check(services, task_checks, spec, caller)
    if services.preview is None:
        raise unavailable("this replica has no scheduler")
    active = {job.id: job for job in services.repository.jobs.active(caller.projects)}
    names = {job.id: f"{job.name} ({job.id})" for job in active.values()}
    previewed = services.preview.of(
        write(spec),
        names,
        only_named=caller.projects is not None,
        owner=caller.name,
        profile=submission.profile_of(task_checks, spec),
    )
    previewed, now = seen.previewed(previewed, active, caller), services.clock()
    shown = shown_now(services, changed_jobs(previewed.effects, previewed.put_off), active, now)
    quotas = [] if caller.projects is not None else [each.quota for each in services.repository.projects.all()]
    return plan_body(previewed, active, now, shown, quotas, of_some=caller.projects is not None)


def changed_jobs(effects: Sequence[Effect], put_off: Sequence[PutOff]) -> list[str]:
    """Ids of the jobs that would change or start later."""
    return [*(each.job_id for each in effects), *(each.job_id for each in put_off)]


def shown_now(services: Services, ids: Iterable[str], active: Mapping[str, JobRecord], now: float) -> ShownNow:
    """Of those of these jobs that are `active`."""
    found = [active[each] for each in ids if each in active]
    decisions = services.repository.rounds.latest_decisions([job.id for job in found])
    still = standstills(services.repository, found, decisions, now, services.listens_since)
    speeds = speeds_here(services.repository, found, decisions, now)
    ahead = {job.id: progress_of(job, decisions.get(job.id), now, None, still, speeds.get(job.id)) for job in found}
    return {
        job_id: Shown(
            each.remaining_seconds,
            None if each.expected is None else each.expected.start_seconds,
            is_without_end=tells_no_end(active[job_id], decisions.get(job_id), now, still),
        )
        for job_id, each in ahead.items()
    }


NOTHING_SHOWN = Shown(None, None)


_BORROWS = (
    "It would borrow room that other projects are guaranteed: when their jobs need it, it shrinks or pauses, and ends "
    "later."
)


def plan_body(
    previewed: Previewed,
    active: Mapping[str, JobRecord],
    now: float,
    shown: ShownNow = MappingProxyType({}),
    quotas: Sequence[Quota] = (),
    *,
    of_some: bool = False,
) -> answers.Plan:
    """The answer in words and figures. Pure. `shown`: of jobs that would change or start later; `quotas`: of all
    projects, for a reader who may know of all of them; `of_some`: as of `on_others`."""
    decision, ahead = previewed.decision, previewed.forecast
    start, finish, deadline = _interval(previewed.waiting), _interval(previewed.left), _deadline(previewed, now)
    effects = effect_bodies(previewed.effects, active, shown)
    # What it would cost depends on the size that it will have, unless its budget ends it.
    is_known = not decision.allocation.is_empty or ahead.rule == "max_cost"
    cost = _interval(ahead.cost) if is_known else None
    expected = answers.Expected(
        start_seconds=start,
        finish_seconds=finish,
        finish_at=None if finish is None else foreseen(now + finish.mean),
        computed_at=moment(now),
    )
    return answers.Plan(
        allocation=allocation_body(decision.allocation),
        reason=decision.reason.value,
        message=decision.message,
        what_would_change_it=gives_more(previewed.gives_more, decision.allocation.is_empty, behind=previewed.behind)
        or text_of(decision.reason.value).what_would_change_it,
        sentences=[
            decision.message,
            *quotas_told(decision.message, quotas),
            *_on_places_held(previewed, active),
            *_on_time(expected, previewed),
            *[_BORROWS] * previewed.borrows,
            *_on_the_budget(previewed),
            *_on_the_deadline(previewed, deadline, now),
            *_on_money(cost),
            *on_others(effects, of_some=of_some),
            *on_waiting(previewed.put_off, active, shown),
        ],
        expected=expected,
        cost=cost,
        speed_from=ahead.speed_from,
        finished_runs=previewed.n_similar,
        confidence=ahead.confidence,
        effects=effects,
        deadline=deadline,
    )


def effect_bodies(effects: Sequence[Effect], active: Mapping[str, JobRecord], shown: ShownNow) -> list[answers.Effect]:
    """What would be done to each of these jobs; `shown` as of `plan_body`."""
    found = []
    for effect in effects:
        job_id, told = effect.job_id, shown.get(effect.job_id, NOTHING_SHOWN)
        left = with_and_without(told.left, effect.left_before, effect.left_after)
        before, after = (None, None) if told.is_without_end else left
        found.append(
            answers.Effect(
                job_id=job_id,
                name=active[job_id].name if job_id in active else job_id,
                before=allocation_body(effect.before),
                after=allocation_body(effect.after),
                finish_seconds_before=before,
                finish_seconds_after=after,
                lost_steps=effect.lost_steps,
                lost_seconds=effect.lost_seconds or None,
                loses_since_checkpoint=job_id in active and goes_on_from_checkpoints(active[job_id]),
            )
        )
    return found


def with_and_without(
    shown: answers.Interval | None,
    before: Interval | None,
    after: Interval | None,
    body: Callable[[Interval | None], answers.Interval | None] | None = None,
) -> tuple[answers.Interval | None, answers.Interval | None]:
    """A start or an end as things are, and with the change: what is `shown` of the job now, and each bound of that as
    much later or sooner as the look ahead finds it, from `before` to `after`: a wait that ends takes its doubt with it.

    Both by the look itself where nothing is shown, or the two differ so much that this is no interval any more.
    """
    body = body or _interval
    if shown is None:
        return body(before), body(after)
    if shown.low is None or shown.high is None or before is None or after is None:
        return shown, body(after)
    told = shown.mean, shown.low, shown.high
    mean, low, high = (each + then - now for each, then, now in zip(told, after, before, strict=True))
    is_over = any(each <= 0.0 < then for each, then in zip((mean, low, high), after, strict=True))
    mean, low, high = (max(each, 0.0) for each in (mean, low, high))
    if is_over or not low <= mean <= high < math.inf:
        return body(before), body(after)
    return shown, answers.Interval(mean=mean, low=low, high=high)


def _on_places_held(previewed: Previewed, active: Mapping[str, JobRecord]) -> list[str]:
    return until_places_are_left([active[job_id] for job_id in previewed.held_by if job_id in active])


def _on_time(expected: answers.Expected, previewed: Previewed) -> list[str]:
    record = previewed.record
    needs = on_epochs(record.asked.convergence) if is_of_a_script(record) and not previewed.tells_epochs else []
    return [*_on_the_start(expected, previewed), _on_the_end(expected, previewed), *needs]


def _on_the_start(expected: answers.Expected, previewed: Previewed) -> list[str]:
    if not previewed.decision.allocation.is_empty or previewed.record.owner_paused_at is not None:
        return []  # of one that is submitted paused its decision says until when it gets nothing
    if expected.start_seconds is None and NO_END_HELPS in previewed.decision.message:
        return ["It would not start before a quota, a limit, its specification or the cluster is changed."]
    if expected.start_seconds is None:
        return ["When it would start cannot be said: nobody can tell when there is room for it."]
    return [f"It would start in {span(expected.start_seconds)}."]


def _on_the_end(expected: answers.Expected, previewed: Previewed) -> str:
    limit, most = expected.finish_seconds, previewed.record.asked.convergence.max_seconds
    bound = "" if most is None else f" It would end {lasted(most)} after its start at the latest: that is its limit."
    if limit is None and previewed.decision.allocation.is_empty and expected.start_seconds is None:
        return f"When it would end cannot be said before it starts.{bound}"
    if limit is None:
        unknown = {
            _no_job_tells_its_length(previewed.record): previewed.forecast.total_steps is None,
            "its speed is not known": previewed.forecast.seconds_per_step is None,
        }
        missing = [what for what, is_so in unknown.items() if is_so]
        why = ", and ".join(missing) or "too little is known of other jobs"
        return f"When it would end cannot be said: {why}.{bound}"
    if previewed.is_by_clock_alone:
        what = "money" if previewed.forecast.rule == "max_cost" else "time"
        ends = f"It would end in {span(limit)} by its limit of {what}"
        return f"{ends}: whether something else ends it before is not known before it has run."
    known = f", from {counted(previewed.n_similar, 'finished job')} of the same task" if previewed.n_similar else ""
    if known and previewed.n_alike < previewed.n_similar:
        known += f" ({previewed.n_alike or 'none'} submitted with these arguments)"
    counted_in = "waiting, later changes of size and jobs that may still be submitted are in it"
    return f"It would end in {span(limit)}{known}; {counted_in}."


def _no_job_tells_its_length(record: JobRecord) -> str:
    rule = record.asked.convergence
    figures = dict.fromkeys(
        [*["loss"] * (rule.loss_decrease is not None), *(each.what for each in figures_asked(rule))]
    )
    if not figures:
        return "no finished job like it tells how many steps it makes"
    named = " and its ".join(figures)
    no_run = "no finished job like it tells how long it takes"
    return f"its rule goes by its {named}, of which nothing is known yet, and {no_run}"


def _deadline(previewed: Previewed, now: float) -> answers.DeadlineAnswer | None:
    due, said = deadline_of(previewed.record.asked, now), previewed.deadline
    if due is None or said is None:
        return None
    # By the time that it is submitted with it, the others have gone on, and each look at the queue tells a bit another.
    slack = 0.0 if said.earliest is None else max(_TO_SUBMIT_SECONDS, _ANOTHER_LOOK * (said.earliest - now))
    earliest = None if said.earliest is None else foreseen(said.earliest + slack)
    return answers.DeadlineAnswer(at=moment(due), answer=said.answer.value, earliest=earliest)


def _on_the_deadline(previewed: Previewed, said: answers.DeadlineAnswer | None, now: float) -> list[str]:
    """By the interval of its end, whatever the scheduler claims for it, and what can be promised."""
    if said is None:
        return []
    if previewed.record.owner_paused_at is not None:
        return [deadline_of_a_paused_job(said.at.timestamp(), now)]
    is_missed = says_it_is_missed(previewed.decision.message)
    until_due = said.at.timestamp() - now
    is_claimed = previewed.decision.reason is Reason.MEETING_DEADLINE
    sentences = by_deadline(
        _interval(previewed.left), until_due, has_begun=False, is_said_missed=is_missed, is_claimed=is_claimed
    )
    if said.answer == "promised":
        return [*sentences, "Its deadline can be promised: it comes before deadlines that are not."]
    if NO_END_HELPS in previewed.decision.message:
        return [*sentences, "No deadline can be promised as things are, as it would not start."]
    if said.earliest is None:
        why = "" if is_missed else ": too little is known of its end"  # of one that is missed something is known
        return [*sentences, f"No deadline can be promised before it has run{why}."]
    soon = f"if it is submitted within {time_words(_TO_SUBMIT_SECONDS)}"
    return [*sentences, f"A deadline at {said.earliest:%Y-%m-%d %H:%M:%S} UTC could be promised, {soon}."]


def _on_the_budget(previewed: Previewed) -> list[str]:
    """How long its limit of money lets it train, where that bounds its end."""
    most, pays = previewed.record.asked.convergence.max_cost, previewed.seconds_paid
    if most is None or pays == math.inf:
        return []
    budget = paid_words(most, pays, allocation_body(previewed.decision.allocation), has_begun=False)
    if previewed.forecast.rule == "max_cost":
        return [f"{budget}, and ends it then."]
    return [f"{budget}: it would end then at the latest."] if previewed.forecast.total_steps is None else []


def _on_money(cost: answers.Interval | None) -> list[str]:
    if cost is None:
        return []
    low, high = cost.low, cost.high
    bounds = "" if low is None or high is None else f" ({money_words(low)} to {money_words(high)})"
    return [f"It would cost about {money_words(cost.mean)}{bounds}, at the prices that the service is set to."]


def on_others(effects: list[answers.Effect], *, of_some: bool = False, beside_one: bool = False) -> list[str]:
    """Who would have another size, when it would end then, and what it would lose. `of_some`: others may have, too, of
    which the reader may not know; `beside_one`: beside a job of which is told already."""
    if not effects:
        who = "No other job" if beside_one else "No job"
        return [f"{who} that {'you may read' if of_some else 'runs'} would change its size."]
    return [
        f"{each.name} ({each.job_id}) would have {size(each.after)} instead of {size(each.before)}"
        f"{_delay(each)}{_loss(each)}."
        for each in effects
    ]


def on_waiting(put_off: Sequence[PutOff], active: Mapping[str, JobRecord], shown: ShownNow) -> list[str]:
    """Who of those that the caller may read would start later."""
    found = []
    for each in put_off:
        job, told = active.get(each.job_id), shown.get(each.job_id, NOTHING_SHOWN).start
        before, after = with_and_without(told, each.before, each.after)
        if job is None or job.is_being_cancelled or before is None:
            continue
        name = f"{job.name} ({job.id}), which waits,"
        later = f"{name} would start in {span(after)} instead of {span(before)}." if after is not None else None
        found.append(later or f"When {name} would start could not be said any more; as things are, in {span(before)}.")
    return found


def _delay(effect: answers.Effect) -> str:
    before, after = effect.finish_seconds_before, effect.finish_seconds_after
    if before is None or after is None:
        return ""
    later = after.mean - before.mean
    has_fewer = effect.after.workers < effect.before.workers
    if later < 0 and has_fewer:
        return " at first, and end no later, by what is foreseen"  # two looks ahead never tell quite the same
    return f" and end {time_words(abs(later))} {'later' if later >= 0 else 'sooner'}"


def _loss(effect: answers.Effect) -> str:
    lost = Loss(effect.lost_steps, effect.lost_seconds).words
    return f", and lose {lost}: it is not known to go on from a checkpoint" if lost else ""


def _interval(value: Interval | None) -> answers.Interval | None:
    if value is None or finite(value.mean) is None:
        return None
    # Nothing is known of the low end where it is 0: the mean is then the job's limit.
    low = finite(value.low) if value.low > 0 or value.mean <= 0 else None
    return answers.Interval(mean=value.mean, low=low, high=finite(value.high))
