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


def arrivals() -> Sequence[Arrival]:
    """The demo's jobs by time of arrival: different networks, modes and convergence rules."""
    limits = {"workers": {"min": 1, "max": 4}, "servers": {"min": 1, "max": 3}, "checkpoint_seconds": 20}
    return (
        Arrival(
            0.0,
            {
                "name": "digits-mlp",
                "task": "optimus_workers.zoo.digits:mlp",
                "mode": "sync",
                "convergence": {"loss_decrease": {"below": 0.01, "patience_epochs": 3}, "max_epochs": 200},
                **limits,
            },
        ),
        Arrival(
            12.0,
            {
                "name": "digits-cnn",
                "task": "optimus_workers.zoo.digits:cnn",
                "mode": "async",
                "convergence": {"target_loss": 0.1, "max_epochs": 60},
                **limits,
            },
        ),
        Arrival(
            24.0,
            {
                "name": "digits-resnet",
                "task": "optimus_workers.zoo.digits:resnet",
                "mode": "sync",
                "convergence": {"max_epochs": 12},
                **limits,
            },
        ),
    )
