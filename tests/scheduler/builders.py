"""Builders that read like sentences: `a_job("a", step=100)`, `a_cluster(cpu=8)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from optimus_scheduler.model import (
    Action,
    Allocation,
    ConvergenceRule,
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
    StartTask,
    StopTask,
    Task,
    TaskDemand,
    TaskKey,
    TaskPhase,
)
from optimus_scheduler.place.network_cost import Spread
from optimus_scheduler.place.place import Placements, Placer, Request, TaskSlot, task_slots

NOW = 10_000.0
GIB = 2**30

SpeedLaw = Callable[[int, int], float]


def law(compute: float = 0.8, fixed: float = 0.05, transfer: float = 0.1, per_task: float = 0.02) -> SpeedLaw:
    """Steps per second of a synchronous job as in Eq. 4; arguments are seconds at 1 worker + 1 server."""
    return lambda w, p: 1.0 / (compute / w + fixed + transfer * max(w / p, 1.0) + per_task * (w + p))


def samples(speed: SpeedLaw, sizes: Iterable[tuple[int, int]], at: float = NOW) -> tuple[SpeedSample, ...]:
    return tuple(SpeedSample(w, p, speed(w, p), n_steps=50, at=at) for w, p in sizes)


ALL_SIZES = tuple((w, p) for w in (1, 2, 4, 6) for p in (1, 2, 4, 6))


def a_cluster(*cpus: float, memory_gib: int = 64) -> tuple[Node, ...]:
    """Nodes node-0, node-1, ... with that many CPU cores."""
    return tuple(Node(f"node-{i}", Resources(cpu, memory_gib * GIB)) for i, cpu in enumerate(cpus))


def a_spec(
    *,
    minimum: tuple[int, int] = (1, 1),
    maximum: tuple[int, int] = (16, 16),
    worker_cpu: float = 1.0,
    server_cpu: float = 1.0,
    memory_bytes: int = GIB,
    rule: ConvergenceRule | None = None,
    priority: float = 1.0,
) -> JobSpec:
    return JobSpec(
        worker=TaskDemand(Resources(worker_cpu, memory_bytes), minimum[0], maximum[0]),
        server=TaskDemand(Resources(server_cpu, memory_bytes), minimum[1], maximum[1]),
        convergence=rule or ConvergenceRule(max_steps=10_000),
        global_batch_size=64,
        priority=priority,
    )


def a_job(
    name: str,
    *,
    has: tuple[int, int] = (0, 0),
    nodes: Mapping[TaskSlot, str] | str = "node-0",
    spec: JobSpec | None = None,
    measured: tuple[SpeedSample, ...] = (),
    **fields: object,
) -> Job:
    """A job that `has` so many workers and servers, on `nodes` (one node for all, or by role and rank)."""
    allocation = Allocation(*has)
    wanted = tuple(
        PlacedTask(TaskKey(name, role, rank), nodes if isinstance(nodes, str) else nodes[role, rank])
        for role, rank in sorted(task_slots(allocation))
    )
    job = Job(
        id=name,
        spec=spec or a_spec(),
        state=JobState.QUEUED if allocation.is_empty else JobState.RUNNING,
        submitted_at=NOW - 100,
        started_at=None if allocation.is_empty else NOW - 90,
        allocation=allocation,
        allocated_at=None if allocation.is_empty else NOW - 90,
        wanted_tasks=wanted,
        speed_samples=measured,
    )
    return replace(job, **fields)  # type: ignore[arg-type]


def live_tasks(jobs: Iterable[Job]) -> tuple[Task, ...]:
    """Every wanted task of the jobs and their coordinators, running."""
    tasks = []
    for job in jobs:
        tasks += [Task(placed.key, placed.node, TaskPhase.RUNNING) for placed in job.wanted_tasks]
        if job.wanted_tasks:
            key = TaskKey(job.id, Role.COORDINATOR, 0)
            tasks.append(Task(key, job.wanted_tasks[0].node, TaskPhase.RUNNING))
    return tuple(tasks)


def a_snapshot(jobs: Iterable[Job], nodes: tuple[Node, ...], tasks: tuple[Task, ...] | None = None) -> Snapshot:
    jobs = tuple(jobs)
    return Snapshot(NOW, nodes, jobs, live_tasks(jobs) if tasks is None else tasks)


def applied(snapshot: Snapshot, actions: Iterable[Action]) -> Snapshot:
    """The snapshot after all actions took effect: sets stored, tasks started, tasks stopped, the unwanted marked."""
    jobs = {job.id: job for job in snapshot.jobs}
    tasks = {task.key: task for task in snapshot.tasks}
    for action in actions:
        match action:
            case SetWanted(job_id, allocation, directive, wanted):
                jobs[job_id] = replace(
                    jobs[job_id],
                    allocation=allocation,
                    directive=directive,
                    wanted_tasks=wanted,
                    allocated_at=snapshot.now,
                )
                keys = {placed.key for placed in wanted}
                for key, task in tasks.items():
                    if key.job_id == job_id and key not in keys and key.role is not Role.COORDINATOR:
                        tasks[key] = replace(task, unwanted_since=task.unwanted_since or snapshot.now)
            case StartTask(placed):
                tasks[placed.key] = Task(placed.key, placed.node, TaskPhase.RUNNING)
            case StopTask(key):
                tasks[key] = replace(tasks[key], phase=TaskPhase.EXITED, exit_code=143)
    return replace(snapshot, jobs=tuple(jobs.values()), tasks=tuple(tasks.values()))


def place(
    requests: Sequence[Request], nodes: Sequence[Node], spread: Spread, *, smallest_first: bool = True
) -> Placements:
    """What a placer places that has seen no round before."""
    return Placer().place(requests, nodes, spread, smallest_first=smallest_first)
