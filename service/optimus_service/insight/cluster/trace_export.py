"""What really happened, as a trace that `optimus simulate` replays (docs/traces.md). Pure: rows in, documents out.

A job is told as it was: when it came, what it asked for, its measured speeds and losses, after how many steps it ended,
however that was. Sizes that it never had are by the paper's speed form, fitted to those that it had.
Jobs with an elastic batch are told by the laws that were fitted to their step times and noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Literal

import numpy as np

from optimus_contract.limits import LEAST_PART, MAX_SECONDS, MAX_STEPS, MAX_TRACED_LOSS
from optimus_models.speed.batch import BatchSpeed
from optimus_models.speed.goodput import ElasticBatch, gain
from optimus_models.speed.servers import PaperSpeedModel, SpeedModel
from optimus_scheduler.forecast.goodput_fits import fit_step_times
from optimus_scheduler.model import (
    NO_GPUS,
    Architecture,
    Job,
    JobSpec,
    Mode,
    Node,
    Quota,
    Resources,
    SpeedSample,
    TaskDemand,
)
from optimus_scheduler.place.free_capacity import RACK_LABELS, ZONE_LABELS
from optimus_service.observe.spec import readable_spec
from optimus_service.observe.standstills import rescale_seconds
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import Document, JobRecord, MembershipRecord, TaskRecord

_NO_NOISE = 1e-6
"""Examples: told of a job that measured none. A larger batch gains it nothing, as the scheduler assumed."""


def counted_speed(job: Job, sample: SpeedSample) -> float:
    """Steps per second of the job's own count: a step with an elastic batch is worth several of the smallest."""
    limits = job.spec.elastic_batch
    if limits is None or sample.batch is None or not job.noise_scales:
        return sample.steps_per_second
    return sample.steps_per_second * float(gain([sample.batch], limits.minimum, job.noise_scales[-1])[0])


def elastic_speed(limits: ElasticBatch, batch: int, samples: Sequence[SpeedSample]) -> Document:
    """The law of its step times, fitted to those that were measured; `batch`: the one that policies give which choose
    none."""
    speed = fit_step_times(samples, (), limits).speed
    each, fixed = _pass_law(speed, limits.per_pass)
    return {
        "compute_seconds": each * batch,
        "exchange_seconds": 2.0 * float(speed.exchange_seconds([2])[0]),
        "pass_seconds": fixed,
    }


def _pass_law(speed: BatchSpeed, per_pass: int) -> tuple[float, float]:
    """Seconds of one more example, and of a pass without any: the line through a full and a half full pass."""
    half = max(per_pass // 2, 1)
    small, full = speed.pass_seconds([half, per_pass]).tolist()
    slope = (full - small) / (per_pass - half) if per_pass > half else 0.0
    fixed = min(max(full - slope * per_pass, 0.0), 0.9 * full)
    return (full - fixed) / per_pass, fixed


def noise_ends(history: JobHistory) -> list[float]:
    """The first and the last noise scale that are known, in examples."""
    scales = [scale for _, scale in history.noise_curve()]
    return [scales[0], scales[-1]] if scales else [_NO_NOISE, _NO_NOISE]


MAX_LOSSES = 200
"""Points of a loss history that are told: evenly many per factor of the step, as a curve is seen."""
_GIB = 2**30


def header(nodes: Sequence[Node], quotas: Iterable[Quota], begins_at: float, rounds: Mapping[str, float]) -> Document:
    """The first line: the cluster and the seconds between `rounds`, by setting, as they are now; `begins_at` (POSIX
    seconds) is the trace's second 0."""
    groups = Counter(
        (node.capacity.cpu, node.capacity.memory_bytes, _pairs(node.capacity), _where(node)) for node in nodes
    )
    kinds = [
        {"count": count, "cpu": cpu, "memory_gib": memory / _GIB, "gpus": dict(gpus)}
        | ({"labels": dict(where)} if where else {})
        for (cpu, memory, gpus, where), count in sorted(groups.items())
    ]
    return {
        "nodes": kinds,
        "projects": {quota.project: _quota(quota) for quota in quotas},
        "begins_at": begins_at,
        **rounds,
    }


def _pairs(resources: Resources) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(resources.gpus.items()))


