"""A day in the life of the whole service with many active jobs, on a virtual clock: is anything not flat?

    python -m benchmarks.simulated_day [--jobs 10000] [--hours 24] [--turns 2] [--samples 20] [--viewers 500]

The service of `benchmarks.at_size`, a process of its own, by a virtual clock: its loop, its sweeps of retention and the
look at the queue go by that time. A fifth of the jobs train with 10 tasks each. `--turns` times an hour each of these
posts `--samples` samples over HTTP, a hundredth of all jobs ends (those that train longest), as many are submitted, and
the next round follows: a period of 30 minutes, where the default is one, as a day of those would take hours of this
machine. What is older than a quarter of the time is deleted. Once an hour the calls, and the pages that watch, are
measured.

Prints one JSON object: by hour the processor seconds of the service for a round, a look at the queue, calls and
pages, its memory and the size of its database in MB; of each the mean, and the slope for a day by least squares with
its standard error. The first quarter, in which nothing is old enough to be deleted, is not in the slopes.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
from benchmarks.at_size import CHANGED_PART, Service, begin, memory, newest_round, watched
from benchmarks.restart import submit
from benchmarks.round_statements import a_sample, form_memberships
from benchmarks.soak import slope

from optimus_contract.codec import write
from optimus_contract.telemetry import SampleColumns
from optimus_service.process.connections import raise_descriptor_limit
from optimus_service.process.gc_pause import LongLived
from optimus_service.process.job_tokens import job_tokens_of
from optimus_service.server import Machine
from optimus_service.settings import Settings
from optimus_service.store.engine import create_engine_from_url, upgrade
from optimus_service.store.repository import Repository

HOUR = 3600.0
CONNECTIONS = 8
CALLS = {
    "scrape": "/metrics",
    "list of 50": "/v1/jobs",
    "page of a job": "/v1/jobs/{last}",
    "explanation": "/v1/jobs/{last}/explanation",
}
_STEPS, _STEP_SECONDS = 50, 0.002
"""Of the virtual clock after a round, in which a sweep goes on: it pauses for a thousandth of a second at a time."""
_LOOK_SECONDS = 0.02


class Clock:
    """Time that passes when it is told to; whoever waits by it is woken."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._conditions: list[threading.Condition] = []

    def __call__(self) -> float:
        return self.now

    def condition(self) -> Waits:
        """One to wait at by this clock."""
        made = Waits(self)
        self._conditions.append(made)
        return made

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now += seconds
        for each in self._conditions:
            with each:
                each.notify_all()


class Waits(threading.Condition):
    """A condition whose timeouts are those of a `Clock`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # type: ignore[override]
        """Until the predicate holds, or so much time has passed; what the predicate says then."""
        end = None if timeout is None else self._clock() + timeout
        super().wait_for(lambda: predicate() or (end is not None and self._clock() >= end))
        return predicate()


# --- the process -----------------------------------------------------------------------------------------------------


def make_settings(folder: Path, hours: float, turns: int) -> Settings:
    """The defaults, but for the period of rounds and what is old."""
    return Settings(
        data_directory=folder,
        log_level="error",
        round_seconds=HOUR / turns,
        learning_round_seconds=HOUR / turns,
        keep_seconds=max(60.0, hours * HOUR / 4.0),
        lease_seconds=600.0,  # the database's own time, in which a turn takes long
    )


def serve(settings: Settings, n_jobs: int, pipe: Connection) -> None:
    """What the process does: see `Service.ask`. `round`: time goes on to the next one; its processor seconds."""
    clock = Clock(time.time())
    long_lived = LongLived(clock)
    machine = Machine(monotonic=clock, make_wake_up=clock.condition, after_round=lambda *_: long_lived.settle())
    parts, cluster, port = begin(settings, n_jobs, clock, machine)
    repository = parts.services.repository
    parts.retention.start()
    pipe.send(port)

    def next_round() -> float:
        begun, before = time.process_time(), newest_round(repository)
        clock.advance(settings.round_seconds)
        while (found := newest_round(repository)) is None or (before is not None and found.id == before.id):
            time.sleep(_LOOK_SECONDS)
            clock.advance(1.0)  # the loop may only now wait for what comes close together
        assert found.error is None, found.error
        took = time.process_time() - begun
        for _ in range(_STEPS):
            clock.advance(_STEP_SECONDS)
            time.sleep(_LOOK_SECONDS)
        cluster.launches.clear()  # kept for tests only
        cluster.stopped.clear()
        return took

    def ahead() -> float:
        begun = time.process_time()
        parts.ahead.look()
        return time.process_time() - begun

    answers: dict[str, Callable[[], Any]] = {
        "cpu": time.process_time,
        "memory": memory,
        "now": clock,
        "round": next_round,
        "ahead": ahead,
    }
    while True:
        pipe.send(answers[pipe.recv()]())


# --- those who call it -----------------------------------------------------------------------------------------------


class Workers:
    """The tasks of all jobs that train, as the service hears of them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tokens = job_tokens_of(service.settings)
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self.posted: dict[str, int] = {}
        """Samples that each has told of, those that train longest first."""

    def close(self) -> None:
        """End."""
        self._pool.shutdown()

    def begin(self, at: float) -> None:
        """Jobs that were given tasks begin; those that the service has ended are forgotten."""
        self.posted |= dict.fromkeys(form_memberships(self._service.repository, at), 0)
        active = {job.id for job in self._service.repository.active_jobs()}
        self.posted = {job_id: n for job_id, n in self.posted.items() if job_id in active}

    def post(self, n_samples: int, at: float) -> float:
        """Each tells of so many samples more; seconds of the clock for one post."""

        @cache
        def body(first: int) -> str:
            columns = SampleColumns.of([a_sample(number, at) for number in range(first, first + n_samples)])
            return json.dumps({"columns": write(columns, without_none=True)})

        begun = time.perf_counter()
        self._call("telemetry", [(job_id, body(first)) for job_id, first in self.posted.items()])
        took = time.perf_counter() - begun
        n_posts = max(1, len(self.posted))
        self.posted = {job_id: n + n_samples for job_id, n in self.posted.items()}
        return took / n_posts

    def end(self, n_jobs: int) -> None:
        """So many have done what they should."""
        ended = list(self.posted)[:n_jobs]
        self._call(
            "result", [(each, json.dumps({"outcome": "succeeded", "step": self.posted.pop(each)})) for each in ended]
        )

    def _call(self, what: str, bodies: Sequence[tuple[str, str]]) -> None:
        """One call for each job, over some connections, which are new: the service closes those without calls."""
        parts = [(what, bodies[number::CONNECTIONS]) for number in range(CONNECTIONS)]
        for refused in self._pool.map(self._post, *zip(*parts, strict=True)):
            assert refused == [], refused

    def _post(self, what: str, bodies: Sequence[tuple[str, str]]) -> list[str]:
        """What was wrong."""
        refused = []
        with closing(http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=300)) as own:
            for job_id, body in bodies:
                token = self._tokens.issue(job_id, "nonce")
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                own.request("POST", f"/v1/jobs/{job_id}/{what}", body, headers)
                answer = own.getresponse()
                text = answer.read().decode()
                if answer.status not in (200, 204):
                    refused.append(f"{job_id} {what}: {answer.status} {text}")
        return refused


