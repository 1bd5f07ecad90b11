"""What predictions say of money, of earlier jobs, and of jobs that have ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.service.api.api_harness import NOW, Api, faults, on_sqlite, problem, sample, telemetry
from tests.service.api.conftest import Serve
from tests.service.api.people import ADMINISTRATOR, add_token, add_user
from tests.service.store.store_builders import batches_of, samples_of

from optimus_scheduler.model import NOTHING, Allocation, Interval, Mode
from optimus_service.observe.finished_runs import finished_run_of
from optimus_service.observe.shown_predictions import PARTS
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import DecisionRecord, PredictionRecord, RoundRecord
from optimus_service.store.rounds.forecasts import from_json

pytestmark = on_sqlite
N_SAMPLES = 40


def loss_at(step: int) -> float:
    return 1.0 / (0.01 * step + 0.5) + 0.1


def train(api: Api, job_id: str, n: int = N_SAMPLES, **rest: Any) -> None:
    """Two workers and one server, ten steps a second."""
    api.start(job_id)
    profile = {"n_parameters": 10, "n_examples": 640, "global_batch_size": 32, "steps_per_epoch": 20.0}
    assert api.as_task("PUT", job_id, "profile", json=profile).status_code == 204
    samples = [sample(sequence=k, step=10 * (k + 1), at=NOW + k, loss=loss_at(10 * (k + 1)), **rest) for k in range(n)]
    api.as_task("POST", job_id, "telemetry", json=telemetry(*samples))


def believe(api: Api, job_id: str, *, at: float, step: int, total: float) -> None:
    """A round that believed in so many steps."""
    spread = {"mean": total, "low": 0.8 * total, "high": 1.5 * total}
    left = {name: max(value - step, 0.0) for name, value in spread.items()}
    forecast = {
        "total_steps": spread,
        "remaining_steps": left,
        "remaining_seconds": {name: value / 10.0 for name, value in left.items()},
        "steps_per_second": 10.0,
        "confidence": 0.7,
        "rule": "loss_decrease",
    }
    record = RoundRecord(at=at, trigger="test", seconds=0.1, phase_seconds={}, n_jobs=1, n_actions=0)
    decision = DecisionRecord(
        job_id=job_id,
        at=at,
        allocation=Allocation(2, 1),
        previous=NOTHING,
        reason="GrantedMore",
        message="",
        forecast=from_json(job_id, forecast),
    )
    api.repository.rounds.add(record, [decision])


def predictions(api: Api, job_id: str, **params: Any) -> dict[str, Any]:
    answer = api.get(f"/v1/jobs/{job_id}/predictions", params={"workers": "1-4", "servers": "1-2", **params})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_without_prices_nothing_has_a_cost(api: Api) -> None:
    job_id = api.submit()
    train(api, job_id)
    believe(api, job_id, at=NOW + 40, step=400, total=1000)
    found = predictions(api, job_id, deadline_seconds=60)
    assert found["cost"] is None
    assert all(point["cost"] is None for point in found["speeds"])
    assert all(point["remaining_seconds"] is not None for point in found["speeds"])


def test_cost_so_far_and_to_finish_with_each_size(serving: Serve) -> None:
    with serving(price_per_core_hour=3600.0) as api:  # 1 a second and core
        job_id = api.submit()
        train(api, job_id)
        believe(api, job_id, at=NOW + 40, step=400, total=1000)
        api.surroundings.clock.now = NOW + 40
        found = predictions(api, job_id)
        assert found["cost"]["so_far"] == pytest.approx(3 * 40.0)
        speeds = {(point["workers"], point["servers"]): point for point in found["speeds"]}
        here = speeds[2, 1]
        assert here["remaining_seconds"]["mean"] == pytest.approx(600 / here["steps_per_second"])
        assert here["cost"]["mean"] == pytest.approx(3 * here["remaining_seconds"]["mean"])
        assert found["cost"]["to_finish"] == here["cost"], "what trains is its size, whatever it is to get"
        # The speed is uncertain as well as the number of steps: the interval is wider than that of the steps.
        steps = found["remaining_steps"]
        assert here["cost"]["high"] / here["cost"]["mean"] > steps["high"] / steps["mean"]
        assert here["measured"] == pytest.approx(10.0, rel=0.05)
        assert speeds[4, 2]["measured"] is None


def test_a_size_is_found_for_a_deadline_and_for_a_budget(serving: Serve) -> None:
    with serving(price_per_core_hour=3600.0) as api:
        job_id = api.submit()
        train(api, job_id)
        believe(api, job_id, at=NOW + 40, step=400, total=1000)
        cost = predictions(api, job_id, deadline_seconds=100_000, budget=100_000)["cost"]
        options = cost["worth_considering"]
        assert [option["remaining_seconds"]["mean"] for option in options] == sorted(
            option["remaining_seconds"]["mean"] for option in options
        )
        assert cost["cheapest_before_deadline"]["cost"] == options[-1]["cost"]
        assert cost["fastest_under_budget"]["remaining_seconds"] == options[0]["remaining_seconds"]
        assert cost["cheapest_before_deadline"]["keeps_limit"]

        hopeless = predictions(api, job_id, deadline_seconds=1, budget=1)["cost"]
        assert not hopeless["cheapest_before_deadline"]["keeps_limit"]
        assert not hopeless["fastest_under_budget"]["keeps_limit"]


@pytest.mark.parametrize("limit", ["deadline_seconds", "budget"])
def test_impossible_limits_are_refused(api: Api, limit: str) -> None:
    job_id = api.submit()
    for value in ("0", "-1", "inf", "nan", "soon"):
        assert limit in faults(api.get(f"/v1/jobs/{job_id}/predictions", params={limit: value}))


def test_an_explanation_tells_for_how_long_the_budget_pays(serving: Serve) -> None:
    with serving(price_per_core_hour=3600.0) as api:
        job_id = api.submit(task=None, command=["python", "loop.py"], convergence={"max_cost": 20.0})
        told = " ".join(api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"])
        assert "Its budget of 20.00 pays for 20 s with its smallest size: it ends then at the latest." in told


def test_an_ended_job_shows_what_was_predicted_and_what_came(serving: Serve) -> None:
    with serving(price_per_core_hour=3600.0) as api:
        job_id = api.submit()
        api.surroundings.clock.now = NOW
        train(api, job_id)
        tell(api, *(of_steps(job_id, *each) for each in ((50, 800.0), (100, 1000.0), (200, 500.0), (390, 410.0))))
        certain = of_steps(job_id, 40, 410.0)
        steps, total = (Interval(one.mean, one.mean, one.mean) for one in (certain.steps, certain.total_steps) if one)
        tell(api, replace(certain, part=PARTS[0], steps=steps, total_steps=total, seconds=None))
        api.surroundings.clock.now = NOW + 40
        result = {"outcome": "succeeded", "step": 400, "final_loss": 0.3, "metrics": {"test_accuracy": 0.9}}
        assert api.as_task("POST", job_id, "result", json=result).status_code == 204
        api.surroundings.clock.now = NOW + 1000  # what it cost does not grow any more

        outcome = predictions(api, job_id)["outcome"]
        assert (outcome["steps"], outcome["final_loss"], outcome["metrics"]) == (400, 0.3, {"test_accuracy": 0.9})
        assert outcome["seconds"] == pytest.approx(40.0)
        assert outcome["cost"] == pytest.approx(3 * 40.0)
        limit, *outcome["review"] = outcome["review"]
        assert (limit["step"], limit["error_percent"], limit["held"]) == (40, pytest.approx(2.5), None)
        assert [point["step"] for point in outcome["review"]] == [50, 100, 200, 390]
        assert [round(point["error_percent"], 3) for point in outcome["review"]] == [100.0, 150.0, 25.0, 2.5]
        assert [point["held"] for point in outcome["review"]] == [False, False, True, True]
        assert outcome["review"][2]["remaining_seconds"]["mean"] == pytest.approx(30.0)
        assert outcome["review"][2]["true_remaining_seconds"] == pytest.approx(20.0)
        assert outcome["review"][2]["seconds_error_percent"] == pytest.approx(50.0)
        assert [point["seconds_held"] for point in outcome["review"]] == [False, False, True, True]


def of_steps(job_id: str, step: int, total: float) -> PredictionRecord:
    """That so many steps are left, of 0.1 s each; told as the job's 400 steps go on."""
    part = PARTS[2 + sum(step > each for each in (50, 100, 200))]
    left = Interval(total - step, 0.5 * (total - step), 1.6 * (total - step))
    all_steps = Interval(*(step + each for each in (left.mean, left.low, left.high)))
    seconds = Interval(*(each / 10 for each in (left.mean, left.low, left.high)))
    at = NOW + step / 10
    return PredictionRecord(
        job_id=job_id, part=part, task="m:f", at=at, step=step, steps=left, seconds=seconds, total_steps=all_steps
    )


