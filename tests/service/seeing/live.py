"""A live service for tests of what is seen: real API, loop, database and metrics; jobs train by formula, in real time.

An hour of history is made in virtual time first, so that there is something to see at once. To look at it:
`python -m tests.service.seeing.live` (Ctrl-C ends it).
"""

from __future__ import annotations

import argparse
import random
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from tests.service.loop.loop_world import Coordinator, VirtualClock, World

from optimus_scheduler.types import Node, Resources
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.hub import WakeUpHub
from optimus_service.job_tokens import JobTokens
from optimus_service.loop.leader import Leadership
from optimus_service.loop.loop import LoopTimes, SchedulingLoop
from optimus_service.metrics import Metrics
from optimus_service.settings import Settings
from optimus_service.store.engine import create_engine_from_url, upgrade
from optimus_service.store.records import JobRecord, Sample
from optimus_service.store.repository import Repository

NODES = [Node(f"node-{number}", Resources(8.0, 2**35)) for number in range(3)]
HISTORY_SECONDS = 2000
STEPS_PER_EPOCH = 60.0


@dataclass(frozen=True)
class Kind:
    """How a job of the demo behaves."""

    name: str
    project: str
    compute: float
    """Seconds per step on one worker."""
    network: float
    decay: float
    floor: float
    at: float
    """Seconds after the beginning of history at which it is submitted."""
    most: int = 10
    least: int = 1
    below: float = 0.01


KINDS = (
    Kind("tiny-mlp", "vision", 0.5, 0.01, 0.05, 0.1, 0, most=4, below=0.05),
    Kind("resnet-50", "vision", 2.4, 0.06, 0.002, 0.4, 60, below=0.004),
    Kind("word2vec", "language", 0.9, 0.02, 0.02, 0.3, 200, most=3, below=0.03),
    Kind("bert-base", "language", 3.2, 0.16, 0.001, 1.1, 300, most=6, below=0.0012),
    Kind("gpt-small", "language", 4.0, 0.2, 0.0006, 1.8, 700, most=8, below=0.0006),
    Kind("dcgan", "vision", 1.6, 0.08, 0.002, 0.7, 1100, most=5, below=0.001),
    Kind("wide-and-deep", "ads", 1.0, 0.03, 0.006, 0.25, 1500, most=40, least=30),
    Kind("speech-large", "audio", 5.0, 0.2, 0.002, 1.0, 1900, most=24, least=21),
    Kind("ctr-model", "ads", 1.1, 0.04, 0.002, 0.2, 1700, most=6, below=0.003),
)


