"""What is read off a job's rows."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.service.store.store_builders import a_membership

from optimus_contract import answers
from optimus_scheduler.forecast.time_left import LIMIT_ENDS_SECONDS
from optimus_scheduler.model import NOTHING, Allocation, Directive, Interval, JobState, Reason, Role, TaskKey
from optimus_service.insight.format import finite_document
from optimus_service.insight.jobs.bodies import job_body, prediction_point_body
from optimus_service.insight.jobs.end import MOST_PROGRESS, REACHED, reached_limit
from optimus_service.insight.jobs.progress import (
    is_without_end,
    measured_speed,
    progress_of,
    silent_seconds,
    speed_here,
    start_of,
    step_of,
)
from optimus_service.insight.jobs.why import explain
from optimus_service.observe.spec import spec_of
from optimus_service.observe.standstills import Standstill, is_replaced, stalled
from optimus_service.push.stream_state import job_line
from optimus_service.store.records import (
    Awaited,
    DecisionRecord,
    ExpectedTimesRecord,
    JobRecord,
    SampleRecord,
    TaskRecord,
)
from optimus_service.store.rounds.forecasts import from_json

NOW = 1000.0


def job(**changes: Any) -> JobRecord:
    values: dict[str, Any] = dict.fromkeys(each.name for each in fields(JobRecord) if each.init)
    values |= {"id": "job-1", "name": "job", "state": JobState.RUNNING, "directive": Directive.RUN}
    values |= {"step": 40, "wanted": Allocation(2, 1), "running": NOTHING, "membership_epoch": 1}
    return JobRecord(**values | changes)


def decision(reason: str = "Unchanged", **forecast: Any) -> DecisionRecord:
    return DecisionRecord(
        job_id="job-1",
        at=NOW,
        allocation=Allocation(2, 1),
        previous=Allocation(1, 1),
        reason=reason,
        message="A sentence.",
        forecast=from_json("job-1", forecast),
    )


def total(mean: float, low: float = 50.0, high: float = 200.0) -> dict[str, float]:
    return {"mean": mean, "low": low, "high": high}


def sample(**changes: Any) -> SampleRecord:
    values: dict[str, Any] = {"id": 1, "received_at": NOW, "membership_epoch": 1, "rank": 0, "sequence": 0}
    values |= {"workers": 1, "servers": 1, "at": NOW, "step": 10, "n_steps": 2, "data_epoch": 0.0, "loss": 1.0}
    return SampleRecord(**values | {"n_examples": 1, "seconds": 0.5} | changes)


# --- progress --------------------------------------------------------------------------------------------------------


def made_at(step: int) -> dict[str, Any]:
    """A forecast of 100 steps in all (50 to 200) that was made at this step, with a speed that is well known."""
    left = {name: value - step for name, value in total(100).items()}
    pace = {"mean": 0.5, "low": 0.49, "high": 0.51}
    made = {"total_steps": total(100), "remaining_steps": left, "steps_per_second": 2.0, "seconds_per_step": pace}
    return {**made, "rule": "loss_decrease"}


def test_an_end_that_was_guessed_is_no_point_of_the_history() -> None:
    assert prediction_point_body(decision(**made_at(40))).total_steps == answers.Interval(mean=100, low=50, high=200)
    guessed = prediction_point_body(decision(**made_at(1) | {"rule": None, "remaining_seconds": total(1.0, 0.1, 8.0)}))
    assert (guessed.step, guessed.total_steps, guessed.remaining_seconds) == (1, None, None)


def test_what_is_left_at_the_step_of_the_forecast_is_as_it_said() -> None:
    found = progress_of(job(step=40), decision(**made_at(40)), NOW)
    assert found.progress == pytest.approx(0.4)
    assert found.remaining_steps == answers.Interval(mean=60, low=10, high=160)
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean == 30
    assert found.remaining_seconds.low == pytest.approx(5.0, rel=0.01)
    assert found.remaining_seconds.high == pytest.approx(80.0, rel=0.01)


@pytest.mark.parametrize(
    ("state", "step", "loss", "certain", "progress"),
    [
        (JobState.FAILED, 40, 0.5, False, 0.4),
        (JobState.CANCELLED, 120, 0.5, False, None),
        (JobState.FAILED, 40, math.nan, False, None),
        (JobState.FAILED, 40, math.nan, True, 0.4),
    ],
)
def test_how_far_a_job_came_that_failed_is_told_where_it_is_known_how_far_it_would_have_gone(
    state: JobState, step: int, loss: float, certain: bool, progress: float | None
) -> None:
    made = made_at(40) | ({"total_steps": total(100, 100, 100)} if certain else {})
    found = progress_of(job(state=state, step=step, loss=loss, finished_at=NOW), decision(**made), NOW)
    assert found.progress == (None if progress is None else pytest.approx(progress))


def test_steps_made_since_the_forecast_leave_fewer_and_rule_out_an_early_end() -> None:
    found = progress_of(job(step=80), decision(**made_at(40)), NOW)
    assert found.remaining_steps is not None
    assert 20 < found.remaining_steps.mean < 60
    assert (found.remaining_steps.low or 0) > 0
    assert found.progress is not None
    assert 0.6 < found.progress < 0.8
    assert not found.longer_than_predicted


@pytest.mark.parametrize("step", [100, 130])
def test_a_command_goes_on_after_all_its_steps_for_as_long_as_it_has_since_then(step: int) -> None:
    certain = made_at(step) | {"total_steps": total(step, step, step), "remaining_steps": total(0, 0, 0)}
    script = job(step=step, profile={"total_steps": 100})
    found = progress_of(script, decision(**certain), NOW)
    since = step - 100 + 1
    assert (found.longer_than_predicted, found.finishing) == (step > 100, step == 100)
    left = found.remaining_steps
    assert left is not None
    assert (left.mean, left.high) == (since if step > 100 else 0, since * 9)
    assert left.low == pytest.approx(since / 9 if step > 100 else 0)
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean > 0
    assert found.progress == pytest.approx(1.0 if step == 100 else min(step / (step + since), MOST_PROGRESS))
    limited = job(step=step, profile={"total_steps": 100}, spec={"convergence": {"max_steps": step}})
    at_its_limit = progress_of(limited, decision(**certain), NOW)
    assert at_its_limit.remaining_steps == answers.Interval(mean=0, low=0, high=0)


@pytest.mark.parametrize("silent", [0.0, 16.0, 600.0])
@pytest.mark.parametrize("formed", [None, -1000.0, -4.0])
def test_what_a_command_does_after_all_its_steps_takes_as_long_again(silent: float, formed: float | None) -> None:
    """It saves or evaluates: nothing says for how long."""
    certain = made_at(100) | {"total_steps": total(100, 100, 100), "remaining_steps": total(0, 0, 0)}
    formed_at = None if formed is None else NOW + formed
    script = job(step=100, step_at=NOW - silent, formed_at=formed_at, profile={"total_steps": 100})
    found, by_steps = progress_of(script, decision(**certain), NOW), 0.5
    since = max(silent if formed is None else min(silent, -formed), 1.0, by_steps)
    assert (found.progress, found.finishing) == (1.0, True)
    left = found.remaining_seconds
    assert left is not None
    assert left.mean == pytest.approx(since)
    assert left.low == pytest.approx(since / 9, rel=0.1)
    assert left.high == pytest.approx(since * 9, rel=0.5)
    assert progress_of(script, None, NOW).remaining_seconds is not None, "also before a speed is known"
    waits = progress_of(replace(script, wanted=NOTHING), decision(**certain), NOW)
    assert not waits.finishing
    waiting = replace(script, wanted=NOTHING, created_at=0.0, spec={"command": ["python", "x.py"], "name": "x"})
    assert spec_of(waiting).convergence.max_steps == 100, "it begins anew, and makes them all again"
    limited = replace(script, spec={"convergence": {"max_seconds": 900}}, started_at=NOW - 899.0)
    at_its_limit = progress_of(limited, decision(**certain), NOW).remaining_seconds
    assert at_its_limit is not None
    assert at_its_limit.high == 1.0 + LIMIT_ENDS_SECONDS


def test_a_command_is_told_what_ended_runs_did_after_their_last_step() -> None:
    """From its first step on, by the look ahead or without, and until it ends."""
    usual: dict[str, Any] = {"rule": "command_ends", "seconds_after_steps": total(45, 40, 50)}
    usual |= {"total_steps": total(100, 100, 100), "remaining_steps": total(60, 60, 60)}
    usual |= {"seconds_per_step": total(0.5, 0.5, 0.5)}
    end = Interval(NOW + 75.0, NOW + 70.0, NOW + 80.0)
    foreseen = ExpectedTimesRecord(job_id="job-1", at=NOW, valid_until=NOW + 99.0, start=None, end=end, steps_left=60.0)
    for step, left in ((40, 75.0), (70, 60.0), (99, 45.5)):
        script = job(step=step, profile={"total_steps": 100})
        for expected in (None, foreseen):
            found = progress_of(script, replace(decision(**usual), expected=expected), NOW).remaining_seconds
            assert found is not None
            assert found.mean == pytest.approx(left)
            assert found.low is not None
            assert found.high is not None
            assert found.low < found.mean < found.high
    for silent, low, high in ((5.0, 35.0, 45.0), (40.0, 1.0, 12.0), (500.0, 50.0, 1000.0)):
        script = job(step=100, step_at=NOW - silent, profile={"total_steps": 100})
        left_now = progress_of(script, decision(**usual), NOW).remaining_seconds
        assert left_now is not None
        assert low < left_now.mean < high


@pytest.mark.parametrize("step", [101, 199, 250, 10_000])
def test_a_job_beyond_its_forecast_says_so_and_has_something_left(step: int) -> None:
    found = progress_of(job(step=step), decision(**made_at(40)), NOW)
    assert found.longer_than_predicted
    assert found.progress is not None
    assert found.progress < 1.0
    for left in (found.remaining_steps, found.remaining_seconds):
        assert left is not None
        assert left.low is not None
        assert left.high is not None
        assert 0 < left.low < left.mean < left.high


def test_no_time_is_promised_by_a_speed_that_was_calculated() -> None:
    """It may be a hundred times too slow: that of a CPU core, for a job that trains on a GPU."""
    calculated = made_at(40) | {"seconds_per_step": None}
    found = progress_of(job(step=40), decision(**calculated), NOW)
    assert found.remaining_steps is not None
    assert found.remaining_seconds is None


def test_a_limit_of_steps_bounds_what_is_left() -> None:
    limited = job(step=150, spec={"convergence": {"max_steps": 160}})
    found = progress_of(limited, decision(**made_at(40)), NOW)
    assert found.remaining_steps is not None
    assert found.remaining_steps.high == 10


@pytest.mark.parametrize("step", [40, 60, 70])
def test_an_expected_end_moves_with_the_steps_and_not_with_the_clock(step: int) -> None:
    """30 s were foreseen for 60 steps; whatever the clock says, those that are left take their part of it."""
    end = Interval(NOW + 30.0, NOW + 24.0, NOW + 45.0)
    foreseen = ExpectedTimesRecord(job_id="job-1", at=NOW, valid_until=NOW + 99.0, start=None, end=end, steps_left=60.0)
    made = replace(decision(**made_at(40)), expected=foreseen)
    trains = job(step=step, running=Allocation(2, 1), started_at=0.0)
    found = progress_of(trains, made, NOW + 20.0)
    left, steps = found.remaining_seconds, found.remaining_steps
    assert left is not None
    assert steps is not None
    said = 30.0 * steps.mean / 60.0
    assert left.mean == pytest.approx(said)
    assert left.low == pytest.approx(0.8 * said)
    assert left.high == pytest.approx(1.5 * said)


def test_the_end_of_a_job_that_has_overtaken_what_was_foreseen_goes_by_its_speed() -> None:
    """Half a step was left then and 40 may be now: the 5 s that it might have taken are not 80 times as many."""
    end, size = Interval(NOW + 0.3, NOW + 0.1, NOW + 5.0), Allocation(2, 1)
    foreseen = ExpectedTimesRecord(job_id="job-1", at=NOW, valid_until=NOW + 99.0, start=None, end=end, steps_left=0.5)
    said: dict[str, Any] = {"total_steps": total(40.5, 40.1, 60.0), "remaining_steps": total(0.5, 0.1, 20.0)}
    said |= {"rule": "loss_decrease", "seconds_per_step": total(0.5, 0.49, 0.51), "steps_per_second": 2.0}
    made = replace(decision(**said), expected=foreseen, previous=size)
    found = progress_of(job(step=50, running=size, started_at=0.0), made, NOW + 5.0)
    left, steps = found.remaining_seconds, found.remaining_steps
    assert left is not None
    assert steps is not None
    assert steps.mean > 1.0
    for seconds, n_steps in ((left.low, steps.low), (left.mean, steps.mean), (left.high, steps.high)):
        assert seconds == pytest.approx(0.5 * (n_steps or 0.0), rel=0.1)


def test_a_job_that_may_end_with_each_step_is_told_how_long_it_may_take() -> None:
    """By the newest forecast its rule holds now, or after up to 900 steps; the look at the queue saw 30 left."""
    end, size = Interval(NOW + 6.0, NOW + 1.0, NOW + 43.0), Allocation(2, 1)
    foreseen = ExpectedTimesRecord(job_id="job-1", at=NOW, valid_until=NOW + 99.0, start=None, end=end, steps_left=30.0)
    said: dict[str, Any] = {"total_steps": total(103, 103, 1000), "remaining_steps": total(0, 0, 897)}
    said |= {"rule": "loss_decrease", "seconds_per_step": total(0.03, 0.02, 0.05), "steps_per_second": 32.0}
    made = replace(decision(**said), expected=foreseen, previous=size)
    left = progress_of(job(step=103, running=size, started_at=0.0), made, NOW + 1.0).remaining_seconds
    assert left is not None
    assert (left.low, left.mean) == (0.0, 0.0)
    assert left.high is not None
    assert left.high > 20.0


@pytest.mark.parametrize(("later", "left"), [(0.0, 30.0), (10.0, 20.0), (20.0, 10.0), (35.0, 10.0)])
def test_an_expected_end_moves_with_the_clock_between_two_reports(later: float, left: float) -> None:
    """A script tells each 40th step, which takes 20 s; later than that nobody knows whether it goes on."""
    end, size = Interval(NOW + 30.0, NOW + 24.0, NOW + 45.0), Allocation(2, 1)
    foreseen = ExpectedTimesRecord(
        job_id="job-1", at=NOW, valid_until=NOW + 99.0, start=None, end=end, steps_left=60.0, report_seconds=20.0
    )
    made = replace(decision(**made_at(40)), expected=foreseen, previous=size, allocation=size)
    found = progress_of(job(step=40, step_at=NOW, running=size, started_at=0.0), made, NOW + later)
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean == pytest.approx(left)
    assert found.remaining_steps is not None
    assert found.remaining_steps.mean == pytest.approx(60.0), "of these it is told what is known"


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("later", [0.0, 20.0, 50.0, 59.0])
def test_an_expected_end_of_a_script_that_tells_its_epochs_alone_moves_with_the_clock(step: int, later: float) -> None:
    """Three of a minute each: in the first one, of which it has told nothing yet, and in the last one, too."""
    left, size = 3.0 - step, Allocation(2, 1)
    certain: dict[str, Any] = {"total_steps": total(3, 3, 3), "remaining_steps": total(left, left, left)}
    certain |= {"rule": "max_steps", "seconds_per_step": total(60.0, 55.0, 66.0), "steps_per_second": 1 / 60.0}
    end = Interval(NOW + 60.0 * left, NOW + 55.0 * left, NOW + 66.0 * left)
    foreseen = ExpectedTimesRecord(
        job_id="job-1", at=NOW, valid_until=NOW + 99.0, start=None, end=end, steps_left=left, report_seconds=60.0
    )
    made = replace(decision(**certain), expected=foreseen, previous=size, allocation=size)
    trains = job(step=step, step_at=NOW if step else None, formed_at=NOW, running=size, started_at=NOW)
    told = progress_of(trains, made, NOW + later).remaining_seconds
    assert told is not None
    assert told.mean == pytest.approx(60.0 * left - later, abs=6.0)


@pytest.mark.parametrize("seconds_per_step", [0.25, 0.5, 1.0])
def test_the_pace_since_the_forecast_counts_the_more_the_longer_it_lasts(seconds_per_step: float) -> None:
    """0.5 s were foreseen for each step."""
    end = Interval(NOW + 30.0, NOW + 24.0, NOW + 45.0)
    foreseen = ExpectedTimesRecord(
        job_id="job-1", at=NOW, valid_until=NOW + 999.0, start=None, end=end, steps_left=60.0, report_seconds=0.5
    )
    size = Allocation(2, 1)
    made = replace(decision(**made_at(40)), expected=foreseen, previous=size, allocation=size)
    drifts = []
    for n_steps in (4, 40):
        trains = job(step=40 + n_steps, running=size, started_at=0.0)
        found = progress_of(trains, made, NOW + n_steps * seconds_per_step)
        assert found.remaining_seconds is not None
        assert found.remaining_steps is not None
        drifts.append(found.remaining_seconds.mean / (0.5 * found.remaining_steps.mean))
    whole = seconds_per_step / 0.5
    few, more = (math.log(drift) for drift in drifts)
    assert abs(few) <= abs(more) <= abs(math.log(whole)) + 1e-9
    assert few * math.log(whole) >= 0
    if whole != 1:
        assert more / math.log(whole) == pytest.approx(
            40 * seconds_per_step / (40 * seconds_per_step + 30.0), rel=0.05
        ), "but for the step that is under way"


@pytest.mark.parametrize("report_seconds", [0.0, 0.5])
def test_steps_between_two_reports_tell_nothing_of_the_pace(report_seconds: float) -> None:
    """A script tells each tenth step of 0.05 s, and these come in posts, one a second: 20 steps took a second, and 10
    of them are told."""
    size, pace = Allocation(1, 0), {"mean": 0.05, "low": 0.04, "high": 0.06}
    said: dict[str, Any] = {
        "total_steps": total(700, 700, 700),
        "remaining_steps": total(690, 690, 690),
        "rule": "max_steps",
    }
    end = Interval(NOW + 34.5, NOW + 30.0, NOW + 40.0)
    times = {"job_id": "job-1", "at": NOW, "valid_until": NOW + 99.0, "start": None, "end": end, "steps_left": 690.0}
    foreseen = ExpectedTimesRecord(**times, report_seconds=report_seconds)  # type: ignore[arg-type]
    made = decision(**said, steps_per_second=20.0, seconds_per_step=pace)
    made = replace(made, expected=foreseen, previous=size, allocation=size)
    trains = job(step=20, step_at=NOW + 1.0, formed_at=NOW - 1.0, wanted=size, running=size, started_at=NOW - 1.0)
    found = progress_of(trains, made, NOW + 1.0).remaining_seconds
    assert found is not None
    assert found.mean == pytest.approx(34.0, rel=0.01)


def test_the_pace_is_that_of_steps_that_came_in_the_membership_of_the_forecast() -> None:
    size = Allocation(2, 1)
    made = replace(decision(**made_at(40)), previous=size, allocation=size)

    def left(**known: Any) -> tuple[float, float]:
        found = progress_of(job(step=50, running=size, started_at=0.0, **known), made, NOW + 60.0)
        assert found.remaining_seconds is not None
        assert found.remaining_steps is not None
        return found.remaining_seconds.mean, 0.5 * found.remaining_steps.mean

    assert left(step_at=NOW + 60.0)[0] > 2 * left(step_at=NOW + 60.0)[1], "10 steps in 60 s, where each took 0.5 s"
    assert left(step_at=NOW + 5.0)[0] == pytest.approx(left()[1], rel=0.01), (
        "no step came for 55 s: the service was away"
    )
    made = replace(made, step_at=NOW - 5.0)
    assert left(step_at=NOW)[0] == pytest.approx(left(step_at=NOW)[1]), "10 steps in 5 s, though they came at once"
    made = replace(made, step_at=None)
    anew = left(step_at=NOW + 60.0, formed_at=NOW + 50.0)
    assert anew[0] == pytest.approx(anew[1]), "training stood still meanwhile"


def test_a_forecast_that_had_seen_little_of_training_gives_way_to_what_came_since() -> None:
    size = Allocation(2, 1)
    made = replace(decision(**made_at(2)), previous=size, allocation=size)
    trains = job(step=32, running=size, started_at=0.0, formed_at=NOW - 1.0, step_at=NOW + 6.0)
    found = progress_of(trains, made, NOW + 6.0)
    assert found.remaining_steps is not None
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean == pytest.approx(0.2 * found.remaining_steps.mean, rel=0.25), "0.5 s were said"


def test_steps_that_a_retry_goes_back_by_are_counted_nowhere() -> None:
    made = decision(total_steps=total(100), steps_per_second=2.0)
    task = job(step=40, state=JobState.PAUSED, wanted=NOTHING, running=NOTHING, retry_at=NOW + 20.0, formed_at=None)
    for waits in (task, replace(task, retry_at=NOW - 1.0), replace(task, retry_at=None)):
        found = progress_of(waits, made, NOW)
        assert (found.progress, found.remaining_steps) == (None, None), "of which step its checkpoint is nobody knows"
    went_on = progress_of(replace(task, retry_at=NOW - 9.0, formed_at=NOW - 5.0), made, NOW)
    assert went_on.progress == pytest.approx(0.4, rel=0.1), "it trained since, and was paused for others"
    script = replace(task, spec={"command": ["python", "loop.py"]})
    assert step_of(script) == 0, "the step and what is left are counted from the same one"
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED):
        assert step_of(replace(script, state=state)) == script.step > 0, "it has made them, and makes none again"
    found = progress_of(script, made, NOW)
    assert found.progress == 0.0
    assert found.remaining_steps is not None
    assert found.remaining_steps.mean == pytest.approx(100.0, rel=0.1)


@pytest.mark.parametrize(("keeps", "left"), [(False, 100.0), (True, 60.0)])
def test_a_script_whose_worker_is_replaced_begins_anew_unless_it_keeps_checkpoints(keeps: bool, left: float) -> None:
    script = job(step=40, running=Allocation(1, 0), spec={"command": ["python", "loop.py"], "resumes": keeps})
    still = {script.id: Standstill("a worker is being replaced", is_stalled=False, is_replaced=True)}
    found = progress_of(script, decision(total_steps=total(100), steps_per_second=2.0), NOW, still=still)
    assert found.remaining_steps is not None
    assert found.remaining_steps.mean == pytest.approx(left, rel=0.1)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_script_that_begins_anew_has_no_loss_beside_step_0(keeps: bool) -> None:
    paused = job(
        state=JobState.PAUSED, created_at=0.0, step=40, epoch=2.5, loss=0.3, spec={"command": ["x"], "resumes": keeps}
    )
    body = job_body(paused, None, None, NOW)
    assert (body.step, body.epoch, body.loss) == ((40, 2.5, 0.3) if keeps else (0, None, None))
    replaced = replace(paused, state=JobState.RUNNING, running=Allocation(1, 0))
    still = {paused.id: Standstill("a worker is being replaced", is_stalled=False, is_replaced=True)}
    for line in (job_line(paused, None, NOW), job_line(replaced, None, NOW, None, still)):
        assert (line.step, line.loss) == (body.step, body.loss), "the page's list tells what the job's page does"


@pytest.mark.parametrize("seconds", [14.0, 25.0, 37.0])
def test_the_time_left_does_not_grow_between_two_steps(seconds: float) -> None:
    """A step each 12 s; the second is made, and the decision was somewhere within another."""
    size = Allocation(2, 1)
    pace = made_at(40) | {"seconds_per_step": total(12, 12, 12)}
    made = replace(decision(**pace), previous=size, allocation=size)
    found = progress_of(job(step=42, running=size, started_at=0.0), made, NOW + seconds)
    assert found.remaining_steps is not None
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean == pytest.approx(12.0 * found.remaining_steps.mean, rel=0.02)


@pytest.mark.parametrize(
    ("silent", "told"),
    [(14.0, None), (40.0, "no step came for 40 s, where one took 2.0 s"), (213.0, "no step came for 3 min 33 s, ")],
)
def test_a_job_whose_steps_stay_away_is_told_to_have_stalled(silent: float, told: str | None) -> None:
    last = sample(n_steps=5, seconds=10.0)
    found = stalled([last], NOW + silent, NOW - 100.0)
    assert found is None if told is None else (found or "").startswith(told)
    assert stalled([replace(last, n_steps=1, seconds=100.0)], NOW + silent, 0.0) is None, "its steps are slow"
    assert stalled([], NOW + silent, 0.0) is None


@pytest.mark.parametrize(
    ("silent", "told"), [(19.0, None), (39.0, None), (41.0, "no step came for 41 s, where it tells one each 20 s")]
)
def test_a_script_that_tells_some_of_its_steps_has_not_stalled_between_them(silent: float, told: str | None) -> None:
    each = [sample(step=200 * number, n_steps=200, seconds=20.0) for number in (1, 2)]
    assert stalled(each, NOW + silent, NOW - 100.0) == told
    assert stalled(each[:1], NOW + silent, NOW - 100.0) == told


def test_a_short_step_is_told_by_its_digits() -> None:
    last = sample(n_steps=40, seconds=1.0)
    assert stalled([last], NOW + 40.0, NOW) == "no step came for 40 s, where one took 0.025 s"
    burst, before = sample(step=42, n_steps=40, seconds=0.2), sample(n_steps=40, seconds=1.8, membership_epoch=0)
    told = stalled([burst, last, before], NOW + 40.0, NOW)
    assert told == "no step came for 40 s, where one took 0.015 s", "all samples since the last change of size count"


@pytest.mark.parametrize(("again", "told"), [(5.0, None), (30.0, "no step came for 30 s, where one took 2.0 s")])
def test_silence_counts_from_when_the_service_listens_again(again: float, told: str | None) -> None:
    back = NOW + 60.0
    assert stalled([sample(n_steps=5, seconds=10.0)], back + again, since=back) == told


def test_no_end_is_told_of_a_stalled_job_nor_a_start_that_waits_for_it() -> None:
    hangs = job(id="hangs", step=42, running=Allocation(1, 0), wanted=Allocation(1, 0), started_at=0.0)
    foreseen = ExpectedTimesRecord(
        job_id="hangs", at=NOW, valid_until=NOW + 100.0, start=None, end=Interval(NOW + 60.0, NOW + 50.0, NOW + 80.0)
    )
    pace = made_at(40) | {"seconds_per_step": total(12, 12, 12)}
    made = replace(decision(**pace), job_id="hangs", expected=foreseen)
    waiting = job(id="waits", state=JobState.QUEUED, wanted=NOTHING, running=NOTHING)
    start = replace(foreseen, job_id="waits", start=foreseen.end, behind=(Awaited(1.0, hangs, made),))
    still = {"hangs": Standstill("no step came for 40 s, where one took 2.0 s", is_stalled=True)}
    for found, told in ((still, False), ({}, True), ({"hangs": Standstill("a worker", is_stalled=False)}, True)):
        assert (progress_of(hangs, made, NOW, None, found).remaining_seconds is not None) == told
        expected = progress_of(waiting, replace(made, expected=start), NOW, None, found).expected
        assert expected is not None
        assert (expected.start_seconds is not None) == told


@pytest.mark.parametrize(("silent", "late"), [(2.0, 0.0), (24.0, 0.0), (30.0, 6.0), (124.0, 100.0)])
def test_the_end_of_a_job_whose_step_is_late_is_later_by_as_much(silent: float, late: float) -> None:
    size = Allocation(1, 0)
    quiet = job(step=42, running=size, wanted=size, started_at=0.0, formed_at=NOW - 100.0, step_at=NOW)
    pace = made_at(40) | {"seconds_per_step": total(12, 12, 12)}
    foreseen = ExpectedTimesRecord(
        job_id="job-1",
        at=NOW,
        valid_until=NOW + 500.0,
        start=None,
        end=Interval(NOW + 60.0, NOW + 50.0, NOW + 80.0),
        steps_left=5.0,
    )
    made = replace(decision(**pace), previous=size, allocation=size, expected=foreseen)
    before, now = (progress_of(quiet, made, NOW + each).remaining_seconds for each in (0.0, silent))
    assert before is not None
    assert now is not None
    assert now.mean - before.mean == pytest.approx(late, abs=0.1)
    assert (now.low or 0.0) - (before.low or 0.0) == pytest.approx(late / 9.0, abs=0.1)
    assert (now.high or 0.0) - (before.high or 0.0) == pytest.approx(9.0 * late, abs=0.1)
    known = Interval(20.0 + late, 20.0 + late / 9.0, 20.0 + 9.0 * late)
    end = Interval(*(each + more for each, more in zip(foreseen.end or (), known, strict=True)))
    looked_at_it = replace(made, expected=replace(foreseen, end=end, late_seconds=known))
    again = progress_of(quiet, looked_at_it, NOW + silent).remaining_seconds
    assert again is not None
    assert again.mean == pytest.approx(now.mean, abs=0.1), "what a look had counted of it is not counted twice"
    for other in (replace(quiet, formed_at=NOW + 1.0), replace(quiet, wanted=Allocation(2, 0))):
        left = progress_of(other, made, NOW + silent).remaining_seconds
        assert left is not None
        assert left.mean < before.mean + 1.0, "its first step after a change may take longer"


def test_a_worker_is_being_replaced_until_the_new_one_takes_part() -> None:
    was, now = TaskKey("job-1", Role.WORKER, 0, 0), TaskKey("job-1", Role.WORKER, 0, 1)
    membership = a_membership(epoch=1, workers=(was.name,), servers=())
    tasks = [TaskRecord(key=each, node="n", created_at=1.0) for each in (was, now)]
    assert not is_replaced([membership], tasks[:1])
    assert is_replaced([membership], tasks[1:])
    assert not is_replaced([], tasks)


def test_no_end_is_made_up_where_only_the_age_is_known_and_that_of_ended_runs_stays() -> None:
    found = progress_of(job(step=40), decision(**made_at(40) | {"rule": None}), NOW)
    assert (found.progress, found.is_guessed) == (None, True)
    assert (found.remaining_steps, found.remaining_seconds) == (None, None), "nor a time: it would be a guess"
    told = job(step=40, profile={"total_steps": 100})
    assert not progress_of(told, decision(**made_at(40) | {"rule": None}), NOW).is_guessed, "it told after that round"
    by_runs = Interval(NOW + 90.0, NOW + 80.0, NOW + 120.0)
    foreseen = ExpectedTimesRecord(
        job_id="job-1", at=NOW, valid_until=NOW + 99.0, start=None, end=by_runs, steps_left=60.0
    )
    guessed = replace(decision(**made_at(40) | {"rule": None}), expected=foreseen)
    trains = job(step=40, running=Allocation(2, 1), started_at=0.0)
    found = progress_of(trains, guessed, NOW + 10.0)
    assert (found.remaining_seconds, found.is_guessed) == (answers.Interval(mean=80, low=70, high=110), False)
    still = {"job-1": Standstill("no step came for 40 s, where one took 2.0 s", is_stalled=True)}
    assert progress_of(trains, guessed, NOW + 10.0, None, still).remaining_seconds is None
    done = made_at(100) | {"rule": None, "remaining_steps": total(0, 0, 0), "total_steps": total(100, 100, 100)}
    assert progress_of(job(step=100), decision(**done), NOW).progress is not None, "it is being finished"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"state": JobState.SUCCEEDED},
            "it has ended. `optimus retry job-1` runs it again from the beginning.",
        ),
        ({"state": JobState.FAILED, "step": 0}, "beginning. Its specification stays what it was: what"),
        (
            {"state": JobState.CANCELLED},
            "`optimus resume job-1` lets it go on from its last checkpoint, which may be of a step before 40; `opt",
        ),
        (
            {"state": JobState.FAILED, "started_at": NOW, "finished_at": NOW + 6.0},
            "from its last checkpoint, which may be of step 0 of 40 (it trained for less than the 30 s between two); `",
        ),
        (
            {"state": JobState.FAILED, "started_at": NOW, "finished_at": NOW + 6.0, "membership_epoch": 2},
            "from its last checkpoint, which may be of a step before 40; `opt",
        ),
        (
            {"state": JobState.FAILED, "started_at": NOW, "finished_at": NOW + 60.0},
            "from its last checkpoint, which may be of a step before 40; `opt",
        ),
        (
            {"state": JobState.FAILED, "result": {"checkpoint": "/d/checkpoints/manifest-000000000000.json"}},
            "lets it go on from its last checkpoint, of step 0 of 40; `opt",
        ),
        (
            {
                "state": JobState.CANCELLED,
                "started_at": NOW - 90.0,
                "finished_at": NOW - 60.0,
                "spec": {"convergence": {"max_seconds": 80.0}},
            },
            "with its parameters. Resumed, it would end as soon as it goes on: the time of its limit is over.",
        ),
        (
            {"state": JobState.FAILED, "loss": math.nan},
            "ended. Submit it again with what made its loss NaN or infinite changed, often a smaller learning rate (an",
        ),
        (
            {"state": JobState.FAILED, "loss": math.nan, "spec": {"convergence": {"max_steps": 40}}},
            "again from the beginning. Resumed, it would end as soon as it goes on: it has made all the steps of its",
        ),
        (
            {"state": JobState.FAILED, "loss": math.nan, "spec": {"command": ["python", "a.py"], "resumes": True}},
            "before 40: of use only if its loss was a number there. `optimus retry",
        ),
        (
            {"state": JobState.SUCCEEDED, "heard_at": NOW},
            "ran outside the cluster: start it again where",
        ),
    ],
)
def test_what_runs_an_ended_job_again_is_named(changes: dict[str, Any], told: str) -> None:
    found = explain(job(**{"spec": {}, "step": 40} | changes), None, NOW).what_would_change_it
    assert told in found
    assert ("optimus retry" in found) == ("heard_at" not in changes)


SPENT = {"converged": True, "rule": "max_cost"}


@pytest.mark.parametrize(
    ("rule", "changes", "forecast", "reached"),
    [
        ({"max_steps": 40}, {}, {}, "max_steps"),
        ({"max_steps": 41}, {}, {}, None),
        ({}, {"spec": {"command": ["python", "train.py"], "convergence": {"max_steps": 5}}}, {}, None),
        ({"max_epochs": 2.0}, {"epoch": 2.0}, {}, "max_epochs"),
        ({"max_epochs": 2.5}, {"epoch": 2.0}, {}, None),
        ({"max_seconds": 60.0}, {"started_at": NOW - 60.0}, {}, "max_seconds"),
        ({"max_seconds": 60.0}, {"started_at": NOW - 59.0}, {}, None),
        ({"max_seconds": 60.0}, {}, {}, None),
        ({"max_seconds": 60.0}, {"started_at": NOW - 60.0, "heard_at": NOW}, {}, None),
        ({"max_cost": 5.0}, {}, SPENT, "max_cost"),
        ({"max_cost": 5.0}, {}, {**SPENT, "converged": False}, None),
        ({"max_steps": 90}, {}, SPENT, None),
    ],
)
def test_a_paused_job_ends_by_the_limit_that_it_has_reached(
    rule: dict[str, float], changes: dict[str, Any], forecast: dict[str, Any], reached: str | None
) -> None:
    paused = {"state": JobState.PAUSED, "owner_paused_at": NOW - 20.0, "wanted": NOTHING}
    found = job(**paused | {"spec": {"convergence": rule}} | changes)
    assert reached_limit(found, decision("PausedByOwner", **forecast), NOW) == reached
    told = explain(found, decision("PausedByOwner", **forecast), NOW)
    assert ("only ends it" in told.what_would_change_it) == (reached is not None)
    assert told.limit_reached == (None if reached is None else REACHED[reached])
    assert progress_of(found, decision(**{**made_at(40), **forecast}), NOW).remaining_steps is None or reached is None


@pytest.mark.parametrize("forecast", [{}, {"total_steps": None}, {"total_steps": total(math.inf)}])
def test_without_a_forecast_nothing_is_said(forecast: dict[str, Any]) -> None:
    found = progress_of(job(), decision(**forecast), NOW)
    assert (found.progress, found.remaining_steps, found.remaining_seconds) == (None, None, None)
    assert progress_of(job(), None, NOW).progress is None


@pytest.mark.parametrize(("state", "progress"), [(JobState.SUCCEEDED, 1.0), (JobState.FAILED, 0.4)])
def test_an_ended_job_has_nothing_left(state: JobState, progress: float) -> None:
    found = progress_of(job(state=state), decision(total_steps=total(100), steps_per_second=2.0), NOW)
    assert (found.progress, found.remaining_steps, found.remaining_seconds) == (progress, None, None)


def test_a_command_that_ended_long_before_it_said_it_would_is_done_as_well() -> None:
    command = {"command": ["python", "loop.py"], "convergence": {"command_ends": True}}
    ended = {"state": JobState.SUCCEEDED, "profile": {"total_steps": 100}}
    assert progress_of(job(**ended, spec=command), None, NOW).progress == 1.0


def test_no_speed_is_told_while_no_step_comes() -> None:
    """The average of the last half minute is that of before."""
    running, hung = job(state=JobState.RUNNING, created_at=0.0), "its workers hung once, after step 40"
    for standstill, speed in (
        (Standstill("no step came for 20 s, where one took 0.5 s", is_stalled=True), None),
        (Standstill("a worker is being replaced", is_stalled=False, is_replaced=True), None),
        (Standstill(hung, is_stalled=True, hung_at=40), 2.0),
    ):
        assert job_body(running, None, 2.0, NOW, still={running.id: standstill}).steps_per_second == speed


# --- speed -----------------------------------------------------------------------------------------------------------


def test_the_speed_is_that_of_the_job_over_the_last_half_minute() -> None:
    old = sample(received_at=NOW - 31, at=NOW - 31, step=0)
    recent = [sample(at=NOW - 4 + n, step=100 + 10 * n, received_at=NOW - 4 + n) for n in range(4)]
    assert measured_speed([*recent[::-1], old], NOW) == pytest.approx(10.0)


def test_a_job_whose_next_step_is_late_is_told_the_speed_of_its_newest_ones_and_how_old_these_are() -> None:
    made = [sample(at=NOW - 20 + n, step=100 + 10 * n, received_at=NOW - 20 + n) for n in range(11)]
    for late in (0.0, 1.0, 2.0, 2.1, 10.0):
        now = NOW - 10 + late
        assert measured_speed(made, now) == pytest.approx(10.0), "it does not fall before the standstill is told"
        assert silent_seconds(made, now) == (pytest.approx(late) if late > 2.0 else None)
    at_once = [replace(each, received_at=NOW - 9) for each in made]
    assert measured_speed(at_once, NOW) == pytest.approx(10.0)
    assert silent_seconds(at_once, NOW) is None, "a worker reports each 10 s"
    often = [sample(at=NOW - 3 + n / 10, step=n, received_at=NOW - 3 + n / 10) for n in range(11)]
    assert silent_seconds(often, NOW - 1.0) is None
    assert silent_seconds(often, NOW) == pytest.approx(2.0)
    assert silent_seconds([], NOW) is None


def test_a_single_record_is_timed_by_itself() -> None:
    assert measured_speed([sample(n_steps=2, seconds=0.5)], NOW) == 4.0
    assert measured_speed([sample(seconds=0.0)], NOW) is None
    assert measured_speed([], NOW) is None


def test_first_steps_of_two_workers_within_a_moment_tell_no_speed() -> None:
    """Right after a change of size: 100 steps/s, of which one worker told the 25th and the other one the 26th."""
    now = {"received_at": NOW, "n_steps": 25, "seconds": 0.25}
    first = [sample(rank=1, at=NOW - 0.5, step=25, **now), sample(rank=0, at=NOW - 0.46, step=26, **now)]
    job_here = job(membership_epoch=1)
    assert measured_speed(first, NOW) == pytest.approx(100.0)
    assert speed_here(job_here, first, NOW) is None, "too little is told"
    second = [sample(rank=1, at=NOW - 0.25, step=50, **now), sample(rank=0, at=NOW - 0.2, step=54, **now)]
    for told in (first + second[:1], first + second):
        assert measured_speed(told, NOW) == pytest.approx(100.0, rel=0.1)
        assert speed_here(job_here, told, NOW) == measured_speed(told, NOW)
    many = [sample(rank=n, at=NOW - 1.0 + n / 50, step=2 * n, **now) for n in range(50)]
    assert measured_speed(many, NOW) == pytest.approx(100.0), "of more workers than samples are looked at"


def test_the_speed_is_not_taken_across_a_rollback() -> None:
    before = [sample(at=NOW - 10, step=100), sample(at=NOW - 9, step=110)]
    after = [sample(membership_epoch=2, at=NOW - 2, step=60), sample(membership_epoch=2, at=NOW - 1, step=65)]
    assert measured_speed(before + after, NOW) == pytest.approx(5.0)


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 1000), st.floats(0, 10)), max_size=10))
def test_a_speed_is_never_negative(points: list[tuple[float, int, float]]) -> None:
    samples = [sample(at=NOW - ago, step=step, seconds=seconds) for ago, step, seconds in points]
    speed = measured_speed(samples, NOW)
    assert speed is None or speed > 0


# --- explanation -----------------------------------------------------------------------------------------------------


AWAITS = "Waits 9.0 s after an error (retry 1 of 2): no disk"


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_says_what_would_change_it(reason: Reason) -> None:
    waits = job(retry_at=NOW + 9, last_error="no disk", retries=1, spec={"retries": 2})
    found = explain(waits, decision(reason.value), NOW)
    assert found.message == ("A sentence." if reason is not Reason.WAITING_FOR_RETRY else AWAITS)
    others = {
        explain(waits, decision(other.value), NOW).what_would_change_it for other in Reason if other is not reason
    }
    assert found.what_would_change_it
    assert found.what_would_change_it not in others or reason in (Reason.CONVERGED, Reason.CANCELLING)


def test_a_reason_of_a_newer_version_is_explained_as_well() -> None:
    assert explain(job(), decision("SomethingNew"), NOW).what_would_change_it


def test_a_failed_job_says_why() -> None:
    assert "out of memory" in explain(job(state=JobState.FAILED, failure="out of memory"), decision(), NOW).message


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_documents_lose_what_json_cannot_say() -> None:
    assert finite_document({"a": [1, math.nan, {"b": -math.inf}], "c": (True, "x", None)}) == {
        "a": [1, None, {"b": None}],
        "c": [True, "x", None],
    }


_POINTS = st.sampled_from([NOW + 5.0, NOW + 60.0, math.inf])
_TIMES = st.none() | st.builds(lambda *each: Interval(*(sorted(each)[n] for n in (1, 0, 2))), *[_POINTS] * 3)


@given(
    wanted=st.sampled_from([NOTHING, Allocation(2, 1)]),
    state=st.sampled_from([JobState.QUEUED, JobState.PAUSED, JobState.RUNNING, JobState.SUCCEEDED]),
    directive=st.sampled_from([Directive.RUN, Directive.CANCEL]),
    retry_at=st.sampled_from([None, NOW - 1.0, NOW + 30.0]),
    owner_paused_at=st.sampled_from([None, NOW]),
    profile=st.sampled_from([None, {"total_steps": 30}, {"total_steps": 100}]),
    forecast=st.sampled_from([{}, made_at(40), made_at(40) | {"rule": None}]),
    start=_TIMES,
    end=_TIMES,
    valid_until=st.sampled_from([NOW - 1.0, NOW + 100.0]),
)
def test_whether_an_end_is_told_is_known_without_all_else(
    forecast: dict[str, Any], start: Interval | None, end: Interval | None, valid_until: float, **changes: Any
) -> None:
    assume(start is None or end is None or end.mean >= start.mean)
    expected = ExpectedTimesRecord(job_id="job-1", at=NOW - 2.0, valid_until=valid_until, start=start, end=end)
    one, made = job(**changes), replace(decision(**forecast), expected=expected)
    for decided in (made, replace(made, expected=None), None):
        told = start_of(one, decided, NOW, {}, {}) if one.waits else None
        has_none = progress_of(one, decided, NOW).remaining_seconds is None
        assert is_without_end(one, decided, NOW, {}, {}, told) == has_none


# --- a retry's wait --------------------------------------------------------------------------------------------------


def test_a_job_that_waits_for_its_retry_starts_then_or_with_the_first_room_after_it() -> None:
    """Bound by bound, and whether or not anything is known of its end."""
    waits = job(state=JobState.PAUSED, step=80, wanted=NOTHING, retry_at=NOW + 230.0)
    for known in (made_at(80), {}):
        for start in (None, Interval(40.0, 20.0, 90.0), Interval(240.0, 231.0, 2000.0)):
            times = None
            if start is not None:
                instants = Interval(*(NOW + each for each in (start.mean, start.low, start.high)))
                times = ExpectedTimesRecord(
                    job_id="job-1", at=NOW, valid_until=NOW + 1000, start=instants, end=instants
                )
            found = progress_of(waits, replace(decision(**known), expected=times), NOW)
            assert found.remaining_seconds is None
            if start is None:
                assert found.expected is None, "nobody knows of room"
                continue
            assert found.expected is not None
            later = [max(230.0, each) for each in (start.mean, start.low, start.high)]
            assert found.expected.start_seconds == answers.Interval(mean=later[0], low=later[1], high=later[2])
            assert found.expected.end_seconds is None
    after = progress_of(replace(waits, retry_at=NOW - 1), decision(**made_at(80)), NOW)
    assert after.expected is None