def _where(node: Node) -> tuple[tuple[str, str], ...]:
    """Its labels that name its rack and zone: other labels are not told."""
    return tuple(sorted((name, node.labels[name]) for name in (*RACK_LABELS, *ZONE_LABELS) if name in node.labels))


def _quota(quota: Quota) -> Document:
    memory = quota.memory_bytes
    fields: Document = {
        "share": quota.share,
        "cpu": quota.cpu,
        "memory_gib": None if memory is None else memory / _GIB,
        "gpus": dict(quota.gpus) or None,
    }
    return {**{name: value for name, value in fields.items() if value is not None}, "may_borrow": quota.may_borrow}


def job_line(
    job: JobRecord,
    history: JobHistory,
    memberships: Sequence[MembershipRecord],
    begins_at: float,
    tasks: Sequence[TaskRecord] = (),
) -> Document | None:
    """One job that has ended; None when nothing was measured of it that a trace may hold. `tasks`: all that it had."""
    spec = readable_spec(job)
    samples = [each for each in history.speeds.samples() if LEAST_PART <= each.steps_per_second <= MAX_STEPS]
    if spec is None or not samples or not 0 < job.step <= MAX_STEPS:
        return None
    deadline = spec.deadline_at
    line: Document = {
        "id": job.id,
        "submitted_at": job.created_at - begins_at,
        "mode": spec.mode.value,
        # Replayed as what it scales like: a script's workers sum their gradients among themselves.
        "architecture": (spec.architecture if spec.architecture.has_servers else Architecture.ALLREDUCE).value,
        "global_batch_size": spec.global_batch_size,
        "priority": spec.priority,
        "project": spec.project,
        "family": spec.family,
        "gpu_types": list(spec.gpu_types),
        "workers": _demand(spec.worker),
        "servers": _demand(spec.server),
        "convergence": {name: value for name, value in asdict(spec.convergence).items() if value is not None},
        "truth": _truth(job, spec, history, samples),
        "happened": {
            "state": job.state.value,
            "started_at": None if job.started_at is None else job.started_at - begins_at,
            "finished_at": None if job.finished_at is None else job.finished_at - begins_at,
            "sizes": [_size(each, begins_at) for each in memberships],
            "stops": [each.pause_seconds for each in memberships if each.pause_seconds is not None],
            "start_seconds": _start_seconds(memberships, tasks),
            "change_seconds": list(rescale_seconds(memberships)),
        },
    }
    if spec.elastic_batch is not None:
        line["elastic_batch"] = asdict(spec.elastic_batch)
    # One that was past already is missed in any case; one in more years than a job may last is met.
    return line if deadline is None else {**line, "deadline_seconds": _within(deadline - job.created_at)}


def _within(seconds: float) -> float:
    """What a trace may say of a deadline."""
    return min(max(seconds, 0.0), MAX_SECONDS)


def _start_seconds(memberships: Sequence[MembershipRecord], tasks: Sequence[TaskRecord]) -> float | None:
    """From the first of the tasks with which it began to train until it did; None where that is not known."""
    if not memberships:
        return None
    names = {*memberships[0].workers, *memberships[0].servers}
    started = [task.created_at for task in tasks if task.key.name in names]
    return max(memberships[0].at - min(started), 0.0) if started else None


def _demand(demand: TaskDemand) -> Document:
    resources = demand.resources
    return {
        "cpu": resources.cpu,
        "memory_gib": resources.memory_bytes / _GIB,
        "gpus": dict(resources.gpus or NO_GPUS),
        "minimum": demand.minimum,
        "maximum": demand.maximum,
    }


def _size(membership: MembershipRecord, begins_at: float) -> list[object]:
    """[from when on, workers, servers, GPU type]"""
    return [
        membership.at - begins_at,
        len(membership.workers),
        len(membership.servers),
        membership.gpu_type,
    ]


def _truth(job: JobRecord, spec: JobSpec, history: JobHistory, samples: Sequence[SpeedSample]) -> Document:
    fields = {
        "total_steps": float(job.step),
        "steps_per_epoch": (job.profile or {}).get("steps_per_epoch"),
        "losses": _losses(history),
    }
    if spec.elastic_batch is not None and spec.global_batch_size is not None:
        speed = elastic_speed(spec.elastic_batch, spec.global_batch_size, samples)
        return {**fields, "noise_scale": noise_ends(history), "speed": speed}
    usual = _usual_type(samples)
    here = [sample for sample in samples if sample.gpu_type == usual]
    model = _in_the_papers_form(spec, _fitted(spec, here))
    return {
        **fields,
        "speed": _speed(spec, model, here),
        "type_speeds": _type_speeds(model, samples, usual),
    }


