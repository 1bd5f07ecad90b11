"""What an explanation says of when a job starts and ends, and what it waits for. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import takewhile

from optimus_contract import answers
from optimus_models.convergence import LEAST_POINTS
from optimus_scheduler.ahead.cuts import DEADLINE, GUARANTEE, LESS, PRIORITY, SOONER, TURN
from optimus_scheduler.ahead.deadlines import Answer, answer_to
from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS
from optimus_scheduler.allocate.deadline_budget import says_it_is_missed
from optimus_scheduler.model import LIMIT_RULES, Directive, Interval, Reason
from optimus_scheduler.model.format import lasted, money_words, time_words
from optimus_scheduler.what_if import NEXT_ROUND
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.queue import ORDERS, Queued, goes_first, order_of_equals
from optimus_service.insight.format import by_deadline, counted, foreseen, moment, span
from optimus_service.insight.format import size as size_of
from optimus_service.insight.jobs.bodies import allocation_body
from optimus_service.insight.jobs.end import REACHED, reached_limit
from optimus_service.insight.jobs.lost_work import losses
from optimus_service.insight.jobs.needs import figures_asked, is_of_a_script, untold_of, untold_words
from optimus_service.insight.jobs.progress import (
    Ends,
    awaited_end,
    awaited_left,
    is_ending,
    is_without_end,
    makes_no_more,
    progress_of,
    stalled_since,
    step_of,
    was_without_end,
)
from optimus_service.insight.jobs.why import goes_on_from
from optimus_service.observe.spec import (
    awaits_retry,
    began_at,
    begins_anew,
    deadline_of,
    has_failed_before,
    limit_made,
    passed_limits,
    promised_at,
    silent_since,
)
from optimus_service.store.records import Awaited, ExpectedTimesRecord, JobRecord
from optimus_service.store.rounds.forecasts import known


def expected_of(case: Case) -> answers.Expected:
    if case.job.state.is_final:
        return answers.Expected(start_seconds=None, finish_seconds=None, finish_at=None)
    ahead = progress_of(case.job, case.decision, case.now, None, case.still, case.speed)
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


def on_waiting(case: Case, expected: answers.Expected) -> list[str]:
    if case.job.state.is_final or not case.job.waits:
        return []
    made = counted(max(case.job.step - began_at(case.job), 0), "step")
    anew = f" It is not known to have a checkpoint: without one, its {made} are made again."
    anew = anew if begins_anew(case.job) else ""
    if wait := _retry_wait(case):
        soonest = time_words(wait) if expected.start_seconds is None else span(expected.start_seconds)
        saved = f", from {goes_on_from(case.job, case.memberships)}" if case.job.step and not anew else ""
        return [f"It may go on in {soonest}, if there is room for it then{saved}.{anew}"]
    return [
        *(f"{error}{anew}" for error in _its_error(case)),
        *_how_long(case),
        *_place_in_the_queue(case),
        *_before_all(case, expected),
        _when_it_starts(case, expected),
    ]


def _its_error(case: Case) -> list[str]:
    """The error after which it waited to be tried again: now it waits for room."""
    job = case.job
    if not awaits_retry(job) or job.last_error is None:
        return []
    number = f"retry {job.retries} of {max(job.retries, job.asked.retries)}"
    return [f"Its last try ended with an error ({number}): {_ended(job.last_error)}"]


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def on_lost_work(case: Case) -> list[str]:
    """What a job without tasks has lost with its pause."""
    if case.job.state.is_final or not case.job.is_without_tasks or not case.memberships:
        return []
    if _retry_wait(case) or _its_error(case):
        return []  # what the error has lost is told with it
    lost = losses(case.job, case.memberships, case.began, case.last_steps)[-1]
    if not lost.words or not begins_anew(case.job):
        return []
    return [f"It is not known to have a checkpoint: without one it begins anew, and {lost.words} are lost."]


def _how_long(case: Case) -> list[str]:
    """Since when it waits. Not in the decision's sentence, which may be older."""
    job = case.job
    waited = case.now - job.waits_since
    if waited < 1:
        return []
    is_since_a_hold = job.retry_at is not None and job.waits_since == job.retry_at
    since = "its wait after an error" if job.last_error and job.retries else "it was resumed"
    return [f"It has waited for {lasted(waited)}{f', since {since}' if is_since_a_hold else ''}."]


