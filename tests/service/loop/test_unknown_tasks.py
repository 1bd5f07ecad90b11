"""Tasks that run although the database does not know their job: an older backup of it was restored."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.service.loop.loop_world import NODES, World

from optimus_scheduler.model import Node, Resources, Role, Task, TaskKey, TaskPhase
from optimus_service.clusters.base import TaskLaunch
from optimus_service.observe.unknown_tasks import less, resources_of, without_record
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository


def launch(job_id: str, rank: int, node: str, cpu: float, role: Role = Role.WORKER) -> TaskLaunch:
    return TaskLaunch(TaskKey(job_id, role, rank), node, Resources(cpu, 2**20), {})


def train_unseen(world: World) -> list[TaskKey]:
    """A job of another database has most of the cluster."""
    launches = [launch("lost", rank, node.name, 3.0) for rank, node in enumerate(NODES)]
    for each in [*launches, launch("lost", 0, "node-0", 0.0, Role.COORDINATOR)]:
        world.cluster.start(each)
    return [each.key for each in launches]


def living(world: World) -> dict[TaskKey, Task]:
    return {task.key: task for task in world.cluster.tasks() if task.phase is not TaskPhase.EXITED}


def used(world: World) -> dict[str, float]:
    held = {each.key: each.resources.cpu for each in world.cluster.launches if each.key.role is not Role.COORDINATOR}
    found = {node.name: 0.0 for node in NODES}
    for key, task in living(world).items():
        found[task.node] += held.get(key, 0.0)
    return found


def test_what_unknown_tasks_take_is_not_given_away(world: World) -> None:
    keys = train_unseen(world)
    world.submit("job-1")
    for _ in range(5):
        world.round()
        world.train(30.0)
        assert all(amount <= 4.0 for amount in used(world).values()), used(world)
    assert world.running("job-1")  # in what is left
    assert set(keys) <= set(living(world))


def test_unknown_tasks_are_named_once(world: World) -> None:
    train_unseen(world)
    for _ in range(3):
        world.round()
    (event,) = [each for each in world.repository.events.page().items if each.type == "UnknownTasks"]
    assert event.job_id is None
    assert event.data["tasks"] == ["lost-coordinator-0-0", "lost-worker-0-0", "lost-worker-1-0"]
    assert "They are kept" in event.message
    assert len(world.rounds.unknown.found) == 3
    assert "lost" in world.cluster.retained  # a cluster removes what it holds of all other jobs


def test_unknown_tasks_are_stopped_where_the_operator_says_so(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path, unknown_tasks="stop", drain_seconds=20.0)
    keys = train_unseen(world)
    world.cluster.stubborn.add(keys[0].name)
    world.submit("job-1")
    world.round()
    assert {key for key in living(world) if key.job_id == "lost"} == {keys[0]}
    assert world.running("job-1")
    world.clock.now += 60.0
    world.round()
    assert not {key for key in living(world) if key.job_id == "lost"}
    world.round()
    assert world.rounds.unknown.found == ()


def test_after_a_restore_of_an_older_backup(migrated_sqlite: Path, tmp_path: Path) -> None:
    """Back up, go on, restore: what the service says of a job that the backup does not have."""
    path, copy = tmp_path / "optimus.db", tmp_path / "copy.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    repository = Repository(create_engine_from_url(f"sqlite:///{path}"))
    world = World(repository, tmp_path)
    world.submit("old")
    world.round()
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)  # as `.backup` of the command line
    world.submit("new")
    world.round()
    trained = world.running("new")
    repository.close()

    restored = Repository(create_engine_from_url(f"sqlite:///{copy}"))
    try:
        world.clock.now += 60.0  # the lease of the backup is over
        after = World(restored, tmp_path, world.cluster, world.clock)
        for _ in range(4):
            after.round()
            after.clock.now += 60.0
        assert {task.key for task in after.rounds.unknown.found} == set(trained)
        assert set(trained) <= set(living(after))
        assert any(each.type == "UnknownTasks" for each in restored.events.page().items)
        assert after.running("old")
        assert all(amount <= 4.0 for amount in used(after).values()), used(after)
    finally:
        restored.close()


tasks = st.builds(
    Task,
    st.builds(TaskKey, st.sampled_from(["a", "b"]), st.sampled_from(Role), st.integers(0, 3)),
    st.sampled_from(["node-0", "node-1", "gone"]),
    st.sampled_from(TaskPhase),
    resources=st.none() | st.builds(Resources, st.floats(0, 8), st.integers(0, 2**34), st.just({"a100": 1})),
)


@given(st.lists(tasks, unique_by=lambda task: task.key), st.lists(tasks, unique_by=lambda task: task.key))
def test_room_and_unknown_tasks_are_what_the_nodes_have(seen: list[Task], known: list[Task]) -> None:
    found = without_record(seen, known)
    assert {task.key for task in found}.isdisjoint({task.key for task in known})
    assert all(task.phase is not TaskPhase.EXITED for task in found)
    nodes = [Node(name, Resources(4.0, 2**33, {"a100": 2})) for name in ("node-0", "node-1")]
    for before, after in zip(nodes, less(nodes, found), strict=True):
        here = sum((resources_of(task) for task in found if task.node == before.name), Resources())
        assert after.capacity.cpu == max(before.capacity.cpu - here.cpu, 0.0)
        assert after.capacity.memory_bytes == max(before.capacity.memory_bytes - here.memory_bytes, 0)
        assert after.capacity.gpus.get("a100", 0) == max(2 - here.gpus.get("a100", 0), 0)
