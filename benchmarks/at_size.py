"""What the whole service costs by the number of active jobs: rounds, memory, calls, and pages that watch.

    python -m benchmarks.at_size [--sizes 1000 3000 10000] [--viewers 500] [--turns 3]

The service is a process of its own with all its parts (`server.assemble`) on a cluster in memory, and SQLite in a
temporary folder. A fifth of the jobs have room: they get 10 tasks each and tell of 100 samples. Then come calls, pages
that watch, and turns (`--turns`): in each all of these tell of 10 samples more, a hundredth of all jobs ends, as many
are submitted, and a round follows.

One JSON object is printed: figures by size, and of each the exponent of its growth (0: the same at each size, 1:
proportional), by least squares of the logarithms. What pages wait for is seconds of the clock; all else is processor
seconds of the service. Of a call it is the median of some; "first" is the first one after the start, and before those
that are "changed" a hundredth of all jobs told of a sample. Memory is that of the service's process in MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import re
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import structlog
import uvicorn
from benchmarks.restart import SERVERS, WORKERS, post, submit
from benchmarks.round_statements import form_memberships

from optimus_scheduler.lifecycle import Outcome, ResultReported
from optimus_scheduler.model import Node, Resources, TaskKey
from optimus_service.api.app import create_app
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.fake import FakeCluster
from optimus_service.process.connections import bounded_protocol, raise_descriptor_limit
from optimus_service.server import Machine, Parts, assemble
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.records import RoundRecord
from optimus_service.store.repository import Repository

REPEATS, DRY_RUNS = 5, 3
TRAIN_PART, CHANGED_PART = 5, 100
"""One of so many jobs trains; of one of so many something changes between two looks, or it ends in a turn."""
SAMPLES, FIRST_OF_TURNS, SAMPLES_OF_TURN = 100, 1000, 10
TASKS = 1 + WORKERS + SERVERS
CALLS = {
    "list of 50": "/v1/jobs",
    "list of 200 that train": "/v1/jobs?state=running&limit=200",
    "find by name": "/v1/jobs?name=job-00042&match=one",
    "job": "/v1/jobs/job-00042",
    "explanation of one that trains": "/v1/jobs/job-00042/explanation",
    "explanation of one that waits": "/v1/jobs/{last}/explanation",
    "cluster": "/v1/cluster",
    "scrape": "/metrics",
}

DRY_RUN = {"name": "new", "task": "m:f", "workers": {"max": 7}, "servers": {"max": 2}}


class Service:
    """The process, as its clients and workers know it."""

    def __init__(
        self, settings: Settings, n_jobs: int, serve: Callable[[Settings, int, Connection], None] | None = None
    ) -> None:
        """`serve`: what its process does; None: rounds are asked for, and the time is that of the machine."""
        self.n_jobs = self.n_submitted = n_jobs
        self._n_told = 0
        self.settings = settings
        self.repository = Repository(create_engine_from_url(self.settings.url))
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve or _serve, args=(settings, n_jobs, theirs), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120.0)

    def close(self) -> None:
        self.client.close()
        self.repository.close()
        self._process.terminate()
        self._process.join()

    def ask(self, what: str) -> Any:
        """See `_answer`."""
        self._pipe.send(what)
        return self._pipe.recv()

    def tell(self, job_ids: list[str]) -> int:
        """Each of these jobs makes one step more; which one."""
        self._n_told += 1
        post(self.repository, job_ids, SAMPLES + self._n_told, 1)
        return SAMPLES + self._n_told + 1

    def label(self, turn: str) -> None:
        """A hundredth of the jobs, the newest, get this label, in one transaction."""
        newest = [f"job-{self.n_submitted - 1 - number:05d}" for number in range(max(1, self.n_jobs // CHANGED_PART))]
        with self.repository.write() as tx:
            for job in tx.jobs.by_id(newest).values():
                tx.jobs.set_spec(job.id, job.spec, job.spec | {"labels": {"turn": turn}}, {}, time.time())

    def get(self, path: str) -> float:
        """Processor seconds of one call."""
        return self._spent(lambda: self.client.get(path))

    def plan(self, job: dict[str, Any]) -> float:
        """The same of a dry run of this job."""
        return self._spent(lambda: self.client.post("/v1/plan", json=job))

    def _spent(self, call: Callable[[], httpx.Response]) -> float:
        cpu: float = self.ask("cpu")
        call().raise_for_status()
        found: float = self.ask("cpu") - cpu
        return found


# --- the process -----------------------------------------------------------------------------------------------------


def _settings(folder: Path) -> Settings:
    """Rounds come only when they are asked for."""
    return Settings(
        data_directory=folder,
        log_level="error",
        round_seconds=3600.0,
        learning_round_seconds=3600.0,
        debounce_seconds=0.0,
    )


def _serve(settings: Settings, n_jobs: int, pipe: Connection) -> None:
    parts, _, port = begin(settings, n_jobs, time.time, Machine())
    pipe.send(port)
    while True:
        pipe.send(_answer(parts, pipe.recv()))


class _Forgetful(FakeCluster):
    """Does not keep what tasks were started with and which were stopped: that is for tests, and no cluster does it in
    the service's memory."""

    def start(self, launch: TaskLaunch) -> None:
        super().start(launch)
        self.launches.clear()

    def stop(self, key: TaskKey, *, force: bool = False, with_all: bool = False) -> None:
        super().stop(key, force=force, with_all=with_all)
        self.stopped.clear()