_NAMED = 5
"""Jobs that are named; of more the number is told."""


def _place_in_the_queue(case: Case) -> list[str]:
    """Its number in the queue that everybody is shown, and who is before it."""
    mine = next((each for each in case.queue if each.job.id == case.job.id), None)
    if mine is None:
        return []
    place = f"In the queue it is now number {mine.position} of {len(case.queue)}"
    if mine.start is None and len(case.queue) > 1:
        by = order_of_equals(case.policy)
        place += f", where those whose start cannot be said stand last, by {by}"
    ahead = [each.job for each in case.queue[: mine.position - 1]]
    known = [job for job in ahead if job.id in case.others]
    behind = f", behind {named(known, len(ahead))}" if known else ""
    sooner = sooner_than_shown(case, mine)
    order = ORDERS.get(case.policy) if ahead or sooner else None
    by = "" if order is None else f" Each round decides anew who starts (policy `{case.policy}`): {order}."
    return [f"{place}{behind}.{by}", *sooner]


def sooner_than_shown(case: Case, mine: Queued) -> list[str]:
    """That others that wait would start before it now than those before it in the queue."""
    sooner = None if case.behind is None else case.behind.waiting
    if sooner is None or sooner < mine.position:
        return _with_one_end(case, mine)
    others = "1 that waits" if sooner == 1 else f"{sooner} that wait"
    now = f"if the jobs with tasks that go first ended now, {others} would start before it"
    return [f"{_by(mine)} {now}."]


def _by(mine: Queued) -> str:
    """What its number in the queue is by."""
    return "That is no order of starts:" if mine.start is None else "That is by the starts that are foreseen:"


def _with_one_end(case: Case, mine: Queued) -> list[str]:
    """That with the end of a single job now another order than that of the queue holds."""
    jobs = [each.job for each in case.queue]
    before, after = jobs[: mine.position - 1], jobs[mine.position :]
    later = [job for job in before if job.id in case.with_one_end.later]
    sooner = [job for job in after if job.id in case.with_one_end.sooner]
    if not later and not sooner:
        return []
    it = f"it may start before {_some(later, case)}" if later else f"{_some(sooner, case)} may start before it"
    return [f"{_by(mine)} if one of those with tasks ended now, {it}."]


def _some(jobs: Sequence[JobRecord], case: Case) -> str:
    """Names, where the reader may know them."""
    known = [job for job in jobs if job.id in case.others]
    return named(known, len(jobs)) if known else f"{len(jobs)} that wait{'s' * (len(jobs) == 1)}"


_BACKLOG = "the jobs that were there before its wait need the whole cluster for longer"


def _before_all(case: Case, expected: answers.Expected) -> list[str]:
    """From when on room is kept for it; nothing where it is expected to have started by then."""
    turn = case.turn
    if turn is None or case.decision is None or case.decision.reason != Reason.WAITING_FOR_RESOURCES:
        return []
    but = "except one with a deadline or a guarantee of its quota, or whose wait became too long earlier"
    if goes_first(case.decision):
        return [f"No other job starts before it, {but}."]
    # A decision is kept as long as rounds decide the same; the queue is looked at after each round that has news.
    looked = 0.0 if case.decision.expected is None else case.decision.expected.at
    if turn.in_seconds <= min(max(case.decision.at, looked) - case.now, 0.0):
        waited = f"It has waited for longer than the {lasted(turn.patience)} after which a job goes first"
        return [f"{waited}, but others may still start before it: {_BACKLOG} than it has waited."]
    start = expected.start_seconds
    if start is not None and start.high is not None and start.high <= turn.in_seconds:
        return []
    at = f"at about {moment(case.now + turn.in_seconds):%Y-%m-%d %H:%M:%S} UTC"  # by the time that it needs
    if turn.in_seconds <= 0:
        at = "in the next round"
    waits = f"If it still waits {at} ({lasted(turn.patience)} of waiting), no other job starts before it, {but}."
    return [waits, f"That comes later while {_BACKLOG} than it has waited."]


