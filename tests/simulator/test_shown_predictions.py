"""What simulated jobs are told of their time left, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.simulator.conftest import GPU

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Interval
from optimus_simulator.options import Options
from optimus_simulator.outcome.comparison import as_json, compare
from optimus_simulator.replay import Replay
from optimus_simulator.shown_predictions import (
    AT_SUBMISSION,
    IN_LIFE,
    START,
    WHILE_RUNNING,
    Prediction,
    Predictions,
    summary,
)
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order


def test_the_newest_prediction_at_each_part_of_life_is_judged() -> None:
    predictions = Predictions(0.0, [])
    for at in (1.0, 24.0, 26.0, 80.0):
        predictions.note(Prediction(at, Interval(100.0 - at, 90.0 - at, 110.0 - at)))
    judged = {(one.kind, one.part): one.prediction.at for one in predictions.judged(20.0, 100.0)}
    assert judged[AT_SUBMISSION, 0.0] == 1.0
    assert judged[IN_LIFE, 0.1] == 1.0
    assert judged[IN_LIFE, 0.25] == 24.0
    assert judged[IN_LIFE, 0.5] == 26.0
    assert judged[WHILE_RUNNING, 0.25] == 26.0  # 40 s after the submission, 20 s after the start
    assert judged[WHILE_RUNNING, 0.75] == 80.0
    assert all(one.is_held for one in predictions.judged(20.0, 100.0))


def test_a_prediction_without_an_interval_is_counted_as_none() -> None:
    predictions = Predictions(0.0, [Prediction(0.0, None)])
    (row,) = [row for row in summary(predictions.judged(0.0, 10.0)) if row["kind"] == AT_SUBMISSION]
    assert (row["jobs"], row["promised"]) == (1, 0)
    assert "held" not in row


def test_a_prediction_that_did_not_come_true_is_not_held() -> None:
    predictions = Predictions(0.0, [Prediction(0.0, Interval(50.0, 40.0, 60.0))])
    (row,) = [row for row in summary(predictions.judged(0.0, 100.0)) if row["kind"] == AT_SUBMISSION]
    assert row["held"] == 0.0
    assert row["median_error"] == pytest.approx(0.5)


def test_a_start_is_judged_by_the_part_of_the_wait_that_was_over() -> None:
    predictions = Predictions(0.0, [])
    for at in (1.0, 12.0, 60.0, 105.0):
        wait = Interval(100.0 - at, 90.0 - at, 110.0 - at) if at < 100.0 else None
        predictions.note(Prediction(at, Interval(400.0 - at, 300.0, 500.0), wait=wait))
    starts = [one for one in predictions.judged(100.0, 400.0) if one.kind == START]
    assert [(one.part, one.prediction.at) for one in starts] == [
        (0.0, 1.0),
        (0.1, 1.0),
        (0.25, 12.0),
        (0.5, 12.0),
        (0.75, 60.0),
    ]
    assert all(one.is_held and one.error == 0.0 for one in starts)
    late = [one for one in predictions.judged(150.0, 400.0) if one.kind == START]
    assert not any(one.is_held for one in late)


def test_what_is_said_of_a_job_that_begins_at_once_is_no_prediction() -> None:
    predictions = Predictions(0.0, [Prediction(1.0, Interval(50.0, 40.0, 60.0))])
    assert not [one for one in predictions.judged(1.0, 51.0) if one.kind == START]


def test_starts_of_jobs_that_wait_are_judged_in_a_simulation(ring_trace: Callable[..., Trace]) -> None:
    outcome = Replay(ring_trace(12, 1), policy_named("fifo"), Options(promises=True, oracle=True)).run()
    waited = [job for job in outcome.jobs if job.started_at - job.submitted_at > 60.0]
    starts = [row for row in summary(one for job in outcome.jobs for one in job.predictions) if row["kind"] == START]
    assert waited
    assert starts[0]["promised"] >= len(waited)
    assert all(0.0 <= row["held"] <= 1.0 for row in starts)


def test_every_job_of_a_simulation_is_told_something_at_every_part_of_its_life(
    ring_trace: Callable[..., Trace],
) -> None:
    outcome = Replay(ring_trace(6, 1), policy_named("optimus"), Options(promises=True)).run()
    document = as_json(compare([outcome]))
    rows = document["policies"][0]["time_left"]
    assert {(row["kind"], row["part"]) for row in rows} >= {(IN_LIFE, part) for part in (0.1, 0.25, 0.5, 0.75)}
    assert all(row["promised"] == row["jobs"] for row in rows if row["part"] == 0.75)


def test_looking_ahead_changes_no_decision(ring_trace: Callable[..., Trace]) -> None:
    outcomes = [
        Replay(ring_trace(6, 1), policy_named("optimus"), Options(promises=looks)).run() for looks in (False, True)
    ]
    assert outcomes[0].figures() == outcomes[1].figures()


def test_with_an_oracle_the_time_left_is_right(ring_trace: Callable[..., Trace]) -> None:
    outcome = Replay(ring_trace(6, 1), policy_named("fifo"), Options(promises=True, oracle=True)).run()
    errors = [one.error for job in outcome.jobs for one in job.predictions if one.part == 0.75 and one.kind != START]
    assert max(errors) < 0.1


def test_what_ended_jobs_were_told_corrects_what_later_ones_are(ring_trace: Callable[..., Trace]) -> None:
    outcome = Replay(ring_trace(8, 1), policy_named("optimus"), Options(promises=True)).run()
    said = [one.prediction for job in outcome.jobs for one in job.predictions if one.prediction.left is not None]
    assert any(prediction.left != prediction.uncorrected for prediction in said)
    for prediction in said:
        assert prediction.left is not None
        assert prediction.left.low <= prediction.left.mean <= prediction.left.high


def test_answers_to_deadlines_are_counted_with_what_came_of_them(ring_job: Callable[..., TraceJob]) -> None:
    def due(name: str, at: float, deadline_at: float) -> TraceJob:
        job = ring_job(name, at, steps=1000.0, most=1)
        return replace(job, spec=replace(job.spec, deadline_at=deadline_at))

    jobs = in_order([due("sure", 0.0, 1500.0), due("hopeless", 10.0, 900.0), due("sooner", 20.0, 1500.0)])
    trace = Trace("due", equal_nodes(1, GPU), jobs)
    outcome = Replay(trace, policy_named("optimus"), Options(promises=True, oracle=True)).run()
    found = as_json(compare([outcome]))["policies"][0]["deadline_answers"]
    assert (found["promised"], found["promised_met"]) == (1, 1), "the first one, which the others do not stop"
    assert (found["declined"], found["declined_missed"]) == (2, 2)
    without = Replay(trace, policy_named("optimus"), Options(oracle=True)).run()
    assert "deadline_answers" not in as_json(compare([without]))["policies"][0], "nobody asked"
