"""A day in the life of the whole service with many active jobs, on a virtual clock: is anything not flat?

    python -m benchmarks.simulated_day [--jobs 10000] [--hours 24] [--turns 1] [--samples 20] [--viewers 500]

The service of `benchmarks.at_size`, a process of its own, by a virtual clock: its loop, its sweeps of retention and the
look at the queue go by that time. A fifth of the jobs have tasks, 10 each, as the policy wants it. `--turns` times an
hour each of these posts `--samples` samples over HTTP, a hundredth of all jobs ends (those that trained longest), as
many are submitted, the next round follows, and jobs that have other tasks than before report their memberships. So a
round comes each hour, where the default is one minute: a day of those would take this machine hours. What is older than
a quarter of the time is deleted. After each eighth of the time (an hour at least) the calls, a dry run, and the pages
that watch, are measured.

Prints one JSON object: by eighths the processor seconds of the service for a round, a look at the queue, calls and
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
from benchmarks.at_size import CHANGED_PART, DRY_RUN, Service, begin, memory, newest_round, watched
from benchmarks.restart import submit
from benchmarks.round_statements import a_sample
from benchmarks.soak import slope

from optimus_contract.codec import write
from optimus_contract.telemetry import Sample, SampleColumns
from optimus_scheduler.model import Directive, Role
from optimus_service.process.connections import raise_descriptor_limit
from optimus_service.process.gc_pause import LongLived
from optimus_service.process.job_tokens import job_tokens_of
from optimus_service.server import Machine
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import Repository

HOUR = 3600.0
LOOKS = 8
CONNECTIONS = 8
MEMBERS = (Role.WORKER, Role.SERVER)
PROFILE = json.dumps({"n_parameters": 10, "n_examples": 57_600, "global_batch_size": 32, "steps_per_epoch": 1800.0})
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
    parts, _, port = begin(settings, n_jobs, clock, machine)
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
    """The tasks of all jobs that have some, as the service hears of them."""

    def __init__(self, service: Service, seconds: float) -> None:
        """`seconds` of virtual time pass between two posts of a job."""
        self._service = service
        self._seconds = seconds
        self._tokens = job_tokens_of(service.settings)
        self._pool = ThreadPoolExecutor(CONNECTIONS)
        self._generations: dict[str, int] = {}
        self.training: dict[str, JobRecord] = {}
        """Those that train, the oldest first."""
        self.posted: Counter[str] = Counter()
        """Samples that each has told of."""

    def close(self) -> None:
        """End."""
        self._pool.shutdown()

    def begin(self, at: float) -> int:
        """Jobs with new tasks form their memberships; those that are to stop stop, those that are done end. How many
        of them have another membership."""
        active = self._service.repository.jobs.active()
        self._call("POST", "result", {job.id: _ended(job) for job in active if job.directive is Directive.FINISH})
        have = [job for job in active if not job.wanted.is_empty and job.directive is Directive.RUN]
        moved = [job for job in have if self._generations.get(job.id) != job.generation]
        self._call("PUT", "profile", {job.id: PROFILE for job in moved if not job.membership_epoch})
        self._call("POST", "membership", {job.id: self._membership(job, at) for job in moved})
        now = self._service.repository.jobs.by_id([job.id for job in have])
        self.training = {job.id: now[job.id] for job in have}
        self._generations = {job.id: job.generation for job in have}
        return len(moved)

    def _membership(self, job: JobRecord, at: float) -> str:
        tasks = self._service.repository.wanted.get(job.id).tasks
        workers, servers = ([task.key.name for task in tasks if task.key.role is each] for each in MEMBERS)
        epoch, cause = job.membership_epoch + 1, "rescale" if job.membership_epoch else "start"
        report = {"epoch": epoch, "generation": job.generation, "at": at, "step": job.step, "cause": cause}
        return json.dumps(report | {"workers": workers, "servers": servers, "pause_seconds": 5.0})

    def post(self, n_samples: int, at: float) -> float:
        """Each tells of so many samples more; seconds of the clock for one post."""

        @cache
        def body(first: int, epoch: int) -> str:
            numbers = range(first, first + n_samples)
            columns = SampleColumns.of([_sample(number, epoch, at, self._seconds / n_samples) for number in numbers])
            return json.dumps({"columns": write(columns, without_none=True)})

        begun, training = time.perf_counter(), self.training.values()
        bodies = {job.id: body(self.posted[job.id], job.membership_epoch) for job in training}
        self._call("POST", "telemetry", bodies)
        self.posted.update(dict.fromkeys(bodies, n_samples))
        return (time.perf_counter() - begun) / max(1, len(bodies))

    def end(self, n_jobs: int) -> None:
        """So many, which trained longest, have done what they should."""
        oldest = sorted(self.training.values(), key=lambda job: (-self.posted[job.id], job.id))[:n_jobs]
        self._call("POST", "result", {job.id: _ended(job) for job in oldest})

    def _call(self, method: str, what: str, bodies: Mapping[str, str]) -> None:
        """One call for each job, over some connections, which are new: the service closes those without calls."""
        every = list(bodies.items())
        parts = [(method, what, every[number::CONNECTIONS]) for number in range(CONNECTIONS)]
        for refused in self._pool.map(self._send, *zip(*parts, strict=True)):
            assert refused == [], refused

    def _send(self, method: str, what: str, bodies: Sequence[tuple[str, str]]) -> list[str]:
        """What was wrong."""
        refused = []
        with closing(http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=300)) as own:
            for job_id, body in bodies:
                token = self._tokens.issue(job_id, "nonce")
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                own.request(method, f"/v1/jobs/{job_id}/{what}", body, headers)
                answer = own.getresponse()
                text = answer.read().decode()
                if answer.status not in (200, 204):
                    refused.append(f"{job_id} {what}: {answer.status} {text}")
        return refused


def _ended(job: JobRecord) -> str:
    return json.dumps({"outcome": "succeeded", "step": job.step})


def _sample(number: int, epoch: int, at: float, seconds: float) -> Sample:
    """So many seconds of steps of a second each; 20 samples are an epoch."""
    n_steps = max(1, round(seconds))
    told = a_sample(number, at)
    return replace(
        told,
        membership_epoch=epoch,
        step=told.step * n_steps,
        n_steps=n_steps,
        n_examples=told.n_examples * n_steps,
        seconds=seconds,
    )


def megabytes(service: Service) -> float:
    """Of the database's files."""
    return sum(each.stat().st_size for each in service.settings.data_directory.glob("optimus.db*")) / 1e6


