"""The coordinator's pure parts: the barrier, the newest version, the settings, the loss window, partitions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.coordinator.harness import PROFILE

from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_workers.coordinator.barrier import AsyncBarrier, SyncBarrier
from optimus_workers.coordinator.job_settings import JobSettings
from optimus_workers.coordinator.membership import MAX_FAILURES, Members, Partition, newest_sources
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
    found = newest_sources(held, addresses, 320, oldest_epoch=5, same_version=True)
    if not whole:
        assert found is None
        return
    assert found is not None
    assert found.version == max(whole)
    assert [source.first for source in found.sources] == [0, *(source.end for source in found.sources[:-1])]
    assert found.sources[-1].end == 320
    for first, end in server_ranges(320, 3):
        parts = found.part(first, end)
        assert min(part.first for part in parts) <= first
        assert max(part.end for part in parts) >= end
    assert newest_sources(held, addresses, 320, oldest_epoch=6, same_version=True) is None


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
    assert JobSettings.from_spec(spec).last_step(PROFILE) == expected


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


# --- partitions: which task is replaced when some tasks cannot reach each other --------------------------------------

MEMBERS = Members(("w0", "w1", "w2"), ("s0", "s1"))


def repeated(*pairs: tuple[str, str]) -> Partition:
    partition = Partition()
    for worker, server in pairs * MAX_FAILURES:
        partition.add(worker, server)
    return partition


def test_one_broken_connection_replaces_no_task() -> None:
    partition = Partition()
    partition.add("w1", "s0")
    assert partition.cut_off(MEMBERS) is None


def test_of_a_pair_the_worker_is_replaced() -> None:
    assert repeated(("w1", "s0")).cut_off(MEMBERS) == "w1"


def test_a_server_that_several_workers_cannot_reach_is_replaced() -> None:
    assert repeated(("w1", "s0"), ("w2", "s0")).cut_off(MEMBERS) == "s0"


def test_the_only_one_of_its_kind_stays() -> None:
    assert repeated(("w1", "s0"), ("w2", "s0")).cut_off(Members(("w1", "w2"), ("s0",))) in ("w1", "w2")
    assert repeated(("w0", "s0")).cut_off(Members(("w0",), ("s0",))) is None


def test_a_completed_step_clears_all_failures() -> None:
    partition = repeated(("w1", "s0"))
    partition.clear()
    assert partition.cut_off(MEMBERS) is None


@given(st.lists(st.tuples(st.sampled_from(MEMBERS.workers), st.sampled_from(MEMBERS.servers)), max_size=12))
def test_the_replaced_task_failed_and_the_others_can_train(pairs: list[tuple[str, str]]) -> None:
    partition = Partition()
    for worker, server in pairs:
        partition.add(worker, server)
    gone = partition.cut_off(MEMBERS)
    if gone is None:
        assert all(pairs.count(pair) < MAX_FAILURES for pair in pairs)
    else:
        assert any(gone in pair and pairs.count(pair) >= MAX_FAILURES for pair in pairs)
