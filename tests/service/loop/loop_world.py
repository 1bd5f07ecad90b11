"""A small world for the loop: virtual time, a fake cluster, a real database, and jobs that train by formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.service.store.store_builders import add_samples

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Gradients, Sample
from optimus_models.speed.goodput import gain
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import Overheard, RememberingForecaster
from optimus_scheduler.lifecycle import MembershipFormed, Outcome, Paused, ResultReported
from optimus_scheduler.model import Directive, JobState, Node, Resources, Role, TaskKey, TaskPhase
from optimus_service import server
from optimus_service.clusters.fake import FakeCluster
from optimus_service.loop.apply import Applier
from optimus_service.loop.launch import LaunchContext
from optimus_service.loop.round import Planner
from optimus_service.loop.told_predictions import told_predictions
from optimus_service.metrics.registry import Metrics
from optimus_service.observe.standstills import NewestStandstills, without_end
from optimus_service.process.job_tokens import JobTokens
from optimus_service.requests import checked
from optimus_service.settings import Settings
from optimus_service.store.leases import LONGEST_LEASE_SECONDS
from optimus_service.store.records import JobRecord, MembershipRecord, PredictionRecord, RoundRecord
from optimus_service.store.repository import LEADER_LEASE, Repository

NODES = [Node("node-0", Resources(4.0, 2**34)), Node("node-1", Resources(4.0, 2**34))]
STEPS_PER_EPOCH = 20.0


class VirtualClock:
    """Time that passes when the test says so."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def speed(workers: int, servers: int) -> float:
    """Steps per second of every job here (Eq. 4 with made-up coefficients); 0 servers: of a script."""
    transfer = 0.02 * workers / servers if servers else 0.02
    return 1.0 / (0.4 / workers + 0.02 + transfer + 0.002 * workers + 0.002 * servers)


ELASTIC: dict[str, Any] = {"minimum": 32, "maximum": 512, "per_pass": 64}
NOISE_SCALE = 2000.0
"""Of elastic jobs, in examples: far above their smallest batch."""


