"""Worlds with several GPU types, projects with quotas, deadlines and budgets; and rounds that follow each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hypothesis import strategies as st
from tests.scheduler.builders import GIB, NOW, a_job, applied, law

from optimus_scheduler.allocate.policy import Policy
from optimus_scheduler.model import (
    ConvergenceRule,
    Job,
    JobSpec,
    Node,
    Plan,
    Quota,
    Resources,
    Role,
    Snapshot,
    SpeedSample,
    StartTask,
    TaskDemand,
)
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

TYPES = ("k80", "p100", "v100")
FACTOR = {"k80": 1.0, "p100": 3.0, "v100": 7.0}
"""How fast every job here is on each type."""
PRICES = Settings(price_per_gpu_hour={"k80": 0.45, "p100": 1.46, "v100": 2.48}, price_per_core_hour=0.05)


def gpu_node(name: str, gpus: Mapping[str, int], cpu: float = 16.0) -> Node:
    return Node(name, Resources(cpu, 64 * GIB, gpus))


def gpu_spec(
    *gpu_types: str,
    named: str = "gpu",
    minimum: int = 1,
    maximum: int = 8,
    servers: int = 1,
    rule: ConvergenceRule | None = None,
    **fields: object,
) -> JobSpec:
    """A job of up to 8 workers with a GPU each, and one server."""
    spec = JobSpec(
        worker=TaskDemand(Resources(1.0, GIB, {named: 1}), minimum, maximum),
        server=TaskDemand(Resources(1.0, GIB), min(servers, 1), servers),
        convergence=rule or ConvergenceRule(max_steps=10_000),
        global_batch_size=64,
        gpu_types=gpu_types,
    )
    return replace(spec, **fields)  # type: ignore[arg-type]


def measured_on(gpu_type: str, sizes: Iterable[tuple[int, int]], at: float = NOW) -> tuple[SpeedSample, ...]:
    speed, factor = law(), FACTOR[gpu_type]
    return tuple(SpeedSample(w, p, factor * speed(w, p), 50, at, gpu_type) for w, p in sizes)


def next_round(snapshot: Snapshot, policy: Policy, settings: Settings | None = None) -> tuple[Snapshot, Plan]:
    """The world after a round; started workers know their GPU type, as tasks of the service do."""
    outcome = plan(snapshot, policy, settings)
    after = applied(snapshot, outcome.actions)
    types = {job.id: job.allocation.gpu_type for job in after.jobs}
    started = {action.task.key for action in outcome.actions if isinstance(action, StartTask)}
    tasks = tuple(
        replace(task, gpu_type=types[task.key.job_id]) if task.key in started and task.key.role is Role.WORKER else task
        for task in after.tasks
    )
    return replace(after, tasks=tasks), outcome


def trained(snapshot: Snapshot, seconds: float) -> Snapshot:
    """Every job that has tasks trained with them for so long and was measured; the tasks that were let go have left."""
    now = snapshot.now + seconds
    wanted = {placed.key for job in snapshot.jobs for placed in job.wanted_tasks}
    tasks = tuple(task for task in snapshot.tasks if task.key in wanted or task.key.role is Role.COORDINATOR)
    return replace(snapshot, now=now, jobs=tuple(_trained(job, now, seconds) for job in snapshot.jobs), tasks=tasks)


def _trained(job: Job, now: float, seconds: float) -> Job:
    size = job.allocation
    if size.is_empty:
        return job
    speed = law()(size.workers, max(size.servers, 1)) * FACTOR.get(size.gpu_type or "", 1.0)
    sample = SpeedSample(size.workers, size.servers, speed, 50, now, size.gpu_type)
    started = job.started_at if job.started_at is not None else now - seconds
    step = job.step + int(speed * seconds)
    return replace(job, step=step, started_at=started, speed_samples=(*job.speed_samples, sample))


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """A cluster of two or three GPU types and jobs that accept some of them, with every kind of constraint."""
    nodes = tuple(
        gpu_node(f"node-{i}", draw(st.sampled_from([{"k80": 4}, {"v100": 2}, {"p100": 2, "k80": 1}, {}])))
        for i in range(draw(st.integers(1, 4)))
    )
    projects = ("a", "b", "c")
    jobs = tuple(draw(_jobs(f"j{i}", projects)) for i in range(draw(st.integers(1, 6))))
    quotas = tuple(draw(_quotas(project)) for project in draw(st.sets(st.sampled_from(projects))))
    return Snapshot(NOW, nodes, jobs, (), quotas)


@st.composite
def _jobs(draw: st.DrawFn, name: str, projects: tuple[str, ...]) -> Job:
    minimum = draw(st.integers(1, 3))
    rule = ConvergenceRule(
        max_steps=draw(st.sampled_from([500, 5000])), max_cost=draw(st.sampled_from([None, None, 0.01, 1.0]))
    )
    deadline = draw(st.sampled_from([None, None, 30.0, 600.0, 20_000.0]))
    spec = gpu_spec(
        *draw(st.lists(st.sampled_from(TYPES), unique=True, max_size=3)),
        minimum=minimum,
        maximum=minimum + draw(st.integers(0, 5)),
        servers=draw(st.integers(0, 2)),
        rule=rule,
        project=draw(st.sampled_from(projects)),
        deadline_at=None if deadline is None else NOW + deadline,
        priority=draw(st.sampled_from([1.0, 2.0])),
    )
    return a_job(name, spec=spec, submitted_at=NOW - draw(st.integers(0, 900)))


@st.composite
def _quotas(draw: st.DrawFn, project: str) -> Quota:
    share = draw(st.sampled_from([None, 0.25, 0.5]))
    gpus = draw(st.sampled_from([{}, {"k80": 2}, {"v100": 1, "k80": 1}])) if share is None else {}
    return Quota(project, share=share, gpus=gpus, may_borrow=draw(st.booleans()))
