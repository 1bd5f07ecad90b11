"""The history of forecasts tells no end of the moments at which no view told one."""

from __future__ import annotations

import pytest
from tests.service.api.api_harness import Api
from tests.service.loop.loop_world import World
from tests.service.loop.test_task_exits import crash, newest
from tests.service.store.store_builders import a_membership

from optimus_scheduler.model import Role
from optimus_service.observe.standstills import HUNG

ONE = {"min": 1, "max": 1}


def told(planning: Api) -> list[bool]:
    """Of each forecast of the job, oldest first, whether it tells an end; the last two of three views are the same."""
    predicted = planning.get("/v1/jobs/job-1/predictions").json()
    shown = planning.get("/v1/jobs/job-1").json()
    assert (predicted["remaining_seconds"] is None) == (shown["remaining_seconds"] is None)
    assert (predicted["history"][-1]["remaining_seconds"] is None) == (shown["remaining_seconds"] is None)
    assert all(each["total_steps"] is not None for each in predicted["history"][-2:]), "of its steps all views tell"
    return [each["remaining_seconds"] is not None for each in predicted["history"]]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_of_moments_at_which_a_job_stood_still_or_had_hung_no_end_is_in_the_history(
    planning: Api, world: World
) -> None:
    """The plot of its predicted ends went on over two hours in which a script hung at one step."""
    world.submit(workers=ONE, servers=ONE, convergence={"max_steps": 4000})
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 60)
    world.round()
    assert told(planning)[-1]
    n_before = len(told(planning))
    world.clock.now += 120.0
    for _ in range(3):  # what is told changes once
        world.round()
        world.clock.now += 60.0
    assert told(planning)[n_before:] == [False]
    at = world.repository.jobs.get("job-1").step
    crash(world, Role.WORKER, code=HUNG)
    world.round()
    epoch, worker = world.repository.jobs.get("job-1").membership_epoch + 1, newest(world, Role.WORKER)
    lost = a_membership(
        epoch=epoch, at=world.clock(), step=0, cause="worker_lost", lost_steps=at, workers=(worker.name,)
    )
    world.repository.memberships.report("job-1", lost)
    assert not any(told(planning)[n_before:]), "its workers hung by that step"
    world.coordinators["job-1"].members = ()
    world.live_until("it has passed the step", lambda: world.repository.jobs.get("job-1").step > at)
    world.train(10)
    world.round()
    assert told(planning)[-1], "and from then on an end is told again"