def _when_it_starts(case: Case, expected: answers.Expected) -> str:
    goes = "start" if case.job.started_at is None else "go on"
    if case.gives_more is not None and NEXT_ROUND in case.gives_more:  # the last look at the queue did not know it yet
        looked, start = expected.computed_at, expected.start_seconds
        if looked is None or start is None:
            return f"It is expected to {goes} with the next round, as things are now."
        ago = f"by the look at the queue {lasted(case.now - looked.timestamp())} ago, which lists show"
        return f"As things are now, it would {goes} with the next round; {ago}, in {span(start)}."
    if expected.start_seconds is not None:
        if max(expected.start_seconds.mean, expected.start_seconds.high or 0.0) < 0.5:
            return f"It is expected to {goes} in a moment."
        how = by_what(case, expected)
        return f"It is expected to {goes} in {span(expected.start_seconds)}{how}."
    if case.decision is not None and NO_END_HELPS in case.decision.message:
        return f"It does not {goes} before a quota, a limit, its specification or the cluster is changed."
    if expected.computed_at is None or expected.computed_at.timestamp() < case.job.waits_since:
        # Until its wait began, the job was paused by its owner or trained: that tells nothing of its start.
        came = "it came" if case.job.started_at is None else "it was paused"
        since = came if expected.computed_at is None else "its wait began"
        return (
            f"When it will {goes} cannot be said yet: that is worked out after each round, but was not since {since}."
        )
    if case.decision is not None and case.decision.reason == Reason.NO_FEASIBLE_NODE:
        return "It starts when a node has room for its tasks: when that is cannot be said."
    if stalled := _stalled_since_the_look(case):
        return (
            f"When it will {goes} cannot be said yet: at the last look at the queue that was likely with the end of "
            f"{named(stalled)}, and nothing tells any more when that is."
        )
    endless = _without_end_before(case)
    if not endless:
        return f"When it will {goes} cannot be said: nothing tells when there is room for it."
    ends = "it ends" if len(endless) == 1 else "they end"
    return f"When it will {goes} cannot be said: {named(endless)} may be in its way, and nothing tells when {ends}."


def _stalled_since_the_look(case: Case) -> list[JobRecord]:
    """Whose ends it was told to start with, and of which none is told since. The next look may know of others."""
    times = None if case.decision is None else case.decision.expected
    if times is None or times.start is None or case.now > times.valid_until:
        return []
    return [job for job in stalled_since(times, case.still) if job.id in case.others]


def by_what(case: Case, expected: answers.Expected) -> str:
    """What lets it start: an end, another job that is expected to lose tasks for it, or both together."""
    end, loser = _with_the_end_of(case, expected), frees_room(case)
    times = None if case.decision is None else case.decision.expected
    if loser is None or times is None:
        return end
    at_once = {job_id for job_id, part in times.at_once.items() if part > _LIKELY}
    if not end or not at_once:
        return f", likely when {_is_cut(case, loser)} for it"
    return end if loser.id in at_once else f"{end}, when {_is_cut(case, loser)} for it"


def _is_cut(case: Case, loser: JobRecord) -> str:
    """`one (job-1) is paused`, of a job that is expected to lose tasks."""
    times = case.decisions[loser.id].expected if loser.id in case.decisions else None
    pauses = times is not None and times.cut is not None and times.cut.pauses
    return f"{named([loser])} is {'paused' if pauses else 'made smaller'}"


