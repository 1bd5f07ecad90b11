"""The answers of the REST API as JSON: made from `optimus_contract` by `python -m scripts.cli_types`, not to be edited.

`None` means that nothing is known yet. The bodies are only described here, not checked: the service has done that, and
an older client must survive a newer service's fields, which `--json` prints as well.
"""

from __future__ import annotations

from typing import Any, TypedDict


class Allocation(TypedDict):
    workers: int
    servers: int
    gpu_type: str | None


class Interval(TypedDict):
    mean: float
    low: float | None
    high: float | None


class Instants(TypedDict):
    mean: str | None
    low: str | None
    high: str | None


class ExpectedCut(TypedDict):
    pauses: bool
    seconds: float
    words: str


class ExpectedTimes(TypedDict):
    computed_at: str
    start_seconds: Interval | None
    start_at: Instants | None
    end_seconds: Interval | None
    end_at: Instants | None
    cut: ExpectedCut | None


class JobProfile(TypedDict):
    n_parameters: int | None
    n_examples: int | None
    global_batch_size: int | None
    steps_per_epoch: float | None
    total_steps: int | None
    learned_from: str | None
    resumes: bool | None
    fixed_workers: int | None
    checkpoint_every_seconds: float | None
    checkpoint_write_seconds: float | None
    unread_line: str | None
    suggested_pattern: str | None
    began_at_step: int | None


class JobResult(TypedDict):
    outcome: str
    step: int
    final_loss: float | None
    metrics: dict[str, float | None]
    checkpoint: str | None
    model: str | None
    error: str | None
    permanent: bool
    seconds_ago: float
    attempt: int | None


class JobUsage(TypedDict):
    workers: int
    cpu_cores: float
    memory_bytes: float
    gpu_utilization: float | None
    gpu_memory_bytes: float | None


class Job(TypedDict):
    id: str
    name: str
    project: str
    owner: str | None
    state: str
    directive: str
    spec: dict[str, Any]
    created_at: str
    started_at: str | None
    finished_at: str | None
    jct_seconds: float | None
    first_step: int | None
    step: int
    epoch: float | None
    loss: float | None
    steps_per_second: float | None
    silent_seconds: float | None
    wanted: Allocation
    running: Allocation
    membership_epoch: int
    global_batch: int | None
    progress: float | None
    remaining_steps: Interval | None
    remaining_seconds: Interval | None
    expected: ExpectedTimes | None
    longer_than_predicted: bool
    finishing: bool
    standstill: str | None
    awaited: str | None
    reason: str | None
    message: str | None
    limit_reached: str | None
    profile: JobProfile | None
    result: JobResult | None
    failure: str | None
    attempt: int
    retries: int
    retry_at: str | None
    last_error: str | None
    rescales: int
    deadline_promised_at: str | None
    begins_anew: bool
    lost_by_a_stop: str | None
    usage: JobUsage | None
    noise_scale: float | None
    learning_rate: float | None


class ProblemError(TypedDict):
    field: str
    message: str


class Problem(TypedDict):
    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemError]
    request_id: str | None


class BatchItem(TypedDict):
    index: int
    id: str | None
    name: str | None
    new: bool
    problem: Problem | None


class BatchOutcome(TypedDict):
    jobs: list[BatchItem]
    done: int
    refused: int


class Event(TypedDict):
    id: int
    at: str
    type: str
    message: str
    data: dict[str, Any]


class Widening(TypedDict):
    down: float
    up: float


class Calibration(TypedDict):
    steps: Widening
    seconds: Widening


class Forecast(TypedDict):
    job_id: str
    total_steps: Interval | None
    remaining_steps: Interval | None
    confidence: float | None
    rule: str | None
    loss_curve: dict[str, float | None]
    speed_model: dict[str, float | None]
    steps_per_second: float | None
    remaining_seconds: Interval | None
    seconds_per_step: Interval | None
    calibration: Calibration
    finished_runs: int
    finished_runs_share: float | None
    speed_from: str | None
    cost: Interval | None
    converged: bool


class Decision(TypedDict):
    round_id: int
    at: str
    allocation: Allocation
    previous: Allocation
    reason: str
    message: str
    gain: float | None
    next_gain: float | None
    batch: int | None
    forecast: Forecast


