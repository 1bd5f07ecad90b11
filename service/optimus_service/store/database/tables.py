"""The tables and the types of their columns.

Every index serves a query named beside it; the migrations in `migrations/versions` make the same.

::

    jobs ──┬─▶ job_labels      words of its owner's to find it by
           ├─▶ memberships     one per membership epoch that was formed
           ├─▶ sample_batches  telemetry, one per post
           ├─▶ sample_blocks   which samples were counted, so that each counts once
           ├─▶ job_histories   what is known by its samples, so that they are not read again
           ├─▶ tasks           processes (pods) that were started
           ├─▶ finished_runs   what it taught about its kind, once it has ended
           ├─▶ promises        what was predicted of it on the way, to be judged by its end
           ├─▶ expected_times  when it is expected to start and to end, by the queue simulated forward
           ├─▶ events          what happened (also to no job: the cluster)
           └─▶ decisions ◀── rounds
    projects                   what each is guaranteed of the cluster
    ended_jobs                 how many jobs have ended, by project and state
    usage                      what jobs were given, by month, project, owner and GPU type
    closed_nodes               which nodes operators closed
    leases                     who runs the scheduling rounds
    users ──▶ tokens           who may do what, and by which hashes they are known
    audit                      who did what; rows are added and never changed

Times are POSIX seconds (double precision, exact for the floats of the records).
"""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Dialect, Double, ForeignKey, Index, Integer, MetaData, String, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from optimus_service.store.database.sealing import Specification

Number = BigInteger()
"""64-bit integers: steps and byte counts outgrow 32 bits."""
Id = BigInteger().with_variant(Integer(), "sqlite")
"""Keys that the database gives out; SQLite does so only for a column that is exactly INTEGER."""


class Words(TypeDecorator[str]):
    """Text. A NUL character, which PostgreSQL refuses, becomes U+FFFD (the replacement character); half of a surrogate
    pair, which UTF-8 cannot say and Python makes of a file name's odd bytes, becomes a question mark."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Json(TypeDecorator[Any]):
    """A document as JSON text, read and written as a whole.

    Not the database's own JSON: PostgreSQL's refuses NaN, infinities and NUL characters, all of which are legal
    in what jobs report. Python's JSON says them and reads them back.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, _dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def split_float(value: float | None) -> tuple[float | None, str | None]:
    """A float for two columns, value and kind: SQLite would turn NaN into NULL.

    The kind is NULL (no value), "finite", or, with a NULL value, "nan", "inf" or "-inf".
    """
    if value is None:
        return None, None
    return (value, "finite") if math.isfinite(value) else (None, str(float(value)))


def join_float(value: float | None, kind: str | None) -> float | None:
    """The inverse of `split_float`."""
    if kind is None:
        return None
    return value if kind == "finite" else float(kind)


