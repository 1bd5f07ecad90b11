"""What the store takes and gives: immutable values that know no database.

All times are POSIX timestamps (UTC seconds). Documents (`spec`, `profile`, `result`, `data`, `forecast`) are what JSON
can say, plus NaN and infinities, and come back equal. Records with an `id` are given one by the store: leave it at
`UNSAVED` in a record that is to be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal, TypeVar

from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import DEFAULTS, Sample, SampleColumns
from optimus_models.calibration import UNCALIBRATED, Calibration
from optimus_scheduler.model import Allocation, Directive, Forecast, Interval, JobState, PlacedTask, Quota, TaskKey

Document = dict[str, Any]
Item = TypeVar("Item")

UNSAVED: Final = 0
"""The id of a record that is not stored yet; stored ones count from 1."""


NameMatch = Literal["part", "exact", "start", "one", "id"]
"""How a listing compares names: a part in any case, the whole name, or the beginning of the name or the id."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some items of a listing, newest first."""

    items: tuple[Item, ...]
    next_cursor: str | None
    """Opaque; asks for the items after these. None: there are no more."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be stored as it was submitted; see `Jobs.create`."""

    id: str
    spec: Document
    token_nonce: str
    idempotency_key: str | None
    request_hash: str
    object_uid: str | None = None
    owner: str | None = None
    profile: Document | None = None


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """What a long list of jobs has of each."""

    id: str
    created_at: float
    state: JobState
    has_samples: bool
    """Samples of it are stored, or what is known by them."""


@dataclass(frozen=True, slots=True)
class KeptSubmission:
    """A job that an idempotency key made, and what tells the request that made it from others."""

    job_id: str
    name: str
    request_hash: str


