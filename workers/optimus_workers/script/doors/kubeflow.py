"""Kubeflow's progress protocol (KEP-2779), which transformers 5 speaks when `KUBEFLOW_TRAINER_SERVER_URL` is set. Pure.

Its progress in percent and its remaining seconds are estimates that are wrong after a resume; only the counts are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optimus_contract.limits import MAX_COUNT
from optimus_workers.script.reading import Door, Reading


def reading(document: Mapping[str, Any], at: float) -> Reading | None:
    """What one status update says; None: nothing of use. `at`: POSIX seconds."""
    status = document.get("trainerStatus")
    listed = status.get("metrics") if isinstance(status, Mapping) else None
    values: dict[str, float] = {}
    for each in listed if isinstance(listed, list) else []:
        name, text = (each.get("name"), each.get("value")) if isinstance(each, Mapping) else (None, None)
        try:
            values[str(name)] = float(text)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
    step, total = _count(values.pop("current_step", None)), _count(values.pop("total_steps", None))
    found = Reading(
        door=Door.KUBEFLOW,
        at=at,
        step=step,
        total_steps=total or None,
        loss=values.pop("loss", None),
        learning_rate=values.pop("learning_rate", None),
        gradient_norm=values.pop("grad_norm", None),
        epoch=values.pop("epoch", None),
        metrics={name: value for name, value in values.items() if math.isfinite(value)},
    )
    return found if (step, found.total_steps, found.loss) != (None, None, None) else None


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value <= MAX_COUNT else None
