"""One job in the simulated cluster: what it has, how far it is, and how the scheduler sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from optimus_models.calibration import NO_EXPERIENCE, Experience
from optimus_models.speed.boundary import Boundary
from optimus_scheduler.ahead.deadlines import Answer, answer_to
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    Directive,
    EndedJob,
    Interval,
    Job,
    JobState,
    PlacedTask,
    SpeedSample,
)
from optimus_simulator.options import Options
from optimus_simulator.shown_predictions import Judged, Predictions
from optimus_simulator.trace import TraceJob
from optimus_simulator.truth.truth import Shape, Training

# --- the samples that a job reports: speeds and losses with noise, thinned out as they get old -----------------------

_REFRESH = 4.0
"""A measurement is reported again when it covers so many times as many steps: earlier it would add nothing."""
_FIRST_STEPS = 8
"""Steps of a size before its speed is reported."""
_LOSS_SPACING = 1.03
"""Losses are reported at steps that grow by this factor: some 300 over a whole run."""
_NOISE_SPACING = 1.1
"""... and noise scales by this one."""


@dataclass(slots=True)
class _Visit:
    """A stay at one size."""

    size: tuple[int, int]
    gpu_type: str | None
    batch: int | None = None
    exchange_part: float | None = None
    """Of each step of an all-reduce job."""
    nodes: int = 0
    steps: float = 0.0
    seconds: float = 0.0
    reported_steps: float = 0.0


@dataclass(slots=True)
class Telemetry:
    """The telemetry of one job."""

    random: np.random.Generator
    options: Options
    samples: tuple[SpeedSample, ...] = ()
    """Of each size at most two: the present stay and all before it."""
    loss_steps: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    stops: tuple[float, ...] = ()
    """Seconds of each change so far."""
    noise_steps: tuple[float, ...] = ()
    noise_scales: tuple[float, ...] = ()
    _visit: _Visit | None = field(default=None, repr=False)

    def changed(
        self, allocation: Allocation, batch: int | None = None, exchange_part: float | None = None, nodes: int = 0
    ) -> None:
        """The job gets other tasks, another size or other places, or another elastic batch."""
        size = (allocation.workers, allocation.servers)
        if self._visit is not None:
            self._close(self._visit)
        self._visit = _Visit(size, allocation.gpu_type, batch, exchange_part, nodes) if size[0] else None

    def stopped(self, seconds: float) -> None:
        self.stops = (*self.stops, seconds)

    def trained(self, now: float, steps: float, seconds: float, training: Training) -> None:
        """The job did `steps` in the last `seconds`."""
        visit = self._visit
        if visit is None or steps <= 0:
            return
        visit.steps += steps
        visit.seconds += seconds
        if visit.steps >= max(_FIRST_STEPS, visit.reported_steps * _REFRESH):
            self._tell(visit, now)
        if visit.steps >= _FIRST_STEPS:
            self._tell_noise(training)
        if not self.loss_steps or training.step >= self.loss_steps[-1] * _LOSS_SPACING + 1.0:
            self._tell_loss(training)

    def _tell(self, visit: _Visit, now: float) -> None:
        speed, exchange = self._measured(visit)
        sample = SpeedSample(
            *visit.size,
            speed,
            int(visit.steps),
            at=now,
            gpu_type=visit.gpu_type,
            batch=visit.batch,
            exchange_seconds=exchange,
        )
        others = self.samples[:-1] if visit.reported_steps else self.samples
        self.samples = (*others, sample)
        visit.reported_steps = visit.steps

    def _measured(self, visit: _Visit) -> tuple[float, float | None]:
        """Steps per second with noise; of an all-reduce job also the exchange in each step, with noise of its own."""
        speed = visit.steps / visit.seconds
        errors = [self.options.speed_noise * float(self.random.standard_normal())]
        if visit.exchange_part is None:
            return speed * float(np.exp(errors[0])), None
        errors.append(self.options.speed_noise * float(self.random.standard_normal()))
        computing = (1.0 - visit.exchange_part) / speed * float(np.exp(errors[0]))
        exchange = visit.exchange_part / speed * float(np.exp(errors[1]))
        return 1.0 / (computing + exchange), exchange

    def _tell_noise(self, training: Training) -> None:
        """How noisy its gradients are, as the job estimates it."""
        true = training.noise_scale()
        if true is None or (self.noise_steps and training.step < self.noise_steps[-1] * _NOISE_SPACING):
            return
        error = self.options.noise_scale_noise * float(self.random.standard_normal())
        self.noise_steps = (*self.noise_steps, training.step)
        self.noise_scales = (*self.noise_scales, true * float(np.exp(error)))

    def _close(self, visit: _Visit) -> None:
        """Merge the measurement of this visit with earlier ones of the same size."""
        if not visit.reported_steps:
            return
        *others, newest = self.samples
        here = (*visit.size, visit.gpu_type, visit.batch)
        twin = next((old for old in others if (old.workers, old.servers, old.gpu_type, old.batch) == here), None)
        if twin is None:
            return
        n_steps = twin.n_steps + newest.n_steps
        speed = (twin.n_steps * twin.steps_per_second + newest.n_steps * newest.steps_per_second) / n_steps
        merged = replace(newest, steps_per_second=speed, n_steps=n_steps)
        if twin.exchange_seconds is not None and newest.exchange_seconds is not None:
            both = twin.n_steps * twin.exchange_seconds + newest.n_steps * newest.exchange_seconds
            merged = replace(merged, exchange_seconds=both / n_steps)
        self.samples = (*(old for old in others if old is not twin), merged)

    def _tell_loss(self, training: Training) -> None:
        loss = training.loss()
        if loss is None:
            return
        noise = self.options.loss_noise * float(self.random.standard_normal())
        self.loss_steps = (*self.loss_steps, training.step)
        self.losses = (*self.losses, loss * float(np.exp(noise)))


# --- the job ---------------------------------------------------------------------------------------------------------

_PREDICTION_SPACING = 1.1
"""Predictions are noted at steps that grow by this factor."""


@dataclass(slots=True)
class RunningJob:
    """A job from its arrival to its end."""

    entry: TraceJob
    training: Training
    telemetry: Telemetry

    state: JobState = JobState.QUEUED
    started_at: float | None = None
    finished_at: float | None = None
    allocation: Allocation = NOTHING
    allocated_at: float | None = None
    directive: Directive = Directive.RUN
    wanted: tuple[PlacedTask, ...] = ()
    shape: Shape = ()
    """Empty while the job has no tasks or one of them is dead."""
    factor: float = 1.0
    """What stragglers and interference leave of its speed."""
    stopped_until: float = 0.0
    """It makes no progress before."""
    updated_at: float = 0.0
    """The instant that `training` stands at."""
    share: float = 0.0
    """Dominant share that it holds."""
    cost_per_second: float = 0.0
    """What its tasks cost, at the prices of the settings."""
    spent: float = 0.0
    version: int = 0
    """Grows with every change of its tasks: events made for an earlier one are void."""
    restarts: int = 0
    """Times that it got other tasks after its first ones."""
    batch_changes: int = 0
    """Times that its batch changed and nothing else did."""
    attained_share_seconds: float = 0.0
    trained_share_seconds: float = 0.0
    """That part of it in which it made progress."""
    predicted: list[tuple[float, float]] = field(default_factory=list)
    """(steps done, steps in all as they were predicted then)."""
    predictions: Predictions = field(init=False)
    first_answer: Answer | None = None
    """What was said of its deadline at its submission."""
    promised_at: float | None = None
    """When it was promised to meet its deadline."""

    def __post_init__(self) -> None:
        self.predictions = Predictions(self.entry.submitted_at, [])

    @property
    def id(self) -> str:
        return self.entry.id

    def advance(self, now: float) -> None:
        """Let it train until `now`; sets `finished_at` when it ends on the way."""
        begin, self.updated_at = self.updated_at, now
        if not self.share or self.finished_at is not None:
            return
        start = max(begin, self.stopped_until)
        if self.shape and start < now:
            self._train(start, now)
        until = now if self.finished_at is None else self.finished_at
        self.attained_share_seconds += self.share * (until - begin)
        self.spent += self.cost_per_second * (until - begin)

    def _train(self, start: float, now: float) -> None:
        before = self.training.updates
        used = self.training.advance(now - start, self.shape, self.factor)
        self.trained_share_seconds += self.share * used
        if self.training.is_done:
            self.finished_at = start + used
        else:
            self.telemetry.trained(now, self.training.updates - before, used, self.training)

    def note_predicted_steps(self, total_steps: Interval | None) -> None:
        """What the scheduler believes of its end, noted whenever it has come a tenth further."""
        step = self.training.step
        if total_steps is None or step < 1 or (self.predicted and step < self.predicted[-1][0] * _PREDICTION_SPACING):
            return
        self.predicted.append((step, total_steps.mean))

    def wants_prediction(self, now: float, spacing: float) -> bool:
        """Whether what is said of its time left now will be judged."""
        return self.predictions.is_due(now, self.started_at, spacing)

    def answer(self, left: Interval | None, now: float) -> None:
        """Say what is to be said of its deadline; what was promised stays promised."""
        deadline = self.entry.spec.deadline_at
        if deadline is None or self.promised_at is not None:
            return
        answer = answer_to(deadline, left, now).answer
        self.first_answer = self.first_answer or answer
        if answer is Answer.PROMISED:
            self.promised_at = now

    def judged_predictions(self) -> tuple[Judged, ...]:
        """What it was told about its end, now that it has ended."""
        assert self.started_at is not None
        assert self.finished_at is not None
        return self.predictions.judged(self.started_at, self.finished_at)

    def judged_step_predictions(self) -> tuple[tuple[float, float], ...]:
        """(part of the steps done, predicted steps in all by the true ones), now that it has ended."""
        true = max(self.training.step, 1e-9)
        return tuple((step / true, total / true) for step, total in self.predicted)

    def ends_at(self, now: float) -> float:
        """When it will be done if nothing changes; infinite while it makes no progress."""
        if not self.shape:
            return math.inf
        return max(now, self.stopped_until) + self.training.seconds_left(self.shape, self.factor)

    def seen(
        self,
        similar: tuple[EndedJob, ...] = (),
        experience: Experience = NO_EXPERIENCE,
        boundary: Boundary | None = None,
    ) -> Job:
        """The job as the service would know it, with ended jobs of its family, how predictions turned out, and where it
        leaves a node."""
        telemetry = self.telemetry
        return Job(
            id=self.entry.id,
            spec=self.entry.spec,
            state=self.state,
            submitted_at=self.entry.submitted_at,
            started_at=self.started_at,
            step=int(self.training.step),
            steps_per_epoch=self.training.steps_per_epoch() if self.started_at is not None else None,
            epochs=self.training.epochs() if self.started_at is not None else None,
            loss_steps=telemetry.loss_steps,
            losses=telemetry.losses,
            speed_samples=telemetry.samples,
            similar=similar,
            spent=self.spent,
            allocation=self.allocation,
            allocated_at=self.allocated_at,
            directive=self.directive,
            rescale_seconds=telemetry.stops,
            wanted_tasks=self.wanted,
            attained_share_seconds=self.attained_share_seconds,
            batch=self.training.batch,
            promised_at=self.promised_at,
            noise_steps=telemetry.noise_steps,
            noise_scales=telemetry.noise_scales,
            experience=experience,
            boundary=boundary,
        )

    def taught(self, judged_from: int) -> EndedJob:
        """What it says about others of its family, now that it has ended. `judged_from`: as of `EndedJob`."""
        spec, telemetry = self.entry.spec, self.telemetry
        return EndedJob(
            id=self.entry.id,
            task=spec.family,
            project=spec.project,
            steps_per_epoch=self.training.steps_per_epoch(),
            loss_steps=telemetry.loss_steps,
            losses=telemetry.losses,
            speed_samples=telemetry.samples,
            mode=spec.mode,
            architecture=spec.architecture,
            global_batch_size=spec.counted_batch,
            total_steps=int(self.training.step),
            rule=spec.convergence,
            noise_steps=telemetry.noise_steps,
            noise_scales=telemetry.noise_scales,
            judged_from=judged_from,
        )
