"""Leases: one holder at a time, and tokens that only grow."""

from __future__ import annotations

import time

import pytest
from tests.service import leases

from optimus_service.settings import Settings
from optimus_service.store.errors import StaleLeader
from optimus_service.store.leases import LONGEST_LEASE_SECONDS
from optimus_service.store.records import LeaseRecord
from optimus_service.store.repository import LEADER_LEASE, Repository


def test_a_lease_has_one_holder(repository: Repository) -> None:
    assert token_of(repository.leases.acquire("l", "a", 10.0)) > 0
    assert repository.leases.acquire("l", "b", 10.0) is None
    assert repository.leases.acquire("other", "b", 10.0) is not None


def test_the_holder_renews_and_keeps_its_token(repository: Repository) -> None:
    taken = repository.leases.acquire("l", "a", 10.0)
    leases.move_ends(repository, -9.0)
    renewed = repository.leases.acquire("l", "a", 10.0)
    assert taken is not None
    assert renewed is not None
    assert renewed.token == taken.token
    assert renewed.expires_at >= taken.expires_at
    assert repository.leases.acquire("l", "b", 10.0) is None


def test_a_lease_that_is_over_passes_on_with_a_higher_token(repository: Repository) -> None:
    first = token_of(repository.leases.acquire("l", "a", 10.0))
    leases.run_out(repository)
    assert token_of(repository.leases.acquire("l", "b", 10.0)) == first + 1
    assert repository.leases.acquire("l", "a", 10.0) is None
    leases.run_out(repository)
    assert token_of(repository.leases.acquire("l", "a", 10.0)) == first + 2


def test_a_lease_lasts_by_the_clock_of_the_database(repository: Repository) -> None:
    before = time.time()
    taken = repository.leases.acquire("l", "a", 10.0)
    assert taken is not None
    assert before + 9.0 < taken.expires_at < time.time() + 11.0, "this machine's, in this test"


def test_a_lease_that_an_advanced_clock_wrote_is_free(repository: Repository) -> None:
    """Else nobody leads for an hour: older releases took the replica's clock, and a database's may be set back."""
    first = token_of(repository.leases.acquire("l", "a", 10.0))
    leases.move_ends(repository, 3600.0)
    assert token_of(repository.leases.acquire("l", "b", 10.0)) == first + 1


def test_no_lease_may_be_longer_than_one_that_counts() -> None:
    bounds = Settings.model_fields["lease_seconds"].metadata
    assert [bound.le for bound in bounds if hasattr(bound, "le")] == [LONGEST_LEASE_SECONDS]


def test_whoever_asks_with_a_shorter_lease_waits_as_well(repository: Repository) -> None:
    """As while the setting is changed from replica to replica."""
    repository.leases.acquire("l", "a", 60.0)
    assert repository.leases.acquire("l", "b", 2.0) is None


def test_tokens_grow_although_the_row_was_deleted(repository: Repository) -> None:
    older = token_of(repository.leases.acquire(LEADER_LEASE, "a", 10.0)) - 5  # five leaders ago, seconds before
    leases.forget(repository)
    newer = token_of(repository.leases.acquire(LEADER_LEASE, "b", 10.0))
    assert newer > older
    with pytest.raises(StaleLeader):
        repository.as_leader(older).check_fence()


def test_giving_up_lets_the_next_one_in_at_once(repository: Repository) -> None:
    first = token_of(repository.leases.acquire("l", "a", 10.0))
    repository.leases.release("l", "b")
    assert repository.leases.acquire("l", "b", 10.0) is None
    repository.leases.release("l", "a")
    assert token_of(repository.leases.acquire("l", "b", 10.0)) == first + 1


def test_anybody_can_ask_who_has_the_lease(repository: Repository) -> None:
    assert repository.leases.current("l") is None
    taken = repository.leases.acquire("l", "a", 10.0)
    assert taken is not None
    assert repository.leases.current("l") == taken
    repository.leases.release("l", "a")
    assert repository.leases.current("l") == LeaseRecord(holder="a", token=taken.token, expires_at=0.0)


def test_only_the_token_in_force_may_write(repository: Repository) -> None:
    """A higher one is none of this database's: its lease was deleted, or it comes from another database."""
    with pytest.raises(StaleLeader):
        repository.as_leader(0).check_fence()
    lease = repository.leases.acquire(LEADER_LEASE, "a", 10.0)
    assert lease is not None
    repository.as_leader(lease.token).check_fence()
    for other in (lease.token - 1, lease.token + 1, lease.token + 7):
        with pytest.raises(StaleLeader):
            repository.as_leader(other).events.add(None, "Test", "Nothing happened.", {}, 0.0)
    assert not repository.events.page().items


def test_a_leader_that_renews_too_late_acts_no_more_on_the_cluster(repository: Repository) -> None:
    """Whatever it writes is safe: nobody takes the lease while its transaction lasts. A call to the cluster is not."""
    lease = repository.leases.acquire(LEADER_LEASE, "a", 10.0)
    assert lease is not None
    leader = repository.as_leader(lease.token)
    leader.check_fence()
    leases.move_ends(repository, -9.5)
    with pytest.raises(StaleLeader, match="not renewed in time"):
        leader.check_fence()
    leader.events.add(None, "Test", "Nothing happened.", {}, 0.0)
    assert repository.events.page().items


def test_what_is_for_reading_does_not_write(repository: Repository) -> None:
    reading = repository.reading()
    assert reading.jobs.active() == []
    with pytest.raises(RuntimeError, match="for reading"):
        reading.events.add(None, "Test", "Nothing happened.", {}, 0.0)


def token_of(lease: LeaseRecord | None) -> int:
    assert lease is not None
    return lease.token
