"""The jobs of a random day. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

SCRIPTS = Path(__file__).with_name("scripts")
HANG_SECONDS = 15.0

Spec = Mapping[str, Any]


def random_job(random: Random, number: int) -> Spec:
    """One of the kinds that a day has: tasks with rules and limits; scripts that end, fail, hang, stop early, are
    silent or have a limit."""
    choose = random.choice
    kinds: list[Spec] = [
        _task(max_epochs=choose([60, 120, 250]), workers=choose([1, 2, 3]), servers=choose([1, 2])),
        _task(loss_decrease=0.01, max_epochs=200),
        _task(target_loss=choose([0.05, 0.1, 0.2])),
        _task(loss_decrease=0.02, max_epochs=200) | {"mode": "async"},
        _script("ends", "by_steps", "--steps", choose([400, 800, 1500])),
        _script("ends", "by_epochs", "--epochs", choose([20, 40])),
        _script("fails", "by_steps", "--fail-at", 300) | {"retries": choose([0, 1, 2])},
        _script("hangs", "by_steps", "--hang-at", 150) | {"hang_seconds": HANG_SECONDS},
        _script("stops-early", "by_epochs", "--epochs", 60, "--stop-at", 15),
        _script("stops-early", "by_steps", "--steps", 2000, "--stop-at", 400),
        _script("silent", "silent", "--seconds", choose([20, 40])),
        _script("limited", "by_steps", "--steps", 1500) | {"convergence": {"max_steps": choose([300, 5000])}},
    ]
    job = dict(random.choices(kinds, weights=[3, *[1] * (len(kinds) - 1)])[0])
    if random.random() < 0.25:
        job["deadline_seconds"] = choose([60, 90, 150, 240])
    return job | {"name": f"{job['name']}-{number}", "priority": choose([1, 1, 1, 2, 5])}


def kind_of(name: str) -> str:
    """The kind of a job of this name."""
    return name.rpartition("-")[0]


def _task(workers: int = 1, servers: int = 1, **rules: float) -> dict[str, Any]:
    counts = {"workers": {"max": workers}, "servers": {"max": servers}}
    return {"name": "task", "task": "optimus_workers.zoo.digits:mlp", "convergence": rules, **counts}


def _script(kind: str, script: str, *words: object) -> dict[str, Any]:
    command = [sys.executable, f"{script}.py", *map(str, words)]
    return {"name": kind, "command": command, "working_directory": str(SCRIPTS)}
