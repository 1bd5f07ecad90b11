"""Our own trace format: JSON lines, or CSV for jobs of which only sizes and durations are known. See docs/traces.md.

The first line of a JSONL trace describes the cluster, every other one a job.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
from optimus_simulator.errors import BadTrace
from optimus_simulator.trace import Recorded, Trace, TraceJob, in_order
from optimus_simulator.traces.limits import check_limits
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

Fields = dict[str, Any]
_T = TypeVar("_T")
_RESOURCE_FIELDS = frozenset({"cpu", "memory_gib", "gpus"})
_NODE_FIELDS = _RESOURCE_FIELDS | {"count", "labels"}
_CLUSTER_FIELDS = frozenset({"nodes", "projects", "begins_at", "round_seconds", "learning_round_seconds"})
_QUOTA_FIELDS = _RESOURCE_FIELDS | {"share", "may_borrow"}
_TASK_FIELDS = _RESOURCE_FIELDS | {"minimum", "maximum", "requested"}
_JOB_FIELDS = frozenset(
    {"id", "submitted_at", "architecture", "mode", "global_batch_size", "elastic_batch", "priority", "project"}
    | {"family", "gpu_types", "workers", "servers", "convergence", "deadline_seconds", "truth", "happened"}
)
_TRUTH_FIELDS = frozenset(
    {"total_steps", "steps_per_epoch", "loss", "losses", "speed", "type_speeds", "noise_scale"}
    | {"crossing_factor", "rack_crossing_factor"}
)
_SPEED_FIELDS = frozenset({"theta", "compute_seconds", "exchange_seconds", "pass_seconds", "measured"})
_GIB = 2**30
_LONGEST_PERIOD = 86_400.0


def read_own(path: Path) -> Trace:
    """A trace in our own format, by the ending of its name.

    Raises:
        BadTrace: it cannot be read; the message names the line.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return _from_csv(path, lines) if path.suffix == ".csv" else _from_jsonl(path, lines)


# --- JSON lines ------------------------------------------------------------------------------------------------------


def _from_jsonl(path: Path, lines: list[str]) -> Trace:
    if not lines:
        raise BadTrace(f"{path}: empty")
    nodes = _read_line(path, 1, lines[0], _cluster)
    quotas = _read_line(path, 1, lines[0], lambda fields: _quotas(fields.get("projects", {})))
    jobs = [_read_line(path, number, line, _job) for number, line in enumerate(lines[1:], start=2)]
    periods = _read_line(path, 1, lines[0], _periods)
    lived = [_read_line(path, number, line, _happened) for number, line in enumerate(lines[1:], start=2)]
    return Trace(path.stem, nodes, in_order(jobs), quotas, _recorded(periods, [each for each in lived if each]))


def _cluster(fields: Fields) -> tuple[Node, ...]:
    _only(fields, _CLUSTER_FIELDS, "of the cluster")
    return _nodes(fields["nodes"])


def _only(fields: Fields, known: frozenset[str], of: str) -> None:
    """A field in the wrong place would be left out in silence.

    Raises:
        ValueError: there is another one.
    """
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r} {of}; there are {', '.join(sorted(known))}")


class _Lived(NamedTuple):
    starts: tuple[float, ...]
    changes: tuple[float, ...]
    jct_seconds: float
    met: bool | None
    """Its deadline; None: it had none, or was cancelled."""


def _happened(fields: Fields) -> _Lived | None:
    found, due = fields.get("happened"), fields.get("deadline_seconds")
    if not found or found.get("finished_at") is None:
        return None
    took = float(found["finished_at"]) - float(fields["submitted_at"])
    state = found.get("state")
    met = None if due is None or state == "cancelled" else state == "succeeded" and took <= float(due)
    start = found.get("start_seconds")
    starts = () if start is None else (float(start),)
    return _Lived(starts, tuple(float(each) for each in found.get("change_seconds", ())), took, met)


def _periods(fields: Fields) -> tuple[float | None, float | None]:
    """Seconds between rounds, and while a job is learned; None: not told."""

    def seconds(name: str) -> float | None:
        value = fields.get(name)
        return None if value is None else float(value)

    rounds, learning = seconds("round_seconds"), seconds("learning_round_seconds")
    if any(each is not None and not 0 < each <= _LONGEST_PERIOD for each in (rounds, learning)):
        raise ValueError(f"round_seconds and learning_round_seconds are above 0, up to {_LONGEST_PERIOD:g}")
    return rounds, learning


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


