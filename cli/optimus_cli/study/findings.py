"""Everything a study finds, as values: what the report shows and what `--json` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimus_cli.errors import BadInput
from optimus_models.cost import Estimate, Prices, TimeAndCost, cheapest_before
from optimus_models.study import (
    BetaFit,
    BetaRegression,
    ComputeCheck,
    MeasuredSpeed,
    MeasuredSpeeds,
    Run,
    ScalingPoint,
    Setting,
    StretchedCurve,
    Target,
    Template,
    check_compute,
    first_epoch_at,
    fit_betas,
    measured_time_to_target,
    network_of,
    scaling,
    time_to_target,
)

FloatArray = NDArray[np.float64]

SERVERS = (2, 4)
SCALING_SERVERS = 4
SCALING_WORKERS = (1, 2, 4, 8, 16)
DEFAULT_HELD_OUT = 50


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may choose."""

    target_accuracy: float | None
    target_loss: float | None
    held_out: int | None
    first_epochs: int
    batch_size: int
    examples: int
    bytes_per_second: float
    prices: Prices
    max_workers: int
    speeds: Mapping[str | None, Sequence[MeasuredSpeed]] = field(default_factory=dict)
    """Measured speeds by GPU type; None: measured on something else, which says how the job scales."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The held-out network on one GPU type: what was measured and what two methods say."""

    run: Run
    measured_epoch: int | None
    plain: BetaFit
    """The linear regression of the betas on size and type, without any epoch of this network."""
    before: StretchedCurve
    """The better prior before the first epoch ..."""
    after: StretchedCurve
    """... and after the first few."""

    def curve_error(self, losses: FloatArray) -> float:
        """Mean |predicted - measured| / largest measured loss, up to twice the epoch of the target."""
        known = np.isfinite(self.run.losses)
        known[2 * (self.measured_epoch or len(known)) :] = False
        return float(np.mean(np.abs(losses - self.run.losses)[known]) / self.run.largest_loss)


@dataclass(frozen=True, slots=True)
class TimeCurve:
    """Time and cost to the target on one GPU type with one number of servers."""

    gpu: str
    servers: int
    points: tuple[TimeAndCost, ...]
    is_measured: bool = False
    """By measured speeds instead of arithmetic."""


@dataclass(frozen=True, slots=True)
class SpeedCheck:
    """How well the speed model says what was measured."""

    gpu: str | None
    speeds: MeasuredSpeeds
    errors: list[float]
    """Of each measured size, predicted from the others."""


@dataclass(frozen=True, slots=True)
class Scalability:
    gpu: str
    kind: str
    points: list[ScalingPoint]


@dataclass(frozen=True, slots=True)
class Findings:
    """A whole study."""

    options: Options
    target: Target
    held_out: int
    fits: list[BetaFit]
    """Of the runs that predictions are made from."""
    first_epochs: list[int | None]
    """When each of those reached the target."""
    forecasts: list[Forecast]
    times: list[TimeCurve]
    scalability: list[Scalability]
    checks: list[ComputeCheck]
    speed_checks: list[SpeedCheck]
    remarks: list[str]
    """What could not be said, and why."""


def run_study(runs: Sequence[Run], options: Options) -> Findings:
    """Raises `BadInput` when there is nothing to compare."""
    held_out = _held_out(runs, options)
    earlier = [run for run in runs if run.layers != held_out]
    target = Target.of(earlier, accuracy=options.target_accuracy, loss=options.target_loss)
    fits = [fit_betas(run) for run in earlier]
    forecasts = _forecasts([run for run in runs if run.layers == held_out], fits, Template.of(earlier), target, options)
    remarks: list[str] = []
    setting = _setting(held_out, runs, options, remarks)
    speed_checks = _speed_checks(options)
    return Findings(
        options,
        target,
        held_out,
        fits,
        [first_epoch_at(run, target) for run in earlier],
        forecasts,
        [] if setting is None else _times(forecasts, target, setting, speed_checks, options, remarks),
        [] if setting is None else _scalability(forecasts, setting),
        check_compute(runs, batch_size=options.batch_size, examples=options.examples),
        speed_checks,
        remarks,
    )


