"""Kubeflow's progress protocol (KEP-2779), which transformers 5 speaks when `KUBEFLOW_TRAINER_SERVER_URL` is set. Pure.

Its progress in percent and its remaining seconds are estimates that are wrong after a resume; only the counts are used,
and 0 and 100 percent as what they mean: a training begins, or has ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.reading import Channel, Reading, moment

_EVALUATED = ("eval", "test", "val")
"""How names of an evaluation's figures begin; others say what the training itself took."""


NEAR = 0.02
"""How near an estimate of the last step must be to the steps that there were to be, as a part of them."""
MAX_VALUES = 1_000
"""Of one status update."""


class Kubeflow:
    """The status updates of one process. They repeat the last loss until there is another one."""

    def __init__(self) -> None:
        self._loss: float | None = None
        self._newest: tuple[int, float] | None = None
        """The newest step, and how many passes over the data it was."""

    def reading(self, document: Mapping[str, Any], at: float) -> Reading | None:
        """What one status update says; None: nothing of use. `at`: POSIX seconds."""
        values = _values(document)
        step, total = _count(values.pop("current_step", None)), _count(values.pop("total_steps", None))
        loss = values.pop("loss", None)
        passes = values.pop("current_epoch", None)
        if step and passes is not None and 0 < passes < math.inf:
            self._newest = step, passes
        is_new, self._loss = loss != self._loss, loss
        found = Reading(
            channel=Channel.KUBEFLOW,
            at=moment(_time(document), at),
            step=step,
            total_steps=total or None,
            loss=loss if is_new else None,
            learning_rate=values.pop("learning_rate", None),
            gradient_norm=values.pop("grad_norm", None),
            epoch=values.pop("epoch", None),
            progress=_progress(document),
            metrics={
                name: value for name, value in values.items() if name.startswith(_EVALUATED) and math.isfinite(value)
            },
        )
        return found if (step, found.total_steps, loss, found.progress) != (None, None, None, None) else None

    def last_step(self, document: Mapping[str, Any], total: int | None, told: int | None = None) -> int | None:
        """The step at which a training ended, by how far its data was read then; None: it is not known.

        The status that says that it has ended names no step, and comes up to 5 s after the newest that does. `total`:
        the steps that there were to be; an estimate near it is it, as transformers rounds the epoch of a step to 0.01.
        `told`: the newest step that was heard of. A training of less than 5 s tells none.
        """
        values = _values(document)
        passes = values.get("epoch")
        if self._newest is None:
            return None if told else _all_steps(values, total)
        if passes is None or not 0 < passes < math.inf:
            return None
        step, before = self._newest
        found = max(step, _count(round(step * passes / before)) or 0)
        if total is None or step > total:
            return found
        return total if found >= (1 - NEAR) * total else found


def _all_steps(values: Mapping[str, float], total: int | None) -> int | None:
    """The steps of a training that named none before it ended: those that transformers says it made (its seconds and
    its steps per second), or all that there were to be, as it is 100 % done."""
    made = values.get("train_runtime", 0.0) * values.get("train_steps_per_second", 0.0)
    found = _count(round(made)) if 0 < made <= MAX_COUNT else None
    if not found or total is None:
        return found or total
    return total if found >= (1 - NEAR) * total else found


def objection(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Which field of a status update is wrong, and what it must be; None: none is."""
    status = document.get("trainerStatus")
    if not isinstance(status, Mapping):
        return "trainerStatus", "must be an object (Kubeflow's progress protocol, KEP-2779)"
    metrics = status.get("metrics")
    if metrics is None:
        return None
    if not isinstance(metrics, list) or len(metrics) > MAX_VALUES:
        return "trainerStatus.metrics", f"must be a list of {MAX_VALUES:,} objects at most"
    for index, each in enumerate(metrics):
        if not isinstance(each, Mapping) or not isinstance(each.get("name"), str):
            return f"trainerStatus.metrics.{index}", "must be an object with a name and a value"
        if _number(each.get("value")) is None:
            return f"trainerStatus.metrics.{index}.value", "must be a number, or one as text"
    return None


def _values(document: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among its metrics."""
    status = document.get("trainerStatus")
    listed = status.get("metrics") if isinstance(status, Mapping) else None
    found: dict[str, float] = {}
    for each in listed if isinstance(listed, list) else []:
        value = _number(each.get("value")) if isinstance(each, Mapping) else None
        if value is not None:
            found[str(each.get("name"))[:200]] = value
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _progress(document: Mapping[str, Any]) -> float | None:
    """0 to 1."""
    status = document.get("trainerStatus")
    value = _number(status.get("progressPercentage")) if isinstance(status, Mapping) else None
    return value / 100 if value is not None and 0 <= value <= 100 else None


def _time(document: Mapping[str, Any]) -> float | None:
    """POSIX seconds of the sender's clock."""
    status = document.get("trainerStatus")
    text = status.get("lastUpdatedTime") if isinstance(status, Mapping) else None
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError, OSError):
        return None


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value <= MAX_COUNT else None