def _usual_type(samples: Sequence[SpeedSample]) -> str | None:
    """The GPU type that most steps were measured on: the one that the speeds are told for."""
    steps = Counter[str | None]()
    for sample in samples:
        steps[sample.gpu_type] += sample.n_steps
    return max(sorted(steps, key=str), key=lambda kind: steps[kind])


def _fitted(spec: JobSpec, samples: Sequence[SpeedSample]) -> SpeedModel:
    return SpeedModel.fit(
        [sample.workers for sample in samples],
        [max(sample.servers, 1) for sample in samples],
        [sample.steps_per_second for sample in samples],
        weights=[float(sample.n_steps) for sample in samples],
        mode=_mode(spec),
        global_batch_size=spec.global_batch_size,
    )


def _in_the_papers_form(spec: JobSpec, model: SpeedModel) -> PaperSpeedModel:
    """Coefficients of Eq. 3 or 4 that come near what our own model believes of all sizes, few as were measured."""
    sizes = [(w, p) for w in _powers(spec.worker.maximum) for p in _powers(spec.server.maximum)]
    workers, servers = ([size[role] for size in sizes] for role in (0, 1))
    speeds = model.predict(workers, servers)
    batch = spec.global_batch_size
    return PaperSpeedModel.fit(workers, servers, speeds, mode=_mode(spec), global_batch_size=batch)


def _powers(maximum: int) -> list[int]:
    """1, 2, 4, ... and the maximum."""
    return sorted({2**power for power in range(maximum.bit_length()) if 2**power <= maximum} | {max(maximum, 1)})


def _mode(spec: JobSpec) -> Literal["sync", "async"]:
    return "sync" if spec.mode is Mode.SYNC else "async"


def _speed(spec: JobSpec, model: SpeedModel, samples: Sequence[SpeedSample]) -> Document:
    """The coefficients of the paper's form, and the mean of what was measured at each size."""
    by_size: dict[tuple[int, int], list[SpeedSample]] = {}
    for sample in samples:
        by_size.setdefault((sample.workers, sample.servers), []).append(sample)
    measured = [[*size, _mean_speed(by_size[size])] for size in sorted(by_size)]
    if not spec.architecture.has_servers:
        alone, pair = (float(model.predict([w], [1])[0]) for w in (1, 2))
        return {
            "compute_seconds": 1.0 / alone,
            "exchange_seconds": max(2.0 / pair - 1.0 / alone, 0.0),
            "measured": measured,
        }
    return {"theta": list(model.coefficients.values()), "measured": measured}


def _mean_speed(samples: Sequence[SpeedSample]) -> float:
    """All steps by all seconds."""
    steps = sum(sample.n_steps for sample in samples)
    return steps / sum(sample.n_steps / sample.steps_per_second for sample in samples)


def _type_speeds(model: SpeedModel, samples: Sequence[SpeedSample], usual: str | None) -> dict[str, float]:
    """How many times as fast as on the usual type, for each type that it was measured on."""
    logs: dict[str, list[float]] = {}
    for sample in samples:
        if sample.gpu_type is not None:
            expected = float(model.predict([sample.workers], [max(sample.servers, 1)])[0])
            logs.setdefault(sample.gpu_type, []).append(float(np.log(sample.steps_per_second / expected)))
    return {kind: 1.0 if kind == usual else float(np.exp(fmean(values))) for kind, values in sorted(logs.items())}


def _losses(history: JobHistory) -> list[list[float]]:
    """[step, loss], without what is not finite, or so large that no trace holds it."""
    steps, losses = history.losses.points()
    points = [[step, loss] for step, loss in zip(steps, losses, strict=True) if abs(loss) <= MAX_TRACED_LOSS]
    if len(points) <= MAX_LOSSES:
        return points
    picked = np.unique(np.geomspace(1, len(points), MAX_LOSSES).astype(int) - 1)
    return [points[number] for number in picked]
