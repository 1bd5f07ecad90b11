"""The jobs of the demo: three networks that learn scikit-learn's handwritten digits and arrive one after the other; or,
with scripts, two trainings that know nothing of Optimus beside one of these."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from optimus_cli.errors import BadInput


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


SCRIPTS = Path(__file__).with_name("scripts")
NEEDED = ("torch", "transformers", "accelerate")
"""What the scripts import; the Trainer of transformers needs accelerate."""


def check_scripts_can_run() -> None:
    """Raise `BadInput` if a library that the demo's scripts import is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise BadInput(f"the demo's scripts import {', '.join(missing)}: pip install {' '.join(missing)}")


def script_arrivals(directory: Path) -> Sequence[Arrival]:
    """The demo's jobs with scripts; these are copied to `directory`, and run there as their owner would run them."""
    shutil.copytree(SCRIPTS, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return (
        _script(0.0, "hugging-face", directory, "hugging_face.py", "--output-dir", "hugging-face-out"),
        _script(25.0, "ddp", directory, "ddp.py", "--snapshot", "snapshot.pt"),
        _arrival(
            50.0,
            "mlp",
            "sync",
            {"loss_decrease": {"below": 0.005}, "max_epochs": 150},
            learning_rate=0.005,
            momentum=0.0,
        ),
    )


def _script(at_seconds: float, name: str, directory: Path, *words: str) -> Arrival:
    spec = {
        "name": name,
        "command": ["torchrun", *words],
        "working_directory": str(directory),
        "python": sys.executable,
        "resumes": True,
        "workers": {"min": 1, "max": 4},
    }
    return Arrival(at_seconds, spec)


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
