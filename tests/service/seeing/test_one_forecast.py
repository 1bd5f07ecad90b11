"""Times that are shown on one page come from one forecast."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.builders import a_job, law, samples
from tests.service.seeing.test_explanation import a_record
from tests.service.store.store_builders import a_decision, a_forecast, a_sample

from optimus_contract import answers
from optimus_contract.interval_words import interval_words
from optimus_models.cost import Estimate
from optimus_scheduler.explain import GOES_FIRST
from optimus_scheduler.forecast.fits import Fits
from optimus_scheduler.forecast.forecast import forecast as forecast_of
from optimus_scheduler.forecast.time_left import LIMIT_ENDS_SECONDS
from optimus_scheduler.model import NOTHING, Allocation, ConvergenceRule, Interval, JobState
from optimus_scheduler.settings import Settings
from optimus_service.api.jobs.queue import queued_body
from optimus_service.crd.translate import age, status_of
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.insight.explanations.queue import in_queue, order_of_equals
from optimus_service.insight.format import span
from optimus_service.insight.jobs.bodies import job_body
from optimus_service.insight.jobs.needs import untold_of, untold_words
from optimus_service.insight.jobs.progress import expected_times, progress_of, speed_here
from optimus_service.insight.predictions.predictions import Question, learned_then, predictions_body
from optimus_service.insight.predictions.sizes import Basis, Limits, sizes
from optimus_service.metrics.read import job_metrics
from optimus_service.observe.standstills import Standstill
from optimus_service.push.stream_state import job_line
from optimus_service.store.records import Awaited, DecisionRecord, ExpectedTimesRecord, JobRecord, SampleRecord

SETTINGS = Settings()
SIZES = [Allocation(1, 1), Allocation(2, 1), Allocation(4, 2)]
JOB = a_job("a", has=(2, 1), measured=samples(law(), [(1, 1), (2, 1), (2, 2), (4, 2)]))


def left_with_each(shown: Estimate | None) -> list[Estimate]:
    (fitted,) = Fits().of([JOB], SETTINGS)
    found = sizes(JOB, fitted.speeds, SIZES, Estimate(500, 400, 600), Basis(0.0, SETTINGS, shown))
    return [each.left.seconds for each in found if each.left is not None]


def test_the_cell_of_the_present_size_is_the_time_left_that_is_shown() -> None:
    shown = Estimate(39.0, 29.0, 60.0)
    alone, beside = left_with_each(None), left_with_each(shown)
    assert len(alone) == len(beside) == len(SIZES)
    assert beside[1] == shown
    assert alone[1].mean != shown.mean
    for before, now in zip(alone, beside, strict=True):
        assert abs(now.mean / shown.mean - before.mean / alone[1].mean) < 1e-9


@pytest.mark.parametrize("previous", [Allocation(1, 1), Allocation(2, 1)], ids=["has changed", "has kept its size"])
def test_times_of_sizes_are_not_by_a_forecast_of_a_size_that_the_job_has_no_more(previous: Allocation) -> None:
    """It was made before the round gave the job another size; until the next round, it is the newest."""
    said: dict[str, Any] = {"total_steps": {"mean": 500.0, "low": 400.0, "high": 600.0}, "rule": "max_steps"}
    said |= {"remaining_steps": said["total_steps"], "seconds_per_step": {"mean": 9.0, "low": 8.0, "high": 10.0}}
    made = a_decision(at=NOW, allocation=JOB.allocation, previous=previous, forecast=a_forecast(**said))
    record = a_record(state=JobState.RUNNING, wanted=JOB.allocation, running=JOB.allocation)
    question = Question(range(1, 5), range(1, 3), now=NOW)
    for decision in (made, replace(made, expected=expected_at(NOW, 700.0))):
        body = predictions_body(record, JOB, [decision], question, SETTINGS)
        (cell,) = [each for each in body.speeds if (each.workers, each.servers) == (2, 1)]
        assert cell.remaining_seconds is not None
        assert cell.steps_per_second is not None
        by_speed = 500.0 / cell.steps_per_second
        is_by_speed = cell.remaining_seconds.mean == pytest.approx(by_speed, rel=0.2)
        assert is_by_speed == (previous != JOB.allocation), (cell, by_speed)


def expected_at(now: float, seconds: float) -> ExpectedTimesRecord:
    """A look at the queue that saw so many seconds left."""
    end = Interval(now + seconds, now + 0.5 * seconds, now + 2.0 * seconds)
    return ExpectedTimesRecord(job_id="job-1", at=now, valid_until=now + 99.0, start=None, end=end, steps_left=500.0)


@pytest.mark.parametrize(("previous", "told"), [(JOB.allocation, 3.1), (Allocation(1, 1), None)])
def test_the_metric_of_the_speed_is_of_the_size_that_the_job_has(previous: Allocation, told: float | None) -> None:
    made = a_decision(at=NOW, allocation=JOB.allocation, previous=previous, forecast=a_forecast(steps_per_second=3.1))
    record = a_record(state=JobState.RUNNING, wanted=JOB.allocation, running=JOB.allocation)
    assert job_metrics(record, made, [], [], None, NOW).predicted_steps_per_second == told


def test_of_an_ended_job_the_last_forecast_says_what_it_rested_on() -> None:
    learned = learned_then(a_forecast(finished_runs=0, finished_runs_share=0.0, speed_from="measured"))
    assert (learned.finished_runs, learned.share, learned.speeds_from) == (0, 0.0, "measured")
    assert learned_then(a_forecast()).speeds_from is None


# --- starts and ends, in all answers ---------------------------------------------------------------------------------

NOW = 1000.0


@st.composite
def intervals(draw: st.DrawFn, least: float, most: float) -> Interval:
    low, mean, high = sorted(draw(st.lists(st.floats(least, most), min_size=3, max_size=3)))
    return Interval(mean, low, high)


@st.composite
def kept(draw: st.DrawFn, job_id: str) -> tuple[JobRecord, DecisionRecord]:
    """A job that has not ended, with what was decided and foreseen of it, perhaps behind another."""
    has_tasks, step = draw(st.booleans()), draw(st.integers(0, 90))
    size = Allocation(1, 0) if has_tasks else NOTHING
    record = a_record(
        job_id,
        state=JobState.RUNNING if has_tasks else draw(st.sampled_from([JobState.QUEUED, JobState.PAUSED])),
        wanted=size,
        running=size,
        step=step,
        retry_at=None if has_tasks else draw(st.none() | st.floats(NOW - 50.0, NOW + 300.0)),
        owner_paused_at=draw(st.sampled_from([None, None, None, NOW - 10.0])),
        formed_at=draw(st.sampled_from([None, NOW - 90.0])),
    )
    total = draw(st.none() | intervals(90.0, 300.0))
    said: dict[str, Any] = {}
    if total is not None:
        left = {name: getattr(total, name) - 10.0 for name in ("mean", "low", "high")}
        said = {"total_steps": total._asdict(), "remaining_steps": left}
        said["rule"] = draw(st.sampled_from([None, "max_steps", "max_seconds"]))
        said["seconds_per_step"] = draw(st.none() | st.just({"mean": 1.0, "low": 0.9, "high": 1.2}))
    at = NOW - draw(st.floats(0.0, 60.0))
    behind = (
        Awaited(draw(st.floats(0.1, 1.0)), *draw(kept("other"))) if job_id != "other" and draw(st.booleans()) else None
    )
    times = ExpectedTimesRecord(
        job_id=job_id,
        at=at,
        valid_until=NOW + draw(st.floats(-5.0, 60.0)),
        start=draw(st.none() | intervals(at, at + 500.0)),
        end=draw(st.none() | intervals(at + 500.0, at + 900.0)),
        steps_left=draw(st.none() | st.floats(1.0, 200.0)),
        behind=() if behind is None else (behind,),
    )
    decision = a_decision(job_id, at=at, forecast=a_forecast(job_id, **said), allocation=size, previous=size)
    return record, replace(decision, expected=draw(st.none() | st.just(times)))


@given(found=kept("job-1"), limit=st.floats(1.0, 600.0), ran=st.floats(0.0, 700.0))
def test_no_end_is_told_beyond_the_limit_of_time(
    found: tuple[JobRecord, DecisionRecord], limit: float, ran: float
) -> None:
    """Also while a look is older than the job, or its size is new: of that the time passes."""
    record, decision = found
    record = replace(record, spec={**record.spec, "convergence": {"max_seconds": limit}})
    record = replace(record, started_at=None if record.started_at is None else NOW - ran)
    shown = job_body(record, decision, None, NOW)
    start = None if shown.expected is None else shown.expected.start_seconds
    left = limit if record.started_at is None else max(limit - ran, 0.0)
    for end in (shown.remaining_seconds, None if shown.expected is None else shown.expected.end_seconds):
        if end is None:
            continue
        for bound in ("mean", "low", "high"):
            begins = 0.0 if start is None else getattr(start, bound) or 0.0
            latest = begins + left if record.started_at is None else max(begins, left)
            assert (getattr(end, bound) or 0.0) <= latest + LIMIT_ENDS_SECONDS + 1e-6


@pytest.mark.parametrize("step", [3, 10, 90])
def test_a_budget_ends_a_job_after_seconds_whatever_its_speed_is(step: int) -> None:
    """Of its first reports no speed is known well: 20 s (3-122) was told, of which the budget paid for 14."""
    size = Allocation(1, 0)
    said: dict[str, Any] = {
        "rule": "max_cost",
        "total_steps": {"mean": 100.0, "low": 100.0, "high": 100.0},
        "remaining_steps": {"mean": 98.0, "low": 98.0, "high": 98.0},
        "seconds_per_step": {"mean": 0.2, "low": 0.03, "high": 1.2},
        "remaining_seconds": {"mean": 20.0, "low": 19.0, "high": 21.0},
    }
    decision = a_decision(at=NOW - 6.0, forecast=a_forecast(**said), allocation=size, previous=size)
    record = a_record(state=JobState.RUNNING, wanted=size, running=size, step=step, step_at=NOW, formed_at=NOW - 8.0)
    shown = job_body(record, decision, None, NOW).remaining_seconds
    assert shown == answers.Interval(mean=14.0, low=13.0, high=15.0)
    changed = replace(record, formed_at=NOW - 1.0)
    assert job_body(changed, decision, None, NOW).remaining_seconds != shown, "what it has now costs something else"
    may_end_before = a_forecast(**{**said, "remaining_steps": {"mean": 40.0, "low": 5.0, "high": 98.0}})
    by_steps = job_body(record, replace(decision, forecast=may_end_before), None, NOW).remaining_seconds
    assert by_steps is not None
    assert by_steps.mean > 0
    assert by_steps != shown, "its loss may end it sooner: that is a matter of steps"
    looked = replace(expected_at(NOW - 6.0, 20.0), steps_left=98.0)
    told = job_body(replace(record, step=step + 8), replace(decision, expected=looked), None, NOW).remaining_seconds
    assert told is not None
    assert told.mean == pytest.approx(14.0, rel=0.05), "steps that came late after a restart bring it no nearer"


@pytest.mark.parametrize("limit", [{"max_seconds": 120.0}, {"max_cost": 1.0}])
def test_a_job_that_ends_by_the_clock_takes_no_longer_than_predicted(limit: dict[str, float]) -> None:
    """Its steps became faster 16 s ago: it was told to take longer, to make more and more steps and to be less far."""
    size, (rule,) = Allocation(1, 0), limit
    said: dict[str, Any] = {
        "rule": rule,
        "total_steps": {"mean": 1000.0, "low": 960.0, "high": 1050.0},
        "remaining_steps": {"mean": 200.0, "low": 200.0, "high": 200.0},
        "seconds_per_step": {"mean": 0.1, "low": 0.08, "high": 0.12},
        "remaining_seconds": {"mean": 20.0, "low": 20.0, "high": 20.0},
    }
    decision = a_decision(at=NOW - 16.0, forecast=a_forecast(**said), allocation=size, previous=size)
    before: answers.Job | None = None
    for second in range(8):  # it ends in 4 s, or as soon as that is noticed
        now, step = NOW + second, 1030 + 15 * second
        record = a_record(state=JobState.RUNNING, wanted=size, running=size, step=step, step_at=now)
        record = replace(record, formed_at=NOW - 116.0, started_at=NOW - 116.0)
        record = replace(record, spec={**record.spec, "convergence": limit})
        shown = job_body(record, decision, None, now)
        assert not shown.longer_than_predicted
        left, seconds = shown.remaining_steps, shown.remaining_seconds
        assert left is not None
        assert seconds is not None
        assert (left.low or 0.0) <= left.mean <= (left.high or 0.0)
        assert left.mean == pytest.approx(12.0 * seconds.mean, rel=0.3), "as many as it makes in the time that is left"
        assert shown.progress is not None
        assert shown.progress == pytest.approx(min(step / (step + left.mean), 0.99))
        assert before is None or (before.progress or 0.0) <= shown.progress
        before = shown


@st.composite
def standing_still(draw: st.DrawFn) -> Standstill:
    """A job that makes no step, or that has not passed the step where it hung or failed."""
    failed_at = draw(st.none() | st.integers(1, 90))
    may_fail = failed_at is not None and draw(st.booleans())
    is_stalled, hung_at = draw(st.booleans()), draw(st.none() | st.integers(0, 90))
    return Standstill(
        "no step came for 40 s",
        is_stalled or hung_at is not None,
        hung_at=hung_at,
        failed_at=failed_at,
        may_fail=may_fail,
    )


@given(
    found=st.integers(1, 5).flatmap(lambda n: st.tuples(*(kept(f"job-{number}") for number in range(n)))),
    stands=st.lists(st.none() | standing_still(), min_size=5, max_size=5),
)
def test_all_answers_tell_the_same_start_and_end(
    found: tuple[tuple[JobRecord, DecisionRecord], ...], stands: list[Standstill | None]
) -> None:
    jobs = {record.id: record for record, _ in found}
    decisions = {decision.job_id: decision for _, decision in found}
    still = {
        job_id: one
        for (job_id, job), one in zip(jobs.items(), stands, strict=False)
        if one is not None and (one.failed_at is not None or one.hung_at is not None or not job.waits)
    }
    queue = in_queue(jobs.values(), decisions, NOW, still)
    for sooner, later in pairwise(queue):
        assert later.start is None or (sooner.start is not None and _is_shown_in_order(sooner.start, later.start))
    assert [each.position for each in queue] == list(range(1, len(queue) + 1))
    places = {each.job.id: each for each in queue}
    for record, decision in found:
        shown = job_body(record, decision, None, NOW, still=still)
        case = Case(job=record, decision=decision, now=NOW, others=jobs, decisions=decisions, queue=queue, still=still)
        explained, words = explanation_of(case).expected, " ".join(explanation_of(case).sentences)
        start = None if shown.expected is None else shown.expected.start_seconds
        assert explained.start_seconds == start
        assert explained.finish_seconds == shown.remaining_seconds
        assert job_metrics(record, decision, [], [], None, NOW, still).remaining_seconds == shown.remaining_seconds
        eta = None if shown.remaining_seconds is None else age(shown.remaining_seconds.mean)
        assert status_of(record, decision, 1, NOW, (), still)["eta"] == eta
        assert (start is None) or record.waits
        assert (record.id in places) == record.waits
        if record.waits:
            queued = places[record.id]
            assert queued_body(queued, NOW, still).expected == shown.expected
            assert queued.start == start
            assert record.retry_at or f"number {queued.position} of {len(queue)}" in words
            assert start is not None or shown.remaining_seconds is None, "it ends after a start that is known"
        if start is not None:
            assert span(start) in words or "in a moment" in words
        if shown.remaining_seconds is not None:
            assert span(shown.remaining_seconds) in words


@pytest.mark.parametrize("previous", [Allocation(1, 0), Allocation(2, 0)], ids=["changes", "was changing"])
@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("formed", [NOW - 10.0, NOW - 100.0, None], ids=["since then", "before", "not yet"])
def test_every_answer_tells_the_end_by_the_speed_of_the_size_that_a_job_has_since_the_round(
    previous: Allocation, looked: bool, formed: float | None
) -> None:
    """Two workers were predicted to make 20 steps/s and make 10, as one did: a script of one process in effect."""
    size, pace = Allocation(2, 0), {"mean": 0.05, "low": 0.04, "high": 0.06}
    record = a_record(wanted=size, running=size, step=100, formed_at=formed)
    left = {"mean": 400.0, "low": 400.0, "high": 400.0}
    said: dict[str, Any] = {
        "rule": "max_steps",
        "remaining_steps": left,
        "seconds_per_step": pace,
        "steps_per_second": 20.0,
    }
    forecast = a_forecast(total_steps={"mean": 500.0, "low": 500.0, "high": 500.0}, **said)
    decision = a_decision(at=NOW - 15.0, step_at=NOW - 16.0, forecast=forecast, allocation=size, previous=previous)
    if looked:
        times = replace(expected_at(NOW - 15.0, 20.0), steps_left=400.0)
        decision = replace(decision, expected=times)
    told = [a_sample(at=NOW - 5.0 + n, step=60 + 10 * n, sequence=n, workers=2, servers=0) for n in range(5)]
    newest = [SampleRecord(id=n, received_at=each.at, **asdict(each)) for n, each in enumerate(told)]
    speed = speed_here(record, newest, NOW)
    assert speed == pytest.approx(10.0)
    body = job_body(record, decision, speed, NOW, newest)
    case = Case(job=record, decision=decision, now=NOW, others={"job-1": record}, speed=speed)
    question = Question(range(1, 2), range(1), now=NOW, speed=speed)
    ends = [
        body.remaining_seconds,
        explanation_of(case).expected.finish_seconds,
        predictions_body(record, JOB, [decision], question, SETTINGS).remaining_seconds,
        job_line(record, decision, NOW, speed=speed).remaining_seconds,
        job_metrics(record, decision, [], newest, None, NOW).remaining_seconds,
    ]
    assert all(each == ends[0] for each in ends)
    assert ends[0] is not None
    assert status_of(record, decision, 1, NOW, speed=speed)["eta"] == age(ends[0].mean)
    if formed == NOW - 10.0:
        assert ends[0].mean == pytest.approx(40.0, rel=0.1)
        assert ends[0].low is not None
        assert ends[0].low < 40.0
    else:
        assert ends[0].mean < 30.0, "of these steps the forecast knows, or they are not of this size"


def test_own_steps_tell_the_speed_where_a_forecast_that_saw_the_first_of_them_goes_by_ended_jobs_still() -> None:
    """Of a model of another width: 100 steps/s, where it makes 10."""
    size = Allocation(2, 0)
    record = a_record(wanted=size, running=size, step=100, formed_at=NOW - 6.0)
    left = {"mean": 400.0, "low": 400.0, "high": 400.0}
    said: dict[str, Any] = {"rule": "max_steps", "remaining_steps": left, "steps_per_second": 100.0}
    said |= {"seconds_per_step": {"mean": 0.01, "low": 0.009, "high": 0.011}}
    told = [a_sample(at=NOW - 5.0 + n, step=60 + 10 * n, sequence=n, workers=2, servers=0) for n in range(5)]
    newest = [SampleRecord(id=n, received_at=each.at, **asdict(each)) for n, each in enumerate(told)]
    speed = speed_here(record, newest, NOW)
    for speed_from, seconds in (("similar jobs", 40.0), ("measured", 4.0)):
        forecast = a_forecast(total_steps={"mean": 500.0, "low": 500.0, "high": 500.0}, speed_from=speed_from, **said)
        decision = a_decision(at=NOW - 4.0, step_at=NOW - 5.0, forecast=forecast, allocation=size, previous=size)
        shown = job_body(record, decision, speed, NOW, newest).remaining_seconds
        assert shown is not None
        assert shown.mean == pytest.approx(seconds, rel=0.4)


@pytest.mark.parametrize(
    ("looked_at", "mean"), [(NOW - 15.0, 40.0), (NOW - 1.0, 20.0)], ids=["before the change", "since then"]
)
def test_no_end_is_told_by_a_look_that_knew_nothing_of_the_size_of_which_the_round_has_measured_the_speed(
    looked_at: float, mean: float
) -> None:
    """Looks follow their rounds, by up to some seconds."""
    size = Allocation(2, 0)
    record = a_record(wanted=size, running=size, step=100, formed_at=NOW - 10.0)
    left = {"mean": 400.0, "low": 400.0, "high": 400.0}
    said: dict[str, Any] = {"rule": "max_steps", "remaining_steps": left, "steps_per_second": 10.0}
    said |= {"seconds_per_step": {"mean": 0.1, "low": 0.09, "high": 0.11}}
    forecast = a_forecast(total_steps={"mean": 500.0, "low": 500.0, "high": 500.0}, **said)
    decision = a_decision(at=NOW, step_at=NOW - 1.0, forecast=forecast, allocation=size, previous=size)
    decision = replace(decision, expected=replace(expected_at(looked_at, 20.0), steps_left=400.0))
    shown = job_body(record, decision, None, NOW)
    assert shown.remaining_seconds is not None
    assert shown.remaining_seconds.mean == pytest.approx(mean)


def test_a_speed_is_of_what_the_job_has_now() -> None:
    """Not of the membership before, and not of one sample, in which it was starting."""
    record = a_record(membership_epoch=2)
    told = [a_sample(at=NOW - 3.0 + n, step=10 * n, sequence=n) for n in range(3)]
    before = [SampleRecord(id=n, received_at=each.at, **asdict(each)) for n, each in enumerate(told)]
    assert speed_here(record, before, NOW) is None
    one, two = (replace(each, membership_epoch=2) for each in before[1:])
    assert speed_here(record, [*before, one], NOW) is None
    assert speed_here(record, [*before, one, two], NOW) == pytest.approx(10.0)


@pytest.mark.parametrize(
    "again",
    [
        Standstill("it failed", is_stalled=False, failed_at=60),
        Standstill("it failed and hung", is_stalled=True, hung_at=60, failed_at=60),
        Standstill("its workers hung", is_stalled=True, hung_at=60),
    ],
    ids=lambda each: each.words,
)
def test_no_answer_tells_an_end_before_a_paused_job_has_passed_the_step_where_it_failed_or_hung(
    again: Standstill,
) -> None:
    record = a_record(state=JobState.PAUSED, wanted=NOTHING, running=NOTHING, step=50, formed_at=NOW - 90.0)
    said: dict[str, Any] = {"total_steps": {"mean": 500.0, "low": 400.0, "high": 600.0}, "rule": "max_steps"}
    decision = a_decision(at=NOW, forecast=a_forecast(**said), allocation=NOTHING, previous=NOTHING)
    start = Interval(NOW + 40.0, NOW + 30.0, NOW + 60.0)
    decision = replace(decision, expected=replace(expected_at(NOW, 700.0), start=start))
    for still in ({}, {"job-1": again}):
        shown = job_body(record, decision, None, NOW, still=still)
        (queued,) = in_queue([record], {"job-1": decision}, NOW, still)
        expected = queued_body(queued, NOW, still).expected
        assert expected == shown.expected
        assert expected is not None
        assert expected.start_seconds is not None
        told = shown.remaining_seconds, job_metrics(record, decision, [], [], None, NOW, still).remaining_seconds
        eta = status_of(record, decision, 1, NOW, (), still)["eta"]
        question = Question(range(1, 2), range(1, 2), now=NOW, still=still)
        predicted = predictions_body(record, JOB, [decision], question, SETTINGS)
        assert predicted.expected == shown.expected
        ends = (*told, expected.end_seconds, eta, predicted.remaining_seconds)
        assert [each is None for each in ends] == [bool(still)] * 5


@pytest.mark.parametrize(
    ("changes", "deadline", "told"),
    [
        ({}, 5000.0, (3890.0, True)),
        ({}, 1200.0, (3513.0, False)),
        ({"owner_paused_at": NOW}, 5000.0, None),
        ({"wanted": Allocation(2, 1)}, 1200.0, (890.0, True)),
    ],
    ids=["in time", "its wait is longer", "paused by its owner", "starts"],
)
def test_a_size_is_in_time_with_the_wait_for_its_start(
    changes: dict[str, Any], deadline: float, told: tuple[float, bool] | None
) -> None:
    """Of a job that is expected to start in 50 min."""
    priced = Settings(price_per_core_hour=1.0)
    spec = replace(JOB.spec, convergence=ConvergenceRule(max_steps=900))
    job = replace(JOB, spec=spec, allocation=NOTHING, state=JobState.QUEUED)
    decision = a_decision(at=NOW, allocation=NOTHING, forecast=forecast_of(job, NOW, priced).forecast)
    start = Interval(NOW + 3000.0, NOW + 2900.0, NOW + 3100.0)
    decision = replace(decision, expected=replace(expected_at(NOW, 4300.0), start=start))
    waits: dict[str, Any] = {"state": JobState.QUEUED, "wanted": NOTHING, "running": NOTHING, "step": 0}
    question = Question(range(1, 5), range(1, 3), now=NOW, limits=Limits(deadline_seconds=deadline))
    body = predictions_body(a_record(**waits | changes), job, [decision], question, priced)
    assert body.cost is not None
    choice = body.cost.cheapest_before_deadline
    assert (choice is None) == (told is None)
    if choice is not None and told is not None:
        seconds, keeps_limit = told
        assert choice.remaining_seconds.mean == pytest.approx(seconds, rel=0.02)
        assert choice.keeps_limit == keeps_limit


def test_no_end_that_only_ended_runs_tell_is_told_before_a_job_has_passed_the_step_where_it_failed() -> None:
    """Its own forecast tells none, and the look at the queue knows nothing of its error."""
    began = a_record(state=JobState.PAUSED, wanted=NOTHING, running=NOTHING, step=50, formed_at=NOW - 90.0)
    failed = replace(began, formed_at=None, last_error="no more memory")
    said: dict[str, Any] = {"total_steps": {"mean": 100.0, "low": 60.0, "high": 400.0}, "rule": None}
    said |= {"remaining_steps": {"mean": 50.0, "low": 10.0, "high": 350.0}}
    decision = a_decision(at=NOW, forecast=a_forecast(**said), allocation=NOTHING, previous=NOTHING)
    start = Interval(NOW + 40.0, NOW + 30.0, NOW + 60.0)
    decision = replace(decision, expected=replace(expected_at(NOW, 700.0), start=start))
    by_runs, of_failed = (progress_of(each, decision, NOW) for each in (began, failed))
    assert by_runs.remaining_seconds is not None
    assert (of_failed.remaining_seconds, of_failed.is_guessed) == (None, False)
    assert of_failed.expected is not None
    assert (of_failed.expected.end_seconds, of_failed.expected.start_seconds is None) == (None, False)


def _is_shown_in_order(sooner: answers.Interval, later: answers.Interval) -> bool:
    first, second = (interval_words(each.mean, each.low, each.high).mean for each in (sooner, later))
    return sooner.mean <= later.mean or first == second


def test_a_later_start_is_never_before_an_earlier_one_and_equal_ones_go_by_priority_and_age() -> None:
    """However doubtful they are; equal are those that are shown as equal."""
    starts = {"equal-low": (280.0, 1.0), "urgent": (396.0, 9.0), "equal-high": (281.0, 4.0), "soon": (275.0, 0.5)}
    jobs, decisions = [], {}
    for name, (mean, priority) in starts.items():
        jobs.append(a_record(name, state=JobState.QUEUED, wanted=NOTHING, running=NOTHING, spec={"priority": priority}))
        start = Interval(NOW + mean, NOW + 60.0, NOW + 12800.0)
        times = ExpectedTimesRecord(job_id=name, at=NOW, valid_until=NOW + 60.0, start=start, end=None, steps_left=None)
        decisions[name] = replace(a_decision(name, at=NOW), expected=times)
    assert [each.job.id for each in in_queue(jobs, decisions, NOW)] == ["soon", "equal-high", "equal-low", "urgent"]


def test_of_equal_starts_one_that_goes_first_is_first_and_others_stand_as_the_policy_has_it() -> None:
    """Of a job below others with the same start it was told that no other starts before it."""
    jobs, decisions = [], {}
    each_job: list[tuple[str, float, float | None]] = [("old", 1.0, None), ("urgent", 9.0, 800.0), ("due", 1.0, 70.0)]
    for number, (name, priority, due) in enumerate([*each_job, ("waited", 1.0, None)]):
        spec = {"priority": priority, **({} if due is None else {"deadline_seconds": due})}
        record = a_record(name, state=JobState.QUEUED, wanted=NOTHING, running=NOTHING, spec=spec)
        jobs.append(replace(record, created_at=NOW - 90.0 + number))
        start = Interval(NOW + 280.0, NOW + 60.0, NOW + 400.0)
        times = ExpectedTimesRecord(job_id=name, at=NOW, valid_until=NOW + 60.0, start=start, end=None, steps_left=None)
        decisions[name] = replace(a_decision(name, at=NOW), expected=times)
    decisions["waited"] = replace(decisions["waited"], message=f"Waits. {GOES_FIRST}")
    for policy, (order, by) in {
        "optimus": (["urgent", "old", "due"], "priority and age"),
        "fifo": (["old", "urgent", "due"], "age"),
        "edf": (["due", "urgent", "old"], "deadline and age"),
    }.items():
        queue = in_queue(jobs, decisions, NOW, policy=policy)
        assert [each.job.id for each in queue] == ["waited", *order]
        assert order_of_equals(policy) == by


ABSURD = st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 1.0, 1e9, 1e18, 1e300, 1.7e308, math.inf])


@st.composite
def absurd(draw: st.DrawFn, base: float = 0.0) -> Interval:
    low, mean, high = sorted(draw(st.lists(ABSURD, min_size=3, max_size=3)))
    return Interval(base + mean, base + low, base + high)


@settings(max_examples=150)
@given(data=st.data())
def test_no_figure_of_a_forecast_is_too_absurd_to_be_told(data: st.DataObject) -> None:
    """Telemetry may say anything; a job of which something absurd follows must not hide all others from a list."""
    draw = data.draw
    now, size = 1.7e9, draw(st.sampled_from([NOTHING, Allocation(1, 0)]))
    record = a_record(
        state=draw(st.sampled_from([JobState.RUNNING, JobState.PAUSED, JobState.QUEUED])),
        wanted=size,
        running=size,
        step=draw(st.sampled_from([0, 1, 10**6, 10**15])),
        retry_at=draw(st.sampled_from([None, now + 5.0, now + 1e12])),
        spec=draw(st.sampled_from([{}, {"deadline_seconds": 1.0}, {"convergence": {"max_steps": 10}}])),
    )
    forecast = a_forecast(
        total_steps=draw(absurd())._asdict(),
        remaining_steps=draw(absurd())._asdict(),
        rule=draw(st.sampled_from([None, "max_steps", "max_seconds"])),
        seconds_per_step=draw(st.none() | absurd().map(Interval._asdict)),
    )
    at = now - draw(st.sampled_from([0.0, 1e-6, 50.0, 1e9]))
    times = ExpectedTimesRecord(
        job_id="job-1",
        at=at,
        valid_until=now + 60.0,
        start=draw(st.none() | absurd(at)),
        end=draw(st.none() | absurd(at)),
        steps_left=draw(st.none() | ABSURD),
    )
    decision = a_decision(at=at, forecast=forecast, allocation=size, previous=size)
    decision = replace(decision, expected=draw(st.none() | st.just(times)))
    body = job_body(record, decision, draw(st.none() | ABSURD), now)
    sentences = explanation_of(Case(job=record, decision=decision, now=now)).sentences
    assert body.id == record.id
    assert all(sentences)


def test_a_speed_that_is_absurdly_slow_moves_no_other_answer() -> None:
    pace = {"mean": 1.7e308, "low": 1.0, "high": math.inf}
    total = {"mean": 1e18, "low": 1.0, "high": 1e300}
    forecast = a_forecast(total_steps=total, remaining_steps=total, rule="max_steps", seconds_per_step=pace)
    size = Allocation(1, 0)
    running = a_record(state=JobState.RUNNING, wanted=size, running=size, step=10**15)
    decision = a_decision(at=NOW - 50.0, forecast=forecast, allocation=size, previous=size)
    assert job_body(running, decision, None, NOW).id == running.id


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"task": None, "command": ["python", "train.py"]},
            ("neither its command", "report(total_steps=...)", "--progress-pattern", "--max-steps"),
        ),
        (
            {"convergence": {"target_loss": -1.0}},
            ("cannot be said: its loss is not seen to come to -1, and no limit", "`optimus set job-1`", "--max-epochs"),
        ),
        (
            {"convergence": {"target_metric": {"name": "accuracy", "at_least": 0.95}}},
            ("its accuracy is not seen to come to 0.95",),
        ),
    ],
)
def test_where_nothing_tells_the_number_of_steps_it_is_said_how_to_tell_it(
    asked: dict[str, Any], told: tuple[str, ...]
) -> None:
    total, size = {"mean": 20.0, "low": 11.0, "high": 100.0}, Allocation(1, 0)
    left = {"mean": 10.0, "low": 1.0, "high": 90.0}
    forecast = a_forecast(total_steps=total, remaining_steps=left, rule=None)
    running = a_record(state=JobState.RUNNING, wanted=size, running=size, step=10, spec=asked)
    decision = a_decision(at=NOW, forecast=forecast, allocation=size, previous=size)
    words = " ".join(explanation_of(Case(job=running, decision=decision, now=NOW)).sentences)
    assert "When it ends cannot be said" in words
    assert all(each in words for each in told), words


@pytest.mark.parametrize("rule", ["target_loss", "target_metric", "loss_decrease"])
@pytest.mark.parametrize("n_known", [0, 1, 4, 5])
def test_of_the_first_losses_nobody_is_told_that_they_tell_no_end(rule: str, n_known: int) -> None:
    """A loss of the first second says nothing of whether it will come to its target: there is nothing to set yet."""
    asked = {
        "target_loss": 1.0,
        "target_metric": {"name": "accuracy", "at_least": 0.95},
        "loss_decrease": {"below": 0.01},
    }
    total, size = {"mean": 2.0, "low": 1.1, "high": 10.0}, Allocation(1, 0)
    forecast = a_forecast(total_steps=total, remaining_steps={"mean": 1.0, "low": 0.1, "high": 9.0}, rule=None)
    job = a_record(wanted=size, running=size, step=1, spec={"convergence": {rule: asked[rule]}})
    decision = a_decision(at=NOW, forecast=forecast, allocation=size, previous=size)
    n_figures = {"loss": 9, "accuracy": n_known} if rule == "target_metric" else {"loss": n_known}
    words = " ".join(explanation_of(Case(job=job, decision=decision, now=NOW, n_figures=n_figures)).sentences)
    what = "accuracy" if rule == "target_metric" else "loss"
    assert (f"cannot be said yet: too little of its {what} is known." in words) == (n_known < 5)
    assert ("`optimus set" in words) == (n_known == 5)


SCRIPT = {"task": None, "command": ["python", "train.py"]}
DECREASE, METRIC = {"below": 0.01}, {"name": "accuracy", "at_least": 0.95}


def of_a_script(rule: dict[str, Any], n_figures: dict[str, int], *, loss: float | None, **profile: Any) -> list[str]:
    """What is explained of one that makes steps, and whose end nothing tells."""
    size = Allocation(1, 0)
    total, left = {"mean": 20.0, "low": 11.0, "high": 100.0}, {"mean": 10.0, "low": 1.0, "high": 90.0}
    spec = {**SCRIPT, "convergence": {**rule, "command_ends": True}}
    running = a_record(
        state=JobState.RUNNING, wanted=size, running=size, step=10, spec=spec, loss=loss, profile=profile
    )
    decision = a_decision(
        at=NOW, forecast=a_forecast(total_steps=total, remaining_steps=left, rule=None), allocation=size, previous=size
    )
    return list(explanation_of(Case(job=running, decision=decision, now=NOW, n_figures=n_figures)).sentences)


@pytest.mark.parametrize(
    ("rule", "n_figures", "profile", "told"),
    [
        ({"target_loss": 0.1}, {"loss": 2}, {}, "When it ends cannot be said yet: too little of its loss is known."),
        (
            {"target_loss": 0.1},
            {"loss": 9},
            {},
            "When it ends cannot be said: its loss is not seen to come to 0.1, and neither its command nor what it "
            "prints tells how many steps it makes.",
        ),
        (
            {"target_metric": METRIC},
            {"loss": 9, "accuracy": 2},
            {},
            "When it ends cannot be said yet: too little of its accuracy is known.",
        ),
        (
            {"loss_decrease": DECREASE},
            {"loss": 2},
            {"steps_per_epoch": 20.0},
            "When it ends cannot be said yet: too little of its loss is known.",
        ),
        (
            {"loss_decrease": DECREASE},
            {"loss": 9},
            {"steps_per_epoch": 20.0},
            "When it ends cannot be said: its losses do not tell when its rule will hold, and neither its command nor "
            "what it prints tells how many steps it makes.",
        ),
    ],
)
def test_why_no_end_of_a_script_is_told_fits_its_rule(
    rule: dict[str, Any], n_figures: dict[str, int], profile: dict[str, Any], told: str
) -> None:
    found = of_a_script(rule, n_figures, loss=1.0, **profile)
    assert told in found
    assert not any("It has told no" in each for each in found)


@pytest.mark.parametrize("is_task", [True, False], ids=["task", "script"])
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PAUSED])
def test_a_job_with_a_limit_of_time_is_not_told_that_nothing_ends_it(state: JobState, is_task: bool) -> None:
    """Without a speed its limit tells no number of steps."""
    size = Allocation(1, 0) if state is JobState.RUNNING else NOTHING
    spec = {} if is_task else SCRIPT
    limited = a_record(
        state=state, wanted=size, running=size, step=10, loss=1.0, started_at=NOW - 40.0, wanted_at=NOW - 2.0,
        spec={**spec, "convergence": {"max_seconds": 100.0}},
    )  # fmt: skip
    guessed = a_forecast(total_steps={"mean": 20.0, "low": 11.0, "high": 100.0}, rule=None)
    decision = a_decision(at=NOW - 1.0, forecast=guessed, allocation=size, previous=size)
    told = " ".join(explanation_of(Case(job=limited, decision=decision, now=NOW)).sentences)
    assert "ends it" not in told
    assert "--max-seconds" not in told
    if state is JobState.RUNNING:
        assert "It ends in 60 s at the latest: its limit is 1 min 40 s." in told
    else:
        assert "When it ends cannot be said before it goes on. Its limit of 1 min 40 s runs on: after " in told


@pytest.mark.parametrize(
    ("rule", "loss", "n_figures", "told"),
    [
        ({"loss_decrease": DECREASE}, 1.0, {"loss": 9}, {"epoch"}),
        ({"loss_decrease": DECREASE}, None, {"loss": 0}, {"epoch", "loss"}),
        ({"target_loss": 0.1}, None, {"loss": 0}, {"loss"}),
        ({"target_metric": METRIC}, 1.0, {"loss": 9, "accuracy": 0}, {"accuracy"}),
        ({"target_metric": METRIC, "loss_decrease": DECREASE}, 1.0, {"loss": 9, "accuracy": 0}, {"accuracy", "epoch"}),
        ({"max_seconds": 100.0}, None, {"loss": 0}, set()),
    ],
)
def test_a_script_that_does_not_tell_what_its_rule_needs_is_told_so(
    rule: dict[str, Any], loss: float | None, n_figures: dict[str, int], told: set[str]
) -> None:
    found = [each for each in of_a_script(rule, n_figures, loss=loss) if each.startswith("It has told no ")]
    assert {each.split()[4] for each in found} == told
    assert all("cannot hold" in each and "optimus_client" in each and "--progress-pattern" in each for each in found)


@pytest.mark.parametrize(
    ("epoch", "told"),
    [
        (None, "It has told no epoch so far, or epoch 0 alone: until it tells the next one, its rule"),
        (0.0, "It has told no epoch so far, or epoch 0 alone: until it tells the next one, its rule"),
        (1.0, "How many steps an epoch has is known when its second one begins at the earliest: until it is, its rule"),
    ],
)
def test_a_script_in_its_first_epoch_is_not_told_that_it_tells_none(epoch: float | None, told: str) -> None:
    """It prints `Epoch 1/3 step 20 loss 0.5`: that is read, and mending it helps nothing."""
    spec = {**SCRIPT, "convergence": {"loss_decrease": DECREASE}}
    job = replace(a_record(state=JobState.RUNNING, step=10, spec=spec, loss=1.0, profile={}), epoch=epoch)
    (said,) = (untold_words(each) for each in untold_of(job, {"loss": 9}))
    assert said.startswith(told)
    assert "cannot hold" in said
    assert ("--progress-pattern" in said) is not bool(epoch)


def test_no_size_is_told_a_time_beyond_the_limit() -> None:
    rule = ConvergenceRule(max_steps=5000, max_seconds=100.0)
    job = replace(JOB, spec=replace(JOB.spec, convergence=rule), started_at=NOW - 40.0)
    (fitted,) = Fits().of([job], SETTINGS)
    found = sizes(job, fitted.speeds, SIZES, Estimate(500, 400, 600), Basis(NOW, SETTINGS))
    assert [each.left.seconds.high for each in found if each.left is not None] == [60.0 + LIMIT_ENDS_SECONDS] * 3


def test_a_job_that_its_limit_of_time_ends_takes_as_long_with_every_size() -> None:
    rule = ConvergenceRule(max_seconds=100.0)
    job = replace(JOB, spec=replace(JOB.spec, convergence=rule), started_at=NOW - 40.0)
    (fitted,) = Fits().of([job], SETTINGS)
    left = Estimate(61.0, 60.0, 63.0)
    for shown in (left, None):  # nothing is shown at its size while it is paused
        found = sizes(job, fitted.speeds, SIZES, None, Basis(NOW, SETTINGS, shown, is_by_clock=True))
        assert [each.left.seconds for each in found if each.left is not None] == [left] * 3
        assert all(each.is_cut for each in found)


@pytest.mark.parametrize(
    ("max_cost", "max_steps", "left", "worth"),
    [
        (90.0, None, [41.0, 27.67, 14.33], []),
        (90.0, 110, [10.0, 7.0, 5.5], [(4, 2), (2, 1), (1, 1)]),
        (90.0, 135, [35.0, 24.6, 14.33], [(2, 1), (1, 1)]),
        (90.0, 139, [38.6, 27.67, 14.33], [(1, 1)]),
        (90.0, 145, [41.0, 27.67, 14.33], []),
        (290.0, 145, [44.5, 32.0, 25.6], [(4, 2), (2, 1), (1, 1)]),
    ],
)
def test_no_size_goes_on_beyond_what_the_budget_pays_for(
    max_cost: float, max_steps: int | None, left: list[float], worth: list[tuple[int, int]]
) -> None:
    """With one unit of money for each second of a core, 10 of them spent. A size that the budget ends is not told to
    be worth a thought."""
    priced = Settings(price_per_core_hour=3600.0)
    rule = ConvergenceRule(max_cost=max_cost, max_steps=max_steps)
    job = replace(JOB, spec=replace(JOB.spec, convergence=rule), step=100, started_at=NOW - 100.0, spent=10.0)
    forecast = forecast_of(job, NOW, priced).forecast
    decision = a_decision(at=NOW, allocation=job.allocation, previous=job.allocation, forecast=forecast)
    record = a_record(state=JobState.RUNNING, wanted=job.allocation, running=job.allocation, step=100)
    limits = {"convergence": {"max_cost": max_cost, "max_steps": max_steps}}
    record = replace(record, started_at=NOW - 100.0, formed_at=NOW - 90.0, step_at=NOW, spec={**record.spec, **limits})
    body = predictions_body(record, job, [decision], Question(range(1, 5), range(1, 3), now=NOW), priced)
    cells = {(each.workers, each.servers): each for each in body.speeds}
    told = [cells[size.workers, size.servers] for size in SIZES]
    seconds = [each.remaining_seconds.mean for each in told if each.remaining_seconds is not None]
    assert seconds == pytest.approx(left, rel=0.05)
    assert body.remaining_seconds is not None
    assert seconds[1] == pytest.approx(body.remaining_seconds.mean)
    most = [(max_cost - 10.0) + LIMIT_ENDS_SECONDS * (size.workers + size.servers) for size in SIZES]
    costs = [each.cost.high for each in told if each.cost is not None and each.cost.high is not None]
    assert len(costs) == len(most)
    assert all(cost <= limit + 1e-6 for cost, limit in zip(costs, most, strict=True))
    assert body.cost is not None
    found = [(each.workers, each.servers) for each in body.cost.worth_considering]
    assert [each for each in found if Allocation(*each) in SIZES] == worth


@pytest.mark.parametrize(
    ("start", "after"), [(82.0, 22.0), (92.0, 32.0), (41.0, 11.0)], ids=["with", "after", "before"]
)
def test_a_start_moves_with_the_end_that_it_waits_for(start: float, after: float) -> None:
    """It was foreseen at 82 s, and 22 s are left of it by now: fewer steps are left than was thought."""
    end = Interval(NOW + 82.0, NOW + 10.0, NOW + 900.0)
    trains = a_record("trains", state=JobState.RUNNING, wanted=Allocation(1, 0), running=Allocation(1, 0))
    of_it = ExpectedTimesRecord(job_id="trains", at=NOW, valid_until=NOW + 60.0, start=None, end=end, steps_left=None)
    decided = replace(a_decision("trains"), expected=of_it)
    left = 22.0 / 82.0
    ends: dict[str, Interval | None] = {"trains": Interval(22.0, 10.0 * left, 900.0 * left)}
    times = replace(
        of_it, job_id="waits", start=end._replace(mean=NOW + start), behind=(Awaited(1.0, trains, decided),)
    )
    found = expected_times(times, NOW, ends, waits=True)
    assert found is not None
    assert found.start_seconds is not None
    assert found.start_seconds.mean == pytest.approx(after)
    assert found.start_seconds.high == pytest.approx(900.0 * left)


def test_a_start_may_come_with_the_first_of_two_ends() -> None:
    """It was foreseen with the one, 45 s away, or with the other, 105 s away. The first comes on, the other stays."""
    of_it = ExpectedTimesRecord(job_id="near", at=NOW, valid_until=NOW + 60.0, start=None, end=None, steps_left=None)
    ends: dict[str, Interval | None] = {"near": Interval(9.0, 8.0, 11.0), "far": Interval(80.0, 75.0, 90.0)}
    behind = []
    for name, end in (("near", 45.0), ("far", 105.0)):
        trains = a_record(name, state=JobState.RUNNING, wanted=Allocation(1, 0), running=Allocation(1, 0))
        its = replace(of_it, job_id=name, end=Interval(NOW + end, NOW + end - 3.0, NOW + end + 4.0))
        behind.append(Awaited(0.5, trains, replace(a_decision(name), expected=its)))
    start = Interval(NOW + 58.0, NOW + 42.0, NOW + 107.0)
    times = replace(of_it, job_id="waits", start=start, behind=tuple(behind))
    found = expected_times(times, NOW + 36.0, ends, waits=True)
    assert found is not None
    assert found.start_seconds is not None
    assert found.start_seconds.low is not None
    assert found.start_seconds.high is not None
    assert found.start_seconds.low <= 9.0
    assert found.start_seconds.high >= 80.0 - 36.0


@pytest.mark.parametrize("at_once", [1.0, 0.0])
def test_a_start_with_an_end_that_has_come_close_may_come_with_it(at_once: float) -> None:
    """It was told for a bit later than the end, 46 s away, as it is more doubtful. Now the end is 8 s away."""
    end = Interval(NOW + 46.0, NOW + 38.0, NOW + 55.0)
    trains = a_record("trains", state=JobState.RUNNING, wanted=Allocation(1, 0), running=Allocation(1, 0))
    of_it = ExpectedTimesRecord(job_id="trains", at=NOW, valid_until=NOW + 60.0, start=None, end=end, steps_left=None)
    decided = replace(a_decision("trains"), expected=of_it)
    start = Interval(NOW + 48.0, NOW + 42.0, NOW + 63.0)
    times = replace(of_it, job_id="waits", start=start, behind=(Awaited(1.0, trains, decided),))
    times = replace(times, at_once={"trains": at_once})
    found = expected_times(times, NOW + 38.0, {"trains": Interval(8.0, 7.0, 9.0)}, waits=True)
    assert found is not None
    assert found.start_seconds is not None
    assert found.start_seconds.low is not None
    assert (found.start_seconds.low <= 8.0) == bool(at_once), "else something comes between"


@pytest.mark.parametrize(("ago", "told"), [(0.0, 2.0), (1.5, 0.5), (2.5, 0.0), (5.0, None)])
def test_a_start_that_has_not_come_with_the_end_that_it_waits_for_is_told_no_longer(
    ago: float, told: float | None
) -> None:
    """It was foreseen 2 s after the end, which has come: from there it is counted, then something else is awaited."""
    end = Interval(NOW + 82.0, NOW + 82.0, NOW + 82.0)
    ended = a_record("trains", state=JobState.SUCCEEDED, finished_at=NOW - ago)
    of_it = ExpectedTimesRecord(
        job_id="trains", at=NOW - 9.0, valid_until=NOW + 60.0, start=None, end=end, steps_left=None
    )
    start, decided = Interval(NOW + 84.0, NOW + 84.0, NOW + 84.0), replace(a_decision("trains"), expected=of_it)
    times = replace(of_it, job_id="waits", start=start, behind=(Awaited(1.0, ended, decided),))
    found = expected_times(times, NOW, waits=True)
    assert found is not None
    assert (None if found.start_seconds is None else found.start_seconds.high) == told
    assert (found.end_seconds is None) == (told is None)


def test_an_expected_end_stays_within_its_interval_as_its_start_comes() -> None:
    """The low end of the start had moved by less than its median: then the end's would have passed its own."""
    said = ExpectedTimesRecord(
        job_id="waits",
        at=NOW,
        valid_until=NOW + 60.0,
        start=Interval(NOW + 40.0, NOW + 33.0, NOW + 55.0),
        end=Interval(NOW + 74.0, NOW + 67.0, NOW + 100.0),
        steps_left=None,
    )
    for ago in (0.0, 5.0, 10.0, 19.0, 25.0, 31.0, 45.0):
        found = expected_times(said, NOW + ago, waits=True)
        assert found is not None
        assert found.end_seconds is not None
        end = found.end_seconds
        assert end.low is not None
        assert end.high is not None
        assert end.low <= end.mean <= end.high