class Base(DeclarativeBase):
    """Constraint names follow one convention, so that migrations can name them on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {int: Number, float: Double(), str: Words()}


def _job_id() -> Mapped[str]:
    return mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))


class JobRow(Base):
    """One job. `version` also guards against lost updates: every change checks it and counts it up."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    project: Mapped[str]
    owner: Mapped[str | None]
    """Who submitted it; None: nobody can tell (an earlier release, or a TrainingJob)."""
    spec: Mapped[dict[str, Any]] = mapped_column(Specification)
    state: Mapped[str] = mapped_column(String(16))
    directive: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None] = mapped_column(index=True)  # jobs_without_finished_run, predictions
    pruned_at: Mapped[float | None]
    """When what it left was deleted; NULL: there may be something."""
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    object_uid: Mapped[str | None] = mapped_column(index=True, unique=True)  # of_objects
    """Of the Kubernetes object that is the job's origin; such a job has no idempotency key."""
    request_hash: Mapped[str]
    token_nonce: Mapped[str]
    coordinator_address: Mapped[str | None]

    generation: Mapped[int] = mapped_column(default=0)
    wanted_workers: Mapped[int] = mapped_column(default=0)
    wanted_servers: Mapped[int] = mapped_column(default=0)
    wanted_gpu_type: Mapped[str | None]
    wanted_at: Mapped[float | None]
    wanted_batch: Mapped[int | None]
    wanted_tasks: Mapped[list[list[Any]]] = mapped_column(Json, default=list, deferred=True)
    """[role, rank, incarnation, node] each; loaded only where it is asked for, large jobs have thousands."""

    membership_epoch: Mapped[int] = mapped_column(default=0)
    running_workers: Mapped[int] = mapped_column(default=0)
    running_servers: Mapped[int] = mapped_column(default=0)
    running_gpu_type: Mapped[str | None]
    rescales: Mapped[int] = mapped_column(default=0)
    formed_at: Mapped[float | None]
    """When `membership_epoch` began, by its coordinator; None: none has since an error or the job's end."""

    step: Mapped[int] = mapped_column(default=0)
    step_at: Mapped[float | None]
    """When a sample of `step` came."""
    first_step: Mapped[int | None]
    epoch: Mapped[float | None]
    loss: Mapped[float | None]
    loss_kind: Mapped[str | None] = mapped_column(String(8))
    """See `split_float`."""
    n_samples: Mapped[int] = mapped_column(default=0, server_default="0")
    """That were counted so far: the newest one's id."""

    profile: Mapped[dict[str, Any] | None] = mapped_column(Json)
    network: Mapped[dict[str, Any] | None] = mapped_column(Json, deferred=True)
    """The layers of what it trains (`optimus_models.analytic.description`); read once, before it has run."""
    planned_rates: Mapped[dict[str, Any] | None] = mapped_column(Json, deferred=True)
    """The learning rates that it is to have (`PlannedRates`) ..."""
    planned_rates_version: Mapped[int] = mapped_column(default=0, server_default="0")
    """... and how often they were reported: they are read when that has grown."""
    result: Mapped[dict[str, Any] | None] = mapped_column(Json)
    failure: Mapped[str | None]
    attempt: Mapped[int] = mapped_column(default=0, server_default="0")
    """See `lifecycle.JobStatus`, as for `retries`."""
    retries: Mapped[int] = mapped_column(default=0, server_default="0")
    retry_at: Mapped[float | None]
    last_error: Mapped[str | None]
    heard_at: Mapped[float | None]
    """Of a tracked job only: when its tracker last reported."""
    owner_paused_at: Mapped[float | None]
    paused_by: Mapped[str | None] = mapped_column(Text)
    """Since when its owner wants it to have nothing; see `lifecycle.JobStatus`."""
    promised_deadline: Mapped[float | None]
    """The deadline that it was promised to meet ..."""
    promised_at: Mapped[float | None]
    """... and when: see `JobRecord`."""
    version: Mapped[int] = mapped_column()

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 (the declarative base says how it is typed)
    __table_args__ = (
        Index("ix_jobs_created_at_id_name", "created_at", "id", "name"),  # list_jobs, also by a part of the name
        # The operators with which PostgreSQL finds beginnings in any collation.
        Index("ix_jobs_name_id", "name", "id", postgresql_ops={"name": "text_pattern_ops"}),  # list_jobs by name
        Index("ix_jobs_id_text", "id", postgresql_ops={"id": "text_pattern_ops"}),  # list_jobs by a beginning
        Index(  # prune
            "ix_jobs_unpruned",
            "finished_at",
            sqlite_where=text("pruned_at IS NULL"),
            postgresql_where=text("pruned_at IS NULL"),
        ),
        Index(  # lengths_of_ended
            "ix_jobs_ended",
            "finished_at",
            "id",
            sqlite_where=text("finished_at IS NOT NULL AND started_at IS NOT NULL AND heard_at IS NULL"),
            postgresql_where=text("finished_at IS NOT NULL AND started_at IS NOT NULL AND heard_at IS NULL"),
        ),
        Index(None, "state", "created_at", "id"),  # list_jobs by state, active_jobs, count_jobs_by_state
        Index(None, "project", "created_at", "id"),  # list_jobs by project
        Index(None, "owner", "created_at", "id"),  # list_jobs by owner
    )


class EndedJobsRow(Base):
    """How many jobs of a project have ended in one way: see `optimus_service.store.jobs.ended`."""

    __tablename__ = "ended_jobs"

    project: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(16), primary_key=True)
    n_jobs: Mapped[int]


class JobLabelRow(Base):
    """A label of a job: what its specification says, so that jobs can be found by it."""

    __tablename__ = "job_labels"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]
    created_at: Mapped[float] = mapped_column(server_default="0")
    """When its job was submitted; 0: not written yet, by an earlier release (`jobs.date_labels`)."""

    __table_args__ = (  # list_jobs by label
        Index("ix_job_labels_name_value_created_at", "name", "value", "created_at", "job_id"),
        Index("ix_job_labels_name_created_at", "name", "created_at", "job_id"),
    )


