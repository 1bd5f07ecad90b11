"""What rounds saw and decided, and what they expected and promised of jobs since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optimus_models.calibration import UNCALIBRATED, Calibration
from optimus_scheduler.ahead.queue import ExpectedCut
from optimus_scheduler.model import Allocation, Forecast, Interval
from optimus_service.store.records.basics import UNSAVED, Document
from optimus_service.store.records.jobs import JobRecord, MembershipRecord, TaskRecord, WantedRecord
from optimus_service.store.records.people import MemberLimits, ProjectRecord


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
class ExpectedTimesRecord:
    """When a job is expected to start and to end, by the queue simulated forward (`optimus_scheduler.ahead`)."""

    job_id: str
    at: float
    """When it was simulated."""
    valid_until: float
    """Later it is too old to be shown."""
    start: Interval | None
    """POSIX seconds; None for a job that has tasks, or was given some in the round that was looked at."""
    end: Interval | None
    """POSIX seconds; None where nothing is known of its length."""
    steps_left: float | None = None
    """By which the end was foreseen, less those that it is taken to have made and not told by then; None: not known."""
    report_seconds: float = 0.0
    """Between two reports of its steps."""
    late_seconds: Interval | None = None
    """Of the time to `end`, for how long no step was foreseen to come, as none did; None: the next one was not late."""
    awaited: Mapping[str, float] = field(default_factory=dict)
    """Jobs with tasks by whose end it is foreseen to start, and how likely it is that one."""
    at_once: Mapping[str, float] = field(default_factory=dict)
    """How likely it starts with that end itself, not with that of a job that starts in between."""
    cut: ExpectedCut | None = None
    """That it is expected to lose tasks to another job; None: it is not."""
    freed_by: str | None = None
    """The job with tasks that is expected to lose them for this one, which starts so."""
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
    is_without_end: bool = False
    """Whether nothing told when the job ends as it was made: it stood still, or had yet to pass the step where it hung
    or failed."""
    expected: ExpectedTimesRecord | None = None
    """The newest of the job; of `Rounds.latest_decisions` only."""

    @property
    def changes_size(self) -> bool:
        """Whether it gives a job with tasks another size, so that the forecast is of one that it has no more."""
        return self.allocation != self.previous and not self.previous.is_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRecord:
    """What was predicted of a job at one part of its life (`optimus_service.observe.shown_predictions`)."""

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
    """Seconds to the end, by the queue simulated forward: of predictions of their own."""
    start: Interval | None = None
    """Seconds until the first tasks: of predictions of their own, too."""
    calibration: Calibration = UNCALIBRATED
    """How each was corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPrediction:
    """A prediction of a job that succeeded, with the end that it came to."""

    prediction: PredictionRecord
    total_steps: int
    finished_at: float
    started_at: float | None = None


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
    predictions: int = 0
    jobs: int = 0
    """Of which nothing is left to delete: they were given a mark."""

    @property
    def total(self) -> int:
        return self.samples + self.decisions + self.finished_runs + self.predictions + self.jobs


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
