"""A job's learning rates, from what its tasks tell to the forecast."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.loop.loop_world import World
from tests.service.loop.test_learning import finish, known, once

from optimus_contract.answers import Predictions
from optimus_service.insight.predictions.predictions import HistoryCache, Question, predictions_body
from optimus_service.store.repository import Repository

DROP = 600
"""The step from which on the rate is a hundredth."""


def rate_at(step: int) -> float:
    return 0.1 if step < DROP else 0.001


def predicted(world: World, most: int = 2) -> Predictions:
    record, settings = world.repository.jobs.get("job-1"), world.settings.scheduling
    job = HistoryCache(world.repository, None, settings).job(
        record, world.repository.memberships.of_job("job-1"), world.clock()
    )
    decisions = list(world.repository.rounds.latest_decisions(["job-1"]).values())
    sizes = range(1, most + 1)
    return predictions_body(record, job, decisions, Question(sizes, sizes, now=world.clock()), settings)


def test_a_planned_step_of_the_rate_is_in_the_forecast(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path)
    world.rate_at = rate_at
    world.submit("job-1", convergence={"max_steps": 1000})
    world.round()
    world.train(150)
    world.round()
    step = repository.jobs.get("job-1").step
    assert 100 < step < DROP - 50
    before = predicted(world)
    assert (before.learning_rates[-1].step, before.learning_rates[-1].rate) == (step - 1, 0.1)

    repository.jobs.put_planned_rates("job-1", {"steps": [0, DROP - 1, DROP], "rates": [1.0, 1.0, 0.01]})
    world.round()
    after = predicted(world)
    assert [(each.step, each.rate) for each in after.planned_rates] == [(DROP - 1, 0.1), (DROP, 0.001)]
    losses = {each.step: each.loss for each in before.fitted}
    for point in after.fitted:
        plain = losses[point.step]
        assert point.loss is not None
        assert plain is not None
        if point.step < DROP - 1:
            assert point.loss == pytest.approx(plain)
        elif point.step > DROP:
            assert point.loss < 0.97 * plain, "a hundredth of the rate"
    assert after.fitted[-1].step == 1000


@once
def test_an_ended_job_leaves_its_rates_to_those_of_its_kind(world: World) -> None:
    world.rate_at = lambda step: 0.1 if step < 50 else 0.001
    finish(world, "job-1", convergence={"max_seconds": 60})
    (taught,) = known(world.repository)
    assert len(taught.rate_steps) <= 128
    assert (taught.learning_rates[0], taught.learning_rates[-1]) == (0.1, 0.001)


@once
def test_a_restarted_service_knows_the_plan(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path)
    world.submit("job-1")
    repository.jobs.put_planned_rates("job-1", {"steps": [0], "rates": [0.5]})
    assert [(each.step, each.rate) for each in predicted(world).planned_rates] == [(0, 0.5)]


def test_a_job_of_one_size_is_told_one_time_left(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path)
    world.looks_ahead = True
    world.submit("job-1", workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1}, convergence={"max_steps": 5000})
    world.live_until("its end is foreseen", lambda: predicted(world, 1).remaining_seconds is not None)
    world.train(40)
    world.clock.now += 7.0
    found = predicted(world, 1)
    (cell,) = found.speeds
    assert found.expected is not None
    assert found.remaining_seconds is not None
    assert found.remaining_seconds == found.expected.end_seconds
    assert cell.remaining_seconds is not None
    assert cell.remaining_seconds.mean == pytest.approx(found.remaining_seconds.mean)
