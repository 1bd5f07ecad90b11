"""Rounds, decisions and predictions."""

from __future__ import annotations

from scripts.dashboards.model import RATE, Dashboard, lines, quantile, stat

SPEED_ERROR = "abs(optimus_job_predicted_steps_per_second / optimus_job_steps_per_second - 1)"
SCHEDULER = Dashboard(
    "optimus-scheduler",
    "Optimus / Scheduler",
    "Rounds, decisions, and how good the predictions behind them are.",
    (
        (
            "Now",
            (
                stat("Replicas that lead", "sum(optimus_leader)", thresholds=(("red", 0), ("green", 1), ("red", 2))),
                stat(
                    "Since the last round",
                    "time() - max(optimus_last_round_timestamp_seconds)",
                    "s",
                    thresholds=(("green", 0), ("orange", 120), ("red", 300)),
                ),
                stat("Failed rounds in an hour", "sum(increase(optimus_rounds_failed_total[1h]))"),
                stat("Marginal gain", "max(optimus_marginal_gain and on (instance) optimus_leader == 1)"),
                stat("Error of predicted speed", f"quantile(0.5, {SPEED_ERROR})", "percentunit", "Median over jobs."),
                stat("Jobs not yet as wanted", "sum(optimus_reconciling_jobs)"),
            ),
        ),
        (
            "Rounds",
            (
                lines(
                    "Time of rounds",
                    (quantile(0.5, "optimus_round_seconds"), "median"),
                    (quantile(0.99, "optimus_round_seconds"), "99 %"),
                    unit="s",
                ),
                lines(
                    "Time by phase",
                    (
                        f"sum by (phase) (rate(optimus_round_phase_seconds_sum{RATE}))"
                        f" / sum by (phase) (rate(optimus_round_phase_seconds_count{RATE}))",
                        "{{phase}}",
                    ),
                    unit="s",
                    about="observe: database and cluster; forecast: fits; apply: starting and stopping tasks.",
                    stacked=True,
                ),
                lines(
                    "Decisions by reason",
                    (f"sum by (reason) (rate(optimus_decisions_total{RATE}))", "{{reason}}"),
                    unit="ops",
                    stacked=True,
                ),
                lines(
                    "Actions by kind",
                    (f"sum by (action) (rate(optimus_actions_total{RATE}))", "{{action}}"),
                    unit="ops",
                ),
            ),
        ),
        (
            "Predictions",
            (
                lines(
                    "Error of predicted speed",
                    (f"quantile(0.5, {SPEED_ERROR})", "median over jobs"),
                    (f"max({SPEED_ERROR})", "worst"),
                    unit="percentunit",
                ),
                lines(
                    "Error of predicted total steps",
                    (
                        "histogram_quantile(0.5, sum by (le) (increase(optimus_prediction_error_ratio_bucket[1d])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.9, sum by (le) (increase(optimus_prediction_error_ratio_bucket[1d])))",
                        "90 %",
                    ),
                    unit="percentunit",
                    about="Of jobs that ended within a day: what was predicted at half of the steps against what came.",
                ),
                lines(
                    "Job completion time",
                    (
                        "histogram_quantile(0.5, sum by (le) (increase(optimus_job_completion_seconds_bucket[1d])))",
                        "median",
                    ),
                    (
                        "histogram_quantile(0.9, sum by (le) (increase(optimus_job_completion_seconds_bucket[1d])))",
                        "90 %",
                    ),
                    unit="s",
                ),
                lines("Confidence of forecasts", ("avg(optimus_job_confidence_ratio)", "mean"), unit="percentunit"),
            ),
        ),
        (
            "What changing sizes costs",
            (
                lines(
                    "Training stood still, part of the time",
                    (
                        f"sum by (cause) (rate(optimus_rescale_pause_seconds_sum{RATE}))",
                        "{{cause}}",
                    ),
                    about="Seconds of standing still in each second, over all jobs.",
                    stacked=True,
                ),
                lines(
                    "Length of one stop",
                    (quantile(0.5, "optimus_rescale_pause_seconds"), "median"),
                    (quantile(0.95, "optimus_rescale_pause_seconds"), "95 %"),
                    unit="s",
                ),
                lines(
                    "Jobs that wait for what is wanted",
                    ("sum(optimus_reconciling_jobs)", "jobs"),
                    ("max(optimus_reconcile_lag_seconds)", "longest, seconds"),
                ),
            ),
        ),
    ),
)