def elastic_step_seconds(workers: int, batch: int) -> tuple[float, float]:
    """Of an elastic job: a step, and the exchange in it."""
    passes = -(-batch // (workers * ELASTIC["per_pass"]))
    exchange = 0.05 if workers > 1 else 0.0
    return passes * 0.02 + 0.001 * batch / workers + exchange, exchange


def loss_at(step: float) -> float:
    """Eq. 1 with made-up coefficients."""
    return 1.0 / (0.02 * step + 0.5) + 0.1


@dataclass
class Heard:
    """A notifier that remembers."""

    generations: list[tuple[str, int]] = field(default_factory=list)

    def notify(self, job_id: str, generation: int) -> None:
        self.generations.append((job_id, generation))


@dataclass
class Coordinator:
    """What one job's coordinator did so far."""

    epoch: int = 0
    members: tuple[str, ...] = ()
    workers: int = 0
    servers: int = 0
    step: int = 0
    sequence: int = 0
    batch: int | None = None
    """If the job's batch is elastic."""


class World:
    """One service on one database and one cluster. A second `World` on both is the service after a restart."""

    def __init__(
        self,
        repository: Repository,
        directory: Path,
        cluster: FakeCluster | None = None,
        clock: VirtualClock | None = None,
        planner: Planner | None = None,
        starts_at_once: int = 1,
        **settings: Any,
    ) -> None:
        self.repository = repository
        self.directory = directory
        self.cluster = cluster or FakeCluster(NODES)
        self.clock = clock or VirtualClock()
        self.heard = Heard()
        self.settings = Settings(data_directory=directory, **settings)
        self.known = server.Known.of(self.settings, repository)
        forecaster = Overheard(RememberingForecaster(self.known.fits))
        planner = planner or server.make_planner(policy_named("optimus"), self.settings, forecaster)
        context = LaunchContext("http://127.0.0.1:1", directory / "jobs", JobTokens(b"secret"))
        applier = Applier(self.cluster, self.heard, context, self.clock, starts_at_once)
        self.looks_ahead = False
        self.metrics = Metrics()

        def told(made: Sequence[PredictionRecord]) -> list[PredictionRecord]:
            return told_predictions(repository, made, self.clock(), 0.0)

        self.ahead = server.make_queue_ahead(self.settings, forecaster, self.metrics, self.known.past, told=told)
        still = NewestStandstills()
        self.rounds = server.make_rounds(
            self.settings,
            repository,
            self.known,
            self.cluster,
            planner,
            applier,
            self.clock,
            self.ahead.note,
            lambda: without_end(still.at(repository, self.clock(), 0.0)),
            told,
        )
        self.fence = self.take_lease()
        self.coordinators: dict[str, Coordinator] = {}
        self.pace: Callable[[int, int], float] = speed
        """Steps per second of its jobs with so many workers and servers."""
        self.loss_at: Callable[[float], float] = loss_at
        """Loss of its jobs after so many steps."""
        self.rate_at: Callable[[int], float] | None = None
        """Learning rate of a step, which workers then tell."""
        self.accuracy_at: Callable[[float], float] | None = None
        self.steps_per_epoch: float | None = STEPS_PER_EPOCH
        """What its jobs say of their data."""
        """Test accuracy after so many epochs, which rank 0 then tells of each."""
        self.compute_share = 0.0
        """Part of each step that is told to be computing."""

    def take_lease(self) -> int:
        """Lead from now on, whoever led before; the token."""
        before = self.repository.leases.current(LEADER_LEASE)
        if before is not None:  # over, as far as tests care: it ends by the database's clock, which they do not set
            self.repository.leases.release(LEADER_LEASE, before.holder)
        lease = self.repository.leases.acquire(LEADER_LEASE, f"world-{id(self)}", LONGEST_LEASE_SECONDS)
        assert lease is not None
        return lease.token

    def restarted(self) -> World:
        """The service after a kill: nothing but the database and the cluster survive (and the jobs' own memory)."""
        self.clock.now += 60.0
        world = World(self.repository, self.directory, self.cluster, self.clock)
        world.coordinators = self.coordinators
        return world

    # --- what users do ----------------------------------------------------------------------------------------------

    def submit(self, job_id: str = "job-1", **changes: Any) -> JobRecord:
        owner = changes.pop("owner", None)
        spec = checked(
            JobSpec,
            {
                "name": job_id,
                "task": "m:f",
                "workers": {"max": 4},
                "servers": {"max": 4},
                "convergence": {"loss_decrease": {"below": 0.05}},
                **changes,
            },
        )
        document = write(spec)
        job, created = self.repository.jobs.create(job_id, document, "nonce", None, "hash", self.clock(), None, owner)
        assert created
        return job

    # --- what the service does --------------------------------------------------------------------------------------

    def round(self, trigger: str = "test") -> RoundRecord:
        """A round, and then the look ahead that the service makes beside the next ones, where a test wants it."""
        record = self.rounds.run(trigger, self.fence)
        if self.looks_ahead:
            self.ahead.look()
        return record

    # --- what jobs do -----------------------------------------------------------------------------------------------

    def train(self, seconds: float) -> None:
        """Every job follows what is wanted, then trains for so long, reporting every second."""
        for job in self.repository.jobs.active():
            self._follow(job)
        for _ in range(int(seconds)):
            self.clock.now += 1.0
            for job in self.repository.jobs.active():
                self._second(job)

    def live_until(self, what: str, condition: Callable[[], bool], *, rounds: int = 200, seconds: float = 5.0) -> None:
        """Rounds and training take turns until the condition holds."""
        for _ in range(rounds):
            if condition():
                return
            self.round()
            self.train(seconds)
        raise AssertionError(f"after {rounds} rounds still not true: {what}")

    def running(self, job_id: str, role: Role | None = None) -> list[TaskKey]:
        return [key for key in self.cluster.running() if key.job_id == job_id and role in (None, key.role)]

    def _follow(self, job: JobRecord) -> None:
        wanted = self.repository.wanted.get(job.id)
        alive = {task.key for task in self.cluster.tasks() if task.phase is TaskPhase.RUNNING}
        coordinators = self.running(job.id, Role.COORDINATOR)
        if not coordinators:
            return
        state = self.coordinators.setdefault(job.id, Coordinator())
        if wanted.directive is Directive.FINISH:
            self._finish(job, state)
        elif wanted.directive is Directive.PAUSE:
            if state.members:
                self._form(job, state, wanted.generation, (), "pause")
            self._let_go(job.id, keep=())
        elif wanted.directive is Directive.RUN and all(task.key in alive for task in wanted.tasks):
            members = tuple(task.key.name for task in wanted.tasks)
            if members and (members, wanted.batch) != (state.members, state.batch):
                changed = "batch" if members == state.members else "rescale" if state.members else "resume"
                state.batch = wanted.batch
                self._form(job, state, wanted.generation, members, changed if state.epoch else "start")
            self._let_go(job.id, keep=(*members, coordinators[0].name))

    def _form(self, job: JobRecord, state: Coordinator, generation: int, members: tuple[str, ...], cause: str) -> None:
        workers = tuple(name for name in members if f"-{Role.WORKER}-" in name)
        servers = tuple(name for name in members if f"-{Role.SERVER}-" in name)
        state.epoch += 1
        state.members, state.workers, state.servers, state.sequence = members, len(workers), len(servers), 0
        report = MembershipRecord(
            job_id=job.id,
            epoch=state.epoch,
            generation=generation,
            at=self.clock(),
            step=state.step,
            workers=workers,
            servers=servers,
            cause=cause,
            pause_seconds=0.5,
            lost_steps=max(job.step - state.step, 0),
            global_batch=state.batch,
        )
        self.repository.memberships.report(job.id, report)
        event = Paused() if cause == "pause" else MembershipFormed(state.epoch)
        self.repository.jobs.advance(job.id, event, self.clock())
        profile = {"n_parameters": 10, "n_examples": 640, "global_batch_size": 32}
        epochs = {} if self.steps_per_epoch is None else {"steps_per_epoch": self.steps_per_epoch}
        self.repository.jobs.put_profile(job.id, {**profile, **epochs})

    def _second(self, job: JobRecord) -> None:
        state = self.coordinators.get(job.id)
        if state is None or not state.workers or set(state.members) - {key.name for key in self.cluster.running()}:
            return
        if state.batch is not None:
            self._elastic_second(job, state)
            return
        speed = self.pace(state.workers, state.servers)
        n_steps = max(1, round(speed))
        state.step += n_steps
        metrics = None
        if self.accuracy_at is not None and (state.step - n_steps) // STEPS_PER_EPOCH < state.step // STEPS_PER_EPOCH:
            metrics = {"test_accuracy": self.accuracy_at(state.step / STEPS_PER_EPOCH)}
        samples = [
            Sample(
                membership_epoch=state.epoch,
                rank=rank,
                sequence=state.sequence,
                workers=state.workers,
                servers=state.servers,
                at=self.clock(),
                step=state.step,
                n_steps=n_steps,
                data_epoch=state.step / STEPS_PER_EPOCH,
                loss=self.loss_at(state.step),
                n_examples=32 * n_steps // state.workers,
                seconds=n_steps / speed,
                metrics=metrics if rank == 0 else None,
                learning_rate=None if self.rate_at is None else self.rate_at(state.step - 1),
                compute_seconds=self.compute_share * n_steps / speed,
            )
            for rank in range(state.workers)
        ]
        state.sequence += 1
        added = add_samples(self.repository, job.id, samples, self.clock())
        assert added.accepted == len(samples), added

    def _elastic_second(self, job: JobRecord, state: Coordinator) -> None:
        """Updates with the batch that was set, each worth its gain; rank 0 tells the noise."""
        assert state.batch is not None
        each, exchange = elastic_step_seconds(state.workers, state.batch)
        updates = max(1, round(1.0 / each))
        n_steps = max(1, round(updates * float(gain([state.batch], ELASTIC["minimum"], NOISE_SCALE)[0])))
        state.step += n_steps
        told = Sample(
            membership_epoch=state.epoch,
            rank=0,
            sequence=state.sequence,
            workers=state.workers,
            servers=0,
            at=self.clock(),
            step=state.step,
            n_steps=n_steps,
            updates=updates,
            global_batch=state.batch,
            data_epoch=state.step / STEPS_PER_EPOCH,
            loss=loss_at(state.step),
            n_examples=updates * state.batch // state.workers,
            seconds=updates * each,
            wait_seconds=updates * exchange,
            gradients=Gradients(square=2.0, variance=2.0 * NOISE_SCALE),
        )
        state.sequence += 1
        assert add_samples(self.repository, job.id, [told], self.clock()).accepted == 1

    def _finish(self, job: JobRecord, state: Coordinator) -> None:
        result = ResultReported(Outcome.SUCCEEDED, state.step, loss_at(state.step), {"test_accuracy": 0.9})
        self.repository.jobs.advance(job.id, result, self.clock())
        self._let_go(job.id, keep=())

    def _let_go(self, job_id: str, keep: tuple[str, ...]) -> None:
        for key in self.running(job_id):
            if key.name not in keep:
                self.cluster.exit(key, 0)

    def state(self, job_id: str = "job-1") -> JobState:
        return self.repository.jobs.get(job_id).state

    def events(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        """Data of the job's events of one type, oldest first."""
        found = self.repository.events.page(job_id, limit=1000).items
        return [event.data for event in reversed(found) if event.type == kind]
