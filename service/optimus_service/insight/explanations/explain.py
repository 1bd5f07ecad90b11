"""Why a job has what it has: in sentences and in figures, from rows alone. Pure.

::

    state ─▶ this allocation, and why ─▶ gain of its next task against the marginal job's ─▶ what would change it
          ─▶ expected start and end ─▶ what the last rescale cost and bought
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from optimus_contract import answers
from optimus_contract.command import is_distributed
from optimus_contract.membership import PauseParts
from optimus_scheduler.ahead.deadlines import Answer, answer_to
from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS
from optimus_scheduler.allocate.optimus.guarantees import Turn
from optimus_scheduler.model import Interval, JobState, Reason, SpeedSample
from optimus_scheduler.model.format import time_words
from optimus_scheduler.what_if import LACKING_CAPACITY, NOT_COMPETING
from optimus_service.insight.explanations.queue import ORDERS, Queued
from optimus_service.insight.format import by_deadline, counted, finite, foreseen, lasted, moment, size, span, times
from optimus_service.insight.jobs.bodies import allocation_body
from optimus_service.insight.jobs.end import has_made_all
from optimus_service.insight.jobs.lost_work import losses, total
from optimus_service.insight.jobs.progress import Ends, awaited_end, is_without_end, progress_of
from optimus_service.insight.jobs.reasons import gives_more, on_unread
from optimus_service.insight.jobs.why import Explanation, explain, goes_on_from
from optimus_service.observe.spec import begins_anew, deadline_of, promised_at, readable_spec
from optimus_service.observe.standstills import Standstills
from optimus_service.store.records import (
    REPLACED,
    Awaited,
    DecisionRecord,
    ExpectedTimes,
    JobRecord,
    MembershipRecord,
)
from optimus_service.store.rounds.forecasts import known


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that an explanation is made of."""

    job: JobRecord
    decision: DecisionRecord | None
    now: float
    memberships: Sequence[MembershipRecord] = ()
    """Oldest first."""
    began: Mapping[str, float] = field(default_factory=dict)
    """When tasks were started, by name, of a script whose stops lose work."""
    speeds: Sequence[SpeedSample] = ()
    """Measured speeds, any order."""
    others: Mapping[str, JobRecord] = field(default_factory=dict)
    """All active jobs by id that the reader may know of, this one among them or not."""
    decisions: Mapping[str, DecisionRecord] = field(default_factory=dict)
    """The latest of each of these."""
    queue: Sequence[Queued] = ()
    """All jobs that wait (`in_queue`)."""
    gives_more: Sequence[str] | None = None
    """What each alone would give it more, tried by planning again; None: not tried."""
    kept_on_larger_cluster: str | None = None
    """Why it would keep its size with more room, too, in a sentence; None: not known."""
    troubles: Sequence[str] = ()
    """What keeps its tasks from running, as the cluster says."""
    warnings: Sequence[str] = ()
    """What hinders its training: the newest such events."""
    still: Standstills = field(default_factory=dict)
    """Jobs that make no step now."""
    policy: str = ""
    """The name of the policy in force."""
    turn: Turn | None = None
    """From when on no other job starts before this one, which waits; None: its policy knows of no such time."""
    errors: Sequence[float] = ()
    """When errors of its owner's code ended its training, after each of which it was tried again."""
    ends: Sequence[float] = ()
    """When it failed or was cancelled, the last time and all times before, after which its owner resumed it."""


