"""The default policy whatever the jobs: within capacity, deterministic, optimal, stable, and nobody starves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import NOW, SpeedLaw, a_job, a_spec, law, samples

from optimus_scheduler.allocate.optimus.frontier import Frontiers
from optimus_scheduler.allocate.optimus.guarantees import backlog, overdue_seconds
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.allocate.optimus.weights import rank_weights, weights
from optimus_scheduler.allocate.policies import AllocationInput, Grant, policy_named
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    Architecture,
    ConvergenceRule,
    Job,
    JobSpec,
    JobState,
    Resources,
    TaskDemand,
)
from optimus_scheduler.settings import Settings

SETTINGS = Settings()
GIB = 2**30
SIZES = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 2), (3, 4))

laws = st.builds(
    law,
    compute=st.floats(0.1, 3.0),
    fixed=st.floats(0.0, 0.3),
    transfer=st.floats(0.005, 0.3),
    per_task=st.floats(0.0005, 0.03),
)


def allocate(jobs: Sequence[Job], cpu: float, settings: Settings = SETTINGS) -> Mapping[str, Grant]:
    inputs = AllocationInput(forecast_all(jobs, NOW, settings), Resources(cpu, 64 * GIB))
    return policy_named("optimus").allocate(inputs, settings)


def running(name: str, speed: SpeedLaw, has: tuple[int, int], steps: int = 10_000) -> Job:
    spec = a_spec(rule=ConvergenceRule(max_steps=steps))
    return a_job(name, has=has, spec=spec, measured=samples(speed, [*SIZES, has]))


def ring(name: str, seconds: float, exchange: float, steps: int, most: int = 8) -> Job:
    """An all-reduce job whose speed is known and that waits."""
    spec = JobSpec(
        worker=TaskDemand(Resources(1.0, GIB), 1, most),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(max_steps=steps),
        architecture=Architecture.ALLREDUCE,
    )

    def speed(workers: int, _servers: int) -> float:
        return workers / (seconds + exchange * (workers - 1))

    measured = samples(speed, [(workers, 0) for workers in range(1, most + 1)])
    return a_job(name, spec=spec, state=JobState.PAUSED, allocated_at=NOW - 60, measured=measured)


rings = st.builds(
    lambda seconds, exchange, steps: (seconds, exchange * seconds, steps),
    st.floats(0.1, 10.0),
    st.floats(0.02, 0.4),
    st.integers(100, 100_000),
)


def worth(outlooks: Sequence[Outlook], sizes: Sequence[Allocation], cpu: float) -> float:
    """What the policy maximises: the sum of weight · speed / best speed per share."""
    frontiers = Frontiers(outlooks, Resources(cpu, 64 * GIB))
    best = frontiers.best_speed_per_share
    factors = weights(outlooks, best, frontiers.least_shares, SETTINGS) / best
    return sum(float(factor) * one.speeds.at(size) for factor, one, size in zip(factors, outlooks, sizes, strict=True))


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.lists(rings, min_size=1, max_size=3), st.integers(3, 9))
def test_equal_to_the_best_of_all_sizes(drawn: list[tuple[float, float, int]], cpu: int) -> None:
    """One resource and concave speeds: greedy is the optimum, to within the least gain that is worth a task."""
    jobs = [ring(f"j{i}", *each) for i, each in enumerate(drawn)]
    outlooks = forecast_all(jobs, NOW, SETTINGS)
    grants = allocate(jobs, cpu)
    got = worth(outlooks, [grants[one.id].allocation for one in outlooks], cpu)
    counts = (each for each in product(range(9), repeat=len(jobs)) if sum(each) <= cpu)
    best = max(worth(outlooks, [Allocation(count, 0) for count in each], cpu) for each in counts)
    assert got >= 0.97 * best


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.lists(rings, min_size=1, max_size=5), st.integers(4, 24), st.integers(1, 12))
def test_more_capacity_does_not_hurt(drawn: list[tuple[float, float, int]], cpu: int, more: int) -> None:
    """The total worth never falls by more than 1 %, the least gain of a task."""
    jobs = [ring(f"j{i}", *each) for i, each in enumerate(drawn)]
    outlooks = forecast_all(jobs, NOW, SETTINGS)
    small, large = (
        worth(outlooks, [allocate(jobs, cores)[one.id].allocation for one in outlooks], cpu)
        for cores in (cpu, cpu + more)
    )
    assert large >= 0.99 * small


_ROUNDS_TO_REST = 5


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(laws, st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=5), st.integers(2, 40))
def test_an_unchanged_world_comes_to_rest(drawn: list[tuple[SpeedLaw, int, int]], cpu: int) -> None:
    """Changed and measured as predicted, the same jobs in the same world soon keep what they have.

    Not at once: each size that is measured teaches its model, and the others' worth with it.
    """
    jobs = [running(f"r{i}", speed, (w, p)) for i, (speed, w, p) in enumerate(drawn)]
    for _ in range(_ROUNDS_TO_REST):
        granted = allocate(jobs, cpu)
        jobs = [_having(job, granted[job.id]) for job in jobs]
    again = allocate(jobs, cpu)
    assert {name: each.allocation for name, each in again.items()} == {
        name: each.allocation for name, each in granted.items()
    }


def _having(job: Job, grant: Grant) -> Job:
    """The job after it was given that, with the new size measured as its model predicted."""
    if grant.allocation.is_empty:
        return replace(job, allocation=grant.allocation, state=JobState.PAUSED, allocated_at=NOW - 60)
    size = (grant.allocation.workers, grant.allocation.servers)
    speed = forecast_all([job], NOW, SETTINGS)[0].speeds.at(grant.allocation)
    elsewhere = [sample for sample in job.speed_samples if (sample.workers, sample.servers) != size]
    measured = (*elsewhere, *samples(lambda w, p: speed, [size]))
    return replace(job, allocation=grant.allocation, allocated_at=NOW - 60, speed_samples=measured)


@pytest.mark.parametrize("policy", ["optimus", "optimus-paper", "fifo"])
@hypothesis_settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(laws, st.integers(0, 6), st.integers(1, 6), st.tuples(st.integers(1, 3), st.integers(1, 3))),
        max_size=6,
    ),
    st.integers(0, 30),
    st.permutations(range(6)),
)
def test_grants_are_within_capacity_and_limits_whatever_the_order(
    policy: str, drawn: list[tuple[SpeedLaw, int, int, tuple[int, int]]], cpu: int, order: list[int]
) -> None:
    jobs = [
        replace(
            running(f"j{i}", speed, (max(w, least[0]), max(p, least[1]))), spec=a_spec(minimum=least, maximum=(7, 7))
        )
        if w
        else a_job(f"j{i}", spec=a_spec(minimum=least))
        for i, (speed, w, p, least) in enumerate(drawn)
    ]
    competing = forecast_all(jobs, NOW, SETTINGS)
    shuffled = tuple(competing[i] for i in order if i < len(competing))
    capacity = Resources(float(cpu), 64 * GIB)
    grants = policy_named(policy).allocate(AllocationInput(competing, capacity), SETTINGS)
    assert policy_named(policy).allocate(AllocationInput(shuffled, capacity), SETTINGS) == grants
    assert sum(grant.allocation.workers + grant.allocation.servers for grant in grants.values()) <= cpu
    for outlook in competing:
        granted = grants[outlook.id].allocation
        if not granted.is_empty:
            assert outlook.minimum.workers <= granted.workers <= outlook.maximum.workers
            assert outlook.minimum.servers <= granted.servers <= outlook.maximum.servers


def test_nobody_starves_under_sustained_overload() -> None:
    """Short jobs arrive faster than the cluster can serve them, for ever; a long one gets its turn all the same.

    It takes 2,000 s on one core: it is asked to wait for 300 s and twice that, and then for those before it, which are
    the short jobs that came 3,400 s after it at the latest: two in two minutes, of three rounds each, on two cores.
    """
    round_seconds, cores = 120.0, 2
    long = replace(ring("long", 1.0, 0.1, 2_000), state=JobState.QUEUED, submitted_at=NOW, allocated_at=None)
    jobs, now, number = {"long": long}, NOW, 0
    while jobs["long"].allocation.is_empty:
        for _ in range(2):
            short = replace(ring(f"short-{number}", 1.0, 0.1, 300, most=1), state=JobState.QUEUED)
            jobs[short.id], number = replace(short, submitted_at=now, allocated_at=None), number + 1
        inputs = AllocationInput(forecast_all(tuple(jobs.values()), now, SETTINGS), Resources(float(cores), 64 * GIB))
        grants = policy_named("optimus").allocate(inputs, SETTINGS)
        jobs = _later(jobs, grants, now, round_seconds)
        now += round_seconds
        assert now - NOW <= 3400.0 / 60.0 * 3 * round_seconds / cores + 10 * round_seconds
    assert number > cores * (now - NOW) / 300.0  # it was an overload


@given(st.floats(0.001, 1000.0), st.floats(1.0, 1e9), st.floats(1e-9, 1e3))
def test_a_waiting_job_is_overdue_after_the_longest_patience(priority: float, steps: float, speed: float) -> None:
    job = replace(ring("waits", 1.0, 0.1, int(steps)), state=JobState.QUEUED, submitted_at=NOW, allocated_at=None)
    job = replace(job, spec=replace(job.spec, priority=priority))
    outlooks = JobColumns.of(forecast_all([job], NOW + SETTINGS.most_patience_seconds + 1.0, SETTINGS))
    assert overdue_seconds(outlooks, np.array([speed]), SETTINGS)[0] > 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans(), st.floats(0, 1e6)), min_size=1))
def test_a_backlog_is_the_work_of_the_others_that_were_there(drawn: list[tuple[int, int, bool, float]]) -> None:
    jobs = [
        replace(
            ring(f"j{number:03d}", 1.0, 0.1, 100),
            submitted_at=NOW + came,
            allocated_at=NOW + came + ran,
            allocation=NOTHING,
            state=JobState.PAUSED if was_paused else JobState.QUEUED,
        )
        for number, (came, ran, was_paused, _) in enumerate(drawn)
    ]
    work = np.array([each[3] for each in drawn])
    since = [job.allocated_at if job.state is JobState.PAUSED else job.submitted_at for job in jobs]
    expected = [
        sum(work[i] for i, other in enumerate(jobs) if i != j and other.submitted_at <= began)
        for j, began in enumerate(since)
        if began is not None
    ]
    found = backlog(JobColumns.of(forecast_all(tuple(jobs), NOW + 20, SETTINGS)), work)
    assert found == pytest.approx(expected, abs=1e-6)


def _later(jobs: Mapping[str, Job], grants: Mapping[str, Grant], now: float, seconds: float) -> dict[str, Job]:
    """All jobs with what they were granted, after so long; without those that have ended."""
    later = {}
    for name, job in jobs.items():
        size = grants[name].allocation
        since = job.allocated_at if size == job.allocation and not size.is_empty else now
        state = JobState.RUNNING if size.workers else job.state
        changed = replace(
            job, allocation=size, allocated_at=since, state=state, step=job.step + int(size.workers * seconds)
        )
        limit = job.spec.convergence.max_steps
        if limit is None or changed.step < limit:
            later[name] = changed
    return later


def test_weights_of_ranks() -> None:
    """heSRPT: the parts of the cluster that these weights lead to are those of the theorem."""
    exponent, count = 0.5, 6
    found = rank_weights(count, exponent)
    ranks = np.arange(1, count + 1)
    q = 1.0 / (1.0 - exponent)
    # max Σ weight · part^p under Σ part = 1: parts in proportion to weight^q
    parts = found**q / (found**q).sum()
    np.testing.assert_allclose(parts, (ranks / count) ** q - ((ranks - 1) / count) ** q)


def test_jobs_of_about_the_same_work_share_their_weights() -> None:
    alike, longer = running("a", law(1.0, 0.1, 0.1, 0.0), (1, 1)), running("c", law(30.0, 3.0, 3.0, 0.0), (1, 1))
    outlooks = forecast_all(
        [alike, replace(alike, id="b", submitted_at=alike.submitted_at + 1.0), longer], NOW, SETTINGS
    )
    frontiers = Frontiers(outlooks, Resources(8.0, 64 * GIB))
    found = weights(outlooks, frontiers.best_speed_per_share, frontiers.least_shares, SETTINGS)
    by_rank = rank_weights(3, SETTINGS.speed_exponent)
    np.testing.assert_allclose(found, [by_rank[1:].mean()] * 2 + [by_rank[0]])