def tell(api: Api, *promises: PredictionRecord) -> None:
    api.repository.rounds.add_predictions(promises)


def test_one_job_and_the_scorecard_are_judged_alike(api: Api) -> None:
    """By the same promises: their times are not those at the size that the job had, where others were told."""
    job_id = api.submit()
    api.surroundings.clock.now = NOW
    train(api, job_id)
    told = (
        ("time 10 %", 4.0, 0, Interval(60.0, 50.0, 70.0)),
        ("time 50 %", 21.0, 210, Interval(18.0, 15.0, 18.5)),
        ("time 75 %", 30.0, None, Interval(20.0, 15.0, 22.0)),
    )
    times = [
        PredictionRecord(job_id=job_id, part=part, task="m:f", at=NOW + at, step=step, time=time)
        for part, at, step, time in told
    ]
    tell(api, of_steps(job_id, 50, 410.0), of_steps(job_id, 200, 300.0), *times)
    api.surroundings.clock.now = NOW + 40
    api.as_task("POST", job_id, "result", json={"outcome": "succeeded", "step": 400, "final_loss": 0.3})
    review = predictions(api, job_id)["outcome"]["review"]
    assert [point["step"] for point in review] == [0, 50, 200, 210, 210]
    assert review[0]["total_steps"] is None, "no step was predicted yet"
    assert review[3]["total_steps"] is None, "those that were predicted at step 200 are not of this moment"
    timed = [point for point in review if point["remaining_seconds"] is not None]
    assert [point["remaining_seconds"]["mean"] for point in timed] == [60.0, 18.0, 20.0]
    assert [point["true_remaining_seconds"] for point in timed] == pytest.approx([36.0, 19.0, 10.0])
    assert [point["seconds_held"] for point in timed] == [False, False, False], "19 s is not within 18.5"
    scores = {(each["kind"], each["part"]): each for each in api.get("/v1/promises").json()["scores"]}
    for part, point in zip(("10 %", "50 %", "75 %"), timed, strict=True):
        score = scores["time", part]
        assert score["median_error_percent"] == pytest.approx(abs(point["seconds_error_percent"]))
        assert score["held"] == point["seconds_held"]