def _with_the_end_of(case: Case, expected: answers.Expected) -> str:
    """Whose end the told start waits for, in the futures that it is told by."""
    times = None if case.decision is None else case.decision.expected
    likeliest = max(() if times is None else times.behind, key=lambda one: one.part, default=None)
    job = None if likeliest is None else likeliest.job
    if likeliest is None or times is None or job is None or job.id not in case.others or job.state.is_final:
        return ""
    if job.id in case.still and (fails_at := case.still[job.id].fails_at) is not None:
        again = f", perhaps when {named([job])} fails after step {fails_at} again, as its last try did"
        return again if likeliest.part > _LIKELY else ""
    if (part := times.at_once.get(job.id, 0.0)) > _LIKELY:
        if not _may_be_at_once(times, likeliest):
            return ""
        left, told = awaited_left(likeliest, case.now, {}), expected.start_seconds
        if left is not None and told is not None and told.mean > left.high + _ABOUT_SECONDS:
            return f", {'most likely ' if part < 1 else ''}after the end of {named([job])}"
        return f", {'most likely ' if part < 1 else ''}with the end of {named([job])}"
    if likeliest.part > _LIKELY:
        sure = "most likely " if likeliest.part < 1 else ""
        is_later = likeliest.part - part > _LIKELY and not _is_first(case)
        also = " and that of a job that starts before it" if is_later else ""
        return f", {sure}after the end of {named([job])}{also}"
    return ""


def started_with_ends(queue: Sequence[Queued], job_id: str) -> dict[str, set[str]]:
    """Those that wait before this job and are told to start with the end of another, by the id of that one."""
    found: dict[str, set[str]] = {}
    for each in takewhile(lambda one: one.job.id != job_id, queue):
        times = None if each.decision is None or each.start is None else each.decision.expected
        for ended, part in {} if times is None else times.at_once.items():
            if part > _LIKELY:
                found.setdefault(ended, set()).add(each.job.id)
    return found


def _is_first(case: Case) -> bool:
    """Whether the queue that everybody is shown has no job before it. Its futures may have one: another in each."""
    return bool(case.queue) and case.queue[0].job.id == case.job.id


def _may_be_at_once(times: ExpectedTimesRecord, one: Awaited) -> bool:
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
    """Jobs that nothing tells the end of: those before it in the queue that are told a start, and those that have
    tasks; where there are none of these, others before it. None that waits and has a lower priority: it may be before
    it only as its own start is not told at the moment. None of another project where its own may not borrow."""
    before = takewhile(lambda each: each.job.id != case.job.id, case.queue)
    is_within = case.decision is not None and case.decision.reason == Reason.WAITING_FOR_QUOTA and not case.may_borrow
    others = [each for each in case.others.values() if each.project == case.job.project or not is_within]
    ids = {each.id for each in others}
    known = [each for each in before if each.job.id in ids]
    starts = {each.job.id: each.start for each in known if each.job.asked.priority >= case.job.asked.priority}
    trains = (each.id for each in others if not each.wanted.is_empty and not each.is_being_cancelled)
    ends: Ends = {}

    def without_end(jobs: Iterable[str]) -> list[JobRecord]:
        return [
            case.others[each]
            for each in jobs
            if is_without_end(case.others[each], case.decisions.get(each), case.now, ends, case.still, starts.get(each))
        ]

    # Those before it that are told no start wait for the same as it.
    told = [each for each, start in starts.items() if start is not None]
    return without_end([*told, *trains]) or without_end(starts)


def named(jobs: Sequence[JobRecord], in_all: int | None = None) -> str:
    """Names of these, or of the first of so many `in_all`."""
    names = [f"{each.name} ({each.id})" for each in jobs[:_NAMED]]
    more = (len(jobs) if in_all is None else in_all) - len(names)
    return f"{', '.join(names)}{f' and {more} more' if more else ''}"


def until_places_are_left(leaving: Sequence[JobRecord]) -> list[str]:
    """What tasks wait for that have been given places which those of other jobs hold."""
    if not leaving:
        return []
    return [f"Its tasks may have to wait until those of {named(leaving)} have stopped: that takes some seconds."]


def on_the_end(case: Case, expected: answers.Expected) -> list[str]:
    if case.job.state.is_final or case.job.owner_paused_at is not None:
        return []
    passed = passed_limits(case.job, case.now)
    goes_on = [f"It has passed its limit ({' and '.join(passed)}) and goes on: nothing ends it outside the cluster."]
    if passed and case.decision is not None and case.decision.forecast.rule in passed:
        return goes_on
    return [*goes_on * bool(passed), *_on_the_end(case, expected)]