class MembershipRow(Base):
    """A membership epoch that a coordinator formed."""

    __tablename__ = "memberships"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    generation: Mapped[int]
    at: Mapped[float]
    step: Mapped[int]
    workers: Mapped[list[str]] = mapped_column(Json)
    servers: Mapped[list[str]] = mapped_column(Json)
    n_workers: Mapped[int]
    """Beside the names, for the telemetry rules: they need no names."""
    gpu_type: Mapped[str | None]
    """What its workers ran on."""
    cause: Mapped[str]
    pause_seconds: Mapped[float | None]
    pause_parts: Mapped[dict[str, float | None] | None] = mapped_column(Json)
    lost_steps: Mapped[int]
    message: Mapped[str | None]
    global_batch: Mapped[int | None]
    ended_at: Mapped[float | None]
    """When the job lost what it had, where no membership says so."""


class SampleBatchRow(Base):
    """The samples of one post that were counted. Those of a job have ids from 1 on without a gap."""

    __tablename__ = "sample_batches"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    last_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # samples_after_each, newest first
    n_samples: Mapped[int]
    received_at: Mapped[float]
    document: Mapped[bytes]
    """See `optimus_service.store.samples.sample_documents`."""


class SampleBlockRow(Base):
    """Which samples were counted of a range of sequence numbers: see `optimus_service.store.samples.counting.Block`."""

    __tablename__ = "sample_blocks"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    membership_epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # max step of an epoch
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    bits: Mapped[bytes]
    """Little-endian, as many bytes as are needed."""
    max_step: Mapped[int]


class JobHistoryRow(Base):
    """What is known of a job by its samples up to one of them: see `optimus_service.observe.histories`."""

    __tablename__ = "job_histories"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    last_id: Mapped[int]
    """Of the newest sample that it was made of."""
    document: Mapped[bytes]


class FinishedRunRow(Base):
    """What a job that ended well taught about its kind: its losses and speeds, condensed."""

    __tablename__ = "finished_runs"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), unique=True)
    document: Mapped[dict[str, Any]] = mapped_column(Json)
    task: Mapped[str | None]
    """What it teaches of (`task_key`); empty: it teaches nothing. NULL: an earlier release wrote it (`name_tasks`)."""

    __table_args__ = (
        Index(None, "task", "id"),  # finished runs of tasks
        {"sqlite_autoincrement": True},
    )


class PredictionRow(Base):
    """What was predicted of a job at one part of its life. Judged by the end that its row in `jobs` has."""

    __tablename__ = "promises"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    part: Mapped[str] = mapped_column(String(16), primary_key=True)
    task: Mapped[str]
    at: Mapped[float]
    document: Mapped[dict[str, Any]] = mapped_column(Json)
    """See `optimus_service.observe.shown_predictions`."""


class ExpectedTimesRow(Base):
    """When an active job is expected to start and to end. Each look at the queue ahead replaces all rows."""

    __tablename__ = "expected_times"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    at: Mapped[float]
    valid_until: Mapped[float] = mapped_column("good_until")
    document: Mapped[dict[str, Any]] = mapped_column(Json)
    """`start` and `end`: [median, 10th, 90th percentile] each, POSIX seconds, or null."""


class TaskRow(Base):
    """A task that the service started."""

    __tablename__ = "tasks"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    role: Mapped[str] = mapped_column(String(16), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True)
    incarnation: Mapped[int] = mapped_column(primary_key=True)
    node: Mapped[str]
    gpu_type: Mapped[str | None]
    created_at: Mapped[float]
    usage: Mapped[dict[str, Any] | None] = mapped_column(Json)
    usage_at: Mapped[float | None]
    unwanted_since: Mapped[float | None]
    exited_at: Mapped[float | None]
    exit_code: Mapped[int | None]
    attempt: Mapped[int] = mapped_column(default=0, server_default="0")
    """The job's when it was started: an older task's end says nothing about the present attempt."""

    __table_args__ = (
        Index(  # tasks(active_only), observed: a few live ones among all that ever were
            "ix_tasks_alive",
            "job_id",
            sqlite_where=text("exited_at IS NULL"),
            postgresql_where=text("exited_at IS NULL"),
        ),
    )


