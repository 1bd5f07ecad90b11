"""A job whose loss is NaN or infinite is not trained to the end of its budget, and never succeeds."""

from __future__ import annotations

import math
import re

import pytest
from tests.service.loop.loop_world import World, loss_at

from optimus_scheduler.lifecycle import ResumeRequested
from optimus_scheduler.model import Directive, JobState
from optimus_service.observe.divergence import LOSS_NOT_FINITE, NONFINITE_STEPS


def told(world: World) -> list[str]:
    return [event.message for event in world.repository.events.page("job-1").items if event.type == LOSS_NOT_FINITE]


def trained(world: World, **changes: str) -> None:
    """A job that trains, with all samples so far seen by a round."""
    world.submit(**changes)
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 20)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_it_fails_and_says_why(world: World, loss: float) -> None:
    trained(world)
    begins = world.repository.jobs.get("job-1").step + 1
    world.loss_at = lambda _: loss
    world.live_until("it fails", lambda: world.repository.jobs.get("job-1").state.is_final, rounds=20)
    job = world.repository.jobs.get("job-1")
    assert job.state is JobState.FAILED
    assert job.directive is Directive.CANCEL
    assert job.failure is not None
    known = re.search(r"by step (\d+), and for 20 steps or more: ", job.failure)
    assert known is not None
    assert int(known[1]) >= begins, "before it the losses were finite"
    assert "on_nonfinite: warn" in job.failure
    assert told(world) == [f"The loss is NaN or infinite, by step {known[1]}."]
    world.round()
    assert world.repository.wanted.get("job-1").tasks == ()
    assert job.retries == 0, "it would diverge again"


def test_it_trains_on_when_that_is_wanted(world: World) -> None:
    trained(world, on_nonfinite="warn")
    world.loss_at = lambda _: math.nan
    before = world.repository.jobs.get("job-1").step
    world.live_until("it trains on", lambda: world.repository.jobs.get("job-1").step > before + 3 * NONFINITE_STEPS)
    assert world.repository.jobs.get("job-1").state is JobState.RUNNING
    assert len(told(world)) == 1


def test_single_losses_are_no_divergence(world: World) -> None:
    """Half precision has them while its scale is being found."""
    trained(world)
    for _ in range(3):
        world.loss_at = lambda _: math.inf
        world.train(1)
        world.loss_at = loss_at
        world.train(5)
        world.round()
    assert world.repository.jobs.get("job-1").state in (JobState.RUNNING, JobState.SUCCEEDED)


def test_losses_that_are_finite_and_not_in_turn_are_told_of_once(world: World) -> None:
    trained(world, on_nonfinite="warn")
    for _ in range(4):
        world.loss_at = lambda _: math.inf
        world.train(2)
        world.round()
        world.loss_at = loss_at
        world.train(2)
        world.round()
    assert len(told(world)) == 1


def test_a_resumed_job_is_judged_by_what_it_does_then(world: World) -> None:
    trained(world)
    world.loss_at = lambda _: math.nan
    world.live_until("it fails", lambda: world.repository.jobs.get("job-1").state.is_final, rounds=20)
    world.live_until("its tasks end", lambda: not world.running("job-1"), rounds=20)
    coordinator = world.coordinators["job-1"]
    coordinator.members, coordinator.step = (), 10  # of its checkpoint
    world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    world.loss_at = loss_at
    world.round("resume")
    assert world.running("job-1") != []
    world.live_until("it trains on", lambda: coordinator.step > 10 + 2 * NONFINITE_STEPS)
    assert world.state() is JobState.RUNNING
    world.loss_at = lambda _: math.nan
    world.live_until("it fails again", lambda: world.repository.jobs.get("job-1").state.is_final, rounds=20)