def test_what_was_told_at_one_moment_is_one_row(api: Api) -> None:
    job_id = api.submit()
    api.surroundings.clock.now = NOW
    train(api, job_id)
    steps = of_steps(job_id, 200, 300.0)
    time = replace(steps, part="time 50 %", steps=None, seconds=None, total_steps=None, time=Interval(18.0, 15.0, 22.0))
    tell(api, steps, time)
    api.surroundings.clock.now = NOW + 40
    api.as_task("POST", job_id, "result", json={"outcome": "succeeded", "step": 400, "final_loss": 0.3})
    (point,) = predictions(api, job_id)["outcome"]["review"]
    assert (point["step"], point["total_steps"]["mean"], point["remaining_seconds"]["mean"]) == (200, 300.0, 18.0)


def test_promises_of_jobs_that_succeeded_are_judged(api: Api) -> None:
    assert api.get("/v1/promises").json() == {"scores": [], "tasks": []}
    for predicted in (50.0, 100.0):
        judge(api, predicted)
    found = api.get("/v1/promises").json()
    (seconds,) = [score for score in found["scores"] if score["kind"] == "seconds"]
    assert (seconds["part"], seconds["promises"], seconds["held"]) == ("25 %", 2, 0.5)
    assert seconds["median_error_percent"] == pytest.approx(25.0)  # 50 % and none
    assert [each["task"] for each in found["tasks"]] == ["m:f"]


