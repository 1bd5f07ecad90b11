"""A job's life as a transition table: events come in, a new status and effects go out.

::

              MembershipFormed              ResultReported
    queued ───────────────────▶ running ─────────────────────▶ succeeded
       │                         │  ▲  │                  └──▶ failed  ◀── TooManyFailures
       │                  Paused ▼  │  │
       │                        paused │ MembershipFormed
       │                               │
       └── CancelRequested ────────────┴── CancelRequested … AllTasksGone ──▶ cancelled

A failure of the owner's code after a first step leads to `paused` and another *attempt* from the last checkpoint, as
often as the job's `retries` allow; `ResumeRequested` leads there from `failed` and `cancelled`. What belongs to an
older attempt than the present one says nothing about the job any more.

`PauseRequested` leads to `paused` as well, from all three states, once no task is left; the job stays there until
`ResumeRequested`, which takes one that never trained back to `queued`.

`advance` does nothing but compute. The shell that calls it (the store, in one transaction) persists the status and
carries the effects out. An event that has no rule in a state is an `InvalidTransition`; events that are harmless
leftovers of a race (a late "all tasks are gone" of a finished job) have a rule that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from optimus_scheduler.model import LIMIT_RULES, Allocation, Directive, JobState
from optimus_scheduler.model.format import ITS_OWNER, headline, size_words
from optimus_scheduler.retries import DEFAULT_RETRIES

STORY_LENGTH = 20
"""Events kept in `JobStatus.story`: enough to understand a wrong turn, bounded so that statuses stay small."""


JOB_FAILED = "JobFailed"
NOT_RETRIED = "NotRetried"
"""Type of the event that says why a job that may have retries is not tried again."""
JOB_CANCELLED = "JobCancelled"
"""Types of the events of ends that were not reached."""
CONVERGED, LIMIT_REACHED = "Converged", "LimitReached"
"""Types of the event by which a job is being finished."""
CANCEL_REQUESTED = "CancelRequested"
JOB_PAUSED = "JobPaused"
PAUSED_BY_OWNER = "PausedByOwner"
"""Types of the events from which on a job's tasks stop, or are gone."""


class Outcome(StrEnum):
    """How a job's coordinator says that training ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TasksGranted:
    """A round gave tasks to a job that had none."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class MembershipFormed:
    """The job's coordinator began a membership epoch that trains."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The job's coordinator wrote a checkpoint and let its tasks go."""


@dataclass(frozen=True, slots=True)
class ConvergenceReached:
    """A part of the convergence rule holds."""

    rule: str
    """Field name of `ConvergenceRule`."""


@dataclass(frozen=True, slots=True)
class ResultReported:
    """The job's coordinator reported the end. May be reported again."""

    outcome: Outcome
    step: int
    final_loss: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    error: str | None = None
    """With `FAILED`: what went wrong."""
    checkpoint: str | None = None
    """Where the last checkpoint is: a path or URL that the job's tasks can read."""
    model: str | None = None
    """Where the trained model is, likewise."""
    attempt: int | None = None
    """Which attempt ended; None: the present one."""
    permanent: bool = False
    """With `FAILED`: another attempt would fail likewise."""


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The owner does not want the job any more."""

    has_tasks: bool = False
    """Whether tasks of the job may be alive. A wrong False is harmless: tasks of ended jobs are stopped."""


@dataclass(frozen=True, slots=True)
class AllTasksGone:
    """The cluster has no live task of the job."""


@dataclass(frozen=True, slots=True)
class TooManyFailures:
    """The job's tasks keep failing; starting them again was given up."""

    message: str
    error: str | None = None
    """What the owner's code raised; None: the tasks crashed, which is no error that `retries` are for."""
    attempt: int | None = None
    """Which attempt they belong to; None: the present one."""


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """The owner, or who may act for the owner, wants the job to have nothing until further notice."""

    has_tasks: bool = False
    """Whether tasks of the job may be alive."""
    by: str = ITS_OWNER
    """Who that is, in words."""


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """The owner, or who may act for the owner, wants an ended job to go on from its last checkpoint, or one that was
    paused to have tasks again."""

    by: str = ITS_OWNER
    """Who that is, in words."""