class EventRow(Base):
    """Something that happened to a job, or (no job) to the cluster."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[float]
    type: Mapped[str]
    message: Mapped[str]
    data: Mapped[dict[str, Any]] = mapped_column(Json)

    __table_args__ = (
        Index(None, "job_id", "id"),  # events of a job
        {"sqlite_autoincrement": True},
    )


class RoundRow(Base):
    """One scheduling round."""

    __tablename__ = "rounds"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at: Mapped[float] = mapped_column(index=True)  # prune
    trigger: Mapped[str]
    seconds: Mapped[float]
    phase_seconds: Mapped[dict[str, float]] = mapped_column(Json)
    n_jobs: Mapped[int]
    n_actions: Mapped[int]
    error: Mapped[str | None]

    __table_args__ = ({"sqlite_autoincrement": True},)


class DecisionRow(Base):
    """What a round decided for one job."""

    __tablename__ = "decisions"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    round_id: Mapped[int] = mapped_column(ForeignKey("rounds.id", ondelete="CASCADE"), index=True)  # prune
    job_id: Mapped[str] = _job_id()
    at: Mapped[float]
    workers: Mapped[int]
    servers: Mapped[int]
    gpu_type: Mapped[str | None]
    previous_workers: Mapped[int]
    previous_servers: Mapped[int]
    previous_gpu_type: Mapped[str | None]
    reason: Mapped[str]
    message: Mapped[str]
    gain: Mapped[float | None]
    next_gain: Mapped[float | None]
    batch: Mapped[int | None]
    forecast: Mapped[dict[str, Any]] = mapped_column(Json)

    __table_args__ = (
        Index(None, "job_id", "id"),  # decisions, latest_decisions
        {"sqlite_autoincrement": True},
    )


class ProjectRow(Base):
    """A project with a quota; a project without one needs no row."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(primary_key=True)
    share: Mapped[float | None]
    cpu: Mapped[float | None]
    memory_bytes: Mapped[int | None]
    gpus: Mapped[dict[str, int]] = mapped_column(Json)
    may_borrow: Mapped[bool]
    limits: Mapped[dict[str, Any] | None] = mapped_column(Json)
    updated_at: Mapped[float]


class UsageRow(Base):
    """What jobs were given in one month, added up: see `optimus_service.store.jobs.charging`."""

    __tablename__ = "usage"

    month: Mapped[str] = mapped_column(String(7), primary_key=True)
    """2026-11, in UTC."""
    project: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    """Empty: nobody can tell."""
    gpu_type: Mapped[str] = mapped_column(primary_key=True)
    """Empty: none."""
    worker_seconds: Mapped[float]
    core_seconds: Mapped[float]
    gpu_seconds: Mapped[float]


class ClosedNodeRow(Base):
    """A node that an operator closed for new tasks."""

    __tablename__ = "closed_nodes"

    name: Mapped[str] = mapped_column(primary_key=True)
    emptied: Mapped[bool]
    """Whether its tasks are to move elsewhere."""


class LeaseRow(Base):
    """Who may do what only one process at a time may do."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    token: Mapped[int]
    expires_at: Mapped[float]


class UserRow(Base):
    """Somebody, or some program, that may use the service."""

    __tablename__ = "users"

    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    role: Mapped[str | None] = mapped_column(String(16))
    projects: Mapped[dict[str, str]] = mapped_column(Json)
    """`member` or `viewer` by project."""
    limits: Mapped[dict[str, Any] | None] = mapped_column(Json)
    created_at: Mapped[float]
    created_by: Mapped[str]
    subject: Mapped[str | None] = mapped_column(unique=True, index=True)
    """Issuer and subject at the OpenID provider; NULL: an administrator made the user."""


class TokenRow(Base):
    """A token of a user, without the token itself."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    user: Mapped[str] = mapped_column(ForeignKey("users.name", ondelete="CASCADE"), index=True)  # tokens of a user
    name: Mapped[str]
    hash: Mapped[str]
    """SHA-256 of the token, hexadecimal."""
    scope: Mapped[str] = mapped_column(String(16))
    projects: Mapped[list[str] | None] = mapped_column(Json)
    created_at: Mapped[float]
    created_by: Mapped[str]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    used_at: Mapped[float | None]


class AuditRow(Base):
    """Something that was done through the API. Nothing of the store changes or deletes one."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at: Mapped[float]
    who: Mapped[str]
    token_id: Mapped[str | None]
    action: Mapped[str]
    target: Mapped[str | None]
    project: Mapped[str | None]
    data: Mapped[dict[str, Any]] = mapped_column(Json)
    request_id: Mapped[str | None]

    __table_args__ = (
        Index(None, "who", "id"),  # audit by who
        Index(None, "target", "id"),  # audit by target
        {"sqlite_autoincrement": True},
    )