def asked_by(spec: object, name: str = "") -> JobSpec:
    """What a stored specification asks for, as far as this release can read it: a field that is missing or has a wrong
    type has its default. Not for writing back. It takes some 30 µs; of a `JobRecord` it is kept (`asked`)."""
    return read(JobSpec, spec if isinstance(spec, Mapping) else {}, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job with all that is known of it but its samples, memberships, events and decisions."""

    id: str
    name: str
    project: str
    spec: Document
    """The submitted `JobSpec`, as it was written. Read it by `asked`."""
    state: JobState
    directive: Directive
    created_at: float
    started_at: float | None
    """When its first membership began to train."""
    finished_at: float | None
    generation: int
    """The number of the wanted task set, 0 before the first one."""
    wanted: Allocation
    wanted_at: float | None
    """When `wanted` last changed."""
    membership_epoch: int
    """The newest that was reported, 0 before the first one."""
    running: Allocation
    """What that membership has."""
    wanted_batch: int | None = None
    """With an elastic batch: the global batch that goes with `wanted`."""
    step: int
    """Steps completed."""
    step_at: float | None = None
    """When a sample of `step` came; None before the first one."""
    formed_at: float | None = None
    """When the newest membership began, by its coordinator; None: none has since an error or the job's end."""
    first_step: int | None
    """The lowest step that a sample covered; None before the first sample."""
    epoch: float | None
    """Passes over the data so far."""
    loss: float | None
    """Of the newest sample; may be NaN or infinite."""
    profile: Document | None
    """The reported `JobProfile`."""
    planned_rates_version: int = 0
    """How often its tasks have reported the learning rates that it is to have (`Jobs.planned_rates_of`)."""
    result: Document | None
    """The reported end: `outcome`, `step`, `final_loss`, `metrics`, `error`."""
    failure: str | None
    attempt: int = 0
    """How often training began anew from a checkpoint."""
    retries: int = 0
    """How many of these were retries after a failure, since the owner last asked."""
    retry_at: float | None = None
    """The job gets no tasks before; None: it never failed."""
    last_error: str | None = None
    """What the last failure was, in one line."""
    heard_at: float | None = None
    """Of a job that runs outside the cluster: when it last reported that it does; None: it runs on the cluster."""
    owner_paused_at: float | None = None
    """Since when its owner wants it to have nothing; None: it may have what it gets."""
    paused_by: str | None = None
    """Who took what it had: its owner or who may act for the owner, or other jobs; in words. None: nobody, or not
    known."""
    promised_deadline: float | None = None
    """The deadline that it was promised to meet, POSIX seconds: void if the job has another one by now ..."""
    promised_at: float | None = None
    """... and when it was."""
    object_uid: str | None = None
    """Of the Kubernetes object that is its origin; None: it was submitted by REST."""
    owner: str | None = None
    """Who submitted it; None: nobody can tell."""
    token_nonce: str
    coordinator_address: str | None
    rescales: int
    """Changes of size that the scheduler asked for while it trained."""
    version: int
    """Grows with every change of this record."""

    derived: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What was worked out by this record alone, so that it is worked out once."""

    @property
    def asked(self) -> JobSpec:
        """What the owner asked for: see `asked_by`."""
        found: JobSpec | None = self.derived.get("asked")
        if found is None:
            found = self.derived["asked"] = asked_by(self.spec, self.name)
        return found

    def after(self, before: JobRecord) -> JobRecord:
        """The same, with what `before`, an older record of the job, has already of an equal specification."""
        if (before.spec, before.name) != (self.spec, self.name):
            return self
        found = replace(self, spec=before.spec)
        if "asked" in before.derived:
            found.derived["asked"] = before.derived["asked"]
        return found

    @property
    def is_tracked(self) -> bool:
        """Whether it runs outside the cluster: it is learned and shown, and nothing is decided about it."""
        return self.heard_at is not None

    @property
    def intended(self) -> Allocation:
        """What it should have: what is wanted, or (outside the cluster, where nothing is) what it has."""
        return self.running if self.is_tracked else self.wanted

    @property
    def is_without_tasks(self) -> bool:
        """Whether the scheduler, whose matter it is, gives it nothing."""
        return self.wanted.is_empty and not self.is_tracked

    @property
    def waits(self) -> bool:
        """Whether it is without tasks and wants some."""
        return self.is_without_tasks and self.owner_paused_at is None and not self.is_being_cancelled

    @property
    def is_being_cancelled(self) -> bool:
        """Whether its owner cancelled it, and its tasks are still being stopped: it never trains again."""
        return self.directive is Directive.CANCEL and not self.state.is_final


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something that happened to a job, or to the cluster as a whole."""

    id: int
    job_id: str | None
    at: float
    type: str
    message: str
    data: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One run of observe → forecast → allocate → place → reconcile → apply."""

    id: int = UNSAVED
    at: float
    trigger: str
    seconds: float
    phase_seconds: Mapping[str, float]
    n_jobs: int
    n_actions: int
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTimes:
    """When a job is expected to start and to end, by the queue simulated forward (`optimus_scheduler.ahead`)."""

    job_id: str
    at: float
    """When it was simulated."""
    good_until: float
    """Later it is too old to be shown."""
    start: Interval | None
    """POSIX seconds; None for a job that has tasks, or was given some in the round that was looked at."""
    end: Interval | None
    """POSIX seconds; None where nothing is known of its length."""
    steps_left: float | None = None
    """By which the end was foreseen; None: not known."""
    awaited: Mapping[str, float] = field(default_factory=dict)
    """Jobs with tasks by whose end it is foreseen to start, and how likely it is that one."""
    at_once: Mapping[str, float] = field(default_factory=dict)
    """How likely it starts with that end itself, not with that of a job that starts in between."""
    behind: tuple[Awaited, ...] = field(default=(), compare=False)
    """The same with what they are at present; of `Rounds.latest_decisions` only."""


@dataclass(frozen=True, slots=True)
class PromisedDeadline:
    """A job is promised to meet its deadline."""

    job_id: str
    deadline: float
    """POSIX seconds."""
    at: float
    words: str
    """For its owner."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A job by whose end another is foreseen to start."""

    part: float
    """How likely it is this one."""
    job: JobRecord | None
    """None: it is not there any more."""
    decision: DecisionRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What a round decided for one job, and why."""

    id: int = UNSAVED
    round_id: int = UNSAVED
    """Given by `Rounds.add`."""
    job_id: str
    at: float
    allocation: Allocation
    previous: Allocation
    reason: str
    message: str
    gain: float | None = None
    """NaN is stored as None."""
    next_gain: float | None = None
    """NaN is stored as None."""
    batch: int | None = None
    """The global batch, of a job with an elastic one."""
    forecast: Forecast
    step_at: float | None = None
    """When the step was reported that the forecast is made at, POSIX seconds; None: not known."""
    expected: ExpectedTimes | None = None
    """The newest of the job; of `Rounds.latest_decisions` only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRecord:
    """What a job's coordinator should have."""

    generation: int
    directive: Directive
    allocation: Allocation
    tasks: tuple[PlacedTask, ...]
    """Workers and servers, sorted by key."""
    batch: int | None = None
    """The global batch, of a job with an elastic one."""
    membership_epoch: int = 0
    """The highest that was reported."""


REPLACED = "replaced"
"""Cause of a membership of other tasks at the same size, which coordinators tell as a rescale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRecord:
    """A membership epoch that a coordinator has formed."""

    job_id: str
    epoch: int
    generation: int
    """The wanted generation that it answers."""
    at: float
    step: int
    """Steps completed when it began."""
    workers: tuple[str, ...]
    """Task names by rank."""
    servers: tuple[str, ...]
    cause: str
    pause_seconds: float | None = None
    """How long training stood still."""
    pause_parts: Mapping[str, float | None] | None = None
    """Of a script: `PauseParts`."""
    lost_steps: int = 0
    """Steps rolled back."""
    message: str | None = None
    gpu_type: str | None = None
    """What its workers run on; filled in by the store, from the tasks that were started."""
    global_batch: int | None = None
    """With an elastic batch: examples of each of its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Sample):
    """A sample that was counted. The samples of a job are numbered from 1 on, in the order of commit."""

    id: int
    received_at: float


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Counted samples of one job that follow each other and came together, the values of each field together."""

    first_id: int
    """The others count on from there."""
    received_at: float
    columns: Mapping[str, Sequence[Any]]
    """By the names of `Sample`'s fields, all equally long, `step` among them; what is left out has its default."""

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def last_id(self) -> int:
        """Of the newest."""
        return self.first_id + len(self) - 1

    def after(self, id_: int) -> SampleBatch:
        """Those with ids above this one."""
        if id_ < self.first_id:
            return self
        columns = {name: values[id_ + 1 - self.first_id :] for name, values in self.columns.items()}
        return SampleBatch(id_ + 1, self.received_at, columns)

    def column(self, name: str) -> Sequence[Any]:
        """The values of a field."""
        column = self.columns.get(name)
        return [DEFAULTS[name]] * len(self) if column is None else column

    def records(self) -> Iterator[SampleRecord]:
        """The same samples, one by one."""
        for id_, values in enumerate(zip(*self.columns.values(), strict=True), self.first_id):
            yield SampleRecord(id=id_, received_at=self.received_at, **dict(zip(self.columns, values, strict=True)))


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """What is known of a job by its samples."""

    last_id: int
    """Of the newest of them."""
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRunRecord:
    """What an ended job taught (`optimus_service.observe.finished_runs`)."""

    id: int
    job_id: str
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRecord:
    """What was predicted of a job at one part of its life (`optimus_service.observe.promises`)."""

    job_id: str
    part: str
    task: str
    at: float
    step: float | None = None
    """The one that the job was at; None: of an earlier release."""
    steps: Interval | None = None
    """How many were left."""
    seconds: Interval | None = None
    """... that were left."""
    total_steps: Interval | None = None
    time: Interval | None = None
    """Seconds to the end, by the queue simulated forward: of promises of their own."""
    start: Interval | None = None
    """Seconds until the first tasks: of promises of their own, too."""
    calibration: Calibration = UNCALIBRATED
    """How each was corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPromise:
    """A promise of a job that succeeded, with the end that it came to."""

    promise: PromiseRecord
    total_steps: int
    finished_at: float
    started_at: float | None = None


IgnoredWhy = Literal["duplicate", "old_membership", "unknown_membership"]


@dataclass(frozen=True, slots=True)
class PostedSamples:
    """Samples of one job that were sent together: one at least."""

    job_id: str
    columns: SampleColumns
    received_at: float


@dataclass(frozen=True, slots=True)
class IgnoredSample:
    """A posted sample that was not counted."""

    index: int
    """Where it stood in the post."""
    why: IgnoredWhy


@dataclass(frozen=True, slots=True)
class AddedSamples:
    """What became of a post of samples."""

    accepted: int
    ignored: tuple[IgnoredSample, ...]
    """Sorted by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task that the service started."""

    key: TaskKey
    node: str
    created_at: float
    unwanted_since: float | None = None
    """When it left the wanted set; None while it is wanted."""
    exited_at: float | None = None
    """When its end was noticed; None while it lives."""
    exit_code: int | None = None
    """None while it lives, or when that is not known."""
    gpu_type: str | None = None
    """What its GPUs are; None for a task without one."""
    usage: Mapping[str, float] | None = None
    """What it takes of its machine, as it said last; of servers and coordinators (workers: `Sample.usage`)."""
    usage_at: float | None = None
    """When it said so."""
    attempt: int = 0
    """The job's when the task was started."""


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """A project and what it is guaranteed of the cluster."""

    quota: Quota
    updated_at: float
    limits: Mapping[str, Any] = field(default_factory=dict)
    """`ProjectLimits` of the contract; what is missing has no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What the jobs of one owner in one project were given in one month (UTC) on one GPU type."""

    month: str
    project: str
    owner: str | None
    gpu_type: str | None
    worker_seconds: float
    core_seconds: float
    """Of workers and servers, as `gpu_seconds`."""
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class MemberLimits:
    """The limits of a user without a role."""

    name: str
    since: float
    """When the user was made: older jobs are of an earlier user of the name."""
    limits: Mapping[str, Any]
    """`UserLimits` of the contract; what is missing is as for every member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The right to run scheduling rounds, for a while."""

    holder: str
    token: int
    """Fencing token: grows with every new holder."""
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How many rows one call of `Retention.prune` deleted."""

    samples: int
    """Posts of samples, and the blocks that say which were counted."""
    decisions: int
    finished_runs: int = 0
    promises: int = 0
    jobs: int = 0
    """Of which nothing is left to delete: they were given a mark."""

    @property
    def total(self) -> int:
        return self.samples + self.decisions + self.finished_runs + self.promises + self.jobs


@dataclass(frozen=True, slots=True)
class PrunedRounds:
    """What one call of `Retention.prune_rounds` did."""

    rounds: int
    """That were deleted."""
    next_after: float | None
    """Where to go on; None: there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything that a round needs of the database but the samples."""

    jobs: tuple[JobRecord, ...]
    """All active jobs, oldest first."""
    wanted: Mapping[str, WantedRecord]
    """What each of them should have, by job id."""
    memberships: Mapping[str, list[MembershipRecord]]
    """All reported memberships of each that has any, oldest first, by job id."""
    with_network: frozenset[str]
    """Those that have reported the layers of what they train."""
    tasks: tuple[TaskRecord, ...]
    """By key: all that have not exited, and of each active job's (role, rank) the newest incarnation."""
    projects: tuple[ProjectRecord, ...]
    """All that have a quota, or a limit of the workers that their jobs hold together, by name."""
    members: tuple[MemberLimits, ...] = ()
    """All users without a role."""


# --- who may do what, and who did ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """Somebody, or some program, that may use the service."""

    name: str
    kind: str
    role: str | None
    projects: Mapping[str, str]
    """`member` or `viewer` by project."""
    created_at: float
    created_by: str
    subject: str | None = None
    """Issuer and subject at the OpenID provider; None: an administrator made the user."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """`UserLimits` of the contract; what is missing is as for every member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token, without the token itself."""

    id: str
    user: str
    name: str
    hash: str
    """SHA-256 of the token, hexadecimal."""
    scope: str
    projects: tuple[str, ...] | None
    """None: all of its user's."""
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None

    def is_good(self, now: float) -> bool:
        """Whether it has neither expired nor been revoked."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Something that was done through the API."""

    id: int = UNSAVED
    at: float
    who: str
    token_id: str | None
    action: str
    target: str | None
    project: str | None
    data: Document
    request_id: str | None