def explanation_of(case: Case) -> answers.Explanation:
    """Everything that can be said of why the job has what it has."""
    job, decision, words = case.job, case.decision, explain(case.job, case.decision)
    marginal, effect = marginal_job(case), last_rescale(case)
    expected = _expected(case)
    troubles = [f"The cluster says: {trouble}" for trouble in case.troubles]
    sentences = [
        words.message,
        *_on_a_change_under_way(case),
        *_on_larger_cluster(case, words),
        *troubles,
        *case.warnings,
        *_on_standstill(case),
        *on_unread(case.job),
        *_on_gains(case, words, marginal),
        *_on_lost_work(case),
        *_on_waiting(case, expected),
        *_on_the_end(case, expected),
        *_on_the_deadline(case, expected),
        *_on_the_last_rescale(case, effect),
        *_on_its_history(case),
    ]
    return answers.Explanation(
        job_id=job.id,
        state=job.state.value,
        at=None if decision is None else moment(decision.at),
        reason=words.reason,
        message=words.message,
        what_would_change_it=_change(case, words),
        # It never trains again: nothing counts but what may keep its tasks from stopping.
        sentences=[words.message, *troubles] if job.is_being_cancelled else sentences,
        allocation=allocation_body(words.allocation),
        previous=allocation_body(words.previous),
        gain=None if decision is None else finite(decision.gain),
        next_gain=None if decision is None else finite(decision.next_gain),
        marginal=marginal,
        confidence=None if decision is None else finite(decision.forecast.confidence),
        expected=expected,
        last_rescale=effect,
        troubles=list(case.troubles),
    )


def _on_larger_cluster(case: Case, words: Explanation) -> list[str]:
    """Why the room is not all that it lacks."""
    kept = case.kept_on_larger_cluster
    if kept is None or words.reason not in LACKING_CAPACITY or words.allocation.is_empty:
        return []
    return [f"With more room, too, it {kept[0].lower()}{kept[1:]}"]


def _on_a_change_under_way(case: Case) -> list[str]:
    """What it trains with while what was decided is still to come."""
    job, (has, gets) = case.job, (allocation_body(each) for each in (case.job.running, case.job.wanted))
    if job.state.is_final or job.is_tracked or job.running.is_empty or job.wanted.is_empty or size(has) == size(gets):
        return []
    return [f"It trains with {size(has)} as yet: the change to {size(gets)} is under way."]


def _on_standstill(case: Case) -> list[str]:
    found = case.still.get(case.job.id)
    return [] if found is None else [f"{found.words[0].upper()}{found.words[1:]}."]


# --- gains -----------------------------------------------------------------------------------------------------------


def marginal_job(case: Case) -> answers.Marginal | None:
    """Of the other active jobs, by what holds of each: who was granted a task with the least gain. None: nobody was."""
    if case.decision is None or case.job.state.is_final or case.job.is_being_cancelled:
        return None
    granted = (
        (each.gain, each.job_id)
        for each in case.decisions.values()
        if each.job_id != case.job.id and each.gain is not None
    )
    gain, job_id = min(granted, default=(None, None))
    if gain is None or job_id is None:
        return None
    name = case.others[job_id].name if job_id in case.others else job_id
    return answers.Marginal(job_id=job_id, name=name, gain=gain)


def _on_gains(case: Case, words: Explanation, marginal: answers.Marginal | None) -> list[str]:
    next_gain = None if case.decision is None else finite(case.decision.next_gain)
    if case.job.state.is_final or next_gain is None or words.allocation.is_empty:
        return []
    if next_gain <= 0:
        return ["One more task would not make it faster by enough to be worth a task."]
    if words.reason in (Reason.UNCHANGED, Reason.NO_FURTHER_GAIN):
        return ["One more task would make it a little faster: too little to change its size for."]
    if marginal is None:
        others = case.others.keys() - {case.job.id}
        return [f"One more task would make it faster{'; no other job has more than it needs at least' * bool(others)}."]
    to = f"of the task that was granted with the least gain, to {marginal.name} ({marginal.job_id})"
    if marginal.gain <= 0:
        return [f"Its next task would gain more than that {to}."]
    return [f"Its next task would gain {next_gain / marginal.gain:.2g} times what was gained by that {to}."]


