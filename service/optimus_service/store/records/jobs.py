"""Jobs as they are stored: submitted, running, ended; what each should have, and the tasks that it had."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_contract.membership import Limits
from optimus_scheduler.model import Allocation, Directive, JobState, PlacedTask, TaskKey, waits_since
from optimus_service.store.records.basics import Document

BEFORE_TASKS = (JobState.QUEUED, JobState.PAUSED)
"""States of a job without tasks: one that has been given some is starting."""


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


def begins_as(asked: JobSpec, now: float) -> tuple[JobState, float | None]:
    """The state of a job that is submitted now, and since when its owner has paused it."""
    return (JobState.PAUSED, now) if asked.paused else (JobState.QUEUED, None)


def time_is_over_at(asked: JobSpec, started_at: float | None) -> float:
    """When the limit of time of a job that started then is over, POSIX seconds; inf: it has none, or did not start."""
    limit = asked.convergence.max_seconds
    return math.inf if limit is None or started_at is None else started_at + limit


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
    """The job gets no tasks before: it failed, or its owner resumed it then before it had begun; None: neither."""
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
    """Its memberships with the cause `rescale`: changes of size while it trained, each step on the way to a wanted size
    included; no lost tasks, none in their places, no pauses."""
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
    def is_starting(self) -> bool:
        """Whether it has been given tasks that are on their way."""
        return self.state in BEFORE_TASKS and not (self.wanted.is_empty or self.is_being_cancelled)

    @property
    def waits(self) -> bool:
        """Whether it is without tasks and wants some."""
        return self.is_without_tasks and self.owner_paused_at is None and not self.is_being_cancelled

    @property
    def waits_since(self) -> float:
        """Since when, if it does; in the future while it waits for a retry."""
        return waits_since(self.state, self.created_at, self.wanted_at, self.retry_at)

    @property
    def is_being_cancelled(self) -> bool:
        """Whether its owner cancelled it, and its tasks are still being stopped: it never trains again."""
        return self.directive is Directive.CANCEL and not self.state.is_final


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
    step: int = 0
    """The newest that is known."""
    limits: Limits | None = field(default=None, compare=False)
    """Only where one job is asked for, as its coordinator does."""


REPLACED = "replaced"
"""Cause of a membership with tasks in the places of others, at the same size or in the end, which coordinators tell as
a rescale."""


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
    pause_parts: Mapping[str, Any] | None = None
    """Of a script: `PauseParts`."""
    lost_steps: int = 0
    """Steps rolled back."""
    message: str | None = None
    gpu_type: str | None = None
    """What its workers run on; filled in by the store, from the tasks that were started."""
    global_batch: int | None = None
    """With an elastic batch: examples of each of its steps."""
    ended_at: float | None = None
    """When the job lost what it had, by an error or its end; None: with the next membership, or it has it."""

    def until(self, following: float) -> float:
        """When its tasks ended: `following` is when the next one began, or now."""
        return following if self.ended_at is None else min(self.ended_at, following)

    @property
    def tells_some(self) -> bool:
        """Whether its script tells only some of its steps: it stood still at most, and lost about, what is told."""
        return bool((self.pause_parts or {}).get("told_every"))

    @property
    def lost_at_least(self) -> bool:
        """Whether steps that were not told may be lost, too: nobody knows when those before it stopped, as after an
        error or a kill. Else they were counted by their pace."""
        return self.tells_some and bool(self.workers) and (self.pause_parts or {}).get("stop_seconds") is None


class TaskAges(NamedTuple):
    """Of the tasks of one job that have not exited."""

    newest_at: float
    """When the newest was started."""
    highest_incarnation: int
    """0: none of them was started in place of another one."""


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