def megabytes(service: Service) -> float:
    """Of the database's files."""
    return sum(each.stat().st_size for each in service.settings.data_directory.glob("optimus.db*")) / 1e6


def turn(service: Service, workers: Workers, n_samples: int) -> dict[str, float]:
    """What happens between two rounds, and the second of them."""
    now = service.ask("now")
    seconds = workers.post(n_samples, now)
    workers.end(max(1, service.n_jobs // CHANGED_PART))
    n_new = service.n_jobs - len(service.repository.active_jobs())
    submit(service.repository, n_new, service.n_submitted, now)
    service.n_submitted += n_new
    found = {"post of telemetry, of the clock": seconds, "round": service.ask("round")}
    workers.begin(service.ask("now"))
    return found


def hour(service: Service, workers: Workers, options: argparse.Namespace) -> dict[str, float]:
    """The turns of an hour, and a look at everything at its end."""
    turns = [turn(service, workers, options.samples) for _ in range(options.turns)]
    found = {name: statistics.fmean(each[name] for each in turns) for name in turns[0]}
    found["look at the queue ahead"] = service.ask("ahead")
    for name, path in CALLS.items():
        path = path.format(last=f"job-{service.n_submitted - 1:05d}")
        service.get(path)
        found[name] = statistics.median(service.get(path) for _ in range(3))
    found |= asyncio.run(watched(service, options.viewers, 1))
    found["memory"] = service.ask("memory")[0]
    found["database"] = megabytes(service)
    return found


def over_time(values: list[float]) -> dict[str, Any]:
    """By hour; without the first quarter the mean and the slope, in the unit of the values a day."""
    settled = [(number * HOUR, value) for number, value in enumerate(values)][len(values) // 4 :]
    fit = slope(settled, digits=6)
    return {
        "by_hour": [round(value, 4) for value in values],
        "mean": round(statistics.fmean(value for _, value in settled), 4),
        "slope_a_day": None if fit is None else round(24.0 * fit["per_hour"], 4),
        "standard_error": None if fit is None else round(24.0 * fit["standard_error"], 4),
    }


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All figures."""
    settings = make_settings(folder, options.hours, options.turns)
    upgrade(settings.url)
    with closing(Repository(create_engine_from_url(settings.url))) as repository:
        submit(repository, options.jobs, at=time.time() - HOUR)
    begun = time.perf_counter()
    with closing(Service(settings, options.jobs, serve)) as service, closing(Workers(service)) as workers:
        service.ask("round")
        workers.begin(service.ask("now"))
        hours = [hour(service, workers, options) for _ in range(round(options.hours))]
        highest, n_ended = service.ask("memory")[1], service.n_submitted - options.jobs
    return {
        "jobs": options.jobs,
        "hours": len(hours),
        "rounds_an_hour": options.turns,
        "training": len(workers.posted),
        "ended": n_ended,
        "minutes": round((time.perf_counter() - begun) / 60, 1),
        "load": round(os.getloadavg()[0], 1),
        "memory_highest": highest,
        "figures": {name: over_time([each[name] for each in hours]) for name in hours[0]},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--turns", type=int, default=2, help="rounds an hour")
    parser.add_argument("--samples", type=int, default=20, help="of each job that trains, in each turn")
    parser.add_argument("--viewers", type=int, default=500)
    options = parser.parse_args()
    raise_descriptor_limit()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options, Path(folder))))


if __name__ == "__main__":
    main()
