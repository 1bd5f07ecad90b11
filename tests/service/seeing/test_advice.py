"""Sizes that are advised: only what the speeds bear out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scheduler.builders import GIB, a_job, a_spec, samples
from tests.service.seeing.test_explanation import a_record
from tests.service.store.store_builders import a_decision

from optimus_models.cost import Estimate
from optimus_scheduler.forecast.fits import Fits
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    Directive,
    Job,
    JobState,
    Resources,
    SpeedSample,
    TaskDemand,
)
from optimus_scheduler.settings import Settings
from optimus_service.insight.predictions.predictions import Question, predictions_body
from optimus_service.insight.predictions.sizes import LEAST_FASTER, LEAST_SAVED, MOST_DEARER, MOST_SLOWER, advice

SETTINGS = Settings()


def script(has: int, measured: tuple[SpeedSample, ...]) -> Job:
    """A script with so many workers and no servers."""
    spec = a_spec()
    spec = replace(spec, architecture=Architecture.SCRIPT, server=TaskDemand(spec.server.resources, 0, 0), tracked=True)
    return replace(a_job("run", has=(has, 0), spec=spec, measured=measured), state=JobState.RUNNING)


def may_have(_size: Allocation) -> bool:
    return True


def advised(job: Job, settings: Settings = SETTINGS) -> dict[str, tuple[int, str]]:
    (fitted,) = Fits().of([job], settings)
    return {each.kind: (each.workers, each.message) for each in advice(job, fitted.speeds, settings, may_have)}


def measured(*sizes: int, limit: float, repeats: int = 8) -> tuple[SpeedSample, ...]:
    """Speeds that grow with the workers up to a limit, in steps/s."""
    return tuple(
        replace(each, at=each.at + number)
        for number in range(repeats)
        for each in samples(lambda w, _: min(float(w), limit), [(size, 0) for size in sizes])
    )


def test_a_size_that_is_too_large_is_told_the_cheaper_one() -> None:
    found = advised(script(16, measured(1, 2, 3, 4, 6, 8, 12, 16, limit=4.0)))
    workers, message = found["cheaper"]
    assert 4 <= workers <= 8
    assert message.startswith(f"{workers} workers instead of 16 workers: ")
    assert "fewer task-hours" in message  # without prices nothing is said of money
    assert "cheaper" not in message
    assert "faster" not in found
    priced = advised(script(16, measured(1, 2, 3, 4, 6, 8, 12, 16, limit=4.0)), Settings(price_per_core_hour=1.0))
    assert "cheaper" in priced["cheaper"][1]


def test_a_size_that_is_too_small_is_told_the_faster_one() -> None:
    found = advised(script(2, measured(1, 2, 3, 4, 6, 8, limit=100.0)))
    workers, message = found["faster"]
    assert workers > 2
    assert "times as fast" in message or "% less time" in message


def test_one_measured_size_is_not_enough_for_advice() -> None:
    assert advised(script(16, measured(16, limit=4.0))) == {}
    assert advised(script(1, measured(1, limit=100.0, repeats=500))) == {}  # however well that one is known
    assert advised(script(16, ())) == {}


def test_an_ended_job_is_advised_by_the_size_that_it_mostly_had() -> None:
    often = tuple(replace(each, n_steps=60) for each in measured(16, limit=4.0))
    job = script(16, (*measured(1, 2, 3, 4, 6, 8, 12, limit=4.0), *often))
    ended = replace(job, allocation=a_job("none").allocation)
    assert "cheaper" in advised(ended)


def test_the_bounds_hold_at_the_unlikely_end() -> None:
    job = script(16, measured(1, 2, 3, 4, 6, 8, 12, 16, limit=4.0))
    (fitted,) = Fits().of([job], SETTINGS)
    for each in advice(job, fitted.speeds, SETTINGS, may_have):
        seconds = Estimate(each.seconds_ratio.mean, each.seconds_ratio.low or 0.0, each.seconds_ratio.high or 1e9)
        cost = Estimate(each.cost_ratio.mean, each.cost_ratio.low or 0.0, each.cost_ratio.high or 1e9)
        if each.kind == "cheaper":
            assert seconds.high <= MOST_SLOWER
            assert cost.high <= 1 - LEAST_SAVED
        else:
            assert seconds.high <= LEAST_FASTER
            assert cost.high <= MOST_DEARER


@pytest.mark.parametrize(
    ("most", "cpus", "is_tracked", "workers"),
    [(16, 64, False, 8), (3, 64, False, 3), (16, 4, False, 4), (2, 64, False, None), (2, 1, True, 8)],
    ids=["any size", "its limit", "the cluster", "its size", "outside the cluster"],
)
def test_no_size_is_advised_that_the_job_may_not_have(
    most: int, cpus: float, is_tracked: bool, workers: int | None
) -> None:
    job = script(2, measured(1, 2, 3, 4, 6, 8, limit=100.0))
    spec = replace(job.spec, tracked=is_tracked, worker=replace(job.spec.worker, maximum=most))
    job = replace(job, spec=spec, directive=Directive.RUN)
    question = Question(range(1, 9), range(1), now=100.0, capacity=Resources(cpus, 1024 * GIB))
    found = predictions_body(a_record(wanted=job.allocation), job, [], question, SETTINGS).advice
    assert {each.kind: each.workers for each in found}.get("faster") == workers


@pytest.mark.parametrize(
    ("rule", "is_advised"),
    [
        (ConvergenceRule(max_seconds=3600.0), False),
        (ConvergenceRule(max_cost=7000.0), False),
        (ConvergenceRule(max_steps=9000), True),
        (ConvergenceRule(max_steps=9000, max_seconds=90_000.0, max_cost=90_000.0), True),
    ],
)
@pytest.mark.parametrize(("has", "limit"), [(16, 4.0), (2, 100.0)], ids=["cheaper", "faster"])
def test_no_size_is_advised_to_a_job_that_a_limit_of_time_or_money_ends(
    rule: ConvergenceRule, is_advised: bool, has: int, limit: float
) -> None:
    """It ends no sooner with another, or costs no less: it makes more or fewer steps until then."""
    priced = Settings(price_per_core_hour=3600.0)
    job = script(has, measured(1, 2, 3, 4, 6, 8, 12, 16, limit=limit))
    spec = replace(job.spec, convergence=rule, worker=replace(job.spec.worker, maximum=16))
    job = replace(job, spec=spec, step=100, started_at=900.0, spent=10.0)
    decision = a_decision(at=1000.0, allocation=job.allocation, forecast=forecast(job, 1000.0, priced).forecast)
    question = Question(range(1, 17), range(1), now=1000.0)
    found = predictions_body(a_record(wanted=job.allocation), job, [decision], question, priced).advice
    assert bool(found) == is_advised