Event = (
    TasksGranted
    | MembershipFormed
    | Paused
    | ConvergenceReached
    | ResultReported
    | CancelRequested
    | AllTasksGone
    | TooManyFailures
    | PauseRequested
    | ResumeRequested
)


# --- what comes out --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where a job is in its life."""

    state: JobState
    directive: Directive = Directive.RUN
    failure: str | None = None
    """Why it failed; None unless it did."""
    has_trained: bool = False
    """Whether it made a step: an error before the first one is no accident."""
    attempt: int = 0
    """Counts the times that training began anew from a checkpoint, after a failure or because the owner asked."""
    retries: int = 0
    """How many of these were retries after a failure, since the owner last asked ..."""
    most_retries: int = DEFAULT_RETRIES
    """... and how many of these the job may have."""
    is_retry_in_time: bool = True
    """Whether the next one would begin before the job's limit of time is over."""
    waits_for_retry: bool = False
    """Whether the wait before the next one is not over."""
    tells_steps: bool = True
    """False: it is a command, whose steps are known only if it tells them."""
    owner_paused: bool = False
    paused_by: str | None = None
    """Who took what it had, in words; None: nobody, or not known."""
    """Its owner wants it to have nothing for now."""
    story: tuple[str, ...] = field(default=(), compare=False)
    """The last events, oldest first, for error messages only: a shell that stores events gives these."""


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Write this into the job's event list."""

    type: str
    message: str


@dataclass(frozen=True, slots=True)
class MarkStarted:
    """Set the job's start time, unless it has one."""


@dataclass(frozen=True, slots=True)
class MarkFinished:
    """Set the job's end time."""


@dataclass(frozen=True, slots=True)
class StoreResult:
    """Keep what the coordinator reported."""

    result: ResultReported


@dataclass(frozen=True, slots=True)
class ScheduleRetry:
    """Take the job's tasks away, and keep it from new ones for the wait before retry `number`."""

    number: int
    most: int
    error: str
    """What the owner's code raised, in one line."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """Forget the job's end: its time, its result."""

    error: str | None
    """What it had failed with, in one line: it may do so again. None: it was cancelled."""


@dataclass(frozen=True, slots=True)
class ForgetPredictions:
    """What was predicted of the job's end is not to be judged: nobody could know that its owner would pause it, or that
    its code would fail."""


@dataclass(frozen=True, slots=True)
class EndRetryWait:
    """Let the job have tasks at once: its owner asks for them, whatever is left of the wait after an error."""


Effect = (
    EmitEvent | MarkStarted | MarkFinished | StoreResult | ScheduleRetry | Reopen | ForgetPredictions | EndRetryWait
)


class InvalidTransition(Exception):
    """An event arrived that the job's state has no rule for. Carries the status and the event."""

    def __init__(self, status: JobStatus, event: Event) -> None:
        self.status = status
        self.event = event
        story = " → ".join(status.story) or "nothing known"
        super().__init__(
            f"{type(event).__name__} has no rule for a job that is {status.state} "
            f"(directive {status.directive}); what happened before: {story}"
        )


Outcomes = tuple[JobStatus, tuple[Effect, ...]]


def advance(status: JobStatus, event: Event) -> Outcomes:
    """The status after `event`, and what the shell has to do about it.

    Raises:
        InvalidTransition: the event has no rule in this state.
    """
    transition = _TRANSITIONS.get((status.state, type(event)))
    if transition is None:
        raise InvalidTransition(status, event)
    after, effects = transition(status, event)
    if after.state.is_final:
        after = replace(after, owner_paused=False, paused_by=None)
    story = (*status.story, f"{status.state} + {type(event).__name__}")[-STORY_LENGTH:]
    return replace(after, story=story), effects


# --- the transitions -------------------------------------------------------------------------------------------------


def _ignore(status: JobStatus, _event: Event) -> Outcomes:
    return status, ()


