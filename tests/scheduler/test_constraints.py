"""Whatever the constraints, types and policy: what every plan keeps to, over rounds that follow each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.constrained_worlds import PRICES, next_round, trained, worlds

from optimus_scheduler.allocate.allocate_with_quotas import guarantees
from optimus_scheduler.allocate.policies import POLICIES, policy_named
from optimus_scheduler.forecast.gpu_types import accepted_types
from optimus_scheduler.model import Job, Resources, Role, Snapshot, StartTask
from optimus_scheduler.place.place import task_slots
from optimus_scheduler.reconcile import Reconciler, Want
from optimus_scheduler.round import plan

EVERY_POLICY = sorted(POLICIES)


def held_by(job: Job) -> Resources:
    spec, size = job.spec.on(job.allocation.gpu_type), job.allocation
    return spec.worker.resources * size.workers + spec.server.resources * size.servers


def check_nodes(world: Snapshot) -> None:
    """No node holds more of anything than it has, GPUs counted by the type that the job is on."""
    used = {node.name: Resources() for node in world.nodes}
    for job in world.jobs:
        spec = job.spec.on(job.allocation.gpu_type)
        for placed in job.wanted_tasks:
            demand = spec.worker if placed.key.role is Role.WORKER else spec.server
            used[placed.node] = used[placed.node] + demand.resources
    assert all(used[node.name].fits_in(node.capacity) for node in world.nodes)


def check_gangs_and_types(world: Snapshot) -> None:
    """All of a job's parts or none, on one GPU type that its owner accepts."""
    for job in world.jobs:
        assert {(placed.key.role, placed.key.rank) for placed in job.wanted_tasks} == set(task_slots(job.allocation))
        if job.allocation.is_empty:
            continue
        assert job.spec.worker.minimum <= job.allocation.workers <= job.spec.worker.maximum
        assert job.spec.server.minimum <= job.allocation.servers <= job.spec.server.maximum
        assert job.allocation.gpu_type in accepted_types(job.spec, world.nodes)


def check_quotas(world: Snapshot) -> None:
    """A project that may not borrow never has more than its guarantee."""
    rights = guarantees(world.quotas, world.capacity)
    for quota in world.quotas:
        if not quota.may_borrow:
            held = sum((held_by(job) for job in world.jobs if job.spec.project == quota.project), Resources())
            assert held.fits_in(rights[quota.project])


@pytest.mark.parametrize("policy", EVERY_POLICY)
@hypothesis_settings(max_examples=15, deadline=None)
@given(world=worlds())
def test_every_plan_is_sound(policy: str, world: Snapshot) -> None:
    for _ in range(3):
        world, _ = next_round(world, policy_named(policy), PRICES)
        check_nodes(world)
        check_gangs_and_types(world)
        check_quotas(world)
        wants = {
            job.id: Want(job.directive, job.allocation, {(p.key.role, p.key.rank): p.node for p in job.wanted_tasks})
            for job in world.jobs
        }
        typed = replace(world, jobs=tuple(_on_its_type(job) for job in world.jobs))
        late = Reconciler().reconcile(typed, wants, PRICES)
        assert all(isinstance(action, StartTask) for action in late), "nothing is left but starts that wait for room"
        world = trained(world, 60.0)


def _on_its_type(job: Job) -> Job:
    return replace(job, spec=job.spec.on(job.allocation.gpu_type))


@hypothesis_settings(max_examples=15, deadline=None)
@given(world=worlds(), data=st.data())
def test_the_order_of_the_input_does_not_matter(world: Snapshot, data: st.DataObject) -> None:
    policy = policy_named("optimus")
    world, _ = next_round(world, policy, PRICES)
    world = trained(world, 60.0)
    shuffled = replace(
        world,
        nodes=tuple(data.draw(st.permutations(world.nodes))),
        jobs=tuple(data.draw(st.permutations(world.jobs))),
        tasks=tuple(data.draw(st.permutations(world.tasks))),
        quotas=tuple(data.draw(st.permutations(world.quotas))),
    )
    assert plan(shuffled, policy, PRICES) == plan(world, policy, PRICES)


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    capacity=st.builds(
        Resources, st.floats(0, 64), st.integers(0, 2**38), st.fixed_dictionaries({"k80": st.integers(0, 9)})
    ),
)
def test_guarantees_fit_together(data: st.DataObject, capacity: Resources) -> None:
    quotas = data.draw(worlds()).quotas
    rights = guarantees(quotas, capacity)
    assert set(rights) == {quota.project for quota in quotas}
    total = sum(rights.values(), Resources())
    assert total.cpu <= capacity.cpu * (1 + 1e-9) + 1e-9
    assert total.fits_in(replace(capacity, cpu=total.cpu))