def begin(
    settings: Settings, n_jobs: int, clock: Callable[[], float], machine: Machine
) -> tuple[Parts, FakeCluster, int]:
    """The whole service, with room for the tasks of a fifth of the jobs: its parts, its cluster, its port."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    raise_descriptor_limit()
    node = Resources(cpu=float(TASKS * 16), memory_bytes=2**44)
    cluster = _Forgetful([Node(f"node-{n:04d}", node) for n in range(-(-n_jobs // (16 * TRAIN_PART)))])
    parts = assemble(settings, "http://127.0.0.1:1", clock, replace(machine, make_cluster=lambda *_: cluster))
    config = uvicorn.Config(
        create_app(parts.services), http=bounded_protocol(), ws="none", log_level="warning", access_log=False
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    threading.Thread(target=uvicorn.Server(config).run, kwargs={"sockets": [listener]}, daemon=True).start()
    parts.loop.start()
    return parts, cluster, listener.getsockname()[1]


def _answer(parts: Parts, what: str) -> Any:
    """`cpu`: processor seconds until now; `memory`: present and highest, in MB; `round`, `ahead`: do it, how many."""
    match what:
        case "cpu":
            return time.process_time()
        case "memory":
            return memory()
        case "ahead":
            begun = time.process_time()
            parts.ahead.look()
            return time.process_time() - begun
        case _:
            begun = time.process_time()
            _round(parts)
            return time.process_time() - begun


def memory() -> list[int]:
    """Of this process."""
    status = Path("/proc/self/status").read_text()
    found = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmRSS", "VmHWM"))
    return [0 if each is None else int(each[1]) // 1024 for each in found]


def _round(parts: Parts) -> None:
    """One of now, in the thread of the loop."""
    repository = parts.services.repository
    before = newest_round(repository)
    parts.loop.trigger("benchmark")
    while (found := newest_round(repository)) is None or (before is not None and found.id == before.id):
        time.sleep(0.02)
    assert found.error is None, found.error


def newest_round(repository: Repository) -> RoundRecord | None:
    return next(iter(repository.rounds.page(limit=1).items), None)


def _changed(service: Service, running: list[str]) -> list[str]:
    """A hundredth of all jobs, of those that train."""
    return running[:: max(1, len(running) * CHANGED_PART // service.n_jobs)]


# --- what is asked of it ---------------------------------------------------------------------------------------------


def measured_calls(service: Service, running: list[str]) -> dict[str, float]:
    """Every call, and the read that all who watch share."""
    found = {}
    for name, path in CALLS.items():
        path = path.format(last=f"job-{service.n_submitted - 1:05d}")
        first = service.get(path)
        if name == "scrape":
            found["scrape, first"] = first
        found[name] = statistics.median(service.get(path) for _ in range(REPEATS))
    found["dry run"] = statistics.median(service.plan(DRY_RUN) for _ in range(DRY_RUNS))
    changed = _changed(service, running)
    for name in ("scrape", "explanation of one that waits"):
        path = CALLS[name].format(last=f"job-{service.n_jobs - 1:05d}")
        told = []
        for _ in range(REPEATS):
            service.tell(changed)
            told.append(service.get(path))
        found[f"{name}, changed"] = statistics.median(told)
    return found


async def watched(service: Service, n_viewers: int, repeats: int = REPEATS) -> dict[str, float]:
    """So many pages watch: what their beginning costs, and what a change of a hundredth of the jobs costs for all.

    Of the newest jobs, whose owners give them a label: where there are many, pages show the newest.
    """
    begun, cpu = time.perf_counter(), service.ask("cpu")
    viewers = [asyncio.create_task(_open(service.port)) for _ in range(n_viewers)]
    pages = [await each for each in viewers]
    found = {f"stream: {n_viewers} begin": time.perf_counter() - begun}
    found[f"stream: {n_viewers} begin, processor"] = service.ask("cpu") - cpu
    seconds, spent = [], []
    for number in range(repeats):
        await asyncio.sleep(2.0)  # the present state is read, and all have it
        cpu, begun = service.ask("cpu"), time.perf_counter()
        service.label(f"{number}")
        await asyncio.gather(*(_read_until(reader, f'"turn":"{number}"'.encode()) for reader, _ in pages))
        seconds.append(time.perf_counter() - begun)
        spent.append(service.ask("cpu") - cpu)
    for _, writer in pages:
        writer.close()
    found[f"stream: {n_viewers} have a change after"] = statistics.median(seconds)
    found[f"stream: {n_viewers} have a change, processor"] = statistics.median(spent)
    return found


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A page that has everything that there is."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await _read_until(reader, b"event: jobs")
    await _read_until(reader, b"]\n\n")
    return reader, writer


async def _read_until(reader: asyncio.StreamReader, words: bytes) -> None:
    """Nothing is kept of what is read: all pages are in one process."""
    last = b""
    while words not in last:
        read = await reader.read(2**16)
        assert read, "the stream ended"
        last = last[-len(words) :] + read


def day(service: Service, n_turns: int) -> dict[str, float]:
    """Turns of the life of so many jobs: the rounds of each, and how much memory they leave."""
    seconds, before = [], service.ask("memory")[0]
    n_changed = max(1, service.n_jobs // CHANGED_PART)
    for turn in range(n_turns):
        running = [job.id for job in service.repository.jobs.active() if job.membership_epoch]
        post(service.repository, running, FIRST_OF_TURNS + turn * SAMPLES_OF_TURN, SAMPLES_OF_TURN)
        end = ResultReported(outcome=Outcome.SUCCEEDED, step=FIRST_OF_TURNS)
        service.repository.jobs.advance_together(dict.fromkeys(running[:n_changed], end), time.time())
        submit(service.repository, n_changed, first=service.n_jobs + turn * n_changed)
        seconds.append(service.ask("round"))
        form_memberships(service.repository)
        service.ask("ahead")
    memory = service.ask("memory")
    return {
        "round of a turn": statistics.median(seconds),
        "memory: more after the turns": memory[0] - before,
        "memory: highest": memory[1],
    }


def at_size(n_jobs: int, n_viewers: int, n_turns: int) -> dict[str, float]:
    """With so many active jobs."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(Path(folder))
        upgrade(settings.url)
        with closing(Repository(create_engine_from_url(settings.url))) as repository:
            submit(repository, n_jobs)
        with closing(Service(settings, n_jobs)) as service:
            found = {"round that starts the tasks": service.ask("round")}
            running = form_memberships(service.repository)
            post(service.repository, running, 0, SAMPLES)
            found["round that reads all samples"] = service.ask("round")
            found["look at the queue ahead"] = service.ask("ahead")
            service.tell(_changed(service, running))
            found["round, a hundredth changed"] = service.ask("round")
            found["memory"] = service.ask("memory")[0]
            found |= measured_calls(service, running)
            found |= asyncio.run(watched(service, n_viewers))
            found["memory, while they watch"] = service.ask("memory")[1]
            found |= day(service, n_turns)
    return {name: round(value, 4) for name, value in found.items()}


def exponent(by_size: dict[int, float]) -> float | None:
    """Of the growth; None: one size says nothing of it."""
    if len(by_size) < 2:
        return None
    fit = statistics.linear_regression(
        [math.log(size) for size in by_size], [math.log(max(value, 1e-4)) for value in by_size.values()]
    )
    return round(fit.slope, 2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--viewers", type=int, default=500)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    raise_descriptor_limit()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    found = {size: at_size(size, options.viewers, options.turns) for size in options.sizes}
    names = list(found[options.sizes[0]])
    by_name = {name: {size: found[size][name] for size in found} for name in names}
    report = {
        "figures": by_name,
        "exponent": {name: exponent(sizes) for name, sizes in by_name.items()},
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
