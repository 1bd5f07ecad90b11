"""What is read off a job's rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.model import NOTHING, Allocation, Directive, JobState, Reason
from optimus_service.insight.progress import explain, finite_document, measured_speed, outlook
from optimus_service.store.records import DecisionRecord, JobRecord, SampleRecord

NOW = 1000.0


def job(**changes: Any) -> JobRecord:
    values: dict[str, Any] = dict.fromkeys(JobRecord.__slots__)
    values |= {"id": "job-1", "name": "job", "state": JobState.RUNNING, "directive": Directive.RUN}
    values |= {"step": 40, "wanted": Allocation(2, 1), "running": NOTHING}
    return JobRecord(**values | changes)


def decision(reason: str = "Unchanged", **forecast: Any) -> DecisionRecord:
    return DecisionRecord(
        job_id="job-1",
        at=NOW,
        allocation=Allocation(2, 1),
        previous=Allocation(1, 1),
        reason=reason,
        message="A sentence.",
        forecast=forecast,
    )


def total(mean: float, low: float = 50.0, high: float = 200.0) -> dict[str, float]:
    return {"mean": mean, "low": low, "high": high}


def sample(**changes: Any) -> SampleRecord:
    values: dict[str, Any] = {"id": 1, "received_at": NOW, "membership_epoch": 1, "rank": 0, "sequence": 0}
    values |= {"workers": 1, "servers": 1, "at": NOW, "step": 10, "n_steps": 2, "data_epoch": 0.0, "loss": 1.0}
    return SampleRecord(**values | {"n_examples": 1, "seconds": 0.5} | changes)


# --- progress --------------------------------------------------------------------------------------------------------


def test_steps_made_since_the_forecast_are_taken_off() -> None:
    found = outlook(job(step=40), decision(total_steps=total(100), steps_per_second=2.0))
    assert found.progress == pytest.approx(0.4)
    assert found.remaining_steps is not None
    assert (found.remaining_steps.mean, found.remaining_steps.low, found.remaining_steps.high) == (60, 10, 160)
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean == 30


def test_a_job_beyond_its_forecast_has_nothing_left_but_no_less() -> None:
    found = outlook(job(step=150), decision(total_steps=total(100), steps_per_second=2.0))
    assert found.progress == 1.0
    assert found.remaining_steps is not None
    assert (found.remaining_steps.mean, found.remaining_steps.low, found.remaining_steps.high) == (0, 0, 50)


@pytest.mark.parametrize("forecast", [{}, {"total_steps": None}, {"total_steps": total(math.inf)}])
def test_without_a_forecast_nothing_is_said(forecast: dict[str, Any]) -> None:
    found = outlook(job(), decision(**forecast))
    assert (found.progress, found.remaining_steps, found.remaining_seconds) == (None, None, None)
    assert outlook(job(), None).progress is None


@pytest.mark.parametrize(("state", "progress"), [(JobState.SUCCEEDED, 1.0), (JobState.FAILED, 0.4)])
def test_an_ended_job_has_nothing_left(state: JobState, progress: float) -> None:
    found = outlook(job(state=state), decision(total_steps=total(100), steps_per_second=2.0))
    assert (found.progress, found.remaining_steps, found.remaining_seconds) == (progress, None, None)


# --- speed -----------------------------------------------------------------------------------------------------------


def test_the_speed_is_that_of_the_job_over_the_last_half_minute() -> None:
    old = sample(received_at=NOW - 31, at=NOW - 31, step=0)
    recent = [sample(at=NOW - 4 + n, step=100 + 10 * n, received_at=NOW - 4 + n) for n in range(4)]
    assert measured_speed([*recent[::-1], old], NOW) == pytest.approx(10.0)


def test_a_single_record_is_timed_by_itself() -> None:
    assert measured_speed([sample(n_steps=2, seconds=0.5)], NOW) == 4.0
    assert measured_speed([sample(seconds=0.0)], NOW) is None
    assert measured_speed([], NOW) is None


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


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_says_what_would_change_it(reason: Reason) -> None:
    found = explain(job(), decision(reason.value))
    assert found.message == "A sentence."
    others = {explain(job(), decision(other.value)).what_would_change_it for other in Reason if other is not reason}
    assert found.what_would_change_it
    assert found.what_would_change_it not in others or reason in (Reason.CONVERGED, Reason.CANCELLING)


def test_a_reason_of_a_newer_version_is_explained_as_well() -> None:
    assert explain(job(), decision("SomethingNew")).what_would_change_it


def test_a_failed_job_says_why() -> None:
    assert "out of memory" in explain(job(state=JobState.FAILED, failure="out of memory"), decision()).message


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_documents_lose_what_json_cannot_say() -> None:
    assert finite_document({"a": [1, math.nan, {"b": -math.inf}], "c": (True, "x", None)}) == {
        "a": [1, None, {"b": None}],
        "c": [True, "x", None],
    }