def _grant(status: JobStatus, event: Event) -> Outcomes:
    assert isinstance(event, TasksGranted)
    directive = Directive.RUN if status.directive is Directive.PAUSE else status.directive
    words = size_words(event.allocation)
    return replace(status, directive=directive), (EmitEvent("TasksGranted", f"The job was given {words}."),)


def _start(status: JobStatus, _event: Event) -> Outcomes:
    started = EmitEvent("JobStarted", "Training started.")
    return replace(status, state=JobState.RUNNING), (MarkStarted(), started)


def _resume(status: JobStatus, _event: Event) -> Outcomes:
    by = status.paused_by if status.owner_paused else None
    after = replace(status, state=JobState.RUNNING, paused_by=by)
    return after, (EmitEvent("JobResumed", "Training goes on."),)


def _pause(status: JobStatus, _event: Event) -> Outcomes:
    waits = "to be resumed" if status.owner_paused else "for resources"
    by = f", paused by {status.paused_by}" if status.paused_by else ""
    message = f"Training stopped{by}; it goes on from what its tasks had saved, if they did; the job waits {waits}."
    return replace(status, state=JobState.PAUSED), (EmitEvent(JOB_PAUSED, message),)


def _pause_unstarted(status: JobStatus, _event: Event) -> Outcomes:
    """Paused before the first membership was formed: it waits on, or has been paused by its owner."""
    return (replace(status, state=JobState.PAUSED) if status.owner_paused else status), ()


def _converge(status: JobStatus, event: Event) -> Outcomes:
    assert isinstance(event, ConvergenceReached)
    if status.directive in (Directive.FINISH, Directive.CANCEL) or status.owner_paused:
        return status, ()  # a paused job has nothing to finish with: the rule is looked at when it goes on
    is_limit = event.rule in LIMIT_RULES
    what = "The job has reached its limit" if is_limit else "The convergence rule holds"
    noted = EmitEvent(LIMIT_REACHED if is_limit else CONVERGED, f"{what} ({event.rule}); it is being finished.")
    return replace(status, directive=Directive.FINISH), (noted,)


def _end(status: JobStatus, event: Event) -> Outcomes:
    assert isinstance(event, ResultReported)
    if _is_over(status, event.attempt):
        return status, ()
    status = _as_told(status, event.attempt)
    if event.outcome is Outcome.SUCCEEDED:
        after = replace(status, state=JobState.SUCCEEDED)
        done = f"Done at step {event.step}." if event.step else "Done."  # some commands tell no step
        return after, (StoreResult(event), MarkFinished(), EmitEvent("JobSucceeded", done))
    if status.directive is Directive.CANCEL:
        # Tasks that are being stopped fail in many ways; what the owner asked for is what happened.
        return _cancelled(status, StoreResult(event))
    failure = event.error or "the job's tasks reported a failure without saying why"
    if not event.permanent and _may_retry(status):
        return _retry(status, failure)
    after = replace(status, state=JobState.FAILED, failure=failure)
    why = () if event.permanent else _told_of_retry(status)
    return after, (StoreResult(event), MarkFinished(), EmitEvent(JOB_FAILED, headline(failure)), *why)


def _give_up(status: JobStatus, event: Event) -> Outcomes:
    assert isinstance(event, TooManyFailures)
    if _is_over(status, event.attempt):
        return status, ()
    if status.directive is Directive.CANCEL:
        return _cancelled(status)
    if event.error is not None and _may_retry(status):
        return _retry(status, event.error)
    after = replace(status, state=JobState.FAILED, directive=Directive.CANCEL, failure=event.message)
    why = () if event.error is None else _told_of_retry(status)
    return after, (MarkFinished(), EmitEvent(JOB_FAILED, headline(event.message)), *why)


def _is_over(status: JobStatus, attempt: int | None) -> bool:
    return attempt is not None and attempt < status.attempt


def _as_told(status: JobStatus, attempt: int | None) -> JobStatus:
    """Tasks may know of later attempts than this status, which is then of an older backup: the next one is beyond."""
    return replace(status, attempt=max(status.attempt, attempt or 0))


