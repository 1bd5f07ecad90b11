"""Jobs: their specification, their reports so far, and the reports of ended jobs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from optimus_models.calibration import NO_EXPERIENCE, Experience
from optimus_models.speed.boundary import Boundary
from optimus_models.speed.goodput import ElasticBatch
from optimus_scheduler.model.enums import Architecture, Directive, JobState, Mode, Role
from optimus_scheduler.model.resources import Resources, gpu_type_of
from optimus_scheduler.model.tasks import NOTHING, Allocation, PlacedTask, TaskKey
from optimus_scheduler.retries import Retry


@dataclass(frozen=True, slots=True)
class TaskDemand:
    """What one worker or one server of a job needs, and how many of them the job may have."""

    resources: Resources
    minimum: int = 1
    maximum: int = 16


@dataclass(frozen=True, slots=True)
class MetricTarget:
    """A value that one of the figures of the job's own evaluation has to reach."""

    name: str
    """As the job's `evaluate` calls it, for example `test_accuracy`."""
    at_least: float | None = None
    """The metric rises to this ..."""
    at_most: float | None = None
    """... or falls to this; one of the two is given."""
    best: float | None = None
    """The best value that a rising metric can have; None: 1, or 100 for targets above 1."""

    @property
    def value(self) -> float:
        """The target itself."""
        value = self.at_least if self.at_least is not None else self.at_most
        assert value is not None, "one of at_least and at_most is given"
        return value


BY_CLOCK = ("max_seconds", "max_cost")
"""Limits whose seconds are as good as certain, and whose steps follow from them."""
LIMIT_RULES = frozenset({"max_steps", "max_epochs", "max_seconds", "max_cost"})
"""Fields of a convergence rule that end a job whether or not it has learned what it could."""


