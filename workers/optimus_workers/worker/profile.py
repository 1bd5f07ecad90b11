"""What coordinator and servers must know of a task."""

from __future__ import annotations

from optimus_workers.task import TrainingTask
from optimus_workers.wire.messages import TaskProfile, UpdateRule
from optimus_workers.worker.flat import FlatModel
from optimus_workers.worker.user_code import users


def task_profile(task: TrainingTask, flat: FlatModel) -> TaskProfile:
    """Raises `UserCodeFailed` when the data set does not tell its length."""
    spec = task.optimizer
    betas = (float(spec.betas[0]), float(spec.betas[1]))
    rule = UpdateRule(
        spec.kind, float(spec.momentum), bool(spec.nesterov), float(spec.weight_decay), betas, float(spec.eps)
    )
    return TaskProfile(
        n_parameters=flat.n_parameters,
        parameter_floats=flat.parameter_floats,
        total_floats=flat.total_floats,
        n_examples=users(lambda: task.n_examples),
        global_batch_size=task.global_batch_size,
        micro_batches=task.micro_batches,
        update=rule,
    )
