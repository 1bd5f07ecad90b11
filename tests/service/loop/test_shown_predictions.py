"""What rounds predict of jobs is kept, judged by their ends, and corrects what is predicted of the next ones."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from tests.scheduler.builders import a_job
from tests.service.loop.loop_world import World
from tests.service.loop.test_task_exits import crash

from optimus_models.calibration import AS_PREDICTED, Calibration, Predicted, Widening
from optimus_scheduler.ahead.corrected_times import ANY_TASK, CorrectedTimes
from optimus_scheduler.ahead.queue import ExpectedTimes
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import Allocation, Forecast, Interval, JobState, Role
from optimus_scheduler.retries import Retry
from optimus_scheduler.settings import Settings
from optimus_service.api.jobs.jobs import shown
from optimus_service.api.services import Services
from optimus_service.insight.predictions.review import scorecard
from optimus_service.observe.finished_runs import FinishedRunHistory
from optimus_service.observe.shown_predictions import (
    KINDS,
    PARTS,
    START_PARTS,
    TIME_PARTS,
    PredictedParts,
    Scores,
    outcome_of,
    part_of,
    time_prediction,
    verdicts,
)
from optimus_service.store.records import EndedPrediction, PredictionRecord

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def finish(world: World, job_id: str = "job-1") -> None:
    world.looks_ahead = True
    world.submit(job_id)
    world.live_until(f"{job_id} has ended", lambda: world.state(job_id).is_final)
    world.round()


def test_a_job_leaves_one_prediction_for_each_part_of_its_life(world: World) -> None:
    finish(world)
    kept = world.repository.shown_predictions.ended(0.0, 100)
    parts = [each.prediction.part for each in kept if each.prediction.part in PARTS]
    times = [each.prediction.part for each in kept if each.prediction.part in TIME_PARTS]
    assert times == sorted(set(times), key=TIME_PARTS.index)
    assert parts == sorted(set(parts), key=PARTS.index)
    assert {"first step", "50 %", "75 %"} <= set(parts)
    job = world.repository.jobs.get("job-1")
    assert {(each.total_steps, each.finished_at) for each in kept} == {(job.step, job.finished_at)}
    assert {each.prediction.task for each in kept} == {"m:f"}
    for verdict in verdicts(kept):
        assert verdict.came.true > 0
        assert verdict.came.predicted.low <= verdict.came.predicted.mean <= verdict.came.predicted.high
    assert {verdict.kind for verdict in verdicts(kept)} == {"steps", "seconds", "time"}  # it did not wait


@once
def test_another_leader_repeats_no_prediction(world: World) -> None:
    world.submit()
    world.live_until("something is predicted", lambda: bool(world.repository.shown_predictions.parts_of(["job-1"])))
    before = world.repository.shown_predictions.parts_of(["job-1"])
    again = world.restarted()
    again.round()
    assert again.repository.shown_predictions.parts_of(["job-1"]) == before


@once
def test_a_cancelled_job_judges_nothing(world: World) -> None:
    world.submit()
    world.live_until("something is predicted", lambda: bool(world.repository.shown_predictions.parts_of(["job-1"])))
    assert world.repository.shown_predictions.ended(0.0, 100) == []


@once
def test_predictions_are_deleted_with_the_decisions(world: World) -> None:
    finish(world)
    leader = world.repository
    assert leader.shown_predictions.ended(0.0, 100)
    later = (leader.jobs.get("job-1").finished_at or 0.0) + 100.0
    while leader.retention.prune(later, 10.0).total:
        pass
    assert leader.shown_predictions.ended(0.0, 100) == []


@once
def test_what_was_learned_from_predictions_is_in_the_next_forecast(world: World) -> None:
    finish(world)
    finished_runs = FinishedRunHistory(world.repository, 1e6)
    finished_runs.refresh()
    errors = finished_runs.experience_of("m:f").seconds
    assert errors.widening("m:f", 0.0, SAID) != AS_PREDICTED
    assert errors.widening("another:task", 0.0, SAID) != AS_PREDICTED  # all tasks together
    finish(world, "job-2")
    kept = [
        each.prediction
        for each in world.repository.shown_predictions.ended(0.0, 100)
        if each.prediction.job_id == "job-2"
    ]
    assert any(each.calibration.seconds != AS_PREDICTED for each in kept)


def test_the_time_to_the_end_is_predicted_at_submission_and_on_the_way(world: World) -> None:
    finish(world)
    world.submit("first", workers={"min": 6, "max": 6}, servers={"max": 1})
    world.live_until("it trains", lambda: world.repository.jobs.get("first").step > 0)
    world.submit("second", workers={"min": 6, "max": 6}, servers={"max": 1})
    world.round()
    assert world.repository.jobs.get("second").wanted.is_empty
    assert {"time submitted", "start submitted"} <= world.repository.shown_predictions.parts_of(["second"])["second"]
    world.live_until("both have ended", lambda: world.state("second").is_final)
    world.round()
    found = [each for each in verdicts(world.repository.shown_predictions.ended(0.0, 100)) if each.kind == "time"]
    assert {each.part for each in found if each.job_id == "second"} >= {"submitted", "75 %"}
    waited = next(each for each in found if (each.job_id, each.part) == ("second", "submitted"))
    record = world.repository.jobs.get("second")
    assert record.finished_at is not None
    assert waited.came.true == pytest.approx(record.finished_at - record.created_at, abs=10.0)
    start = next(each for each in verdicts(world.repository.shown_predictions.ended(0.0, 100)) if each.kind == "start")
    assert (start.job_id, start.part) == ("second", "submitted")
    assert record.started_at is not None
    assert start.came.true == pytest.approx(record.started_at - record.created_at, abs=10.0)
    assert {"time", "start"} <= {
        score.kind for score in scorecard(world.repository.shown_predictions.ended(0.0, 100)).scores
    }


class Told(NamedTuple):
    forecast: Forecast
    retry: Retry | None = None
    start: Interval | None = None
    is_told: bool = True


KNOWN = Forecast("job-1", Interval(900.0, 800.0, 1000.0), Interval(100.0, 90.0, 120.0), 0.9, rule="max_steps")
SOON = Interval(150.0, 140.0, 160.0)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Told(KNOWN), id="known"),
        pytest.param(Told(Forecast("job-1", None, None, 0.0)), id="by earlier runs"),
        pytest.param(Told(KNOWN._replace(rule=None)), id="by earlier runs, with its first steps"),
        pytest.param(Told(KNOWN._replace(converged=True), is_told=False), id="finishing"),
        pytest.param(Told(KNOWN, Retry(1, 3, 200.0, 60.0, "x"), SOON, is_told=False), id="retry"),
    ],
)
def test_only_ends_that_users_are_told_are_predictions(case: Told) -> None:
    job = replace(a_job("job-1"), allocation=Allocation(1, 0), step=800, retry=case.retry)
    ahead = ExpectedTimes(case.start, Interval(200.0, 190.0, 220.0))
    outlook = forecast(job, 100.0, Settings())._replace(forecast=case.forecast)
    said = time_prediction(outlook, CorrectedTimes(ahead, ahead, AS_PREDICTED), 100.0)
    assert (said is not None) == case.is_told
    if not case.is_told and case.retry is None:
        assert part_of(job, case.forecast) is None
    assert part_of(job, KNOWN._replace(rule=None)) is None, "what is supposed by its age alone"


@once
def test_nothing_is_judged_that_lists_do_not_tell_while_a_job_hangs(world: World) -> None:
    """It stands still, its worker is replaced, and it has yet to pass the step where it hung; another one waits."""
    services = cast(Services, SimpleNamespace(repository=world.repository, clock=world.clock, listens_since=0.0))
    jobs, told, kept = ["job-1", "second"], Counter[tuple[str, str]](), set[tuple[str, str]]()

    def round_of(phase: str) -> None:
        world.round()
        there = [job for job in map(world.repository.jobs.by_id([*jobs]).get, jobs) if job is not None]
        for body in shown(services, there):
            start = None if body.expected is None else body.expected.start_seconds
            shows = {"steps": body.remaining_steps, "time": body.remaining_seconds, "start": start}
            shows["seconds"] = body.remaining_seconds
            for made in world.repository.shown_predictions.of_job(body.id):
                if (made.job_id, made.part) in kept:
                    continue
                kept.add((made.job_id, made.part))
                for kind in KINDS:
                    if getattr(made, kind) is not None:
                        told[phase, kind] += 1
                        assert shows[kind] is not None, (phase, made)

    world.looks_ahead = True
    world.submit(workers={"min": 6, "max": 6}, servers={"max": 1})
    for _ in range(4):
        round_of("trains")
        world.train(5)
    stopped_at = world.repository.jobs.get("job-1").step
    world.clock.now += 20.0
    world.submit("second", workers={"min": 6, "max": 6}, servers={"max": 1})
    for _ in range(12):
        world.clock.now += 5.0
        round_of("no step comes")
    crash(world, Role.WORKER, code=5)
    for _ in range(12):
        world.clock.now += 5.0
        round_of("is replaced")
    state = world.coordinators["job-1"]
    state.step, state.members = 0, ()
    world.train(1)
    while world.repository.jobs.get("job-1").step <= stopped_at:
        round_of("makes again what it had made")
        world.train(1)
    for _ in range(200):
        world.train(5)
        round_of("goes on")
        if world.state("job-1").is_final:
            break
    assert world.state("job-1") is JobState.SUCCEEDED
    phases = {phase for phase, kind in told if kind in ("time", "seconds", "start")}
    assert phases == {"trains", "goes on"}, told


def test_nothing_is_predicted_by_a_step_of_before_a_restart() -> None:
    parts = PredictedParts(PARTS)
    parts.know({}, {"trains": 400.0, "new": 0.0})
    made = prediction(1, 100.0, 100.0).prediction
    here = [replace(made, job_id="trains", step=400.0), replace(made, job_id="new", step=0.0)]
    assert [each.job_id for each in parts.new(here)] == ["new"]
    assert parts.new([replace(made, job_id="trains", step=401.0)])


# --- judged ----------------------------------------------------------------------------------------------------------


def prediction(
    number: int, predicted: float, true: float, task: str = "m:f", half_width: float = 1.25, widened: float = 1.0
) -> EndedPrediction:
    """`predicted` of 1,000 seconds and steps that were left, of a job that is at step 0."""
    shown = half_width**widened
    value, by = Interval(predicted, predicted / shown, predicted * shown), Widening(widened, widened)
    made = PredictionRecord(
        job_id=f"job-{number}",
        part="25 %",
        task=task,
        at=100.0,
        steps=value,
        seconds=value,
        total_steps=value,
        calibration=Calibration(by, by),
    )
    return EndedPrediction(prediction=made, total_steps=round(true), finished_at=100.0 + true)


def scores(*kept: EndedPrediction) -> Scores:
    found = Scores()
    found.add(kept)
    return found


def widened(found: Scores, task: str = "m:f") -> Calibration:
    """How the next prediction of this kind is corrected, at a quarter of its life."""
    known = found.experience_of(task)
    return Calibration(*(getattr(known, kind).widening(task, 0.25, SAID) for kind in Calibration._fields))


SAID = Predicted(1000.0, 1000.0 / 1.25, 1000.0 * 1.25)


def start_of(job_id: str, said: Interval, waited: float, by: Widening = AS_PREDICTED) -> EndedPrediction:
    made = PredictionRecord(
        job_id=job_id, part=START_PARTS[0], task="m:f", at=100.0, start=said, calibration=Calibration(start=by)
    )
    return EndedPrediction(prediction=made, total_steps=10, finished_at=9000.0, started_at=100.0 + waited)


def test_a_start_is_judged_by_the_first_tasks_and_corrects_those_of_all_tasks() -> None:
    said = Interval(100.0, 80.0, 120.0)
    (verdict,) = verdicts([start_of("a", said, 300.0)])
    assert (verdict.kind, verdict.part, verdict.came.true, verdict.came.held) == ("start", "submitted", 300.0, False)
    scores = Scores()
    scores.add([start_of(f"job-{number}", said, 300.0) for number in range(40)])
    by = scores.experience_of("another:task").start.widening(ANY_TASK, 0.0, Predicted(*said_of(said)), moves=True)
    assert math.exp(by.shift) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("came", [79.0, 79.4, 80.0, 119.9, 120.6, 121.0])
def test_what_is_told_as_held_is_within_what_was_told(came: float) -> None:
    """By the figures that are shown, without a tolerance: of starts, ends, seconds and steps alike."""
    said = Interval(100.0, 80.0, 120.0)
    steps = Interval(1100.0, 1080.0, 1120.0)
    made = start_of("a", said, came).prediction
    made = replace(made, time=said, seconds=said, steps=said, total_steps=steps)
    ended = EndedPrediction(
        prediction=made, total_steps=round(1000 + came), finished_at=100.0 + came, started_at=100.0 + came
    )
    found = {kind: outcome_of(ended, kind) for kind in KINDS}
    for kind, outcome in found.items():
        assert outcome is not None, kind
        assert outcome.held == (80.0 <= outcome.true <= 120.0), kind


def said_of(interval: Interval) -> tuple[float, float, float]:
    return interval.mean, interval.low, interval.high


def test_predictions_that_were_too_sure_widen_the_next_ones() -> None:
    by = widened(scores(*(prediction(n, 1000.0, 1000.0 * (2.0 if n % 2 else 0.5)) for n in range(60))))
    assert by.seconds.up > 2.0
    assert by.seconds.down > 2.0
    assert by.steps.up > 2.0


def test_a_widened_prediction_is_judged_as_it_was_before() -> None:
    """Else the factors would fall back as soon as they help."""
    plain = widened(scores(*(prediction(n, 1000.0, 1600.0) for n in range(60))))
    wide = widened(scores(*(prediction(n, 1000.0, 1600.0, widened=2.5) for n in range(60))))
    assert wide.seconds == pytest.approx(plain.seconds)


def test_a_task_has_factors_of_its_own() -> None:
    found = scores(
        *(prediction(n, 1000.0, 1000.0 * (1.1 if n % 2 else 0.9)) for n in range(60)),
        *(prediction(100 + n, 1000.0, 3000.0, task="other:task") for n in range(60)),
    )
    assert widened(found, "other:task").seconds.up > 3.0
    assert widened(found).seconds.up < 2.0


def test_many_predictions_of_one_job_change_no_more_than_one() -> None:
    parts = []
    for part in PARTS:
        made = replace(prediction(1, 1000.0, 8000.0).prediction, part=part)
        parts.append(EndedPrediction(prediction=made, total_steps=8000, finished_at=8100.0))
    assert widened(scores(*parts)).seconds.up < 1.6


def test_the_same_prediction_counts_once() -> None:
    kept = [prediction(n, 1000.0, 2000.0) for n in range(20)]
    found = scores(*kept)
    before = widened(found)
    found.add(kept)
    assert widened(found) == before


def test_a_certain_number_of_steps_is_no_prediction() -> None:
    assert list(verdicts([prediction(1, 1000.0, 1000.0, half_width=1.0)])) == []


def test_half_known_predictions_are_left_out() -> None:
    made = replace(prediction(1, 1000.0, 900.0).prediction, seconds=None)
    found = list(verdicts([EndedPrediction(prediction=made, total_steps=900, finished_at=1000.0)]))
    assert [verdict.kind for verdict in found] == ["steps"]
    assert found[0].came.held
