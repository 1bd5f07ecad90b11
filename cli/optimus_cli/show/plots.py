"""Pictures: time left against size, what came of a job, and a whole run (sizes over time, loss with its fit,
predictions). Figures only; `save` writes them. Drawn with matplotlib's Agg, so no display is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from optimus_cli.bodies import AllocationPoint, CurvePoint, Interval, Job, Predictions, ReviewPoint, SpeedPoint
from optimus_cli.errors import CliError
from optimus_cli.show import wording
from optimus_cli.show.palette import BLACK, marker, series

DPI = 144
BAR_ALPHA = 0.5
"""Interval bars step back behind the lines that they belong to."""
MAX_COLUMNS = 4
"""Panels side by side; more jobs go into further rows."""
ROBUST_QUANTILE = 0.98
WILD = 10.0
"""Losses above this many times the bulk of them (a diverging start) are cut off: they would flatten the rest."""


@dataclass(frozen=True, slots=True)
class Run:
    """One job as the picture of a whole run needs it."""

    job: Job
    submitted_seconds: float
    """Since the beginning of the picture."""
    finished_seconds: float
    allocations: Sequence[AllocationPoint]
    predictions: Predictions


def save(figure: Figure, path: Path) -> None:
    """Write a PNG. Raises `CliError` when the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=DPI)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error


def blank(width: float, height: float) -> Figure:
    """A figure without axes, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes) -> None:
    """A light grid, and lines on two sides only."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def _say_nothing_known(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.4")


# --- time left against size ------------------------------------------------------------------------------------------


def remaining_time(job: Job, predictions: Predictions) -> Figure:
    """Predicted time left against the number of workers, a line with its 80 % interval per number of servers."""
    figure = blank(8, 5)
    axes = figure.subplots()
    plain(axes)
    known = [point for point in predictions["speeds"] if point["remaining_seconds"] is not None]
    scale, unit = _time_unit(known)
    servers = sorted({point["servers"] for point in known})
    for index, number in enumerate(servers):
        points = sorted((point for point in known if point["servers"] == number), key=lambda point: point["workers"])
        # Side by side, so that the bars of different numbers of servers do not hide each other.
        shift = 0.12 * (index - (len(servers) - 1) / 2)
        _draw_with_bars(axes, points, shift, scale, index)
    axes.set_title(f"{job['name']}: predicted time left at each size, kept to the end; 80 % intervals")
    axes.set_xlabel("workers")
    axes.set_ylabel(f"time left ({unit})")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if known:
        axes.set_ylim(bottom=0)
        axes.legend(title="parameter servers", frameon=False)
    else:
        _say_nothing_known(axes, "not enough is known yet")
    return figure


def _draw_with_bars(axes: Axes, points: Sequence[SpeedPoint], shift: float, scale: float, index: int) -> None:
    left = [interval for point in points if (interval := point["remaining_seconds"]) is not None]
    means = np.array([interval["mean"] for interval in left]) / scale
    bars = np.array([_bar(interval) for interval in left]).T / scale  # (2, n_points): below, above
    _, caps, lines = axes.errorbar(
        [point["workers"] + shift for point in points],
        means,
        yerr=bars,
        label=f"p = {points[0]['servers']}",
        color=series(index),
        marker=marker(index),
        markersize=6,
        linewidth=1.5,
        elinewidth=1,
        capsize=3,
    )
    for faint in (*caps, *lines):
        faint.set_alpha(BAR_ALPHA)


def _bar(interval: Interval) -> tuple[float, float]:
    """Distance of the interval's ends from its mean; an open end has no bar."""
    low, high = interval["low"], interval["high"]
    below = 0.0 if low is None else max(0.0, interval["mean"] - low)
    above = 0.0 if high is None else max(0.0, high - interval["mean"])
    return below, above


def _time_unit(points: Iterable[SpeedPoint]) -> tuple[float, str]:
    """Seconds in the unit that suits the longest time."""
    longest = max((point["remaining_seconds"] or {"mean": 0.0})["mean"] for point in points) if points else 0.0
    for seconds, unit in ((3600.0, "hours"), (60.0, "minutes")):
        if longest > 2 * seconds:
            return seconds, unit
    return 1.0, "seconds"


