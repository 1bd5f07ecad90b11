"""A leader that is paused anywhere in a round, and replaced meanwhile, changes nothing when it goes on.

The round that is paused does everything that a round can do. The places where it can be paused are not listed: they
are all transactions that it begins, found by running it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select
from tests.service import leases
from tests.service.loop.loop_world import NODES, VirtualClock, World
from tests.service.store.store_builders import add_samples, put_task

from optimus_contract.telemetry import Sample
from optimus_scheduler.lifecycle import CancelRequested
from optimus_scheduler.model import JobState, Resources, Role, TaskKey, Trouble
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.fake import FakeCluster
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.database.tables import Base
from optimus_service.store.errors import StaleLeader
from optimus_service.store.repository import LEADER_LEASE, Repository

ROOMY = [replace(node, capacity=Resources(16.0, 2**36)) for node in NODES]
JOBS = (
    "has-ended",
    "converges",
    "breaks",
    "is-retried",
    "is-cancelled",
    "loses-a-task",
    "is-troubled",
    "has-a-straggler",
)
Dump = Mapping[str, object]


@dataclass(frozen=True)
class Scene:
    """A service that was killed at a moment when the next round has much to do."""

    database: Path
    cluster: FakeCluster
    now: float

    def world(self, directory: Path) -> World:
        """The service after its restart, on copies of everything."""
        directory.mkdir()
        shutil.copy(self.database, directory / "optimus.db")
        cluster = FakeCluster(ROOMY)
        cluster._nodes, cluster._tasks = dict(self.cluster._nodes), dict(self.cluster._tasks)
        cluster.stubborn, cluster.refuses_to_start = self.cluster.stubborn, self.cluster.refuses_to_start
        repository = Repository(create_engine_from_url(f"sqlite:///{directory / 'optimus.db'}"))
        leases.run_out(repository)
        return World(repository, directory, cluster, VirtualClock(self.now))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Scene:
    directory = tmp_path_factory.mktemp("scene")
    path = directory / "optimus.db"
    shutil.copy(migrated_sqlite, path)
    repository = Repository(create_engine_from_url(f"sqlite:///{path}"))
    world = World(repository, directory, FakeCluster(ROOMY))
    for name in JOBS:
        ends = {"convergence": {"max_seconds": 3600.0}} if name == "converges" else {}
        retries = {"retries": 0} if name == "breaks" else {}
        world.submit(name, workers={"min": 2, "max": 2}, servers={"max": 1}, **ends, **retries)
    world.live_until("all train", lambda: all(job.state is JobState.RUNNING for job in repository.jobs.active()))
    much_happens(world)
    repository.close()
    return Scene(path, world.cluster, world.clock.now + 3600.0)


def much_happens(world: World) -> None:
    """After the last round before the restart."""
    world._finish(world.repository.jobs.get("has-ended"), world.coordinators["has-ended"])
    for name in ("breaks", "is-retried"):
        (broken,) = (key for key in world.running(name, Role.WORKER) if key.rank == 0)
        world.cluster.exit(broken, 3)
    for key in world.running("is-cancelled"):
        world.cluster.exit(key, 0)
    world.repository.jobs.advance("is-cancelled", CancelRequested(), world.clock())
    lost, still_wanted = world.running("loses-a-task", Role.WORKER)
    world.cluster.exit(lost, None)
    world.repository.tasks.mark_unwanted([still_wanted], world.clock())
    gone, lingers = (TaskKey("loses-a-task", Role.WORKER, rank) for rank in (8, 9))
    world.cluster.start(TaskLaunch(lingers, "node-0", Resources(), {}))
    for unwanted in (gone, lingers):
        put_task(world.repository, unwanted, "node-0", world.clock())
        world.repository.tasks.mark_unwanted([unwanted], world.clock())
    (troubled,) = world.running("is-troubled", Role.COORDINATOR)
    world.cluster._tasks[troubled] = replace(
        world.cluster._tasks[troubled], trouble=Trouble("Unschedulable", "no room")
    )
    straggle(world, "has-a-straggler")
    world.submit("is-new")
    world.cluster.refuses_to_start = {"is-new-server-0-0"}


def straggle(world: World, job_id: str) -> None:
    """Worker 1 needs ten times as long as worker 0."""
    state = world.coordinators[job_id]
    add_samples(
        world.repository,
        job_id,
        [
            Sample(
                membership_epoch=state.epoch,
                rank=rank,
                sequence=1000 + number,
                workers=2,
                servers=state.servers,
                at=world.clock(),
                step=state.step,
                n_steps=5,
                data_epoch=1.0,
                loss=1.0,
                n_examples=160,
                seconds=50.0,
                compute_seconds=50.0 if rank else 5.0,
            )
            for number in range(10)
            for rank in range(2)
        ],
        world.clock(),
    )


def rows(repository: Repository) -> Dump:
    """Everything in the database but the leases."""
    tables = (table for table in Base.metadata.sorted_tables if table.name != "leases")
    with repository._engine.connect() as connection:
        return {table.name: connection.execute(select(table)).all() for table in tables}


def done_to(cluster: FakeCluster) -> Dump:
    """Everything that was ever asked of the cluster, and what came of it."""
    asked: dict[str, Any] = {name: copy(value) for name, value in vars(cluster).items() if name != "_lock"}
    return asked


class Successor:
    """Another replica: takes over when the leader's round begins its `at`-th transaction."""

    def __init__(self, world: World, at: int) -> None:
        self.rows: Dump | None = None
        """When it took over; None if it did not come to that."""
        self.cluster: Dump | None = None
        self._world = world
        self._at = at
        self._n_begun = 0
        self._own = Repository(create_engine_from_url(f"sqlite:///{world.directory / 'optimus.db'}"))
        event.listen(world.repository._engine, "checkout", self._begins)  # right before BEGIN

    def _begins(self, *_: object) -> None:
        self._n_begun += 1
        if self._n_begun == self._at:
            self._own.leases.release(LEADER_LEASE, f"world-{id(self._world)}")
            assert self._own.leases.acquire(LEADER_LEASE, "successor", 10.0) is not None
            self.rows, self.cluster = rows(self._own), done_to(self._world.cluster)

    def close(self) -> None:
        event.remove(self._world.repository._engine, "checkout", self._begins)
        self._own.close()
        self._world.repository.close()