def _on_the_end(case: Case, expected: answers.Expected) -> list[str]:
    if not _retry_wait(case):
        if case.job.waits and (limit := reached_limit(case.job, case.decision, case.now)) is not None:
            return [f"It ends as soon as it goes on: {REACHED[limit]}."]
        if makes_no_more(case.job, case.still) and expected.finish_seconds is not None:
            return _on_the_end_of_its_steps(case, expected.finish_seconds)
    if why := _why_no_end(case, expected):
        return [f"{why[0]}{_at_the_latest(case)}", *why[1:]]
    return _on_the_expected_end(case, expected)


def _on_the_end_of_its_steps(case: Case, left: answers.Interval) -> list[str]:
    by_that, since = f"by that it may end in {span(left)}", silent_since(case.job)
    if not is_ending(case.job, case.still):
        return [f"It has made all steps that it announced and goes on, longer than predicted: {by_that}."]
    ago = "" if since is None else f", the last one {lasted(case.now - since)} ago"
    made = limit_made(case.job)
    if made is None and case.job.directive is Directive.FINISH:
        last = "" if since is None else f"Its last step came {lasted(case.now - since)} ago: it"
        return [f"{last or 'It'} is finishing, and {by_that}."]
    all_steps = "It has made all steps that it announced"
    if made is not None:
        all_steps = f"{REACHED[made][0].upper()}{REACHED[made][1:]}"
    return [f"{all_steps}{ago}: it is finishing, and {by_that}."]


def _why_no_end(case: Case, expected: answers.Expected) -> list[str]:
    """That nothing tells when it ends, and why; empty where something does. Its limits are told beside that."""
    if _retry_wait(case):
        return ["When it ends cannot be said before it goes on."]
    if progress_of(case.job, case.decision, case.now, None, case.still, case.speed).is_guessed:
        return _of_no_known_length(case)
    if expected.finish_seconds is None and case.job.step > 0 and (case.job.waits or has_failed_before(case.job)):
        return ["When it ends cannot be said before it goes on."]
    if expected.finish_seconds is None and case.job.id in case.still:
        hung_at, failed_at = case.still[case.job.id].hung_at, case.still[case.job.id].failed_at
        if failed_at is not None:
            return [f"When it ends cannot be said before it has passed step {failed_at}: its last try failed after it."]
        if case.still[case.job.id].is_unheard and hung_at is None:
            return ["When it ends can be said as soon as it is heard of again, within seconds if it trains."]
        if hung_at is None:
            return ["When it ends cannot be said while no step comes."]
        passed = f"has passed step {hung_at}, where its workers hung" if hung_at else "makes a step again"
        return [f"When it ends cannot be said before it {passed}."]
    if expected.finish_seconds is None and was_without_end(case.job, case.decision, case.now):
        return ["When it ends is told by the next look at the queue: at the last one nothing told whether it goes on."]
    if expected.finish_seconds is None:
        if case.job.waits and expected.start_seconds is None:
            goes = "starts" if case.job.started_at is None else "goes on"
            return [f"When it ends cannot be said before it {goes}."]
        return ["When it ends cannot be said yet: too little of its loss or speed is known."]
    return []


def _on_the_expected_end(case: Case, expected: answers.Expected) -> list[str]:
    assert expected.finish_seconds is not None
    if_so = "If its training goes on, it" if case.warnings else "It"
    ends = f"{if_so} is expected to end in {span(expected.finish_seconds)}"
    due = deadline_of(case.job.asked, case.job.created_at)
    meets = [*_on_steps_made_again(case), *_on_its_limit(case)]
    if due is not None and due > case.now:
        has_begun = _has_begun(case)
        is_missed = case.decision is not None and says_it_is_missed(case.decision.message)
        meets += by_deadline(
            expected.finish_seconds,
            due - case.now,
            has_begun=has_begun,
            is_said_missed=is_missed,
            is_claimed=case.decision is not None and case.decision.reason == Reason.MEETING_DEADLINE,
        )
    if case.job.is_tracked:  # no round changes its size
        return [f"{ends}.", *meets]
    if expected.computed_at is None:
        return [f"{ends} if it keeps what it has: later changes of size are not counted in yet.", *meets]
    counted_in = "waiting, stops, later changes of size and jobs that may still be submitted included"
    return [f"{ends}, {counted_in}.", *_on_changes_ahead(case, expected), *meets]


