"""From what is stored of a job's specification to what decisions depend on.

A stored document is not a request: an older or newer release may have written it, by other rules than those for new
jobs (`optimus_service.contract`). So what it does not say has its default, fields that are not known here are left
alone, and only what nothing can be decided by is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from optimus_contract.job import deadline_moment
from optimus_models.speed.elastic_batch import ElasticBatch
from optimus_scheduler.forecast.gpu_types import ANY_GPU
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    JobSpec,
    MetricTarget,
    Mode,
    Resources,
    TaskDemand,
)
from optimus_service.store.records import JobRecord

_MEMORY_BYTES = 512 * 2**20
_MOST_TASKS = 16
_USUAL_RULE: Mapping[str, Any] = {"loss_decrease": {"below": 0.01}, "max_epochs": 100}
"""Defaults of the specification (`optimus_contract.job.JobSpec`): a test compares them."""


class UnreadableSpecification(Exception):
    """Nothing can be decided about a job by what is stored of its specification."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"the stored specification of job {job_id} cannot be read: {why}")
        self.job_id = job_id
        self.why = why


def spec_of(job: JobRecord) -> JobSpec:
    """The job's specification; the batch size is the reported one where the owner left it to the task.

    Raises:
        UnreadableSpecification: the message names the field.
    """
    try:
        return _spec(job.spec, job)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableSpecification(job.id, str(error)) from error


def readable_spec(job: JobRecord) -> JobSpec | None:
    """The same for who shows many jobs: None where it cannot be read."""
    try:
        return spec_of(job)
    except UnreadableSpecification:
        return None


def readable(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Those of the jobs whose specification can be read."""
    return [job for job in jobs if readable_spec(job) is not None]


def environment_of(job: JobRecord) -> dict[str, str]:
    """The variables that the owner gives to the tasks."""
    return {str(name): str(value) for name, value in _object(job.spec, "environment").items()}


def on_type(resources: Resources, gpu_type: str | None) -> Resources:
    """The same amount with GPUs of this type; None: as it is."""
    if gpu_type is None or not resources.gpus:
        return resources
    return replace(resources, gpus={gpu_type: sum(resources.gpus.values())})


def _spec(document: Mapping[str, Any], job: JobRecord) -> JobSpec:
    task = document.get("task")
    if not isinstance(task, str) or not task:
        raise ValueError("task is missing")
    reported: dict[str, Any] = job.profile or {}
    elastic = _elastic(_object(document, "elastic_batch"))
    architecture = Architecture(document.get("architecture") or "ps")
    types = _names(document, "gpu_types")
    named = types[0] if types else ANY_GPU
    batch = _whole(document, "global_batch_size", None, 1)
    return JobSpec(
        worker=_demand(document, "workers", named, 1, _MOST_TASKS),
        server=_demand(document, "servers", named, *((0, 0) if architecture is Architecture.ALLREDUCE else (1, 16))),
        convergence=rule_from(_object(document, "convergence") or _USUAL_RULE),
        mode=Mode(document.get("mode") or "sync"),
        architecture=architecture,
        global_batch_size=batch or (elastic and elastic.minimum) or reported.get("global_batch_size"),
        priority=_above_zero(document, "priority") or 1.0,
        family=task,
        project=str(document.get("project") or "default"),
        gpu_types=types,
        deadline_at=deadline_of(document, job.created_at),
        elastic_batch=elastic,
    )


def rule_from(document: Mapping[str, Any]) -> ConvergenceRule:
    """The rule in a stored specification. Raises `ValueError`."""
    decrease, metric = _object(document, "loss_decrease"), _object(document, "target_metric")
    below = _above_zero(decrease, "below")
    return ConvergenceRule(
        loss_decrease=below,
        relative=decrease.get("relative_to", "previous") == "previous",
        patience_epochs=_whole(decrease, "patience_epochs", 3, 1) or 3,
        target_loss=_number(document, "target_loss"),
        max_steps=_whole(document, "max_steps", None, 1),
        max_epochs=_above_zero(document, "max_epochs"),
        max_seconds=_above_zero(document, "max_seconds"),
        target_metric=_metric(metric) if metric else None,
        max_cost=_above_zero(document, "max_cost"),
    )


def _metric(document: Mapping[str, Any]) -> MetricTarget:
    name, least, most = document.get("name"), _number(document, "at_least"), _number(document, "at_most")
    if not isinstance(name, str) or (least is None) == (most is None):
        raise ValueError(f"target_metric is {dict(document)!r:.200}")
    return MetricTarget(name, least, most, _number(document, "best"))


def _demand(document: Mapping[str, Any], role: str, gpu_type: str, minimum: int, maximum: int) -> TaskDemand:
    demand = _object(document, role)
    needs = _object(demand, "resources")
    cpu, gpus = _number(needs, "cpu"), _whole(needs, "gpus", 0, 0)
    if cpu is not None and cpu < 0:
        raise ValueError(f"{role}.resources.cpu is {cpu}")
    resources = Resources(
        1.0 if cpu is None else float(cpu),
        _whole(needs, "memory_bytes", _MEMORY_BYTES, 0) or 0,
        {gpu_type: gpus} if gpus else {},
    )
    least, most = _whole(demand, "min", minimum, 0) or 0, _whole(demand, "max", maximum, 0) or 0
    if least > most or (role == "workers" and most < 1):
        raise ValueError(f"{role}: min is {least} and max is {most}")
    return TaskDemand(resources, least, most)


def _elastic(document: Mapping[str, Any]) -> ElasticBatch | None:
    if not document:
        return None
    sizes = [_whole(document, name, None, 1) for name in ("minimum", "maximum", "per_pass")]
    least, most, per_pass = (size or 0 for size in sizes)
    return ElasticBatch(least, most, per_pass, _whole(document, "most_passes", 16, 1) or 16)


def deadline_of(document: Mapping[str, Any], created_at: float) -> float | None:
    """When a job that was submitted at `created_at` should be done, POSIX seconds. Raises `ValueError`."""
    if document.get("deadline") is not None:
        return deadline_moment(str(document["deadline"])).timestamp()
    seconds = _number(document, "deadline_seconds")
    return None if seconds is None else created_at + seconds


# --- fields ----------------------------------------------------------------------------------------------------------


def _object(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} is {value!r:.200}, not an object")
    return value or {}


def _names(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = document.get(name) or ()
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} is {value!r:.200}, not a list of names")
    return tuple(value)


def _number(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r:.200}, not a number")
    return value


def _above_zero(document: Mapping[str, Any], name: str) -> float | None:
    value = _number(document, name)
    if value is not None and value <= 0:
        raise ValueError(f"{name} is {value}, not above 0")
    return value


def _whole(document: Mapping[str, Any], name: str, default: int | None, least: int) -> int | None:
    value = _number(document, name)
    if value is None:
        return default
    if value != int(value) or value < least:
        raise ValueError(f"{name} is {value}, not a whole number from {least} on")
    return int(value)
