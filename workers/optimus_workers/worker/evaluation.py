"""Evaluation while a job trains: by one worker, after every so many epochs, for rules about a metric.

The others wait for it at the next step, so its time is the job's; the speed that is reported does not contain it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

import torch
from torch import nn

from optimus_contract.job import JobSpec
from optimus_contract.limits import MAX_METRICS
from optimus_workers.errors import SpecificationError, TaskError
from optimus_workers.task.definition import TrainingTask
from optimus_workers.worker.device import called_from_anywhere
from optimus_workers.worker.flat_model import FlatModel

EVALUATING_RANK = 0
MAX_REPORTED_NAME_CHARACTERS = 100
_DEFAULT_EPOCHS = 1.0
"""Period of a job whose convergence rule is about a metric."""


class Evaluations:
    """Knows when the next evaluation is due. Counts whole periods, so that none is missed or made twice."""

    def __init__(self, spec: JobSpec) -> None:
        target = spec.convergence.target_metric
        self.target_name: str | None = target.name if target else None
        period = spec.evaluate_epochs or (_DEFAULT_EPOCHS if target else None)
        self._period: float = period or math.inf
        self._n_periods = 0

    def check(self, task: TrainingTask) -> None:
        """Raises `SpecificationError` when the job is to end by a metric and its task evaluates nothing."""
        if self.target_name is not None and task.evaluate is None:
            raise SpecificationError(
                f"convergence.target_metric is {self.target_name!r}, but the task has no evaluate function"
            )

    def begin(self, epoch: float) -> None:
        """Training goes on from `epoch` passes over the data."""
        self._n_periods = self._periods(epoch)

    def is_due(self, epoch: float) -> bool:
        """Whether a period ended with this step, after which there are `epoch` passes over the data."""
        n_periods = self._periods(epoch)
        due, self._n_periods = n_periods > self._n_periods, n_periods
        return due

    def metrics(self, task: TrainingTask, flat: FlatModel) -> dict[str, float]:
        """The user's metrics of the model as it is, as many as are reported: that of the rule in any case.

        Raises `SpecificationError` when that one is not among them, and what the user's code raises.
        """
        found = evaluate(task, flat)
        if self.target_name is not None and self.target_name not in found:
            known = ", ".join(sorted(found)) or "nothing"
            close = difflib.get_close_matches(self.target_name, found, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SpecificationError(
                f"convergence.target_metric is {self.target_name!r}, but evaluate gives {known}{hint}"
            )
        names = sorted(found, key=lambda name: name != self.target_name)
        reported = [name for name in names if 0 < len(name) <= MAX_REPORTED_NAME_CHARACTERS]
        return {name: found[name] for name in reported[:MAX_METRICS]}

    def _periods(self, epoch: float) -> int:
        return int(epoch / self._period + 1e-9)


def evaluate(task: TrainingTask, flat: FlatModel) -> dict[str, float]:
    """The user's metrics of the model as it is."""
    model: nn.Module = flat.model
    if task.evaluate is None:
        return {}
    flat.staging.begin()
    try:
        with torch.no_grad(), called_from_anywhere(model):
            flat.write_buffers()
            model.eval()
            return checked_metrics(task.evaluate(model))
    finally:
        flat.staging.end()


# --- what a user's `evaluate` may return -----------------------------------------------------------------------------

MAX_RESULT_METRICS = 100
"""The service takes no more in a result."""
MAX_NAME_CHARACTERS = 1000
"""So that a hundred of them fit one control message (1 MiB) however they are escaped."""
_LISTED = 5
"""Names in an error."""


def checked_metrics(found: object) -> dict[str, float]:
    """The metrics as numbers.

    Raises `TaskError`, which says what is wrong: a result that the service refuses would be lost.
    """
    if not isinstance(found, Mapping):
        raise TaskError(f"evaluate must return a dict of numbers by name, not {type(found).__name__}")
    if len(found) > MAX_RESULT_METRICS:
        names = ", ".join(str(name)[:MAX_NAME_CHARACTERS] for name in list(found)[:_LISTED])
        most = f"at most {MAX_RESULT_METRICS} metrics"
        raise TaskError(f"evaluate must return {most}; it returned {len(found)}: {names}, ...")
    return {_checked_name(name): _number(name, value) for name, value in found.items()}


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise TaskError(f"the names of evaluate's metrics must be strings, not {type(name).__name__} ({name!r})")
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise TaskError(f"the name of a metric must have 1 to {MAX_NAME_CHARACTERS} characters: {name[:100]!r}")
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in name):
        raise TaskError(f"the name of a metric must be text that can be stored, without NUL and surrogates: {name!r}")
    return name


def _number(name: object, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # a number, a tensor of one number, ...
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TaskError(f"the metric {name!r} must be a number: {error}") from error
