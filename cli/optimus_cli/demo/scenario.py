"""The jobs of the demo: three networks that learn scikit-learn's handwritten digits and arrive one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job and when it is submitted, in seconds after the demo's begin."""

    at_seconds: float
    spec: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.spec["name"])


LIMITS: dict[str, Any] = {
    "workers": {"min": 1, "max": 4},
    "servers": {"min": 1, "max": 3},
    "checkpoint_seconds": 20,
}
"""Half of the slots for one job's workers: alone it cannot use everything, together they compete."""


def arrivals() -> Sequence[Arrival]:
    """The demo's jobs by time of arrival: different networks, modes and convergence rules."""
    return (
        _arrival(
            0.0,
            "mlp",
            "sync",
            {"loss_decrease": {"below": 0.005}, "max_epochs": 400},
            learning_rate=0.005,
            momentum=0.0,
        ),
        _arrival(30.0, "cnn", "async", {"target_loss": 0.045, "max_epochs": 200}),
        _arrival(
            60.0, "resnet", "sync", {"loss_decrease": {"below": 0.003, "relative_to": "maximum"}, "max_epochs": 80}
        ),
    )


def _arrival(at_seconds: float, network: str, mode: str, convergence: dict[str, Any], **task_args: float) -> Arrival:
    spec = {
        "name": f"digits-{network}",
        "task": f"optimus_workers.zoo.digits:{network}",
        "task_args": task_args,
        "mode": mode,
        "convergence": convergence,
        **LIMITS,
    }
    return Arrival(at_seconds, spec)
