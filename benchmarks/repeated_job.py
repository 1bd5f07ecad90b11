"""How true a live job's time left is when it is submitted again and again: a real service on this machine.

    python -m benchmarks.repeated_job [--jobs 5] [--task optimus_workers.zoo.digits:mlp] [--loss-decrease 0.01]
                                      [--max-epochs 200] [--port 8497] [--poll-seconds 2]

Starts `optimus serve` with a data directory of its own, submits the same job several times in a row, each when the one
before has ended, and reads its status until it has ended. One JSON object for each job on stdout: what was said of the
steps and of the seconds that were left, by what came. `low` and `high` are the least and the largest ratio (said by
true) from a tenth of the life on to where a twentieth is left; the bar is 0.5 to 2. `held` is the part of the 80 %
intervals that held. Life is counted in steps for steps and in seconds for seconds: on a machine that is busy with other
things the speed of a job varies, which no forecast of its steps knows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from optimus_client import Client, Unreachable
from optimus_client.answers import Interval, Job

_FROM, _TO = 0.1, 0.95
"""Parts of a life between which the ratio is judged: at the very end one step more is twice as many."""
_PARTS = (0.1, 0.25, 0.5, 0.75)


class Said(NamedTuple):
    """One status of the job."""

    at: float
    step: int
    steps: Interval | None
    seconds: Interval | None


class Judged(NamedTuple):
    """What was said of what was left, beside what came."""

    life: float
    ratio: float
    held: bool


@contextmanager
def serving(port: int) -> Iterator[Client]:
    """A service on this machine for as long as the context lasts, with rounds as `optimus serve` has them."""
    with tempfile.TemporaryDirectory(prefix="optimus-repeated-") as folder:
        words = ["-m", "optimus_cli", "serve", "--port", str(port), "--data-directory", folder, "--stop-tasks"]
        with (Path(folder) / "serve.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT)
        client = Client(f"http://127.0.0.1:{port}")
        try:
            _wait_for(client, process)
            yield client
        finally:
            process.terminate()
            process.wait()


def _wait_for(client: Client, process: subprocess.Popen[bytes]) -> None:
    while True:
        try:
            client.list()
            return
        except Unreachable:
            if process.poll() is not None:
                raise SystemExit(f"the service ended with {process.returncode}: is its port free?") from None
            time.sleep(0.2)


def watch(client: Client, spec: Mapping[str, Any], poll_seconds: float) -> tuple[list[Said], Job]:
    """Submit a job and read what is said of it until it has ended; with its last status."""
    job_id = client.submit(spec).id
    said: list[Said] = []
    while True:
        status = client.get(job_id)
        if status.finished_at is not None:
            return said, status
        said.append(Said(time.time(), status.step, status.remaining_steps, status.remaining_seconds))
        time.sleep(poll_seconds)


def judged(said: Sequence[Said], ended_at: float, total_steps: int) -> dict[str, list[Judged]]:
    """Of steps and seconds: each status in which something was said, beside what was left in truth."""
    begun_at = said[0].at if said else ended_at
    found: dict[str, list[Judged]] = {"steps": [], "seconds": []}
    for each in said:
        if each.steps is not None and each.step < total_steps:
            found["steps"].append(_one(each.step / total_steps, each.steps, total_steps - each.step))
        if each.seconds is not None and each.at < ended_at:
            life = (each.at - begun_at) / max(ended_at - begun_at, 1.0)
            found["seconds"].append(_one(life, each.seconds, ended_at - each.at))
    return found


def _one(life: float, said: Interval, true: float) -> Judged:
    """Exact to one step, and to one second."""
    low, high = said.low or 0.0, float("inf") if said.high is None else said.high
    return Judged(life, (said.mean or 0.0) / true, low - 1.0 <= true <= high + 1.0)


def figures(judged: Sequence[Judged]) -> dict[str, Any]:
    """How far off what was said was, in the part of the life that is judged."""
    those = [each for each in judged if _FROM <= each.life <= _TO]
    if not those:
        return {"judged": 0}
    at = {part: next((each.ratio for each in those if each.life >= part), None) for part in _PARTS}
    return {
        "judged": len(those),
        "low": min(each.ratio for each in those),
        "high": max(each.ratio for each in those),
        "median": median(each.ratio for each in those),
        "beyond_bar": sum(not 0.5 <= each.ratio <= 2.0 for each in those),
        "held": sum(each.held for each in those) / len(those),
        "at": {f"{part:.0%}": ratio for part, ratio in at.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--task", default="optimus_workers.zoo.digits:mlp")
    parser.add_argument("--loss-decrease", type=float, default=0.01)
    parser.add_argument("--max-epochs", type=float, default=200.0)
    parser.add_argument("--workers-max", type=int, default=2)
    parser.add_argument("--port", type=int, default=8497)
    parser.add_argument("--poll-seconds", type=float, default=2.0)
    options = parser.parse_args(arguments)
    convergence = {"loss_decrease": {"below": options.loss_decrease}, "max_epochs": options.max_epochs}
    spec = {"task": options.task, "convergence": convergence, "workers": {"max": options.workers_max}}
    with serving(options.port) as client:
        for number in range(1, options.jobs + 1):
            load = os.getloadavg()[0]
            said, last = watch(client, spec | {"name": f"repeated-{number}"}, options.poll_seconds)
            ended_at = last.finished_at.timestamp() if last.finished_at is not None else time.time()
            found = judged(said, ended_at, last.step)
            row: dict[str, Any] = {"job": number, "state": last.state, "steps": last.step, "load_before": load}
            row["seconds"] = last.body["jct_seconds"]
            row |= {f"{kind}_left": figures(those) for kind, those in found.items()}
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
