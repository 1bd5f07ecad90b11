"""Whether a cluster could ever hold a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.job import JobSpec
from optimus_scheduler.model import Node, Quota, Resources
from optimus_service.insight.predictions.feasibility import may_have_workers, objections, over_quota
from optimus_service.requests import checked

GIB = 2**30


def spec(**changes: Any) -> JobSpec:
    return checked(JobSpec, {"name": "job", "task": "m:f", **changes})


def nodes(*capacities: Resources) -> list[Node]:
    return [Node(f"node-{index}", capacity) for index, capacity in enumerate(capacities)]


def fields(job: JobSpec, *capacities: Resources) -> list[str]:
    return [error.field for error in objections(job, nodes(*capacities))]


def test_nothing_is_said_of_a_cluster_that_nobody_knows() -> None:
    assert fields(spec(workers={"min": 1000, "max": 1000})) == []


def test_nodes_that_take_no_tasks_now_count() -> None:
    assert objections(spec(), [Node("lost", Resources(2, 4 * GIB), schedulable=False)]) == []


def test_each_resource_that_no_node_has_is_named() -> None:
    huge = {"resources": {"cpu": 99, "memory_bytes": 99 * GIB, "gpus": 9}}
    found = fields(spec(workers=huge), Resources(8, 8 * GIB, {"v100": 4}))
    assert found == [f"workers.resources.{name}" for name in ("cpu", "memory_bytes", "gpus")]


def test_gpus_of_one_task_are_of_one_type() -> None:
    two_types = Resources(8, 8 * GIB, {"t4": 2, "v100": 2})
    assert fields(spec(workers={"resources": {"gpus": 3}}), two_types) == ["workers.resources.gpus"]
    assert fields(spec(workers={"resources": {"gpus": 2}}), two_types) == []


def test_tasks_do_not_spread_over_nodes() -> None:
    job = spec(workers={"min": 2, "max": 2, "resources": {"cpu": 3}}, servers={"resources": {"cpu": 0}})
    assert fields(job, Resources(4, 8 * GIB), Resources(2, 8 * GIB)) == ["workers.min"]
    assert fields(job, Resources(4, 8 * GIB), Resources(3, 8 * GIB)) == []


def test_tasks_that_need_nothing_fit_in_any_number() -> None:
    nothing = {"min": 1024, "max": 1024, "resources": {"cpu": 0, "memory_bytes": 0}}
    assert fields(spec(workers=nothing, servers=nothing), Resources(1, 1)) == []


amounts = st.builds(
    Resources,
    cpu=st.floats(0.5, 8),
    memory_bytes=st.integers(1, 8 * GIB),
    gpus=st.dictionaries(st.sampled_from(["t4", "v100"]), st.integers(0, 4)),
)
demands = st.fixed_dictionaries(
    {
        "min": st.integers(1, 3),
        "max": st.just(16),
        "resources": st.fixed_dictionaries(
            {
                "cpu": st.just(0.0) | st.floats(0.001, 4),
                "memory_bytes": st.integers(0, 4 * GIB),
                "gpus": st.integers(0, 2),
            }
        ),
    }
)


@given(workers=demands, servers=demands, capacities=st.lists(amounts, min_size=1, max_size=4), more=amounts)
def test_a_larger_cluster_never_brings_new_objections(
    workers: Any, servers: Any, capacities: list[Resources], more: Resources
) -> None:
    job = spec(workers=workers, servers=servers)
    if not fields(job, *capacities):
        assert not fields(job, *capacities, more)


@given(workers=demands, servers=demands, count=st.integers(1, 3))
def test_a_cluster_with_a_node_for_each_task_has_room(workers: Any, servers: Any, count: int) -> None:
    """No false alarm: what can be placed is never objected to."""
    job = spec(workers=workers, servers=servers)
    each = [
        Resources(demand.resources.cpu, demand.resources.memory_bytes, {"t4": demand.resources.gpus})
        for demand in (job.workers, job.servers)
        for _ in range(demand.min * count)
    ]
    assert fields(job, *each) == []


def test_a_least_size_beyond_what_a_project_may_ever_have_is_refused() -> None:
    small = Quota("default", 0.1, None, None, {}, may_borrow=False)
    there = nodes(Resources(2, 8 * GIB))
    (error,) = over_quota(spec(), [small], there)
    assert error.field == "project"
    least = "the least size needs 2 CPU cores; project default may have 0.2 CPU cores, and may not borrow"
    assert error.message == least
    assert over_quota(spec(), [replace(small, may_borrow=True)], there) == []
    assert over_quota(spec(), [replace(small, share=1.0)], there) == []
    assert over_quota(spec(), [replace(small, project="other")], there) == []
    assert over_quota(spec(), [small], []) == [], "of a cluster that nobody knows nothing is said"


def test_more_workers_are_possible_where_cluster_and_quota_could_hold_them() -> None:
    asked, there = spec(architecture="allreduce"), nodes(Resources(2, 8 * GIB))
    assert may_have_workers(asked, 2, [], there)
    assert not may_have_workers(asked, 3, [], there)
    small = Quota("default", 0.5, None, None, {}, may_borrow=False)
    assert [may_have_workers(asked, n, [small], there) for n in (1, 2)] == [True, False]