def _may_retry(status: JobStatus) -> bool:
    return status.has_trained and status.retries < status.most_retries and status.is_retry_in_time


_LATE_RETRY = EmitEvent(NOT_RETRIED, "It is not tried again: its limit of time would be over before that.")
_NO_STEP_TOLD = EmitEvent(NOT_RETRIED, "It is not tried again: it had told no step before its error.")


def _told_of_retry(status: JobStatus) -> tuple[EmitEvent, ...]:
    """Of a job that fails with an error that it might be tried again after."""
    if status.retries >= status.most_retries:
        return ()
    if not status.has_trained:
        return () if status.tells_steps else (_NO_STEP_TOLD,)
    return () if status.is_retry_in_time else (_LATE_RETRY,)


def _retry(status: JobStatus, error: str) -> Outcomes:
    """Pause, as tasks that are still there can write a checkpoint then."""
    number = status.retries + 1
    after = replace(
        status, state=JobState.PAUSED, directive=Directive.PAUSE, attempt=status.attempt + 1, retries=number
    )
    return after, (ScheduleRetry(number, status.most_retries, headline(error)), ForgetPredictions())


def _reopen(status: JobStatus, _event: Event) -> Outcomes:
    after = JobStatus(
        JobState.PAUSED,
        has_trained=status.has_trained,
        attempt=status.attempt + 1,
        most_retries=status.most_retries,
        story=status.story,
    )
    error = None if status.failure is None else headline(status.failure)
    return after, (
        Reopen(error),
        ForgetPredictions(),
        EmitEvent("ResumeRequested", "Going on from the last checkpoint was asked for."),
    )


def _pause_for_owner(status: JobStatus, event: Event) -> Outcomes:
    assert isinstance(event, PauseRequested)
    if status.directive in (Directive.FINISH, Directive.CANCEL):
        raise InvalidTransition(status, event)
    if status.owner_paused:
        return status, ()
    stops = status.state is JobState.RUNNING or event.has_tasks
    state = status.state if stops else JobState.PAUSED
    after = replace(status, state=state, directive=Directive.PAUSE, owner_paused=True, paused_by=event.by)
    what = "its tasks save what they can and leave" if stops else "it gets no tasks"
    return after, (ForgetPredictions(), EmitEvent(PAUSED_BY_OWNER, f"{_capital(event.by)} paused the job: {what}."))


def _go_on(status: JobStatus, event: Event) -> Outcomes:
    """Ends a pause, or the wait after an error. A repetition of the request that brought an ended job back changes
    nothing."""
    assert isinstance(event, ResumeRequested)
    if not status.owner_paused:
        if status.waits_for_retry:
            words = f"{_capital(event.by)} ended the wait after an error: the job may have tasks again."
            return replace(status, waits_for_retry=False), (EndRetryWait(), EmitEvent("ResumedByOwner", words))
        if status.attempt == status.retries:
            raise InvalidTransition(status, event)
        return status, ()
    unstarted = status.state is JobState.PAUSED and not status.has_trained
    after = replace(status, state=JobState.QUEUED if unstarted else status.state, owner_paused=False, paused_by=None)
    words = f"{_capital(event.by)} resumed the job: it may have tasks again."
    return after, (EndRetryWait(), EmitEvent("ResumedByOwner", words))


def _capital(words: str) -> str:
    """As a sentence begins; the name of a user stays as it is."""
    return words[:1].upper() + words[1:] if words.startswith(("its ", "the ")) else words


def _repeat(status: JobStatus, event: Event) -> Outcomes:
    assert isinstance(event, ResultReported)
    if _is_over(status, event.attempt):
        return status, ()
    if event.outcome.value != status.state.value:
        raise InvalidTransition(status, event)
    return status, ()


def _cancel(status: JobStatus, event: Event) -> Outcomes:
    assert isinstance(event, CancelRequested)
    if status.directive is Directive.CANCEL and event.has_tasks:
        return status, ()
    requested = EmitEvent(CANCEL_REQUESTED, "Cancelling was asked for.")
    if status.state is JobState.RUNNING or event.has_tasks:
        return replace(status, directive=Directive.CANCEL), (requested,)
    return _cancelled(replace(status, directive=Directive.CANCEL), requested)


