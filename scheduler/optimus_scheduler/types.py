"""The values that a scheduling round reads and writes.

Everything here is immutable and knows no clock, database or network: a `Snapshot` goes into
`optimus_scheduler.cycle.plan`, a `Plan` comes out. The service and the simulator both speak these types.

Units: seconds, bytes, CPU cores, steps per second. Times are POSIX timestamps (UTC seconds).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from optimus_models.elastic_batch import ElasticBatch
from optimus_scheduler.asked_once import asked_once

NO_GPUS: Mapping[str, int] = MappingProxyType({})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_NO_FIGURES: Mapping[str, float] = MappingProxyType({})


# Dataclasses refuse unhashable defaults, which read-only mappings are: hence the factories.
def _no_gpus() -> Mapping[str, int]:
    return NO_GPUS


def _nothing_named() -> Mapping[str, str]:
    return _NO_LABELS


def _nothing_known() -> Mapping[str, float]:
    return _NO_FIGURES


class Words(StrEnum):
    """One of a few fixed words."""

    # What an enumeration inherits is a function in Python: keys with a role are looked up for every task there is.
    __hash__ = str.__hash__


class Role(Words):
    """What a task does for its job."""

    WORKER = "worker"
    """Computes gradients."""
    SERVER = "server"
    """A parameter server: holds one range of the parameters and applies updates to it."""
    COORDINATOR = "coordinator"
    """One small process per job that owns membership and the step gate; it is not allocated by gain."""


class JobState(Words):
    """`queued → running ⇄ paused → succeeded | failed | cancelled`."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Mode(Words):
    """How worker updates are combined."""

    SYNC = "sync"
    """One step uses the whole global batch, shared among the workers (its size does not depend on w)."""
    ASYNC = "async"
    """One step is one worker's mini-batch, applied when it arrives."""


class Architecture(Words):
    """How gradients travel."""

    PS = "ps"
    ALLREDUCE = "allreduce"


class Directive(Words):
    """What the scheduler wants a job's coordinator to do at the next step boundary."""

    RUN = "run"
    """Train with the wanted tasks."""
    PAUSE = "pause"
    """Write a checkpoint and let all tasks go; the job will be given tasks again later."""
    FINISH = "finish"
    """The job has converged: checkpoint, evaluate, report the result, exit."""
    CANCEL = "cancel"
    """Stop at once, without evaluating."""


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each resource: CPU cores, memory in bytes, GPUs by type."""

    cpu: float = 0.0
    memory_bytes: int = 0
    gpus: Mapping[str, int] = field(default_factory=_no_gpus)

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu + other.cpu, self.memory_bytes + other.memory_bytes, _combine(self.gpus, other.gpus, 1)
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            self.cpu - other.cpu, self.memory_bytes - other.memory_bytes, _combine(self.gpus, other.gpus, -1)
        )

    def __mul__(self, count: int) -> Resources:
        if count == 1:
            return self
        return Resources(
            self.cpu * count, self.memory_bytes * count, {kind: number * count for kind, number in self.gpus.items()}
        )

    def fits_in(self, room: Resources) -> bool:
        """Whether `room` holds this amount of every resource (cores are compared to within 1e-9)."""
        return (
            self.cpu <= room.cpu + 1e-9
            and self.memory_bytes <= room.memory_bytes
            and all(number <= room.gpus.get(kind, 0) for kind, number in self.gpus.items())
        )

    def dominant_share(self, capacity: Resources) -> float:
        """The largest fraction of `capacity` that this amount takes of any one resource.

        Infinite when something is asked for that the capacity has none of. (Ghodsi et al., NSDI 2011.)
        """
        shares = [_share(self.cpu, capacity.cpu), _share(self.memory_bytes, capacity.memory_bytes)]
        shares += [_share(number, capacity.gpus.get(kind, 0)) for kind, number in self.gpus.items()]
        return max(shares)


def gpu_type_of(resources: Resources) -> str | None:
    """The GPU type that is asked for; None if none is."""
    gpus = resources.gpus
    if not gpus:
        return None
    if len(gpus) == 1:  # nearly always
        ((kind, count),) = gpus.items()
        return kind if count > 0 else None
    return next((kind for kind, count in sorted(gpus.items()) if count > 0), None)


def total_of(amounts: Iterable[Resources]) -> Resources:
    """All of them together, in one go: a cluster may have tens of thousands of nodes."""
    cpu, memory_bytes, gpus = 0.0, 0, dict[str, int]()
    for amount in amounts:
        cpu += amount.cpu
        memory_bytes += amount.memory_bytes
        for kind, count in amount.gpus.items():
            gpus[kind] = gpus.get(kind, 0) + count
    return Resources(cpu, memory_bytes, dict(sorted(gpus.items())) if gpus else NO_GPUS)


def _combine(left: Mapping[str, int], right: Mapping[str, int], sign: int) -> Mapping[str, int]:
    if not right:
        return left
    if not left and sign > 0:
        return right
    return {kind: left.get(kind, 0) + sign * right.get(kind, 0) for kind in sorted({*left, *right})}


def _share(amount: float, capacity: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / capacity if capacity > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that tasks can be placed on. `capacity` is what Optimus may use of it."""

    name: str
    capacity: Resources
    schedulable: bool = True
    """False for a cordoned or lost node: nothing new is placed there."""
    labels: Mapping[str, str] = field(default_factory=_nothing_named)