def _speed_checks(options: Options) -> list[SpeedCheck]:
    checks = []
    for gpu, rows in sorted(options.speeds.items(), key=lambda item: item[0] or ""):
        speeds = MeasuredSpeeds.fit(rows, options.batch_size)
        checks.append(SpeedCheck(gpu, speeds, speeds.held_out_errors()))
    return checks


def _held_out(runs: Sequence[Run], options: Options) -> int:
    sizes = sorted({run.layers for run in runs})
    if len(sizes) < 2:
        raise BadInput("a study compares at least two sizes of network; the file has one")
    if options.held_out is None:
        return DEFAULT_HELD_OUT if DEFAULT_HELD_OUT in sizes else sizes[-1]
    if options.held_out not in sizes:
        raise BadInput(f"--held-out {options.held_out}: the file has {', '.join(map(str, sizes))}")
    return options.held_out


def _forecasts(
    runs: Sequence[Run], fits: Sequence[BetaFit], template: Template, target: Target, options: Options
) -> list[Forecast]:
    regression = BetaRegression.fit(fits)
    return [
        Forecast(
            run,
            first_epoch_at(run, target),
            regression.predict(run.layers, run.gpu),
            template.given(run.losses[:0], run.layers),
            template.given(run.losses[: options.first_epochs], run.layers),
        )
        for run in runs
    ]


def _setting(held_out: int, runs: Sequence[Run], options: Options, remarks: list[str]) -> Setting | None:
    network = network_of(held_out)
    logged = [run.parameters for run in runs if run.layers == held_out and run.parameters is not None]
    parameters = logged[0] if logged else network.parameters if network else None
    if parameters is None:
        remarks.append(
            f"No time against workers: how many parameters a network of size {held_out} has is not known. "
            "Add a column `parameters`."
        )
        return None
    return Setting(options.batch_size, options.examples, 4.0 * parameters, options.bytes_per_second, options.prices)


def _alone_seconds(forecast: Forecast, setting: Setting) -> float | None:
    epoch = forecast.run.epoch_seconds
    return None if epoch is None else epoch / setting.steps_per_epoch


def _times(
    forecasts: Sequence[Forecast],
    target: Target,
    setting: Setting,
    speed_checks: Sequence[SpeedCheck],
    options: Options,
    remarks: list[str],
) -> list[TimeCurve]:
    by_type = {check.gpu: check.speeds for check in speed_checks}
    curves = []
    for forecast in forecasts:
        alone, epochs = _alone_seconds(forecast, setting), forecast.after.epoch_of(target.loss)
        if alone is None:
            remarks.append(f"No time on {forecast.run.gpu}: its seconds per epoch were not logged.")
            continue
        if not math.isfinite(epochs.high):
            remarks.append(f"No time on {forecast.run.gpu}: no earlier run ever reached the target.")
            continue
        workers, gpu = range(1, options.max_workers + 1), forecast.run.gpu
        elsewhere = by_type.get(None)
        measured = by_type.get(gpu) or (elsewhere.at_level_of(alone) if elsewhere else None)
        if by_type and measured is None:
            remarks.append(f"No measured speeds on {gpu}: times there are by arithmetic.")
        for servers in SERVERS:
            if measured is None:
                found = time_to_target(setting, epochs, alone, gpu, workers, servers)
            else:
                steps = epochs.times(setting.steps_per_epoch)
                found = measured_time_to_target(measured, steps, gpu, workers, servers, setting.prices)
            curves.append(TimeCurve(gpu, servers, found, measured is not None))
    return curves