def _read_line(path: Path, number: int, line: str, read: Callable[[Fields], _T]) -> _T:
    try:
        return read(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadTrace(f"{path}, line {number}: {_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    if isinstance(error, ValueError):
        return str(error)
    return f"a value is of another kind than docs/traces.md says: {error}"


def _by_name(fields: Fields, field: str) -> Fields:
    """The values of a field by their names."""
    found = fields.get(field, {})
    if not isinstance(found, dict):
        why = f'{field} has values by their names, such as {{"a100": 4}}, not {json.dumps(found)}'
        raise ValueError(why)  # noqa: TRY004 - it is the file that is wrong
    return found


def _nodes(groups: list[Fields]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for group in groups:
        _only(group, _NODE_FIELDS, "of nodes")
        capacity = _resources(group)
        labels = {str(name): str(value) for name, value in _by_name(group, "labels").items()}
        count = int(group.get("count", 1))
        nodes += [Node(f"node-{len(nodes) + i:04d}", capacity, labels=labels) for i in range(count)]
    return tuple(nodes)


def _quotas(projects: dict[str, Fields]) -> tuple[Quota, ...]:
    """What each project is guaranteed: `share`, or `cpu`, `memory_gib`, `gpus`; and whether it may borrow."""
    return tuple(_quota(project, fields) for project, fields in sorted(projects.items()))


def _quota(project: str, fields: Fields) -> Quota:
    _only(fields, _QUOTA_FIELDS, "of a project")
    memory = fields.get("memory_gib")
    return Quota(
        project,
        share=fields.get("share"),
        cpu=fields.get("cpu"),
        memory_bytes=None if memory is None else int(memory * _GIB),
        gpus=_resources(fields).gpus,
        may_borrow=bool(fields.get("may_borrow", True)),
    )


def _resources(fields: Fields) -> Resources:
    gpus = {str(kind): int(count) for kind, count in _by_name(fields, "gpus").items()}
    return Resources(float(fields.get("cpu", 0.0)), int(fields.get("memory_gib", 0) * _GIB), gpus)


def _job(fields: Fields) -> TraceJob:
    _only(fields, _JOB_FIELDS, "of a job")
    check_limits(fields)
    allreduce = fields.get("architecture", "ps") == "allreduce"
    workers, servers = fields["workers"], fields.get("servers", {"minimum": 0, "maximum": 0} if allreduce else {})
    mode = Mode(fields.get("mode", "sync"))
    truth, submitted_at, due = fields["truth"], float(fields["submitted_at"]), fields.get("deadline_seconds")
    spec = JobSpec(
        worker=_demand(workers),
        server=_demand(servers),
        convergence=_rule(fields.get("convergence", {})),
        mode=mode,
        architecture=Architecture.ALLREDUCE if allreduce else Architecture.PS,
        global_batch_size=fields.get("global_batch_size"),
        priority=float(fields.get("priority", 1.0)),
        requested_workers=workers.get("requested"),
        requested_servers=servers.get("requested"),
        family=str(fields.get("family", "")),
        gpu_types=tuple(str(kind) for kind in fields.get("gpu_types", ())),
        project=str(fields.get("project", "default")),
        deadline_at=None if due is None else submitted_at + float(due),
        elastic_batch=_elastic_batch(fields),
    )
    type_speeds = {str(kind): float(factor) for kind, factor in _by_name(truth, "type_speeds").items()}
    rack_factor = float(truth.get("rack_crossing_factor", 1.0))
    if not 0 < rack_factor <= 1:
        raise ValueError(f"rack_crossing_factor is above 0, up to 1, not {rack_factor:g}")
    return TraceJob(str(fields["id"]), submitted_at, spec, _truth(truth, mode, spec), type_speeds, rack_factor)


def _elastic_batch(fields: Fields) -> ElasticBatch | None:
    bounds = fields.get("elastic_batch")
    if bounds is None:
        return None
    limits, batch = ElasticBatch(**{name: int(value) for name, value in bounds.items()}), fields["global_batch_size"]
    if not limits.minimum <= batch <= limits.maximum:
        raise ValueError(f"global_batch_size {batch} is not between {limits.minimum} and {limits.maximum}")
    return limits


def _rule(fields: Fields) -> ConvergenceRule:
    metric = fields.get("target_metric")
    return ConvergenceRule(**{**fields, "target_metric": MetricTarget(**metric) if metric else None})


def _demand(fields: Fields) -> TaskDemand:
    _only(fields, _TASK_FIELDS, "of a task")
    return TaskDemand(_resources(fields), int(fields.get("minimum", 1)), int(fields.get("maximum", 16)))


def _truth(fields: Fields, mode: Mode, spec: JobSpec) -> Truth:
    _only(fields, _TRUTH_FIELDS, "of the truth")
    _only(fields.get("speed", {}), _SPEED_FIELDS, "of the speed")
    if spec.elastic_batch is not None:
        return _elastic_truth(fields, spec.elastic_batch, spec.global_batch_size or 1)
    return ParametricTruth(
        total_steps=float(fields["total_steps"]),
        law=_measured_law(fields["speed"], _law(fields["speed"], mode, spec)),
        loss_law=_loss_law(fields),
        epoch_steps=fields.get("steps_per_epoch"),
        crossing_factor=float(fields.get("crossing_factor", 1.0)),
    )


def _elastic_truth(fields: Fields, limits: ElasticBatch, batch: int) -> ElasticTruth:
    first, last = (float(value) for value in fields["noise_scale"])
    if min(first, last) <= 0:
        raise ValueError("noise_scale is above 0, at the beginning and at the end")
    return ElasticTruth(
        total_steps=float(fields["total_steps"]),
        law=_ring_law(fields["speed"]),
        batch=batch,
        limits=limits,
        noise=(first, last),
        loss_law=_loss_law(fields),
        epoch_steps=fields.get("steps_per_epoch"),
        crossing_factor=float(fields.get("crossing_factor", 1.0)),
    )


def _loss_law(fields: Fields) -> Callable[[float], float] | None:
    """As measured, else by the betas; None for a job that reports no loss."""
    measured, epoch_steps = fields.get("losses"), fields.get("steps_per_epoch")
    if measured and epoch_steps:
        steps, losses = zip(*measured, strict=True)
        return MeasuredLosses(tuple(step / epoch_steps for step in steps), tuple(map(float, losses)))
    loss = fields.get("loss")
    return LossLaw(*(float(beta) for beta in loss)) if loss else None


def _measured_law(fields: Fields, law: SpeedLaw) -> SpeedLaw:
    measured = tuple((int(w), int(p), float(speed)) for w, p, speed in fields.get("measured", ()))
    return MeasuredLaw(law, measured) if measured else law


def _law(fields: Fields, mode: Mode, spec: JobSpec) -> SpeedLaw:
    if "theta" in fields:
        theta = tuple(float(value) for value in fields["theta"])
        expected = 5 if mode is Mode.SYNC else 4
        if len(theta) != expected:
            raise ValueError(f"theta has {expected} numbers in {mode} mode, not {len(theta)}")
        return ParameterServerLaw(theta, float(spec.global_batch_size or 1), mode)
    return _ring_law(fields)


def _ring_law(fields: Fields) -> AllReduceLaw:
    per_pass = float(fields.get("pass_seconds", 0.0))
    return AllReduceLaw(float(fields["compute_seconds"]), float(fields["exchange_seconds"]), per_pass)


# --- CSV -------------------------------------------------------------------------------------------------------------

# One all-reduce job a row, a GPU a worker. Lines that begin with `# nodes=8 gpus=4` say what it ran on.

_EXCHANGE = 0.1
"""Exchanged seconds per second of computing on one worker, assumed for jobs of which nothing else is known."""


def _from_csv(path: Path, lines: list[str]) -> Trace:
    try:
        comment = dict(word.split("=") for word in lines[0].lstrip("# ").split()) if lines[0].startswith("#") else {}
        nodes = _nodes([{"count": int(comment["nodes"]), "gpus": {"gpu": int(comment["gpus"])}}])
        rows = list(csv.DictReader(lines[1:]))
        jobs = [_plain_job(row) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise BadTrace(f"{path}: {_in_words(error)}") from error
    return Trace(path.stem, nodes, in_order(jobs))


def _plain_job(row: dict[str, str]) -> TraceJob:
    workers, duration, submitted_at = int(row["workers"]), float(row["duration_seconds"]), float(row["submitted_at"])
    check_limits({**row, "workers": workers, "duration_seconds": duration, "submitted_at": submitted_at})
    spec = JobSpec(
        worker=TaskDemand(Resources(gpus={"gpu": 1}), 1, workers),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(),
        architecture=Architecture.ALLREDUCE,
        requested_workers=workers,
        requested_servers=0,
    )
    return TraceJob(row["id"], submitted_at, spec, lasting(duration, workers))


def serving(gpu_seconds: float) -> ParametricTruth:
    """A job that takes so long with one worker, in steps of one second; other sizes by the same assumed exchange."""
    return ParametricTruth(gpu_seconds, AllReduceLaw(1.0, _EXCHANGE))


def lasting(duration_seconds: float, workers: int) -> ParametricTruth:
    """A job that takes so long with so many workers, in steps of one second; other sizes by an assumed exchange."""
    one_second = AllReduceLaw(1.0, _EXCHANGE)(workers, 0)
    return ParametricTruth(duration_seconds, AllReduceLaw(one_second, one_second * _EXCHANGE))