@asked_once
def _capacity(nodes: Sequence[Node]) -> Resources:
    return total_of(node.capacity for node in nodes if node.schedulable)


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
    max_epochs: float | None = None
    max_seconds: float | None = None
    target_metric: MetricTarget | None = None
    """A figure of the job's own evaluation, judged on its fitted curve."""
    max_cost: float | None = None
    """Money spent, at the prices of `Settings`."""


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
    project: str = "default"
    """Whose quota it counts against."""
    deadline_at: float | None = None
    """When it should be done, POSIX seconds."""
    elastic_batch: ElasticBatch | None = None
    """Its global batch may be chosen within these bounds; None: it is fixed. See `Job.step` for how steps count."""

    def __post_init__(self) -> None:
        if self.elastic_batch is not None and self.architecture is not Architecture.ALLREDUCE:
            raise ValueError("only all-reduce jobs may have an elastic batch")

    @property
    def counted_batch(self) -> int | None:
        """The batch in whose steps work is counted."""
        return self.elastic_batch.minimum if self.elastic_batch is not None else self.global_batch_size

    @property
    def gpu_type(self) -> str | None:
        """The GPU type that `worker.resources` names; None for a CPU job."""
        return gpu_type_of(self.worker.resources)

    def on(self, gpu_type: str | None) -> JobSpec:
        """The same job with workers on this one GPU type; unchanged for a CPU job and for None."""
        if gpu_type is None or self.gpu_type in (None, gpu_type):
            return self
        worker = self.worker.resources
        resources = replace(worker, gpus={gpu_type: sum(worker.gpus.values())})
        return replace(self, worker=replace(self.worker, resources=resources))


@dataclass(frozen=True, slots=True)
class Quota:
    """What a project is guaranteed of the cluster. What it does not use, others may borrow."""

    project: str
    share: float | None = None
    """Fraction of everything, 0 to 1."""
    cpu: float | None = None
    """CPU cores; with `memory_bytes` and `gpus` it overrules `share` for that resource."""
    memory_bytes: int | None = None
    gpus: Mapping[str, int] = field(default_factory=_no_gpus)
    may_borrow: bool = True
    """Whether it may have more than that while others leave it idle."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """How many workers and parameter servers a job has, and on which GPU type (None: CPU only)."""

    workers: int
    servers: int
    gpu_type: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.workers == 0 and self.servers == 0


NOTHING = Allocation(0, 0)


@dataclass(frozen=True, slots=True, order=True)
class TaskKey:
    """Names one task. A replacement of the same role and rank has a higher incarnation."""

    job_id: str
    role: Role
    rank: int
    incarnation: int = 0

    @property
    def name(self) -> str:
        """Unique and stable, also a valid Kubernetes pod name for the job ids that the service gives out."""
        return f"{self.job_id}-{self.role.value}-{self.rank}-{self.incarnation}"


class TaskPhase(Words):
    """What the cluster says of a task."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the cluster cannot run a task, or what it did to it. Words for people; no decision depends on it."""

    code: str
    """One of a closed list of each cluster, e.g. `ImagePull`, `Unschedulable`, `Evicted` (docs/kubernetes.md)."""
    message: str


