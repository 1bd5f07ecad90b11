"""The coordinator's pure parts: the barrier, the cover, the choice of members, the plan."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.protocol.coordinator_harness import PROFILE

from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_workers.coordinator.barrier import AsyncBarrier, SyncBarrier
from optimus_workers.coordinator.membership import newest_cover
from optimus_workers.coordinator.plan import JobPlan
from optimus_workers.coordinator.state import LossWindow
from optimus_workers.wire.ranges import server_ranges
from optimus_workers.wire.values import Holding


def test_the_sync_barrier_opens_when_all_are_done() -> None:
    barrier = SyncBarrier(("a", "b"), 7, 9)
    assert barrier.tickets() == [("a", 7), ("b", 7)]
    assert barrier.tickets() == []
    assert not barrier.done("a", 7)
    assert not barrier.done("a", 7), "only once"
    assert not barrier.done("b", 6), "another step"
    assert not barrier.is_quiet
    assert barrier.done("b", 7)
    assert (barrier.version, barrier.is_quiet) == (8, True)
    barrier.tickets()
    barrier.done("a", 8)
    barrier.done("b", 8)
    assert barrier.is_exhausted
    assert barrier.tickets() == []


@given(st.integers(1, 5), st.integers(0, 40), st.randoms(use_true_random=False))
def test_async_tickets_are_each_handed_out_once(n_workers: int, n_steps: int, chance: random.Random) -> None:
    workers = tuple(f"w{index}" for index in range(n_workers))
    barrier = AsyncBarrier(workers, 100, 100 + n_steps)
    busy: dict[str, int] = {}
    handed: list[int] = []
    while True:
        for worker, step in barrier.tickets():
            assert worker not in busy
            busy[worker] = step
            handed.append(step)
        if not busy:
            break
        worker = chance.choice(sorted(busy))
        assert barrier.done(worker, busy.pop(worker))
    assert handed == list(range(100, 100 + n_steps))
    assert barrier.version == 100 + n_steps


@given(st.integers(1, 5), st.integers(0, 3), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12))
def test_a_cover_is_the_newest_version_that_is_whole(n_servers: int, newest: int, gone: list[tuple[int, int]]) -> None:
    ranges = server_ranges(320, n_servers)
    held = {
        f"s{server}": tuple(
            Holding(5, version, *ranges[server]) for version in range(newest + 1) if (server, version) not in gone
        )
        for server in range(n_servers)
    }
    whole = [
        version for version in range(newest + 1) if all((server, version) not in gone for server in range(n_servers))
    ]
    addresses = dict.fromkeys(held, ("127.0.0.1", 1))
    cover = newest_cover(held, addresses, 320, oldest_epoch=5, same_version=True)
    if not whole:
        assert cover is None
        return
    assert cover is not None
    assert cover.version == max(whole)
    assert [source.first for source in cover.sources] == [0, *(source.end for source in cover.sources[:-1])]
    assert cover.sources[-1].end == 320
    for first, end in server_ranges(320, 3):
        parts = cover.part(first, end)
        assert min(part.first for part in parts) <= first
        assert max(part.end for part in parts) >= end
    assert newest_cover(held, addresses, 320, oldest_epoch=6, same_version=True) is None


@pytest.mark.parametrize(
    ("convergence", "expected"),
    [
        ({}, None),
        ({"max_steps": 7}, 7),
        ({"max_epochs": 2.0}, 20),
        ({"max_epochs": 0.11}, 2),
        ({"max_epochs": 1e-9}, 1),
        ({"max_steps": 7, "max_epochs": 0.5}, 5),
    ],
)
def test_the_last_step(convergence: dict[str, float], expected: int | None) -> None:
    spec = read(JobSpec, {"name": "job", "task": "package.module:make", "convergence": convergence})
    assert JobPlan.from_spec(spec).last_step(PROFILE) == expected


def test_the_loss_is_weighed_by_examples_and_forgets() -> None:
    losses = LossWindow(2)
    assert losses.mean is None
    for shares in ([(9.0, 1)], [(1.0, 3), (2.0, 1)], [(4.0, 4), (0.0, 0)]):
        for loss, n_examples in shares:
            losses.add(loss, n_examples)
        losses.close_step()
    losses.add(100.0, 1)
    losses.drop_step()
    assert losses.mean == (1.0 * 3 + 2.0 + 4.0 * 4) / 8
