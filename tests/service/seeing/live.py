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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn
from pydantic import SecretStr
from tests.service.loop.loop_world import Coordinator, VirtualClock, World
from tests.service.store.store_builders import add_samples

from optimus_contract.telemetry import Sample
from optimus_scheduler.model import Node, Resources, Role
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.closing import with_closed_nodes
from optimus_service.clusters.fake import FakeCluster
from optimus_service.loop.leader import Leadership
from optimus_service.loop.loop import LoopTimes, SchedulingLoop
from optimus_service.metrics.registry import Metrics
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.server import make_preview
from optimus_service.settings.oidc import OidcSettings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import LEADER_LEASE, Repository

NODES = [Node(f"node-{number}", Resources(8.0, 2**35, {"V100": 4} if number == 2 else {})) for number in range(3)]
Tell = Callable[[str, str, str, Any], None]
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
    gpus: int = 0


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
    Kind("detector", "vision", 2.0, 0.05, 0.001, 0.5, 200, most=2, below=0.0005, gpus=1),
)


class LiveWorld(World):
    """A world whose jobs differ, are noisy, and say what their time was spent on."""

    def __init__(self, *arguments: Any, kinds: Sequence[Kind] = KINDS, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kinds = kinds
        self._random = random.Random(7)
        self._done: dict[str, float] = {}
        self.tell: Tell | None = None
        """How tasks talk to the service once it serves; before, they write into its database."""

    def speed(self, kind: Kind, workers: int, servers: int) -> float:
        return 1.0 / (kind.compute / workers + 0.02 + kind.network * workers / servers + 0.004 * (workers + servers))

    def _second(self, job: JobRecord) -> None:
        state = self.coordinators.get(job.id)
        if state is None or not state.workers or set(state.members) - {key.name for key in self.cluster.running()}:
            return
        kind = next((each for each in self.kinds if each.name == job.name), KINDS[0])
        noise = self._random.uniform(0.96, 1.04)
        progress = self._done.get(job.id, 0.0) + noise * self.speed(kind, state.workers, state.servers)
        n_steps, self._done[job.id] = int(progress), progress % 1.0
        if n_steps:
            state.step += n_steps
            samples = [self._sample(kind, state, rank, n_steps) for rank in range(state.workers)]
            state.sequence += 1
            if self.tell is None:
                add_samples(self.repository, job.id, samples, self.clock())
            else:
                self.tell("POST", job.id, "telemetry", {"samples": [asdict(sample) for sample in samples]})

    def _form(self, job: JobRecord, state: Coordinator, generation: int, members: tuple[str, ...], cause: str) -> None:
        if self.tell is None:
            super()._form(job, state, generation, members, cause)
            return
        state.epoch += 1
        state.members, state.sequence = members, 0
        workers = [name for name in members if f"-{Role.WORKER}-" in name]
        servers = [name for name in members if f"-{Role.SERVER}-" in name]
        state.workers, state.servers = len(workers), len(servers)
        report: dict[str, Any] = {
            "epoch": state.epoch,
            "generation": generation,
            "at": self.clock(),
            "step": state.step,
        }
        report |= {"workers": workers, "servers": servers, "cause": cause, "pause_seconds": 0.5}
        self.tell("POST", job.id, "membership", report)
        profile = {"n_parameters": 10, "n_examples": 640, "global_batch_size": 32, "steps_per_epoch": 20.0}
        self.tell("PUT", job.id, "profile", profile)

    def _finish(self, job: JobRecord, state: Coordinator) -> None:
        if self.tell is None:
            super()._finish(job, state)
            return
        self.tell("POST", job.id, "result", {"outcome": "succeeded", "step": state.step, "final_loss": 1.0})
        self._let_go(job.id, keep=())

    def _sample(self, kind: Kind, state: Coordinator, rank: int, n_steps: int) -> Sample:
        seconds = n_steps / self.speed(kind, state.workers, state.servers)
        compute = n_steps * kind.compute / state.workers * (1.25 if rank == 1 else 1.0)
        network = n_steps * kind.network * state.workers / state.servers
        loss = kind.floor + 3.0 / (1.0 + kind.decay * state.step)
        evaluates = rank == 0 and state.step // STEPS_PER_EPOCH > (state.step - n_steps) // STEPS_PER_EPOCH
        right = 0.95 - 0.85 / (1.0 + 0.5 * kind.decay * state.step)
        metrics = {"test_accuracy": right * self._random.uniform(0.99, 1.0), "test_loss": 1.1 * loss}
        return Sample(
            metrics=metrics if evaluates else None,
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
    begun, waiting, round_at = world.clock.now, sorted(world.kinds, key=lambda kind: kind.at), 0.0
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
        workers={"min": kind.least, "max": kind.most, "resources": {"gpus": kind.gpus}},
        servers={"max": kind.most},
        convergence={"loss_decrease": {"below": kind.below}, "max_epochs": 400},
    )


class LiveService:
    """The service's parts around a live world, serving on a free port of loopback."""

    def __init__(
        self, world: LiveWorld, token: str | None = None, port: int = 0, oidc: OidcSettings | None = None
    ) -> None:
        self.world = world
        world.clock.now = time.time()
        self.metrics = Metrics()
        settings = world.settings.model_copy(
            update={"token": None if token is None else SecretStr(token), "oidc": oidc}
        )
        times = LoopTimes(5.0, 5.0, 0.1, 2.0)
        world.repository.leases.release(LEADER_LEASE, f"world-{id(world)}")
        leadership = Leadership(world.repository, 2.0, time.monotonic)
        self.loop = SchedulingLoop(world.rounds, leadership, world.cluster, self.metrics, times, world.clock)
        long_polls = LongPolls(world.repository.wanted.generations)
        self.services = Services(
            settings=settings,
            repository=world.repository,
            cluster=world.cluster,
            long_polls=long_polls,
            job_tokens=JobTokens(b"secret"),
            metrics=self.metrics,
            version="0.1.0",
            trigger_round=self.loop.trigger,
            trigger_round_for=self.loop.told,
            loop_health=self.loop.health,
            leads=lambda: self.loop.leads,
            preview=make_preview(settings, world.repository, world.known, world.cluster, world.clock),
            finished_runs=world.known.finished_runs,
            clock=world.clock,
        )
        self._listener = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(create_app(self.services), log_config=None, lifespan="on", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._tasks = httpx.Client(base_url=self.url, trust_env=False, timeout=30)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True),
            threading.Thread(target=self._train, daemon=True),
        ]

    def start(self) -> None:
        server, training = self._threads
        server.start()
        self.loop.start()
        self.world.tell = self._tell
        training.start()

    def _tell(self, method: str, job_id: str, what: str, body: Any) -> None:
        """One call of a job's own tasks. A service that shuts down refuses it, which tasks survive."""
        token = self.services.job_tokens.issue(job_id, self.world.repository.jobs.get(job_id).token_nonce)
        headers = {"Authorization": f"Bearer {token}"}
        with suppress(httpx.TransportError):
            answer = self._tasks.request(method, f"/v1/jobs/{job_id}/{what}", json=body, headers=headers)
            assert answer.is_success, answer.text

    def stop(self) -> None:
        self._stopping.set()
        self.services.long_polls.close()
        self.loop.stop(10.0)
        self._server.should_exit = True
        for thread in self._threads:
            thread.join(60.0)
        self._tasks.close()
        self._listener.close()

    def _train(self) -> None:
        while not self._stopping.wait(1.0):
            for job in self.world.repository.jobs.active():
                self.world._follow(job)
            self.world.clock.now = time.time()
            for job in self.world.repository.jobs.active():
                self.world._second(job)


@contextmanager
def live_service(
    directory: Path,
    *,
    token: str | None = None,
    history_seconds: float = HISTORY_SECONDS,
    port: int = 0,
    kinds: Sequence[Kind] = KINDS,
    nodes: Sequence[Node] = NODES,
    oidc: OidcSettings | None = None,
) -> Iterator[LiveService]:
    """A live service on a new SQLite database in `directory`."""
    url = f"sqlite:///{directory / 'optimus.db'}"
    upgrade(url)
    repository = Repository(create_engine_from_url(url))
    clock = VirtualClock(time.time() - history_seconds)
    cluster = cast(FakeCluster, with_closed_nodes(FakeCluster(list(nodes)), repository.nodes.closed))
    world = LiveWorld(repository, directory, cluster, clock, kinds=kinds, price_per_core_hour=0.04)
    make_history(world, history_seconds)
    service = LiveService(world, token, port, oidc)
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
