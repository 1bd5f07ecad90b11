"""Our own trace format: JSON lines, or CSV for jobs of which only sizes and durations are known. See docs/traces.md.

The first line of a JSONL trace describes the cluster, every other one a job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from optimus_contract.limits import LEAST_SECONDS, MAX_POSIX_SECONDS, MAX_SECONDS, MAX_STEPS, MAX_TASKS
from optimus_models.speed.goodput import ElasticBatch
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    JobSpec,
    MetricTarget,
    Mode,
    Node,
    Quota,
    Resources,
    TaskDemand,
)
from optimus_simulator.declared import declared, parsed
from optimus_simulator.trace import Recorded, Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.traces.lines import (
    MAX_NODES,
    ClusterLine,
    JobLine,
    NodesLine,
    ProjectLine,
    RuleLine,
    SpeedLine,
    TasksLine,
    TruthLine,
)
from optimus_simulator.traces.rows import Row, opened, reading, rows
from optimus_simulator.truth.elastic import ElasticTruth
from optimus_simulator.truth.truth import (
    AllReduceLaw,
    LossLaw,
    MeasuredLaw,
    MeasuredLosses,
    ParameterServerLaw,
    ParametricTruth,
    SpeedLaw,
    Truth,
)

_T = TypeVar("_T")
_GIB = 2**30


def read_own(path: Path) -> Trace:
    """A trace in our own format, by the ending of its name.

    Raises:
        BadTrace: it cannot be read; the message names the line.
    """
    if path.suffix == ".csv":
        return _from_csv(path)
    with reading(path):
        lines = [
            (number, line) for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), 1) if line.strip()
        ]
        if not lines:
            raise ValueError("empty")
        return _from_jsonl(path, lines)


# --- JSON lines ------------------------------------------------------------------------------------------------------


def _from_jsonl(path: Path, lines: list[tuple[int, str]]) -> Trace:
    (first, cluster_line), *job_lines = lines
    cluster = _read_line(first, cluster_line, lambda found: declared(ClusterLine, found))
    nodes = _read_line(first, cluster_line, lambda _: _nodes(cluster.nodes))
    jobs, lived = list[TraceJob](), list[_Lived]()
    for number, text in job_lines:
        job, happened = _read_line(number, text, _job_and_what_happened)
        jobs.append(job)
        lived += [happened] if happened else []
    periods = cluster.round_seconds, cluster.learning_round_seconds
    return Trace(path.stem, nodes, in_order(jobs), _quotas(cluster.projects), _recorded(periods, lived))


class _Lived(NamedTuple):
    starts: tuple[float, ...]
    changes: tuple[float, ...]
    jct_seconds: float
    met: bool | None
    """Its deadline; None: it had none, or was cancelled."""


def _job_and_what_happened(document: Any) -> tuple[TraceJob, _Lived | None]:
    try:
        line = declared(JobLine, document)
        return _job(line), _happened(line)
    except ValueError as error:
        name = document.get("id") if isinstance(document, dict) else None
        raise ValueError(f"job {name:.100}: {error}" if isinstance(name, str) else str(error)) from error


def _happened(line: JobLine) -> _Lived | None:
    found, due = line.happened, line.deadline_seconds
    if found is None or found.finished_at is None:
        return None
    took = found.finished_at - line.submitted_at
    met = None if due is None or found.state == "cancelled" else found.state == "succeeded" and took <= due
    starts = () if found.start_seconds is None else (found.start_seconds,)
    return _Lived(starts, tuple(found.change_seconds), took, met)


def _recorded(periods: tuple[float | None, float | None], lived: list[_Lived]) -> Recorded | None:
    if periods == (None, None) and not lived:
        return None
    judged = [each.met for each in lived if each.met is not None]
    return Recorded(
        *periods,
        tuple(seconds for each in lived for seconds in each.starts),
        tuple(seconds for each in lived for seconds in each.changes),
        tuple(each.jct_seconds for each in lived),
        len(judged),
        sum(judged),
    )


def _read_line(number: int, text: str, read: Callable[[Any], _T]) -> _T:
    try:
        return read(parsed(text))
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error


def _nodes(groups: Sequence[NodesLine]) -> tuple[Node, ...]:
    if sum(group.count for group in groups) > MAX_NODES:
        raise ValueError(f"there are more than {MAX_NODES:,} nodes")
    nodes: list[Node] = []
    for group in groups:
        capacity = Resources(group.cpu, int(group.memory_gib * _GIB), group.gpus)
        labels = {name: str(value) for name, value in group.labels.items()}
        nodes += [Node(f"node-{len(nodes) + i:04d}", capacity, labels=labels) for i in range(group.count)]
    return tuple(nodes)


def _quotas(projects: Mapping[str, ProjectLine]) -> tuple[Quota, ...]:
    """What each project is guaranteed: `share`, or `cpu`, `memory_gib`, `gpus`; and whether it may borrow."""
    return tuple(_quota(project, line) for project, line in sorted(projects.items()))


def _quota(project: str, line: ProjectLine) -> Quota:
    memory = None if line.memory_gib is None else int(line.memory_gib * _GIB)
    return Quota(project, line.share, line.cpu, memory, line.gpus, line.may_borrow)


def _job(line: JobLine) -> TraceJob:
    allreduce = line.architecture == "allreduce"
    servers = line.servers or (TasksLine(minimum=0, maximum=0) if allreduce else TasksLine())
    mode = Mode(line.mode)
    spec = JobSpec(
        worker=_demand("workers", line.workers),
        server=_demand("servers", servers),
        convergence=_rule(line.convergence),
        mode=mode,
        architecture=Architecture.ALLREDUCE if allreduce else Architecture.PS,
        global_batch_size=line.global_batch_size,
        priority=line.priority,
        requested_workers=line.workers.requested,
        requested_servers=servers.requested,
        family=line.family,
        gpu_types=tuple(str(kind) for kind in line.gpu_types),
        project=line.project,
        deadline_at=None if line.deadline_seconds is None else line.submitted_at + line.deadline_seconds,
        elastic_batch=_elastic_batch(line),
    )
    truth = _truth(line.truth, mode, spec)
    _check_speeds(truth, spec)
    return TraceJob(
        str(line.id), line.submitted_at, spec, truth, line.truth.type_speeds, line.truth.rack_crossing_factor
    )


def _check_speeds(truth: Truth, spec: JobSpec) -> None:
    """A law whose parts are all nothing has no speed, or one beyond all numbers.

    Raises:
        ValueError: it is so at one of the smallest and largest sizes.
    """
    sizes = product({spec.worker.minimum, spec.worker.maximum}, {spec.server.minimum, spec.server.maximum})
    for workers, servers in sizes:
        try:
            speed = truth.oracle_speed(workers, servers)
        except ZeroDivisionError:
            speed = math.inf
        if not 0 < speed <= MAX_STEPS:
            raise ValueError(
                f"truth.speed is {speed:g} steps/s with {workers} workers and {servers} servers, but must be above 0, "
                f"up to {MAX_STEPS:g}"
            )


def _elastic_batch(line: JobLine) -> ElasticBatch | None:
    bounds, batch = line.elastic_batch, line.global_batch_size
    if bounds is None:
        return None
    if batch is None:
        raise ValueError("global_batch_size is missing: policies give it that choose no batches")
    limits = ElasticBatch(bounds.minimum, bounds.maximum, bounds.per_pass, bounds.most_passes)
    if not limits.minimum <= batch <= limits.maximum:
        raise ValueError(f"global_batch_size {batch} is not between {limits.minimum} and {limits.maximum}")
    return limits


def _rule(line: RuleLine) -> ConvergenceRule:
    target = line.target_metric
    if target is not None and (target.at_least is None) == (target.at_most is None):
        raise ValueError("convergence.target_metric has one of at_least and at_most")
    metric = None if target is None else MetricTarget(str(target.name), target.at_least, target.at_most, target.best)
    rule = {each.name: getattr(line, each.name) for each in fields(line)}
    return ConvergenceRule(**{**rule, "target_metric": metric})


def _demand(name: str, line: TasksLine) -> TaskDemand:
    if line.minimum > line.maximum:
        raise ValueError(f"{name}.minimum is {line.minimum}, but {name}.maximum {line.maximum}")
    return TaskDemand(Resources(line.cpu, int(line.memory_gib * _GIB), line.gpus), line.minimum, line.maximum)


def _truth(line: TruthLine, mode: Mode, spec: JobSpec) -> Truth:
    if spec.elastic_batch is not None:
        return _elastic_truth(line, spec.elastic_batch, spec.global_batch_size or 1)
    return ParametricTruth(
        total_steps=line.total_steps,
        law=_measured_law(line.speed, _law(line.speed, mode, spec)),
        loss_law=_loss_law(line),
        epoch_steps=line.steps_per_epoch,
        crossing_factor=line.crossing_factor,
    )


def _elastic_truth(line: TruthLine, limits: ElasticBatch, batch: int) -> ElasticTruth:
    if line.noise_scale is None:
        raise ValueError("truth.noise_scale is missing, which a job with an elastic batch has")
    return ElasticTruth(
        total_steps=line.total_steps,
        law=_ring_law(line.speed),
        batch=batch,
        limits=limits,
        noise=line.noise_scale,
        loss_law=_loss_law(line),
        epoch_steps=line.steps_per_epoch,
        crossing_factor=line.crossing_factor,
    )


def _loss_law(line: TruthLine) -> Callable[[float], float] | None:
    """As measured, else by the betas; None for a job that reports no loss."""
    epoch_steps = line.steps_per_epoch
    if line.losses and epoch_steps:
        steps, losses = zip(*line.losses, strict=True)
        if any(after < before for before, after in pairwise(steps)):
            raise ValueError("truth.losses has a step that is less than the one before")
        return MeasuredLosses(tuple(step / epoch_steps for step in steps), losses)
    return LossLaw(*line.loss) if line.loss else None


def _measured_law(line: SpeedLine, law: SpeedLaw) -> SpeedLaw:
    return MeasuredLaw(law, tuple(line.measured)) if line.measured else law


def _law(line: SpeedLine, mode: Mode, spec: JobSpec) -> SpeedLaw:
    if line.theta is None:
        return _ring_law(line)
    expected = 5 if mode is Mode.SYNC else 4
    if len(line.theta) != expected:
        raise ValueError(f"truth.speed.theta has {expected} numbers in {mode} mode, not {len(line.theta)}")
    return ParameterServerLaw(tuple(line.theta), float(spec.global_batch_size or 1), mode)


def _ring_law(line: SpeedLine) -> AllReduceLaw:
    for name in ("compute_seconds", "exchange_seconds"):
        if getattr(line, name) is None:
            raise ValueError(f"truth.speed.{name} is missing")
    return AllReduceLaw(line.compute_seconds or 0.0, line.exchange_seconds or 0.0, line.pass_seconds)


# --- CSV -------------------------------------------------------------------------------------------------------------

# One all-reduce job a row, a GPU a worker. A first line such as `# nodes=8 gpus=4` says what it ran on.

_EXCHANGE = 0.1
"""Exchanged seconds per second of computing on one worker, assumed for jobs of which nothing else is known."""


def _from_csv(path: Path) -> Trace:
    with reading(path), opened(path) as text:
        first = text.readline()
        if first.lstrip().startswith("{"):
            raise ValueError(
                "line 1: these are JSON lines, as optimus export-trace writes them: name the file FILE.jsonl"
            )
        words = [word.partition("=") for word in first.strip("# \r\n").split()]
        cluster = Row(1, {name: value for name, _, value in words})
        count, gpus = cluster.whole("nodes", 1, MAX_NODES), cluster.whole("gpus", 1, MAX_TASKS)
        jobs = [_plain_job(row) for row in rows(text, lines_before=1)]
    return Trace(path.stem, equal_nodes(count, Resources(gpus={"gpu": gpus})), in_order(jobs))


def _plain_job(row: Row) -> TraceJob:
    workers = row.whole("workers", 1, MAX_TASKS)
    spec = JobSpec(
        worker=TaskDemand(Resources(gpus={"gpu": 1}), 1, workers),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(),
        architecture=Architecture.ALLREDUCE,
        requested_workers=workers,
        requested_servers=0,
    )
    duration = row.number("duration_seconds", 0, MAX_SECONDS)
    if 0 < duration < LEAST_SECONDS:
        raise ValueError(
            f"line {row.line}: duration_seconds is {duration:g}, but must be 0, or from {LEAST_SECONDS:g} on"
        )
    submitted_at = row.number("submitted_at", 0, MAX_POSIX_SECONDS)
    return TraceJob(row.text("id"), submitted_at, spec, lasting(duration, workers))


def serving(gpu_seconds: float) -> ParametricTruth:
    """A job that takes so long with one worker, in steps of one second; other sizes by the same assumed exchange."""
    return ParametricTruth(gpu_seconds, AllReduceLaw(1.0, _EXCHANGE))


def lasting(duration_seconds: float, workers: int) -> ParametricTruth:
    """A job that takes so long with so many workers, in steps of one second; other sizes by an assumed exchange."""
    one_second = AllReduceLaw(1.0, _EXCHANGE)(workers, 0)
    return ParametricTruth(duration_seconds, AllReduceLaw(one_second, one_second * _EXCHANGE))
