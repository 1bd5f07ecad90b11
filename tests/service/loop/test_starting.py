"""Tasks that are started together: as many at a time as allowed, told in order, and only by who leads."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.service import leases
from tests.service.loop.loop_world import NODES, World

from optimus_scheduler.lifecycle import CancelRequested, PauseRequested, ResumeRequested
from optimus_scheduler.model import Architecture, JobState, Resources, Role, StartUps, TaskKey, Trouble
from optimus_service.clusters.base import TaskLaunch, TaskRefused
from optimus_service.clusters.fake import FakeCluster
from optimus_service.loop import apply
from optimus_service.loop.launch import Starter
from optimus_service.observe.joins import StartUp, joins_of, newest_start_ups
from optimus_service.observe.snapshot import ClusterState
from optimus_service.store.errors import StaleLeader
from optimus_service.store.jobs.tasks import Tasks
from optimus_service.store.records import MembershipRecord
from optimus_service.store.repository import LEADER_LEASE, Repository

AT_ONCE = 4


class Meeting(FakeCluster):
    """Every start waits until `size` of them are under way."""

    def __init__(self, size: int) -> None:
        super().__init__(NODES)
        self.barrier = threading.Barrier(size, timeout=30.0)
        self.mutex = threading.Lock()
        self.refused: frozenset[TaskKey] = frozenset()

    def start(self, launch: TaskLaunch) -> None:
        self.barrier.wait()
        if launch.key in self.refused:
            raise TaskRefused(Trouble("Quota", f"no {launch.key.name}"))
        with self.mutex:
            super().start(launch)


def launches(count: int) -> list[TaskLaunch]:
    keys = [TaskKey("job-1", Role.WORKER, rank) for rank in range(count)]
    return [TaskLaunch(key, NODES[0].name, Resources(0.1, 1), {}) for key in keys]


def test_as_many_as_allowed_are_under_way() -> None:
    cluster = Meeting(AT_ONCE)
    assert list(Starter(cluster, AT_ONCE).start(launches(2 * AT_ONCE))) == [None] * (2 * AT_ONCE)
    assert len(cluster.tasks()) == 2 * AT_ONCE


def test_what_failed_is_told_in_order() -> None:
    cluster, wanted = Meeting(AT_ONCE), launches(2 * AT_ONCE)
    cluster.refused = frozenset({wanted[1].key, wanted[6].key})
    outcomes = list(Starter(cluster, AT_ONCE).start(wanted))
    assert [number for number, error in enumerate(outcomes) if error is not None] == [1, 6]
    assert str(outcomes[6]) == f"Quota: no {wanted[6].key.name}"


def test_one_at_a_time_stays_in_the_callers_thread() -> None:
    cluster = Meeting(1)
    seen: list[int] = []
    start = cluster.start

    def noted(launch: TaskLaunch) -> None:
        seen.append(threading.get_ident())
        start(launch)

    cluster.start = noted  # type: ignore[method-assign]
    assert list(Starter(cluster, 1).start(launches(3))) == [None] * 3
    assert set(seen) == {threading.get_ident()}


def test_a_round_starts_everything_once(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path, starts_at_once=AT_ONCE)
    jobs = [world.submit(f"job-{number}") for number in range(3)]
    world.round()
    once = {task.key: task.node for task in world.cluster.tasks()}
    assert {key.job_id for key in once} == {job.id for job in jobs}
    wanted = {key for job in jobs for key in (placed.key for placed in repository.wanted.get(job.id).tasks)}
    assert wanted <= once.keys()
    world.round()
    assert {task.key: task.node for task in world.cluster.tasks()} == once


def test_a_deposed_leader_starts_nothing_of_a_batch(repository: Repository, tmp_path: Path) -> None:
    world = World(repository, tmp_path, starts_at_once=AT_ONCE)
    world.submit()
    leases.run_out(repository)
    assert repository.leases.acquire(LEADER_LEASE, "somebody-else", 10.0) is not None
    with pytest.raises(StaleLeader):
        world.round()
    assert world.cluster.tasks() == ()


@pytest.mark.parametrize("at_once", [1, AT_ONCE])
def test_every_task_is_recorded_before_it_is_started(repository: Repository, tmp_path: Path, at_once: int) -> None:
    world = World(repository, tmp_path, starts_at_once=at_once)
    for number in range(3):
        world.submit(f"job-{number}")
    start = world.cluster.start
    unknown: list[TaskKey] = []

    def noted(launch: TaskLaunch) -> None:
        records = {record.key for record in repository.tasks.select()}
        if launch.key not in records or repository.jobs.get(launch.key.job_id).coordinator_address is None:
            unknown.append(launch.key)
        start(launch)

    world.cluster.start = noted  # type: ignore[method-assign]
    world.round()
    assert world.cluster.launches
    assert unknown == []


def test_a_leader_that_is_replaced_between_two_starts_starts_no_more(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "_FENCE_SECONDS", 0.0)
    world = World(repository, tmp_path)
    world.submit()
    start = world.cluster.start

    def replaced(launch: TaskLaunch) -> None:
        start(launch)
        repository.leases.release(LEADER_LEASE, f"world-{id(world)}")
        repository.leases.acquire(LEADER_LEASE, "somebody-else", 10.0)

    world.cluster.start = replaced  # type: ignore[method-assign]
    with pytest.raises(StaleLeader):
        world.round()
    assert len(world.cluster.launches) == 1
    assert len(repository.tasks.select()) > 1, "the others are recorded, for the successor to start"


def test_a_leader_that_is_replaced_as_it_notes_tasks_starts_none(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "_FENCE_SECONDS", 0.0)
    world = World(repository, tmp_path)
    world.submit()
    put = Tasks.put

    def replaced(self: Tasks, *arguments: Any) -> None:
        put(self, *arguments)
        repository.leases.release(LEADER_LEASE, f"world-{id(world)}")
        repository.leases.acquire(LEADER_LEASE, "somebody-else", 10.0)

    monkeypatch.setattr(Tasks, "put", replaced)
    with pytest.raises(StaleLeader):
        world.round()
    assert not world.cluster.launches


def test_how_long_new_tasks_took_to_join_is_told_by_the_memberships_that_they_came_with() -> None:
    """Of tasks that were there already, and of those whose start is not known any more, nothing is told."""

    def epoch(number: int, at: float, workers: int) -> MembershipRecord:
        names = tuple(f"job-1-worker-{rank}-0" for rank in range(workers))
        values = {"job_id": "job-1", "generation": number, "step": 0, "cause": "rescale", "servers": ()}
        return MembershipRecord(epoch=number, at=at, workers=names, **values)  # type: ignore[arg-type]

    told = [epoch(1, 105.0, 1), epoch(2, 130.0, 3), epoch(3, 140.0, 1), epoch(4, 150.0, 2)]
    began = {"job-1-worker-0-0": 100.0, "job-1-worker-1-0": 122.0, "job-1-worker-2-0": 123.0}
    assert joins_of(told, began) == [(105.0, 5.0, True), (130.0, 7.0, False), (150.0, 28.0, False)]
    assert joins_of(told, began, since=2) == [(150.0, 28.0, False)]
    assert joins_of(told, {}) == []


def has_ended(repository: Repository, job_id: str) -> bool:
    return repository.jobs.get(job_id).state.is_final


def test_how_long_first_tasks_took_is_kept_by_task_beyond_the_end_of_their_job(
    repository: Repository, tmp_path: Path
) -> None:
    world = World(repository, tmp_path)
    for name in ("first", "second"):
        world.submit(name, workers={"max": 1}, servers={"max": 1})
        world.round()
        world.clock.now += 7.0
        world.train(5)
        world.round()
        assert world.repository.jobs.get(name).started_at is not None
        repository.jobs.advance(name, CancelRequested(has_tasks=True), world.clock())
        world.live_until("the job ends", partial(has_ended, repository, name))
    assert start_ups_seen(world) == {("m:f", Architecture.PS): (7.0, 7.0)}


def start_ups_seen(world: World) -> StartUps:
    return world.rounds._observer.look(ClusterState.of(world.cluster), world.clock()).start_ups


def test_a_restarted_service_knows_how_long_first_tasks_took(repository: Repository, tmp_path: Path) -> None:
    """Of jobs that have ended and of those that are there, in the order of their starts; those after a pause, too."""
    world = World(repository, tmp_path)
    for name, seconds in (("first", 7.0), ("second", 4.0)):
        world.submit(name, workers={"max": 1}, servers={"max": 1})
        world.round()
        world.clock.now += seconds
        world.train(2)
        world.round()
    repository.jobs.advance("second", PauseRequested(has_tasks=True), world.clock())
    world.live_until("it is paused", lambda: repository.jobs.get("second").state is JobState.PAUSED)
    repository.jobs.advance("second", ResumeRequested(), world.clock())
    world.round()
    world.clock.now += 3.0
    world.train(2)
    world.round()
    repository.jobs.advance("first", CancelRequested(has_tasks=True), world.clock())
    world.live_until("the job ends", partial(has_ended, repository, "first"))
    known = start_ups_seen(world)
    assert known == {("m:f", Architecture.PS): (7.0, 4.0, 3.0)}
    assert start_ups_seen(World(repository, tmp_path, world.cluster, world.clock)) == known


def test_of_each_kind_the_newest_start_ups_are_kept_whenever_they_are_told() -> None:
    kinds = [(task, Architecture.PS) for task in ("often", "rarely")]
    told = [StartUp(float(at), f"job-{at}", kinds[at % 5 == 0], 2.0 * at) for at in range(20)]
    at_once, in_turn = newest_start_ups({}, reversed(told)), dict[Any, Any]()
    for at in range(0, 20, 3):
        in_turn = dict(newest_start_ups(in_turn, told[at : at + 3]))
    assert list(at_once.items()) == list(in_turn.items())
    assert at_once[kinds[0]] == (22.0, 24.0, 26.0, 28.0, 32.0, 34.0, 36.0, 38.0)
    assert at_once[kinds[1]] == (0.0, 10.0, 20.0, 30.0)
