"""Evaluation while a job trains: by one worker, after every so many epochs, for rules about a metric.

The others wait for it at the next step, so its time is the job's; the speed that is reported does not contain it.
"""

from __future__ import annotations

import math
from typing import Any

from optimus_workers.errors import TaskError
from optimus_workers.task import TrainingTask
from optimus_workers.worker.compute import evaluate
from optimus_workers.worker.flat import FlatModel

EVALUATING_RANK = 0
MAX_METRICS = 20
"""Figures that are told of one evaluation; the service takes no more."""
MAX_NAME_CHARACTERS = 100
_DEFAULT_EPOCHS = 1.0
"""Period of a job whose convergence rule is about a metric."""


class Evaluations:
    """Knows when the next evaluation is due. Counts whole periods, so that none is missed or made twice."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """`spec`: the submitted `JobSpecBody` as plain values."""
        target = (spec.get("convergence") or {}).get("target_metric")
        self.target_name: str | None = target["name"] if target else None
        period = spec.get("evaluate_epochs") or (_DEFAULT_EPOCHS if target else None)
        self._period: float = period or math.inf
        self._n_periods = 0

    def check(self, task: TrainingTask) -> None:
        """Raises `TaskError` when the job is to end by a metric and its task evaluates nothing."""
        if self.target_name is not None and task.evaluate is None:
            raise TaskError(f"convergence.target_metric is {self.target_name!r}, but the task has no evaluate function")

    def begin(self, epoch: float) -> None:
        """Training goes on from `epoch` passes over the data."""
        self._n_periods = self._periods(epoch)

    def is_due(self, epoch: float) -> bool:
        """Whether a period ended with this step, after which there are `epoch` passes over the data."""
        n_periods = self._periods(epoch)
        due, self._n_periods = n_periods > self._n_periods, n_periods
        return due

    def figures(self, task: TrainingTask, flat: FlatModel) -> dict[str, float]:
        """The user's figures of the model as it is, as many as are told: that of the rule in any case.

        Raises `TaskError` when that one is not among them, and what the user's code raises.
        """
        found = evaluate(task, flat)
        if self.target_name is not None and self.target_name not in found:
            known = ", ".join(sorted(found)) or "nothing"
            raise TaskError(f"convergence.target_metric is {self.target_name!r}, but evaluate gives {known}")
        names = sorted(found, key=lambda name: name != self.target_name)
        told = [name for name in names if 0 < len(name) <= MAX_NAME_CHARACTERS]
        return {name: found[name] for name in told[:MAX_METRICS]}

    def _periods(self, epoch: float) -> int:
        return int(epoch / self._period + 1e-9)
