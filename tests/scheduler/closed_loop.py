"""A cluster in virtual time: jobs with hidden true curves and speeds, noisy telemetry, and `plan` every few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.scheduler.builders import SpeedLaw

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    ConvergenceRule,
    Decision,
    Directive,
    Job,
    JobSpec,
    JobState,
    Mode,
    Node,
    PlacedTask,
    Resources,
    Role,
    SetWanted,
    Snapshot,
    SpeedSample,
    StartTask,
    StopTask,
    Task,
    TaskDemand,
    TaskPhase,
)
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

STARTUP_SECONDS = 2.0
"""From a wanted set to the membership: new processes import their libraries while the old ones train on."""
ROUND_SECONDS = 5.0
_LONGEST_SECONDS = 3600.0


@dataclass
class TrueJob:
    """What a job really does; the scheduler sees only noisy samples of it."""

    name: str
    arrives_at: float
    speed: SpeedLaw
    beta: tuple[float, float, float]
    """β0 per epoch, β1, β2 of its real loss curve."""
    steps_per_epoch: float
    rule: ConvergenceRule
    mode: Mode = Mode.SYNC
    maximum: int = 6
    noise: float = 0.03
    stop_seconds: float = 0.5

    # What happened to it.
    step: float = 0.0
    wanted: SetWanted | None = None
    wanted_at: float = 0.0
    has: Allocation = NOTHING
    stopped_until: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    finishing_since: float | None = None
    history: list[tuple[float, Allocation]] = field(default_factory=list)
    losses: list[tuple[float, float]] = field(default_factory=list)
    samples: list[SpeedSample] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    predictions: list[tuple[float, float | None]] = field(default_factory=list)
    """(step, predicted total steps) of every round."""

    @property
    def rescales(self) -> int:
        """Changes of size while it was training."""
        return max(len(self.history) - 1, 0)

    def loss(self, random: Random) -> float:
        b0, b1, b2 = self.beta
        return (1.0 / (b0 * self.step / self.steps_per_epoch + b1) + b2) * (1.0 + random.gauss(0.0, self.noise))


class ClosedLoop:
    """Runs jobs on one node of `slots` cores until all have ended."""

    def __init__(self, jobs: Sequence[TrueJob], *, slots: float = 8.0, seed: int = 0, policy: str = "optimus") -> None:
        self.jobs = list(jobs)
        self.decisions: list[tuple[float, Decision]] = []
        self.now = 0.0
        self._random = Random(seed)
        self._nodes = (Node("local", Resources(slots, 64 * 2**30)),)
        self._tasks: dict[str, Task] = {}
        self._policy = policy_named(policy)

    def run(self) -> None:
        while any(job.finished_at is None for job in self.jobs):
            assert self.now < _LONGEST_SECONDS, "the jobs do not finish"
            if self.now % ROUND_SECONDS == 0.0:
                self._round()
            self._train(1.0)
            self.now += 1.0

    def _active(self) -> list[TrueJob]:
        return [job for job in self.jobs if job.arrives_at <= self.now and job.finished_at is None]

    # --- the shell -----------------------------------------------------------------------------------------------

    def _round(self) -> None:
        jobs = {job.name: job for job in self._active()}
        snapshot = Snapshot(self.now, self._nodes, tuple(map(self._seen, jobs.values())), tuple(self._tasks.values()))
        outcome = plan(snapshot, self._policy, Settings())
        for decision in outcome.decisions:
            self.decisions.append((self.now, decision))
            total = decision.forecast.total_steps
            jobs[decision.job_id].predictions.append((jobs[decision.job_id].step, total.mean if total else None))
        for action in outcome.actions:
            match action:
                case SetWanted(job_id):
                    jobs[job_id].wanted, jobs[job_id].wanted_at = action, self.now
                case StartTask(PlacedTask(key, node)):
                    self._tasks[key.name] = Task(key, node, TaskPhase.RUNNING)
                case StopTask(key):
                    self._tasks.pop(key.name, None)

    def _seen(self, job: TrueJob) -> Job:
        """The job as the store knows it."""
        wanted = job.wanted
        step_losses = job.losses[:: max(len(job.losses) // 200, 1)]
        return Job(
            id=job.name,
            spec=JobSpec(
                TaskDemand(Resources(1.0, 2**28), 1, job.maximum),
                TaskDemand(Resources(1.0, 2**28), 1, job.maximum),
                job.rule,
                mode=job.mode,
                global_batch_size=64,
            ),
            state=JobState.RUNNING if job.started_at is not None else JobState.QUEUED,
            submitted_at=job.arrives_at,
            started_at=job.started_at,
            step=int(job.step),
            steps_per_epoch=job.steps_per_epoch if job.started_at is not None else None,
            loss_steps=tuple(step for step, _ in step_losses),
            losses=tuple(loss for _, loss in step_losses),
            speed_samples=tuple(job.samples),
            allocation=wanted.allocation if wanted else NOTHING,
            allocated_at=job.wanted_at if wanted else None,
            directive=wanted.directive if wanted else Directive.RUN,
            rescale_seconds=tuple(job.stops),
            wanted_tasks=wanted.tasks if wanted else (),
        )

    # --- the training --------------------------------------------------------------------------------------------

    def _train(self, seconds: float) -> None:
        for job in self._active():
            if job.wanted is None:
                continue
            if job.has != job.wanted.allocation and self.now - job.wanted_at >= STARTUP_SECONDS:
                self._change(job, job.wanted.allocation)
            if not job.has.is_empty and self.now >= job.stopped_until:
                self._step(job, seconds)
            if self._is_over(job):
                job.finished_at = self.now + 1.0
                self._tasks = {name: task for name, task in self._tasks.items() if task.key.job_id != job.name}

    def _change(self, job: TrueJob, allocation: Allocation) -> None:
        if job.started_at is None:
            job.started_at = self.now
        else:
            stop = job.stop_seconds * self._random.uniform(0.7, 1.5)
            job.stops.append(stop)
            job.stopped_until = self.now + stop
        job.has = allocation
        job.history.append((self.now, allocation))
        assert job.wanted is not None
        wanted = {placed.key.name for placed in job.wanted.tasks}
        for name, task in list(self._tasks.items()):
            if task.key.job_id == job.name and task.key.role is not Role.COORDINATOR and name not in wanted:
                del self._tasks[name]

    def _step(self, job: TrueJob, seconds: float) -> None:
        speed = job.speed(job.has.workers, job.has.servers) * (1.0 + self._random.gauss(0.0, 0.05))
        before = int(job.step)
        job.step += speed * seconds
        n_steps = int(job.step) - before
        if n_steps == 0:
            return
        workers, servers = job.has.workers, job.has.servers
        job.samples.append(SpeedSample(workers, servers, speed, n_steps, at=self.now + seconds))
        job.losses.append((job.step, job.loss(self._random)))

    def _is_over(self, job: TrueJob) -> bool:
        """The coordinator's part: limits to the step, and finishing when it is told to."""
        rule = job.rule
        if rule.max_steps is not None and job.step >= rule.max_steps:
            return True
        if rule.max_epochs is not None and job.step >= rule.max_epochs * job.steps_per_epoch:
            return True
        return job.wanted is not None and job.wanted.directive is Directive.FINISH
