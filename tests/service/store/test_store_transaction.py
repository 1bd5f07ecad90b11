"""`Repository.write()`: what belongs together happens as a whole, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.round_statements import counted
from tests.service import leases
from tests.service.store.store_builders import MakeJob, a_membership

from optimus_scheduler.lifecycle import MembershipFormed
from optimus_scheduler.model import JobState
from optimus_service.store.errors import StaleLeader
from optimus_service.store.repository import LEADER_LEASE, Repository


class Crash(Exception):
    """Something that goes wrong in the middle."""


def all_of(repository: Repository) -> tuple[Any, ...]:
    job = repository.jobs.get("job-1")
    return job, repository.memberships.of_job("job-1"), repository.events.page("job-1").items


def test_what_belongs_together_is_written_together(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    with counted(repository._engine) as counts, repository.write() as tx:
        assert tx.memberships.report("job-1", a_membership())
        assert tx.jobs.get("job-1").membership_epoch == 1, "a transaction sees what it wrote"
        tx.jobs.advance("job-1", MembershipFormed(1), 6.0)
    assert counts.transactions == 1
    assert repository.jobs.get("job-1").state is JobState.RUNNING


def test_nothing_is_left_of_what_breaks_off(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    before = all_of(repository)

    def break_off() -> None:
        with repository.write() as tx:
            tx.memberships.report("job-1", a_membership())
            tx.jobs.advance("job-1", MembershipFormed(1), 6.0)
            raise Crash

    with pytest.raises(Crash):
        break_off()
    assert all_of(repository) == before


def test_a_deposed_leader_writes_nothing_in_a_transaction(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    lease = repository.leases.acquire(LEADER_LEASE, "first", 60.0)
    assert lease is not None
    leader = repository.as_leader(lease.token)
    leases.run_out(repository)
    repository.leases.acquire(LEADER_LEASE, "second", 60.0)
    before = all_of(repository)
    with pytest.raises(StaleLeader), leader.write() as tx:
        tx.memberships.report("job-1", a_membership())
    assert all_of(repository) == before


def test_who_reads_gets_no_transaction(repository: Repository) -> None:
    with pytest.raises(RuntimeError), repository.reading().write():
        pass