def _on_steps_made_again(case: Case) -> list[str]:
    """That the end counts on nothing of what it made, while a worker is replaced that had no checkpoint, as far as is
    known."""
    again = case.job.step - step_of(case.job, case.still)
    if case.job.waits or again <= 0:
        return []
    return [f"It is not known to have a checkpoint: without one, its {counted(again, 'step')} are made again."]


def _at_the_latest(case: Case) -> str:
    """When its limits of time and money end it."""
    rule, began = case.job.asked.convergence, case.job.started_at
    if case.job.is_tracked:
        return ""
    words = []
    if rule.max_seconds is not None and began is None:
        words.append(f"It ends {lasted(rule.max_seconds)} after its start at the latest: that is its limit.")
    elif rule.max_seconds is not None and began is not None and case.job.waits:
        over = foreseen(began + rule.max_seconds)  # without tasks nothing ends it
        until = "" if over is None else f": after {over:%Y-%m-%d %H:%M:%S} UTC, it ends as soon as it goes on"
        words.append(f"Its limit of {lasted(rule.max_seconds)} runs on{until}.")
    elif rule.max_seconds is not None and began is not None:
        left = time_words(began + rule.max_seconds - case.now)
        words.append(f"It ends in {left} at the latest: its limit is {lasted(rule.max_seconds)}.")
    if rule.max_cost is not None and case.seconds_paid < math.inf:
        size = allocation_body(case.job.intended)
        paid = paid_words(rule.max_cost, case.seconds_paid, size, has_begun=began is not None)
        words.append(f"{paid}: it ends then at the latest.")
    return "".join(f" {each}" for each in words)


def at_the_latest(job: JobRecord, now: float, seconds_paid: float) -> str:
    """The same of a job that is only thought of; `seconds_paid`: as of `Case`."""
    return _at_the_latest(Case(job=job, decision=None, now=now, seconds_paid=seconds_paid))


def paid_words(budget: float, seconds: float, size: answers.Allocation, *, has_begun: bool) -> str:
    """For how long a budget, or what is left of it, pays: for this size, or for the smallest where it is none."""
    whole = f"{'What is left of its' if has_begun else 'Its'} budget of {money_words(budget)}"
    having = size_of(size) if size.workers else "its smallest size"
    return f"{whole} pays for {time_words(seconds)} with {having}"


def _of_no_known_length(case: Case) -> list[str]:
    """Why nothing tells the end of a job that has trained, and what would. One without tasks has no speed, by which its
    limits of time and money would tell it."""
    rule, is_script = case.job.asked.convergence, is_of_a_script(case.job)
    has_limit = rule.max_seconds is not None or math.isfinite(case.seconds_paid)
    if has_limit and case.job.waits:
        return [f"When it ends cannot be said before it {'starts' if case.job.started_at is None else 'goes on'}."]
    untold = {each.what for each in untold_of(case.job, case.n_figures)}
    targets = [each for each in figures_asked(rule) if each.what not in untold]
    by_decrease = rule.loss_decrease is not None and not untold & {"loss", "epoch"}
    needed = [each.what for each in targets] or ["loss"] * (by_decrease or not is_script)
    few = [what for what in needed if case.n_figures.get(what, LEAST_POINTS) < LEAST_POINTS]
    if few:
        return [f"When it ends cannot be said yet: too little of its {' and its '.join(few)} is known."]
    told = [f"its {each.what} is not seen to come to {each.target:g}" for each in targets]
    if not told and (by_decrease or not is_script):
        told = ["its losses do not tell when its rule will hold"]
    if is_script:
        return _of_a_script_of_no_known_length(case, told)
    if has_limit:
        return ["Whether it ends before its limit cannot be said yet."]
    return [
        f"When it ends cannot be said: {' and '.join(told)}, and no limit of steps or time ends it.",
        f"`optimus set {case.job.id}` takes another rule, or such a limit: --max-epochs, --max-steps, --max-seconds.",
    ]