def test_whoever_reads_a_project_sees_how_its_predictions_turned_out(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        api.token = ADMINISTRATOR
        add_user(api, "viewer", {"vision": "viewer"})
        viewer = add_token(api, "viewer", "read")
        judge(api, 50.0, project="speech")
        assert api.get("/v1/promises", token=viewer).json() == {"scores": [], "tasks": []}
        judge(api, 100.0, project="vision")
        seen = api.get("/v1/promises", token=viewer).json()["scores"]
        assert {(each["kind"], each["promises"], each["held"]) for each in seen} >= {("seconds", 1, 1.0)}
        every = api.get("/v1/promises").json()["scores"]
        assert {(each["kind"], each["promises"], each["held"]) for each in every} >= {("seconds", 2, 0.5)}


def judge(api: Api, predicted: float, project: str = "default") -> None:
    """A job of 100 s succeeds of which it was predicted after 25 % that `predicted` seconds were left."""
    job_id = api.submit(name="judged", project=project)
    api.surroundings.clock.now = NOW
    train(api, job_id)
    value = Interval(predicted, 0.9 * predicted, 1.5 * predicted)
    tell(
        api,
        PredictionRecord(job_id=job_id, part="25 %", task="m:f", at=NOW, steps=value, seconds=value, total_steps=value),
    )
    api.surroundings.clock.now = NOW + 100
    api.as_task("POST", job_id, "result", json={"outcome": "succeeded", "step": 400, "final_loss": 0.3})


def test_a_cancelled_job_has_no_truth_to_compare_with(api: Api) -> None:
    job_id = api.submit()
    believe(api, job_id, at=NOW, step=0, total=100)
    assert api.post(f"/v1/jobs/{job_id}/cancel").status_code < 300
    assert predictions(api, job_id)["outcome"]["review"] == []


def test_what_earlier_jobs_taught_is_used_and_said(api: Api) -> None:
    first = api.submit()
    train(api, first)
    api.as_task("POST", first, "result", json={"outcome": "succeeded", "step": 400, "final_loss": 0.3})
    history = JobHistory(Mode.SYNC)
    history.add(batches_of(samples_of(api.repository, first)))
    api.repository.finished_runs.add(first, finished_run_of(api.repository.jobs.get(first), history))

    waiting = api.submit()
    assert predictions(api, waiting)["learned"] == {
        "finished_runs": 0,
        "share": 0.0,
        "speeds_from": "similar jobs",
    }
    assert all(point["steps_per_second"] for point in predictions(api, waiting)["speeds"])
    train(api, waiting, n=12)
    learned = predictions(api, waiting)["learned"]
    assert (learned["finished_runs"], learned["speeds_from"]) == (1, "measured")
    assert learned["share"] > 0.5
    # The ended job itself is not judged by itself.
    assert predictions(api, first)["learned"]["finished_runs"] == 0


def test_the_metric_of_the_rule_is_shown_with_its_fitted_curve(api: Api) -> None:
    job_id = api.submit(convergence={"target_metric": {"name": "accuracy", "at_least": 0.9}})
    train(api, job_id, metrics={"accuracy": 0.5, "other": "NaN"})
    believe(api, job_id, at=NOW + 40, step=400, total=1000)
    metric = predictions(api, job_id)["metric"]
    assert (metric["name"], metric["target"]) == ("accuracy", 0.9)
    assert metric["values"][0] == {"step": 10.0, "value": 0.5}
    assert metric["fitted"][-1]["step"] == 1000.0


def test_an_unknown_job_has_no_predictions(api: Api) -> None:
    problem(api.get("/v1/jobs/nobody/predictions"), 404)
