"""One job in the simulated cluster: what it has, how far it is, and how the scheduler sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from optimus_scheduler.ahead.deadlines import Answer, answer_to
from optimus_scheduler.model import NOTHING, Allocation, Directive, EndedJob, Interval, Job, JobState, PlacedTask
from optimus_simulator.promises import Judged, Promises
from optimus_simulator.telemetry import Telemetry
from optimus_simulator.trace import TraceJob
from optimus_simulator.truth import Shape, Training

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
    promises: Promises = field(init=False)
    first_answer: Answer | None = None
    """What was said of its deadline at its submission."""
    promised_at: float | None = None
    """When it was promised to meet its deadline."""

    def __post_init__(self) -> None:
        self.promises = Promises(self.entry.submitted_at, [])

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

    def note_prediction(self, total_steps: Interval | None) -> None:
        """What the scheduler believes of its end, noted whenever it has come a tenth further."""
        step = self.training.step
        if total_steps is None or step < 1 or (self.predicted and step < self.predicted[-1][0] * _PREDICTION_SPACING):
            return
        self.predicted.append((step, total_steps.mean))

    def wants_promise(self, now: float, spacing: float) -> bool:
        """Whether what is said of its time left now will be judged."""
        return self.promises.is_due(now, self.started_at, spacing)

    def answer(self, left: Interval | None, now: float) -> None:
        """Say what is to be said of its deadline; what was promised stays promised."""
        deadline = self.entry.spec.deadline_at
        if deadline is None or self.promised_at is not None:
            return
        answer = answer_to(deadline, left, now).answer
        self.first_answer = self.first_answer or answer
        if answer is Answer.PROMISED:
            self.promised_at = now

    def judged_promises(self) -> tuple[Judged, ...]:
        """What it was promised about its end, now that it has ended."""
        assert self.started_at is not None
        assert self.finished_at is not None
        return self.promises.judged(self.started_at, self.finished_at)

    def judged_predictions(self) -> tuple[tuple[float, float], ...]:
        """(part of the steps done, predicted steps in all by the true ones), now that it has ended."""
        true = max(self.training.step, 1e-9)
        return tuple((step / true, total / true) for step, total in self.predicted)

    def ends_at(self, now: float) -> float:
        """When it will be done if nothing changes; infinite while it makes no progress."""
        if not self.shape:
            return math.inf
        return max(now, self.stopped_until) + self.training.seconds_left(self.shape, self.factor)

    def seen(self, similar: tuple[EndedJob, ...] = ()) -> Job:
        """The job as the service would know it, with ended jobs of its family."""
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
        )

    def taught(self) -> EndedJob:
        """What it says about others of its family, now that it has ended."""
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
        )
