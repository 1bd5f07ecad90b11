"""Every metric of the service by name, kind, labels and meaning: what `/metrics` says and docs/metrics.md lists.

Conventions: the prefix `optimus_`; base units in the name (`_seconds`, `_bytes`, `_ratio` from 0 to 1); counters end
in `_total`. Labels are bounded: routes are templates, everything else but jobs comes from a closed list, and of active
jobs at most `MAX_JOBS` (the oldest) have series of their own, which vanish when the job ends.

Who says it: `replica` metrics count what this process did, and add up over replicas. `leader` metrics are read from
the database when somebody scrapes, and only by the replica that leads: they may be added up as well, for no state is
told twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MAX_JOBS = 200
"""Active jobs with series of their own: some 40 series each, which a small Prometheus does not feel."""

_REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0)
"""Fine where ordinary calls are, up to the longest long poll."""
_ROUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Up to the default round period: a round beyond it is late."""
_PAUSE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From an in-place change on one machine to a restart from a checkpoint on a busy cluster."""
_TRANSACTION_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""From a row of SQLite to a writer that waits for its turn."""
_LAG_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Workers post every few seconds; what is late by minutes waited for a service that was away."""
_JCT_BUCKETS = (60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 259200.0, 604800.0)
"""A minute to a week."""
_ERROR_BUCKETS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0)
"""The paper finds predictions within 20 % good enough (section 6.4); beyond 100 % is as good as no prediction."""

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["replica", "leader"]
_JOB = ("job_id", "job")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. A counter's name here ends in `_total`, as scrapers see it."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    scope: Scope = "replica"
    buckets: tuple[float, ...] = ()


def _job_gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"optimus_job_{name}", "gauge", text, (*_JOB, *labels), "leader")


def _job_counter(name: str, text: str) -> Family:
    return Family(f"optimus_job_{name}_total", "counter", text, _JOB, "leader")


def _state(name: str, text: str, *labels: str) -> Family:
    return Family(f"optimus_{name}", "gauge", text, labels, "leader")


# --- active jobs -----------------------------------------------------------------------------------------------------

JOB_INFO = _job_gauge("info", "1; what does not change about the job", "project", "mode", "architecture")
JOB_STATE = _job_gauge("state", "1 for the state that the job is in", "state")
JOB_REASON = _job_gauge("reason", "1 for the reason code of its latest decision (docs/explain.md)", "reason")
JOB_WORKERS = _job_gauge("workers", "Workers of the job's current membership")
JOB_SERVERS = _job_gauge("servers", "Parameter servers of the job's current membership")
JOB_BATCH = _job_gauge(
    "global_batch_examples", "Examples of one step of its current membership (async: of one worker's mini-batch)"
)
JOB_WANTED_WORKERS = _job_gauge("wanted_workers", "Workers that the scheduler wants it to have")
JOB_WANTED_SERVERS = _job_gauge("wanted_servers", "Parameter servers that the scheduler wants it to have")
JOB_SHARE = _job_gauge("share_ratio", "Dominant share of the cluster that its current membership takes")
JOB_STEP = _job_gauge("step", "Steps completed; goes back when a death rolls training back")
JOB_EPOCH = _job_gauge("epoch", "Passes over the training data so far")
JOB_LOSS = _job_gauge("loss", "Loss of the newest sample; NaN and infinities are shown as they are")
JOB_FITTED_LOSS = _job_gauge("fitted_loss", "What the fitted loss curve (Eq. 1) says of the present step")
JOB_PROGRESS = _job_gauge("progress_ratio", "Steps completed of the predicted total")
JOB_SPEED = _job_gauge("steps_per_second", "Measured speed over the last half minute")
JOB_PREDICTED_SPEED = _job_gauge("predicted_steps_per_second", "Predicted speed at the present allocation")
JOB_TOTAL_STEPS = _job_gauge("predicted_total_steps", "Predicted step of the end, with its 80 % interval", "bound")
JOB_REMAINING_STEPS = _job_gauge("predicted_remaining_steps", "Predicted steps left, with their 80 % interval", "bound")
JOB_REMAINING = _job_gauge(
    "predicted_remaining_seconds",
    "Predicted time left, waiting and later changes included, with its 80 % interval",
    "bound",
)
JOB_CONFIDENCE = _job_gauge("confidence_ratio", "How sure the forecast is of itself")
JOB_GAIN = _job_gauge("gain", "Marginal gain of the last task that it was granted; unit of the policy")
JOB_NEXT_GAIN = _job_gauge("next_gain", "Marginal gain that its next task would have had; unit of the policy")
JOB_STEP_PARTS = _job_gauge("step_part_seconds", "Mean time of one step of one worker, by what it was spent on", "part")
JOB_CPU = _job_gauge("used_cpu_cores", "CPU cores that its tasks of a role use, as last reported", "role")
JOB_MEMORY = _job_gauge("used_memory_bytes", "Resident memory of its tasks of a role", "role")
JOB_GPU = _job_gauge("gpu_utilization_ratio", "How busy its workers' GPUs are, mean; of a shared GPU the whole")
JOB_GPU_MEMORY = _job_gauge("used_gpu_memory_bytes", "GPU memory of its workers' processes")
JOB_NOISE = _job_gauge("noise_scale_examples", "Noise scale tr(Σ)/|G|² of its gradients, where it is measured")
JOB_STRAGGLER = _job_gauge("straggler_ratio", "Compute time per step of the slowest worker over that of the median one")
JOB_SUBMITTED = _job_gauge("submitted_timestamp_seconds", "When it was submitted, POSIX seconds")
JOB_WAITING = _job_gauge(
    "waiting_since_timestamp_seconds", "Since when it waits for tasks, POSIX seconds; only if it does"
)
JOB_COST = _job_gauge("cost_per_hour", "What its membership costs, in the currency of the prices; none without prices")
JOB_REMAINING_COST = _job_gauge(
    "predicted_remaining_cost", "Predicted money to be spent until the end, with its 80 % interval", "bound"
)
JOB_RESCALES = _job_counter(
    "rescales", "Changes of size while it trained, each step on the way to a wanted size included"
)
JOB_DOWNTIME = _job_counter("stopped_seconds", "Time that training stood still at membership changes")
JOB_LOST_STEPS = _job_counter(
    "lost_steps", "Steps rolled back after deaths of its tasks, not at its pauses or new sizes"
)

# --- the cluster -----------------------------------------------------------------------------------------------------

JOBS = _state("jobs", "Jobs by state, ended ones included", "state")
WAITING = _state("waiting_jobs", "Jobs without tasks by the reason of their latest decision", "reason")
WITHOUT_SERIES = _state("jobs_without_series", f"Active jobs beyond the {MAX_JOBS} that have series of their own")
NODES = _state("nodes", "Nodes by whether new tasks may be placed on them", "state")
CPU = _state("cluster_cpu_cores", "CPU cores: capacity of schedulable nodes, and what memberships use", "of")
MEMORY = _state("cluster_memory_bytes", "Memory: capacity of schedulable nodes, and what memberships use", "of")
GPUS = _state("cluster_gpus", "GPUs: capacity of schedulable nodes, and what memberships use", "of", "gpu_type")
RECONCILING = _state("reconciling_jobs", "Active jobs whose membership is not what is wanted")
LAG = _state("reconcile_lag_seconds", "How long the oldest of them has been waiting for what is wanted; 0 without any")

INTERVALS_HELD = _state(
    "prediction_interval_held_ratio",
    "Of the newest predictions whose jobs succeeded since: part whose 80 % interval held what came",
    "kind",
    "part",
)
PREDICTIONS_JUDGED = _state(
    "predictions_judged", "So many predictions of that kind and part of life were judged", "kind", "part"
)

# --- rounds ----------------------------------------------------------------------------------------------------------

ROUNDS = Family("optimus_round_seconds", "histogram", "Time of scheduling rounds", buckets=_ROUND_BUCKETS)
PHASES = Family(
    "optimus_round_phase_seconds", "histogram", "Time of the phases of rounds", ("phase",), buckets=_ROUND_BUCKETS
)
FAILED_ROUNDS = Family("optimus_rounds_failed_total", "counter", "Rounds that ended early or left something undone")
LAST_ROUND = Family("optimus_last_round_timestamp_seconds", "gauge", "When this replica's last good round began")
DECISIONS = Family("optimus_decisions_total", "counter", "Decisions by reason code", ("reason",))
ACTIONS = Family("optimus_actions_total", "counter", "Actions of rounds by kind", ("action",))
MARGINAL_GAIN = Family(
    "optimus_marginal_gain", "gauge", "Least gain of a task granted in the leader's last round; unit of the policy"
)
LOOKS_AHEAD = Family(
    "optimus_look_ahead_seconds",
    "histogram",
    "Time of simulating the queue forward, beside the rounds",
    buckets=_ROUND_BUCKETS,
)
LAST_LOOK_AHEAD = Family(
    "optimus_last_look_ahead_timestamp_seconds",
    "gauge",
    "State of the queue that this replica last simulated forward: expected starts and ends are as old",
)
LEADER = Family("optimus_leader", "gauge", "1 while this replica runs the rounds")
UNKNOWN_TASKS = Family(
    "optimus_unknown_tasks", "gauge", "Running tasks of jobs that the database does not know; 0 on a follower"
)
LOOP_HEALTHY = Family("optimus_loop_healthy", "gauge", "0 while rounds fail, or database or cluster cannot be reached")

# --- what jobs report -----------------------------------------------------------------------------------------------

SAMPLES = Family("optimus_samples_total", "counter", "Telemetry samples: accepted, or why not", ("outcome",))
SAMPLE_LAG = Family(
    "optimus_sample_lag_seconds", "histogram", "From a sample's last step to its arrival", buckets=_LAG_BUCKETS
)
PAUSES = Family(
    "optimus_rescale_pause_seconds",
    "histogram",
    "How long training stood still at membership changes",
    ("cause",),
    buckets=_PAUSE_BUCKETS,
)
COMPLETIONS = Family(
    "optimus_job_completion_seconds",
    "histogram",
    "Job completion time (JCT), submission to the reported end",
    ("outcome",),
    buckets=_JCT_BUCKETS,
)
PREDICTION_ERROR = Family(
    "optimus_prediction_error_ratio",
    "histogram",
    "Of succeeded jobs: |predicted − real| ÷ real total steps, as predicted when half of them were done",
    buckets=_ERROR_BUCKETS,
)

# --- the service -----------------------------------------------------------------------------------------------------

REQUESTS = Family(
    "optimus_api_request_seconds",
    "histogram",
    "Time to answer API requests, by route template",
    ("method", "route", "status"),
    buckets=_REQUEST_BUCKETS,
)
IN_PROGRESS = Family("optimus_api_requests_in_progress", "gauge", "Requests being answered, long polls included")
LONG_POLLS = Family("optimus_long_polls", "gauge", "Coordinators that wait for a change of what is wanted")
STREAMS = Family("optimus_streams", "gauge", "Open event streams (pages that watch)")
TRANSACTIONS = Family(
    "optimus_database_transaction_seconds",
    "histogram",
    "Time of database transactions, waiting for the writer's turn included",
    ("kind",),
    buckets=_TRANSACTION_BUCKETS,
)
DATABASE_ERRORS = Family("optimus_database_errors_total", "counter", "Transactions that failed", ("kind",))
DATABASE_UP = Family(
    "optimus_database_up",
    "gauge",
    "1 when the database could be read, and the last transaction that wrote did not fail",
)
UNEXPECTED_ERRORS = Family(
    "optimus_unexpected_errors_total", "counter", "Unexpected errors that a thread survived", ("thread",)
)
BUILD = Family("optimus_build_info", "gauge", "1; the version that runs", ("version", "policy"))

GROUPS: tuple[tuple[str, tuple[Family, ...]], ...] = (
    (
        "Active jobs",
        (
            JOB_INFO,
            JOB_STATE,
            JOB_REASON,
            JOB_WORKERS,
            JOB_SERVERS,
            JOB_BATCH,
            JOB_WANTED_WORKERS,
            JOB_WANTED_SERVERS,
            JOB_SHARE,
            JOB_STEP,
            JOB_EPOCH,
            JOB_LOSS,
            JOB_FITTED_LOSS,
            JOB_PROGRESS,
            JOB_SPEED,
            JOB_PREDICTED_SPEED,
            JOB_TOTAL_STEPS,
            JOB_REMAINING_STEPS,
            JOB_REMAINING,
            JOB_CONFIDENCE,
            JOB_GAIN,
            JOB_NEXT_GAIN,
            JOB_STEP_PARTS,
            JOB_CPU,
            JOB_MEMORY,
            JOB_GPU,
            JOB_GPU_MEMORY,
            JOB_NOISE,
            JOB_STRAGGLER,
            JOB_SUBMITTED,
            JOB_WAITING,
            JOB_COST,
            JOB_REMAINING_COST,
            JOB_RESCALES,
            JOB_DOWNTIME,
            JOB_LOST_STEPS,
        ),
    ),
    ("The cluster", (JOBS, WAITING, WITHOUT_SERIES, NODES, CPU, MEMORY, GPUS, RECONCILING, LAG)),
    ("How predictions turned out", (INTERVALS_HELD, PREDICTIONS_JUDGED)),
    (
        "Rounds",
        (
            ROUNDS,
            PHASES,
            FAILED_ROUNDS,
            LAST_ROUND,
            DECISIONS,
            ACTIONS,
            MARGINAL_GAIN,
            LOOKS_AHEAD,
            LAST_LOOK_AHEAD,
            LEADER,
            UNKNOWN_TASKS,
            LOOP_HEALTHY,
        ),
    ),
    ("What jobs report", (SAMPLES, SAMPLE_LAG, PAUSES, COMPLETIONS, PREDICTION_ERROR)),
    (
        "The service",
        (
            REQUESTS,
            IN_PROGRESS,
            LONG_POLLS,
            STREAMS,
            TRANSACTIONS,
            DATABASE_ERRORS,
            DATABASE_UP,
            UNEXPECTED_ERRORS,
            BUILD,
        ),
    ),
)
"""All metrics in the order in which the documentation lists them."""


def families() -> Iterable[Family]:
    """All of them."""
    return (family for _, group in GROUPS for family in group)