class Marginal(TypedDict):
    job_id: str
    name: str
    gain: float


class Expected(TypedDict):
    start_seconds: Interval | None
    finish_seconds: Interval | None
    finish_at: str | None
    computed_at: str | None


class PauseParts(TypedDict):
    save_seconds: float | None
    stop_seconds: float | None
    start_seconds: float | None
    load_seconds: float | None
    told_every: int | None


class RescaleEffect(TypedDict):
    at: str
    before: Allocation
    after: Allocation
    stopped_seconds: float
    pause_parts: PauseParts | None
    lost_steps: int
    steps_per_second_before: float | None
    steps_per_second_after: float | None
    saved_seconds: float | None


class Explanation(TypedDict):
    job_id: str
    state: str
    at: str | None
    reason: str | None
    message: str
    what_would_change_it: str
    sentences: list[str]
    allocation: Allocation
    previous: Allocation
    gain: float | None
    next_gain: float | None
    marginal: Marginal | None
    confidence: float | None
    expected: Expected
    last_rescale: RescaleEffect | None
    troubles: list[str]


class Effect(TypedDict):
    job_id: str
    name: str
    before: Allocation
    after: Allocation
    finish_seconds_before: Interval | None
    finish_seconds_after: Interval | None
    lost_steps: int
    lost_seconds: float | None
    loses_since_checkpoint: bool


class DeadlineAnswer(TypedDict):
    at: str
    answer: str
    earliest: str | None


class Plan(TypedDict):
    allocation: Allocation
    reason: str
    message: str
    what_would_change_it: str
    sentences: list[str]
    expected: Expected
    cost: Interval | None
    speed_from: str | None
    finished_runs: int
    confidence: float
    effects: list[Effect]
    deadline: DeadlineAnswer | None


class ChangePlan(TypedDict):
    sentences: list[str]
    effects: list[Effect]


class SpeedPoint(TypedDict):
    workers: int
    servers: int
    steps_per_second: float | None
    remaining_seconds: Interval | None
    measured: float | None
    cost: Interval | None
    beyond: str | None


class CurvePoint(TypedDict):
    step: float
    loss: float | None


class FittedPoint(TypedDict):
    step: float
    loss: float | None
    low: float | None
    high: float | None


class PredictionPoint(TypedDict):
    at: str
    step: int
    total_steps: Interval | None
    remaining_seconds: Interval | None


class Learned(TypedDict):
    finished_runs: int
    share: float
    speeds_from: str | None


class RatePoint(TypedDict):
    step: float
    rate: float


class MetricPoint(TypedDict):
    step: float
    value: float


class Metric(TypedDict):
    name: str
    target: float
    values: list[MetricPoint]
    fitted: list[MetricPoint]


class Choice(TypedDict):
    workers: int
    servers: int
    remaining_seconds: Interval
    cost: Interval
    keeps_limit: bool


class Cost(TypedDict):
    so_far: float
    to_finish: Interval | None
    cheapest_before_deadline: Choice | None
    fastest_under_budget: Choice | None
    worth_considering: list[Choice]


class Advice(TypedDict):
    kind: str
    message: str
    workers: int
    servers: int
    seconds_ratio: Interval
    cost_ratio: Interval


class CheckpointAdvice(TypedDict):
    every_seconds: float
    write_seconds: float
    best_every_seconds: float
    seconds_between_interruptions: float
    lost_share: float
    best_lost_share: float
    message: str


class ReviewPoint(TypedDict):
    at: str
    step: int
    part: float
    total_steps: Interval | None
    error_percent: float | None
    held: bool | None
    remaining_seconds: Interval | None
    true_remaining_seconds: float
    seconds_error_percent: float | None
    seconds_held: bool | None


class Outcome(TypedDict):
    steps: int
    seconds: float | None
    final_loss: float | None
    metrics: dict[str, float | None]
    cost: float | None
    review: list[ReviewPoint]


class Predictions(TypedDict):
    at: str | None
    total_steps: Interval | None
    remaining_steps: Interval | None
    remaining_seconds: Interval | None
    expected: ExpectedTimes | None
    confidence: float
    rule: str | None
    loss_curve: dict[str, float | None]
    speed_model: dict[str, float | None]
    speeds: list[SpeedPoint]
    losses: list[CurvePoint]
    fitted: list[FittedPoint]
    history: list[PredictionPoint]
    learned: Learned
    learning_rates: list[RatePoint]
    planned_rates: list[RatePoint]
    metric: Metric | None
    cost: Cost | None
    advice: list[Advice]
    checkpoints: CheckpointAdvice | None
    outcome: Outcome | None


