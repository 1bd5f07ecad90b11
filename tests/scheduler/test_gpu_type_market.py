"""Prices that clear GPU types, and who takes what at them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from tests.scheduler.builders import ALL_SIZES, NOW, a_job
from tests.scheduler.constrained_worlds import gpu_node, gpu_spec, measured_on, next_round, trained, worlds

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.gpu_types.market import Offers, prices, taken
from optimus_scheduler.model import Job, Resources, Role, Snapshot
from optimus_scheduler.round import plan

OPTIMUS = policy_named("optimus")
NOBODY = -1


def offers(*rows: tuple[int, int, float, float]) -> Offers:
    """(job, type, GPUs, worth) of each."""
    job, kind, gpus, worth = zip(*rows, strict=True)
    return Offers(np.array(job), np.array(kind), np.array(gpus, dtype=np.float64), np.array(worth, dtype=np.float64))


def dual(table: Offers, at: NDArray[np.float64], gpus: NDArray[np.float64]) -> float:
    """What all jobs gain at these prices and all GPUs earn."""
    left = table.worth - at[table.gpu_type] * table.gpus
    return float(sum(max(left[table.job == j].max(), 0.0) for j in np.unique(table.job)) + at @ gpus)


def bound(table: Offers, gpus: NDArray[np.float64]) -> float:
    """The largest worth that can be shared out, of jobs that may be cut in parts."""
    n, k = int(table.job.max()) + 1, len(table.job)
    limits = np.zeros((n + len(gpus), k))
    limits[table.job, np.arange(k)] = 1.0
    limits[n + table.gpu_type, np.arange(k)] = table.gpus
    found = linprog(-table.worth, A_ub=limits, b_ub=[1.0] * n + list(gpus), method="highs")
    return float(-(found.fun or 0.0))


@st.composite
def markets(draw: st.DrawFn) -> tuple[Offers, NDArray[np.float64], NDArray[np.int64]]:
    """Jobs of 1 to 4 GPUs that gain less from each, differently fast on up to three types, some with a type."""
    kinds = draw(st.integers(1, 3))
    gpus = np.array([draw(st.integers(0, 8)) for _ in range(kinds)], dtype=np.float64)
    rows: list[tuple[int, int, float, float]] = []
    held: list[int] = []
    for job in range(draw(st.integers(1, 10))):
        weight = draw(st.floats(0.1, 10.0))
        accepted = sorted(draw(st.sets(st.integers(0, kinds - 1), min_size=1)))
        factors = {kind: draw(st.floats(0.1, 1.0)) for kind in accepted}
        for size in range(1, draw(st.integers(1, 4)) + 1):
            rows += [(job, kind, size, weight * factors[kind] * size**0.8) for kind in accepted]
        held.append(draw(st.sampled_from([NOBODY, *accepted])))
    return offers(*rows), gpus, np.array(held)


# --- prices ----------------------------------------------------------------------------------------------------------


@given(market=markets())
@settings(max_examples=150, deadline=None)
def test_prices_come_near_the_best_sharing_out(market: tuple[Offers, NDArray[np.float64], NDArray[np.int64]]) -> None:
    """By duality no prices are below the best worth; those found are hardly above it."""
    table, gpus, _ = market
    best, found = bound(table, gpus), dual(table, prices(table, gpus), gpus)
    assert best - 1e-6 <= found <= 1.1 * best + 0.05 * table.worth.max()


@given(market=markets())
@settings(max_examples=150, deadline=None)
def test_everybody_takes_a_type_that_it_offers_for(
    market: tuple[Offers, NDArray[np.float64], NDArray[np.int64]],
) -> None:
    """One type each, one that it accepts, and the same whenever it is asked; who is priced out keeps its type."""
    table, gpus, held = market
    at = prices(table, gpus)
    result = taken(table, at, gpus, held)
    for j, kind in enumerate(result.tolist()):
        of_job = table.job == j
        assert kind in table.gpu_type[of_job]
        if held[j] != NOBODY and (table.worth - at[table.gpu_type] * table.gpus)[of_job].max() <= 0:
            assert kind == held[j]
    assert (taken(table, prices(table, gpus), gpus, held) == result).all()


def test_the_fast_type_is_for_who_gains_most_from_it() -> None:
    """The first gains a little on type 1, the second a lot; there is room for one on each."""
    table = offers((0, 0, 1.0, 8.0), (0, 1, 1.0, 10.0), (1, 0, 1.0, 2.0), (1, 1, 1.0, 9.0))
    gpus = np.array([1.0, 1.0])
    assert taken(table, prices(table, gpus), gpus, np.array([NOBODY, NOBODY])).tolist() == [0, 1]


def test_prices_of_many_jobs_are_nearly_the_best() -> None:
    """Of hundreds of jobs: within a hundredth of the best."""
    random = np.random.default_rng(0)
    factors, weights = random.uniform(0.1, 1.0, (300, 3)), np.exp(random.normal(0.0, 1.0, 300))
    table = offers(
        *((j, t, n, weights[j] * factors[j, t] * n**0.8) for j in range(300) for t in range(3) for n in (1, 2, 4))
    )
    gpus = np.array([100.0, 60.0, 30.0])
    assert dual(table, prices(table, gpus), gpus) <= 1.01 * bound(table, gpus)


# --- whole rounds ----------------------------------------------------------------------------------------------------


def on_both(name: str, ratio: float, steps: int = 5_000, **fields: object) -> Job:
    """A job that has measured that a V100 is so many times as fast as a K80 for it."""
    spec = gpu_spec("k80", "v100", maximum=2, servers=0)
    spec = replace(spec, convergence=replace(spec.convergence, max_steps=steps))
    slow = measured_on("k80", ALL_SIZES)
    fast = tuple(replace(s, gpu_type="v100", steps_per_second=ratio * s.steps_per_second) for s in slow)
    return a_job(name, spec=spec, measured=(*slow, *fast), **fields)  # type: ignore[arg-type]


TIGHT = (gpu_node("slow", {"k80": 2}), gpu_node("fast", {"v100": 2}))


def types_of(world: Snapshot) -> dict[str, str | None]:
    return {job.id: job.allocation.gpu_type for job in world.jobs}


@pytest.mark.parametrize("first", [0, 1], ids=["gains little", "gains much"])
def test_who_gains_most_gets_the_fast_type_whoever_came_first(first: int) -> None:
    jobs = [on_both("little", 1.3, submitted_at=NOW - 10 * (first == 0)), on_both("much", 8.0, submitted_at=NOW - 5)]
    after, _ = next_round(Snapshot(NOW, TIGHT, tuple(jobs)), OPTIMUS)
    assert types_of(after) == {"little": "k80", "much": "v100"}


def test_the_short_job_gets_the_fast_type() -> None:
    jobs = (on_both("long", 6.0, steps=500_000), on_both("short", 6.0, steps=2_000))
    after, _ = next_round(Snapshot(NOW, (TIGHT[0], gpu_node("fast", {"v100": 1})), jobs), OPTIMUS)
    assert types_of(after) == {"long": "k80", "short": "v100"}


@pytest.mark.parametrize("policy", ["optimus", "srtf", "fifo", "drf"])
@given(world=worlds())
@settings(max_examples=25, deadline=None)
def test_rounds_keep_to_one_type_and_to_its_gpus(policy: str, world: Snapshot) -> None:
    """Over several rounds, whatever the policy; and twice the same plan, in whatever order jobs are told."""
    for _ in range(3):
        chosen = policy_named(policy)
        outcome = plan(world, chosen)
        again = plan(replace(world, jobs=world.jobs[::-1], nodes=world.nodes[::-1]), chosen)
        assert {d.job_id: d.allocation for d in outcome.decisions} == {d.job_id: d.allocation for d in again.decisions}
        world, _ = next_round(world, chosen)
        for job in world.jobs:
            of_workers = {t.gpu_type for t in world.tasks if t.key in _workers(job)}
            assert of_workers <= {job.allocation.gpu_type}
        for kind, offered in _capacity(world).gpus.items():
            assert _used(world, kind) <= offered
        world = trained(world, 60.0)


def _workers(job: Job) -> set[object]:
    return {placed.key for placed in job.wanted_tasks if placed.key.role is Role.WORKER}


def _capacity(world: Snapshot) -> Resources:
    return sum((node.capacity for node in world.nodes), Resources())


def _used(world: Snapshot, kind: str) -> int:
    return sum(job.allocation.workers for job in world.jobs if job.allocation.gpu_type == kind)
