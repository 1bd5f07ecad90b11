"""What was said of starts and ends while jobs waited and trained, beside what came."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # before pyplot is loaded: no screen is needed

import matplotlib.pyplot as plt
from benchmarks.prediction_demos.told import Told
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from optimus_client.answers import Interval

_DPI, _COLUMNS = 90, 3
_END, _START, _SIZE = "tab:blue", "tab:orange", "tab:green"
_GAP_SECONDS = 10.0
"""Looks this far apart are not joined: in between nothing was looked at."""
_ROOM = 2.2
"""The axis reaches so many true ends high: what was said beyond that is cut off, and the title says how often."""


def draw(told: Sequence[Told], path: Path) -> None:
    """One panel a job: predicted start and end by time since its submission; of a single job its workers, too."""
    columns = min(_COLUMNS, len(told))
    rows = -(-len(told) // columns)
    alone = len(told) == 1
    size = (9, 4.4) if alone else (9, 3.0 * rows)
    figure = plt.figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(2 if alone else rows, columns, height_ratios=[3, 1] if alone else None)
    for number, job in enumerate(told):
        axis = figure.add_subplot(grid[divmod(number, columns)])
        _draw_job(axis, job)
        if number % columns == 0:
            axis.set_ylabel("predicted, s after submission")
        if not alone and number + columns >= len(told):
            axis.set_xlabel("s after submission")
    if alone:
        _draw_workers(figure.add_subplot(grid[1, 0]), told[0])
    figure.legend(handles=_handles(told), frameon=False, fontsize=8, ncols=5, loc="outside lower center")
    figure.savefig(path, dpi=_DPI)
    plt.close(figure)


def _handles(told: Sequence[Told]) -> list[Artist]:
    waited = any(each.start is not None for job in told for each in job.looks)
    end = [Line2D([], [], color=_END, label="predicted end"), Patch(color=_END, alpha=0.2, label="80 % interval")]
    start = [Line2D([], [], color=_START, label="predicted start")] if waited else []
    true = [Line2D([], [], color="k", linestyle="--", label="true end")]
    return [*start, *end, Line2D([], [], color="k", linestyle=":", label="true start"), *true]


def _draw_job(axis: Axes, job: Told) -> None:
    end, start = job.ended_at - job.submitted_at, job.started_at - job.submitted_at
    top = _ROOM * end
    looks = [(each.at - job.submitted_at, each.start, each.end) for each in job.looks]
    _draw_predicted(axis, [(at, interval) for at, interval, _ in looks], _START)
    _draw_predicted(axis, [(at, interval) for at, _, interval in looks], _END)
    axis.axhline(end, color="k", linestyle="--", linewidth=1)
    if start > 1.0:
        axis.axhline(start, color="k", linestyle=":", linewidth=1)
    beyond = sum(said is not None and at + said.mean > top for at, _, said in looks)
    title = f"{job.name}: {end:.0f} s"
    axis.set_title(title if not beyond else f"{title} ({beyond} of {len(looks)} looks above)", fontsize=9)
    axis.set(xlim=(0, end), ylim=(0, top))


def _draw_predicted(axis: Axes, said: Sequence[tuple[float, Interval | None]], colour: str) -> None:
    """Moments by when they were said; gaps where nothing was."""
    if not any(interval is not None for _, interval in said):
        return
    nothing = float("nan")
    said = _with_gaps(said)
    at = [moment for moment, _ in said]
    mean = [moment + (nothing if each is None else each.mean) for moment, each in said]
    low = [moment + (nothing if each is None else each.low or 0.0) for moment, each in said]
    high = [moment + _high(each, nothing) for moment, each in said]
    axis.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(at, mean, color=colour)


def _with_gaps(said: Sequence[tuple[float, Interval | None]]) -> list[tuple[float, Interval | None]]:
    found: list[tuple[float, Interval | None]] = []
    for moment, interval in said:
        if found and moment - found[-1][0] > _GAP_SECONDS:
            found.append((moment, None))
        found.append((moment, interval))
    return found


def _high(interval: Interval | None, nothing: float) -> float:
    if interval is None:
        return nothing
    return 1e9 if interval.high is None else interval.high


def _draw_workers(axis: Axes, job: Told) -> None:
    """How many workers took part."""
    at = [each.at - job.submitted_at for each in job.looks]
    axis.step(at, [each.workers for each in job.looks], where="post", color=_SIZE)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="s after submission", ylabel="workers", xlim=(0, job.ended_at - job.submitted_at), ylim=(0, None))