def _change(case: Case, words: Explanation) -> str:
    """What gives it more: only what was tried, where that was possible."""
    if words.reason == Reason.WAITING_FOR_RETRY and begins_anew(case.job):
        again = f"cancel it, and run it again: `optimus retry {case.job.id}`"
        return f"The end of the wait: mend what failed before that. Or {again}."
    if case.job.state.is_final or case.decision is None or case.gives_more is None:
        return words.what_would_change_it
    if words.reason in NOT_COMPETING:
        return words.what_would_change_it
    reason = words.reason
    if reason == Reason.LEARNING_SPEED and _has_all(case.job, words):
        reason = Reason.AT_MAXIMUM  # there is nothing to learn for
    if reason == Reason.LEARNING_SPEED and not case.gives_more:
        return "Whether it grows is decided when its speed at this size is measured: nothing that was tried helps now."
    mend = "What keeps its tasks from running has to be mended first. " if case.troubles else ""
    more = gives_more(case.gives_more, words.allocation.is_empty)
    return f"{mend}{more}{_of_its_script(case.job, reason)}"


def _has_all(job: JobRecord, words: Explanation) -> bool:
    """Whether it has all that its owner allows."""
    spec, size = readable_spec(job), words.allocation
    return spec is not None and (size.workers, size.servers) == (spec.worker.maximum, spec.server.maximum)


def _of_its_script(job: JobRecord, reason: str | None) -> str:
    """What would let a script have more workers, which no round can try: it is a matter of the script."""
    spec, command = readable_spec(job), job.asked.command
    if reason != Reason.AT_MAXIMUM or spec is None or not command or spec.tracked:
        return ""
    if spec.size_stays:
        return " Submitted with `--resumes`, which says that it goes on from its checkpoint, its size may change."
    if spec.worker.maximum == 1 and not is_distributed(command):
        return " Its command starts one process: with a launcher such as torchrun it may have more workers."
    return ""


# --- start and end ---------------------------------------------------------------------------------------------------


def _expected(case: Case) -> answers.Expected:
    if case.job.state.is_final:
        return answers.Expected(start_seconds=None, finish_seconds=None, finish_at=None)
    ahead = progress_of(case.job, case.decision, case.now, None, case.still)
    left, times = ahead.remaining_seconds, ahead.expected
    return answers.Expected(
        start_seconds=times.start_seconds if times is not None and case.job.waits else None,
        finish_seconds=left,
        finish_at=None if left is None else foreseen(case.now + left.mean),
        computed_at=None if times is None else times.computed_at,
    )


def _retry_wait(case: Case) -> float:
    """Seconds until an error's wait is over; 0 when there is none."""
    return 0.0 if case.job.retry_at is None else max(case.job.retry_at - case.now, 0.0)


def _on_waiting(case: Case, expected: answers.Expected) -> list[str]:
    if case.job.state.is_final or not case.job.waits:
        return []
    if wait := _retry_wait(case):
        soonest = time_words(wait) if expected.start_seconds is None else span(expected.start_seconds)
        if begins_anew(case.job):
            lost = (
                f": it is not known to have a checkpoint, so that its {counted(case.job.step, 'step')} are made again"
            )
            return [f"It may begin anew in {soonest}, if there is room for it then{lost}."]
        saved = f", from {goes_on_from(case.job)}" if case.job.step else ""
        return [f"It may go on in {soonest}, if there is room for it then{saved}."]
    return [*_how_long(case), *_place_in_the_queue(case), *_before_all(case), _when_it_starts(case, expected)]


def _on_lost_work(case: Case) -> list[str]:
    """What a job without tasks has lost with its pause."""
    if case.job.state.is_final or not case.job.is_without_tasks or not case.memberships or _retry_wait(case):
        return []
    lost = losses(case.job, case.memberships, case.began)[-1]
    if not lost.words or not begins_anew(case.job):
        return []
    return [f"It is not known to go on from a checkpoint: it begins anew, and {lost.words} are lost."]


def _how_long(case: Case) -> list[str]:
    """Since when it waits. Not in the decision's sentence, which may be older."""
    job = case.job
    since = job.created_at if job.wanted_at is None or job.state is JobState.QUEUED else job.wanted_at
    return [f"It has waited for {time_words(case.now - since)}."] if case.now - since >= 1 else []


_NAMED = 5
"""Jobs that are named; of more the number is told."""


