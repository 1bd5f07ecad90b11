"""What ended jobs leave goes beside the rounds, in small batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.service.loop.loop_world import VirtualClock
from tests.service.store.store_builders import a_decision, a_membership, a_round, a_sample, add_samples, samples_of

from optimus_scheduler.lifecycle import CancelRequested
from optimus_service.loop.retention import PERIOD_SECONDS, Retention
from optimus_service.store.jobs import retention as statements
from optimus_service.store.records import Pruned
from optimus_service.store.repository import LEADER_LEASE, LeaderRepository, Repository

NOW = 1_000_000.0


def retention_of(clock: VirtualClock, errors: list[str] | None = None) -> Retention:
    return Retention(clock, 600.0, (errors if errors is not None else []).append)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW)


@pytest.fixture
def leader(repository: Repository) -> LeaderRepository:
    """Of a database whose one job ended an hour ago."""
    repository.jobs.create("job-1", {"name": "a", "project": "b"}, "nonce", None, "hash", NOW - 7200.0)
    repository.memberships.report("job-1", a_membership("job-1"))
    add_samples(repository, "job-1", [a_sample(sequence=number) for number in range(3)], NOW - 7000.0)
    repository.rounds.add(a_round(at=NOW - 7000.0), [a_decision("job-1", at=NOW - 7000.0)])
    repository.jobs.advance("job-1", CancelRequested(has_tasks=False), NOW - 3600.0)
    lease = repository.leases.acquire(LEADER_LEASE, "test", 600.0)
    assert lease is not None
    return repository.as_leader(lease.token)


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


def test_a_service_that_restarts_often_deletes_what_is_old(
    clock: VirtualClock, leader: LeaderRepository, repository: Repository
) -> None:
    idle = UntilIdle()
    errors: list[str] = []
    idle.retention = retention = Retention(clock, 600.0, errors.append, wake_up=idle)
    retention.note(leader)
    retention.run()
    assert not samples_of(repository, "job-1")
    assert [round_.at for round_ in repository.rounds.page().items if round_.at < NOW - 600.0] == []


def test_a_sweep_leaves_nothing_for_the_next(
    clock: VirtualClock, leader: LeaderRepository, repository: Repository
) -> None:
    retention = retention_of(clock)
    assert retention.sweep(leader) > 0
    assert not samples_of(repository, "job-1")
    assert retention.sweep(leader) == 0


def test_a_sweep_is_due_once_a_period(clock: VirtualClock, leader: LeaderRepository) -> None:
    retention = retention_of(clock)
    retention.note(leader)
    assert retention._is_due()
    retention.sweep(leader)
    assert not retention._is_due()
    clock.now += PERIOD_SECONDS
    assert retention._is_due()


def test_a_deposed_leader_deletes_nothing(
    clock: VirtualClock, leader: LeaderRepository, repository: Repository
) -> None:
    retention = retention_of(clock)
    assert retention.sweep(repository.as_leader(-1)) == 0
    assert samples_of(repository, "job-1")


def test_a_mistake_is_counted_and_ends_no_thread(
    clock: VirtualClock, leader: LeaderRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Pruned:
        raise ValueError("a mistake")

    errors: list[str] = []
    monkeypatch.setattr(statements.Retention, "prune", broken)
    retention = retention_of(clock, errors)
    assert retention.sweep(leader) == 0
    assert errors == ["retention"]
