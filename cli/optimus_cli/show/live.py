"""The live view: what `optimus watch` and the demo show while jobs run. Pure: a frame in, a renderable out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from optimus_cli.bodies import Cluster, Job
from optimus_cli.client import is_final
from optimus_cli.show import render_jobs, wording

BAR_WIDTH = 20
NAME_WIDTH = 18
"""With these, the time left with its interval fits in a terminal of 80 columns."""
MAX_SLOT_MARKS = 32
"""Above this many slots the gauge would not fit beside the rest, so only the numbers are shown."""
SLOT_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Frame:
    """What is known at one moment."""

    jobs: Sequence[Job]
    cluster: Cluster | None
    elapsed_seconds: float
    notice: str | None = None
    """Something to say above the jobs, such as that the service does not answer at present."""
    expected: Sequence[str] = field(default=())
    """Jobs that will arrive later, one sentence each."""


def view(frame: Frame) -> RenderableType:
    """The whole picture: cluster, then each job."""
    parts: list[RenderableType] = [headline(frame), Text()]
    if frame.notice is not None:
        parts += [Text(frame.notice, style="yellow"), Text()]
    parts += [job_block(job) for job in frame.jobs]
    parts += [Text(f"  {sentence}", style="dim") for sentence in frame.expected]
    if not frame.jobs and not frame.expected:
        parts.append(Text("No jobs.", style="dim"))
    return Group(*parts)


def headline(frame: Frame) -> Text:
    """Policy, slots in use, elapsed time."""
    line = Text.assemble(("Optimus", "bold"))
    if frame.cluster is not None:
        used, capacity = frame.cluster["used"]["cpu"], frame.cluster["capacity"]["cpu"]
        line.append(f"  policy {frame.cluster['policy']}")
        line.append("  slots ")
        line.append_text(slot_gauge(used, capacity))
        line.append(f" {used:g}/{capacity:g} used")
    line.append(f"  {wording.duration(frame.elapsed_seconds)}", style="dim")
    return line


def slot_gauge(used: float, capacity: float) -> Text:
    """One mark per slot, filled for those in use (begun slots count)."""
    n_slots = round(capacity)
    if not 0 < n_slots <= MAX_SLOT_MARKS:
        return Text()
    filled = min(n_slots, int(used + 1 - SLOT_TOLERANCE))
    return Text.assemble(("■" * filled, "cyan"), ("□" * (n_slots - filled), "dim"))


def job_block(job: Job) -> RenderableType:
    """Three lines: bar and time left; step, loss, size, speed; the last decision."""
    top = Table.grid(padding=(0, 1))
    top.add_column(width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    top.add_column(width=BAR_WIDTH)
    top.add_column(width=5, justify="right")
    top.add_column(width=9)
    top.add_column()
    top.add_row(
        Text(job["name"], style="bold"),
        bar(job),
        render_jobs.progress(job),
        render_jobs.state_of(job),
        Text(expectation(job)),
    )
    return Group(top, Text(f"  {details(job)}"), _last_words(job), Text())


def bar(job: Job) -> ProgressBar:
    """Progress towards predicted convergence; empty while nothing is predicted."""
    done = 1.0 if job["state"] == "succeeded" else min(max(job["progress"] or 0.0, 0.0), 1.0)
    colour = {"failed": "red", "cancelled": "dim"}.get(job["state"], "cyan")
    return ProgressBar(total=1.0, completed=done, width=BAR_WIDTH, complete_style=colour, finished_style="green")


def expectation(job: Job) -> str:
    """What to expect: the time left, or what it took."""
    if is_final(job) or render_jobs.is_being_cancelled(job):
        return render_jobs.time_left(job)
    if render_jobs.is_paused_by_owner(job):
        return "paused"
    if job.get("finishing"):
        return "finishing"
    if job["state"] in render_jobs.BEFORE_TASKS and job["wanted"]["workers"]:
        return "starting"
    if starts := render_jobs.starts_in(job):
        return f"starts in {starts[0][1]}"
    if job["state"] in render_jobs.BEFORE_TASKS:
        return "waiting"
    if job.get("standstill"):
        return render_jobs.left(job)
    is_learning = render_jobs.time_left(job) == wording.UNKNOWN and not job.get("longer_than_predicted")
    return "learning" if is_learning else render_jobs.left(job)


def details(job: Job) -> str:
    """Step of predicted total, loss, workers and servers; speed where no time left is told, which looks further."""
    remaining = job["remaining_steps"]
    total = ""
    if remaining is not None and job["progress"] is not None and not is_final(job):  # else the end is not known
        total = f" of {wording.count(job['step'] + remaining['mean'])}"
    running = job["running"]
    parts = [f"step {wording.count(job['step'])}{total}", f"loss {wording.number(job['loss'], wording.LOSS_DIGITS)}"]
    if not is_final(job):
        parts.append(wording.tasks(running))
        if job["remaining_seconds"] is None:
            parts.append(f"{wording.number(job['steps_per_second'])} steps/s")
    result = job["result"]
    if result is not None:
        parts += [f"{name} {wording.number(value)}" for name, value in sorted(result["metrics"].items())]
    return "  ".join(parts)


def _last_words(job: Job) -> Text:
    """Why it failed or waits for a retry, how often its size changed, or the last decision about it."""
    if job["failure"] is not None:
        return Text(f"  {wording.last_line(job['failure'])}", style="red", no_wrap=True, overflow="ellipsis")
    if is_final(job):
        return Text(f"  size changed {job['rescales']} times", style="dim")
    if (error := awaited_retry(job)) is not None:
        return Text(f"  {error}", style="yellow", no_wrap=True, overflow="ellipsis")
    words = "" if job["reason"] is None else f"  {job['reason']}: {job['message'] or ''}"
    return Text(words, style="dim", no_wrap=True, overflow="ellipsis")


def awaited_retry(job: Job) -> str | None:
    """`retry 1 of 2 after ValueError: no such column`, of a job that waits after an error of its code; else None."""
    error = job.get("last_error")
    number = job.get("retries") or 0
    if is_final(job) or error is None or job["retry_at"] is None or not number:
        return None
    most = max(number, job["spec"].get("retries") or 0)
    return f"retry {number} of {wording.count(most)} after {wording.last_line(error)}"


def line(job: Job) -> str:
    """One job in one line, for logs and pipes."""
    parts = [f"{render_jobs.state_of(job)} {render_jobs.progress(job)}", details(job), expectation(job)]
    error = awaited_retry(job)
    if error is not None:
        parts.append(error)
    elif job["reason"] is not None and not is_final(job):
        parts.append(job["reason"])
    return f"{job['name']}: {', '.join(parts)}"
