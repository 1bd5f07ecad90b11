"""What a line about a job says: its state, its progress, the time left; and the list of jobs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from optimus_cli.bodies import Job
from optimus_cli.show import wording
from optimus_cli.show.layout import columns_table, fitting, in_all
from optimus_cli.show.palette import STATE_STYLES

LONGEST_WHOLE_ID = 28
LONGEST_LABEL = 28
"""Characters of one label in a list; `optimus describe` shows all."""
LEFT_OUT = ("owner", "step", "submitted", "priority", "project", "labels", "loss")
"""Columns of a list that a terminal has no room for, the first of them first."""
LONGEST_NAME_IN_ID = 34
"""Characters of a name that an id begins with."""


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, style=STATE_STYLES.get(name, ""))


def is_being_cancelled(job: Job) -> bool:
    """Whether its owner cancelled it, and its tasks are still being stopped."""
    return job["directive"] == "cancel" and job["finished_at"] is None


BEING_CANCELLED = "being cancelled"
BEFORE_TASKS = ("queued", "paused")
"""States of a job without tasks: one that has been given some is starting."""


def is_starting(job: Job) -> bool:
    """Whether it waits for tasks that are on their way."""
    return job["state"] in BEFORE_TASKS and bool(job["wanted"]["workers"]) and not is_being_cancelled(job)


def state_of(job: Job) -> Text:
    """A job's state, as the page says it: one that waits and whose tasks are on their way is starting, and one whose
    owner paused it before it had any is paused."""
    waits = "paused" if job["state"] == "queued" and is_paused_by_owner(job) else job["state"]
    return Text("starting" if is_starting(job) else waits, style=STATE_STYLES.get(job["state"], ""))


def job_list(jobs: Sequence[Job], now: datetime) -> RenderableType:
    """One line per job."""
    if not jobs:
        return Text("No jobs. Submit one with `optimus submit`.", style="dim")
    return _JobList(jobs, now)


@dataclass(frozen=True, slots=True)
class _JobList:
    """A table with fewer columns where the terminal is narrow: a figure broken into lines is no figure."""

    jobs: Sequence[Job]
    now: datetime

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [dict(self._cells(job)) for job in self.jobs]
        widths = fitting(rows, LEFT_OUT, options.max_width)
        # An id is there to be copied: it is broken only where it would push the figures out of a small terminal.
        breaks_ids = in_all(widths) > options.max_width and widths["id"] > LONGEST_WHOLE_ID
        table = columns_table(
            *widths, right=["progress", "step", "loss"], folded=["id"] if breaks_ids else [], widths=widths
        )
        for row in rows:
            table.add_row(*(row[name] for name in widths))
        yield table

    def _cells(self, job: Job) -> list[tuple[str, RenderableType]]:
        return [
            ("id", Text(job["id"])),
            *([("name", Text(job["name"]))] if any(is_renamed(each) for each in self.jobs) else []),
            ("state", state_of(job)),
            ("progress", progress(job)),
            ("step", wording.count(job["step"])),
            ("loss", wording.number(job["loss"], wording.LOSS_DIGITS)),
            ("time left", time_left(job)),
            ("size", wording.tasks(job["running"])),
            ("submitted", wording.ago(job["created_at"], self.now)),
            *([("project", Text(job["project"]))] if self._differ(lambda each: each["project"]) else []),
            *([("owner", Text(_owner(job)))] if self._differ(_owner) else []),
            *([("priority", f"{priority(job):g}")] if self._differ(priority) else []),
            *([("labels", _label_lines(job))] if any(each["spec"].get("labels") for each in self.jobs) else []),
        ]

    def _differ(self, what: Callable[[Job], object]) -> bool:
        """Whether it is not the same for all jobs of the list: else it is no help in telling them apart."""
        return len({what(job) for job in self.jobs}) > 1


def _owner(job: Job) -> str:
    """Whose it is; a dash where nobody knows."""
    return job.get("owner") or wording.UNKNOWN


def _label_lines(job: Job) -> Text:
    """A label on each line."""
    lines = labels(job).split(", ") if job["spec"].get("labels") else []
    return Text("\n".join(line if len(line) <= LONGEST_LABEL else f"{line[: LONGEST_LABEL - 1]}…" for line in lines))


def is_renamed(job: Job) -> bool:
    """Whether its id, which begins with the name that it was submitted with, does not tell its name any more."""
    return not f"{job['id']}-".startswith(f"{job['name'][:LONGEST_NAME_IN_ID].rstrip('-')}-")


def priority(job: Job) -> float:
    return float(job["spec"].get("priority") or 1.0)


def labels(job: Job) -> str:
    """`team=vision, try`."""
    given = (job["spec"].get("labels") or {}).items()
    return ", ".join(f"{name}={value}" if value else name for name, value in given)


def progress(job: Job) -> str:
    return "100 %" if job["state"] == "succeeded" else wording.percent(job["progress"])


LONGER = "longer than predicted"
"""Of a job that went on beyond its likeliest end: what is left then is what such jobs still take."""


_MUCH = 0.1
"""Of the time from the submission to the end: a wait of that part, or of a longer one, is told."""


def _waited(job: Job) -> str:
    """How long it waited for its first start, where that is much of what it took."""
    took, start = job["jct_seconds"], job["started_at"]
    if not took or start is None:
        return ""
    waited = (wording.moment(start) - wording.moment(job["created_at"])).total_seconds()
    return f" (waited {wording.duration(waited)})" if waited >= max(_MUCH * took, 1.0) else ""


def time_left(job: Job) -> str:
    """Predicted time to convergence; for a job that has ended, what it took."""
    if job["finished_at"] is not None:
        return f"took {wording.duration(job['jct_seconds'])}{_waited(job)}"
    if is_being_cancelled(job):
        return BEING_CANCELLED
    if starts := starts_in(job):
        return f"starts in {starts[0][1]}"
    if job.get("finishing"):
        return "finishing"
    time, still = wording.duration_interval(job["remaining_seconds"]), job.get("standstill")
    if still is None:
        return time
    return still if time == wording.UNKNOWN else f"{time}; {still}"


def left(job: Job) -> str:
    """The time left in words: `24 s (18–33) left, longer than predicted; may be paused in about 30 s`."""
    expected = None if is_being_cancelled(job) else job.get("expected")
    cut = None if expected is None else expected.get("cut")
    return _left(job) if cut is None else f"{_left(job)}; {cut['words']}"


def _left(job: Job) -> str:
    if is_being_cancelled(job):
        return BEING_CANCELLED
    if job.get("finishing"):
        return "finishing"
    time = wording.duration_interval(job["remaining_seconds"])
    is_longer = job.get("longer_than_predicted")
    if still := job.get("standstill"):
        waits = job["state"] in BEFORE_TASKS and not (is_starting(job) or starts_in(job))
        known = f"{time} left" if time != wording.UNKNOWN else _unknown_time(job) if waits else None
        return still if known is None else f"{known}; {still}"
    if time == wording.UNKNOWN:
        return LONGER if is_longer else _unknown_time(job)
    return f"{time} left" + (f", {LONGER}" if is_longer else "")


def is_paused_by_owner(job: Job) -> bool:
    """Whether it waits for nothing but its owner, or its tasks leave for that."""
    return job["reason"] == "PausedByOwner" and job["finished_at"] is None


def _unknown_time(job: Job) -> str:
    """What is missing of a time left that cannot be told; its steps left may be known, and stand beside it."""
    if is_paused_by_owner(job):
        by = (job["message"] or "").partition(" since ")[0].removeprefix("Paused by ") or "its owner"
        if limit := job.get("limit_reached"):
            return f"paused by {by}: ends after `optimus resume {job['id']}`, as {limit}"
        return f"paused by {by}: goes on after `optimus resume {job['id']}`"
    goes = "goes on" if job["first_step"] is not None else "starts"
    if job["state"] in BEFORE_TASKS and job.get("retry_at") is not None:
        return f"not known before it {goes} after its error"
    if job["state"] in BEFORE_TASKS and not job["wanted"]["workers"] and not starts_in(job):
        return f"not known yet when it {goes}"
    if job["remaining_steps"] is not None:
        told = job["steps_per_second"] is not None
        return "not known yet: its speed is being measured" if told else "not known yet how long its steps take"
    return "not known yet how much is left"


def starts_in(job: Job) -> list[tuple[str, str]]:
    """When a waiting job gets tasks, by the queue simulated forward; nothing of others."""
    expected = job.get("expected")
    start = None if expected is None else expected["start_seconds"]
    return [] if start is None or job["finished_at"] else [("Starts in", wording.wait(start))]
