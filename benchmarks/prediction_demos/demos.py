"""The demos: which jobs are submitted when."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimus_cli.demo.run import SCRIPTS

_LOOP = Path(__file__).with_name("plain_loop.py")


@dataclass(frozen=True)
class Arrival:
    """A job that is submitted."""

    spec: Mapping[str, Any]
    at_seconds: float | None
    """Since the begin of the demo; None: when all before it have ended."""
    is_shown: bool = True
    """Whether the picture and the figures have it."""


@dataclass(frozen=True)
class Demo:
    """Jobs, and the options of `optimus serve` beside its own."""

    title: str
    arrivals: Sequence[Arrival]
    serve: Sequence[str] = ()


def repeated(directory: Path) -> Demo:
    """The same job five times, each when the one before has ended; the service as it is without options."""
    del directory
    spec = _perceptron({"loss_decrease": {"below": 0.01}, "max_epochs": 200}, workers_max=2)
    arrivals = [Arrival({"name": f"repeated-{number}"} | spec, None) for number in range(1, 6)]
    return Demo("the same job five times", arrivals)


def queue(directory: Path) -> Demo:
    """Six jobs of three kinds on four slots: the later ones wait."""
    falls = {"loss_decrease": {"below": 0.01}, "max_epochs": 200}
    arrivals = []
    for number in (1, 2):
        at = 20.0 * (number - 1)
        servers = _perceptron(falls, workers_max=2) | {"name": f"servers-{number}"}
        arrivals += [
            Arrival(servers, at),
            Arrival(_all_reduce(f"all-reduce-{number}", directory, steps=1200), at + 4.0),
            Arrival(_loop(f"loop-{number}", directory, steps=4000), at + 8.0),
        ]
    return Demo("six jobs on four slots", arrivals, _few_slots())


def changing(directory: Path) -> Demo:
    """A long all-reduce job on four slots; others come after half a minute and after two minutes, and go again."""
    falls = {"loss_decrease": {"below": 0.01}, "max_epochs": 100}
    others = [
        Arrival(_perceptron(falls, workers_max=2) | {"name": "first-guest"}, 40.0, is_shown=False),
        Arrival(_loop("second-guest", directory, steps=3000), 50.0, is_shown=False),
        Arrival(_perceptron(falls, workers_max=2) | {"name": "third-guest"}, 150.0, is_shown=False),
    ]
    long = Arrival(_all_reduce("long", directory, steps=6000, workers_max=4), 0.0)
    return Demo("one job while others come and go", [long, *others], _few_slots())


DEMOS = {"repeated": repeated, "queue": queue, "changing": changing}


def _few_slots() -> tuple[str, ...]:
    """Jobs of a minute need rounds of seconds, as in `optimus demo`."""
    return ("--slots", "4", "--round-seconds", "3.5")


def _perceptron(convergence: Mapping[str, Any], *, workers_max: int) -> dict[str, Any]:
    """With parameter servers."""
    task = "optimus_workers.zoo.digits:mlp"
    return {"task": task, "convergence": dict(convergence), "workers": {"max": workers_max}}


def _all_reduce(name: str, directory: Path, *, steps: int, workers_max: int = 2) -> dict[str, Any]:
    """A script with DistributedDataParallel that goes on from its own snapshot."""
    command = ["torchrun", str(SCRIPTS / "ddp.py"), "--steps", str(steps), "--snapshot", f"{name}.pt"]
    sizes = {"workers": {"min": 1, "max": workers_max}, "resumes": True}
    return _script(name, command, directory) | sizes


def _loop(name: str, directory: Path, *, steps: int) -> dict[str, Any]:
    return _script(name, ["python", str(_LOOP), "--steps", str(steps)], directory)


def _script(name: str, command: Sequence[str], directory: Path) -> dict[str, Any]:
    return {"name": name, "command": list(command), "working_directory": str(directory), "python": sys.executable}
