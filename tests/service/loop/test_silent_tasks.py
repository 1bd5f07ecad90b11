"""Workers and servers whose processes are there, and that do not answer their coordinator."""

from __future__ import annotations

import pytest
from tests.service.loop.loop_world import World

from optimus_scheduler.model import Role, TaskKey
from optimus_service.insight.jobs.reasons import WORKER_SILENT
from optimus_service.loop.silent_tasks import HEARD_SECONDS, LEAST_SECONDS, USUAL_SECONDS

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
USAGE = {"cpu_cores": 0.01, "memory_bytes": 2.0**20}
LATE = 15.0
"""A look comes up to so much later."""


def train(world: World, **changes: object) -> TaskKey:
    """A job of two workers that needs both; returns the second one."""
    world.submit("job-1", workers={"min": 2, "max": 2}, servers={"max": 1}, **changes)
    world.round()
    world.train(60)
    return max(world.running("job-1", Role.WORKER))


def live(world: World, seconds: float) -> None:
    """Time passes without a step, the service looks each second, and hears of the coordinator every five."""
    for second in range(int(seconds)):
        world.clock.now += 1.0
        for key in world.running("job-1", Role.COORDINATOR) if second % 5 == 0 else ():
            world.repository.tasks.put_usage("job-1", {key.name: USAGE}, world.clock())
        world.rounds.look(world.fence)


def say(world: World, words: str) -> None:
    world.repository.events.add("job-1", WORKER_SILENT, words, {}, world.clock())


def told(world: World) -> list[str]:
    events = world.repository.events.page("job-1", limit=100).items
    return [event.message for event in events if event.type == WORKER_SILENT and event.data]


@ON_SQLITE
@pytest.mark.parametrize(
    ("changes", "patience"),
    [({}, USUAL_SECONDS), ({"hang_seconds": 200}, 200.0), ({"hang_seconds": 10}, LEAST_SECONDS)],
    ids=["usual", "set", "too short"],
)
def test_one_is_ended_and_replaced_when_its_code_could_not_have_run_for_longer(
    world: World, changes: dict[str, float], patience: float
) -> None:
    silent = train(world, **changes)
    live(world, 60)
    say(world, f"{silent.name} has not answered for 30 s: its process is stopped.")
    live(world, patience - 5)
    assert not world.cluster.stopped
    live(world, LATE)
    assert {*world.cluster.stopped} == {(silent, True)}
    assert len(told(world)) == 1
    assert told(world)[0].startswith(f"{silent.name} did not answer for ")
    world.round()
    (*_, new) = sorted(world.running("job-1", Role.WORKER))
    assert (new.rank, new.incarnation) == (silent.rank, silent.incarnation + 1)
    live(world, 2 * patience)
    assert len(world.cluster.stopped) == 1, "the new one has said nothing"


@ON_SQLITE
def test_one_that_answers_again_is_left(world: World) -> None:
    silent = train(world)
    live(world, 60)
    say(world, f"{silent.name} has not answered for 30 s: its process is stopped.")
    live(world, USUAL_SECONDS - LATE)
    say(world, f"{silent.name} answers again, and takes part from the next change of the membership on.")
    live(world, USUAL_SECONDS + LATE)
    assert not world.cluster.stopped
    say(world, f"{silent.name} has not answered for 30 s: its process is stopped.")
    live(world, USUAL_SECONDS - LATE)
    assert not world.cluster.stopped, "its time counts anew"


@ON_SQLITE
def test_none_is_judged_by_the_word_of_a_coordinator_that_is_not_there(world: World) -> None:
    """The one in its place was not told that a task had been silent, and does not tell that it answers."""
    silent = train(world)
    live(world, 60)
    say(world, f"{silent.name} has not answered for 30 s: its process is stopped.")
    live(world, 60)
    (old,) = world.running("job-1", Role.COORDINATOR)
    world.cluster.exit(old, 1)
    world.round()
    assert world.running("job-1", Role.COORDINATOR) != [old]
    live(world, USUAL_SECONDS + LATE)
    assert not world.cluster.stopped


@ON_SQLITE
def test_none_is_judged_while_its_coordinator_is_not_heard_of(world: World) -> None:
    silent = train(world)
    live(world, 60)
    say(world, f"{silent.name} has not answered for 30 s: its process is stopped.")
    live(world, USUAL_SECONDS - HEARD_SECONDS - LATE)
    for _ in range(int(HEARD_SECONDS + 4 * LATE)):
        world.clock.now += 1.0
        world.rounds.look(world.fence)
    assert silent not in {key for key, _ in world.cluster.stopped}


@ON_SQLITE
def test_one_that_makes_steps_again_is_left(world: World) -> None:
    silent = train(world)
    live(world, 60)
    say(world, f"{silent.name} has not answered for 30 s: its process is stopped.")
    live(world, USUAL_SECONDS - LATE)
    for _ in range(int(4 * LATE)):
        world.train(1)
        live(world, 1)
    assert not world.cluster.stopped


@ON_SQLITE
def test_one_that_cannot_be_ended_is_tried_again_and_told_once(world: World) -> None:
    silent = train(world)
    live(world, 60)
    say(world, f"{silent.name} has not answered for 30 s: its process is stopped.")
    live(world, USUAL_SECONDS - LATE)
    world.cluster.available = False
    live(world, 2 * LATE)
    world.cluster.available = True
    live(world, LATE)
    assert {key for key, _ in world.cluster.stopped} == {silent}
    assert len(told(world)) == 1
