"""Tasks of known jobs that began after the backup from which the database was restored."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.loop.loop_world import World

from optimus_scheduler.lifecycle import PauseRequested, ResumeRequested
from optimus_scheduler.model import Resources, Role, Task, TaskKey, TaskPhase
from optimus_service.loop.restored import TASKS_ADOPTED, beyond_records, running_set
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.records import TaskRecord
from optimus_service.store.repository import Repository

Restore = Callable[[World], World]


@pytest.fixture
def backed_up(migrated_sqlite: Path, tmp_path: Path) -> Iterator[tuple[World, Callable[[], Restore]]]:
    """A world, and what takes a backup of it; that gives what restores it while tasks train on."""
    path = tmp_path / "optimus.db"
    shutil.copy(migrated_sqlite, path)
    opened = [Repository(create_engine_from_url(f"sqlite:///{path}"))]

    def back_up() -> Restore:
        copy = tmp_path / "copy.db"
        with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
            source.backup(target)

        def restore(world: World) -> World:
            opened.append(Repository(create_engine_from_url(f"sqlite:///{copy}")))
            world.clock.now += 60.0
            after = World(opened[-1], tmp_path, world.cluster, world.clock)
            after.coordinators = world.coordinators
            return after

        return restore

    yield World(opened[0], tmp_path), back_up
    for repository in opened:
        repository.close()


def adoptions(world: World) -> list[str]:
    return [each.message for each in world.repository.events.page().items if each.type == TASKS_ADOPTED]


def test_tasks_that_began_after_the_backup_train_on(backed_up: tuple[World, Callable[[], Restore]]) -> None:
    world, back_up = backed_up
    world.submit("job-1")
    restore = back_up()
    world.round()
    world.train(5.0)
    trained, n_launches = set(world.running("job-1")), len(world.cluster.launches)
    address = world.repository.jobs.get("job-1").coordinator_address
    after = restore(world)
    after.round()
    after.round()
    assert trained <= set(after.running("job-1"))
    assert not {key for key, _ in world.cluster.stopped}
    names = [launch.key.name for launch in world.cluster.launches]
    assert len(set(names)) == len(names)
    assert {launch.environment["OPTIMUS_COORDINATOR_ADDRESS"] for launch in world.cluster.launches} == {address}
    assert after.repository.jobs.get("job-1").coordinator_address == address
    (message,) = adoptions(after)
    assert "They train on" in message
    assert n_launches == len(trained)


def test_a_job_that_the_backup_has_paused_lets_its_tasks_go_and_goes_on_under_new_names(
    backed_up: tuple[World, Callable[[], Restore]],
) -> None:
    world, back_up = backed_up
    world.submit("job-1")
    world.repository.jobs.advance("job-1", PauseRequested(), world.clock())
    restore = back_up()
    world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    world.round()
    world.train(5.0)
    trained = set(world.running("job-1"))
    assert trained
    after = restore(world)
    after.round()
    (message,) = adoptions(after)
    assert "they are let go" in message
    after.clock.now += 600.0
    after.round()
    after.round()
    assert not after.running("job-1")
    after.repository.jobs.advance("job-1", ResumeRequested(), after.clock())
    after.round()
    assert after.running("job-1")
    assert not trained & set(after.running("job-1"))


def test_a_replacement_that_began_after_the_backup_stays(
    backed_up: tuple[World, Callable[[], Restore]],
) -> None:
    world, back_up = backed_up
    world.submit("job-1")
    world.round()
    world.train(5.0)
    restore = back_up()
    lost = world.running("job-1", Role.WORKER)[0]
    world.cluster.exit(lost, 1)
    for _ in range(3):
        world.round()
        world.train(1.0)
    trained = set(world.running("job-1"))
    replacement = TaskKey("job-1", Role.WORKER, lost.rank, lost.incarnation + 1)
    assert replacement in trained
    after = restore(world)
    for _ in range(3):
        after.round()
    assert replacement in after.running("job-1")
    assert lost not in after.running("job-1")
    names = [launch.key.name for launch in world.cluster.launches]
    assert len(set(names)) == len(names)


def test_names_of_tasks_that_began_and_ended_after_the_backup_are_not_used_again(
    backed_up: tuple[World, Callable[[], Restore]],
) -> None:
    world, back_up = backed_up
    world.submit("job-1")
    restore = back_up()
    world.round()
    ended = set(world.running("job-1"))
    for key in ended:
        world.cluster.exit(key, 137)
    after = restore(world)
    after.round()
    assert after.running("job-1")
    assert not ended & set(after.running("job-1"))
    assert not adoptions(after)


def test_a_coordinator_that_ended_after_the_backup_is_followed_by_none_that_its_journal_knows_to_be_replaced(
    backed_up: tuple[World, Callable[[], Restore]],
) -> None:
    """An earlier one would quit at once, and the job have no coordinator for ever."""
    world, back_up = backed_up
    world.submit("job-1")
    world.round()
    world.train(5.0)
    for _ in range(2):
        world.cluster.exit(world.running("job-1", Role.COORDINATOR)[0], 137)
        world.round()
    (newest,) = world.running("job-1", Role.COORDINATOR)
    assert newest.incarnation == 2
    restore = back_up()
    ended = world.running("job-1")
    for key in ended:
        world.cluster.exit(key, 0)
    world.cluster.forget(ended)
    after = restore(world)
    after.round()
    assert after.running("job-1", Role.COORDINATOR) == [newest]
    after.round()
    assert after.running("job-1", Role.COORDINATOR) == [newest]


def test_tasks_that_a_later_one_has_replaced_since_the_backup_are_gone(
    backed_up: tuple[World, Callable[[], Restore]],
) -> None:
    """A coordinator is wanted as long as its job is: none of those before it was ever marked as leaving."""
    world, back_up = backed_up
    world.submit("job-1")
    world.round()
    world.train(5.0)
    restore = back_up()
    for _ in range(2):
        lost = world.running("job-1", Role.COORDINATOR)[0], world.running("job-1", Role.WORKER)[0]
        for key in lost:
            world.cluster.exit(key, 137)
        world.round()
        world.train(1.0)
    after = restore(world)
    for _ in range(2):
        after.round()
        recorded = {record.key for record in after.repository.tasks.select(job_id="job-1")}
        assert recorded == set(after.running("job-1"))


def test_tasks_whose_coordinator_cannot_be_found_are_ended_and_replaced(
    backed_up: tuple[World, Callable[[], Restore]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a release that did not note where it listens."""
    world, back_up = backed_up
    world.submit("job-1")
    restore = back_up()
    world.round()
    trained = set(world.running("job-1"))
    after = restore(world)
    monkeypatch.setattr(after.cluster, "coordinator_address", lambda _job_id: None)
    after.round()
    assert after.running("job-1")
    assert not trained & set(after.running("job-1"))
    (message,) = adoptions(after)
    assert "they are ended" in message