@dataclass(frozen=True, slots=True)
class ConvergenceRule:
    """When a job is done: the first of the given conditions to hold.

    `loss_decrease`: the fitted loss falls by less than this from one epoch to the next, for `patience_epochs`
    consecutive epochs; relative to the loss of the epoch before when `relative`, otherwise as a fraction of the
    largest loss of the run (paper, section 2.1).
    """

    loss_decrease: float | None = None
    relative: bool = True
    patience_epochs: int = 3
    target_loss: float | None = None
    max_steps: int | None = None
    ends_itself: bool = False
    """`max_steps` is no limit of its owner: a script has announced that it ends there by itself."""
    max_epochs: float | None = None
    max_seconds: float | None = None
    target_metric: MetricTarget | None = None
    """A figure of the job's own evaluation, judged on its fitted curve."""
    max_cost: float | None = None
    """Money spent, at the prices of `Settings`."""

    @property
    def has_clock(self) -> bool:
        """Whether time alone, or money, may end it."""
        return self.max_seconds is not None or self.max_cost is not None

    @property
    def without_clock(self) -> ConvergenceRule:
        """The same without limits of time and money."""
        return replace(self, max_seconds=None, max_cost=None) if self.has_clock else self


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The part of a submitted job that decisions depend on."""

    worker: TaskDemand
    server: TaskDemand
    convergence: ConvergenceRule
    mode: Mode = Mode.SYNC
    architecture: Architecture = Architecture.PS
    global_batch_size: int | None = None
    """Examples in one step over all workers (sync) or in one worker's mini-batch (async); None until reported."""
    priority: float = 1.0
    """Multiplies the job's gain; above 0."""
    requested_workers: int | None = None
    """The one size that a policy gives which does not choose sizes; None: the maximum."""
    requested_servers: int | None = None
    """... and of servers."""
    gpu_types: tuple[str, ...] = ()
    """GPU types that the workers may run on, one at a time; empty: the one that `worker.resources` names."""
    family: str = ""
    """What the job trains (its task's import path): speeds of the same family carry over between GPU types."""
    arguments: tuple[str, ...] = ()
    """Of a script: the words of its command after it. Runs of one family do the same work where these are equal."""
    project: str = "default"
    """Whose quota it counts against."""
    deadline_at: float | None = None
    """When it should be done, POSIX seconds."""
    elastic_batch: ElasticBatch | None = None
    """Its global batch may be chosen within these bounds; None: it is fixed. See `Job.step` for how steps count."""
    announced_steps: int | None = None
    """Of a command that goes on after all steps that it announced: how many these were."""
    tracked: bool = False
    """It runs outside the cluster, by its owner's own means: it is forecast, and nothing is decided about it."""
    size_stays: bool = False
    """Its owner allows other sizes, but a change would make it begin anew, or go on from the wrong step."""
    may_grow: bool = True
    """Whether it may have more workers where its owner allows more: not a script whose command starts one process, or
    that a change of size would make begin anew, or go on from the wrong step."""
    gpu_type: str | None = field(init=False, compare=False, repr=False)
    """The GPU type that `worker.resources` names; None for a CPU job."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpu_type", gpu_type_of(self.worker.resources))
        if self.elastic_batch is not None and self.architecture is not Architecture.ALLREDUCE:
            raise ValueError("only all-reduce jobs may have an elastic batch")

    @property
    def counted_batch(self) -> int | None:
        """The batch in whose steps work is counted."""
        return self.elastic_batch.minimum if self.elastic_batch is not None else self.global_batch_size

    @property
    def smallest(self) -> Allocation:
        """The fewest tasks that the job trains with."""
        return Allocation(self.worker.minimum, self.server.minimum, self.gpu_type)

    @property
    def asked_size(self) -> tuple[int, int]:
        """Workers and servers that a policy gives which does not choose sizes: what the owner asked for, within minimum
        and maximum."""
        return _within(self.requested_workers, self.worker), _within(self.requested_servers, self.server)

    def on(self, gpu_type: str | None) -> JobSpec:
        """The same job with workers on this one GPU type; unchanged for a CPU job and for None."""
        if gpu_type is None or self.gpu_type in (None, gpu_type):
            return self
        worker = self.worker.resources
        resources = replace(worker, gpus={gpu_type: sum(worker.gpus.values())})
        return replace(self, worker=replace(self.worker, resources=resources))

    def need(self, role: Role) -> Resources:
        """What one task takes; a coordinator is not allocated: it takes next to nothing."""
        match role:
            case Role.WORKER:
                return self.worker.resources
            case Role.SERVER:
                return self.server.resources
            case Role.COORDINATOR:
                return Resources()

    def demand(self, workers: int, servers: int) -> Resources:
        """What that many tasks take together."""
        return self.worker.resources * workers + self.server.resources * servers


def _within(count: int | None, demand: TaskDemand) -> int:
    return demand.maximum if count is None else min(max(count, demand.minimum), demand.maximum)


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """A measured speed: what the job did with `workers` and `servers`.

    `steps_per_second` counts steps of the whole job (in async mode, all workers together).
    """

    workers: int
    servers: int
    steps_per_second: float
    n_steps: int = 1
    """How many steps the measurement covers: its weight."""
    at: float = 0.0
    gpu_type: str | None = None
    batch: int | None = None
    """Of a job with an elastic batch: the global batch that it had."""
    exchange_seconds: float | None = None
    """Of an all-reduce job: the part of each step in which gradients travelled and nothing was computed."""


class SilentRun(NamedTuple):
    """How long a job trained that told too few steps to measure a speed, and had one size all the time."""

    workers: int
    servers: int
    seconds: float


COMMAND_ENDS = "command_ends"
"""That a command ended by itself, among the parts of rules that end jobs."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The reports of a job that ended well, as far as they apply to later jobs of the same task.

    It never changes, so its id alone tells it from others.
    """

    id: str
    task: str = field(compare=False)
    """The import path of its code, or what its command runs: jobs with the same one are of one family."""
    project: str = field(compare=False)
    steps_per_epoch: float | None = field(compare=False)
    """Runs are compared epoch by epoch: a batch twice as large makes half as many steps. None: it knew no epochs, and
    reports its speeds only."""
    loss_steps: tuple[float, ...] = field(default=(), compare=False)
    losses: tuple[float, ...] = field(default=(), compare=False)
    rate_steps: tuple[float, ...] = field(default=(), compare=False)
    learning_rates: tuple[float, ...] = field(default=(), compare=False)
    """As in `Job`; empty: it did not report them."""
    speed_samples: tuple[SpeedSample, ...] = field(default=(), compare=False)
    mode: Mode = field(default=Mode.SYNC, compare=False)
    architecture: Architecture = field(default=Architecture.PS, compare=False)
    global_batch_size: int | None = field(default=None, compare=False)
    total_steps: int = field(default=0, compare=False)
    """Steps at its end; 0 when that is not known ..."""
    rule: ConvergenceRule | None = field(default=None, compare=False)
    """... and its rule ..."""
    ended_by: str | None = field(default=None, compare=False)
    """... of which this part ended it, by its name; `COMMAND_ENDS`: none, its command ended by itself. None: not known,
    one of those that may have."""
    announced_steps: int | None = field(default=None, compare=False)
    """After how many steps its command said that it would end, where the command ended by itself, then or sooner."""
    device: str | None = field(default=None, compare=False)
    """What its workers computed on (`cold_start.device_name`) ..."""
    percent_of_peak: float | None = field(default=None, compare=False)
    """... and which part of that device's arithmetic speed they reached, where that was measured."""
    noise_steps: tuple[float, ...] = field(default=(), compare=False)
    noise_scales: tuple[float, ...] = field(default=(), compare=False)
    """As in `Job`."""
    rescale_seconds: tuple[float, ...] = field(default=(), compare=False)
    """As in `Job`, the newest ones."""
    arguments: tuple[str, ...] = field(default=(), compare=False)
    """As in `JobSpec`."""
    silent: SilentRun | None = field(default=None, compare=False)
    """Of one that told no step, or too few to measure a speed: all that it teaches is how long it took."""
    seconds_after_steps: float | None = field(default=None, compare=False)
    """From its last step to its end, of a command that made all steps that it announced, or announced none, and ended
    by itself."""
    busy_seconds: float = field(default=0.0, compare=False)
    """Its first worker made steps for so long ..."""
    reported_seconds: float = field(default=0.0, compare=False)
    """... between its first and its last report; else it evaluated and wrote checkpoints. 0: not known."""
    report_seconds: float = field(default=0.0, compare=False)
    """As in `Job`; 0: not known."""
    judged_from: int | None = field(default=None, compare=False)
    """From so many losses on its rule about their decrease was judged; None: not known."""
    pace_steps: tuple[float, ...] = field(default=(), compare=False)
    """Steps in the middle of the parts of its course, increasing ..."""
    pace_seconds: tuple[float, ...] = field(default=(), compare=False)
    """... and the mean seconds of a step in each of them, without stops, evaluations and checkpoints. Empty: not known,
    or its size changed on the way."""

    @property
    def n_epochs(self) -> float:
        """Epochs at its end; 0 when that is not known."""
        return self.total_steps / self.steps_per_epoch if self.steps_per_epoch else 0.0

    @property
    def counts_epochs(self) -> bool:
        """Whether an epoch is a step, as of a script that reports nothing else."""
        return self.steps_per_epoch == 1.0


