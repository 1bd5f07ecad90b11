"""Coordinators whose processes are there, and of which nothing is heard."""

from __future__ import annotations

import re

import pytest
from tests.service.loop.loop_world import World

from optimus_scheduler.model import Role
from optimus_service.loop.silent_coordinators import BREAK_SECONDS, SILENT_SECONDS

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
USAGE = {"cpu_cores": 0.01, "memory_bytes": 2.0**20}


def train(world: World, *names: str) -> None:
    for name in names:
        world.submit(name, workers={"max": 1}, servers={"max": 1})
    world.round()
    world.train(0)


def coordinator(world: World, job_id: str = "job-1") -> str:
    (key,) = world.running(job_id, Role.COORDINATOR)
    return key.name


def live(world: World, seconds: float, *heard: str) -> None:
    """Time passes, the service looks each second, and of these jobs' coordinators it hears every five."""
    for second in range(int(seconds)):
        world.clock.now += 1.0
        if second % 5 == 0:
            for job_id in heard:
                world.repository.tasks.put_usage(job_id, {coordinator(world, job_id): USAGE}, world.clock())
        world.rounds.look(world.fence)


def told(world: World, job_id: str = "job-1") -> list[str]:
    events = world.repository.events.page(job_id, limit=100).items
    return [event.message for event in events if event.type == "CoordinatorSilent"]


@ON_SQLITE
def test_one_that_is_stopped_is_ended_and_replaced_before_its_tasks_leave(world: World) -> None:
    train(world, "job-1", "job-2")
    live(world, 90, "job-1", "job-2")
    assert not told(world)
    live(world, SILENT_SECONDS - 10, "job-2")
    assert coordinator(world) == "job-1-coordinator-0-0"
    live(world, 20, "job-2")
    assert (*world.cluster.stopped,) == ((world.cluster.tasks()[0].key, True),)
    world.round()
    assert coordinator(world) == "job-1-coordinator-0-1"
    assert coordinator(world, "job-2") == "job-2-coordinator-0-0"
    (message,) = told(world)
    assert re.match(r"job-1-coordinator-0-0 has not been heard of for [45][0-9] s: ", message)
    assert "another takes its place" in message
    live(world, 200, "job-2")  # the new one has said nothing yet
    assert coordinator(world) == "job-1-coordinator-0-1"


@ON_SQLITE
def test_none_is_judged_by_a_time_in_which_the_service_could_not_hear(world: World) -> None:
    train(world, "job-1")
    live(world, 60, "job-1")
    world.clock.now += 180.0  # the service was stopped
    live(world, SILENT_SECONDS - 5)
    assert not world.cluster.stopped
    live(world, 60, "job-1")
    assert not world.cluster.stopped
    for _ in range(20):  # and again and again
        live(world, 10)
        world.clock.now += BREAK_SECONDS
    assert not world.cluster.stopped


@ON_SQLITE
def test_none_is_judged_when_most_are_silent(world: World) -> None:
    names = [f"job-{n}" for n in range(4)]
    train(world, *names)
    live(world, 60, *names)
    live(world, 90, "job-0")
    assert not world.cluster.stopped
    live(world, 10, "job-0", "job-1", "job-2")
    assert [key.job_id for key, _ in world.cluster.stopped] == ["job-3"]


@ON_SQLITE
def test_one_that_is_alone_is_left_to_report(world: World) -> None:
    train(world, "job-1")
    live(world, 60, "job-1")
    for key in world.running("job-1"):
        if key.role is not Role.COORDINATOR:
            world.cluster.exit(key, 0)
    live(world, 300)
    assert not world.cluster.stopped


@ON_SQLITE
def test_one_that_cannot_be_ended_is_tried_again_and_told_once(world: World) -> None:
    train(world, "job-1")
    live(world, 60, "job-1")
    live(world, SILENT_SECONDS - 10)
    world.cluster.available = False
    live(world, 60)
    world.cluster.available = True
    live(world, 10)
    assert [key.name for key, _ in world.cluster.stopped] == ["job-1-coordinator-0-0"]
    assert len(told(world)) == 1
