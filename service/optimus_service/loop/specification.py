"""From what an owner submitted to what decisions depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from optimus_scheduler.types import (
    Architecture,
    ConvergenceRule,
    JobSpec,
    MetricTarget,
    Mode,
    Resources,
    TaskDemand,
)
from optimus_service.api.schemas import ConvergenceBody, JobSpecBody, ResourcesBody, TaskDemandBody
from optimus_service.store.records import JobRecord

GPU = "gpu"
"""The one GPU type of a cluster that does not tell its GPUs apart."""


def spec_of(job: JobRecord) -> JobSpec:
    """The job's specification; the batch size is the reported one where the owner left it to the task."""
    body = JobSpecBody.model_validate(job.spec)
    reported: dict[str, Any] = job.profile or {}
    return JobSpec(
        worker=_demand(body.workers),
        server=_demand(body.servers),
        convergence=_convergence(body.convergence),
        mode=Mode(body.mode),
        architecture=Architecture(body.architecture),
        global_batch_size=body.global_batch_size or reported.get("global_batch_size"),
        priority=body.priority,
        family=body.task,
        project=body.project,
    )


def resources_of(body: ResourcesBody) -> Resources:
    """What one task needs."""
    return Resources(body.cpu, body.memory_bytes, {GPU: body.gpus} if body.gpus else {})


def _demand(body: TaskDemandBody) -> TaskDemand:
    return TaskDemand(resources_of(body.resources), body.min, body.max)


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