def _place_in_the_queue(case: Case) -> list[str]:
    """Its number in the queue that everybody is shown, and who is before it."""
    mine = next((each for each in case.queue if each.job.id == case.job.id), None)
    if mine is None:
        return []
    place = f"In the queue it is number {mine.position} of {len(case.queue)}"
    ahead = [each.job for each in case.queue[: mine.position - 1]]
    known = [job for job in ahead if job.id in case.others]
    behind = f", behind {_named(known, len(ahead))}" if known else ""
    order = ORDERS.get(case.policy) if ahead else None
    by = "" if order is None else f" Each round of the policy `{case.policy}` decides anew who starts: {order}."
    return [f"{place}{behind}.{by}"]


def _before_all(case: Case) -> list[str]:
    """From when on room is kept for it."""
    turn = case.turn
    if turn is None or case.decision is None or case.decision.reason != Reason.WAITING_FOR_RESOURCES:
        return []
    but = "but for promised deadlines, guarantees of quotas, and jobs that have waited too long before it"
    unless = "unless what is left of the jobs that were there when its wait began takes the whole cluster for longer"
    if turn.in_seconds <= 0:
        return [f"It has waited so long that no other job starts before it, {but}, {unless} than it has waited."]
    at = f"From {moment(case.now + turn.in_seconds):%Y-%m-%d %H:%M:%S} UTC on"
    waits = f"{at}, when it has waited for {lasted(turn.patience)}, no other job starts before it, {but}"
    later = f"{waits}; later {unless.replace('unless', 'if', 1)} than that"
    return [f"{later}. {_of_its_patience(turn, case.job.asked.priority)}"]


def _of_its_patience(turn: Turn, priority: float) -> str:
    """What the time is made of that a job waits before room is kept for it."""
    more = turn.part * turn.needed / priority
    if turn.patience < turn.fixed + more - 0.5:
        return "That is the longest that any job waits for that."
    why = ", as its length or its speed is not known to the rounds yet" if turn.is_assumed else ""
    divided = "" if priority == 1 else f", divided by its priority of {priority:g}"
    needs = f"{turn.part:g} times the {lasted(turn.needed)} that it is taken to need alone{why}"
    return f"These are {lasted(turn.fixed)}, and {lasted(more)} more: {needs}{divided}."


def _when_it_starts(case: Case, expected: answers.Expected) -> str:
    goes = "start" if case.job.started_at is None else "go on"
    if expected.start_seconds is not None:
        if max(expected.start_seconds.mean, expected.start_seconds.high or 0.0) < 0.5:
            return f"It is expected to {goes} in a moment, by what is expected of all jobs."
        return f"It is expected to {goes} in {span(expected.start_seconds)}{_with_the_end_of(case)}."
    if expected.computed_at is None:
        return (
            f"When it will {goes} cannot be said yet: that is worked out after each round, but was not since it came."
        )
    if case.decision is not None and case.decision.reason == Reason.NO_FEASIBLE_NODE:
        return "It starts when a node has room for its tasks: when that is cannot be said."
    if case.decision is not None and NO_END_HELPS in case.decision.message:
        return f"It does not {goes} before a quota, a limit, its specification or the cluster is changed."
    endless = _without_end_before(case)
    if not endless:
        return f"When it will {goes} cannot be said: nothing tells when there is room for it."
    ends = "it ends" if len(endless) == 1 else "they end"
    return f"When it will {goes} cannot be said: {_named(endless)} may be in its way, and nothing tells when {ends}."


def _with_the_end_of(case: Case) -> str:
    """Whose end the told start waits for, in the futures that it is told by."""
    times = None if case.decision is None else case.decision.expected
    likeliest = max(() if times is None else times.behind, key=lambda one: one.part, default=None)
    job = None if likeliest is None else likeliest.job
    by = ", by what is expected of all jobs"
    if likeliest is None or times is None or job is None or job.id not in case.others or job.state.is_final:
        return by
    if (part := times.at_once.get(job.id, 0.0)) > _LIKELY:
        if not _may_be_at_once(times, likeliest):
            return by
        return f", {'most likely ' if part < 1 else ''}with the end of {_named([job])}{by}"
    if likeliest.part > _LIKELY:
        sure = "most likely " if likeliest.part < 1 else ""
        also = "" if _is_first(case) else " and that of a job that starts before it"
        return f", {sure}after the end of {_named([job])}{also}{by}"
    return by


