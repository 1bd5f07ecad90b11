"""Spreading one job's tasks over nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_scheduler.model import Node, Resources
from optimus_scheduler.place.bottleneck import Added, Extra
from optimus_scheduler.place.free_capacity import FreeCapacity
from optimus_scheduler.place.network_cost import (
    Present,
    Spread,
    spread_balanced,
    spread_evenly,
    spread_least_transfer,
    transfer_cost,
)

ONE = Resources(1.0)
Counts = list[tuple[int, int]]


def slots(*free: float) -> tuple[Node, ...]:
    return tuple(Node(f"node-{i:02}", Resources(cpu)) for i, cpu in enumerate(free))


def spread_with(
    spread: Spread,
    nodes: Sequence[Node],
    size: tuple[int, int],
    *,
    present: Present | None = None,
    needs: tuple[Resources, Resources] = (ONE, ONE),
) -> Counts | None:
    """(workers, servers) on each node in the end; `nodes` have room beside what is `present`."""
    free_capacity = FreeCapacity(nodes)
    worker, server = (free_capacity.amounts.need(need) for need in needs)
    added = spread(free_capacity, Extra(*size, worker, server), present or {})
    return None if added is None else in_all(len(nodes), present or {}, added)


def in_all(count: int, present: Present, added: Added) -> Counts:
    both = [(present.get(i, (0, 0)), added.get(i, (0, 0))) for i in range(count)]
    return [(x + more_x, y + more_y) for (x, y), (more_x, more_y) in both]


def cheapest(
    nodes: Sequence[Node],
    size: tuple[int, int],
    present: Present | None = None,
    needs: tuple[Resources, Resources] = (ONE, ONE),
) -> float | None:
    """The least cost over every way there is, by trying them all."""
    worker, server = needs
    options = [
        [
            (x, y)
            for x, y in product(range(size[0] + 1), range(size[1] + 1))
            if (worker * x + server * y).fits_in(node.capacity)
        ]
        for node in nodes
    ]
    costs = [transfer_cost(in_all(len(nodes), present or {}, dict(enumerate(way)))) for way in _ways(options, *size)]
    return min(costs, default=None)


def _ways(options: Sequence[Sequence[tuple[int, int]]], workers: int, servers: int) -> list[Counts]:
    if not options:
        return [[]] if workers == servers == 0 else []
    first, *others = options
    return [
        [(x, y), *rest]
        for x, y in first
        if x <= workers and y <= servers
        for rest in _ways(others, workers - x, servers - y)
    ]


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
    counts = spread_with(spread, slots(3, 3, 3), (4, 2))
    assert counts is not None
    assert sorted(counts, reverse=True) == [(2, 1), (2, 1), (0, 0)]


@pytest.mark.parametrize(
    ("free", "workers", "servers", "even", "least"),
    [((4, 4), 4, 1, 2.0, 1.0), ((6, 6), 6, 2, 1.5, 1.0)],
)
def test_an_even_spread_is_not_always_best(
    free: tuple[int, ...], workers: int, servers: int, even: float, least: float
) -> None:
    """Where the paper's theorem counts servers that a node does not have."""
    evenly, best = (
        spread_with(spread, slots(*free), (workers, servers)) for spread in (spread_evenly, spread_least_transfer)
    )
    assert evenly is not None
    assert best is not None
    assert transfer_cost(evenly) == even
    assert transfer_cost(best) == least


@pytest.mark.parametrize("slots_each", [2, 3, 4, 6])
def test_every_small_job_of_the_reference_is_placed_best(slots_each: int) -> None:
    """All 1 to 8 workers and 1 to 6 servers that fit on four equal nodes: the even spread misses 18 of them."""
    nodes = slots(*[slots_each] * 4)
    sizes = [(w, p) for w, p in product(range(1, 9), range(1, 7)) if w + p <= 4 * slots_each]
    wrong = {}
    for size in sizes:
        counts = spread_with(spread_least_transfer, nodes, size)
        found, best = None if counts is None else transfer_cost(counts), cheapest(nodes, size)
        if found != best:
            wrong[size] = (found, best)
    assert len(sizes) > 10
    assert wrong == {}


# --- what holds always -----------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 4), st.integers(0, 3), st.data())
def test_small_spreads_are_optimal(free: list[int], workers: int, servers: int, data: st.DataObject) -> None:
    present = _present(len(free), data)
    counts = spread_with(spread_least_transfer, slots(*free), (workers, servers), present=present)
    best = cheapest(slots(*free), (workers, servers), present)
    assert (counts is None) == (best is None)
    assert best is None or counts is None or transfer_cost(counts) == pytest.approx(best)


def test_a_cluster_that_must_be_filled_to_the_last_core() -> None:
    """Only (1, 1) beside (2, 2) fits: three workers of a core and a GPU, three servers of two cores."""
    needs = Resources(1, 0, {"a100": 1}), Resources(2)
    cluster = tuple(
        Node(f"node-{i}", Resources(cpu, 0, {"a100": gpus})) for i, (cpu, gpus) in enumerate([(3, 1), (6, 3)])
    )
    assert spread_with(spread_least_transfer, cluster, (3, 3), needs=needs) is not None


