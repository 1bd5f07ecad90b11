"""Jobs that make no step, as the store's samples tell."""

from __future__ import annotations

import pytest
from tests.service.loop.loop_world import World
from tests.service.store.store_builders import a_sample, add_samples

from optimus_scheduler.lifecycle import PauseRequested, ResumeRequested
from optimus_scheduler.model import JobState
from optimus_service.observe.standstills import Standstill, standstills


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_usual_time_of_a_step_is_that_of_the_newest_samples_not_of_the_last(world: World) -> None:
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(40)
    repository, now = world.repository, world.clock()
    job = repository.jobs.get("job-1")
    burst = a_sample(membership_epoch=1, sequence=99, workers=1, at=now, step=job.step + 40, n_steps=40, seconds=0.01)
    add_samples(repository, "job-1", [burst], now)
    jobs = repository.jobs.active()
    assert standstills(repository, jobs, {}, now + 14.0, 0.0) == {}
    found = standstills(repository, jobs, {}, now + 60.0, 0.0)["job-1"]
    newest = repository.samples.newest("job-1", 20)
    usual = sum(each.seconds for each in newest) / sum(each.n_steps for each in newest)
    assert usual > 0.1, "of the burst alone 0.00025 s"
    assert found == Standstill(f"no step came for 60 s, where one took {usual:.2g} s", is_stalled=True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_time_without_tasks_is_no_time_without_a_step(world: World) -> None:
    """From when its tasks take part again, steps may be missed."""
    size = {"min": 1, "max": 1}
    world.submit(workers=size, servers=size)
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 20)
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=True), world.clock())
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    world.clock.now += 600.0
    world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    world.round()
    world.train(0)
    assert world.state() is JobState.RUNNING
    jobs = world.repository.jobs.active()
    formed_at, now = jobs[0].formed_at, world.clock()
    assert formed_at is not None
    assert now - formed_at < 10.0

    def still(later: float) -> list[str]:
        return [each.words for each in standstills(world.repository, jobs, {}, formed_at + later, 0.0).values()]

    assert still(10.0) == []
    (words,) = still(30.0)
    assert words.startswith("no step came for 30 s, where one took ")
