"""The study's figures, drawn with matplotlib's Agg."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

from optimus_cli.show.palette import BLACK, BLUE, ORANGE, marker, series
from optimus_cli.show.plots import blank, plain
from optimus_cli.study.findings import Findings, Forecast, Scalability, TimeCurve

DPI = 110


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _plain(axes: Axes, title: str, x: str, y: str) -> None:
    plain(axes)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def betas(findings: Findings) -> Figure:
    """β0 and β1 against the size of the network, a series per GPU type."""
    figure = blank(10, 3.6)
    panels = figure.subplots(1, 3)
    gpus = sorted({fit.gpu for fit in findings.fits})
    for axes, name in zip(panels, ("beta0", "beta1", "epoch_seconds"), strict=True):
        title = {"beta0": "β0 (per epoch)", "beta1": "β1", "epoch_seconds": "seconds per epoch"}[name]
        _plain(axes, title, "layers", "")
        for index, gpu in enumerate(gpus):
            fits = [fit for fit in findings.fits if fit.gpu == gpu]
            values = [fit.epoch_seconds or np.nan for fit in fits]
            if name != "epoch_seconds":
                values = [getattr(fit.law, name) for fit in fits]
            axes.plot([fit.layers for fit in fits], values, marker(index), color=series(index), label=gpu, alpha=0.8)
        axes.set_ylim(bottom=0)
    panels[0].legend(frameon=False)
    return figure


def forecast_curves(findings: Findings) -> Figure:
    """Measured and predicted loss of the held-out network, a panel per GPU type."""
    forecasts = findings.forecasts
    figure = blank(max(4.2 * len(forecasts), 5.0), 4.2)
    panels = np.atleast_1d(figure.subplots(1, len(forecasts), sharey=True))
    for axes, forecast in zip(panels, forecasts, strict=True):
        _draw_forecast(axes, forecast, findings)
    panels[0].set_ylabel("training loss")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=4 if len(forecasts) > 2 else 2, frameon=False, fontsize=9
    )
    return figure


def _draw_forecast(axes: Axes, forecast: Forecast, findings: Findings) -> None:
    run, target = forecast.run, findings.target
    shown = run.epochs[: min(len(run.epochs), 2 * (forecast.measured_epoch or len(run.epochs)))]
    _plain(axes, f"{run.layers} layers on {run.gpu}", "epoch", "")
    axes.plot(shown, run.losses[: len(shown)], "o", color=BLACK, markersize=3, label="measured")
    axes.plot(shown, forecast.plain.losses(shown), "--", color=ORANGE, label="regression of β")
    low, high = forecast.after.interval(shown)
    axes.fill_between(shown, low, high, color=BLUE, alpha=0.2, linewidth=0, label="80 % interval")
    axes.plot(
        shown,
        forecast.after.losses(shown),
        color=BLUE,
        label=f"stretched, after {findings.options.first_epochs} epochs",
    )
    axes.axhline(target.loss, color="0.6", linewidth=1, linestyle=":")
    for epoch, colour in (
        (float(forecast.measured_epoch or np.nan), BLACK),
        (forecast.plain.epoch_of(target.loss), ORANGE),
        (forecast.after.epoch_of(target.loss).mean, BLUE),
    ):
        axes.axvline(epoch, color=colour, linewidth=0.8, alpha=0.6)
    axes.set_ylim(0, 1.05 * max(other.run.largest_loss for other in findings.forecasts))
    axes.set_xlim(0, shown[-1] + 1)


def times(findings: Findings) -> Figure:
    """Time (above) and cost (below) to the target against workers; a column per GPU type, a line per servers."""
    gpus = list(dict.fromkeys(curve.gpu for curve in findings.times))
    figure = blank(max(4.2 * len(gpus), 5.0), 6.4)
    panels = figure.subplots(2, len(gpus), squeeze=False)
    for column, gpu in enumerate(gpus):
        curves = [curve for curve in findings.times if curve.gpu == gpu]
        scale, unit = _time_unit(curves)
        _plain(panels[0, column], gpu, "", f"{unit} to the target" if column == 0 else unit)
        _plain(panels[1, column], "", "workers", "cost (USD)" if column == 0 else "")
        for index, curve in enumerate(curves):
            _draw_points(panels[:, column], curve, scale, index)
    panels[0, 0].legend(title="parameter servers", frameon=False)
    return figure


def _time_unit(curves: Sequence[TimeCurve]) -> tuple[float, str]:
    longest = max(point.seconds.mean for curve in curves for point in curve.points)
    return (3600.0, "hours") if longest > 2 * 3600 else (60.0, "minutes") if longest > 120 else (1.0, "seconds")


def _draw_points(panels: Iterable[Axes], curve: TimeCurve, scale: float, index: int) -> None:
    workers = [point.allocation.workers for point in curve.points]
    for axes, name, unit in zip(panels, ("seconds", "cost"), (scale, 1.0), strict=True):
        estimates = np.array([getattr(point, name) for point in curve.points]) / unit  # (n, 3)
        style = marker(index)
        axes.plot(workers, estimates[:, 0], label=str(curve.servers), color=series(index), marker=style, markersize=4)
        axes.fill_between(workers, estimates[:, 1], estimates[:, 2], color=series(index), alpha=0.12, linewidth=0)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def scalability(findings: Findings) -> Figure:
    """Throughput, time, cost and efficiency against workers; solid strong scaling, dashed weak scaling."""
    figure = blank(10, 7)
    panels = figure.subplots(2, 2).ravel()
    gpus = list(dict.fromkeys(s.gpu for s in findings.scalability))
    measures = (
        ("examples_per_second", "examples per second", True),
        ("epoch_seconds", "seconds per epoch", True),
        ("epoch_cost", "cost of an epoch (USD)", True),
        ("efficiency", "scaling efficiency", False),
    )
    for axes, (name, title, logarithmic) in zip(panels, measures, strict=True):
        _plain(axes, title, "workers", "")
        for one in findings.scalability:
            _draw_scaling(axes, one, name, gpus.index(one.gpu))
        axes.set_xscale("log", base=2)
        ticks = sorted({point.workers for one in findings.scalability for point in one.points})
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(ScalarFormatter())
        if logarithmic:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.02)
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def _draw_scaling(axes: Axes, one: Scalability, name: str, index: int) -> None:
    axes.plot(
        [point.workers for point in one.points],
        [getattr(point, name) for point in one.points],
        "-" if one.kind == "strong" else "--",
        color=series(index),
        marker=marker(index),
        markersize=4,
        label=f"{one.gpu} {one.kind}",
    )


def compute(findings: Findings) -> Figure:
    """Measured against predicted seconds of an epoch."""
    figure = blank(5.2, 4.6)
    axes = figure.subplots()
    _plain(axes, "seconds of an epoch on one GPU", "measured", "predicted")
    gpus = list(dict.fromkeys(check.gpu for check in findings.checks))
    for check in findings.checks:
        index = gpus.index(check.gpu)
        axes.plot(check.measured, check.by_data_sheet, marker(index), color=series(index), fillstyle="none")
        if check.calibrated is not None:
            axes.plot(check.measured, check.calibrated, marker(index), color=series(index))
    ends = [f(check.measured for check in findings.checks) for f in (min, max)]
    axes.plot(ends, ends, color=BLACK, linewidth=1)
    for index, gpu in enumerate(gpus):
        axes.plot([], [], marker(index), color=series(index), label=gpu)
    axes.plot([], [], "o", color="0.4", fillstyle="none", label="data sheet")
    axes.plot([], [], "o", color="0.4", label="calibrated")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=8)
    return figure
