"""What coordinator and servers must know of a task."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from optimus_workers.parameter_groups import parameter_groups
from optimus_workers.task import TrainingTask
from optimus_workers.wire.values import TaskProfile, UpdateGroup, UpdateRule
from optimus_workers.worker.flat import FlatModel
from optimus_workers.worker.staging import OnePlace, Staging
from optimus_workers.worker.user_code import users


def make_flat(
    task: TrainingTask, model: nn.Module, staging: Callable[[Tensor, Tensor], Staging] = OnePlace
) -> tuple[FlatModel, tuple[UpdateGroup, ...]]:
    """The model as one vector, group by group, and how each group is updated (none: all alike)."""
    groups = parameter_groups(task, model)
    flat = FlatModel(model, [group.parameters for group in groups], staging)
    updates = tuple(
        UpdateGroup(first, end, group.learning_rate_scale, group.weight_decay)
        for group, (first, end) in zip(groups, flat.group_ranges, strict=True)
    )
    is_plain = len(groups) == 1 and (1.0, float(task.optimizer.weight_decay)) == (
        groups[0].learning_rate_scale,
        groups[0].weight_decay,
    )
    return flat, () if is_plain else updates


def task_profile(
    task: TrainingTask, flat: FlatModel, groups: tuple[UpdateGroup, ...] = (), gradient_period: int = 0
) -> TaskProfile:
    """Raises `UserCodeFailed` when the data set does not tell its length."""
    spec = task.optimizer
    rule = UpdateRule(
        kind=spec.kind,
        momentum=float(spec.momentum),
        nesterov=bool(spec.nesterov),
        weight_decay=float(spec.weight_decay),
        betas=(float(spec.betas[0]), float(spec.betas[1])),
        eps=float(spec.eps),
        groups=groups,
        max_gradient_norm=None if spec.max_gradient_norm is None else float(spec.max_gradient_norm),
    )
    return TaskProfile(
        n_parameters=flat.n_parameters,
        parameter_floats=flat.parameter_floats,
        total_floats=flat.total_floats,
        n_examples=users(lambda: task.n_examples),
        global_batch_size=task.global_batch_size,
        micro_batches=task.micro_batches,
        update=rule,
        gradient_period=gradient_period,
    )
