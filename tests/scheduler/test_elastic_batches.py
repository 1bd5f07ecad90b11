"""Jobs whose batch is chosen with their size, and jobs for which nothing of the kind happens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import NOW

from optimus_models.speed.goodput import ElasticBatch, Goodput, cut
from optimus_scheduler.allocate.allocate import batch_for
from optimus_scheduler.allocate.policies import POLICIES, policy_named
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.forecast.gpu_types import on_type, relative_speeds
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    ConvergenceRule,
    EndedJob,
    Job,
    JobSpec,
    JobState,
    Node,
    PlacedTask,
    Resources,
    Role,
    SetWanted,
    Snapshot,
    SpeedSample,
    Task,
    TaskDemand,
    TaskKey,
    TaskPhase,
)
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

GPU = "gpu"
NODES = tuple(Node(f"node-{i}", Resources(gpus={GPU: 4})) for i in range(4))
LIMITS = ElasticBatch(32, 2048, 128, 4)
SPEC = JobSpec(
    worker=TaskDemand(Resources(gpus={GPU: 1}), 1, 16),
    server=TaskDemand(Resources(), 0, 0),
    convergence=ConvergenceRule(max_epochs=10.0),
    architecture=Architecture.ALLREDUCE,
    global_batch_size=256,
    elastic_batch=LIMITS,
    family="net",
)
OPTIMUS = policy_named("optimus")


def sample(workers: int, batch: int, pass_seconds: float = 0.001, exchange: float = 0.05) -> SpeedSample:
    (passes,), (local,) = cut(LIMITS, [workers], [batch])
    exchange = exchange if workers > 1 else 0.0
    seconds = passes * (0.02 + pass_seconds * local) + exchange
    return SpeedSample(workers, 0, 1.0 / seconds, 50, NOW - 5.0, batch=batch, exchange_seconds=exchange)


SIZES = ((1, 32), (1, 256), (2, 256), (4, 512), (8, 512), (8, 2048))


def a_job(name: str = "a", workers: int = 0, batch: int | None = None, noise: float = 500.0, **fields: object) -> Job:
    tasks = tuple(PlacedTask(TaskKey(name, Role.WORKER, i), f"node-{i // 4}") for i in range(workers))
    job = Job(
        id=name,
        spec=SPEC,
        state=JobState.RUNNING if workers else JobState.QUEUED,
        submitted_at=NOW - 1000.0,
        started_at=NOW - 900.0 if workers else None,
        step=1000,
        steps_per_epoch=2000.0,
        speed_samples=tuple(sample(*size) for size in SIZES),
        allocation=Allocation(workers, 0, GPU) if workers else Allocation(0, 0),
        allocated_at=NOW - 600.0,
        wanted_tasks=tasks,
        batch=batch,
        noise_steps=(500.0, 1000.0),
        noise_scales=(noise, noise),
    )
    return replace(job, **fields)  # type: ignore[arg-type]


def a_snapshot(*jobs: Job) -> Snapshot:
    tasks = [Task(placed.key, placed.node, TaskPhase.RUNNING) for job in jobs for placed in job.wanted_tasks]
    tasks += [
        Task(TaskKey(job.id, Role.COORDINATOR, 0), job.wanted_tasks[0].node, TaskPhase.RUNNING)
        for job in jobs
        if job.wanted_tasks
    ]
    return Snapshot(NOW, NODES, jobs, tuple(tasks))


# --- the choice ------------------------------------------------------------------------------------------------------

jobs = st.builds(
    a_job,
    workers=st.integers(0, 8),
    batch=st.sampled_from([None, 32, 256, 2048]),
    noise=st.floats(1.0, 1e6),
)


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=2), st.sampled_from(sorted(POLICIES)))
def test_batches_are_within_their_bounds_under_every_policy(drawn: list[Job], policy: str) -> None:
    renamed = [replace(job, id=f"job-{i}", wanted_tasks=(), allocation=Allocation(0, 0)) for i, job in enumerate(drawn)]
    for decision in plan(a_snapshot(*renamed), policy_named(policy)).decisions:
        if decision.allocation.is_empty:
            continue
        assert decision.batch is not None
        assert LIMITS.minimum <= decision.batch <= LIMITS.maximum
        if policy == "optimus":
            assert decision.batch <= LIMITS.per_pass * LIMITS.most_passes * decision.allocation.workers
        else:
            assert decision.batch == SPEC.global_batch_size, "others leave it as it is"


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.floats(1.0, 1e6), st.integers(1, 16))
def test_a_new_size_gets_the_batch_with_the_highest_goodput(noise: float, workers: int) -> None:
    outlook = forecast(a_job(noise=noise), NOW, Settings())
    model = outlook.speeds.model
    assert isinstance(model, Goodput)
    chosen = batch_for(outlook, outlook.size(workers, 0), Settings())
    assert chosen is not None
    best = max(model.at(workers, batch) for batch in LIMITS.choices(workers))
    assert model.at(workers, chosen) == pytest.approx(best)
    assert outlook.speeds.at(outlook.size(workers, 0)) == pytest.approx(best), "sizes are compared by it"


def test_a_batch_stays_unless_another_is_clearly_better() -> None:
    settings = Settings()
    present = Allocation(8, 0, GPU)
    best = batch_for(forecast(a_job(workers=8), NOW, settings), present, settings)
    assert best is not None
    near = best - 8
    assert batch_for(forecast(a_job(workers=8, batch=near), NOW, settings), present, settings) == near
    far = forecast(a_job(workers=8, batch=32), NOW, settings)
    assert batch_for(far, present, settings) == best


def test_a_job_without_noise_trains_with_its_smallest_batch_and_ended_jobs_tell_better() -> None:
    settings = Settings()
    fresh = a_job(speed_samples=(), noise_steps=(), noise_scales=(), step=0)
    assert batch_for(forecast(fresh, NOW, settings), Allocation(1, 0, GPU), settings) == LIMITS.minimum
    ended = EndedJob(
        "before",
        "net",
        "default",
        2000.0,
        speed_samples=tuple(sample(*size) for size in SIZES),
        architecture=Architecture.ALLREDUCE,
        global_batch_size=LIMITS.minimum,
        noise_steps=(0.0, 20_000.0),
        noise_scales=(5000.0, 50_000.0),
    )
    reported = batch_for(forecast(replace(fresh, similar=(ended,)), NOW, settings), Allocation(8, 0, GPU), settings)
    assert reported is not None
    assert reported > LIMITS.minimum


# --- what comes of it ------------------------------------------------------------------------------------------------


def test_the_batch_is_told_once_and_in_words() -> None:
    job = a_job(workers=4, batch=32, noise=1e5)
    outcome = plan(a_snapshot(job), OPTIMUS)
    (decision,) = outcome.decisions
    (wanted,) = (action for action in outcome.actions if isinstance(action, SetWanted))
    assert wanted.batch == decision.batch != 32
    assert f"from 32 to {decision.batch} examples" in decision.message


def test_a_job_with_the_right_batch_is_left_alone() -> None:
    present = Allocation(8, 0, GPU)
    settings = replace(Settings(), least_speedup=10.0)  # no size is worth a change
    best = batch_for(forecast(a_job(workers=8), NOW, settings), present, settings)
    outcome = plan(a_snapshot(a_job(workers=8, batch=best)), OPTIMUS, settings)
    assert outcome.decisions[0].batch == best
    assert f"batches of {best}" in outcome.decisions[0].message
    assert outcome.actions == ()


def test_measurements_on_another_gpu_type_keep_their_proportions() -> None:
    """The types are told apart although the batches differ, and exchanges are converted with the steps."""
    spec = replace(SPEC, worker=TaskDemand(Resources(gpus={"fast": 1}), 1, 16), gpu_types=("fast", "slow"))
    slow = tuple(replace(sample(2, batch), gpu_type="slow") for batch in (512, 2048))
    fast = sample(2, 32)
    fast = replace(fast, gpu_type="fast", steps_per_second=40 * slow[0].steps_per_second, exchange_seconds=0.001)
    job = a_job(spec=spec, speed_samples=(*slow, fast))
    speeds = relative_speeds([job], Settings())
    assert 1.5 < speeds.of(job)("fast") / speeds.of(job)("slow") < 4.0, "40 times as many steps, of 32 instead of 512"
    converted = on_type(job, "fast", speeds).speed_samples
    for before, after in zip(job.speed_samples, converted, strict=True):
        assert before.exchange_seconds is not None
        assert after.exchange_seconds is not None
        parts = [each.exchange_seconds * each.steps_per_second for each in (before, after)]  # type: ignore[operator]
        assert parts[1] == pytest.approx(parts[0])
    assert converted[0].steps_per_second > 1.5 * slow[0].steps_per_second


def test_only_all_reduce_jobs_have_an_elastic_batch() -> None:
    with pytest.raises(ValueError, match="all-reduce"):
        replace(SPEC, architecture=Architecture.PS)


def test_goodput_counts_steps_of_the_smallest_batch() -> None:
    """Without noise a step with any batch is worth one with the smallest; with much, as many as it is larger."""
    settings = Settings()
    size = Allocation(8, 0, GPU)
    quiet, noisy = (forecast(a_job(noise=noise), NOW, settings).speeds for noise in (1e-3, 1e9))
    assert quiet.with_batch(8, 512) == pytest.approx(1.0 / (0.02 + 0.064 + 0.05), rel=0.15)
    assert noisy.with_batch(8, 512) == pytest.approx(quiet.with_batch(8, 512) * 512 / 32, rel=0.01)
    assert noisy.at(size) > quiet.at(size)


# --- off by default --------------------------------------------------------------------------------------------------


def fixed_job(name: str, workers: int) -> Job:
    plain = [
        replace(each, batch=None, exchange_seconds=None) for each in (sample(1, 256), sample(2, 256), sample(8, 256))
    ]
    spec = replace(SPEC, elastic_batch=None)
    return a_job(name, workers, spec=spec, speed_samples=tuple(plain), noise_steps=(), noise_scales=())


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_jobs_with_a_fixed_batch_are_decided_as_if_there_were_no_others(policy: str) -> None:
    snapshot = a_snapshot(fixed_job("a", 2), replace(fixed_job("b", 0), submitted_at=NOW - 50.0))
    on, off = (plan(snapshot, policy_named(policy), replace(Settings(), scale_batches=each)) for each in (True, False))
    assert on == off
    assert all(decision.batch is None and "batch" not in decision.message for decision in on.decisions)
    assert all(action.batch is None for action in on.actions if isinstance(action, SetWanted))


def test_an_operator_can_switch_it_off() -> None:
    outcome = plan(a_snapshot(a_job()), OPTIMUS, replace(Settings(), scale_batches=False))
    assert outcome.decisions[0].batch == SPEC.global_batch_size