def _of_a_script_of_no_known_length(case: Case, told: Sequence[str]) -> list[str]:
    """`told`: why its rule does not tell its end, as far as the script tells what that needs."""
    if case.job.asked.command is None:
        why, read = "it does not tell how many steps it makes", ""
    else:
        why = "neither its command nor what it prints tells how many steps it makes"
        if not case.job.step:
            why = "it has told no step so far, and its command does not tell how many it makes"
        read = ", --progress-pattern reads it from its output"
    limit = f"`optimus set {case.job.id} --max-steps`" if told else "--max-steps"
    limits = "tells how many are expected" if case.job.is_tracked else "sets a limit"
    return [
        f"When it ends cannot be said: {', and '.join([*told, why])}.",
        f"`report(total_steps=...)` of optimus_client tells it{read}, and {limit} {limits}.",
    ]


def on_what_its_rule_needs(case: Case) -> list[str]:
    """That a part of its rule cannot hold, as it has not told what that needs."""
    if case.job.state.is_final or case.job.is_being_cancelled or makes_no_more(case.job, case.still):
        return []
    return [untold_words(each) for each in untold_of(case.job, case.n_figures)]


def _on_its_limit(case: Case) -> list[str]:
    """That its command or its loss may end it before its limit, or before all the steps that it announced, where the
    told number of steps does not show that."""
    forecast, rule = None if case.decision is None else case.decision.forecast, case.job.asked.convergence
    total = None if forecast is None else known(forecast.total_steps)
    announced = (case.job.profile or {}).get("total_steps")
    if forecast is not None and forecast.rule in LIMIT_RULES and case.job.is_tracked:
        return [f"That is by its limit ({forecast.rule}), at which nothing ends it: it runs outside the cluster."]
    if forecast is not None and forecast.rule == "max_steps" and case.job.asked.command and announced is None:
        return ["Its limit of steps ends it then, if its command does not end by itself before."]
    if forecast is not None and forecast.rule == "command_ends" and total is not None and total.low == total.high:
        # Of a task that has stopped early before, the number of steps is in doubt.
        return [
            f"By then it makes the {total.mean:,.0f} steps that it tells: it ends sooner if it stops by itself before."
        ]
    of_loss = (rule.loss_decrease, rule.target_loss, rule.target_metric)
    if forecast is None or total is None or forecast.rule not in ("max_steps", "max_epochs") or of_loss == (None,) * 3:
        return []
    if total.low < total.high:
        return []
    what = "metric" if rule.target_metric is not None else "loss"
    before = f"that its {what} does so before has a probability of less than 10 %"
    return [f"Its limit of {forecast.rule[4:]} is expected to end it: {before}."]


_OTHERWISE = 1.2
"""An end that is so many times as far as at the present size is told beside that one: something is expected between."""


def _on_changes_ahead(case: Case, expected: answers.Expected) -> list[str]:
    """What the present size would give, where another end is expected."""
    ahead = progress_of(case.job, case.decision, case.now, None, case.still, case.speed)
    here, left = ahead.at_its_size, expected.finish_seconds
    if case.job.waits or here is None or left is None or here.mean <= 0 or abs(left.mean - here.mean) < 5.0:
        return []
    if left.mean > _OTHERWISE * here.mean and (left.low is None or left.low > here.mean):
        # The look says when it ends, and not by whom it is delayed: no cause is told. Where its doubt has the other
        # end in it, as before the speed is measured, nothing need come between.
        return [f"At the size that it has, without waiting and stops, it would take {span(here)}."]
    if here.mean > _OTHERWISE * left.mean:
        # It may grow, or its newest speed be slower than that of the look: no cause is told.
        speed = "the speed that is predicted" if case.job.first_step is None else "its newest speed"
        return [f"At the size that it has, by {speed}, it would take {span(here)}."]
    return []


