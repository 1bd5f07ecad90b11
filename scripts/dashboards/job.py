"""One job."""

from __future__ import annotations

from scripts.dashboards.model import Dashboard, lines, stat

OF_JOB = '{job_id=~"$job"}'


def bounds(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple((f'{metric}{{job_id=~"$job", bound="{bound}"}}', bound) for bound in ("low", "mean", "high"))


JOB = Dashboard(
    "optimus-job",
    "Optimus / Job",
    "One job: loss and fit, its predicted end, speed, sizes, where its time goes.",
    (
        (
            "Now",
            (
                stat("Progress", f"max(optimus_job_progress_ratio{OF_JOB})", "percentunit"),
                stat("Time left", 'max(optimus_job_predicted_remaining_seconds{job_id=~"$job", bound="mean"})', "s"),
                stat("Workers", f"max(optimus_job_workers{OF_JOB})"),
                stat("Servers", f"max(optimus_job_servers{OF_JOB})"),
                stat("Speed", f"max(optimus_job_steps_per_second{OF_JOB})", "short", "Steps per second, measured."),
                stat("Confidence", f"max(optimus_job_confidence_ratio{OF_JOB})", "percentunit"),
            ),
        ),
        (
            "Loss and end",
            (
                lines(
                    "Loss and fit",
                    (f"optimus_job_loss{OF_JOB}", "measured"),
                    (f"optimus_job_fitted_loss{OF_JOB}", "fitted (Eq. 1)"),
                ),
                lines(
                    "Predicted end",
                    *bounds("optimus_job_predicted_total_steps"),
                    (f"optimus_job_step{OF_JOB}", "step"),
                    about="The step of the end with its 80 % interval: it should narrow, and the step should meet it.",
                ),
                lines("Time left", *bounds("optimus_job_predicted_remaining_seconds"), unit="s"),
                lines("Money to be spent", *bounds("optimus_job_predicted_remaining_cost")),
            ),
        ),
        (
            "Speed and size",
            (
                lines(
                    "Speed, predicted and measured",
                    (f"optimus_job_steps_per_second{OF_JOB}", "measured"),
                    (f"optimus_job_predicted_steps_per_second{OF_JOB}", "predicted"),
                ),
                lines(
                    "Size",
                    (f"optimus_job_workers{OF_JOB}", "workers"),
                    (f"optimus_job_servers{OF_JOB}", "servers"),
                    (f"optimus_job_wanted_workers{OF_JOB}", "workers wanted"),
                    (f"optimus_job_wanted_servers{OF_JOB}", "servers wanted"),
                ),
                lines(
                    "Where the time of a step goes",
                    (f"optimus_job_step_part_seconds{OF_JOB}", "{{part}}"),
                    unit="s",
                    about="Mean over workers. Much wait: stragglers, too few servers. Much push and pull: the network.",
                    stacked=True,
                ),
                lines(
                    "Stragglers",
                    (f"optimus_job_straggler_ratio{OF_JOB}", "slowest ÷ median"),
                    about="Compute time of the slowest worker over that of the median one; 1 is even.",
                ),
            ),
        ),
        (
            "Why it has that",
            (
                lines(
                    "Gain of its last and of its next task",
                    (f"optimus_job_gain{OF_JOB}", "last granted"),
                    (f"optimus_job_next_gain{OF_JOB}", "next"),
                    about="It gets its next task when that gains more than the last one of somebody else.",
                ),
                lines(
                    "Reason",
                    (f"sum by (reason) (optimus_job_reason{OF_JOB})", "{{reason}}"),
                    about="See docs/explain.md.",
                    stacked=True,
                ),
                lines(
                    "Changes of size",
                    (f"optimus_job_rescales_total{OF_JOB}", "changes"),
                    (f"optimus_job_stopped_seconds_total{OF_JOB}", "seconds stood still"),
                ),
                lines("Steps lost after deaths", (f"optimus_job_lost_steps_total{OF_JOB}", "steps")),
            ),
        ),
    ),
    (("job", "label_values(optimus_job_info, job_id)"),),
)
