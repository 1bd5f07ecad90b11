"""What ended jobs leave goes beside the rounds, in small batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.service.loop.loop_world import VirtualClock, World
from tests.service.store.store_builders import samples_of

from optimus_service.loop.retention import PERIOD_SECONDS, Retention
from optimus_service.store.records import Pruned
from optimus_service.store.repository import LeaderRepository, Repository


def retention_of(clock: VirtualClock, errors: list[str] | None = None) -> Retention:
    return Retention(clock, 600.0, (errors if errors is not None else []).append)


def leader_of(world: World) -> LeaderRepository:
    return world.repository.as_leader(world.fence)


@pytest.fixture
def ended(repository: Repository, tmp_path: Path) -> World:
    """A world whose job ended an hour ago."""
    world = World(repository, tmp_path, keep_seconds=600.0)
    world.submit("job-1")
    world.live_until("it has ended", lambda: world.state().is_final)
    assert samples_of(repository, "job-1")
    world.clock.now += 3600.0
    return world


class UntilIdle:
    """A condition for one thread: whoever would wait without an end ends."""

    def __init__(self) -> None:
        self.retention: Retention | None = None

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_error: object) -> None:
        """Nothing is locked."""

    def notify_all(self) -> None:
        """Nobody waits."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        if timeout is None and not predicate():
            assert self.retention is not None
            self.retention.stop(0.0)
        return predicate()


def test_a_service_that_restarts_often_deletes_what_is_old(ended: World, repository: Repository) -> None:
    idle = UntilIdle()
    idle.retention = retention = Retention(ended.clock, 600.0, [].append, wake_up=idle)
    retention.note(leader_of(ended))
    retention.run()
    assert not samples_of(repository, "job-1")
    assert [round_.at for round_ in repository.rounds().items if round_.at < ended.clock.now - 600.0] == []


def test_a_sweep_leaves_nothing_for_the_next(ended: World, repository: Repository) -> None:
    retention = retention_of(ended.clock)
    assert retention.sweep(leader_of(ended)) > 0
    assert not samples_of(repository, "job-1")
    assert retention.sweep(leader_of(ended)) == 0


def test_a_sweep_is_due_once_a_period(ended: World) -> None:
    retention = retention_of(ended.clock)
    retention.note(leader_of(ended))
    assert retention._is_due()
    retention.sweep(leader_of(ended))
    assert not retention._is_due()
    ended.clock.now += PERIOD_SECONDS
    assert retention._is_due()


def test_a_deposed_leader_deletes_nothing(ended: World, repository: Repository) -> None:
    retention = retention_of(ended.clock)
    assert retention.sweep(repository.as_leader(-1)) == 0
    assert samples_of(repository, "job-1")


def test_a_mistake_is_counted_and_ends_no_thread(ended: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Pruned:
        raise ValueError("a mistake")

    errors: list[str] = []
    monkeypatch.setattr(LeaderRepository, "prune", broken)
    retention = retention_of(ended.clock, errors)
    assert retention.sweep(leader_of(ended)) == 0
    assert errors == ["retention"]
