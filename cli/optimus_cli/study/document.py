"""What the report says: findings put into words, tables and pictures."""

from __future__ import annotations

import math

import numpy as np

from optimus_cli.study import pictures
from optimus_cli.study.findings import SCALING_SERVERS, Findings, Forecast, cheapest_in_a_day, fastest
from optimus_cli.study.report import Document, Part, Picture, Section, Table
from optimus_models.cost import Estimate


def compose(findings: Findings, source: str) -> Document:
    """The whole report; `source` names the file of logs."""
    sections = [_what(findings, source), _betas(findings), _forecast(findings)]
    if findings.times:
        sections.append(_times(findings))
    if findings.scalability or findings.checks:
        sections.append(_scaling(findings))
    if findings.remarks:
        sections.append(Section("What could not be said", list(findings.remarks)))
    return Document("A study of training logs", sections)


def _what(findings: Findings, source: str) -> Section:
    gpus = sorted({fit.gpu for fit in findings.fits})
    target = findings.target
    goal = f"a training loss of {target.loss:.3g}"
    if target.accuracy is not None:
        goal = (
            f"{100 * target.accuracy:g} % training accuracy. A loss curve knows nothing of accuracies: the target is "
            f"the median loss with which the runs below first had it, {target.loss:.3f}"
        )
    return Section(
        "What was studied",
        [
            f"{source}: {len(findings.fits)} runs on {', '.join(gpus)} to predict from, and {len(findings.forecasts)} "
            f"of the network with {findings.held_out} layers to predict. The goal is {goal}."
        ],
    )


def _betas(findings: Findings) -> Section:
    header = ("layers", "GPU", "β0", "β1", "β2", "error %", "early error %", "s per epoch", "epoch of target")
    rows = [
        (
            str(fit.layers),
            fit.gpu,
            f"{fit.law.beta0:.4f}",
            f"{fit.law.beta1:.4f}",
            f"{fit.law.beta2:.4f}",
            f"{100 * fit.error:.1f}",
            f"{100 * fit.early_error:.1f}",
            "-" if fit.epoch_seconds is None else f"{fit.epoch_seconds:.4g}",
            "-" if first is None else str(first),
        )
        for fit, first in zip(findings.fits, findings.first_epochs, strict=True)
    ]
    return Section(
        "1. The curve of each run",
        [
            "Loss / largest loss = 1/(β0·k + β1) + β2, k in epochs; β by least squares of the loss over all epochs. "
            "Errors are root mean squares in per cent of the largest loss: over the whole run, and over the epochs "
            "until the loss was below a tenth of its largest. Where the early error is several times the whole one, "
            "the form does not follow the fall itself: losses that fall exponentially are not of the form 1/k.",
            Table(header, rows),
            Picture("betas", "Coefficients and epoch times against size", pictures.png(pictures.betas(findings))),
        ],
    )


def _forecast(findings: Findings) -> Section:
    n = findings.options.first_epochs
    header = ("GPU", "measured", "regression of β", "prior alone", f"prior + {n} epochs")
    epochs = [_epoch_row(forecast, findings) for forecast in findings.forecasts]
    errors = [_error_row(forecast) for forecast in findings.forecasts]
    return Section(
        f"2. Predicting the network with {findings.held_out} layers",
        [
            "Regression of β: each coefficient as a + b·layers + c(GPU), ordinary least squares over the runs above. "
            "Prior: their common shape, stretched in time by an unknown factor; before the first epoch the factor "
            "follows the trend of the earlier runs with size, give or take one and a half, and the first "
            f"{n} epochs of the run itself tell it (80 % intervals in brackets).",
            "Epoch of the target:",
            Table(header, epochs),
            "Error of the whole curve up to twice that epoch, mean in per cent of the largest loss:",
            Table(header[:1] + header[2:], errors),
            Picture("forecast", "Measured and predicted loss", pictures.png(pictures.forecast_curves(findings))),
            _reason(findings),
        ],
    )


