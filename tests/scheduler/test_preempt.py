"""Others make room: whenever that would be enough, and only as far as it helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.builders import place

from optimus_scheduler.model import Allocation, Node, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.place.place import Placed, Placements, Request, TaskSlot
from optimus_scheduler.place.requests import task_slots

GPU = "v100"
_NODES = tuple(Node(f"node-{i}", Resources(4.0, 8, {GPU: 2} if i % 2 else {})) for i in range(5))

running = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=8),  # node and role of each task
        st.sampled_from([Resources(1.0, 1, {GPU: 1}), Resources(0.5, 3), Resources(2.0, 1)]),
        st.sampled_from([Resources(1.0, 1), Resources(0.5, 4)]),
        st.integers(1, 2),
    ),
    max_size=7,
)
newcomers = st.builds(
    Request,
    st.just("new"),
    st.sampled_from([Resources(1.0, 1, {GPU: 1}), Resources(2.0, 1, {GPU: 2}), Resources(3.0, 1), Resources(1.0, 6)]),
    st.sampled_from([Resources(1.0, 1), Resources(1.0, 6)]),
    size := st.builds(Allocation, st.integers(1, 2), st.integers(0, 2)),
    size,
    st.just({}),
).map(lambda one: Request(one.job_id, one.worker, one.server, one.allocation, one.allocation, {}))


def _held(tasks: Sequence[tuple[int, bool]]) -> dict[TaskSlot, str]:
    """By rank, workers and servers each."""
    workers = [f"node-{node}" for node, is_worker in tasks if is_worker]
    servers = [f"node-{node}" for node, is_worker in tasks if not is_worker]
    size = Allocation(len(workers), len(servers))
    return dict(zip(task_slots(size), (*servers, *workers), strict=True))


def _fits(held: Mapping[str, Mapping[TaskSlot, str]], requests: Sequence[Request]) -> bool:
    return all(
        sum(task.cpu for task in tasks) <= node.capacity.cpu
        and sum(task.memory_bytes for task in tasks) <= node.capacity.memory_bytes
        and sum(task.gpus.get(GPU, 0) for task in tasks) <= node.capacity.gpus.get(GPU, 0)
        for node in _NODES
        for tasks in [
            [
                each.worker if role.value == "worker" else each.server
                for each in requests
                for (role, _), name in held[each.job_id].items()
                if name == node.name
            ]
        ]
    )


def _placed(placements: Placements) -> dict[str, Mapping[TaskSlot, str]]:
    return {job_id: each.nodes for job_id, each in placements.items() if isinstance(each, Placed)}


@settings(max_examples=150, deadline=None)
@given(running, newcomers)
def test_a_minimum_fits_whenever_it_would_beside_the_minima_of_the_others(
    drawn: list[tuple[list[tuple[int, bool]], Resources, Resources, int]], newcomer: Request
) -> None:
    there: list[Request] = []
    for number, (tasks, worker, server, least) in enumerate(drawn):
        held = _held(tasks)
        workers = sum(is_worker for _, is_worker in tasks)
        size = Allocation(workers, len(tasks) - workers)
        minimum = Allocation(min(least, workers), min(least, size.servers))
        request = Request(f"j{number}", worker, server, size, minimum, held)
        if _fits({each.job_id: each.current for each in (*there, request)}, (*there, request)):
            there.append(request)
    shrunk = [
        Request(
            each.job_id,
            each.worker,
            each.server,
            each.minimum,
            each.minimum,
            {slot: each.current[slot] for slot in task_slots(each.minimum)},
        )
        for each in there
    ]
    expected = _placed(place([*shrunk, newcomer], _NODES, spread_least_transfer))
    found = _placed(place([*there, newcomer], _NODES, spread_least_transfer))
    assert ("new" in found) == ("new" in expected)
    assert _fits({**{each.job_id: {} for each in (*there, newcomer)}, **found}, [*there, newcomer])
    for each in there:
        assert set(task_slots(each.minimum)) <= set(found[each.job_id]), "nobody falls below a minimum"
        assert found[each.job_id].items() <= each.current.items()
        assert "new" in found or found[each.job_id] == each.current, "nobody gives up anything for nothing"


def test_who_has_nothing_that_is_short_gives_nothing_up() -> None:
    """All GPUs are taken; the largest surplus is of a job without any."""
    nodes = (Node("cpu", Resources(16.0)), Node("gpu", Resources(16.0, gpus={GPU: 2})))
    cores = dict.fromkeys(task_slots(Allocation(8, 1)), "cpu") | dict.fromkeys(task_slots(Allocation(12, 0))[8:], "gpu")
    requests = [
        Request("cores", Resources(1.0), Resources(1.0), Allocation(12, 1), Allocation(1, 1), cores),
        Request(
            "gpus",
            Resources(1.0, gpus={GPU: 1}),
            Resources(1.0),
            Allocation(2, 0),
            Allocation(1, 0),
            dict.fromkeys(task_slots(Allocation(2, 0)), "gpu"),
        ),
        Request("new", Resources(1.0, gpus={GPU: 1}), Resources(1.0), Allocation(1, 0), Allocation(1, 0), {}),
    ]
    found = _placed(place(requests, nodes, spread_least_transfer))
    assert len(found["cores"]) == 13
    assert (len(found["gpus"]), len(found["new"])) == (1, 1)


def test_who_was_passed_gives_way_when_something_else_has_become_short() -> None:
    """A server would fit where a worker has to go as soon as it has a GPU: then a core elsewhere is short."""
    nodes = (Node("cpu", Resources(4.0)), Node("gpu", Resources(1.0, gpus={GPU: 2})))
    core, gpu = Resources(1.0), Resources(gpus={GPU: 1})
    least, nothing = Allocation(1, 0), Resources()
    requests = [
        Request("cores", core, nothing, Allocation(4, 0), least, dict.fromkeys(task_slots(Allocation(4, 0)), "cpu")),
        Request("gpus", gpu, nothing, Allocation(2, 0), least, dict.fromkeys(task_slots(Allocation(2, 0)), "gpu")),
        Request("new", Resources(1.0, gpus={GPU: 1}), core, Allocation(1, 1), Allocation(1, 1), {}),
    ]
    found = _placed(place(requests, nodes, spread_least_transfer))
    assert {job_id: len(tasks) for job_id, tasks in found.items()} == {"cores": 3, "gpus": 1, "new": 2}
