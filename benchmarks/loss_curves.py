"""How well loss curves are predicted, measured on real training logs.

    python -m benchmarks.loss_curves --data curves.csv [--json]

The file has columns curve, source, family, k, loss, lr (lr may be empty). A model sees the first n = round(f·N) points
of a curve, n >= 5, and is asked for the rest:

* final-loss error: |mean prediction over the last 2 % of the points - mean loss there| / largest |loss| of the run;
* convergence error: |predicted - true epoch| / true, where a run has converged at the first e at which its smoothed
  loss fell by less than 1 % of its maximum between e-3 and e, at e, e+1 and e+2; the prediction is where that holds on
  the predicted losses. Only curves that converge after the prefix count, and predictions are capped at 10·N;
* end error: what `convergence_step` predicts against the end of the job in the service, where `has_converged` first
  holds on the curve fitted to the losses so far (looked for every 2 % of the points). The rule is that of the figures,
  an epoch of it three points;
* coverage: how often the model's 80 % interval holds the final loss, and how often that of `convergence_step` the end.

No model of the first table is given learning rates. `ours + runs` is also given finished runs: the curves of the same
family that come from other sources or stand earlier in the file; no other model sees more than the prefix. A second
table holds the curves with logged learning rates; `ours + rates` knows those of the whole run. What was fixed while
looking at such files is said in docs/models.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from benchmarks.training_logs import (
    LEAST_POINTS,
    Curve,
    FloatArray,
    convergence_epoch,
    smoothed,
    usable_curves,
)

from optimus_models import (
    FinishedRun,
    LossCurve,
    PaperLossCurve,
    Prior,
    RateSchedule,
    Rule,
    convergence_step,
    has_converged,
)

PREFIXES = (0.1, 0.2, 0.3, 0.5, 0.7)
TAIL_SHARE = 0.02
CAP = 10
"""A predicted convergence epoch is at most this multiple of the length of the curve."""


class Forecaster(Protocol):
    """What is asked of a fitted model."""

    def predict(self, steps: FloatArray) -> FloatArray: ...

    def predict_interval(self, steps: FloatArray) -> tuple[FloatArray, FloatArray]: ...


class LastValue:
    """The baseline: the loss stays where it is."""

    def __init__(self, losses: FloatArray) -> None:
        self._last = float(losses[-1])
        self._deviation = float(np.std(losses))

    def predict(self, steps: FloatArray) -> FloatArray:
        return np.full(len(steps), self._last)

    def predict_interval(self, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        mean = self.predict(steps)
        return mean - self._deviation, mean + self._deviation


def _schedule(curve: Curve) -> RateSchedule | None:
    """The learning rates of the whole run."""
    return None if curve.rates is None else RateSchedule.of(curve.steps, curve.rates)


Fit = Callable[[Curve, int], Forecaster]
"""A model of the first n points of a curve."""
MODELS: Mapping[str, Fit] = {
    "paper": lambda curve, n: PaperLossCurve.fit(curve.steps[:n], curve.losses[:n]),
    "ours": lambda curve, n: LossCurve.fit(curve.steps[:n], curve.losses[:n]),
    "last value": lambda curve, n: LastValue(curve.losses[:n]),
}
WITH_HISTORY = "ours + runs"
WITH_RATES: Mapping[str, Fit] = {
    **{name: MODELS[name] for name in ("paper", "ours")},
    "ours + rates": lambda curve, n: LossCurve.fit(curve.steps[:n], curve.losses[:n], schedule=_schedule(curve)),
}
"""Models that are compared where the learning rates of the whole run are known."""


def ours_with_history(curves: Sequence[Curve]) -> Fit:
    """Our model with finished runs: the jobs of the same family that are of other sources, or earlier in the file."""
    runs = [FinishedRun.of(curve.steps, curve.losses, schedule=_schedule(curve)) for curve in curves]
    places = {curve.name: place for place, curve in enumerate(curves)}

    @lru_cache(maxsize=1)  # the prefixes of one curve follow each other
    def known_before(name: str) -> Prior:
        mine = curves[places[name]]
        family = [(place, curve) for place, curve in enumerate(curves) if curve.family == mine.family]
        return Prior.of(
            replace(run, same_project=curve.source == mine.source)
            for place, curve in family
            if (run := runs[place]) and (curve.source != mine.source or place < places[name])
        )

    def fit(curve: Curve, n: int) -> LossCurve:
        return LossCurve.fit(curve.steps[:n], curve.losses[:n], history=known_before(curve.name))

    return fit


@dataclass(frozen=True)
class Score:
    """Errors of one model at one prefix, as fractions; one entry per curve that counts."""

    final: list[float]
    convergence: list[float]
    covered: list[bool]
    end: list[float] = field(default_factory=list)
    """Errors of `convergence_step`, of the curves that the service ends after the prefix."""
    end_covered: list[bool] = field(default_factory=list)

    def summary(self) -> dict[str, float | int | None]:
        """Medians and 90th percentiles over curves, in per cent."""
        return {
            "final_median": _percent(self.final, 50),
            "final_p90": _percent(self.final, 90),
            "coverage_80": 100.0 * float(np.mean(self.covered)) if self.covered else None,
            "convergence_median": _percent(self.convergence, 50),
            "convergence_p90": _percent(self.convergence, 90),
            "end_median": _percent(self.end, 50),
            "end_coverage_80": 100.0 * float(np.mean(self.end_covered)) if self.end_covered else None,
            "curves": len(self.final),
            "converging_curves": len(self.convergence),
            "ended_curves": len(self.end_covered),
        }


def _percent(errors: list[float], percentile: float) -> float | None:
    return 100.0 * float(np.percentile(errors, percentile)) if errors else None


def evaluate(fit: Fit, curves: Iterable[Curve]) -> dict[float, Score]:
    """Score one model on all curves, by prefix."""
    scores = {prefix: Score([], [], []) for prefix in PREFIXES}
    for curve in curves:
        truth = smoothed(curve.losses)
        true_epoch = convergence_epoch(truth, float(np.max(np.abs(truth))))
        ended = _ended(fit, curve)
        for prefix, score in scores.items():
            n = max(LEAST_POINTS, round(prefix * len(curve.losses)))
            model = fit(curve, n)
            _score_final(model, curve, score)
            if true_epoch is not None and true_epoch > n:
                score.convergence.append(abs(_epoch_on_curve(model, curve, n) - true_epoch) / true_epoch)
            if isinstance(model, LossCurve) and not _holds(model, curve, n):
                later = [m for m in ended if m > n]
                if later:
                    _score_end(model, curve, n, later[0], score)
    return scores


def _ended(fit: Fit, curve: Curve) -> list[int]:
    """Numbers of points, 2 % of the run apart, after which the service would have called the job converged."""
    numbers = np.unique(np.linspace(LEAST_POINTS, len(curve.losses), 50).round().astype(int)).tolist()
    fitted = ((n, fit(curve, n)) for n in numbers)
    return [n for n, model in fitted if isinstance(model, LossCurve) and _holds(model, curve, n)]


def _score_final(model: Forecaster, curve: Curve, score: Score) -> None:
    tail = max(1, round(TAIL_SHARE * len(curve.losses)))
    steps, true = curve.steps[-tail:], float(np.mean(curve.losses[-tail:]))
    score.final.append(abs(float(np.mean(model.predict(steps))) - true) / curve.largest)
    low, high = model.predict_interval(steps)
    score.covered.append(float(np.mean(low)) <= true <= float(np.mean(high)))


def _rule(model: LossCurve, curve: Curve, n: int) -> Rule:
    """The rule of the figures: an epoch of it is three points, and the maximum is that of the smoothed loss."""
    largest = float(np.max(np.abs(smoothed(curve.losses[:n]))))
    return Rule(loss_decrease=0.01 * largest / model.scale, relative=False, patience_epochs=1)


def _holds(model: LossCurve, curve: Curve, n: int) -> bool:
    now_step = float(curve.steps[n - 1])
    epoch = 3 * curve.spacing
    return has_converged(model, _rule(model, curve, n), steps_per_epoch=epoch, now_step=now_step) is not None


def _score_end(model: LossCurve, curve: Curve, n: int, ended: int, score: Score) -> None:
    """Score what the library itself says about the end; `ended`: the number of points at the end."""
    epoch, now_step = 3 * curve.spacing, float(curve.steps[n - 1])
    end = convergence_step(model, _rule(model, curve, n), steps_per_epoch=epoch, now_step=now_step)
    true = float(curve.steps[ended - 1])
    predicted = CAP * float(curve.steps[-1]) if end is None else end.mean
    score.end.append(abs(predicted - true) / true)
    score.end_covered.append(end is not None and end.low <= true <= end.high)


def _epoch_on_curve(model: Forecaster, curve: Curve, n: int) -> int:
    """Where the rule of the figures, taken literally, holds on the predicted losses."""
    cap = CAP * len(curve.losses)
    predicted = model.predict(curve.steps[0] + curve.spacing * np.arange(cap))
    largest = float(np.max(np.abs(smoothed(curve.losses[:n]))))
    return convergence_epoch(predicted, largest, after=n - 1) or cap


def _report(results: Mapping[str, Mapping[float, Score]]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    return {name: {f"{p:g}": score.summary() for p, score in scores.items()} for name, scores in results.items()}


def _print_table(results: Mapping[str, Mapping[float, Score]]) -> None:
    columns = (
        "final_median",
        "final_p90",
        "coverage_80",
        "convergence_median",
        "converging_curves",
        "end_median",
        "end_coverage_80",
        "ended_curves",
    )
    print(f"{'model':12}{'prefix':>8}" + "".join(f"{column:>25}" for column in columns))
    for model, scores in results.items():
        for prefix, score in scores.items():
            summary = score.summary()
            cells = "".join(f"{'-':>25}" if summary[c] is None else f"{summary[c]:25.2f}" for c in columns)
            print(f"{model:12}{prefix:8.0%}{cells}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="a CSV file of loss curves, or a folder with curves.csv"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    path = options.data / "curves.csv" if options.data.is_dir() else options.data
    curves = usable_curves(path)
    models = {**MODELS, WITH_HISTORY: ours_with_history(curves)}
    results = {name: evaluate(fit, curves) for name, fit in models.items()}
    logged = [curve for curve in curves if curve.rates is not None]
    with_rates = {name: evaluate(fit, logged) for name, fit in WITH_RATES.items()} if logged else {}
    if options.json:
        tables = {"percent": _report(results), "percent_with_learning_rates": _report(with_rates)}
        print(json.dumps({"curves": len(curves), "curves_with_learning_rates": len(logged), **tables}, indent=2))
    else:
        _print_table(results)
        _print_table(with_rates)
    return 0


if __name__ == "__main__":
    sys.exit(main())
