"""Demos of what users are told of starts and ends, live on this machine, each with a picture.

    python -m benchmarks.prediction_demos repeated|queue|changing [--out docs/images] [--directory FOLDER]

* `repeated`: the same job five times, one after the other (`digits:mlp`, ended by its loss);
* `queue`: jobs with parameter servers, all-reduce scripts and plain loops on four slots, of which the later ones wait;
* `changing`: one all-reduce job that others take slots from and give them back.

All is done by the commands that users have: `optimus serve`, `optimus submit FILE --dry-run` just before each
`optimus submit FILE`; while jobs are there, what `GET /v1/jobs/{id}` says is read each second, as the page does. At the
end `optimus promises` and `optimus predict JOB --png` write what they say into the folder.

The picture, `predicted-NAME.png`, shows by time since submission when the job was said to start and to end, with 80 %
intervals, beside the true moments. One JSON object a job on stdout: `end` has the ratio of the time left that was said
to the true one (`low`, `median`, `high`), how often it was beyond half to twice, and how often the interval `held`, at
looks from 10 to 95 % of the life, as in `benchmarks.repeated_job`; `start` has how often intervals of the start held
while the job waited, and their error.
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
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.prediction_demos.demos import DEMOS, Arrival, Demo
from benchmarks.prediction_demos.picture import draw
from benchmarks.prediction_demos.told import Look, Told

from optimus_cli.demo.processes import LocalService
from optimus_client import Client
from optimus_client.answers import Interval

_SECONDS_BETWEEN_LOOKS = 1.0
_MAX_SECONDS = 1800.0


class Conductor:
    """Submits the jobs of a demo, and writes down what is said of them."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder, self._client = url, folder, Client(url)
        self.told: dict[str, Told] = {}
        """By job id."""

    def optimus(self, *words: str) -> str:
        """What a command prints. Raises `SystemExit` with its complaint where it fails."""
        environment = os.environ | {"OPTIMUS_URL": self._url}
        command = [sys.executable, "-m", "optimus_cli", *words]
        done = subprocess.run(command, env=environment, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"optimus {' '.join(words)}: {done.stderr}")
        return done.stdout

    def run(self, arrivals: Sequence[Arrival]) -> None:
        """Until all have ended."""
        begin, coming, submissions = time.time(), list(arrivals), list[Future[None]]()
        with ThreadPoolExecutor(1) as beside:  # a dry run takes seconds, in which there is something to see
            while coming or self._training() or not all(each.done() for each in submissions):
                if time.time() - begin > _MAX_SECONDS:
                    raise SystemExit(f"the jobs have not ended after {_MAX_SECONDS:g} s")
                is_idle = not self._training() and all(each.done() for each in submissions)
                while coming and _is_due(coming[0], time.time() - begin, is_idle=is_idle):
                    submissions.append(beside.submit(self._submit, coming.pop(0).spec))
                    is_idle = False
                for job_id in self._training():
                    self._look(job_id)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            for each in submissions:
                each.result()

    def _training(self) -> list[str]:
        """Ids of the jobs that have not ended."""
        return [job_id for job_id, told in list(self.told.items()) if told.ended_at != told.ended_at]

    def _submit(self, spec: Mapping[str, Any]) -> None:
        file = self._folder / f"{spec['name']}.json"
        file.write_text(json.dumps(spec, indent=2))
        preview = json.loads(self.optimus("submit", str(file), "--dry-run", "--json"))
        expected = preview["expected"]
        said = Look(time.time(), _interval(expected["start_seconds"]), _interval(expected["finish_seconds"]), 0)
        job_id = str(json.loads(self.optimus("submit", str(file), "--json"))["id"])
        self.told[job_id] = Told(str(spec["name"]), said, self._client.get(job_id).created_at.timestamp())

    def _look(self, job_id: str) -> None:
        job, told = self._client.get(job_id), self.told[job_id]
        if job.started_at is not None:
            told.started_at = job.started_at.timestamp()
        if job.finished_at is not None:
            told.ended_at = job.finished_at.timestamp()
            if job.state != "succeeded":
                raise SystemExit(f"{told.name} {job.state}: {job.body.get('message')}")
            return
        start = (job.body["expected"] or {}).get("start_seconds")
        told.looks.append(Look(time.time(), _interval(start), job.remaining_seconds, job.body["running"]["workers"]))


def _is_due(arrival: Arrival, elapsed: float, *, is_idle: bool) -> bool:
    return is_idle if arrival.at_seconds is None else arrival.at_seconds <= elapsed


def _interval(said: Mapping[str, Any] | None) -> Interval | None:
    return None if said is None else Interval.of(said)


@contextmanager
def serving(demo: Demo, folder: Path) -> Iterator[Conductor]:
    """`optimus serve` with a data directory of its own, for as long as the context lasts."""
    data = folder / "data"
    data.mkdir()
    service = LocalService(data, folder / "service.log", ("--port", "0", *demo.serve))
    try:
        yield Conductor(service.start(), folder)
    finally:
        service.stop()


def conduct(name: str, folder: Path, picture: Path) -> None:
    """Run one demo, print what came, draw its picture."""
    demo = DEMOS[name](folder)
    shown = {str(each.spec["name"]) for each in demo.arrivals if each.is_shown}
    with serving(demo, folder) as conductor:
        conductor.run(demo.arrivals)
        (folder / "promises.txt").write_text(conductor.optimus("promises"))
        told = {job_id: each for job_id, each in conductor.told.items() if each.name in shown}
        for job_id, each in told.items():
            conductor.optimus("predict", job_id, "--png", str(folder / f"{each.name}.png"))
            print(json.dumps({"demo": name, "load": os.getloadavg()[0]} | each.figures()), flush=True)
    draw(list(told.values()), picture)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", choices=sorted(DEMOS))
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the picture goes")
    parser.add_argument(
        "--directory", type=Path, help="an empty folder for all else, kept; by default removed at the end"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    picture = options.out.resolve() / f"predicted-{options.demo}.png"
    with tempfile.TemporaryDirectory(prefix="optimus-demo-") as temporary:
        folder = (options.directory or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        conduct(options.demo, folder, picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