def waits_since(state: JobState, submitted_at: float, allocated_at: float | None, held_until: float | None) -> float:
    """Since when a job without tasks waits for some, POSIX seconds: since it came, or lost those that it trained with,
    but not while a wait after an error or its owner kept it from having any."""
    has_trained = state is not JobState.QUEUED and allocated_at is not None
    since = allocated_at if has_trained and allocated_at is not None else submitted_at
    return since if held_until is None else max(since, held_until)


@dataclass(frozen=True, slots=True)
class Job:
    """One active job as a round sees it: its specification, its allocation, its reports so far."""

    id: str
    spec: JobSpec
    state: JobState
    submitted_at: float
    started_at: float | None = None
    owner: str | None = None
    """Who submitted it, where limits of its owner are to hold."""
    step: int = 0
    """Steps completed. As in all reports, a job with an elastic batch counts scale-invariant
    steps: so many with its smallest batch would have achieved the same."""
    silent_since: float | None = None
    """When the newest step came, or what trains took part after it, POSIX seconds; None: not known."""
    report_seconds: float = 0.0
    """Between two reports of steps of late: for so long it makes steps that nobody is told of yet."""
    steps_per_epoch: float | None = None
    """None until the job's tasks have reported it."""
    epochs: float | None = None
    """Epochs completed, with the part of the running one, of a job whose epochs may differ in steps.

    None: `step` by `steps_per_epoch`.
    """
    loss_steps: tuple[float, ...] = ()
    """Steps of the (down-sampled) loss history, increasing."""
    losses: tuple[float, ...] = ()
    """Loss at each of `loss_steps`; may hold NaN and infinities."""
    rate_steps: tuple[float, ...] = ()
    """Steps, counted from 0, of the (down-sampled) learning rates, increasing."""
    learning_rates: tuple[float, ...] = ()
    """Learning rate of each of `rate_steps`, as it was reported."""
    planned_rate_steps: tuple[float, ...] = ()
    """Steps of the planned schedule of learning rates, increasing."""
    planned_rates: tuple[float, ...] = ()
    """Learning rate of each of `planned_rate_steps`: straight lines between them. Only their ratios count: a batch that
    grows may multiply all of them."""
    metric_steps: tuple[float, ...] = ()
    """Steps at which the metric of `spec.convergence.target_metric` was evaluated, increasing."""
    metric_values: tuple[float, ...] = ()
    """Its value at each of `metric_steps`."""
    speed_samples: tuple[SpeedSample, ...] = ()
    calculated_speeds: tuple[SpeedSample, ...] = ()
    """Speeds at some sizes by arithmetic, from the layers of its network: for as long as nothing is measured."""
    similar: tuple[EndedJob, ...] = ()
    """Ended jobs of the same task, oldest first, that its future may be judged by."""
    spent: float = 0.0
    """Money spent so far, at the prices of `Settings`; 0 without prices."""
    allocation: Allocation = NOTHING
    """What the job was last given (wanted), whether or not all tasks run yet."""
    formed: Allocation | None = None
    """What trains, which may not be `allocation` yet; None: as `allocation`."""
    allocated_at: float | None = None
    """When `allocation` last changed."""
    directive: Directive = Directive.RUN
    rescale_seconds: tuple[float, ...] = ()
    """Observed stopped seconds of this job's past membership changes, oldest first."""
    joining_seconds: tuple[float, ...] = ()
    """Seconds that new tasks took from their start until they took part, at each past change, oldest first."""
    unsaved_seconds: float = 0.0
    """Training time that a pause would lose: since its last start, of a script that keeps no checkpoint."""
    began_at_step: int = 0
    """The step from which such a script would begin anew: above 0 with a checkpoint from before the job."""
    wanted_tasks: tuple[PlacedTask, ...] = ()
    """The workers and servers behind `allocation`, sorted by key."""
    stragglers: tuple[TaskKey, ...] = ()
    """Workers much slower than the others, the slowest first."""
    attained_share_seconds: float = 0.0
    """Dominant share held, integrated over time: service received so far."""
    batch: int | None = None
    """With an elastic batch: the global batch that the scheduler last set."""
    retry: Retry | None = None
    """After a failure of its owner's code: until this is due, it gets nothing."""
    held_until: float | None = None
    """Until when it could have nothing, POSIX seconds: a wait after an error ended, or its owner let it begin."""
    owner_paused: bool = False
    """Its owner paused it, or who may act for the owner: it gets nothing."""
    paused_by: str | None = None
    """Who took what it had, in words; None: nobody, or not known."""
    promised_at: float | None = None
    """When it was promised that it meets its deadline, POSIX seconds; None: it was not."""
    noise_steps: tuple[float, ...] = ()
    """Steps at which the noise scale of its gradients was measured, increasing."""
    noise_scales: tuple[float, ...] = ()
    """tr(Σ)/|G|² at each of `noise_steps`, in examples (`optimus_models.speed.goodput`)."""
    busy_part: float = 1.0
    """Part of the time between its reports in which it made steps; the rest went to evaluations and checkpoints."""
    experience: Experience = NO_EXPERIENCE
    """How earlier predictions turned out, by which its intervals are corrected."""
    boundary: Boundary | None = None
    """Where its ring leaves a node, and what is believed of its speed there; None: not known, or it never does."""

    @property
    def waits_since(self) -> float:
        """Since when it waits, if it has no tasks; in the future while it may have none."""
        return waits_since(self.state, self.submitted_at, self.allocated_at, self.held_until)
