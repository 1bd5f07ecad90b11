"""Places for many jobs at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.builders import a_cluster, place

from optimus_scheduler.model import Allocation, Node, Resources, Role
from optimus_scheduler.place.network_cost import Spread, spread_evenly, spread_least_transfer
from optimus_scheduler.place.place import (
    Placed,
    Placements,
    Placer,
    Request,
    TaskSlot,
    Unplaced,
    task_slots,
)


def request(
    name: str,
    size: tuple[int, int],
    *,
    minimum: tuple[int, int] = (1, 1),
    held: Mapping[TaskSlot, str] | None = None,
    before: Mapping[TaskSlot, str] | None = None,
    cpu: float = 1.0,
) -> Request:
    sizes = Allocation(*size), Allocation(*minimum)
    return Request(name, Resources(cpu), Resources(cpu), *sizes, held or {}, before=before or {})


def on(node: str, *, workers: int, servers: int) -> dict[TaskSlot, str]:
    return dict.fromkeys(task_slots(Allocation(workers, servers)), node)


def allocation(placements: Placements, job_id: str) -> tuple[int, int] | None:
    placed = placements[job_id]
    return (placed.allocation.workers, placed.allocation.servers) if isinstance(placed, Placed) else None


def used(requests: Iterable[Request], placements: Placements) -> dict[str, float]:
    cores: dict[str, float] = {}
    for each in requests:
        placed = placements[each.job_id]
        for node in placed.nodes.values() if isinstance(placed, Placed) else ():
            cores[node] = cores.get(node, 0.0) + each.worker.cpu
    return cores


def test_tasks_stay_where_they_are() -> None:
    held = {**on("node-0", workers=1, servers=1), (Role.WORKER, 1): "node-1"}
    placements = place([request("a", (3, 1), held=held)], a_cluster(2, 8), spread_least_transfer)
    placed = placements["a"]
    assert isinstance(placed, Placed)
    assert held.items() <= placed.nodes.items()
    assert placed.nodes[Role.WORKER, 2] == "node-1"


def test_placed_anew_a_job_comes_together_and_few_tasks_move() -> None:
    before = {**on("node-0", workers=1, servers=1), (Role.WORKER, 1): "node-1"}
    placed = place([request("a", (3, 2), before=before)], a_cluster(5, 8), spread_least_transfer)["a"]
    assert isinstance(placed, Placed)
    assert placed.nodes == on("node-0", workers=3, servers=2)  # two of three stay; kept, they would be on two nodes
    across = {(Role.SERVER, 0): "node-1", (Role.WORKER, 0): "node-0", (Role.WORKER, 1): "node-1"}
    placed = place([request("a", (2, 2), before=across)], a_cluster(2, 2), spread_least_transfer)["a"]
    assert isinstance(placed, Placed)
    assert {slot: placed.nodes[slot] for slot in across} == across


def test_placed_anew_a_job_that_gets_no_more_room_keeps_what_it_has() -> None:
    before = {**on("node-1", workers=1, servers=1), (Role.WORKER, 1): "node-2"}
    placed = place([request("a", (4, 1), before=before)], a_cluster(1, 2, 1), spread_least_transfer)["a"]
    assert isinstance(placed, Placed)
    assert placed.allocation == Allocation(3, 1)
    taken = request("b", (1, 1), held=on("node-0", workers=1, servers=1))
    placed = place([request("a", (4, 1), before=before), taken], a_cluster(2, 2, 1), spread_least_transfer)["a"]
    assert isinstance(placed, Placed)
    assert placed.nodes == before


def test_lowest_ranks_are_kept_when_shrinking() -> None:
    held = {**on("node-0", workers=2, servers=1), (Role.WORKER, 2): "node-1"}
    placed = place([request("a", (1, 1), held=held)], a_cluster(4, 4), spread_least_transfer)["a"]
    assert isinstance(placed, Placed)
    assert placed.nodes == on("node-0", workers=1, servers=1)


def test_what_does_not_fit_is_made_smaller() -> None:
    placements = place([request("a", (4, 4))], a_cluster(3, 2), spread_least_transfer)
    placed = placements["a"]
    assert isinstance(placed, Placed)
    assert placed.allocation.workers + placed.allocation.servers == 5


def test_never_below_the_minimum() -> None:
    assert place([request("a", (4, 4), minimum=(3, 3))], a_cluster(5), spread_least_transfer) == {
        "a": Unplaced("no combination of nodes has room for its smallest size")
    }


def test_others_make_room_for_a_minimum_that_fragments_block() -> None:
    """Room for the new job's big tasks exists in total, but only beside what others have beyond their minima."""
    growing = request("growing", (3, 1), held=on("node-0", workers=3, servers=1))
    big = request("big", (1, 1), cpu=2.0)
    placements = place([growing, big], a_cluster(6, 1, 1), spread_least_transfer)
    assert allocation(placements, "big") == (1, 1)
    assert allocation(placements, "growing") == (1, 1)


