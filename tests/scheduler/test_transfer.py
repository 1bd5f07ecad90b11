"""Spreading one job's tasks over nodes."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_scheduler.transfer import (
    Counts,
    Extra,
    Space,
    Spread,
    spread_evenly,
    spread_least_transfer,
    transfer_cost,
)
from optimus_scheduler.types import Resources

ONE = Resources(1.0)


def slots(*free: int) -> list[Space]:
    return [Space(f"node-{i}", Resources(float(cpu))) for i, cpu in enumerate(free)]


def extra(workers: int, servers: int) -> Extra:
    return Extra(workers, servers, ONE, ONE)


def with_present(spaces: list[Space], counts: Counts) -> list[tuple[int, int]]:
    return [
        (space.workers + counts.get(space.node, (0, 0))[0], space.servers + counts.get(space.node, (0, 0))[1])
        for space in spaces
    ]


def cheapest(spaces: list[Space], workers: int, servers: int) -> float | None:
    """The least cost over every way there is, by trying them all."""
    ways = product(product(range(workers + 1), range(servers + 1)), repeat=len(spaces))
    costs = [
        transfer_cost((space.workers + w, space.servers + p) for space, (w, p) in zip(spaces, way, strict=True))
        for way in ways
        if sum(w for w, _ in way) == workers
        and sum(p for _, p in way) == servers
        and all(w + p <= space.room.cpu for space, (w, p) in zip(spaces, way, strict=True))
    ]
    return min(costs, default=None)


# --- the paper's example, figure 10: 2 servers and 4 workers on 3 nodes with 3 slots each ----------------------------


@pytest.mark.parametrize(
    ("counts", "cost"),
    [
        ([(1, 1), (1, 1), (2, 0)], 3.0),  # (a)
        ([(1, 2), (3, 0), (0, 0)], 3.0),  # (b)
        ([(2, 1), (2, 1), (0, 0)], 2.0),  # (c)
    ],
)
def test_costs_of_figure_10(counts: list[tuple[int, int]], cost: float) -> None:
    # The figure draws unit sizes per server: half a model each, so times p = 2.
    assert transfer_cost(counts) * 2 == cost


@pytest.mark.parametrize("spread", [spread_least_transfer, spread_evenly])
def test_both_find_the_best_of_figure_10(spread: Spread) -> None:
    spaces = slots(3, 3, 3)
    counts = spread(spaces, extra(4, 2))
    assert counts is not None
    assert sorted(with_present(spaces, counts), reverse=True) == [(2, 1), (2, 1), (0, 0)]


@pytest.mark.parametrize(
    ("free", "workers", "servers", "even", "least"),
    [((4, 4), 4, 1, 2.0, 1.0), ((6, 6), 6, 2, 1.5, 1.0)],
)
def test_an_even_spread_is_not_always_best(
    free: tuple[int, ...], workers: int, servers: int, even: float, least: float
) -> None:
    """Where the paper's theorem counts servers that a node does not have."""
    spaces = slots(*free)
    evenly, best = (spread(spaces, extra(workers, servers)) for spread in (spread_evenly, spread_least_transfer))
    assert evenly is not None
    assert best is not None
    assert transfer_cost(with_present(spaces, evenly)) == even
    assert transfer_cost(with_present(spaces, best)) == least


# --- what holds always -----------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 4), st.integers(0, 3), st.data())
def test_small_spreads_are_optimal(free: list[int], workers: int, servers: int, data: st.DataObject) -> None:
    present = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 1))) for _ in free]
    spaces = [
        Space(f"node-{i}", Resources(float(cpu)), w, p)
        for i, (cpu, (w, p)) in enumerate(zip(free, present, strict=True))
    ]
    counts, best = spread_least_transfer(spaces, extra(workers, servers)), cheapest(spaces, workers, servers)
    if best is None:
        assert counts is None
    else:
        assert counts is not None
        assert transfer_cost(with_present(spaces, counts)) == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 40), st.integers(1, 40))
def test_large_spreads_place_everything_within_the_room(free: list[int], workers: int, servers: int) -> None:
    spaces = slots(*free)
    counts = spread_least_transfer(spaces, extra(workers, servers))
    assert (counts is not None) == (sum(free) >= workers + servers)
    if counts is not None:
        assert sum(w for w, _ in counts.values()) == workers
        assert sum(p for _, p in counts.values()) == servers
        assert all(sum(counts.get(space.node, (0, 0))) <= space.room.cpu for space in spaces)


def test_one_node_is_used_when_it_is_enough() -> None:
    assert spread_least_transfer(slots(3, 6, 4), extra(2, 2)) == {"node-1": (2, 2)}


def test_a_growing_job_stays_on_its_node() -> None:
    spaces = [Space("busy", Resources(2.0), 1, 1), Space("empty", Resources(8.0))]
    assert spread_least_transfer(spaces, extra(1, 1)) == {"busy": (1, 1)}


def test_cpu_jobs_leave_gpu_nodes_alone() -> None:
    spaces = [Space("gpu", Resources(16.0, 0, {"a100": 8})), Space("plain", Resources(4.0))]
    assert spread_least_transfer(spaces, extra(1, 1)) == {"plain": (1, 1)}


def test_no_way_is_none() -> None:
    assert spread_least_transfer(slots(1, 1), extra(2, 1)) is None
    assert spread_evenly(slots(1, 1), extra(2, 1)) is None
