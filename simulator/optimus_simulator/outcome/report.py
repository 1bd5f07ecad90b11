"""An HTML report in one file: the table, and pictures that compare policies over their seeds."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from optimus_simulator.outcome.comparison import PolicyResult, columns_among, possible
from optimus_simulator.outcome.outcome import Moment, Outcome, time_left
from optimus_simulator.shown_predictions import AT_SUBMISSION, IN_LIFE, START, WHILE_RUNNING

FloatArray = NDArray[np.float64]

# Okabe and Ito, "Color Universal Design" (2008): told apart with every common kind of colour blindness.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
_LINES = ("-", "--", "-.", ":")
"""Policies differ in their lines as well, for black-and-white prints."""
_POINTS = 600
"""Of a line over time."""
_PARTS = 20
"""Parts of the jobs' progress in which predictions are summed up ..."""
_LEAST_PREDICTIONS = 5
"""... if there are so many."""


def write_report(results: Sequence[PolicyResult], commands: Sequence[str], path: Path) -> None:
    """Write the report; `commands` repeat what it shows. Raises `OSError` when the file cannot be written."""
    trace = results[0].outcomes[0].trace
    pictures = [
        ("Completion times", _draw(results, _draw_jct)),
        ("What the jobs hold", _draw(results, _over_time(lambda moment: moment.share, "dominant shares held"))),
        ("Jobs that wait", _draw(results, _over_time(lambda moment: float(moment.waiting), "waiting jobs"))),
        ("Jobs that run", _draw(results, _over_time(lambda moment: float(moment.running), "running jobs"))),
        ("Finish-time fairness", _draw(results, _draw_fairness)),
        ("Predicted and actual ends", _draw(results, _draw_predictions)),
    ]
    parts = [
        _HEAD.format(title=html.escape(f"{trace}: {', '.join(result.policy for result in results)}")),
        _table(results),
        *(f"<p>{html.escape(line)}</p>" for line in possible(results)),
        *(_time_left(result) for result in results),
        *(f"<h2>{title}</h2>\n{picture}" for title, picture in pictures),
        "<h2>How to repeat it</h2>\n<pre>" + html.escape("\n".join(commands)) + "</pre>\n</body></html>\n",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")


_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
small {{ color: #666; }} svg {{ max-width: 100%; height: auto; }}
pre {{ background: #f5f5f5; padding: 1rem; overflow-x: auto; }}
</style></head><body>
<h1>{title}</h1>
"""


def _table(results: Sequence[PolicyResult]) -> str:
    shown = columns_among(results)
    header = "".join(f"<th>{column.title}</th>" for column in shown)
    rows = []
    for result in results:
        cells = "".join(f"<td>{column.cell(result.figures, ' <small>± {}</small>')}</td>" for column in shown)
        rows.append(f"<tr><td>{html.escape(result.policy)}</td>{cells}</tr>")
    seeds = len(results[0].outcomes)
    note = f"<p><small>{seeds} seeds; ± is a 95 % confidence interval.</small></p>" if seeds > 1 else ""
    return f"<table><tr><th>policy</th>{header}</tr>{''.join(rows)}</table>{note}"


_KINDS = {
    AT_SUBMISSION: "at submission",
    IN_LIFE: "of the time from submission to end",
    WHILE_RUNNING: "of the time from the first tasks to the end",
    START: "of the wait: until the start",
}


def _time_left(result: PolicyResult) -> str:
    """How true the predicted times left were, by the part of a job's life that was over."""
    rows = "".join(_time_left_row(row) for row in time_left(result.outcomes))
    titles = ("", "jobs", "predicted", "intervals held", "median error", "median high/low")
    header = "".join(f"<th>{title}</th>" for title in titles)
    return f"<h2>Time left, {html.escape(result.policy)}</h2>\n<table><tr>{header}</tr>{rows}</table>"


def _time_left_row(row: Mapping[str, Any]) -> str:
    when = _KINDS[row["kind"]] if row["kind"] == AT_SUBMISSION else f"after {row['part']:.0%} {_KINDS[row['kind']]}"
    cells = [when, str(row["jobs"]), str(row["promised"])]
    if row["promised"]:
        cells += [f"{row['held']:.0%}", f"{row['median_error']:.0%}", f"{row['median_width']:.1f}"]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


# --- pictures --------------------------------------------------------------------------------------------------------

_Draw = Callable[[Axes, PolicyResult, str, str], None]


def _draw(results: Sequence[PolicyResult], draw: _Draw) -> str:
    """One picture as SVG, a line with its band for each policy."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="0.9")
    for index, result in enumerate(results):
        draw(axes, result, _COLOURS[index % len(_COLOURS)], _LINES[index // len(_COLOURS) % len(_LINES)])
    axes.legend(frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    written = text.getvalue()
    return written[written.index("<svg") :]


def _draw_jct(axes: Axes, result: PolicyResult, colour: str, line: str) -> None:
    _draw_distribution(axes, result, colour, line, [_jcts(outcome) for outcome in result.outcomes])
    axes.set_xscale("log")
    axes.set_xlabel("job completion time, s")


def _draw_fairness(axes: Axes, result: PolicyResult, colour: str, line: str) -> None:
    values = [np.array([job.fairness for job in outcome.jobs if not job.dropped]) for outcome in result.outcomes]
    _draw_distribution(axes, result, colour, line, values)
    axes.axvline(1.0, color="0.6", linewidth=1)
    axes.set_xlabel("ρ: completion time by that on the job's own part of the cluster")


def _draw_predictions(axes: Axes, result: PolicyResult, colour: str, line: str) -> None:
    """The middle of the predictions by progress, and the band that holds eight of ten."""
    judged = [point for outcome in result.outcomes for job in outcome.jobs for point in job.step_predictions]
    done, ratio = np.array(judged).reshape(-1, 2).T
    axes.axhline(1.0, color="0.6", linewidth=1)
    axes.set_xlabel("part of the job's steps that are done")
    axes.set_ylabel("predicted by true total steps")
    axes.set_yscale("log")
    number = np.minimum((done * _PARTS).astype(int), _PARTS - 1)
    parts = [part for part in range(_PARTS) if np.count_nonzero(number == part) >= _LEAST_PREDICTIONS]
    if parts:
        low, middle, high = np.array([np.quantile(ratio[number == part], (0.1, 0.5, 0.9)) for part in parts]).T
        at = (np.array(parts) + 0.5) / _PARTS
        axes.plot(at, middle, color=colour, linestyle=line, label=result.policy)
        axes.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    else:
        axes.plot([], [], color=colour, linestyle=line, label=f"{result.policy}: too few predictions")


def _jcts(outcome: Outcome) -> FloatArray:
    return np.array([job.jct_seconds for job in outcome.jobs if not job.dropped])


def _draw_distribution(axes: Axes, result: PolicyResult, colour: str, line: str, values: Sequence[FloatArray]) -> None:
    """Cumulative distribution: the mean of the seeds' quantiles, and the band between the extreme seeds."""
    quantiles = np.linspace(0.0, 1.0, 201)
    found = [np.quantile(run, quantiles) for run in values if len(run)]
    runs = np.array(found).reshape(-1, len(quantiles))  # (seeds, quantiles)
    if not found:
        axes.plot([], [], color=colour, linestyle=line, label=f"{result.policy}: no job ran")
        return
    axes.plot(runs.mean(axis=0), quantiles, color=colour, linestyle=line, label=result.policy)
    if len(runs) > 1:
        axes.fill_betweenx(quantiles, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    axes.set_ylabel("fraction of jobs")
    axes.set_ylim(0.0, 1.0)


def _over_time(value: Callable[[Moment], float], title: str) -> _Draw:
    def draw(axes: Axes, result: PolicyResult, colour: str, line: str) -> None:
        end = max(outcome.timeline[-1].at for outcome in result.outcomes)
        grid = np.linspace(0.0, end, _POINTS)
        runs = np.array([_sampled(outcome.timeline, value, grid) for outcome in result.outcomes])
        hours = grid / 3600
        axes.plot(hours, runs.mean(axis=0), color=colour, linestyle=line, linewidth=1.2, label=result.policy)
        if len(runs) > 1:
            axes.fill_between(hours, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("hours")
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0.0)

    return draw


def _sampled(timeline: Sequence[Moment], value: Callable[[Moment], float], grid: FloatArray) -> FloatArray:
    """The value at each instant of the grid: it holds from one round to the next, and is 0 outside of the run."""
    times = np.array([moment.at for moment in timeline])
    values = np.array([0.0, *(value(moment) for moment in timeline)])
    index = np.searchsorted(times, grid, side="right")
    return np.where(grid <= times[-1], values[index], 0.0)