@dataclass(frozen=True, slots=True)
class Task:
    """One task as it was observed on the cluster."""

    key: TaskKey
    node: str
    phase: TaskPhase
    exit_code: int | None = None
    """With `EXITED`: what it exited with, None when unknown (a node that was lost)."""
    unwanted_since: float | None = None
    """When the task left the wanted set; None while it is wanted."""
    gpu_type: str | None = None
    """What its GPUs are; None: none, or not known."""
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """One task that should exist, and where."""

    key: TaskKey
    node: str


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


@dataclass(frozen=True, slots=True)
class EndedJob:
    """What a job that ended well told, as far as it says something about later jobs of the same task.

    It never changes, so its id alone tells it from others.
    """

    id: str
    task: str = field(compare=False)
    """The import path of its code: jobs with the same one are of one family."""
    project: str = field(compare=False)
    steps_per_epoch: float | None = field(compare=False)
    """Runs are compared epoch by epoch: a batch twice as large makes half as many steps. None: it knew no epochs, and
    tells its speeds only."""
    loss_steps: tuple[float, ...] = field(default=(), compare=False)
    losses: tuple[float, ...] = field(default=(), compare=False)
    speed_samples: tuple[SpeedSample, ...] = field(default=(), compare=False)
    mode: Mode = field(default=Mode.SYNC, compare=False)
    architecture: Architecture = field(default=Architecture.PS, compare=False)
    global_batch_size: int | None = field(default=None, compare=False)
    total_steps: int = field(default=0, compare=False)
    """Steps at its end; 0 when that is not known ..."""
    rule: ConvergenceRule | None = field(default=None, compare=False)
    """... and the rule that ended it."""
    device: str | None = field(default=None, compare=False)
    """What its workers computed on (`cold_start.device_name`) ..."""
    percent_of_peak: float | None = field(default=None, compare=False)
    """... and which part of that device's arithmetic speed they reached, where that was measured."""
    noise_steps: tuple[float, ...] = field(default=(), compare=False)
    noise_scales: tuple[float, ...] = field(default=(), compare=False)
    """As in `Job`."""

    @property
    def n_epochs(self) -> float:
        """Epochs at its end; 0 when that is not known."""
        return self.total_steps / self.steps_per_epoch if self.steps_per_epoch else 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """One active job as a round sees it: what was asked for, what it has, what it told so far."""

    id: str
    spec: JobSpec
    state: JobState
    submitted_at: float
    started_at: float | None = None
    step: int = 0
    """Steps completed. Here and wherever a number of a step is told, a job with an elastic batch counts scale-invariant
    steps: so many with its smallest batch would have achieved the same."""
    steps_per_epoch: float | None = None
    """None until the job's tasks have reported it."""
    loss_steps: tuple[float, ...] = ()
    """Steps of the (down-sampled) loss history, increasing."""
    losses: tuple[float, ...] = ()
    """Loss at each of `loss_steps`; may hold NaN and infinities."""
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
    allocated_at: float | None = None
    """When `allocation` last changed."""
    directive: Directive = Directive.RUN
    rescale_seconds: tuple[float, ...] = ()
    """Observed stopped seconds of this job's past membership changes, oldest first."""
    wanted_tasks: tuple[PlacedTask, ...] = ()
    """The workers and servers behind `allocation`, sorted by key."""
    stragglers: tuple[TaskKey, ...] = ()
    """Workers much slower than the others, the slowest first."""
    attained_share_seconds: float = 0.0
    """Dominant share held, integrated over time: service received so far."""
    batch: int | None = None
    """With an elastic batch: the global batch that it was last told to have."""
    noise_steps: tuple[float, ...] = ()
    """Steps at which the noise scale of its gradients was measured, increasing."""
    noise_scales: tuple[float, ...] = ()
    """tr(Σ)/|G|² at each of `noise_steps`, in examples (`optimus_models.noise_scale`)."""


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

    @property
    def capacity(self) -> Resources:
        """What the schedulable nodes offer together."""
        return _capacity(self.nodes)