def _reason(findings: Findings) -> str:
    """Why the two differ, from the figures at hand."""
    firsts = [first for first in findings.first_epochs if first is not None]
    measured = [forecast.measured_epoch for forecast in findings.forecasts if forecast.measured_epoch is not None]
    if not firsts or not measured:
        return "Not every run reached the target, so the two methods can only be compared by their curves."
    span = f"Earlier runs that got there took {_range(firsts)} epochs, this network {_range(measured)}. "
    if len(firsts) < len(findings.first_epochs):
        span = f"{len(findings.first_epochs) - len(firsts)} of the earlier runs never reached the target. {span}"
    loss, forecasts = findings.target.loss, findings.forecasts
    plain = float(np.median([forecast.plain.epoch_of(loss) for forecast in forecasts]))
    after = float(np.median([forecast.after.epoch_of(loss).mean for forecast in forecasts]))
    typical = float(np.median(measured))
    if abs(plain - typical) <= abs(after - typical):
        return span + (
            "Here the regression is at least as near: this network continues the trend of the others, and what is "
            "special about it is its size, which the regression sees. The prior is for networks of another kind."
        )
    stretch = float(np.median([forecast.after.stretch for forecast in forecasts]))
    return span + (
        "A line through the coefficients can only continue what it was fitted to, and size is not what tells this "
        "network apart: whatever does (its kind of blocks, how it starts) is in no column of the table. No regression "
        "on size and GPU type can know it, and one without an interval hides that. The prior says before the first "
        "epoch how little it knows; then the first epochs, relative to their first loss, fall as the earlier runs did "
        f"when stretched {stretch:.1f} times, and that corrects it."
    )


def _range(epochs: list[int]) -> str:
    return f"{min(epochs)} to {max(epochs)}" if min(epochs) < max(epochs) else str(epochs[0])


def _epoch_row(forecast: Forecast, findings: Findings) -> tuple[str, ...]:
    loss = findings.target.loss
    return (
        forecast.run.gpu,
        "-" if forecast.measured_epoch is None else str(forecast.measured_epoch),
        _number(forecast.plain.epoch_of(loss)),
        _interval(forecast.before.epoch_of(loss)),
        _interval(forecast.after.epoch_of(loss)),
    )


def _error_row(forecast: Forecast) -> tuple[str, ...]:
    epochs = forecast.run.epochs
    curves = (forecast.plain, forecast.before, forecast.after)
    return (forecast.run.gpu, *(f"{100 * forecast.curve_error(curve.losses(epochs)):.1f}" for curve in curves))


def _times(findings: Findings) -> Section:
    rows = []
    for curve in findings.times:
        one, best = curve.points[0], fastest(curve)
        rows.append(
            (
                curve.gpu,
                str(curve.servers),
                _interval(one.seconds.times(1 / 60)),
                _interval(one.cost),
                str(best.allocation.workers),
                _interval(best.seconds.times(1 / 60)),
                _interval(best.cost),
            )
        )
    header = ("GPU", "servers", "1 worker, min", "USD", "fastest: workers", "min", "USD")
    gigabits = findings.options.bytes_per_second * 8 / 1e9
    by_arithmetic = (
        f"the measured step of one GPU, its batch of {findings.options.batch_size} shared among the workers, and the "
        f"exchange with the parameter servers over {gigabits:g} Gbit/s by arithmetic. Intervals come from the epochs."
    )
    by_measurement = (
        "as the resource-speed model says that was fitted to the measured speeds. Intervals come from the epochs and "
        "from that model."
    )
    is_measured = any(curve.is_measured for curve in findings.times)
    parts: list[Part] = [
        f"Predicted epochs (after the first {findings.options.first_epochs}) times the time of a step: "
        f"{by_measurement if is_measured else by_arithmetic} Prices: "
        + ", ".join(f"{gpu} {price:g}" for gpu, price in findings.options.prices.gpu_hour.items())
        + f" USD per GPU hour, {findings.options.prices.server_hour:g} per server hour.",
        Table(header, rows),
        Picture("times", "Time and cost to the target against workers", pictures.png(pictures.times(findings))),
    ]
    if findings.speed_checks:
        parts += _measured_speeds(findings)
    cheapest = cheapest_in_a_day(findings.times)
    if cheapest is not None:
        size = cheapest.allocation
        parts.append(
            f"Cheapest within a day: {size.gpu_type}, {size.workers} + {size.servers} (workers + servers), "
            f"{_interval(cheapest.seconds.times(1 / 60))} minutes, {_interval(cheapest.cost)} USD."
        )
    return Section("3. Time and cost against workers", parts)


