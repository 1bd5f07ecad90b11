"""From what an owner submitted to what decisions depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optimus_models.elastic_batch import ElasticBatch
from optimus_scheduler.constraints.gpu_types import ANY_GPU
from optimus_scheduler.types import (
    Architecture,
    ConvergenceRule,
    JobSpec,
    MetricTarget,
    Mode,
    Resources,
    TaskDemand,
)
from optimus_service.api.schemas import (
    ConvergenceBody,
    ElasticBatchBody,
    JobSpecBody,
    ResourcesBody,
    TaskDemandBody,
    deadline_moment,
)
from optimus_service.store.records import JobRecord


def spec_of(job: JobRecord) -> JobSpec:
    """The job's specification; the batch size is the reported one where the owner left it to the task."""
    body = JobSpecBody.model_validate(job.spec)
    reported: dict[str, Any] = job.profile or {}
    elastic = body.elastic_batch
    return JobSpec(
        worker=_demand(body.workers, named_type(body)),
        server=_demand(body.servers, named_type(body)),
        convergence=_convergence(body.convergence),
        mode=Mode(body.mode),
        architecture=Architecture(body.architecture),
        global_batch_size=body.global_batch_size or (elastic and elastic.minimum) or reported.get("global_batch_size"),
        priority=body.priority,
        family=body.task,
        project=body.project,
        gpu_types=tuple(body.gpu_types),
        deadline_at=deadline_of(body, job.created_at),
        elastic_batch=None if elastic is None else bounds_of(elastic),
    )


def bounds_of(body: ElasticBatchBody) -> ElasticBatch:
    """What batches may be chosen from."""
    return ElasticBatch(body.minimum, body.maximum, body.per_pass, body.most_passes)


def named_type(body: JobSpecBody) -> str:
    """The GPU type that the job's resources are in, before one is chosen: the first of those that it accepts."""
    return body.gpu_types[0] if body.gpu_types else ANY_GPU


def deadline_of(body: JobSpecBody, created_at: float) -> float | None:
    """When a job that was submitted at `created_at` should be done, POSIX seconds."""
    if body.deadline is not None:
        return deadline_moment(body.deadline).timestamp()
    return None if body.deadline_seconds is None else created_at + body.deadline_seconds


def resources_of(body: ResourcesBody, gpu_type: str | None = None) -> Resources:
    """What one task needs, with GPUs of this type; None: of any."""
    return Resources(body.cpu, body.memory_bytes, {gpu_type or ANY_GPU: body.gpus} if body.gpus else {})


def _demand(body: TaskDemandBody, gpu_type: str) -> TaskDemand:
    return TaskDemand(resources_of(body.resources, gpu_type), body.min, body.max)


def rule_from(document: Mapping[str, Any]) -> ConvergenceRule:
    """The rule in a stored specification."""
    return _convergence(ConvergenceBody.model_validate(document))


def _convergence(body: ConvergenceBody) -> ConvergenceRule:
    metric = body.target_metric
    rule = ConvergenceRule(
        target_loss=body.target_loss,
        max_steps=body.max_steps,
        max_epochs=body.max_epochs,
        max_seconds=body.max_seconds,
        target_metric=None if metric is None else MetricTarget(**metric.model_dump()),
        max_cost=body.max_cost,
    )
    decrease = body.loss_decrease
    if decrease is None:
        return rule
    return replace(
        rule,
        loss_decrease=decrease.below,
        relative=decrease.relative_to == "previous",
        patience_epochs=decrease.patience_epochs,
    )
