"""The learning rates that a task is to have, by its own schedule."""

from __future__ import annotations

import logging
import math

from optimus_contract.job import JobSpec
from optimus_contract.result import PlannedRates
from optimus_workers.service_client import ServiceClient
from optimus_workers.task.definition import TrainingTask
from optimus_workers.telemetry.planned_rates import planned, sampled_steps, send_planned_rates

log = logging.getLogger(__name__)

UNLIMITED_EPOCHS = 300.0
"""How far a schedule is looked at whose job has no limit of steps or epochs."""


def report_planned_rates(task: TrainingTask, spec: JobSpec, client: ServiceClient) -> None:
    """Tell the service what the schedule says for all steps to come; sent in the background."""
    plan = planned_rates(task, spec)
    if plan is not None:
        send_planned_rates(plan, client.put_planned_rates)


def planned_rates(task: TrainingTask, spec: JobSpec) -> PlannedRates | None:
    """By steps of the base batch; None when it cannot be found out, or depends on the loss. What a larger batch
    multiplies is not in it."""
    if task.plateau is not None:
        return None
    end = 1 if task.learning_rate_at is None else _last_step(task, spec)
    try:
        return planned([(step, float(task.learning_rate(step))) for step in sampled_steps(0, end)])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may refuse steps that never come
        log.info("the planned learning rates are not told: %s: %s", type(error).__name__, error)
        return None


def _last_step(task: TrainingTask, spec: JobSpec) -> int:
    """Steps after which the job ends at the latest, or how far ahead its schedule is looked at."""
    rule = spec.convergence
    epochs = rule.max_epochs
    if epochs is None and rule.max_steps is None:
        epochs = UNLIMITED_EPOCHS
    limits = [float(rule.max_steps)] if rule.max_steps is not None else []
    if epochs is not None:
        limits.append(epochs * task.steps_per_epoch)
    return max(1, math.ceil(min(limits)))
