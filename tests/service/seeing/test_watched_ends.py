"""Nothing ends a training that runs outside the cluster: what of its rule is over says nothing of its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.scheduler.builders import NOW as ROUND
from tests.scheduler.builders import a_job, a_spec, law, samples
from tests.service.api.api_harness import Api, membership, sample, telemetry
from tests.service.loop.loop_world import World
from tests.service.seeing.test_explanation import a_record
from tests.service.store.store_builders import a_decision, a_forecast

from optimus_contract.job import Convergence
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import Allocation, ConvergenceRule, JobState
from optimus_scheduler.settings import Settings
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.insight.jobs.progress import progress_of
from optimus_service.insight.jobs.reasons import ended_words
from optimus_service.observe.spec import limits_in_force, most_steps, passed_limits, spec_of
from optimus_service.store.records import JobRecord

NOW, ONE = 1000.0, Allocation(1, 0)


def watched(
    step: int, rule: dict[str, Any], *, total: int | None = 120, tracked: bool = True, **more: Any
) -> JobRecord:
    """One that tells `total` steps."""
    spec = {"task": None, "command": ["python", "train.py"], "tracked": tracked, "convergence": rule}
    values: dict[str, Any] = {
        "state": JobState.RUNNING,
        "running": ONE,
        "wanted": Allocation(0, 0) if tracked else ONE,
        "heard_at": NOW if tracked else None,
        "started_at": NOW - 30.0,
        "profile": None if total is None else {"total_steps": total},
    }
    return a_record(step=step, spec=spec, **values | more)


@pytest.mark.parametrize(("step", "most"), [(30, 60), (60, 60), (61, 120), (119, 120)])
def test_a_passed_limit_of_steps_gives_way_to_what_the_run_tells(step: int, most: int) -> None:
    job = watched(step, {"max_steps": 60})
    rule = spec_of(job).convergence
    assert (rule.max_steps, rule.ends_itself) == (most, most == 120)
    assert most_steps(job) == (60 if most == 60 else float("inf"))


def test_limits_of_jobs_that_are_ended_there_stay() -> None:
    job = watched(70, {"max_steps": 60, "max_seconds": 10.0}, tracked=False)
    assert passed_limits(job, NOW) == ()
    assert limits_in_force(job, NOW) == job.asked.convergence
    alike = watched(70, {"max_steps": 60, "max_seconds": 10.0, "target_loss": 0.5})
    assert passed_limits(alike, NOW) == ("max_steps", "max_seconds")
    assert limits_in_force(alike, NOW) == Convergence(target_loss=0.5)


@pytest.mark.parametrize(
    ("rule", "field", "n_passed"),
    [
        ({"max_steps": 60}, "max_steps", 1),
        ({"max_seconds": 20.0}, "max_seconds", 1),
        ({"max_steps": 90}, "max_steps", 0),
    ],
)
def test_no_end_is_told_by_a_limit_that_was_passed(rule: dict[str, Any], field: str, n_passed: int) -> None:
    """Not between two rounds, either: the forecast is of before it was passed."""
    limit = float(rule.get("max_steps", 66))
    total, left = ({"mean": each, "low": each, "high": each} for each in (limit, limit - 50.0))
    pace = {"mean": 0.2, "low": 0.19, "high": 0.21}
    found = a_forecast(total_steps=total, remaining_steps=left, seconds_per_step=pace, rule=field)
    decision = a_decision(at=NOW - 5.0, forecast=found, allocation=ONE, previous=ONE)
    job = watched(70, rule)
    ahead = progress_of(job, decision, NOW)
    assert (ahead.remaining_seconds is None) == (ahead.progress is None) == bool(n_passed)
    said = " ".join(explanation_of(Case(job=job, decision=decision, now=NOW)).sentences)
    assert ("expected to end" in said) == (not n_passed)
    assert ("It has passed its limit" in said) == bool(n_passed)
    assert ("at which nothing ends it" in said) == (not n_passed)
    assert "cannot be said" not in said


def test_a_run_that_went_on_beyond_its_limit_did_not_end_by_it() -> None:
    ended = watched(300, {"max_steps": 50}, total=300, state=JobState.SUCCEEDED)
    assert ended_words(ended, None) == "The job succeeded."


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize(
    "rule", [ConvergenceRule(target_loss=2.0), ConvergenceRule(max_seconds=30.0), ConvergenceRule(loss_decrease=0.5)]
)
def test_what_holds_ends_only_what_is_scheduled(rule: ConvergenceRule, tracked: bool) -> None:
    """A run that is only watched goes on to the steps that it tells."""
    steps = [float(step) for step in range(1, 101)]
    spec = replace(a_spec(rule=replace(rule, max_steps=400, ends_itself=True)), tracked=tracked)
    job = a_job("a", has=(1, 1), spec=spec, measured=samples(law(), [(1, 1)]), step=100, steps_per_epoch=10.0)
    job = replace(job, loss_steps=tuple(steps), losses=tuple(1.0 + 10.0 / step for step in steps))
    found = forecast(job, ROUND, Settings()).forecast
    assert found.converged != tracked
    left = found.remaining_steps
    assert left is not None
    assert (left.mean == 0.0) != tracked
    assert found.rule == ("command_ends" if tracked else found.rule)


def test_a_dry_run_of_one_tells_its_end(planning: Api, world: World) -> None:
    job_id = planning.submit(task=None, tracked=True, command=["python", "train.py"], workers={"min": 1, "max": 1})
    token = planning.post(f"/v1/jobs/{job_id}/token").json()["token"]
    began = membership(job_id, workers=1, servers=0)
    assert planning.post(f"/v1/jobs/{job_id}/membership", json=began, token=token).status_code == 204
    planning.call("PUT", f"/v1/jobs/{job_id}/profile", json={"total_steps": 400}, token=token)
    for at in range(1, 9):
        told = telemetry(sample(servers=0, workers=1, sequence=at, step=10 * at, loss=1.0 / at))
        assert planning.post(f"/v1/jobs/{job_id}/telemetry", json=told, token=token).status_code == 200
        world.clock.now += 2.0
    world.round()
    explained = planning.get(f"/v1/jobs/{job_id}/explanation").json()
    assert explained["expected"]["finish_seconds"] is not None
    said = planning.post(f"/v1/jobs/{job_id}/plan", json={"convergence": {"max_steps": 200}}).json()["sentences"]
    assert any(each.startswith("It would end in ") and "; as things are, in " in each for each in said), said
    assert any("nothing ends it by that" in each for each in said)