_WHY = {
    DEADLINE: "has a deadline",
    GUARANTEE: "is within what its project's quota guarantees",
    TURN: "will have waited so long by then that it goes first",
    PRIORITY: "has a higher priority",
    SOONER: "is expected to need less time",
    LESS: "has trained less until now",
}
"""What the job is for which another is expected to lose tasks."""


def on_a_cut_ahead(case: Case) -> list[str]:
    """That it is expected to be paused or made smaller, for whom and why."""
    job = case.job
    if job.state.is_final or job.waits or job.is_being_cancelled or job.is_tracked or job.owner_paused_at is not None:
        return []
    times = None if case.decision is None else case.decision.expected
    expected = progress_of(job, case.decision, case.now, None, case.still, case.speed).expected
    if times is None or times.cut is None or expected is None or expected.cut is None:
        return []
    other = case.others.get(times.cut.job_id)
    if other is not None and (other.state.is_final or other.is_being_cancelled):
        return []
    who = "another job" if other is None else named([other])
    gets = "gets more tasks" if other is not None and not other.waits else "starts"
    gets = "goes on" if other is not None and other.waits and other.started_at is not None else gets
    why = f", which {_WHY[times.cut.why]}" if times.cut.why in _WHY else ""
    return [f"It {expected.cut.words}, so that {who} {gets}{why}. Rounds decide that anew until then."]


def frees_room(case: Case) -> JobRecord | None:
    """The job that is expected to lose tasks so that this one, which waits, starts; None: none is, or the reader may
    not know of it."""
    times = None if case.decision is None else case.decision.expected
    if not case.job.waits or times is None or times.freed_by is None or case.now > times.valid_until:
        return None
    loser = case.others.get(times.freed_by)
    return None if loser is None or loser.state.is_final or loser.is_without_tasks else loser


def on_the_deadline(case: Case, expected: answers.Expected) -> list[str]:
    """Whether it is promised, and if not, which one would be."""
    due = deadline_of(case.job.asked, case.job.created_at)
    if due is None or case.job.state.is_final or case.job.is_tracked:
        return []
    is_promised = promised_at(case.job) is not None
    if case.job.owner_paused_at is not None:
        return [deadline_of_a_paused_job(due, case.now)]
    if due <= case.now:
        if is_promised:
            return ["Its deadline has passed, though it was promised."]
        return [f"Its deadline passed at {_at(due)}."] if case.job.waits else []
    if case.decision is not None and NO_END_HELPS in case.decision.message:
        kept = "was promised, but cannot be kept" if is_promised else f"at {_at(due)} cannot be promised"
        return [f"Its deadline {kept} as things are."]
    if is_promised:
        return [
            "Its deadline was promised: what keeping it takes goes before jobs that were promised none, which may "
            "start before it as long as it can wait. Guarantees of projects come first."
        ]
    left = expected.finish_seconds
    if expected.computed_at is None and not _has_begun(case):
        return ["Its deadline is not promised yet: the next look at the queue answers it."]
    if left is None or left.high is None:
        # That its message says what may be known all the same: it takes so long at least.
        is_missed = case.decision is not None and says_it_is_missed(case.decision.message)
        return [f"Its deadline is not promised{'' if is_missed else ': too little is known of its end'}."]
    said = answer_to(due, Interval(left.mean, left.low or 0.0, left.high), case.now)
    if said.answer is Answer.PROMISED:
        return []  # the next look at the queue says so
    by = None if said.earliest is None else foreseen(said.earliest)
    when = "" if by is None else f": it ends by {by:%Y-%m-%d %H:%M:%S} UTC with a probability of 95 %"
    return [f"Its deadline is not promised{when}."]


def _has_begun(case: Case) -> bool:
    return case.job.first_step is not None or case.job.step > 0


def deadline_of_a_paused_job(due: float, now: float) -> str:
    """Of a job that its owner paused: no round plans for its deadline."""
    if due <= now:
        return f"Its deadline passed at {_at(due)}."
    return f"Its deadline at {_at(due)} runs on: whether it can be promised is answered when it is resumed."


def _at(instant: float) -> str:
    return f"{moment(instant):%Y-%m-%d %H:%M:%S} UTC"
