"""The end of a job that has another size since the last round: all calls tell it by the speed that it has now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.service.api.api_harness import NOW, Api, membership, sample, telemetry
from tests.service.store.store_builders import a_decision, a_forecast, a_round, set_wanted

from optimus_contract.codec import write
from optimus_scheduler.model import Allocation, Directive
from optimus_service.api.jobs.plan import shown_now
from optimus_service.push.stream_state import read_stream_state

CERTAIN = {"mean": 500.0, "low": 500.0, "high": 500.0}


def test_lists_and_explanations_and_predictions_tell_one_end_soon_after_a_change_of_size(api: Api) -> None:
    """Two workers were predicted to make 20 steps/s, and make 10."""
    size = Allocation(2, 1)
    job_id = api.submit(convergence={"max_steps": 500})
    set_wanted(api.repository, job_id, size, Directive.RUN, (), NOW - 1.0)
    said: dict[str, Any] = {"rule": "max_steps", "total_steps": CERTAIN, "remaining_steps": CERTAIN}
    said |= {"seconds_per_step": {"mean": 0.05, "low": 0.04, "high": 0.06}, "steps_per_second": 20.0}
    decided = a_decision(job_id, at=NOW - 1.0, forecast=a_forecast(job_id, **said), allocation=size, previous=size)
    api.repository.rounds.add(a_round(), [decided])
    api.as_task("POST", job_id, "membership", json=membership(job_id))
    for number in range(1, 6):
        api.surroundings.clock.now = NOW + number
        steps = telemetry(sample(sequence=number, step=10 * number, at=NOW + number))
        assert api.as_task("POST", job_id, "telemetry", json=steps).json()["accepted"] == 1
    now = api.surroundings.clock.now
    (listed,) = api.get("/v1/jobs").json()["jobs"]
    state = read_stream_state(api.repository, api.services.cluster, "optimus", "1", now)
    beside = shown_now(api.services, [job_id], {job_id: api.repository.jobs.get(job_id)}, now)[job_id].left
    assert beside is not None
    ends = [
        write(beside),
        listed["remaining_seconds"],
        api.job(job_id)["remaining_seconds"],
        api.get(f"/v1/jobs/{job_id}/explanation").json()["expected"]["finish_seconds"],
        api.get(f"/v1/jobs/{job_id}/predictions").json()["remaining_seconds"],
        json.loads(state.jobs[job_id])["remaining_seconds"],
    ]
    ends = [{name: each[name] for name in ("mean", "low", "high")} for each in ends]
    assert listed["steps_per_second"] == pytest.approx(10.0)
    assert all(each == pytest.approx(ends[0]) for each in ends)
    assert ends[0]["mean"] == pytest.approx(45.0, rel=0.05), "450 steps are left"


def test_a_job_whose_next_step_is_late_is_told_the_speed_of_before_and_for_how_long_none_came(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    told = []
    for number in range(1, 14):
        api.surroundings.clock.now = NOW + number
        if number <= 5:
            steps = telemetry(sample(sequence=number, step=10 * number, at=NOW + number))
            assert api.as_task("POST", job_id, "telemetry", json=steps).json()["accepted"] == 1
        told.append((api.job(job_id)["steps_per_second"], api.job(job_id)["silent_seconds"]))
    assert all(speed == pytest.approx(10.0) for speed, _ in told)
    assert [silent for _, silent in told] == [None] * 7 + [pytest.approx(number) for number in range(3, 9)]
    api.surroundings.clock.now = NOW + 21.0
    job = api.job(job_id)
    assert (job["steps_per_second"], job["silent_seconds"]) == (None, None)
    assert job["standstill"].startswith("no step came for 16 s")