def _is_first(case: Case) -> bool:
    """Whether the queue that everybody is shown has no job before it. Its futures may have one: another in each."""
    return bool(case.queue) and case.queue[0].job.id == case.job.id


def _may_be_at_once(times: ExpectedTimes, one: Awaited) -> bool:
    """Whether the start is told for about the same time as the end. Not where it waits for others, too, in some of the
    futures: for a pause that a future has and that may not come."""
    end, start = awaited_end(one, times), times.start
    if end is None or start is None:
        return True
    about = _ABOUT * (end.mean - times.at) + _ABOUT_SECONDS
    overlaps = start.low <= end.high and end.low <= start.high
    return overlaps and end.low - about <= start.mean <= end.high + about


_ABOUT, _ABOUT_SECONDS = 0.25, 5.0
"""A start with an end is told for no longer after the interval of that than this part of the time until it, and a
start-up."""


_LIKELY = 0.5
"""An end that a start waits for in no larger part of the futures is not named: it may as likely be another."""


def _without_end_before(case: Case) -> list[JobRecord]:
    """Jobs that nothing tells the end of: first those before it in the queue, then those that have tasks."""
    before = takewhile(lambda each: each.job.id != case.job.id, case.queue)
    starts = {each.job.id: each.start for each in before if each.job.id in case.others}
    trains = (each.id for each in case.others.values() if not each.wanted.is_empty and not each.is_being_cancelled)
    ends: Ends = {}
    jobs = (case.others[job_id] for job_id in dict.fromkeys((*starts, *trains)))
    return [
        job
        for job in jobs
        if is_without_end(job, case.decisions.get(job.id), case.now, ends, case.still, starts.get(job.id))
    ]


def _named(jobs: Sequence[JobRecord], in_all: int | None = None) -> str:
    """Names of these, or of the first of so many `in_all`."""
    names = [f"{each.name} ({each.id})" for each in jobs[:_NAMED]]
    more = (len(jobs) if in_all is None else in_all) - len(names)
    return f"{', '.join(names)}{f' and {more} more' if more else ''}"


def _on_the_end(case: Case, expected: answers.Expected) -> list[str]:
    if case.job.state.is_final or case.job.owner_paused_at is not None:
        return []
    if _retry_wait(case):
        return ["When it ends cannot be said before it goes on."]
    if has_made_all(case.job):
        left = "" if expected.finish_seconds is None else f": by that it may end in {span(expected.finish_seconds)}"
        if not progress_of(case.job, case.decision, case.now, None, case.still).longer_than_predicted:
            return ["It has made all steps that it announced: it is finishing."]
        return [f"It has made all steps that it announced and goes on, longer than predicted{left}."]
    if progress_of(case.job, case.decision, case.now, None, case.still).is_guessed:
        return [
            "When it ends cannot be said: neither its command nor what it prints tells how many steps it makes.",
            "`report(total_steps=...)` of optimus_client tells it, --progress-pattern reads it from its output, and "
            "--max-steps sets a limit.",
        ]
    if expected.finish_seconds is None and case.job.waits and case.job.step > 0:
        return ["When it ends cannot be said before it goes on."]
    if expected.finish_seconds is None and case.job.id in case.still:
        return ["When it ends cannot be said while no step comes."]
    if expected.finish_seconds is None:
        if case.job.waits and expected.start_seconds is None:
            return [f"When it ends cannot be said before it {'starts' if case.job.started_at is None else 'goes on'}."]
        return ["When it ends cannot be said yet: too little of its loss or speed is known."]
    if_so = "If its training goes on, it" if case.warnings else "It"
    ends = f"{if_so} is expected to end in {span(expected.finish_seconds)}"
    due = deadline_of(case.job.asked, case.job.created_at)
    meets = [] if due is None or due <= case.now else by_deadline(expected.finish_seconds, due - case.now)
    meets = [*_on_its_limit(case), *meets]
    if expected.computed_at is None:
        return [f"{ends} if it keeps what it has: later changes of size are not counted in yet.", *meets]
    return [f"{ends}, waiting, stops and later changes of size included.", *_on_changes_ahead(case, expected), *meets]


