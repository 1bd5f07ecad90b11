"""Follow jobs until they have ended, and show each frame in the way that fits where the output goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from rich.console import Console
from rich.live import Live

from optimus_cli.bodies import Job
from optimus_cli.client import Client, is_final
from optimus_cli.errors import Unreachable
from optimus_cli.output import print_json_line
from optimus_cli.show import live
from optimus_cli.show.live import Frame

REFRESH_SECONDS = 1.0
LINE_SECONDS = 5.0
"""Without a terminal a job gets a line at most this often (and whenever its state or its size changes)."""
OUTAGE_SECONDS = 60.0
"""A service that restarts is waited for this long; training goes on meanwhile."""


class Display(Protocol):
    """Shows frames."""

    def show(self, frame: Frame) -> None: ...


class LiveDisplay:
    """Redraws the live view in place."""

    def __init__(self, screen: Live) -> None:
        self._screen = screen

    def show(self, frame: Frame) -> None:
        self._screen.update(live.view(frame), refresh=True)


class LineDisplay:
    """Prints a line per job: every `LINE_SECONDS`, and when its state or size changed or an error makes it wait."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, tuple[float, object]] = {}

    def show(self, frame: Frame) -> None:
        for job in frame.jobs:
            news = (job["state"], job["running"]["workers"], job["running"]["servers"], job.get("retry_at"))
            at, before = self._shown.get(job["id"], (-LINE_SECONDS, None))
            is_due = frame.elapsed_seconds - at >= LINE_SECONDS and not is_final(job)
            if is_due or news != before:
                self._shown[job["id"]] = (frame.elapsed_seconds, news)
                text = f"[{frame.elapsed_seconds:6.1f} s] {live.line(job)}"
                self._console.print(text, highlight=False, soft_wrap=True)


class JsonDisplay:
    """Prints every frame's jobs as one line of JSON."""

    def show(self, frame: Frame) -> None:
        print_json_line({"elapsed_seconds": frame.elapsed_seconds, "cluster": frame.cluster, "jobs": list(frame.jobs)})


def display(console: Console, *, as_json: bool) -> AbstractContextManager[Display]:
    """The display for this output: JSON, the live view on a terminal, lines elsewhere."""
    if as_json:
        return nullcontext(JsonDisplay())
    if console.is_terminal:
        return _live_display(console)
    return nullcontext(LineDisplay(console))


@contextmanager
def _live_display(console: Console) -> Iterator[Display]:
    # auto_refresh off: a frame is drawn when there is news, so no thread is needed.
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as screen:
        yield LiveDisplay(screen)


def frames(
    client: Client, job_ids: Sequence[str] | None, *, interval_seconds: float = REFRESH_SECONDS
) -> Iterator[Frame]:
    """A frame per interval; the last one has all jobs ended. `job_ids` None: those active now, and all that arrive.

    A service that does not answer is waited for up to `OUTAGE_SECONDS`; then `Unreachable` is raised.
    """
    begin = time.monotonic()
    answered = begin
    last: Frame | None = None
    followed: dict[str, None] = dict.fromkeys(job_ids or [])
    while True:
        now = time.monotonic()
        try:
            jobs = _look(client, followed, follow_new=job_ids is None)
            cluster = client.cluster()
            answered = time.monotonic()
            last = Frame(jobs, cluster, answered - begin)
        except Unreachable:
            if last is None or now - answered > OUTAGE_SECONDS:
                raise
            last = Frame(
                last.jobs, last.cluster, now - begin, "The service does not answer; training goes on. Waiting…"
            )
        yield last
        if last.notice is None and all(is_final(job) for job in last.jobs):
            return
        time.sleep(interval_seconds)


def _look(client: Client, followed: dict[str, None], *, follow_new: bool) -> list[Job]:
    """The followed jobs as they are now, in the order in which they were submitted or named."""
    if not follow_new:
        return [client.job(job_id) for job_id in followed]
    active = client.jobs({"state": ["queued", "running", "paused"]}, limit=None)
    known = {job["id"]: job for job in sorted(active, key=lambda job: (job["created_at"], job["id"]))}
    followed.update(dict.fromkeys(known))
    return [known.get(job_id) or client.job(job_id) for job_id in followed]


def follow(stream: Iterator[Frame], shown_by: AbstractContextManager[Display]) -> Sequence[Job]:
    """Show every frame; the jobs of the last one."""
    jobs: Sequence[Job] = ()
    with shown_by as shown:
        for frame in stream:
            shown.show(frame)
            jobs = frame.jobs
    return jobs