def test_room_that_was_not_needed_goes_back() -> None:
    growing = request("growing", (5, 1), held=on("node-0", workers=5, servers=1))
    big = request("big", (1, 1), cpu=1.5)
    placements = place([growing, big], a_cluster(7, 1), spread_least_transfer)
    assert allocation(placements, "big") == (1, 1)
    assert allocation(placements, "growing") == (3, 1)


def test_nobody_falls_below_a_minimum_to_make_room() -> None:
    first = request("first", (2, 2), minimum=(2, 2), held=on("node-0", workers=2, servers=2))
    placements = place([first, request("second", (1, 1))], a_cluster(5), spread_least_transfer)
    assert allocation(placements, "first") == (2, 2)
    assert isinstance(placements["second"], Unplaced)


def test_nothing_new_on_a_cordoned_node() -> None:
    nodes = (Node("cordoned", Resources(8.0), schedulable=False), Node("open", Resources(2.0)))
    held = on("cordoned", workers=1, servers=1)
    placements = place([request("a", (2, 1), held=held), request("b", (1, 1))], nodes, spread_least_transfer)
    a, b = placements["a"], placements["b"]
    assert isinstance(a, Placed)
    assert isinstance(b, Placed)
    assert held.items() <= a.nodes.items()
    assert set(b.nodes.values()) == {"open"}


def test_a_lost_task_does_not_hold_a_smaller_job_up() -> None:
    """Rank 0 has to be placed anew and there is no room beside rank 1: the job goes on with one worker."""
    held: dict[TaskSlot, str] = {(Role.SERVER, 0): "node-0", (Role.WORKER, 1): "node-0"}
    placed = place([request("a", (2, 1), held=held)], a_cluster(2), spread_least_transfer)["a"]
    assert isinstance(placed, Placed)
    assert placed.nodes == on("node-0", workers=1, servers=1)


def test_feasibility_ignores_what_others_have() -> None:
    assert Placer().hosts(request("a", (9, 9), minimum=(2, 2)), a_cluster(3, 3), spread_least_transfer)
    assert not Placer().hosts(request("a", (1, 1), cpu=4.0), a_cluster(3, 3, 3), spread_least_transfer)


requests = st.builds(
    lambda size, minimum, cpu: (tuple(max(s, m) for s, m in zip(size, minimum, strict=True)), minimum, cpu),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from([0.5, 1.0, 2.0]),
)


@pytest.mark.parametrize("spread", [spread_least_transfer, spread_evenly])
@settings(max_examples=100, deadline=None)
@given(
    drawn=st.lists(requests, max_size=6),
    cpus=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    smaller=st.lists(st.integers(0, 8), min_size=1, max_size=5),
)
def test_places_are_complete_and_within_capacity(
    spread: Spread,
    drawn: list[tuple[tuple[int, int], tuple[int, int], float]],
    cpus: list[int],
    smaller: list[int],
) -> None:
    """Twice: on an empty cluster, then with what was placed held, on another cluster of the same node names."""
    wanted = [request(f"j{i}", size, minimum=minimum, cpu=cpu) for i, (size, minimum, cpu) in enumerate(drawn)]
    held: dict[str, Mapping[TaskSlot, str]] = {each.job_id: {} for each in wanted}
    for nodes in (a_cluster(*cpus), a_cluster(*smaller)):
        now = [
            Request(each.job_id, each.worker, each.server, each.allocation, each.minimum, held[each.job_id])
            for each in wanted
        ]
        placements = place(now, nodes, spread)
        capacity = {node.name: node.capacity.cpu for node in nodes}
        assert all(cores <= capacity[name] + 1e-9 for name, cores in used(now, placements).items())
        for each in now:
            placed = placements[each.job_id]
            if isinstance(placed, Placed):
                assert set(placed.nodes) == set(task_slots(placed.allocation))
                assert each.minimum.workers <= placed.allocation.workers <= each.allocation.workers
                assert each.minimum.servers <= placed.allocation.servers <= each.allocation.servers
                held[each.job_id] = placed.nodes


def test_the_one_node_that_fits_is_found_among_many() -> None:
    """The emptiest nodes by CPU have no memory left; the only one that has comes last."""
    nodes = (
        *(Node(f"node-{i}", Resources(16.0, 1)) for i in range(100)),
        Node("small", Resources(2.0, 64)),
    )
    needs = Request("a", Resources(1.0, 32), Resources(1.0, 32), Allocation(1, 1), Allocation(1, 1), {})
    placed = place([needs], nodes, spread_least_transfer)["a"]
    assert isinstance(placed, Placed)
    assert set(placed.nodes.values()) == {"small"}