def turn(service: Service, workers: Workers, n_samples: int) -> dict[str, float]:
    """What happens between two rounds, and the second of them."""
    now = service.ask("now")
    training = len(workers.training)
    seconds = workers.post(n_samples, now)
    workers.end(max(1, service.n_jobs // CHANGED_PART))
    n_new = service.n_jobs - len(service.repository.jobs.active())
    submit(service.repository, n_new, service.n_submitted, now)
    service.n_submitted += n_new
    found = {"post of telemetry, of the clock": seconds, "round": service.ask("round"), "training": training}
    found["given other tasks"] = workers.begin(service.ask("now"))
    return found


def stretch(service: Service, workers: Workers, options: argparse.Namespace, n_turns: int) -> dict[str, float]:
    """Some turns, and a look at everything at their end."""
    turns = [turn(service, workers, options.samples) for _ in range(n_turns)]
    found = {name: statistics.fmean(each[name] for each in turns) for name in turns[0]}
    found["look at the queue ahead"] = service.ask("ahead")
    for name, path in CALLS.items():
        path = path.format(last=f"job-{service.n_submitted - 1:05d}")
        service.get(path)
        found[name] = statistics.median(service.get(path) for _ in range(3))
    found["dry run"] = service.plan(DRY_RUN)
    found |= asyncio.run(watched(service, options.viewers, 1))
    found["memory"] = service.ask("memory")[0]
    found["database"] = megabytes(service)
    return found


def over_time(values: list[float], hours: float) -> dict[str, Any]:
    """Each value; without the first quarter the mean and the slope, in the unit of the values a day. `hours` lie
    between two values."""
    settled = [(number * hours * HOUR, value) for number, value in enumerate(values)][len(values) // 4 :]
    fit = slope(settled, digits=6)
    return {
        "values": [round(value, 4) for value in values],
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
    with (
        closing(Service(settings, options.jobs, serve)) as service,
        closing(Workers(service, HOUR / options.turns)) as workers,
    ):
        service.ask("round")
        workers.begin(service.ask("now"))
        between = max(1, round(options.hours / LOOKS))
        n_looks = max(1, round(options.hours / between))
        looks = [stretch(service, workers, options, between * options.turns) for _ in range(n_looks)]
        highest, n_ended = service.ask("memory")[1], service.n_submitted - options.jobs
    return {
        "jobs": options.jobs,
        "hours": n_looks * between,
        "rounds_an_hour": options.turns,
        "ended": n_ended,
        "minutes": round((time.perf_counter() - begun) / 60, 1),
        "load": round(os.getloadavg()[0], 1),
        "memory_highest": highest,
        "hours_between_values": between,
        "figures": {name: over_time([each[name] for each in looks], between) for name in looks[0]},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--turns", type=int, default=1, help="rounds an hour")
    parser.add_argument("--samples", type=int, default=20, help="of each job that trains, in each turn")
    parser.add_argument("--viewers", type=int, default=500)
    options = parser.parse_args()
    raise_descriptor_limit()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options, Path(folder))))


if __name__ == "__main__":
    main()
