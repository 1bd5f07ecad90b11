"""Leases: one holder at a time, and tokens that only grow."""

from __future__ import annotations

import pytest

from optimus_service.store.errors import StaleLeader
from optimus_service.store.records import LeaseRecord
from optimus_service.store.repository import LEADER_LEASE, Repository


def test_a_lease_has_one_holder(repository: Repository) -> None:
    assert repository.acquire_lease("l", "a", 10.0, now=0.0) == LeaseRecord(holder="a", token=1, expires_at=10.0)
    assert repository.acquire_lease("l", "b", 10.0, now=9.9) is None
    assert repository.acquire_lease("other", "b", 10.0, now=9.9) is not None


def test_the_holder_renews_and_keeps_its_token(repository: Repository) -> None:
    repository.acquire_lease("l", "a", 10.0, now=0.0)
    assert repository.acquire_lease("l", "a", 10.0, now=8.0) == LeaseRecord(holder="a", token=1, expires_at=18.0)
    assert repository.acquire_lease("l", "b", 10.0, now=12.0) is None


def test_a_lease_that_is_over_passes_on_with_a_higher_token(repository: Repository) -> None:
    repository.acquire_lease("l", "a", 10.0, now=0.0)
    assert repository.acquire_lease("l", "b", 10.0, now=10.0) == LeaseRecord(holder="b", token=2, expires_at=20.0)
    assert repository.acquire_lease("l", "a", 10.0, now=11.0) is None
    assert repository.acquire_lease("l", "a", 10.0, now=30.0) == LeaseRecord(holder="a", token=3, expires_at=40.0)


def test_giving_up_lets_the_next_one_in_at_once(repository: Repository) -> None:
    repository.acquire_lease("l", "a", 10.0, now=0.0)
    repository.release_lease("l", "b")
    assert repository.acquire_lease("l", "b", 10.0, now=1.0) is None
    repository.release_lease("l", "a")
    taken = repository.acquire_lease("l", "b", 10.0, now=1.0)
    assert taken is not None
    assert taken.token == 2


def test_anybody_can_ask_who_has_the_lease(repository: Repository) -> None:
    assert repository.current_lease("l") is None
    taken = repository.acquire_lease("l", "a", 10.0, now=0.0)
    assert repository.current_lease("l") == taken
    repository.release_lease("l", "a")
    assert repository.current_lease("l") == LeaseRecord(holder="a", token=1, expires_at=0.0)


def test_only_the_token_in_force_may_write(repository: Repository) -> None:
    """A higher one is none of this database's: its lease was deleted, or it comes from another database."""
    with pytest.raises(StaleLeader):
        repository.as_leader(0).check_fence()
    lease = repository.acquire_lease(LEADER_LEASE, "a", 10.0, now=0.0)
    assert lease is not None
    repository.as_leader(lease.token).check_fence()
    for other in (lease.token - 1, lease.token + 1, lease.token + 7):
        with pytest.raises(StaleLeader):
            repository.as_leader(other).add_event(None, "Test", "Nothing happened.", {}, 0.0)
    assert not repository.events().items


def test_what_is_for_reading_does_not_write(repository: Repository) -> None:
    reading = repository.reading()
    assert reading.active_jobs() == []
    with pytest.raises(RuntimeError, match="for reading"):
        reading.add_event(None, "Test", "Nothing happened.", {}, 0.0)
