"""Jobs that make no step, as the store's samples tell."""

from __future__ import annotations

import pytest
from tests.service.loop.loop_world import World
from tests.service.store.store_builders import a_sample, add_samples

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
