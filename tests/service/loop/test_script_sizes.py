"""At which sizes a script may run: at any if it goes on from a checkpoint, else at one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.service.loop.loop_world import World
from tests.service.loop.test_job_history import sample
from tests.service.store.store_builders import batches_of

from optimus_scheduler.model import Mode
from optimus_service.observe.snapshot import unsaved_seconds
from optimus_service.observe.spec import spec_of
from optimus_service.observe.telemetry import JobHistory
from optimus_service.observe.unsaved_work import LastStep

SCRIPT: dict[str, Any] = {
    "task": None,
    "command": ["python", "train.py"],
    "working_directory": "/srv",
    "architecture": "script",
    "servers": {"min": 0, "max": 0},
}


def test_a_script_that_goes_on_grows(world: World) -> None:
    world.submit(**SCRIPT, resumes=True)
    world.live_until("several workers", lambda: len(world.repository.wanted.get("job-1").tasks) > 1)


def test_one_that_is_not_known_to_go_on_keeps_its_size(world: World) -> None:
    world.submit(**SCRIPT)
    for _ in range(10):
        world.round()
        world.train(5.0)
    assert len(world.repository.wanted.get("job-1").tasks) == 1
    assert spec_of(world.repository.jobs.get("job-1")).size_stays, "its owner allows more"


def test_one_that_goes_on_only_at_the_size_it_began_with_returns_to_it(world: World) -> None:
    world.submit(**SCRIPT, resumes=True)
    world.live_until("several workers", lambda: len(world.repository.wanted.get("job-1").tasks) > 1)
    world.repository.jobs.put_profile("job-1", {"total_steps": 4000, "steps_per_epoch": 100.0, "fixed_workers": 1})
    for _ in range(3):
        world.round()
        assert len(world.repository.wanted.get("job-1").tasks) == 1


@pytest.mark.parametrize(
    ("changes", "profile", "may_grow"),
    [
        ({"resumes": True, "workers": {"max": 1}}, None, False),
        ({"resumes": True, "workers": {"max": 2}}, None, True),
        ({"command": ["torchrun", "train.py"], "resumes": True, "workers": {"max": 1}}, None, True),
        ({"command": ["torchrun", "train.py"], "workers": {"max": 1}}, None, False),
        ({"command": ["torchrun", "train.py"], "workers": {"max": 1}}, {"resumes": True}, True),
        ({"command": ["torchrun", "train.py"], "workers": {"max": 1}}, {"resumes": True, "fixed_workers": 1}, False),
    ],
)
def test_a_script_may_have_more_workers_where_its_owner_allows_more(
    world: World, changes: dict[str, Any], profile: dict[str, Any] | None, may_grow: bool
) -> None:
    """One with a launcher, or allowed several, unless a change of size would make it begin anew."""
    world.submit(**{**SCRIPT, **changes})
    job = replace(world.repository.jobs.get("job-1"), profile=profile)
    assert spec_of(job).may_grow == may_grow


@pytest.mark.parametrize(
    ("limit", "rule"), [({}, "command_ends"), ({"max_steps": 9000}, "command_ends"), ({"max_steps": 300}, "max_steps")]
)
def test_what_ends_it_is_told(world: World, limit: dict[str, int], rule: str) -> None:
    convergence: dict[str, Any] = {"convergence": limit} if limit else {}
    world.submit(**SCRIPT, **convergence)
    world.live_until("running", lambda: world.repository.jobs.get("job-1").step > 0)
    world.repository.jobs.put_profile("job-1", {"total_steps": 4000})
    world.round()
    assert world.repository.rounds.latest_decisions(["job-1"])["job-1"].forecast.rule == rule


def test_the_only_size_is_within_what_the_owner_allows(world: World) -> None:
    world.submit(**SCRIPT, resumes=True, workers={"min": 2, "max": 3})
    world.live_until("running", lambda: len(world.repository.wanted.get("job-1").tasks) > 1)
    for fixed, wanted in ((1, 2), (9, 3)):
        world.repository.jobs.put_profile("job-1", {"total_steps": 4000, "fixed_workers": fixed})
        world.round()
        assert len(world.repository.wanted.get("job-1").tasks) == wanted


def test_a_script_that_hangs_where_it_hung_before_has_no_more_to_lose(world: World) -> None:
    """It made nine steps, hung, began anew, made the same nine and hangs again."""
    world.submit(**SCRIPT)
    world.live_until("running", lambda: len(world.repository.memberships.of_job("job-1")) > 0)
    job, (first, *_) = world.repository.jobs.get("job-1"), world.repository.memberships.of_job("job-1")
    again = replace(first, epoch=first.epoch + 1, at=first.at + 68.0, cause="worker_lost", lost_steps=9)
    history = JobHistory(Mode.SYNC)
    for each in (first, again):
        history.learn_memberships([each])
        for step in range(1, 10):
            at, number = each.at + 0.2 * step, 20 * each.epoch + step
            reported = sample(step, number, epoch=each.epoch, at=at, seconds=0.2, received_at=at + 1.0)
            history.add(batches_of([reported]))
    assert unsaved_seconds(job, [first, again], history, again.at + 62.0) == pytest.approx(2.0)


def test_what_a_script_has_trained_counts_as_lost_by_a_pause(world: World) -> None:
    world.submit(**SCRIPT)
    world.live_until("running", lambda: len(world.repository.memberships.of_job("job-1")) > 0)
    job, memberships = world.repository.jobs.get("job-1"), world.repository.memberships.of_job("job-1")
    later, history = memberships[-1].at + 1234.0, JobHistory(Mode.SYNC)
    assert unsaved_seconds(job, memberships, history, later) == 1234.0
    epoch, began = memberships[-1].epoch, memberships[-1].at
    history.last_steps, history.longest_seconds = {epoch: LastStep(began + 300.0)}, 5.0
    assert unsaved_seconds(job, memberships, history, later) == 305.0, "what stands still loses no more"
    history.last_steps = {epoch - 1: LastStep(began - 10.0)}
    assert unsaved_seconds(job, memberships, history, later) == 5.0, "it tells its steps, and has told none yet"
    world.repository.jobs.put_profile("job-1", {"total_steps": 4000, "resumes": True})
    assert unsaved_seconds(world.repository.jobs.get("job-1"), memberships, history, later) == 0.0
