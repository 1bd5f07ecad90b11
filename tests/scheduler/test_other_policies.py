"""The paper's policy, the plain baseline, and the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.scheduler.builders import ALL_SIZES, NOW, a_job, a_spec, law, samples

from optimus_scheduler.allocate.baselines.optimus_paper import marginal_gain
from optimus_scheduler.allocate.policies import POLICIES, AllocationInput, Grant, UnknownPolicy, policy_named
from optimus_scheduler.forecast.forecast import forecast, forecast_all
from optimus_scheduler.model import Allocation, ConvergenceRule, Job, JobSpec, Reason, Resources, TaskDemand
from optimus_scheduler.settings import Settings

GIB = 2**30


def allocate(policy: str, jobs: Sequence[Job], capacity: Resources) -> Mapping[str, Grant]:
    inputs = AllocationInput(forecast_all(jobs, NOW, Settings()), capacity)
    return policy_named(policy).allocate(inputs, Settings())


def cores(cpu: float) -> Resources:
    return Resources(cpu, 64 * GIB)


def size(grant: Grant) -> tuple[int, int]:
    return grant.allocation.workers, grant.allocation.servers


def test_policies_are_found_by_name() -> None:
    assert all(policy_named(name).name == name for name in POLICIES)
    with pytest.raises(
        UnknownPolicy, match="unknown policy 'best'; there are drf, edf, elasticflow, fifo, max-min, optimus, "
    ):
        policy_named("best")


# --- the paper's -----------------------------------------------------------------------------------------------------


def test_gain_is_equation_9() -> None:
    """Time saved per amount of the added task's dominant resource, here CPU for servers and GPUs for workers."""
    spec = JobSpec(
        worker=TaskDemand(Resources(2.0, GIB, {"v100": 1})),
        server=TaskDemand(Resources(4.0, GIB)),
        convergence=ConvergenceRule(max_steps=1000),
        global_batch_size=64,
    )
    job = a_job("a", has=(1, 1), spec=spec, measured=samples(law(), ALL_SIZES), step=400)
    outlook, capacity = forecast(job, NOW, Settings()), Resources(64.0, 512 * GIB, {"v100": 8})
    seconds = {size: 600 / outlook.speeds.at(Allocation(*size)) for size in ((1, 1), (2, 1), (1, 2))}
    worker, server = (
        marginal_gain(outlook, outlook.size(1, 1), outlook.size(*to), capacity) for to in ((2, 1), (1, 2))
    )
    assert worker == pytest.approx((seconds[1, 1] - seconds[2, 1]) / 1)
    assert server == pytest.approx((seconds[1, 1] - seconds[1, 2]) / 4.0)


def test_the_paper_admits_in_order_of_arrival() -> None:
    late = a_job("a-late", has=(1, 1), submitted_at=NOW - 10)
    grants = allocate("optimus-paper", [late, a_job("early", submitted_at=NOW - 20)], cores(2))
    assert size(grants["early"]) == (1, 1)
    assert grants["a-late"].reason is Reason.WAITING_FOR_RESOURCES


def test_the_paper_feeds_long_jobs() -> None:
    """Gain grows with the steps left (reference, section 3.5): the default policy feeds the short ones."""
    jobs = [
        a_job(name, has=(1, 1), spec=a_spec(rule=ConvergenceRule(max_steps=steps)), measured=samples(law(), ALL_SIZES))
        for name, steps in (("long", 100_000), ("short", 10_000))
    ]
    paper, ours = (allocate(policy, jobs, cores(10)) for policy in ("optimus-paper", "optimus"))
    assert (sum(size(paper["long"])), sum(size(paper["short"]))) == (7, 3)
    assert sum(size(ours["short"])) > sum(size(ours["long"]))


def test_the_paper_stops_at_the_first_task_that_does_not_fit() -> None:
    large = a_job("large", has=(1, 1), spec=a_spec(worker_cpu=4.0), measured=samples(law(), ALL_SIZES))
    small_spec = a_spec(rule=ConvergenceRule(max_steps=100))
    small = a_job("small", has=(1, 1), spec=small_spec, measured=samples(law(), ALL_SIZES))
    grants = allocate("optimus-paper", [large, small], cores(9))
    assert size(grants["large"]) == (1, 1)
    assert size(grants["small"]) == (1, 1)


def test_the_paper_knows_nothing_of_unmeasured_jobs() -> None:
    grants = allocate("optimus-paper", [a_job("a", has=(1, 1), step=10)], cores(16))
    assert (size(grants["a"]), grants["a"].reason) == ((1, 1), Reason.LEARNING_SPEED)


def test_the_paper_changes_sizes_whatever_that_costs() -> None:
    job = a_job("a", has=(1, 1), measured=samples(law(), ALL_SIZES), step=9_000, rescale_seconds=(3600.0,))
    assert sum(size(allocate("optimus-paper", [job], cores(16))["a"])) > 2


# --- first come, first served ----------------------------------------------------------------------------------------


def test_fifo_gives_the_first_all_that_it_may_have() -> None:
    jobs = [a_job("second", submitted_at=NOW - 1), a_job("first", submitted_at=NOW - 2, spec=a_spec(maximum=(4, 2)))]
    grants = allocate("fifo", jobs, cores(9))
    assert size(grants["first"]) == (4, 2)
    assert size(grants["second"]) == (2, 1)


def test_fifo_never_changes_a_size() -> None:
    grants = allocate("fifo", [a_job("a", has=(2, 1), measured=samples(law(), ALL_SIZES)), a_job("b")], cores(3))
    assert size(grants["a"]) == (2, 1)
    assert grants["b"].reason is Reason.WAITING_FOR_RESOURCES


def test_fifo_lets_nobody_pass() -> None:
    spec: JobSpec = a_spec(minimum=(4, 4))
    jobs = [a_job("a", has=(2, 1)), a_job("large", spec=spec, submitted_at=NOW - 5), a_job("small", submitted_at=NOW)]
    grants = allocate("fifo", jobs, cores(8))
    assert grants["large"].reason is grants["small"].reason is Reason.WAITING_FOR_RESOURCES