def _on_its_limit(case: Case) -> list[str]:
    """That its loss may end it before its limit, where the told number of steps does not show that."""
    forecast, rule = None if case.decision is None else case.decision.forecast, case.job.asked.convergence
    total = None if forecast is None else known(forecast.total_steps)
    of_loss = (rule.loss_decrease, rule.target_loss, rule.target_metric)
    if forecast is None or total is None or forecast.rule not in ("max_steps", "max_epochs") or of_loss == (None,) * 3:
        return []
    if total.low < total.high:
        return []
    what = "metric" if rule.target_metric is not None else "loss"
    return [f"Its limit of {forecast.rule[4:]} ends it: that its {what} does before is less likely than 10 %."]


_OTHERWISE = 1.2
"""An end that is so many times as far as at the present size is told beside that one: something is expected between."""


def _on_changes_ahead(case: Case, expected: answers.Expected) -> list[str]:
    """What the present size would give, where another end is expected."""
    here, left = progress_of(case.job, case.decision, case.now, None, case.still).at_its_size, expected.finish_seconds
    if case.job.waits or here is None or left is None or here.mean <= 0 or abs(left.mean - here.mean) < 5.0:
        return []
    if left.mean > _OTHERWISE * here.mean:
        # The look says when it ends, and not by whom it is delayed: no cause is told.
        return [f"At the size that it has, without waiting and stops, it would take {span(here)}."]
    if here.mean > _OTHERWISE * left.mean:
        # It may grow, or its newest speed be slower than that of the look: no cause is told.
        speed = "the speed that is predicted" if case.job.first_step is None else "its newest speed"
        return [f"At the size that it has, by {speed}, it would take {span(here)}."]
    return []


# --- the last rescale ------------------------------------------------------------------------------------------------


def last_rescale(case: Case) -> answers.RescaleEffect | None:
    """What the newest change of size cost and bought; None when there was none."""
    for number in range(len(case.memberships) - 1, 0, -1):
        before, after = case.memberships[number - 1], case.memberships[number]
        if after.cause == "rescale":
            return _effect(case, before, after, _steps_with(case, number))
    return None


_GOES_ON = frozenset({"coordinator_restart", "worker_lost", "server_lost", "batch"})
"""Causes of a membership after which a job of the same size goes on with what its last change of size gave it."""


def _steps_with(case: Case, number: int) -> int:
    """Steps made at the size of membership `number`, those among them that were lost later, to the next other size."""
    size_, began = _members(case.memberships[number]), case.memberships[number].step
    made = 0
    for after in case.memberships[number + 1 :]:
        made += max(after.step + after.lost_steps - began, 0)
        if after.cause not in _GOES_ON or _members(after) != size_:
            return made
        began = after.step
    return made + max(case.job.step - began, 0)


def _effect(case: Case, before: MembershipRecord, after: MembershipRecord, n_steps: int) -> answers.RescaleEffect:
    stopped = after.pause_seconds or 0.0
    slow, fast = _speed_with(case, before), _speed_with(case, after)
    saved = None
    if slow and fast:
        # With the old size the steps made since would have taken their time at its speed, without the stop.
        saved = n_steps / slow - (n_steps / fast + stopped)
    return answers.RescaleEffect(
        at=moment(after.at),
        before=_members(before),
        after=_members(after),
        stopped_seconds=stopped,
        pause_parts=None if after.pause_parts is None else PauseParts(**after.pause_parts),
        lost_steps=after.lost_steps,
        steps_per_second_before=slow,
        steps_per_second_after=fast,
        saved_seconds=saved,
    )


def _speed_with(case: Case, membership: MembershipRecord) -> float | None:
    """Mean measured speed with as many workers and servers, weighed by steps."""
    wanted = len(membership.workers), len(membership.servers)
    found = [sample for sample in case.speeds if (sample.workers, sample.servers) == wanted]
    n_steps = sum(sample.n_steps for sample in found)
    seconds = sum(sample.n_steps / sample.steps_per_second for sample in found if sample.steps_per_second > 0)
    return n_steps / seconds if seconds > 0 else None


