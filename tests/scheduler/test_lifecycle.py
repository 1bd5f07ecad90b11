"""The life of a job: the table's rules, and what holds after any sequence of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.lifecycle import (
    JOB_FAILED,
    NOT_RETRIED,
    AllTasksGone,
    CancelRequested,
    ConvergenceReached,
    Effect,
    EmitEvent,
    EndRetryWait,
    Event,
    ForgetPredictions,
    InvalidTransition,
    JobStatus,
    MarkFinished,
    MarkStarted,
    MembershipFormed,
    Outcome,
    Paused,
    PauseRequested,
    Reopen,
    ResultReported,
    ResumeRequested,
    ScheduleRetry,
    StoreResult,
    TasksGranted,
    TooManyFailures,
    advance,
)
from optimus_scheduler.model import Allocation, Directive, JobState

SUCCESS = ResultReported(Outcome.SUCCEEDED, step=100, final_loss=0.1)
FAILURE = ResultReported(Outcome.FAILED, step=7, error="ValueError: no such file")
QUEUED = JobStatus(JobState.QUEUED)
RUNNING = JobStatus(JobState.RUNNING)

events = st.sampled_from(
    [
        TasksGranted(Allocation(1, 1)),
        MembershipFormed(1),
        Paused(),
        ConvergenceReached("loss_decrease"),
        SUCCESS,
        FAILURE,
        CancelRequested(has_tasks=False),
        CancelRequested(has_tasks=True),
        AllTasksGone(),
        TooManyFailures("worker 0 failed 5 times"),
        TooManyFailures("its code failed", "OSError: no such device"),
        TooManyFailures("its code failed", "OSError: no such device", attempt=0),
        replace(FAILURE, attempt=0),
        replace(FAILURE, attempt=1),
        PauseRequested(),
        PauseRequested(has_tasks=True),
        ResumeRequested(),
    ]
)


def live(*sequence: Event, status: JobStatus = QUEUED) -> tuple[JobStatus, list[Effect]]:
    effects: list[Effect] = []
    for event in sequence:
        status, more = advance(status, event)
        effects += more
    return status, effects


def test_ordinary_life() -> None:
    status, effects = live(
        TasksGranted(Allocation(1, 1)), MembershipFormed(1), ConvergenceReached("target_loss"), SUCCESS
    )
    assert status.state is JobState.SUCCEEDED
    assert [effect.type for effect in effects if isinstance(effect, EmitEvent)] == [
        "TasksGranted",
        "JobStarted",
        "Converged",
        "JobSucceeded",
    ]
    assert MarkStarted() in effects
    assert effects.count(MarkFinished()) == 1
    assert StoreResult(SUCCESS) in effects


@pytest.mark.parametrize(("rule", "told"), [("loss_decrease", "Converged"), ("max_seconds", "LimitReached")])
def test_a_limit_that_is_reached_is_no_convergence(rule: str, told: str) -> None:
    _, effects = live(MembershipFormed(1), ConvergenceReached(rule))
    (event,) = [each for each in effects if isinstance(each, EmitEvent) and f"({rule})" in each.message]
    assert event.type == told
    assert ("convergence" in event.message) is (told == "Converged")


def test_convergence_leaves_the_job_running() -> None:
    status, _ = live(MembershipFormed(1), ConvergenceReached("loss_decrease"))
    assert status == JobStatus(JobState.RUNNING, Directive.FINISH)


def test_convergence_does_not_undo_a_cancellation() -> None:
    status, effects = live(CancelRequested(has_tasks=True), ConvergenceReached("loss_decrease"), status=RUNNING)
    assert status.directive is Directive.CANCEL
    assert [effect.type for effect in effects if isinstance(effect, EmitEvent)] == ["CancelRequested"]


def test_pause_and_resume() -> None:
    status, _ = live(MembershipFormed(1), Paused())
    assert status.state is JobState.PAUSED
    status, effects = live(MembershipFormed(2), status=status)
    assert status.state is JobState.RUNNING
    assert MarkStarted() not in effects


def test_grant_ends_a_pause_directive() -> None:
    paused = JobStatus(JobState.PAUSED, Directive.PAUSE)
    status, _ = live(TasksGranted(Allocation(1, 1)), status=paused)
    assert status == JobStatus(JobState.PAUSED, Directive.RUN)


def test_lost_tasks_complete_a_pause() -> None:
    status, _ = live(AllTasksGone(), status=JobStatus(JobState.RUNNING, Directive.PAUSE))
    assert status.state is JobState.PAUSED


def test_lost_tasks_of_a_wanted_job_change_nothing() -> None:
    assert live(AllTasksGone(), status=RUNNING) == (RUNNING, [])


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PAUSED])
def test_cancel_without_tasks_is_immediate(state: JobState) -> None:
    status, effects = live(CancelRequested(), status=JobStatus(state))
    assert status.state is JobState.CANCELLED
    assert MarkFinished() in effects


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.PAUSED])
def test_cancel_with_tasks_waits_for_them(state: JobState) -> None:
    status, _ = live(CancelRequested(has_tasks=True), status=JobStatus(state))
    assert status == JobStatus(state, Directive.CANCEL)
    status, _ = live(AllTasksGone(), status=status)
    assert status.state is JobState.CANCELLED


def test_running_job_waits_for_its_tasks_whatever_the_caller_says() -> None:
    status, _ = live(CancelRequested(has_tasks=False), CancelRequested(has_tasks=False), status=RUNNING)
    assert status == JobStatus(JobState.RUNNING, Directive.CANCEL)


def test_failure_of_tasks_being_stopped_is_a_cancellation() -> None:
    status, _ = live(CancelRequested(has_tasks=True), FAILURE, status=RUNNING)
    assert status.state is JobState.CANCELLED
    assert status.failure is None


def test_failure_keeps_its_cause() -> None:
    status, _ = live(FAILURE)
    assert status.state is JobState.FAILED
    assert status.failure == "ValueError: no such file"


def test_giving_up_fails_the_job() -> None:
    status, effects = live(TooManyFailures("worker 0 failed 5 times"), status=RUNNING)
    assert (status.state, status.failure) == (JobState.FAILED, "worker 0 failed 5 times")
    assert MarkFinished() in effects


def test_repeated_result_is_ignored() -> None:
    once = live(MembershipFormed(1), SUCCESS)[0]
    assert live(SUCCESS, status=once) == (once, [])


def test_contradicting_result_is_refused() -> None:
    with pytest.raises(InvalidTransition):
        live(MembershipFormed(1), SUCCESS, FAILURE)


@pytest.mark.parametrize("state", [state for state in JobState if state.is_final])
def test_cancelling_an_ended_job_is_refused(state: JobState) -> None:
    with pytest.raises(InvalidTransition, match=f"CancelRequested has no rule for a job that is {state}"):
        advance(JobStatus(state), CancelRequested())


def test_refusal_tells_the_story() -> None:
    with pytest.raises(InvalidTransition) as refusal:
        live(MembershipFormed(1), SUCCESS, CancelRequested())
    assert "queued + MembershipFormed → running + ResultReported" in str(refusal.value)
    assert refusal.value.event == CancelRequested()


@given(st.lists(events, max_size=30))
def test_any_history_keeps_the_invariants(sequence: list[Event]) -> None:
    status, finishes = replace(QUEUED, has_trained=True), 0
    for event in sequence:
        before = status
        try:
            status, effects = advance(status, event)
        except InvalidTransition:
            continue
        finishes += effects.count(MarkFinished()) - sum(isinstance(each, Reopen) for each in effects)
        if before.state.is_final and not isinstance(event, ResumeRequested):
            assert (status, effects) == (before, ()), "an ended job stays as it ended"
        assert (status.failure is not None) == (status.state is JobState.FAILED)
        assert len(status.story) <= 20
        assert status.retries <= min(status.most_retries, status.attempt)
        assert status.attempt >= before.attempt
        assert not (status.owner_paused and status.state.is_final)
    assert finishes == (1 if status.state.is_final else 0)


@given(st.lists(events, max_size=30))
def test_cancellation_is_never_lost(sequence: list[Event]) -> None:
    """Whatever comes after a cancellation, the job does not run on: it ends, or its directive stays."""
    status, _ = advance(RUNNING, CancelRequested(has_tasks=True))
    for event in sequence:
        try:
            status, _ = advance(status, event)
        except InvalidTransition:
            continue
        if isinstance(event, ResumeRequested) and status.state is JobState.PAUSED:
            return  # that is the owner's own word
        assert status.state.is_final or status.directive is Directive.CANCEL


TRAINED = replace(RUNNING, has_trained=True)


def test_an_error_after_the_first_step_is_retried_so_many_times() -> None:
    status, effects = live(FAILURE, status=TRAINED)
    assert (status.state, status.directive) == (JobState.PAUSED, Directive.PAUSE)
    assert (status.attempt, status.retries) == (1, 1)
    assert effects == [ScheduleRetry(1, 2, "ValueError: no such file"), ForgetPredictions()]
    again, _ = live(TasksGranted(Allocation(1, 1)), MembershipFormed(2), FAILURE, status=status)
    assert (again.state, again.attempt, again.retries) == (JobState.PAUSED, 2, 2)
    ended, effects = live(TasksGranted(Allocation(1, 1)), MembershipFormed(3), FAILURE, status=again)
    assert (ended.state, ended.failure) == (JobState.FAILED, "ValueError: no such file")
    assert MarkFinished() in effects


def test_an_error_before_the_first_step_fails_the_job() -> None:
    assert live(FAILURE, status=RUNNING)[0].state is JobState.FAILED


def test_an_error_while_the_code_is_loaded_again_counts_as_a_retry() -> None:
    """A file system that is away when the job comes back is away no less than before."""
    waiting = replace(TRAINED, state=JobState.PAUSED, attempt=1, retries=1)
    status, _ = live(TooManyFailures("its code failed", "OSError: stale handle", attempt=1), status=waiting)
    assert (status.state, status.retries) == (JobState.PAUSED, 2)


def test_a_job_may_ask_for_no_retries() -> None:
    assert live(FAILURE, status=replace(TRAINED, most_retries=0))[0].state is JobState.FAILED


def test_one_failure_that_is_told_twice_is_one_retry() -> None:
    """The coordinator reports it, and the exit of its worker shows it: in either order."""
    result = replace(FAILURE, attempt=0)
    shown = TooManyFailures("its code failed", "ValueError: no such file", attempt=0)
    for sequence in ((result, shown, result), (shown, result, shown)):
        status, effects = live(*sequence, status=TRAINED)
        assert status.retries == 1
        assert [type(each) for each in effects] == [ScheduleRetry, ForgetPredictions]


def test_a_failure_of_a_later_attempt_than_is_known_is_one_retry_and_the_next_attempt_is_beyond() -> None:
    """The database is of an older backup: an end that was told twice, or that a journal keeps, used up all retries."""
    told = replace(FAILURE, attempt=2)
    status, effects = live(told, told, status=TRAINED)
    assert (status.attempt, status.retries, len(effects)) == (3, 1, 2)
    failed, _ = live(replace(told, permanent=True), status=TRAINED)
    resumed, _ = live(ResumeRequested(), status=failed)
    assert (failed.state, resumed.state, resumed.attempt) == (JobState.FAILED, JobState.PAUSED, 3)


def test_crashes_are_not_what_retries_are_for() -> None:
    assert live(TooManyFailures("worker 0 failed 6 times"), status=TRAINED)[0].state is JobState.FAILED


def test_a_retry_that_would_come_after_the_limit_of_time_is_none() -> None:
    """A script that failed was told to go on, and ended well without a step as soon as it had its tasks."""
    late = replace(TRAINED, is_retry_in_time=False)
    for event in (FAILURE, TooManyFailures("its workers hung", error="stacks")):
        status, effects = live(event, status=late)
        assert status.state is JobState.FAILED
        assert [each.type for each in effects if isinstance(each, EmitEvent)] == [JOB_FAILED, NOT_RETRIED]
        _, effects = live(event, status=replace(late, most_retries=0))
        assert NOT_RETRIED not in {each.type for each in effects if isinstance(each, EmitEvent)}


def test_a_job_that_waits_for_a_retry_can_be_cancelled() -> None:
    status, _ = live(FAILURE, CancelRequested(), status=TRAINED)
    assert status.state is JobState.CANCELLED


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_an_ended_job_goes_on_when_its_owner_asks(state: JobState) -> None:
    failure = "x" if state is JobState.FAILED else None
    ended = JobStatus(state, Directive.CANCEL, failure, has_trained=True, attempt=2, retries=2)
    status, effects = live(ResumeRequested(), status=ended)
    assert status == JobStatus(JobState.PAUSED, Directive.RUN, has_trained=True, attempt=3)
    assert {Reopen(failure), ForgetPredictions()} < set(effects)
    assert live(ResumeRequested(), status=status) == (status, []), "asked for twice, it is done once"
    assert live(replace(FAILURE, attempt=2), status=status) == (status, []), "the old end is over"


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.PAUSED, JobState.SUCCEEDED])
def test_only_ended_jobs_that_did_not_succeed_are_resumed(state: JobState) -> None:
    with pytest.raises(InvalidTransition):
        advance(JobStatus(state, attempt=1, retries=1), ResumeRequested())


def test_a_job_that_waits_for_a_retry_goes_on_when_its_owner_asks() -> None:
    waits = JobStatus(JobState.PAUSED, Directive.PAUSE, has_trained=True, attempt=1, retries=1, waits_for_retry=True)
    for status in (waits, replace(waits, attempt=2)):
        resumed, effects = live(ResumeRequested("ada"), status=status)
        assert EndRetryWait() in effects
        assert "ada ended the wait after an error" in str(effects)
        assert resumed == replace(status, waits_for_retry=False)


@pytest.mark.parametrize("tells_steps", [True, False])
def test_why_a_command_that_told_no_step_is_not_tried_again_is_told(tells_steps: bool) -> None:
    status, effects = live(FAILURE, status=replace(TRAINED, has_trained=False, tells_steps=tells_steps))
    assert status.state is JobState.FAILED
    assert ("NotRetried" in str(effects)) is not tells_steps


def test_what_would_fail_again_is_not_retried() -> None:
    assert live(replace(FAILURE, permanent=True), status=TRAINED)[0].state is JobState.FAILED


def test_who_paused_and_resumed_a_job_is_told() -> None:
    status, effects = live(PauseRequested(has_tasks=True, by="the operator eve"), status=TRAINED)
    assert status.paused_by == "the operator eve"
    assert "The operator eve paused the job" in str(effects)
    paused, effects = live(Paused(), status=status)
    assert "paused by the operator eve" in str(effects)
    resumed, effects = live(ResumeRequested("ada"), status=paused)
    assert resumed.paused_by is None
    assert "ada resumed the job" in str(effects)


def test_who_caused_a_pause_is_known_until_the_job_trains_again() -> None:
    paused = replace(TRAINED, state=JobState.PAUSED, directive=Directive.PAUSE, paused_by="job b")
    given, _ = live(TasksGranted(Allocation(1, 0)), status=paused)
    assert given.paused_by == "job b"
    assert live(MembershipFormed(2), status=given)[0].paused_by is None


# --- paused by the owner ---------------------------------------------------------------------------------------------


def test_a_running_job_is_paused_once_its_tasks_have_left() -> None:
    status, effects = live(PauseRequested(), status=TRAINED)
    assert (status.state, status.directive, status.owner_paused) == (JobState.RUNNING, Directive.PAUSE, True)
    assert ForgetPredictions() in effects
    assert live(PauseRequested(), status=status) == (status, []), "asked for twice, it is done once"
    for left in (Paused(), AllTasksGone()):
        paused, effects = live(left, status=status)
        assert (paused.state, paused.owner_paused) == (JobState.PAUSED, True)
        assert "paused by its owner" in str(effects)
        assert "waits to be resumed" in str(effects)


def test_a_job_that_never_trained_waits_again_when_it_is_resumed() -> None:
    paused, _ = live(PauseRequested(), status=QUEUED)
    assert paused.state is JobState.PAUSED
    resumed, _ = live(ResumeRequested(), status=paused)
    assert (resumed.state, resumed.owner_paused) == (JobState.QUEUED, False)
    started, effects = live(TasksGranted(Allocation(1, 1)), MembershipFormed(1), status=resumed)
    assert (started.state, started.directive) == (JobState.RUNNING, Directive.RUN)
    assert MarkStarted() in effects


def test_a_queued_job_whose_tasks_start_is_paused_when_they_are_gone() -> None:
    leaving, _ = live(PauseRequested(has_tasks=True), status=QUEUED)
    assert (leaving.state, leaving.directive) == (JobState.QUEUED, Directive.PAUSE)
    assert live(AllTasksGone(), status=leaving)[0].state is JobState.PAUSED


def test_a_job_that_trained_stays_paused_when_it_is_resumed_until_it_has_tasks() -> None:
    paused, _ = live(PauseRequested(), Paused(), status=TRAINED)
    resumed, _ = live(ResumeRequested(), status=paused)
    assert (resumed.state, resumed.owner_paused) == (JobState.PAUSED, False)
    with pytest.raises(InvalidTransition):
        advance(resumed, ResumeRequested())


def test_a_paused_job_is_not_finished_before_it_goes_on() -> None:
    paused, _ = live(PauseRequested(), Paused(), status=TRAINED)
    assert live(ConvergenceReached("max_seconds"), status=paused) == (paused, [])


@pytest.mark.parametrize("directive", [Directive.FINISH, Directive.CANCEL])
def test_a_job_that_is_ending_is_not_paused(directive: Directive) -> None:
    with pytest.raises(InvalidTransition):
        advance(replace(TRAINED, directive=directive), PauseRequested())


def test_a_paused_job_can_be_cancelled_and_is_not_paused_when_it_is_brought_back() -> None:
    paused, _ = live(PauseRequested(), Paused(), status=TRAINED)
    cancelled, _ = live(CancelRequested(), status=paused)
    assert (cancelled.state, cancelled.owner_paused) == (JobState.CANCELLED, False)