def _measured_speeds(findings: Findings) -> list[Part]:
    """How well the speed model says what was measured."""
    rows = []
    for check in findings.speed_checks:
        errors = [100 * error for error in check.errors]
        held_out = f"{np.mean(errors):.1f} ({max(errors):.1f})" if errors else "-"
        rows.append((check.gpu or "elsewhere", str(check.speeds.model.n_points), held_out))
    return [
        "Measured speeds, and how far off the model is at a size that it was not fitted to, in per cent: the mean "
        "over all sizes, each left out once, and the largest.",
        Table(("GPU", "sizes", "held-out error %"), rows),
    ]


def _scaling(findings: Findings) -> Section:
    parts: list[Part] = []
    if findings.scalability:
        header = ("GPU", "scaling", "workers", "examples/s", "s per epoch", "USD per epoch", "efficiency %")
        rows = [
            (
                one.gpu,
                one.kind,
                str(point.workers),
                f"{point.examples_per_second:.0f}",
                f"{point.epoch_seconds:.3g}",
                f"{point.epoch_cost:.3g}",
                f"{100 * point.efficiency:.0f}",
            )
            for one in findings.scalability
            for point in one.points
        ]
        parts += [
            f"Strong scaling shares one batch of {findings.options.batch_size} among the workers, weak scaling gives "
            f"each a whole one; {SCALING_SERVERS} parameter servers. Efficiency: throughput over that of as many "
            "workers without any exchange.",
            Picture("scaling", "Throughput, time, cost, efficiency", pictures.png(pictures.scalability(findings))),
            Table(header, rows),
        ]
    if findings.checks:
        parts += _compute(findings)
    return Section("4. Strong and weak scaling, and the analytic model", parts)


def _compute(findings: Findings) -> list[Part]:
    header = ("layers", "GPU", "measured s", "data sheet s", "error %", "calibrated s", "error %", "% of peak")
    rows, before, after = [], [], []
    for check in findings.checks:
        by_sheet, calibrated = check.errors()
        before.append(abs(by_sheet))
        after += [] if calibrated is None else [abs(calibrated)]
        rows.append(
            (
                str(check.layers),
                check.gpu,
                f"{check.measured:.4g}",
                f"{check.by_data_sheet:.4g}",
                f"{100 * by_sheet:+.0f}",
                "-" if check.calibrated is None else f"{check.calibrated:.4g}",
                "-" if calibrated is None else f"{100 * calibrated:+.0f}",
                f"{100 * check.percent_of_peak:.0f}",
            )
        )
    means = f"Mean |error|: {100 * np.mean(before):.0f} % by data sheet"
    means += f", {100 * np.mean(after):.0f} % calibrated." if after else "."
    return [
        "The analytic model against the measured seconds of an epoch on one GPU. Data sheet: arithmetic and memory "
        "traffic of each layer at half the GPU's peak. Calibrated: the share of the peak and the time that each layer "
        f"takes to launch, from the other networks on the same GPU type. {means} Networks for small images are far "
        "from the peak: a fast GPU spends the step launching kernels. Epochs that were slow for a reason outside the "
        "network (a shared card) no model of the network can explain.",
        Table(header, rows),
        Picture("analytic", "Predicted against measured seconds", pictures.png(pictures.compute(findings))),
    ]


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "never"


def _interval(estimate: Estimate) -> str:
    return f"{_number(estimate.mean)} [{_number(estimate.low)}, {_number(estimate.high)}]"
