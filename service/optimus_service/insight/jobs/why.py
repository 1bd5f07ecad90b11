"""Why a job has what it has, in a sentence: the latest decision, and what lets an ended job train again. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optimus_contract.result import FormedAt, last_checkpoint, saved_by_stops
from optimus_scheduler.model import NOTHING, Allocation, JobState, Reason
from optimus_scheduler.model.format import IS_BEING_STOPPED, ITS_OWNER, retry_words, time_words
from optimus_service.insight.format import foreseen, moment
from optimus_service.insight.jobs.end import REACHED, reached_limit
from optimus_service.insight.jobs.reasons import ended_words, text_of
from optimus_service.observe.spec import begins_anew
from optimus_service.store.records import DecisionRecord, JobRecord, MembershipRecord


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has what it has, in words."""

    reason: str | None
    message: str
    what_would_change_it: str
    allocation: Allocation
    previous: Allocation
    limit_reached: str | None = None
    """Of a job that has not ended: the limit by which it ends, one without tasks as soon as it goes on, in words."""


def explain(
    job: JobRecord,
    decision: DecisionRecord | None,
    now: float,
    memberships: Sequence[MembershipRecord] | None = None,
) -> Explanation:
    """The latest decision in words; what ended the job when it ended; what it waits for before the first round.

    `memberships`: the job's; None: they were not read.
    """
    limit = reached_limit(job, decision, now)
    reached = None if limit is None else REACHED[limit]
    if job.state.is_final:
        message = ended_words(job, decision)
        return Explanation(
            None, message, f"Nothing: it has ended. {_again(job, reached, memberships)}", NOTHING, NOTHING
        )
    if job.is_being_cancelled and not job.is_tracked:
        change = text_of(Reason.CANCELLING).what_would_change_it
        return Explanation(Reason.CANCELLING, IS_BEING_STOPPED, change, NOTHING, job.running)
    if job.owner_paused_at is not None:
        return _paused_by_owner(job, job.owner_paused_at, limit)
    if decision is None:
        waits = "No scheduling round has looked at the job yet."
        return Explanation(None, waits, "The next scheduling round.", job.wanted, NOTHING, reached)
    # The message of a decision to wait for a retry has the whole wait, not what is left of it.
    if is_overtaken(job, decision, now) or decision.reason == Reason.WAITING_FOR_RETRY:
        return _before_the_next_round(job, now, reached)
    change = text_of(decision.reason).what_would_change_it
    return Explanation(decision.reason, decision.message, change, decision.allocation, decision.previous, reached)


def is_overtaken(job: JobRecord, decision: DecisionRecord, now: float) -> bool:
    """Whether the job has lost its tasks to an error, was resumed, or has waited for its retry since it was decided."""
    if not job.waits:
        return False
    if decision.reason in (Reason.PAUSED_BY_OWNER, Reason.CANCELLING):
        return True
    if decision.reason == Reason.WAITING_FOR_RETRY:
        return job.retry_at is None or job.retry_at <= now
    return not decision.allocation.is_empty and job.wanted_at is not None and decision.at < job.wanted_at


def _before_the_next_round(job: JobRecord, now: float, reached: str | None) -> Explanation:
    """Of a job whose decision is overtaken, or that waits for its retry."""
    decides = "The next scheduling round decides what it gets."
    if job.retry_at is None or job.retry_at <= now or job.last_error is None:
        return Explanation(None, decides, "The next scheduling round.", NOTHING, NOTHING, reached)
    message = retry_words(job.retry_at - now, job.retries, job.asked.retries, job.last_error)
    change = text_of(Reason.WAITING_FOR_RETRY).what_would_change_it
    return Explanation(Reason.WAITING_FOR_RETRY, message, change, NOTHING, NOTHING, reached)


AS_SPECIFIED = " Its specification stays what it was: what is wrong in that takes a new submission."


