"""What an explanation says of the past: what the last rescale cost and bought, stops, errors and retries. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import dropwhile, pairwise, takewhile, zip_longest
from operator import itemgetter
from typing import NamedTuple

from optimus_contract import answers
from optimus_contract.membership import PauseParts
from optimus_scheduler.model import JobState
from optimus_scheduler.model.format import lasted, time_words
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.format import counted, moment, size, times
from optimus_service.insight.jobs.lost_work import losses, total
from optimus_service.observe.spec import deadline_of, promised_at
from optimus_service.store.records import REPLACED, JobRecord, MembershipRecord


def last_rescale(case: Case) -> answers.RescaleEffect | None:
    """What the newest change of size cost and bought; None when there was none."""
    change = _last_change(case)
    return None if change is None else _effect(case, change)


class _Change(NamedTuple):
    """The whole way from a size that a decision gave to the next one, by numbers of memberships.

    Tasks come and leave one after the other, so that a job may train with other sizes on the way.
    """

    before: int
    first: int
    """The first one after the size before."""
    last: int
    """Where all tasks of the new size take part."""


def _last_change(case: Case) -> _Change | None:
    """The newest change of size that is done."""
    pairs = reversed(list(pairwise(_given(case))))
    return next((found for pair in pairs if (found := _change(case, *pair))), None)


def _change(case: Case, before: int, last: int) -> _Change | None:
    """None: it is of the same size, or of a job that had been paused, or went on after an error."""
    way = range(before + 1, last + 1)
    began = [number for number in way if case.memberships[number].cause in ("rescale", REPLACED)]
    causes = {case.memberships[number].cause for number in began}
    is_paused = any(not case.memberships[number].workers for number in (before, *way))
    if is_paused or "rescale" not in causes or _typed(case, before) == _typed(case, last):
        return None
    return _Change(before, began[0], last)


def _typed(case: Case, number: int) -> tuple[answers.Allocation, str | None]:
    return _members(case.memberships[number]), case.memberships[number].gpu_type


def _given(case: Case) -> list[int]:
    """The memberships of a size that a decision gave the job, and not one on the way to it, or after a loss."""
    began: dict[int, float] = {}
    for each in case.memberships:
        began.setdefault(each.generation, each.at)
    later = [each.generation for each in case.memberships[1:]]
    return [
        number
        for number, (each, next_generation) in enumerate(zip_longest(case.memberships, later))
        if _is_given(case, each, began[each.generation], is_last=next_generation != each.generation)
    ]


def _is_given(case: Case, membership: MembershipRecord, began: float, *, is_last: bool) -> bool:
    """`began`: when the first membership of its generation was formed. `is_last`: no later one is of that."""
    known = bisect_right(case.sizes_given, began, key=itemgetter(0))
    if not known:  # so long ago that no decision is kept
        return is_last and membership.cause not in _LOSSES
    # The clock of its coordinator may be behind that of the decisions, but no loss answers one.
    sizes = [size for _, size in case.sizes_given[known - 1 : known + (is_last and membership.cause not in _LOSSES)]]
    return any((len(membership.workers), len(membership.servers)) == (each.workers, each.servers) for each in sizes)


_LOSSES = frozenset({"worker_lost", "server_lost"})
_GOES_ON = _LOSSES | {"coordinator_restart", "batch", REPLACED}
"""Causes of a membership after which a job of the same size goes on with what its last change of size gave it."""


class _Training(NamedTuple):
    """What a job did in some of its memberships."""

    n_steps: int
    """Those among them that were lost later, too."""
    seconds: float
    """Without the stops."""

    @property
    def steps_per_second(self) -> float | None:
        """None: it trained too shortly to tell."""
        return self.n_steps / self.seconds if self.n_steps > 0 and self.seconds >= _LEAST_SECONDS else None


_LEAST_SECONDS = 5.0
"""Of training, that a speed is told from: the first steps of a membership are slow."""


def _training(case: Case, numbers: Iterable[int]) -> _Training:
    """What it did in these memberships, by number; the newest one goes on to the newest step that was told."""
    n_steps, seconds = 0, 0.0
    for number in numbers:
        began = case.memberships[number]
        if number + 1 < len(case.memberships):
            after = case.memberships[number + 1]
            n_steps += max(after.step + after.lost_steps - began.step, 0)
            seconds += max(_trained_until(case, number) - began.at, 0.0)
        elif case.job.step_at is not None:
            ended = case.job.step_at if case.job.finished_at is None else case.job.finished_at
            n_steps += max(case.job.step - began.step, 0)
            seconds += max(min(case.job.step_at, ended) - began.at, 0.0)  # of a service that was away steps come late
    return _Training(n_steps, seconds)


def _trained_until(case: Case, number: int) -> float:
    """When a membership that is not the newest, by number, made its last step, as far as that is known. Where the next
    one does not tell for how long no step was made, as after an error or an end: by its last step that was told."""
    membership, after = case.memberships[number], case.memberships[number + 1]
    until = membership.until(after.at - (after.pause_seconds or 0.0))
    last = case.last_steps.get(membership.epoch)
    if after.pause_seconds is not None or last is None:
        return until
    return min(until, last.at + last.report_seconds)


def _stood_still(case: Case, number: int) -> float | None:
    """Seconds before this membership, by number, in which no step was made; None: not known. A coordinator that was
    ended with all other tasks tells none: since the last step that was told of the membership before."""
    membership, last = case.memberships[number], case.last_steps.get(case.memberships[max(number - 1, 0)].epoch)
    if membership.cause != "coordinator_restart" or membership.pause_seconds is not None or last is None:
        return membership.pause_seconds
    return max(membership.at - last.at - last.report_seconds, 0.0)


def _before(case: Case, number: int) -> list[int]:
    """The memberships up to this one with which it had the same without another size between, newest first; those that
    lacked a lost task are left out."""
    found, size_then = [number], _members(case.memberships[number])
    while number > 0 and case.memberships[number].cause in _GOES_ON:
        number -= 1
        if _members(case.memberships[number]) == size_then:
            found.append(number)
    return found


def _since(case: Case, number: int) -> list[int]:
    """The same from this one on, oldest first."""
    later = range(number + 1, len(case.memberships))
    goes_on = takewhile(lambda each: case.memberships[each].cause in _GOES_ON, later)
    size_then = _members(case.memberships[number])
    return [number, *(each for each in goes_on if _members(case.memberships[each]) == size_then)]


def _effect(case: Case, change: _Change) -> answers.RescaleEffect:
    before, first, after = (case.memberships[number] for number in change)
    way = case.memberships[change.first : change.last + 1]
    stopped = sum(each.pause_seconds or 0.0 for each in way)
    with_it = _training(case, _since(case, change.last))
    between = _training(case, range(change.first, change.last))
    had = {*_before(case, change.before), *_since(case, change.before)}
    slow = _training(case, (each for each in sorted(had) if each < change.first)).steps_per_second
    fast = with_it.steps_per_second
    saved = None
    if slow and fast:
        # With the old size the steps made since would have taken their time at its speed, without the stops, and
        # without those that the change lost.
        made_by_now = with_it.n_steps + after.step - (first.step + first.lost_steps)
        saved = made_by_now / slow - (with_it.seconds + stopped + between.seconds)
    return answers.RescaleEffect(
        at=moment(after.at),
        before=_members(before),
        after=_members(after),
        stopped_seconds=stopped,
        pause_parts=None if after.pause_parts is None or len(way) > 1 else PauseParts(**after.pause_parts),
        lost_steps=sum(each.lost_steps for each in way),
        steps_per_second_before=slow,
        steps_per_second_after=fast,
        saved_seconds=saved,
    )


def size_before(case: Case) -> answers.Allocation | None:
    """The newest size that a decision gave the job, all of whose tasks took part; None: there was none."""
    given = _given(case)
    return _members(case.memberships[given[-1]]) if given else None


def on_the_last_rescale(case: Case, effect: answers.RescaleEffect | None) -> list[str]:
    found = _last_change(case)
    if effect is None or found is None:
        return []
    later = case.memberships[found.last + 1 :]
    is_final, has_none = case.job.state.is_final, case.job.running.is_empty
    newest = next((_members(each) for each in reversed(later) if each.workers), effect.after)
    # What it has now came with a pause, an error or a lost task, which is told elsewhere; or it has nothing.
    has_changed_since = newest != effect.after
    goes_on = not has_none and all(each.cause in _GOES_ON for each in later)
    is_over = is_final or not goes_on or has_changed_since
    which = " while it trained" if has_changed_since or (has_none and not is_final) else ""
    if is_changing(case.job):
        which = " before that"
    change = f"from {size(effect.before)} to {size(effect.after)}"
    at_most = "at most " * any(each.tells_some for each in case.memberships[found.first : found.last + 1])
    stopped = f"stopped training for {at_most}{time_words(effect.stopped_seconds)}{_parts(effect.pause_parts)}"
    cost = stopped if effect.stopped_seconds >= _SHORTEST_STOP else "did not stop training"
    if not is_final and (lost := _lost_by(case, found)):  # of an ended job all of its changes together
        cost += f" and lost {lost}" if effect.stopped_seconds >= _SHORTEST_STOP else f", but lost {lost}"
    since = "" if case.job.finished_at is not None else f", {lasted(case.now - effect.at.timestamp())} ago,"
    change_and_cost = f"Its last change of size{which}{since} {change} {_on_the_way(case, found)}{cost}"
    slow, fast, saved = effect.steps_per_second_before, effect.steps_per_second_after, effect.saved_seconds
    if slow is None or fast is None or saved is None:
        # A lost task may still be replaced, and the job goes on with what it had.
        is_known_never = is_final or not goes_on or (has_changed_since and not is_changing(case.job))
        measured = "was never measured" if is_known_never else "is not measured yet"
        return [f"{change_and_cost}; what it bought {measured}."]
    makes, has, far = ("made", "", "") if is_over else ("makes", "has ", " so far")
    bought = (
        f"{has}saved {time_words(saved)}{far}" if saved > 0 else f"{has}cost {time_words(-saved)} more than it saved"
    )
    return [f"{change_and_cost}; it {makes} {fast:.3g} steps per second instead of {slow:.3g}, which {bought}."]


def _lost_by(case: Case, change: _Change) -> str:
    found = losses(case.job, case.memberships, case.began, case.last_steps)
    return total(found[change.first : change.last + 1]).words


_SHORTEST_STOP = 0.05
"""Seconds, of which is told: a tenth is the smallest figure."""


def is_changing(job: JobRecord) -> bool:
    """Whether it trains with another size than it is to have."""
    if job.state.is_final or job.is_tracked or job.running.is_empty or job.wanted.is_empty:
        return False
    return (job.running.workers, job.running.servers) != (job.wanted.workers, job.wanted.servers)


def _on_the_way(case: Case, change: _Change) -> str:
    """`took 23 s, on the way with 1 worker and 2 servers, and `; empty of a change that was made at once."""
    way = case.memberships[change.first : change.last + 1]
    sizes = [size(_members(each)) for each in (case.memberships[change.before], *way[:-1])]
    sizes = [each for before, each in pairwise(sizes) if each != before]
    if not sizes:
        return ""
    took = way[-1].at - way[0].at + (way[0].pause_seconds or 0.0)
    listed = ", then ".join(sizes) if len(sizes) <= _MOST_SIZES else "other sizes"
    return f"took {time_words(took)}, on the way with {listed}, and "


_MOST_SIZES = 3
"""On the way of one change, which are told."""


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


def on_its_history(case: Case) -> list[str]:
    job = case.job
    if not job.state.is_final or job.finished_at is None:
        return []
    parts = [f"It took {lasted(job.finished_at - job.created_at)} from submission to end"]
    if job.started_at is not None and job.started_at - job.created_at >= 1:
        parts.append(f"{lasted(job.started_at - job.created_at)} of it before it started")
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
    trained = list(dropwhile(lambda each: not each.workers, case.memberships))  # what was before is its wait
    pauses = [(each.at, after.at) for each, after in pairwise(trained) if not each.workers]
    if trained and not trained[-1].workers:  # it did not train again
        pauses.append((trained[-1].at, max(job.finished_at, trained[-1].at)))
    without = [_had_tasks_again(case, *each) - each[0] for each in pauses]
    stopped_by_pauses = sum(trained_again - since + _quiet_before(case, since) for since, trained_again in pauses)
    stops = _stops(case)
    after_errors = sum(stops.get(at, 0.0) for at in case.errors)
    after_ends = sum(stops.get(at, 0.0) for at in case.ends)
    still = [_stood_still(case, number) for number in range(len(case.memberships))]
    stopped = sum(each or 0.0 for each in still) + stopped_by_pauses + after_errors + after_ends
    changed = f"was {f'changed {times(job.rescales)}' if job.rescales else 'never changed'} while it trained"
    if n_lost := sum(bool(_lost(case, number)) for number in range(len(case.memberships))):
        changed += f", it lost tasks {times(n_lost)}"
    if replaced := _times_replaced(case):
        changed += f", its tasks were replaced {times(replaced)} at the same size"
    if without:
        besides = " (waits for retries not counted)" if job.retries or case.errors else ""
        changed += f", and it was without tasks {times(len(without))}, for {lasted(sum(without))}{besides}"
    n_unknown = sum(
        each.cause == "coordinator_restart" and seconds is None
        for each, seconds in zip(case.memberships, still, strict=True)
    )
    changes = f" Its size {changed}; {_what_stopped_it(case, stopped, n_unknown)}."
    n_ends = sum(at < job.finished_at for at in case.ends)
    if job.retries or case.errors:
        cut = [at for at in case.errors if _ended_before_its_try(case, at) and _is_earlier(case, at)]
        changes += _on_retries(case, after_errors - sum(stops.get(at, 0.0) for at in cut))
    if n_ends:
        of_that = f", {lasted(apart)} of that time," if (apart := _had_ended_for(case)) >= 1.0 else ","
        changes += f" It had ended {times(n_ends)} before{of_that} and was resumed."
    if lost := total(losses(job, case.memberships, case.began, case.last_steps)).words:
        changes += f" Lost with its stops: {lost}."
    if case.silence_at_its_end is not None:
        ended = "failed" if job.state is JobState.FAILED else "was cancelled"
        changes += f" Before it {ended}, {case.silence_at_its_end}."
    elif (quiet := _quiet_at_its_end(case)) >= _LEAST_QUIET_SECONDS:
        changes += f" No step came in its last {lasted(quiet)}, which is not counted as a stop."
    is_told = job.first_step is not None or job.step > 0
    ended_at = "the last step that it told was" if job.asked.command is not None else "ended at step"
    at = f", and {ended_at} {job.step}" if is_told else ""
    return [f"{', '.join(parts)}{at}.{missed}{had}{changes if case.memberships else ''}"]


_LEAST_QUIET_SECONDS = 5.0
"""Less than that may be a step under way."""


def _quiet_before(case: Case, paused_at: float) -> float:
    """Seconds that no step came before a pause, of a job that hung then: less is its last step, and saving."""
    before = [each for each in case.last_steps.values() if each.at <= paused_at]
    if not before:
        return 0.0
    last = max(before, key=lambda each: each.at)
    began = max((each.at for each in case.memberships if each.workers and each.at < paused_at), default=last.at)
    quiet = paused_at - max(last.at + last.report_seconds, began)
    return quiet if quiet >= _LEAST_QUIET_SECONDS else 0.0


def _quiet_at_its_end(case: Case) -> float:
    """Seconds from the newest step, or the start of its last tasks, to the end of one that failed or was cancelled."""
    job = case.job
    if job.state is JobState.SUCCEEDED or not case.memberships or not case.memberships[-1].workers:
        return 0.0
    newest, finished = case.memberships[-1].at, job.finished_at or 0.0
    if any(newest <= at < finished for at in (*case.ends, *case.errors)):
        return 0.0  # it did not train after that, which is told
    return finished - max(job.step_at or 0.0, newest)


def on_lost_tasks(case: Case) -> list[str]:
    """What it lost last, and since when it has all again, while it goes on with what it had then."""
    if case.job.state.is_final or case.job.running.is_empty:
        return []
    goes_on = list(takewhile(lambda number: case.memberships[number].cause in _GOES_ON, _newest_first(case)))
    number = next((each for each in goes_on if _lost(case, each)), None)
    if number is None:
        return []
    names, whole = _lost(case, number), number - 1
    while whole and case.memberships[whole].cause in _LOSSES:
        whole -= 1
    had = _members(case.memberships[whole])
    what = ", ".join(names) if len(names) <= _MOST_NAMES else counted(len(names), "task")
    said = f"It lost {what}; it went on {lasted(case.now - case.memberships[number].at)} ago"
    since = next((each.at for each in case.memberships[number:] if _members(each) == had), None)
    still = case.still.get(case.job.id)
    is_gone = still is not None and still.is_replaced  # another one, since
    again = "" if since is None or is_gone else f", and has had {size(had)} again for {lasted(case.now - since)}"
    return [f"{said}{again}."]


_MOST_NAMES = 3
"""Of lost tasks, which are told."""


def _newest_first(case: Case) -> range:
    return range(len(case.memberships) - 1, 0, -1)


def _lost(case: Case, number: int) -> list[str]:
    """Names of the tasks that were lost when this membership began; none where only a connection broke."""
    if not number or case.memberships[number].cause not in _LOSSES:
        return []
    had, has = ({*each.workers, *each.servers} for each in case.memberships[number - 1 : number + 1])
    return sorted(had - has)


def _times_replaced(case: Case) -> int:
    """How often other tasks took the places of those that it had, none of which were lost."""
    ways = [range(before + 1, last + 1) for before, last in pairwise(_given(case))]
    return sum(
        case.memberships[way[-1]].cause == REPLACED and all(case.memberships[each].cause not in _LOSSES for each in way)
        for way in ways
    )


def _had_tasks_again(case: Case, since: float, trained_again: float) -> float:
    """When a job that had none from `since` on was given tasks again; until it trained with them, they had to start."""
    return min((each for each in case.starts if since < each < trained_again), default=trained_again)


def _what_stopped_it(case: Case, stopped: float, n_unknown: int) -> str:
    """For how long training was stopped, by what. A silence that ended by itself, or with the job, is not counted."""
    sizes = "size or batch" if any(each.cause == "batch" for each in case.memberships) else "size"
    if not stopped and not n_unknown:
        until = "until then " if case.job.state is JobState.FAILED else ""
        return f"{until}no change of {sizes}, lost task, pause or error stopped its training"
    at_most = "at most " * any(each.tells_some for each in case.memberships)
    known = [f"for {at_most}{lasted(stopped) if stopped >= 1.0 else time_words(stopped)} in all"] if stopped else []
    unknown = [f"{times(n_unknown)} for a time that is not known"] if n_unknown else []
    by = f"changes of {sizes}, lost or hung tasks, pauses or errors"
    return f"its training stood still {', and '.join(known + unknown)}, by {by}"


def _ended_before_its_try(case: Case, error_at: float) -> bool:
    """Whether it ended while it waited for its try after this error, or for room for it."""
    joined = (each.at for each in case.memberships if each.workers)
    tried_at = min((at for at in (*case.starts, *joined) if at > error_at), default=math.inf)
    ends = [*case.ends, math.inf if case.job.finished_at is None else case.job.finished_at]
    return any(error_at < at < min(tried_at, case.now) for at in ends)


def _is_earlier(case: Case, error_at: float) -> bool:
    """Whether it ended after this error, and was resumed later."""
    return any(error_at < at < (case.job.finished_at or case.now) for at in case.ends)


def _on_retries(case: Case, waited_seconds: float) -> str:
    """How often it was tried again. Some tries did not come, as it ended before that: the last time, or earlier."""
    cut = [at for at in case.errors if _ended_before_its_try(case, at)]
    waits = any(not _is_earlier(case, at) for at in cut)
    if not case.errors:  # they are not kept any more
        due, ended = case.job.retry_at, case.job.finished_at
        waits = due is not None and ended is not None and ended < due
    # `retries` counts from when its owner last resumed it.
    n_tries = max(case.job.retries - waits, len(case.errors) - len(cut))
    waited = f"waited {lasted(waited_seconds)} for" if waited_seconds else "waited for"
    if not n_tries:
        return f" After an error it {waited} another try, which did not come." if waits else ""
    tried = f" It was tried again {times(n_tries)} after an error"
    if waits:
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


def _had_ended_for(case: Case) -> float:
    """Seconds from its ends before its last one until it trained again."""
    joined = [each.at for each in case.memberships if each.workers]
    finished = case.job.finished_at or case.now
    firsts: dict[float, float] = {}
    for at in sorted(at for at in case.ends if at < finished):
        again = min((each for each in joined if each > at), default=finished)
        firsts.setdefault(again, at)
    return sum(again - at for again, at in firsts.items())


def _members(membership: MembershipRecord) -> answers.Allocation:
    return answers.Allocation(workers=len(membership.workers), servers=len(membership.servers))