@dataclass(frozen=True, slots=True)
class Interval:
    """A prediction with its 80 % interval: `low <= mean <= high`."""

    mean: float
    low: float
    high: float


class Reason(Words):
    """Why a job got what it got in a round: the closed list behind `optimus explain`."""

    GRANTED_MORE = "GrantedMore"
    """Its next tasks saved more time per share than anybody else's."""
    UNCHANGED = "Unchanged"
    """What it has is still what it should have."""
    BETTER_USED_ELSEWHERE = "BetterUsedElsewhere"
    """Others gain more from the same resources, so it got less than before or less than it could use."""
    NO_FURTHER_GAIN = "NoFurtherGain"
    """More tasks would not make it faster."""
    AT_MAXIMUM = "AtMaximum"
    """It has all the workers and servers that its owner allows."""
    NOT_WORTH_RESCALING = "NotWorthRescaling"
    """A different size would be better, but changing costs more than it saves."""
    LEARNING_SPEED = "LearningSpeed"
    """Too little is measured yet; its size is chosen so that the speed model learns."""
    WAITING_FOR_RESOURCES = "WaitingForResources"
    """Not even its minimum fits beside the jobs ahead of it."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    """Its project has used up what it may have, or others have a right to the room that it would need."""
    MEETING_DEADLINE = "MeetingDeadline"
    """It has the least that is predicted to meet its deadline, ahead of others."""
    DEADLINE_CANNOT_BE_MET = "DeadlineCannotBeMet"
    """No size that it may have is predicted to meet its deadline; it competes like a job without one."""
    WITHIN_BUDGET = "WithinBudget"
    """A larger size would be faster, but its steps would cost more than is left of its budget."""
    NO_FEASIBLE_NODE = "NoFeasibleNode"
    """There is room in the cluster as a whole but no node can host its tasks."""
    CONVERGED = "Converged"
    """Its convergence rule holds: it is being finished."""
    CANCELLING = "Cancelling"
    """Its owner cancelled it; its tasks are being stopped."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a round believes of one job. Every `None` means: nothing can be said yet."""

    job_id: str
    total_steps: Interval | None
    """Steps at which the convergence rule will hold."""
    remaining_steps: Interval | None
    confidence: float
    """0 (nothing known) to 1 (as sure as the model gets)."""
    rule: str | None = None
    """Which part of the convergence rule is expected to hold first (its field name)."""
    loss_curve: Mapping[str, float] = field(default_factory=_nothing_known)
    """β0, β1, β2 of Eq. 1 and the largest loss, when fitted."""
    speed_model: Mapping[str, float] = field(default_factory=_nothing_known)
    """Coefficients and error of the fitted speed model."""
    steps_per_second: float | None = None
    """Predicted speed at the present allocation."""
    remaining_seconds: Interval | None = None
    """Predicted time left at the present allocation."""
    finished_runs: int = 0
    """How many ended jobs of the same task the loss curve was judged by ..."""
    finished_runs_share: float = 0.0
    """... and how much they counted beside the job's own losses, 0 to 1."""
    speed_from: str | None = None
    """What predicted speeds rest on: `measured`, `similar jobs` or `analysis`; None when nothing is known."""
    cost: Interval | None = None
    """Predicted money still to be spent at the present allocation; None without prices."""
    converged: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What a round decided for one job, and why."""

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
    """Marginal gain that its next task would have had."""
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


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task on a node. Idempotent: the task's name is its identity."""

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