def _on_the_last_rescale(case: Case, effect: answers.RescaleEffect | None) -> list[str]:
    if effect is None:
        return []
    change = f"from {size(effect.before)} to {size(effect.after)}"
    cost = f"stopped training for {time_words(effect.stopped_seconds)}{_parts(effect.pause_parts)}"
    since = "" if case.job.finished_at is not None else f", {time_words(case.now - effect.at.timestamp())} ago,"
    change_and_cost = f"Its last change of size{since} {change} {cost}"
    slow, fast, saved = effect.steps_per_second_before, effect.steps_per_second_after, effect.saved_seconds
    if slow is None or fast is None or saved is None:
        measured = "was never measured" if case.job.state.is_final else "is not measured yet"
        return [f"{change_and_cost}; what it bought {measured}."]
    has, far = ("", "") if case.job.state.is_final else ("has ", " so far")
    makes = "made" if case.job.running.is_empty else "makes"
    bought = (
        f"{has}saved {time_words(saved)}{far}" if saved > 0 else f"{has}cost {time_words(-saved)} more than it saved"
    )
    return [f"{change_and_cost}; it {makes} {fast:.3g} steps per second instead of {slow:.3g}, which {bought}."]


def _parts(parts: PauseParts | None) -> str:
    """` (saving 1 s, stopping 0.2 s, starting 3 s)`; empty where nothing is known of them."""
    if parts is None:
        return ""
    named = (
        ("saving", parts.save_seconds),
        ("stopping", parts.stop_seconds),
        ("starting", parts.start_seconds),
        ("loading", parts.load_seconds),
    )
    seconds_by_part = [f"{what} {time_words(seconds)}" for what, seconds in named if seconds is not None]
    return f" ({', '.join(seconds_by_part)})" if seconds_by_part else ""


def _on_the_deadline(case: Case, expected: answers.Expected) -> list[str]:
    """Whether it is promised, and if not, which one would be."""
    due = deadline_of(case.job.asked, case.job.created_at)
    if due is None or case.job.state.is_final or case.job.is_tracked:
        return []
    is_promised = promised_at(case.job) is not None
    if due <= case.now:
        return ["Its deadline has passed, though it was promised."] if is_promised else []
    if is_promised:
        return ["Its deadline is promised."]
    left = expected.finish_seconds
    if left is None or left.high is None:
        return ["Its deadline is not promised: too little is known of its end."]
    said = answer_to(due, Interval(left.mean, left.low or 0.0, left.high), case.now)
    if said.answer is Answer.PROMISED:
        return []  # the next look at the queue says so
    by = None if said.earliest is None else foreseen(said.earliest)
    when = "" if by is None else f": it ends by {by:%Y-%m-%d %H:%M:%S} UTC with a probability of 95 %"
    return [f"Its deadline is not promised{when}."]


# --- what it was -----------------------------------------------------------------------------------------------------