def _again(job: JobRecord, reached: str | None, memberships: Sequence[MembershipRecord] | None) -> str:
    """What lets an ended job train again; first what helps where its specification is at fault. `reached`: the limit by
    which it would end as soon as it goes on, in words."""
    if job.is_tracked:
        return "It ran outside the cluster: start it again where it ran."
    failed = job.state is JobState.FAILED
    if failed and job.loss is not None and not math.isfinite(job.loss):
        return _again_otherwise(job, reached, memberships)
    anew = f"`optimus retry {job.id}` runs it again from the beginning"
    if job.asked.command and not begins_anew(job):
        anew = f"`optimus retry {job.id}` runs it again as a new job, with what its command finds of its checkpoints"
    kept = AS_SPECIFIED if failed else ""
    if job.state is JobState.SUCCEEDED or job.step == 0:
        return f"{anew}.{kept}"
    if begins_anew(job):
        return f"{anew}, if it has no checkpoint: it is not known to have one.{kept}"
    if reached is not None:
        other = "" if job.asked.command else f"; `optimus submit --from {job.id}` starts another with its parameters"
        return f"{anew}{other}. Resumed, it would end as soon as it goes on: {reached}.{kept}"
    return f"`optimus resume {job.id}` lets it go on from {goes_on_from(job, memberships)}; {anew}.{kept}"


def _again_otherwise(job: JobRecord, reached: str | None, memberships: Sequence[MembershipRecord] | None) -> str:
    """A job whose loss was NaN or infinite: as it is specified it would be so again, and so may what it saved be.

    `reached`: a limit at which it ended, with what it saved there.
    """
    argument = "" if job.asked.command else " (an argument of its task with `--set NAME=VALUE`)"
    helps = f"Submit it again with what made its loss NaN or infinite changed, often a smaller learning rate{argument}."
    anew = f"`optimus retry {job.id}` runs the same again from the beginning."
    if job.step == 0 or begins_anew(job):
        return f"{helps} {anew}"
    if reached is not None:
        return f"{helps} {anew} Resumed, it would end as soon as it goes on: {reached}."
    saved = goes_on_from(job, memberships)
    resumed = f"`optimus resume {job.id}` lets the same go on from {saved}"
    if not job.asked.command:
        resumed += f", and `optimus submit --from {job.id}` starts another with the parameters of that"
    return f"{helps} {resumed}: of use only if its loss was a number there. {anew}"


def goes_on_from(job: JobRecord, memberships: Sequence[MembershipRecord] | None) -> str:
    """The checkpoint that a job without tasks goes on from, and of which step it is as far as that is known.

    `memberships`: the job's; None: they were not read.
    """
    stopped = job.wanted_at if job.finished_at is None else job.finished_at
    every = None if job.asked.command else job.asked.checkpoint_seconds  # a script saves when it likes
    began, saved = job.started_at, 0
    if memberships is None:
        began = began if job.membership_epoch <= 1 else None  # a stop since then may have saved more
    elif every is not None:
        formed = [FormedAt(each.at, each.step, each.cause, each.lost_steps) for each in memberships]
        saved, began = saved_by_stops(formed, began)
    trained = None if began is None or stopped is None else stopped - began
    return last_checkpoint((job.result or {}).get("checkpoint"), job.step, trained, every, saved)


def _paused_by_owner(job: JobRecord, since: float, limit: str | None) -> Explanation:
    """`limit`: the field of the one that it has reached."""
    leaves = "its tasks save what they can and leave" if job.running.workers else "it gets nothing until it is resumed"
    message = f"Paused by {job.paused_by or ITS_OWNER} since {moment(since):%Y-%m-%d %H:%M:%S} UTC: {leaves}."
    change = f"`optimus resume {job.id}` lets it go on."
    if limit is None:
        message += _on_time_that_runs(job)
        return Explanation(Reason.PAUSED_BY_OWNER, message, change, NOTHING, job.running)
    message += f" {REACHED[limit].capitalize()}: it ends as soon as it goes on."
    larger = f"`optimus set {job.id} --{limit.replace('_', '-')} ...`"
    change = f"`optimus resume {job.id}` only ends it; with a larger limit before that ({larger}) it goes on."
    return Explanation(Reason.PAUSED_BY_OWNER, message, change, NOTHING, job.running, REACHED[limit])


def _on_time_that_runs(job: JobRecord) -> str:
    """That the pause of a job does not stop its limit of time."""
    limit = job.asked.convergence.max_seconds
    if limit is None or job.started_at is None or (over := foreseen(job.started_at + limit)) is None:
        return ""
    until = f"{over:%Y-%m-%d %H:%M:%S} UTC"
    return f" Its limit of {time_words(limit)} runs on: resumed after {until}, it ends as soon as it goes on."