class LiveWorld(World):
    """A world whose jobs differ, are noisy, and say what their time was spent on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._random = random.Random(7)
        self._done: dict[str, float] = {}

    def speed(self, kind: Kind, workers: int, servers: int) -> float:
        return 1.0 / (kind.compute / workers + 0.02 + kind.network * workers / servers + 0.004 * (workers + servers))

    def _second(self, job: JobRecord) -> None:
        state = self.coordinators.get(job.id)
        if state is None or not state.workers or set(state.members) - {key.name for key in self.cluster.running()}:
            return
        kind = next((each for each in KINDS if each.name == job.name), KINDS[0])
        noise = self._random.uniform(0.96, 1.04)
        progress = self._done.get(job.id, 0.0) + noise * self.speed(kind, state.workers, state.servers)
        n_steps, self._done[job.id] = int(progress), progress % 1.0
        if n_steps:
            state.step += n_steps
            samples = [self._sample(kind, state, rank, n_steps) for rank in range(state.workers)]
            state.sequence += 1
            self.repository.add_samples(job.id, samples, self.clock())

    def _sample(self, kind: Kind, state: Coordinator, rank: int, n_steps: int) -> Sample:
        seconds = n_steps / self.speed(kind, state.workers, state.servers)
        compute = n_steps * kind.compute / state.workers * (1.25 if rank == 1 else 1.0)
        network = n_steps * kind.network * state.workers / state.servers
        loss = kind.floor + 3.0 / (1.0 + kind.decay * state.step)
        return Sample(
            membership_epoch=state.epoch,
            rank=rank,
            sequence=state.sequence,
            workers=state.workers,
            servers=state.servers,
            at=self.clock(),
            step=state.step,
            n_steps=n_steps,
            data_epoch=state.step / STEPS_PER_EPOCH,
            loss=loss * self._random.uniform(0.97, 1.03),
            n_examples=64 * n_steps,
            seconds=seconds,
            data_seconds=0.02 * seconds,
            compute_seconds=compute,
            push_seconds=0.5 * network,
            wait_seconds=max(seconds - compute - network, 0.0),
            pull_seconds=0.5 * network,
            sent_bytes=10**6 * n_steps,
            received_bytes=10**6 * n_steps,
        )


def make_history(world: LiveWorld, seconds: float) -> None:
    """Submit the jobs and let rounds and training take turns, up to now."""
    begun, waiting, round_at = world.clock.now, sorted(KINDS, key=lambda kind: kind.at), 0.0
    while world.clock.now < begun + seconds:
        age = world.clock.now - begun
        while waiting and waiting[0].at <= age:
            _submit(world, waiting.pop(0))
            round_at = age
        if age >= round_at:
            world.round("period")
            round_at = age + 20.0
        world.train(5)


def _submit(world: World, kind: Kind) -> None:
    world.submit(
        f"{kind.name}-x7k2p",
        name=kind.name,
        project=kind.project,
        workers={"min": kind.least, "max": kind.most},
        servers={"max": kind.most},
        convergence={"loss_decrease": {"below": kind.below}, "max_epochs": 400},
    )


class LiveService:
    """The service's parts around a live world, serving on a free port of loopback."""

    def __init__(self, world: LiveWorld, token: str | None = None, port: int = 0) -> None:
        self.world = world
        world.clock.now = time.time()
        self.metrics = Metrics()
        settings = Settings(data_directory=world.directory, token=token)
        times = LoopTimes(5.0, 5.0, 0.1, 2.0)
        leadership = Leadership(world.repository, 2.0, world.clock)
        self.loop = SchedulingLoop(
            world.rounds, leadership, world.cluster, world.repository, self.metrics, times, world.clock
        )
        hub = WakeUpHub(world.repository.generations)
        self.services = Services(
            settings=settings,
            repository=world.repository,
            cluster=world.cluster,
            hub=hub,
            job_tokens=JobTokens(b"secret"),
            metrics=self.metrics,
            version="0.1.0",
            trigger_round=self.loop.trigger,
            loop_health=self.loop.health,
            leads=lambda: self.loop.leads,
            clock=world.clock,
        )
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(create_app(self.services), log_config=None, lifespan="on", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True),
            threading.Thread(target=self._train, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self.loop.start()

    def stop(self) -> None:
        self._stopping.set()
        self.services.hub.close()
        self.loop.stop(10.0)
        self._server.should_exit = True
        for thread in self._threads:
            thread.join(10.0)
        self._listener.close()

    def _train(self) -> None:
        while not self._stopping.wait(1.0):
            for job in self.world.repository.active_jobs():
                self.world._follow(job)
            self.world.clock.now = time.time()
            for job in self.world.repository.active_jobs():
                self.world._second(job)


@contextmanager
def live_service(
    directory: Path, *, token: str | None = None, history_seconds: float = HISTORY_SECONDS, port: int = 0
) -> Iterator[LiveService]:
    """A live service on a new SQLite database in `directory`."""
    url = f"sqlite:///{directory / 'optimus.db'}"
    upgrade(url)
    repository = Repository(create_engine_from_url(url))
    clock = VirtualClock(time.time() - history_seconds)
    world = LiveWorld(repository, directory, FakeCluster(NODES), clock)
    make_history(world, history_seconds)
    service = LiveService(world, token, port)
    # From now on transactions are part of the service's figures.
    world.repository._observe = service.metrics.observe_transaction
    service.start()
    try:
        yield service
    finally:
        service.stop()
        repository.close()


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--token")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        live_service(Path(folder), token=options.token, port=options.port) as it,
    ):
        print(it.url, flush=True)  # noqa: T201
        threading.Event().wait()


if __name__ == "__main__":
    main()
