"""A forecast is one value, in rows of this release and of others."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from tests.service.store.store_builders import MakeJob, a_decision, a_forecast

from optimus_models.calibration import UNCALIBRATED, Calibration, Widening
from optimus_models.speed.course import AS_MEASURED, CourseToCome
from optimus_scheduler.model import Forecast, Interval, SpeedSource
from optimus_service.insight.jobs.bodies import decision_body
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.records import PredictionRecord
from optimus_service.store.repository import Repository
from optimus_service.store.rounds.forecasts import from_json, known, to_json

RELEASED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "stored" / "forecasts-0.1.0.json").read_text(encoding="utf-8")
)
"""As release 0.1.0 stored them with two decisions about one job."""
NAMES = Forecast._fields

numbers = st.floats(allow_nan=False)
intervals = st.none() | st.builds(Interval, numbers, numbers, numbers)
coefficients = st.dictionaries(st.text(max_size=5), numbers, max_size=3)


def course(ratio: float, doubt: float, n_knots: int) -> CourseToCome:
    return CourseToCome(ratio, doubt, tuple((step + 0.5, step**1.5) for step in range(n_knots)))


widenings = st.builds(Widening, numbers, numbers, numbers)
FORECASTS = st.builds(
    Forecast,
    st.just("job-1"),
    intervals,
    intervals,
    numbers,
    rule=st.none() | st.text(max_size=9),
    loss_curve=coefficients,
    speed_model=coefficients,
    steps_per_second=st.none() | numbers,
    remaining_seconds=intervals,
    seconds_per_step=intervals,
    calibration=st.builds(Calibration, widenings, widenings, widenings, start=widenings),
    finished_runs=st.integers(0, 99),
    finished_runs_share=numbers,
    speed_from=st.none() | st.sampled_from(SpeedSource),
    cost=intervals,
    converged=st.booleans(),
    seconds_after_steps=intervals,
    course=st.just(AS_MEASURED) | st.builds(course, st.floats(0.01, 100.0), st.floats(0.0, 5.0), st.integers(2, 17)),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["mean", "low", "steps"]), inner),
    max_leaves=6,
)


@given(FORECASTS)
def test_a_forecast_comes_back_from_its_json(forecast: Forecast) -> None:
    document = json.loads(json.dumps(to_json(forecast)))
    assert from_json("job-1", document) == forecast
    assert set(document) == set(NAMES), "each field is stored"


@given(st.dictionaries(st.sampled_from([*NAMES, "of_a_newer_release"]), json_values) | json_values)
def test_whatever_is_stored_is_a_forecast_that_can_be_shown(document: Any) -> None:
    forecast = from_json("job-1", document)
    shown = decision_body(a_decision(forecast=forecast))
    assert shown.forecast.job_id == "job-1"
    for value in (forecast.total_steps, forecast.cost):
        assert known(value) is None or known(value) == known(known(value))


@pytest.mark.parametrize("name", NAMES)
def test_what_a_row_does_not_say_is_not_known(name: str) -> None:
    stored = RELEASED["under way"]
    less = from_json("job-1", {key: value for key, value in stored.items() if key != name})
    nothing_known = Forecast("job-1", None, None, confidence=0.0)
    assert getattr(less, name) == getattr(nothing_known, name)
    assert from_json("job-1", {**stored, name: ["no such thing"]}) == less


def test_a_row_of_the_last_release_says_what_it_said() -> None:
    found = from_json("job-1", RELEASED["under way"])
    assert found.total_steps == Interval(274.0965356121402, 267.5993954082444, 306.4668958930423)
    assert (found.rule, found.speed_from, found.converged) == ("loss_decrease", SpeedSource.MEASURED, False)
    assert (found.loss_curve["beta0"], found.speed_model["n_points"]) == (0.039034757786599074, 2)
    newer = {"seconds_after_steps": None, "course": None}
    assert to_json(found) == RELEASED["under way"] | newer, "nothing of it is lost"
    assert to_json(from_json("job-1", RELEASED["first round"])) == RELEASED["first round"] | newer


def test_a_field_of_a_newer_release_is_left_out() -> None:
    """Decisions are never written again, so their rows keep it."""
    newer = {**RELEASED["under way"], "of_a_newer_release": {"a": [1]}, "speed_from": "tea leaves"}
    found = from_json("job-1", newer)
    assert found.speed_from is None
    assert found.total_steps == from_json("job-1", RELEASED["under way"]).total_steps


def test_bounds_that_are_not_said_are_as_far_away_as_can_be() -> None:
    assert a_forecast(cost={"mean": 2.0, "low": None, "high": None}).cost == Interval(2.0, 0.0, math.inf)
    assert known(Interval(math.inf, 1.0, math.inf)) is None


def test_a_prediction_of_the_last_release_is_read(repository: Repository, make_job: MakeJob, database_url: str) -> None:
    """It stored null for a bound that is infinite."""
    make_job()
    anything = Interval(1.0, 1.0, 1.0)
    prediction = PredictionRecord(
        job_id="job-1", part="25 %", task="m:f", at=1.0, steps=anything, seconds=anything, total_steps=anything
    )
    repository.rounds.add_predictions([prediction])
    released = {
        "steps": {"mean": 90.0, "low": 70.0, "high": None},
        "seconds": {"mean": 18.0, "low": 0.0, "high": 20.0},
        "total_steps": None,
    }
    engine = create_engine_from_url(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE promises SET document = :said"), {"said": json.dumps(released)})
        connection.execute(text("UPDATE jobs SET state = 'succeeded', finished_at = 9.0"))
    engine.dispose()
    (kept,) = repository.shown_predictions.ended(0.0, 10)
    assert kept.prediction.steps == Interval(90.0, 70.0, math.inf)
    assert kept.prediction.seconds == Interval(18.0, 0.0, 20.0)
    assert (kept.prediction.total_steps, kept.prediction.calibration) == (None, UNCALIBRATED)


@pytest.mark.parametrize(
    "stored",
    [
        {"ratio": 2.0, "doubt": 0.1, "knots": [[1.0, 1.0]]},
        {"ratio": 2.0, "doubt": 0.1, "knots": [[1.0, 1.0], [1.0, 2.0]]},
        {"ratio": 2.0, "doubt": 0.1, "knots": [[1.0, 3.0], [2.0, 2.0]]},
        {"ratio": 0.0, "doubt": 0.1, "knots": [[1.0, 1.0], [2.0, 2.0]]},
        {"ratio": 2.0, "doubt": -1.0, "knots": [[1.0, 1.0], [2.0, 2.0]]},
        {"ratio": 2.0, "doubt": 0.1, "knots": [[1.0, 1.0], [2.0, None]]},
        {"ratio": math.nan, "doubt": 0.1, "knots": [[1.0, 1.0], [2.0, 2.0]]},
        {"ratio": 2.0, "doubt": math.nan, "knots": [[1.0, 1.0], [2.0, 2.0]]},
    ],
)
def test_a_course_that_cannot_be_one_is_none(stored: dict[str, Any]) -> None:
    assert from_json("job-1", {"course": stored}).course == AS_MEASURED