@settings(max_examples=100, deadline=None)
@given(
    nodes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=3),
    size=st.tuples(st.integers(0, 4), st.integers(0, 3)),
    cores=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    data=st.data(),
)
def test_small_spreads_of_gpu_workers_are_optimal(
    nodes: list[tuple[int, int]], size: tuple[int, int], cores: tuple[int, int], data: st.DataObject
) -> None:
    """Workers need a GPU and cores, servers cores only."""
    needs = Resources(cores[0], 0, {"a100": 1}), Resources(cores[1])
    cluster = tuple(Node(f"node-{i}", Resources(cpu, 0, {"a100": gpus})) for i, (cpu, gpus) in enumerate(nodes))
    present = _present(len(nodes), data)
    counts = spread_with(spread_least_transfer, cluster, size, present=present, needs=needs)
    best = cheapest(cluster, size, present, needs)
    assert (counts is None) == (best is None)
    assert best is None or counts is None or transfer_cost(counts) == pytest.approx(best)


def _present(count: int, data: st.DataObject) -> Mapping[int, tuple[int, int]]:
    drawn = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 1))) for _ in range(count)]
    return {node: counts for node, counts in enumerate(drawn) if any(counts)}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 40), st.integers(1, 40))
def test_large_spreads_place_everything_within_the_room(free: list[int], workers: int, servers: int) -> None:
    counts = spread_with(spread_least_transfer, slots(*free), (workers, servers))
    assert (counts is not None) == (sum(free) >= workers + servers)
    if counts is not None:
        assert (sum(w for w, _ in counts), sum(p for _, p in counts)) == (workers, servers)
        assert all(sum(each) <= cpu for each, cpu in zip(counts, free, strict=True))


def test_one_node_is_used_when_it_is_enough() -> None:
    assert spread_with(spread_least_transfer, slots(3, 6, 4), (2, 2)) == [(0, 0), (0, 0), (2, 2)]


def test_a_growing_job_stays_on_its_node() -> None:
    assert spread_with(spread_least_transfer, slots(2, 8), (1, 1), present={0: (1, 1)}) == [(2, 2), (0, 0)]


def test_a_new_job_goes_to_the_fullest_node_that_holds_all_of_it() -> None:
    free_capacity = FreeCapacity(slots(2, 8, 5))
    one = free_capacity.amounts.need(ONE)
    assert spread_least_transfer(free_capacity, Extra(1, 1, one, one), {}) == {0: (1, 1)}


def test_cpu_jobs_leave_gpu_nodes_alone() -> None:
    nodes = (Node("gpu", Resources(4.0, 0, {"a100": 8})), Node("plain", Resources(16.0)))
    assert spread_with(spread_least_transfer, nodes, (1, 1)) == [(0, 0), (1, 1)]


def test_a_job_stays_in_one_rack_if_that_costs_nothing() -> None:
    """Two nodes in each of three racks."""
    free = (2, 4, 3, 4, 4, 3)
    nodes = tuple(
        Node(f"node-{i}", Resources(float(cpu)), labels={"topology.kubernetes.io/rack": f"rack-{i % 3}"})
        for i, cpu in enumerate(free)
    )
    free_capacity = FreeCapacity(nodes)
    one = free_capacity.amounts.need(ONE)
    added = spread_least_transfer(free_capacity, Extra(4, 2, one, one), {})
    assert added is not None
    racks = {int(free_capacity.names[node][-1]) % 3 for node in added}
    assert racks == {1}  # the fullest with enough room in all has it in pieces: no node there holds half of the job


def test_an_all_reduce_job_grows_in_its_rack() -> None:
    nodes = tuple(Node(f"node-{i}", Resources(gpus={"a100": 4}), labels={"rack": f"{i // 2}"}) for i in range(4))
    free_capacity = FreeCapacity(nodes)
    one, none = free_capacity.amounts.need(Resources(gpus={"a100": 1})), free_capacity.amounts.need(Resources())
    free_capacity.take(tuple(2 * amount for amount in one), 0)  # a fuller node elsewhere
    free_capacity.take(tuple(4 * amount for amount in one), 3)
    assert spread_least_transfer(free_capacity, Extra(2, 0, one, none), {3: (4, 0)}) == {2: (2, 0)}


def test_a_balanced_spread_goes_to_the_emptiest_node_each_time() -> None:
    assert spread_with(spread_balanced, slots(4, 3, 3), (2, 2)) == [(2, 0), (0, 1), (0, 1)]
    nodes = (Node("a", Resources(8.0)), Node("b", Resources(2.0, 0, {"t4": 1})))
    gpu_worker = (Resources(1.0, 0, {"t4": 1}), ONE)
    assert spread_with(spread_balanced, nodes, (1, 2), needs=gpu_worker) == [(0, 2), (1, 0)]
    assert spread_with(spread_balanced, nodes, (2, 2), needs=gpu_worker) is None


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 6))
def test_a_balanced_spread_places_everything_that_fits(free: list[int], workers: int, servers: int) -> None:
    found = spread_with(spread_balanced, slots(*free), (workers, servers))
    if found is None:
        assert sum(free) < workers + servers
        return
    assert [sum(column) for column in zip(*found, strict=True)] == [workers, servers]
    left = [available - x - y for available, (x, y) in zip(free, found, strict=True)]
    used = [available for available, pair in zip(left, found, strict=True) if sum(pair)]
    assert min(left) >= 0
    assert max(left) <= min(used) + 1  # nobody who got a task is fuller than it has to be


def test_no_way_is_none() -> None:
    assert spread_with(spread_least_transfer, slots(1, 1), (2, 1)) is None
    assert spread_with(spread_evenly, slots(1, 1), (2, 1)) is None
