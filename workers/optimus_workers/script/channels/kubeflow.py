"""Kubeflow's progress protocol (KEP-2779), which transformers 5 speaks when `KUBEFLOW_TRAINER_SERVER_URL` is set. Pure.

Its progress in percent and its remaining seconds are estimates that are wrong after a resume; only the counts are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optimus_contract.limits import MAX_COUNT
from optimus_workers.script.reading import Channel, Reading

_EVALUATED = ("eval", "test", "val")
"""How names of an evaluation's figures begin; others say what the training itself took."""


class Kubeflow:
    """The status updates of one process. They repeat the last loss until there is another one."""

    def __init__(self) -> None:
        self._loss: float | None = None

    def reading(self, document: Mapping[str, Any], at: float) -> Reading | None:
        """What one status update says; None: nothing of use. `at`: POSIX seconds."""
        values = _values(document)
        step, total = _count(values.pop("current_step", None)), _count(values.pop("total_steps", None))
        loss = values.pop("loss", None)
        is_new, self._loss = loss != self._loss, loss
        found = Reading(
            channel=Channel.KUBEFLOW,
            at=at,
            step=step,
            total_steps=total or None,
            loss=loss if is_new else None,
            learning_rate=values.pop("learning_rate", None),
            gradient_norm=values.pop("grad_norm", None),
            epoch=values.pop("epoch", None),
            metrics={
                name: value for name, value in values.items() if name.startswith(_EVALUATED) and math.isfinite(value)
            },
        )
        return found if (step, found.total_steps, loss) != (None, None, None) else None


def _values(document: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among its metrics."""
    status = document.get("trainerStatus")
    listed = status.get("metrics") if isinstance(status, Mapping) else None
    found: dict[str, float] = {}
    for each in listed if isinstance(listed, list) else []:
        name, text = (each.get("name"), each.get("value")) if isinstance(each, Mapping) else (None, None)
        try:
            found[str(name)] = float(text)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    return found


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value <= MAX_COUNT else None