def _scalability(forecasts: Sequence[Forecast], setting: Setting) -> list[Scalability]:
    found = []
    for forecast in forecasts:
        alone = _alone_seconds(forecast, setting)
        if alone is not None:
            gpu = forecast.run.gpu
            strong = scaling(setting, alone, gpu, SCALING_WORKERS, SCALING_SERVERS, "strong")
            weak = scaling(setting, alone, gpu, SCALING_WORKERS, SCALING_SERVERS, "weak")
            found += [Scalability(gpu, "strong", strong), Scalability(gpu, "weak", weak)]
    return found


def fastest(curve: TimeCurve) -> TimeAndCost:
    return min(curve.points, key=lambda point: point.seconds.mean)


def cheapest_in_a_day(curves: Sequence[TimeCurve]) -> TimeAndCost | None:
    """The cheapest allocation that ends within a day, if there is one."""
    answer = cheapest_before([point for curve in curves for point in curve.points], 86_400.0)
    return answer if isinstance(answer, TimeAndCost) else None


# --- JSON ------------------------------------------------------------------------------------------------------------


def as_json_document(findings: Findings) -> dict[str, Any]:
    """One document with all figures; what is not known is null."""
    return {
        "target": findings.target._asdict(),
        "runs": [_fit_json(fit, first) for fit, first in zip(findings.fits, findings.first_epochs, strict=True)],
        "held_out": findings.held_out,
        "forecasts": [_forecast_json(forecast, findings.target) for forecast in findings.forecasts],
        "time_to_target": [
            {
                "gpu": curve.gpu,
                "servers": curve.servers,
                "speeds": "measured" if curve.is_measured else "arithmetic",
                "points": [_point_json(o) for o in curve.points],
            }
            for curve in findings.times
        ],
        "measured_speeds": [_speeds_json(check) for check in findings.speed_checks],
        "scaling": [
            {"gpu": s.gpu, "kind": s.kind, "servers": SCALING_SERVERS, "points": [p._asdict() for p in s.points]}
            for s in findings.scalability
        ],
        "analytic": [
            {**check._asdict(), "data_sheet_error": check.errors()[0], "calibrated_error": check.errors()[1]}
            for check in findings.checks
        ],
        "remarks": findings.remarks,
    }


def _fit_json(fit: BetaFit, first: int | None) -> dict[str, Any]:
    return {
        "layers": fit.layers,
        "gpu": fit.gpu,
        **fit.law._asdict(),
        "largest_loss": fit.scale,
        "error": fit.error,
        "early_error": fit.early_error,
        "epoch_seconds": fit.epoch_seconds,
        "first_epoch_at_target": first,
    }


def _forecast_json(forecast: Forecast, target: Target) -> dict[str, Any]:
    epochs = forecast.run.epochs
    return {
        "gpu": forecast.run.gpu,
        "measured_epoch": forecast.measured_epoch,
        "plain_epoch": _finite(forecast.plain.epoch_of(target.loss)),
        "plain_curve_error": forecast.curve_error(forecast.plain.losses(epochs)),
        "before_epoch": _estimate_json(forecast.before.epoch_of(target.loss)),
        "before_curve_error": forecast.curve_error(forecast.before.losses(epochs)),
        "after_epoch": _estimate_json(forecast.after.epoch_of(target.loss)),
        "after_curve_error": forecast.curve_error(forecast.after.losses(epochs)),
    }


def _speeds_json(check: SpeedCheck) -> dict[str, Any]:
    return {
        "gpu": check.gpu,
        "sizes": check.speeds.model.n_points,
        "coefficients": dict(check.speeds.model.coefficients),
        "held_out_error": float(np.mean(check.errors)) if check.errors else None,
    }


def _point_json(point: TimeAndCost) -> dict[str, Any]:
    return {
        "workers": point.allocation.workers,
        "seconds": _estimate_json(point.seconds),
        "cost": _estimate_json(point.cost),
    }


def _estimate_json(estimate: Estimate) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in estimate._asdict().items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