def test_a_generation_that_the_coordinator_knows_is_gone_beyond(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path)
    world.submit("job-1")
    assert repository.wanted.go_beyond("job-1", 7) == 0, "what runs of it is not known yet"
    world.round()
    before = repository.wanted.get("job-1")
    assert repository.wanted.go_beyond("job-1", 7) == 8
    after = repository.wanted.get("job-1")
    assert (after.generation, after.tasks) == (8, before.tasks)
    assert repository.wanted.go_beyond("job-1", 7) == 8


keys = st.builds(TaskKey, st.just("a"), st.sampled_from(Role), st.integers(0, 2), st.integers(0, 2))
tasks = st.builds(Task, keys, st.just("node-0"), st.sampled_from(TaskPhase), resources=st.just(Resources(1.0)))


@given(st.lists(tasks, unique_by=lambda task: task.key), st.lists(keys, unique=True))
def test_what_is_beyond_the_records_and_what_runs(seen: list[Task], known: list[TaskKey]) -> None:
    records = [TaskRecord(key=key, node="node-0", created_at=0.0) for key in known]
    found = {task.key for task in beyond_records(seen, records)}
    for task in seen:
        older = [key.incarnation for key in known if key[:3] == task.key[:3]]
        assert (task.key in found) == all(task.key.incarnation > each for each in older)
    runs = running_set(seen)
    if runs is not None:
        slots = [(task.key.role, task.key.rank) for task in runs]
        assert len(set(slots)) == len(slots)
        assert all(task.phase is not TaskPhase.EXITED and task.key.role is not Role.COORDINATOR for task in runs)
        assert {rank for role, rank in slots if role is Role.WORKER} == set(
            range(sum(r is Role.WORKER for r, _ in slots))
        )