# --- a whole run -----------------------------------------------------------------------------------------------------


def whole_run(runs: Sequence[Run], capacity: float) -> Figure:
    """Sizes of all jobs over time; below, for each job, its loss with the fit and what was predicted of it."""
    columns = max(1, min(MAX_COLUMNS, len(runs)))
    bands = math.ceil(len(runs) / columns)
    figure = blank(max(7.0, 4.2 * columns), 3.6 + 5.0 * bands)
    grid = figure.add_gridspec(1 + 2 * bands, columns, height_ratios=[1.25] + [1.0, 0.85] * bands)
    _draw_sizes(figure.add_subplot(grid[0, :]), runs, capacity)
    for index, run in enumerate(runs):
        band, column = divmod(index, columns)
        loss = figure.add_subplot(grid[1 + 2 * band, column])
        forecast = figure.add_subplot(grid[2 + 2 * band, column], sharex=loss)
        _draw_loss(loss, run, series(index))
        _draw_predictions(forecast, run, series(index))
        if column == 0:
            loss.set_ylabel("training loss")
            forecast.set_ylabel("predicted total steps")
    return figure


def _draw_sizes(axes: Axes, runs: Sequence[Run], capacity: float) -> None:
    """Stacked areas: a solid band for each job's workers and a hatched one for its servers."""
    plain(axes)
    times = sorted({0.0, *(time for run in runs for time in _moments(run))})
    base = np.zeros(len(times))
    for index, run in enumerate(runs):
        sizes = np.array([size_at(run, time) for time in times]).reshape(-1, 2)  # (n_times, 2): workers, servers
        for role, style in ((0, {"alpha": 0.95}), (1, {"alpha": 0.45, "hatch": "////"})):
            top = base + sizes[:, role]
            axes.fill_between(
                times, base, top, step="post", facecolor=series(index), edgecolor="white", lw=0.4, **style
            )
            base = top
    for index, run in enumerate(runs):
        # The gap between the dotted line and the band is the time until the job's first tasks were ready.
        axes.axvline(run.submitted_seconds, color=series(index), linewidth=1.2, linestyle=":")
    axes.axhline(capacity, color=BLACK, linewidth=1, linestyle="--")
    axes.annotate(f"{capacity:g} slots", (0.0, capacity), xytext=(4, 3), textcoords="offset points", fontsize=9)
    axes.set_title("Who has which slots: workers (solid), parameter servers (hatched); submissions (dotted)")
    axes.set_xlabel("time since the first submission (s)")
    axes.set_ylabel("tasks")
    axes.set_ylim(0, max(capacity, float(base.max(initial=0.0))) * 1.12)
    axes.set_xlim(0, max(times) or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [Patch(facecolor=series(index), label=run.job["name"]) for index, run in enumerate(runs)]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _moments(run: Run) -> list[float]:
    """Times at which the job's size changes."""
    changes = [run.submitted_seconds + point["at_seconds"] for point in run.allocations]
    return [*(time for time in changes if time < run.finished_seconds), run.finished_seconds]


def size_at(run: Run, time: float) -> tuple[int, int]:
    """(workers, servers) that the job had at `time`; nothing before its first membership and after its end."""
    if time >= run.finished_seconds:
        return 0, 0
    size = (0, 0)
    for point in run.allocations:
        if run.submitted_seconds + point["at_seconds"] <= time:
            size = (point["workers"], point["servers"])
    return size


def _draw_loss(axes: Axes, run: Run, colour: str) -> None:
    plain(axes)
    axes.set_title(f"{run.job['name']} ({run.job['spec'].get('mode', '')})")
    steps, losses = finite(run.predictions["losses"])
    axes.plot(steps, losses, ".", color=colour, markersize=3, alpha=0.6, label="measured")
    fitted_steps, fitted = finite(run.predictions["fitted"])
    if fitted:
        axes.plot(fitted_steps, fitted, color=BLACK, linewidth=1.5, label="fitted")
    if losses:
        axes.set_ylim(0, 1.05 * min(max(losses), WILD * float(np.quantile(losses, ROBUST_QUANTILE))))
        axes.legend(frameon=False)
    else:
        _say_nothing_known(axes, "no loss was reported")
    axes.tick_params(labelbottom=False)


def finite(points: Iterable[CurvePoint]) -> tuple[list[float], list[float]]:
    """Steps and losses of the points that have a finite loss."""
    known = [(point["step"], loss) for point in points if (loss := point["loss"]) is not None and math.isfinite(loss)]
    return [step for step, _ in known], [loss for _, loss in known]


def _draw_predictions(axes: Axes, run: Run, colour: str) -> None:
    """What each round predicted as the total number of steps, and what it became."""
    plain(axes)
    known = [(point["step"], total) for point in run.predictions["history"] if (total := point["total_steps"])]
    actual = run.job["step"]
    if known:
        steps = [step for step, _ in known]
        axes.fill_between(
            steps, *_band([total for _, total in known]), color=colour, alpha=0.25, linewidth=0, label="80 % interval"
        )
        axes.plot(steps, [total["mean"] for _, total in known], ".-", color=colour, linewidth=1.5, label="predicted")
        top = max(actual, float(np.quantile([total["mean"] for _, total in known], 0.9)))
        axes.set_ylim(0, 1.6 * top)
    else:
        _say_nothing_known(axes, "nothing was predicted")
    axes.axhline(actual, color=BLACK, linewidth=1, linestyle="--", label="actual")
    axes.set_xlabel("step")
    axes.legend(frameon=False, fontsize=8)


def _band(totals: Sequence[Interval]) -> tuple[list[float], list[float]]:
    """Lower and upper ends; an open end is drawn at the mean."""
    low = [total["mean"] if total["low"] is None else total["low"] for total in totals]
    high = [total["mean"] if total["high"] is None else total["high"] for total in totals]
    return low, high


# --- a job that has ended --------------------------------------------------------------------------------------------


def what_came(job: Job, predictions: Predictions) -> Figure:
    """Of a job that has ended: its losses, and the steps and the time left as they were predicted and as they came."""
    figure = blank(8, 9)
    loss, steps, time = figure.subplots(3)
    run = Run(job, 0.0, 0.0, (), predictions)
    _draw_loss(loss, run, series(0))
    loss.tick_params(labelbottom=True)
    loss.set_ylabel("training loss")
    _draw_predictions(steps, run, series(0))
    steps.set_ylabel("predicted total steps")
    outcome = predictions["outcome"]
    _draw_time_left(time, job, [] if outcome is None else outcome["review"], series(0))
    return figure


def _draw_time_left(axes: Axes, job: Job, review: Sequence[ReviewPoint], colour: str) -> None:
    """What was left by prediction, and what was left in fact, over time: a job that waits makes no steps."""
    plain(axes)
    known = [(point, left) for point in review if (left := point["remaining_seconds"]) is not None]
    if known:
        submitted = wording.moment(job["created_at"])
        times = [(wording.moment(point["at"]) - submitted).total_seconds() for point, _ in known]
        band = _band([left for _, left in known])
        axes.fill_between(times, *band, color=colour, alpha=0.25, linewidth=0, label="80 % interval")
        axes.plot(times, [left["mean"] for _, left in known], ".-", color=colour, linewidth=1.5, label="predicted")
        came = [point["true_remaining_seconds"] for point, _ in known]
        axes.plot(times, came, color=BLACK, linewidth=1, linestyle="--", label="actual")
        axes.set_ylim(0, 2.0 * max(*came, float(np.median([left["mean"] for _, left in known]))))
        axes.legend(frameon=False, fontsize=8)
    else:
        _say_nothing_known(axes, "no time left was predicted")
    axes.set_xlabel("time since its submission (s)")
    axes.set_ylabel("time left (s)")
