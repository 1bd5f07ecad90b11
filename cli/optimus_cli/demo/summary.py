"""What the demo showed: from the API's answers to `summary.json` and the closing table. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from optimus_cli.bodies import AllocationPoint, Job, PredictionPoint, Predictions
from optimus_cli.show import render_job, render_jobs, wording
from optimus_cli.show.plots import Run
from optimus_cli.show.wording import moment

FRACTIONS = (0.25, 0.5, 0.75)
"""Parts of a job's life, in steps, at which its prediction is compared with what came."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the service knows of one job after its end."""

    job: Job
    allocations: Sequence[AllocationPoint]
    predictions: Predictions


def summarize(records: Sequence[Record], policy: str, slots: float, version: str) -> dict[str, Any]:
    """The content of `summary.json`."""
    begin = min(moment(record.job["created_at"]) for record in records)
    ends = [moment(record.job["finished_at"]) for record in records if record.job["finished_at"] is not None]
    return {
        "version": version,
        "policy": policy,
        "slots": slots,
        "makespan_seconds": (max(ends) - begin).total_seconds() if len(ends) == len(records) else None,
        "jobs": [
            {"submitted_seconds": (moment(record.job["created_at"]) - begin).total_seconds(), **_job_summary(record)}
            for record in records
        ],
    }


def _job_summary(record: Record) -> dict[str, Any]:
    job, result = record.job, record.job["result"]
    last_step = result["step"] if result is not None else job["step"]
    return {
        "name": job["name"],
        "id": job["id"],
        "task": job["spec"]["task"],
        "command": job["spec"].get("command"),
        "mode": job["spec"]["mode"],
        "learned_from": None if job["profile"] is None else job["profile"].get("learned_from"),
        "convergence": job["spec"]["convergence"],
        "state": job["state"],
        "failure": job["failure"],
        "jct_seconds": job["jct_seconds"],
        "first_step": job["first_step"],
        "last_step": last_step,
        "final_loss": result["final_loss"] if result is not None else job["loss"],
        "test_accuracy": result["metrics"].get("test_accuracy") if result is not None else None,
        "rescales": job["rescales"],
        "lost_steps": sum(point["lost_steps"] for point in record.allocations),
        "allocations": [_allocation(point) for point in record.allocations],
        "predictions": [prediction_at(fraction, record.predictions["history"], last_step) for fraction in FRACTIONS],
    }


def _allocation(point: AllocationPoint) -> dict[str, Any]:
    return {
        "at_seconds": point["at_seconds"],
        "workers": point["workers"],
        "servers": point["servers"],
        "step": point["step"],
        "cause": point["cause"],
        "pause_seconds": point["pause_seconds"],
        "lost_steps": point["lost_steps"],
        "membership_epoch": point["membership_epoch"],
    }


def prediction_at(fraction: float, history: Sequence[PredictionPoint], actual: int) -> dict[str, Any]:
    """The latest prediction of the total steps that was made by this fraction of them; nulls when there was none."""
    made = [point for point in history if point["total_steps"] is not None and point["step"] <= fraction * actual]
    total = made[-1]["total_steps"] if made else None
    return {
        "at_fraction": fraction,
        "at_step": made[-1]["step"] if made else None,
        "predicted_total_steps": None if total is None else total["mean"],
        "low": None if total is None else total["low"],
        "high": None if total is None else total["high"],
        "actual": actual,
    }


def runs(records: Sequence[Record]) -> list[Run]:
    """The same for the picture."""
    begin = min(moment(record.job["created_at"]) for record in records)
    return [_run(record, (moment(record.job["created_at"]) - begin).total_seconds()) for record in records]


def _run(record: Record, submitted_seconds: float) -> Run:
    last_change = max((point["at_seconds"] for point in record.allocations), default=0.0)
    lived = record.job["jct_seconds"]
    end = submitted_seconds + (last_change if lived is None else lived)
    return Run(record.job, submitted_seconds, end, record.allocations, record.predictions)


def closing_words(summary: dict[str, Any]) -> RenderableType:
    """The end of the demo: a few lines per job, then the whole."""
    makespan = wording.duration(summary["makespan_seconds"])
    whole = (
        f"{len(summary['jobs'])} jobs on {summary['slots']:g} slots, policy {summary['policy']}: done in {makespan}."
    )
    return Group(*(_job_words(job) for job in summary["jobs"]), Text(whole, style="bold"))


def _job_words(job: dict[str, Any]) -> RenderableType:
    title = Text.assemble(
        (job["name"], "bold"),
        f" ({shlex.join(job['command']) if job['command'] else job['mode']}) ",
        render_jobs.state(job["state"]),
        f" in {wording.duration(job['jct_seconds'])}",
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("  workers + servers", sizes(job["allocations"]))
    facts.add_row("  changes cost", _changes(job["allocations"]))
    if job["learned_from"] is not None:
        facts.add_row("  learned from", render_job.channel(job["learned_from"]))
    facts.add_row("  steps predicted", ", ".join(_compared(prediction) for prediction in job["predictions"]))
    facts.add_row("  steps", wording.count(job["last_step"]))
    facts.add_row("  loss, smoothed", wording.number(job["final_loss"]))
    if job["command"] is None:
        facts.add_row("  test accuracy", wording.number(job["test_accuracy"]))
    if job["failure"]:
        facts.add_row("  failure", Text(job["failure"], style="red"))
    return Group(title, facts, Text())


def sizes(allocations: Sequence[dict[str, Any]]) -> str:
    """1+1 → 2+1 → 3+2: each change of size once."""
    words: list[str] = []
    for point in allocations:
        size = f"{point['workers']}+{point['servers']}"
        if not words or words[-1] != size:
            words.append(size)
    return " → ".join(words) or wording.UNKNOWN


def _changes(allocations: Sequence[dict[str, Any]]) -> str:
    """How long training stood still in each change of size, and what was lost by all of them."""
    changes = [point for point in allocations[1:] if point["pause_seconds"] is not None]
    pauses = ", ".join(wording.duration(point["pause_seconds"]) for point in changes)
    lost = sum(point["lost_steps"] for point in changes)
    return f"{pauses}; {wording.count(lost)} steps lost" if changes else wording.UNKNOWN


def _compared(prediction: dict[str, Any]) -> str:
    when = f"at {prediction['at_fraction']:.0%}"
    predicted, actual = prediction["predicted_total_steps"], prediction["actual"]
    if predicted is None or not actual:
        return f"{wording.UNKNOWN} {when}"
    return f"{wording.count(predicted)} {when} ({(predicted - actual) / actual:+.0%})"