def _cancel_running(status: JobStatus, _event: Event) -> Outcomes:
    """A running job has tasks whatever the caller believes: it ends when they are gone."""
    return _cancel(status, CancelRequested(has_tasks=True))


def _tasks_gone(status: JobStatus, event: Event) -> Outcomes:
    """Ends a cancelled job and completes a pause. Without such a directive, lost tasks are simply replaced."""
    if status.directive is Directive.CANCEL:
        return _cancelled(status)
    if status.directive is Directive.PAUSE and status.state is JobState.RUNNING:
        return _pause(status, event)
    if status.state is JobState.QUEUED:
        return _pause_unstarted(status, event)
    return status, ()


def _cancelled(status: JobStatus, *before: Effect) -> Outcomes:
    after = replace(status, state=JobState.CANCELLED)
    return after, (*before, MarkFinished(), EmitEvent(JOB_CANCELLED, "The job was cancelled."))


_Transition = Callable[[JobStatus, Event], Outcomes]

_TRANSITIONS: dict[tuple[JobState, type[Event]], _Transition] = {
    (JobState.QUEUED, TasksGranted): _grant,
    (JobState.QUEUED, MembershipFormed): _start,
    (JobState.QUEUED, Paused): _pause_unstarted,
    (JobState.QUEUED, ResultReported): _end,  # code that does not load fails before any membership
    (JobState.QUEUED, CancelRequested): _cancel,
    (JobState.QUEUED, AllTasksGone): _tasks_gone,
    (JobState.QUEUED, TooManyFailures): _give_up,
    (JobState.QUEUED, PauseRequested): _pause_for_owner,
    (JobState.QUEUED, ResumeRequested): _go_on,
    (JobState.RUNNING, TasksGranted): _grant,
    (JobState.RUNNING, MembershipFormed): _ignore,
    (JobState.RUNNING, Paused): _pause,
    (JobState.RUNNING, ConvergenceReached): _converge,
    (JobState.RUNNING, ResultReported): _end,
    (JobState.RUNNING, CancelRequested): _cancel_running,
    (JobState.RUNNING, AllTasksGone): _tasks_gone,
    (JobState.RUNNING, TooManyFailures): _give_up,
    (JobState.RUNNING, PauseRequested): _pause_for_owner,
    (JobState.RUNNING, ResumeRequested): _go_on,
    (JobState.PAUSED, TasksGranted): _grant,
    (JobState.PAUSED, MembershipFormed): _resume,
    (JobState.PAUSED, Paused): _ignore,
    (JobState.PAUSED, ConvergenceReached): _converge,
    (JobState.PAUSED, ResultReported): _end,
    (JobState.PAUSED, CancelRequested): _cancel,
    (JobState.PAUSED, AllTasksGone): _tasks_gone,
    (JobState.PAUSED, TooManyFailures): _give_up,
    (JobState.PAUSED, PauseRequested): _pause_for_owner,
    (JobState.PAUSED, ResumeRequested): _go_on,
    (JobState.SUCCEEDED, ResultReported): _repeat,
    (JobState.FAILED, ResultReported): _repeat,
    (JobState.CANCELLED, ResultReported): _ignore,  # it ended by itself while it was being stopped
    (JobState.SUCCEEDED, AllTasksGone): _ignore,
    (JobState.FAILED, AllTasksGone): _ignore,
    (JobState.CANCELLED, AllTasksGone): _ignore,
    (JobState.FAILED, ResumeRequested): _reopen,
    (JobState.CANCELLED, ResumeRequested): _reopen,
    # The round that gives up read the job a moment ago; it may have ended since.
    (JobState.SUCCEEDED, TooManyFailures): _ignore,
    (JobState.FAILED, TooManyFailures): _ignore,
    (JobState.CANCELLED, TooManyFailures): _ignore,
}