class AllocationPoint(TypedDict):
    at: str
    at_seconds: float
    membership_epoch: int
    step: int
    workers: int
    servers: int
    gpu_type: str | None
    global_batch: int | None
    cause: str
    pause_seconds: float | None
    pause_parts: PauseParts | None
    lost_steps: int
    lost_seconds: float | None


class TaskUsage(TypedDict):
    at: str
    cpu_cores: float
    memory_bytes: float
    gpu_utilization: float | None
    gpu_memory_bytes: float | None


class Task(TypedDict):
    name: str
    role: str
    rank: int
    node: str
    gpu_type: str | None
    started_at: str
    usage: TaskUsage | None


class Log(TypedDict):
    task: str
    text: str


class ProjectLimits(TypedDict):
    waiting_jobs: int | None
    max_workers: int | None
    workers_together: int | None
    max_priority: float | None


class ProjectQuota(TypedDict):
    share: float | None
    cpu: float | None
    memory_bytes: int | None
    gpus: dict[str, int]
    may_borrow: bool
    limits: ProjectLimits


class NodeResources(TypedDict):
    cpu: float
    memory_bytes: int
    gpus: dict[str, int]


class Project(TypedDict):
    name: str
    quota: ProjectQuota
    guaranteed: NodeResources
    shrunk: str | None
    used: NodeResources
    borrowed: NodeResources
    jobs: dict[str, int]
    updated_at: str


class Node(TypedDict):
    name: str
    schedulable: bool
    drained: bool
    capacity: NodeResources
    used: NodeResources
    tasks: list[str]


class UnknownTask(TypedDict):
    task: str
    job_id: str
    node: str


class Cluster(TypedDict):
    capacity: NodeResources
    used: NodeResources
    jobs: dict[str, int]
    unknown_tasks: list[UnknownTask]
    last_round_at: str | None
    policy: str
    version: str


class PredictionScore(TypedDict):
    kind: str
    part: str
    promises: int
    held: float
    median_error_percent: float


class TaskScore(TypedDict):
    task: str
    scores: list[PredictionScore]


class Scorecard(TypedDict):
    scores: list[PredictionScore]
    tasks: list[TaskScore]


class UserLimits(TypedDict):
    waiting_jobs: int | None
    max_workers: int | None
    workers_together: int | None
    max_priority: float | None
    requests_per_second: float | None


class User(TypedDict):
    name: str
    kind: str
    role: str | None
    projects: dict[str, str]
    limits: UserLimits
    created_at: str
    created_by: str
    subject: str | None


class Token(TypedDict):
    id: str
    user: str
    name: str
    scope: str
    projects: list[str] | None
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class MadeToken(TypedDict):
    token: Token
    secret: str


class DeviceSignIn(TypedDict):
    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    expires_seconds: float
    interval_seconds: float


class DeviceProgress(TypedDict):
    made: MadeToken | None
    slow_down: bool


class WhoAmI(TypedDict):
    name: str
    role: str | None
    scope: str
    projects: dict[str, str] | None
    may: list[str]
    since: str | None
    token_id: str | None
    limits: UserLimits


class AuditEntry(TypedDict):
    id: int
    at: str
    who: str
    token_id: str | None
    action: str
    target: str | None
    project: str | None
    data: dict[str, Any]
    request_id: str | None


class UsageAmounts(TypedDict):
    worker_hours: float
    core_hours: float
    gpu_hours: float
    cost: float | None


class UsageLine(TypedDict):
    worker_hours: float
    core_hours: float
    gpu_hours: float
    cost: float | None
    owner: str | None
    project: str
    gpu_type: str | None


class Usage(TypedDict):
    month: str
    until: str
    total: UsageAmounts
    lines: list[UsageLine]


class QueuedJob(TypedDict):
    position: int
    id: str
    name: str
    project: str
    owner: str | None
    priority: float
    submitted_at: str
    reason: str | None
    why: str
    expected: ExpectedTimes | None