def test_the_round_does_everything_that_a_round_can_do(scene: Scene, tmp_path: Path) -> None:
    """Else the test below would say little."""
    world = scene.world(tmp_path / "alone")
    before = rows(world.repository)
    assert world.round().error is not None
    after = rows(world.repository)
    assert {name for name in before if before[name] != after[name]} == {
        "jobs",
        "tasks",
        "events",
        "rounds",
        "decisions",
        "finished_runs",
        "promises",
        "job_histories",
        "usage",
        "ended_jobs",
        "memberships",
    }
    events = {event.type for event in world.repository.events.page(limit=1000).items}
    assert events >= {
        "TaskExited",
        "TaskTrouble",
        "Straggler",
        "ActionFailed",
        "LimitReached",
        "JobFailed",
        "JobCancelled",
        "RetryScheduled",
    }
    assert world.cluster.launches
    assert world.cluster.stopped
    assert world.repository.jobs.get("is-new").coordinator_address is not None
    world.repository.close()


def test_a_leader_that_was_replaced_changes_nothing(scene: Scene, tmp_path: Path) -> None:
    at = 0
    while True:
        at += 1
        world = scene.world(tmp_path / str(at))
        successor = Successor(world, at)
        refused = False
        try:
            world.round()
        except StaleLeader:
            refused = True
        if successor.rows is None:
            successor.close()
            break
        assert rows(world.repository) == successor.rows, f"written after the takeover at transaction {at}"
        assert done_to(world.cluster) == successor.cluster, f"done to the cluster after the takeover at {at}"
        assert refused, f"the takeover at transaction {at} was not noticed"
        successor.close()
    assert at > 40
