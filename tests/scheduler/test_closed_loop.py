"""Many rounds against jobs whose true behaviour the scheduler has to find out: the demo, in virtual time."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import pytest
from tests.scheduler.builders import law
from tests.scheduler.closed_loop import ClosedLoop, TrueJob

from optimus_scheduler.model import Allocation, ConvergenceRule, Mode, Reason


def demo() -> list[TrueJob]:
    """Four small jobs that arrive while others run; 8 slots."""
    return [
        TrueJob(
            "mlp",
            0.0,
            law(0.05, 0.005, 0.01, 0.001),
            (0.9, 0.45, 0.05),
            22,
            ConvergenceRule(loss_decrease=0.02, max_epochs=100),
        ),
        TrueJob(
            "cnn",
            10.0,
            law(0.10, 0.005, 0.01, 0.001),
            (1.2, 0.45, 0.1),
            22,
            ConvergenceRule(loss_decrease=0.02, max_epochs=60),
        ),
        TrueJob(
            "resnet",
            25.0,
            law(0.25, 0.01, 0.03, 0.003),
            (0.8, 0.45, 0.1),
            22,
            ConvergenceRule(target_loss=0.25, max_epochs=60),
        ),
        TrueJob(
            "async",
            40.0,
            lambda w, p: w / (0.15 + 0.01 * max(w / p, 1.0) + 0.004 * w),
            (0.3, 0.45, 0.1),
            90,
            ConvergenceRule(max_epochs=15),
            mode=Mode.ASYNC,
        ),
    ]


def run(jobs: list[TrueJob], *, seed: int = 0, policy: str = "optimus", slots: float = 8.0) -> ClosedLoop:
    loop = ClosedLoop(jobs, seed=seed, policy=policy, slots=slots)
    loop.run()
    return loop


def mean_jct(loop: ClosedLoop) -> float:
    return mean((job.finished_at or 0.0) - job.arrives_at for job in loop.jobs)


@pytest.mark.parametrize("seed", range(5))
def test_the_demo_works(seed: int) -> None:
    """Everybody finishes; jobs grow, shrink for newcomers, and nothing thrashes."""
    loop = run(demo(), seed=seed)
    sizes = {job.name: [size.workers + size.servers for _, size in job.history] for job in loop.jobs}
    assert all(history[0] == 2 for history in sizes.values()), "everybody starts with one of each"
    assert sum(max(history) > 2 for history in sizes.values()) >= 2
    assert any(later < earlier for history in sizes.values() for earlier, later in pairwise(history))
    assert max(job.rescales for job in loop.jobs) <= 5
    assert sum(job.rescales for job in loop.jobs) <= 14


@pytest.mark.parametrize("seed", range(5))
def test_nobody_waits_long_while_others_have_more(seed: int) -> None:
    for job in run(demo(), seed=seed).jobs:
        assert job.started_at is not None
        assert job.started_at - job.arrives_at <= 10.0


@pytest.mark.parametrize("seed", range(3))
def test_predictions_come_true(seed: int) -> None:
    """From half of its life on, a job's predicted total is within 25 % of what it took."""
    for job in run(demo(), seed=seed).jobs:
        for step, total in job.predictions:
            if step >= job.step / 2:
                assert total == pytest.approx(job.step, rel=0.25)


def test_better_than_the_baseline() -> None:
    ours, fifo = (
        mean(mean_jct(run(demo(), seed=seed, policy=policy)) for seed in range(3)) for policy in ("optimus", "fifo")
    )
    assert ours < 0.9 * fifo


def test_fewer_changes_than_the_paper() -> None:
    ours, paper = (run(demo(), policy=policy) for policy in ("optimus", "optimus-paper"))
    assert sum(job.rescales for job in ours.jobs) < sum(job.rescales for job in paper.jobs)
    assert mean_jct(ours) < 1.1 * mean_jct(paper)


def test_a_steady_world_comes_to_rest() -> None:
    """Two long jobs alone: after the learning is done, nothing moves any more in spite of the noise."""
    jobs = [
        TrueJob(name, 0.0, law(0.3, 0.01, 0.03, 0.002), (0.1, 0.5, 0.1), 100, ConvergenceRule(max_steps=2500))
        for name in ("left", "right")
    ]
    loop = run(jobs)
    for job in loop.jobs:
        assert job.rescales <= 4
        assert all(at < 100.0 for at, _ in job.history[:-1])


def test_a_full_cluster_is_shared_and_queued() -> None:
    """Eight jobs for eight slots: four run with one worker and one server each, the others wait for their turn."""
    jobs = [
        TrueJob(f"j{i}", float(i), law(0.1, 0.01, 0.01, 0.001), (0.9, 0.45, 0.05), 20, ConvergenceRule(max_steps=400))
        for i in range(8)
    ]
    loop = run(jobs)
    first = [job.history[0] for job in loop.jobs]
    assert all(size == Allocation(1, 1) for _, size in first)
    reasons = {decision.reason for at, decision in loop.decisions if decision.job_id == "j7" and at < 30.0}
    assert reasons == {Reason.WAITING_FOR_RESOURCES}