def _on_its_history(case: Case) -> list[str]:
    job = case.job
    if not job.state.is_final or job.finished_at is None:
        return []
    parts = [f"It took {lasted(job.finished_at - job.created_at)} from submission to end"]
    if job.started_at is not None and job.started_at - job.created_at >= 1:
        parts.append(f"{lasted(job.started_at - job.created_at)} of it waiting to start")
    due = deadline_of(job.asked, job.created_at)
    late = 0.0 if due is None else job.finished_at - due
    missed = f" It missed its deadline by {lasted(late)}." if late > 0 else ""
    promised = promised_at(job) is not None
    if missed and promised:
        missed = f" It missed its deadline by {lasted(late)}, though that was promised."
    if due is not None and not missed and job.state is JobState.SUCCEEDED:
        missed = f" It met its deadline, {lasted(-late)} before it{', as was promised' * promised}."
    last = next((each for each in reversed(case.memberships) if each.workers), None)
    had = "" if last is None else f" It last had {size(_members(last))}."
    without = [after.at - each.at for each, after in pairwise(case.memberships) if not each.workers]
    stops = _stops(case)
    after_errors = sum(stops.get(at, 0.0) for at in case.errors)
    after_ends = sum(stops.get(at, 0.0) for at in case.ends)
    stopped = sum(each.pause_seconds or 0.0 for each in case.memberships) + sum(without) + after_errors + after_ends
    replaced = sum(each.cause == REPLACED for each in case.memberships)
    # First tasks that come one after the other are one start.
    is_more = [bool(each.workers) and each.cause == "start" for each in case.memberships[1:]]
    complete = [each for each, grows in zip(case.memberships, [*is_more, False], strict=False) if not grows]
    sizes = [_members(each) for each in complete if each.workers]
    n_changes = max(job.rescales, sum(before != after for before, after in pairwise(sizes)))  # with a pause, too
    changed = f"was changed {times(n_changes)}" if n_changes else "was never changed"
    if replaced:
        changed += f", its tasks were replaced {times(replaced)} at the same size"
    if without:
        changed += f", and it was without tasks {times(len(without))}, for {lasted(sum(without))}"
    stood_still = (
        f"stood still for {lasted(stopped) if stopped >= 1.0 else time_words(stopped)} in all"
        if stopped
        else "never stood still"
    )
    if n_unknown := sum(
        each.cause == "coordinator_restart" and each.pause_seconds is None for each in case.memberships
    ):
        begins = f"{stood_still}, and" if stopped else "stood still"
        stood_still = f"{begins} {times(n_unknown)} for a time that is not known"
    changes = f" Its size {changed}; training {stood_still}."
    n_ends = sum(at < job.finished_at for at in case.ends)
    if job.retries or case.errors:
        cut = [at for at in case.errors if _ended_before_its_try(case, at)]
        changes += _on_retries(case, len(cut), after_errors - sum(stops.get(at, 0.0) for at in cut))
    if n_ends:
        changes += f" It had ended {times(n_ends)} before, and was resumed."
    if lost := total(losses(job, case.memberships, case.began)).words:
        changes += f" Lost with its stops: {lost}."
    return [f"{', '.join(parts)}, and ended at step {job.step}.{missed}{had}{changes if case.memberships else ''}"]


def _ended_before_its_try(case: Case, error_at: float) -> bool:
    """Whether it failed or was cancelled while it waited for its try after this error, and was resumed later."""
    joins = min((each.at for each in case.memberships if each.workers and each.at > error_at), default=math.inf)
    return any(error_at < at < min(joins, case.job.finished_at or case.now) for at in case.ends)


def _on_retries(case: Case, n_cut: int, waited_seconds: float) -> str:
    """How often it was tried again. Before the try after `n_cut` errors it ended; the last time it may have, too."""
    due, ended = case.job.retry_at, case.job.finished_at
    is_due = due is not None and ended is not None and ended < due
    # `retries` counts from when its owner last resumed it.
    n_tries = max(case.job.retries, len(case.errors) - n_cut) - is_due
    waited = f"waited {lasted(waited_seconds)} for" if waited_seconds else "waited for"
    if not n_tries:
        return f" After an error it {waited} another try, which did not come."
    tried = f" It was tried again {times(n_tries)} after an error"
    if is_due:
        return f"{tried}, and waited for another try when it ended; it {waited} them."
    return f"{tried}, which cost it {lasted(waited_seconds)}." if waited_seconds else f"{tried}."


def _stops(case: Case) -> dict[float, float]:
    """Seconds from each error or end of training until the job trained again. Of several between two memberships the
    first counts, and none where a membership without tasks accounts for the time."""
    found: dict[float, float] = {}
    joined = [each.at for each in case.memberships]
    until = 0.0
    for at in sorted({*case.errors, *case.ends}):
        number = bisect_right(joined, at)
        is_counted = number < len(joined) and not case.memberships[number].workers
        if number == 0 or at < until or is_counted:
            continue
        until = joined[number] if number < len(joined) else case.job.finished_at or case.now
        found[at] = max(until - at, 0.0)
    return found


def _members(membership: MembershipRecord) -> answers.Allocation:
    return answers.Allocation(workers=len(membership.workers), servers=len(membership.servers))
