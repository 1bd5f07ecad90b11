"""Who leads: leases, takeover from the dead, and fencing."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from tests.service import leases
from tests.service.store.store_builders import put_task, set_wanted

from optimus_scheduler.model import Allocation, Directive, Role, TaskKey
from optimus_service.loop.leader import Holder, Leadership
from optimus_service.process import identity as kernel
from optimus_service.store.errors import StaleLeader
from optimus_service.store.repository import Repository

LEASE_SECONDS = 9.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def leadership(repository: Repository, clock: Clock, holder: Holder) -> Leadership:
    return Leadership(repository, LEASE_SECONDS, clock, holder)


def alive() -> Holder:
    return Holder.this_process()


def elsewhere(number: int = 1) -> Holder:
    """A process of another machine."""
    return Holder(f"host-{number}/boot/pid:[1]", kernel.Process(1, 1))


def dead() -> Holder:
    """A process of this machine that has ended."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    parsed = kernel.parse_stat(Path(f"/proc/{pid}/stat").read_text())
    assert parsed is not None
    os.waitpid(pid, 0)
    return replace(alive(), process=parsed[0])


def test_names_can_be_read_back() -> None:
    assert Holder.parse(alive().name) == alive()
    assert Holder.parse("somebody") is None
    assert Holder.parse("host/with/1/x") is None


def test_only_one_leads_until_the_lease_is_over(repository: Repository, clock: Clock) -> None:
    first = leadership(repository, clock, elsewhere(1))
    second = leadership(repository, clock, elsewhere(2))
    token = first.claim()
    assert token is not None
    assert second.claim() is None
    leases.run_out(repository)
    newer = second.claim()
    assert newer is not None
    assert newer > token


def test_renewing_keeps_the_lease(repository: Repository, clock: Clock) -> None:
    first = leadership(repository, clock, elsewhere(1))
    second = leadership(repository, clock, elsewhere(2))
    token = first.claim()
    for _ in range(20):
        clock.now += LEASE_SECONDS / 3
        leases.move_ends(repository, -LEASE_SECONDS / 3)
        assert first.claim() == token
        assert second.claim() is None


def test_resigning_lets_others_lead_at_once(repository: Repository, clock: Clock) -> None:
    first = leadership(repository, clock, elsewhere(1))
    first.claim()
    first.resign()
    assert leadership(repository, clock, elsewhere(2)).claim() is not None
    assert first.claim() is None


def test_leader_that_died_on_this_machine_is_replaced_at_once(repository: Repository, clock: Clock) -> None:
    token = leadership(repository, clock, dead()).claim()
    assert token is not None
    successor = leadership(repository, clock, alive()).claim()
    assert successor is not None
    assert successor > token


def test_leader_that_lives_or_cannot_be_seen_is_not_replaced(repository: Repository, clock: Clock) -> None:
    leadership(repository, clock, alive()).claim()
    assert leadership(repository, clock, elsewhere()).claim() is None
    assert leadership(repository, clock, replace(dead(), host=elsewhere().host)).claim() is None


def test_deposed_leader_notices(repository: Repository, clock: Clock) -> None:
    first = leadership(repository, clock, elsewhere(1))
    token = first.claim()
    leases.run_out(repository)
    assert leadership(repository, clock, elsewhere(2)).claim() is not None
    first.step_down()
    assert first.claim() is None
    assert token is not None
    spec = {"name": "job", "project": "default", "task": "m:f"}
    repository.jobs.create("job-1", spec, "nonce", None, "hash", 0.0)
    deposed = repository.as_leader(token)
    with pytest.raises(StaleLeader):
        set_wanted(deposed, "job-1", Allocation(1, 1), Directive.RUN, (), 0.0)
    with pytest.raises(StaleLeader):
        put_task(deposed, TaskKey("job-1", Role.WORKER, 0), "node-0", 0.0)
    with pytest.raises(StaleLeader):
        deposed.check_fence()
    assert repository.tasks.select() == []


def test_the_lease_is_kept_during_a_long_round(repository: Repository) -> None:
    """In real time, as rounds are: longer than a lease, and still nobody else leads."""
    mine = Leadership(repository, 2.0, time.monotonic, elsewhere(1))
    other = Leadership(repository, 2.0, time.monotonic, elsewhere(2))
    token = mine.claim()
    assert token is not None
    busy = Event()
    with mine.kept():
        for _ in range(20):
            busy.wait(0.15)
            assert other.claim() is None
            with repository.as_leader(token).write():
                """It may write."""
    mine.step_down()
    give_up_at = time.monotonic() + 60.0
    while other.claim() is None:
        busy.wait(0.05)
        assert time.monotonic() < give_up_at
    with pytest.raises(StaleLeader):
        repository.as_leader(token).check_fence()
