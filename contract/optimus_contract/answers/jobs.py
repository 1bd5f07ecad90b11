"""Jobs, their tasks, events, decisions and memberships."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from optimus_contract.answers.problem import Problem
from optimus_contract.job import JobSpec
from optimus_contract.membership import PauseParts
from optimus_contract.message import About, Message
from optimus_contract.result import JobProfile, JobResult

SpeedSource = Literal["measured", "similar jobs", "analysis"]
JobState = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
ListedState = Literal[JobState, "starting"]
"""What lists show and are asked for: those that are queued or paused and whose tasks are on their way are starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation(Message):
    workers: int
    servers: int
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Message):
    """A prediction with its 80 % interval."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instants(Message):
    """A predicted moment with its 80 % interval; null: beyond the year 9999."""

    mean: datetime | None
    low: datetime | None
    high: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCut(Message):
    """That a job with tasks may lose some to another, as its explanation says; rounds decide that anew."""

    pauses: Annotated[bool, About("whether it loses all its tasks")]
    seconds: Annotated[float, About("from now, about")]
    words: Annotated[str, About("the same in words, without the other job")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTimes(Message):
    """When a job is expected to start and to end, by the queue simulated forward (docs/ahead.md).

    Waiting, stops and later changes of size are in it.
    """

    computed_at: datetime
    start_seconds: Annotated[Interval | None, About("until its first tasks take part; null: they do, or not known")]
    start_at: Instants | None
    end_seconds: Annotated[Interval | None, About("from now; null: nothing is known of its length")]
    end_at: Instants | None
    cut: Annotated[ExpectedCut | None, About("the first; null: none is expected")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage(Message):
    """What a job's workers take of their machines, all together; `/v1/jobs/{id}/tasks` has each task."""

    workers: Annotated[int, About("that report it")]
    cpu_cores: float
    memory_bytes: float
    gpu_utilization: Annotated[float | None, About("mean over workers, 0 to 1")]
    gpu_memory_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUsage(Message):
    """What one task took of its machine at its last report."""

    at: Annotated[datetime, About("when the service heard it")]
    cpu_cores: Annotated[float, About("mean since the time before")]
    memory_bytes: Annotated[float, About("resident")]
    gpu_utilization: Annotated[float | None, About("0 to 1; of a shared GPU the whole")] = None
    gpu_memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Message):
    """One task of a job that has not ended."""

    name: str
    role: Literal["worker", "server", "coordinator"]
    rank: Annotated[int, About("the one in its name; a worker's in the membership may be another")]
    node: str
    gpu_type: str | None
    started_at: datetime
    usage: Annotated[TaskUsage | None, About("none: it has reported nothing lately")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList(Message):
    tasks: list[Task]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Message):
    """A job as the API shows it."""

    id: str
    name: str
    project: str
    owner: Annotated[str | None, About("who submitted it; null: not known")]
    state: JobState
    directive: Literal["run", "pause", "finish", "cancel"]
    spec: JobSpec
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    jct_seconds: Annotated[float | None, About("job completion time: submission to end; None while active")]
    first_step: int | None
    step: Annotated[int, About("that it is at; 0 for one that has no tasks and keeps no checkpoint")]
    epoch: float | None
    loss: float | None
    steps_per_second: Annotated[
        float | None, About("of its newest steps, the mean of the last half minute; None when no step comes")
    ]
    silent_seconds: Annotated[
        float | None, About("since the newest step came, where the next one is late by its own reports")
    ] = None
    wanted: Allocation
    running: Annotated[Allocation, About("what the current membership has")]
    membership_epoch: int
    global_batch: Annotated[int | None, About("of a job with an elastic batch: what it is to have")] = None
    progress: Annotated[
        float | None, About("step / predicted total steps, 0 to 1; 1 with all announced steps made, or after success")
    ]
    remaining_steps: Interval | None
    remaining_seconds: Annotated[
        Interval | None, About("to its end, as `expected` says; without that at its present size, without any waiting")
    ]
    expected: Annotated[
        ExpectedTimes | None, About("null: it has ended, or the queue was not simulated forward lately")
    ] = None
    longer_than_predicted: Annotated[bool, About("it went on beyond the likeliest end; the time left counts that in")]
    finishing: Annotated[bool, About("its rule holds, or all steps that it announced are made: it saves and ends")]
    standstill: Annotated[
        str | None, About("why it makes no step, or may make none soon: it hangs, hung or failed, or lost a worker")
    ] = None
    awaited: Annotated[
        str | None, About("until when a task that does not answer, or a step that does not come, is waited for")
    ] = None
    reason: Annotated[str | None, About("reason code of the last decision")]
    message: str | None
    limit_reached: Annotated[
        str | None, About("the limit that it has reached: it ends, one without tasks as soon as it goes on")
    ] = None
    profile: JobProfile | None
    result: JobResult | None
    failure: str | None
    attempt: Annotated[int, About("how often training began anew from a checkpoint")] = 0
    retries: Annotated[int, About("how many of these were retries after an error, since the last resume")] = 0
    retry_at: Annotated[datetime | None, About("paused after an error: when it may go on")] = None
    last_error: Annotated[str | None, About("what the job's code raised last, in one line")] = None
    rescales: Annotated[
        int,
        About("changes of size while it trained: its allocations with the cause `rescale`, steps on the way included"),
    ]
    deadline_promised_at: Annotated[
        datetime | None, About("when it was promised that it meets its deadline; null: it was not")
    ]
    begins_anew: Annotated[
        bool, About("a stop costs it all its steps, as far as is known: a script that keeps no checkpoint")
    ] = False
    lost_by_a_stop: Annotated[
        str | None,
        About("what a stop would lose now, as far as is known: `86 steps (3 min 05 s of work)`; null: nothing"),
    ] = None
    usage: JobUsage | None = None
    noise_scale: Annotated[float | None, About("of its gradients, in examples; see docs/gradients.md")] = None
    learning_rate: Annotated[
        float | None, About("as its tasks reported it last; none: they do not, or it does not run")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem(Message):
    """What became of one job of a request about many."""

    index: Annotated[int, About("its place in the request, from 0; jobs that were selected: in the answer")]
    id: Annotated[str | None, About("null: there is no such job")]
    name: str | None
    new: Annotated[bool, About("this request made it")] = False
    problem: Annotated[Problem | None, About("why nothing was done; its fields begin with `jobs.INDEX`")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome(Message):
    """What became of each job of a request about many."""

    jobs: list[BatchItem]
    done: Annotated[int, About("jobs for which it was done, now or by an earlier request with the same key")]
    refused: Annotated[int, About("jobs with a problem")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList(Message):
    jobs: list[Job]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob(Message):
    """A job that waits for tasks."""

    position: Annotated[
        int,
        About(
            "1 is expected to start first; of those with the same start, as it is shown, those that have waited so "
            "long that they go first, then the others by `same_start_by`; jobs that the caller may not read are counted"
        ),
    ]
    id: str
    name: str
    project: str
    owner: Annotated[str | None, About("who submitted it; null: not known")]
    priority: float
    submitted_at: datetime
    reason: Annotated[
        str | None,
        About("reason code of the last decision; null: no round has looked at it since it came or was resumed"),
    ]
    why: Annotated[str, About("the same in a phrase")]
    expected: Annotated[ExpectedTimes | None, About("null: the queue was not simulated forward lately")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(Message):
    """The jobs that wait (`GET /v1/queue`), the one that is expected to start first at the top.

    Each round decides anew: a smaller, shorter or more urgent job may start before those above it."""

    waiting: Annotated[int, About("how many wait, those that the caller may not read included")]
    same_start_by: Annotated[
        str, About("by what those stand that are told the same start, as the policy has it", examples=("age",))
    ]
    jobs: list[QueuedJob]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Message):
    id: int
    at: datetime
    type: Annotated[
        str,
        About(examples=("JobSubmitted", "MembershipChanged", "TaskExited")),
    ]
    message: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventList(Message):
    events: list[Event]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening(Message):
    """What the half-widths of an interval were multiplied by, in logarithms."""

    down: float
    up: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Message):
    steps: Widening
    seconds: Widening


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(Message):
    """What a round believed of a job, at the size that the job had then; null: not known."""

    job_id: str
    total_steps: Annotated[Interval | None, About("at which the convergence rule holds")]
    remaining_steps: Interval | None
    confidence: Annotated[float | None, About("0 to 1")]
    rule: Annotated[
        str | None,
        About(
            "the part of the convergence rule that is predicted to hold first; command_ends: a script ends by itself",
            examples=("max_steps",),
        ),
    ]
    loss_curve: Annotated[dict[str, float | None], About("coefficients of the fitted curve; empty before there is one")]
    speed_model: Annotated[
        dict[str, float | None], About("coefficients of the fitted model; empty before there is one")
    ]
    steps_per_second: float | None
    remaining_seconds: Interval | None
    seconds_per_step: Annotated[Interval | None, About("over the rest of the job, with its stops")]
    calibration: Annotated[Calibration, About("what the intervals of what is left were multiplied by")]
    finished_runs: Annotated[int, About("ended jobs of the same task that the loss curve was judged by")]
    finished_runs_share: Annotated[float | None, About("how much they counted, 0 to 1")]
    speed_from: Annotated[SpeedSource | None, About("what predicted speeds rest on; null: nothing is known")]
    cost: Annotated[Interval | None, About("still to be spent; null without prices")]
    converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Message):
    round_id: int
    at: datetime
    allocation: Allocation
    previous: Allocation
    reason: str
    message: str
    gain: float | None
    next_gain: float | None
    batch: Annotated[int | None, About("the global batch, of a job with an elastic one")] = None
    forecast: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionList(Message):
    decisions: list[Decision]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPoint(Message):
    """The job's membership from this moment on."""

    at: datetime
    at_seconds: Annotated[float, About("since submission, or since the first of these if that is older")]
    membership_epoch: int
    step: int
    workers: int
    servers: int
    gpu_type: str | None
    global_batch: Annotated[int | None, About("of a job with an elastic batch")] = None
    cause: str
    pause_seconds: float | None
    pause_parts: Annotated[PauseParts | None, About("of a script")]
    lost_steps: Annotated[int, About("rolled back; of a pause: also what is known to begin anew")]
    lost_seconds: Annotated[
        float | None, About("training time that went with them, of a script that is not known to keep checkpoints")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationList(Message):
    allocations: list[AllocationPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToken(Message):
    """What the tracker of a tracked job shows to the service when it reports."""

    token: str
