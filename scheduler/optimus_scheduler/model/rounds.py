"""What goes into a round and what comes out: a snapshot, forecasts, decisions, actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from optimus_models.calibration import UNCALIBRATED, Calibration
from optimus_models.speed.course import AS_MEASURED, CourseToCome
from optimus_scheduler.model.enums import Architecture, Directive, Reason, SpeedSource
from optimus_scheduler.model.jobs import Job
from optimus_scheduler.model.resources import Node, Nodes, Quota, Resources, WorkerLimit
from optimus_scheduler.model.tasks import Allocation, PlacedTask, Task, TaskKey

_NO_FIGURES: Mapping[str, float] = MappingProxyType({})
StartUps = Mapping[tuple[str, Architecture], tuple[float, ...]]
"""By family and architecture of jobs: seconds from the start of first tasks until they took part, newest last."""
_NO_START_UPS: StartUps = MappingProxyType({})


# Dataclasses refuse unhashable defaults, which read-only mappings are.
def _no_start_ups() -> StartUps:
    return _NO_START_UPS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The world at one instant, as much of it as decisions need."""

    now: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    """Active jobs only (queued, running, paused), any order."""
    tasks: tuple[Task, ...] = ()
    """Live tasks, and of each active job's (role, rank) the newest incarnation, exited or not."""
    quotas: tuple[Quota, ...] = ()
    """Of the projects that have one, any order."""
    worker_limits: tuple[WorkerLimit, ...] = ()
    """Any order."""
    start_ups: StartUps = field(default_factory=_no_start_ups)
    """No decision goes by them, only what is told of starts and ends."""

    @property
    def capacity(self) -> Resources:
        """What the schedulable nodes offer together."""
        return Nodes.of(self.nodes).capacity


REACH = 1.2816
"""Standard deviations from the middle of a normal distribution to the ends of its 80 % interval."""


class Interval(NamedTuple):
    """A prediction with its 80 % interval: `low <= mean <= high`. A tuple, as each round makes two for every job."""

    mean: float
    low: float
    high: float


class Forecast(NamedTuple):
    """What a round believes of one job. Every `None` means: nothing can be said yet. A tuple, as each round makes one
    for every job."""

    job_id: str
    total_steps: Interval | None
    """Steps at which the convergence rule will hold."""
    remaining_steps: Interval | None
    confidence: float
    """0 (nothing known) to 1 (as sure as the model gets)."""
    rule: str | None = None
    """Which part of the convergence rule is expected to hold first (its field name)."""
    loss_curve: Mapping[str, float] = _NO_FIGURES
    """β0, β1, β2 of Eq. 1 and the largest loss, when fitted."""
    speed_model: Mapping[str, float] = _NO_FIGURES
    """Coefficients and error of the fitted speed model."""
    steps_per_second: float | None = None
    """Predicted speed at the present allocation."""
    remaining_seconds: Interval | None = None
    """Predicted time left at the present allocation."""
    seconds_per_step: Interval | None = None
    """... of one step over the rest of the job, with the evaluations, checkpoints and stops that are expected."""
    calibration: Calibration = UNCALIBRATED
    """What the intervals of steps and seconds that are left were multiplied by, for how earlier ones turned out."""
    finished_runs: int = 0
    """How many ended jobs of the same task the loss curve was judged by ..."""
    finished_runs_share: float = 0.0
    """... and how much they counted beside the job's own losses, 0 to 1."""
    speed_from: SpeedSource | None = None
    """What predicted speeds rest on; None when nothing is known."""
    cost: Interval | None = None
    """Predicted money still to be spent at the present allocation; None without prices."""
    converged: bool = False
    seconds_after_steps: Interval | None = None
    """From its last step to its end, as of ended runs like it; in no time left above, by which decisions are made."""
    course: CourseToCome = AS_MEASURED
    """How its pace goes on from its step on, as that of ended runs did: in all times above, and in no speed."""

    def later(
        self, left: Interval | None, pace: Interval | None, calibration: Calibration, cost: Interval | None
    ) -> Forecast:
        """The same at another time, with the seconds that are left, those of a step, how they were corrected, and what
        they cost: in a tenth of the time that `_replace` takes."""
        steps, learned = self[:_LEFT], self[_FINISHED_RUNS:_COST]
        return tuple.__new__(Forecast, (*steps, left, pace, calibration, *learned, cost, *self[_COST + 1 :]))

    @property
    def around_times(self) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """What comes before `remaining_seconds` and `seconds_per_step`, and what comes after them."""
        return self[:_LEFT], self[_LEFT + 2 :]

    def with_steps_left(self, left: Interval) -> Forecast:
        """The same with so many steps left, as quickly."""
        return tuple.__new__(Forecast, (*self[:_STEPS_LEFT], left, *self[_STEPS_LEFT + 1 :]))


_STEPS_LEFT, _LEFT, _FINISHED_RUNS, _COST = map(
    Forecast._fields.index, ("remaining_steps", "remaining_seconds", "finished_runs", "cost")
)


class Decision(NamedTuple):
    """What a round decided for one job, and why. A tuple, as each round makes one for every job."""

    job_id: str
    allocation: Allocation
    previous: Allocation
    reason: Reason
    message: str
    """One sentence for the job's owner."""
    forecast: Forecast
    gain: float | None = None
    """Marginal gain of the last task granted (see the policy for its unit)."""
    next_gain: float | None = None
    """Marginal gain that one more task would have had; None: not known, or worth no share."""
    batch: int | None = None
    """The global batch that goes with the allocation; None for a job without an elastic batch."""


@dataclass(frozen=True, slots=True)
class SetWanted:
    """The tasks that a job should have from now on. Applied as a new membership generation if it differs."""

    job_id: str
    allocation: Allocation
    directive: Directive
    tasks: tuple[PlacedTask, ...]
    """Workers and servers, sorted by key; the coordinator is not part of it."""
    batch: int | None = None
    """The global batch from now on; None for a job without an elastic batch."""
    paused_by: str | None = None
    """Of a job that loses all it has to others: who has it pause, in words."""


class StartTask(NamedTuple):
    """Start a task on a node. Idempotent: the task's name is its identity. A tuple, as there are as many as tasks."""

    task: PlacedTask


@dataclass(frozen=True, slots=True)
class StopTask:
    """Stop a task: SIGTERM at first, SIGKILL with `force`."""

    key: TaskKey
    force: bool = False


Action = SetWanted | StartTask | StopTask


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of one round."""

    decisions: tuple[Decision, ...]
    """One per active job, sorted by job id."""
    actions: tuple[Action, ...]
    """In the order in which they are to be applied."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Left empty by `plan` (which has no clock); a shell that times the phases fills it in."""
    again_at: float | None = None
    """When the next round is due at the latest, POSIX seconds: a job that waits has to begin then."""
