"""Lives a random day on a service, and writes down each second what every job is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.random_day.jobs import random_job
from benchmarks.random_day.judge import Day, Look

from optimus_client import ApiError, Client

SECONDS_BETWEEN_LOOKS = 1.0
FEW, MANY = 5, 8
"""Active jobs below which another is submitted, and above which none is."""
PAUSES = (4.0, 12.0)
"""Seconds between two acts."""


class Recorder:
    """Reads all jobs each second, and what explains those that have not ended."""

    def __init__(self, url: str) -> None:
        self._client, self._over = Client(url), threading.Event()
        self.day = Day()

    def stop(self) -> None:
        """Let the look that is under way be the last one."""
        self._over.set()

    def run(self) -> None:
        """Look until it is stopped."""
        while True:
            began = time.time()
            for job in self._client.list():
                looks = self.day.looks.setdefault(job.id, [])
                if looks and looks[-1].is_ended:
                    continue
                told = None if job.is_ended else self._client.explain(job.id).body
                looks.append(Look(time.time(), job.body, told))
            if self._over.wait(max(SECONDS_BETWEEN_LOOKS - (time.time() - began), 0.0)):
                return


class Owners:
    """Those who submit, pause, change and cancel."""

    def __init__(self, url: str, seed: int) -> None:
        self._client, self._random, self._n = Client(url), Random(seed), 0
        self.changed: dict[str, float] = {}
        """When each job was last changed, POSIX seconds."""

    def act(self) -> None:
        """Do what somebody does now; what the service refuses (a job has just ended) is left."""
        active = [job for job in self._client.list() if not job.is_ended]
        draw = self._random.random()
        try:
            for job in active:
                if job.body["directive"] == "pause" and self._random.random() < 0.4:
                    self._change(job.id, self._client.resume)
            if len(active) < FEW or (draw < 0.5 and len(active) < MANY):
                self._submit()
            elif draw < 0.7:
                self._change(self._random.choice(active).id, self._random.choice(self._changes()))
        except ApiError as error:
            if error.status >= 500:
                raise

    def _change(self, job_id: str, change: Callable[[str], Any]) -> None:
        change(job_id)
        self.changed[job_id] = time.time()

    def _submit(self) -> None:
        self._n += 1
        spec = random_job(self._random, self._n)
        if self._random.random() < 0.4:
            self._client.plan(spec)
        self._client.submit(spec)

    def _changes(self) -> list[Callable[[str], Any]]:
        client, random = self._client, self._random
        return [
            *[client.pause] * 3,
            client.cancel,
            *[lambda job: client.change(job, priority=random.choice([1, 3, 10]))] * 3,
            *[lambda job: client.change(job, convergence={"max_epochs": random.choice([80, 150, 300])})] * 3,
        ]

    def pause(self) -> float:
        """Seconds until the next act."""
        return self._random.uniform(*PAUSES)


def live(url: str, seed: int, minutes: float) -> Day:
    """A day of so many minutes."""
    recorder, owners = Recorder(url), Owners(url, seed)
    with ThreadPoolExecutor(max_workers=1) as pool:
        looks = pool.submit(recorder.run)
        try:
            ends_at = time.monotonic() + 60.0 * minutes
            while time.monotonic() < ends_at and not looks.done():
                owners.act()
                time.sleep(owners.pause())
        finally:
            recorder.stop()
        looks.result()
    recorder.day.changed = owners.changed
    return recorder.day


def write(day: Day, folder: Path) -> None:
    """`sentences.txt`: every kind of sentence with its first example, to read and judge; `wrong.txt`: what was."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{kind.n} {kind.job} {kind.example}" for kind in day.sentences()]
    (folder / "sentences.txt").write_text("\n".join([*lines, ""]))
    (folder / "wrong.txt").write_text("\n".join([*day.wrong(), ""]))
