"""How well loss curves are predicted, measured on real training logs.

    python -m benchmarks.loss_curves --data curves.csv [--json] [--leave-out source]

The file has columns curve, source, family, k, loss, lr (lr may be empty). A model sees the first n = round(f·N) points
of a curve, n >= 5, and is asked for the rest:

* final-loss error: |mean prediction over the last 2 % of the points - mean loss there| / largest |loss| of the run;
* convergence error: |predicted - true epoch| / true, where a run has converged at the first e at which its smoothed
  loss fell by less than 1 % of its maximum between e-3 and e, at e, e+1 and e+2; the prediction is where that holds on
  the predicted losses. Only curves that converge after the prefix count, and predictions are capped at 10·N;
* coverage: how often the model's 80 % interval holds the final loss;
* the end of the job in the service: see `benchmarks.loss_ends`, whose tables are printed too.

`ours + runs` is also given finished runs: the curves of the same family that come from other sources or stand earlier
in the file; no other model sees more than the prefix. `ours + runs + rates` knows the learning rates of the whole run,
and those of finished runs, where they were logged. The second table holds only the curves that have them, and the
multi-power law beside ours (`benchmarks.multi_power_law`), without and with those finished runs whose rates are known.
`percent_by_family` is the median final-loss error of each family, over its curves of which finished runs are known;
`worse_with_runs` has the families of at least three whose errors runs and rates make larger than they are by rates
alone: the mean difference, and the probability that a signed-rank test gives to as much by chance.

With `--leave-out source`, the numbers by which runs are weighed (`Weighing`) are chosen anew for each source, out of 27
sets, by the other sources alone, and so are the fall of losses with rates (`RateSchedule.fall`), before them and from
`FALLS`, and the factor that makes intervals hold 80 %. The law's shape never has seen the source that is judged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from benchmarks import loss_ends
from benchmarks.known_runs import WeighingOf, coverage_elsewhere, places_before, runs_before, schedule_of
from benchmarks.multi_power_law import MultiPowerLaw, shape_elsewhere
from benchmarks.training_logs import (
    LEAST_POINTS,
    Curve,
    FloatArray,
    convergence_epoch,
    smoothed,
    usable_curves,
)
from scipy.stats import wilcoxon

from optimus_models import FinishedRun, LossCurve, LossHistory, PaperLossCurve, Prior, RateSchedule
from optimus_models.loss.finished_runs import WEIGHING, Weighing

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


Fit = Callable[[Curve, int], Forecaster]
"""A model of the first n points of a curve."""
MODELS: Mapping[str, Fit] = {
    "paper": lambda curve, n: PaperLossCurve.fit(curve.steps[:n], curve.losses[:n]),
    "ours": lambda curve, n: LossCurve.fit(curve.steps[:n], curve.losses[:n]),
    "last value": lambda curve, n: LastValue(curve.losses[:n]),
}
RATES, WITH_RUNS, WITH_RATES = "ours + rates", "ours + runs", "ours + runs + rates"
Schedules = Mapping[str, RateSchedule | None]
"""The learning rates of each curve, by its name."""
GRID = tuple(
    Weighing(same_project, error, rate_error)
    for same_project in (8.0, 15.0, 30.0)
    for error in (0.1, 0.15, 0.22)
    for rate_error in (0.25, 0.4, 0.6)
)
FALLS = (0.08, 0.1, 0.12, 0.15, 0.18, 0.22)
"""What `--leave-out` chooses from."""
LEAST_CURVES = 3
"""Of a family that is tested for being worse with runs."""
CHANCE = 0.05
"""Probability below which it is told."""
T = TypeVar("T")


def ours_with(
    known: Mapping[str, Prior] | None, schedules: Schedules | None, weighing: WeighingOf = lambda _: WEIGHING
) -> Fit:
    """Our model with the runs `known` of each curve, weighed as `weighing` says, and its learning rates."""

    def fit(curve: Curve, n: int) -> LossCurve:
        history = replace(known[curve.name], weighing=weighing(curve)) if known else None
        schedule = schedules[curve.name] if schedules else None
        return LossCurve.fit(curve.steps[:n], curve.losses[:n], history=history, schedule=schedule)

    return fit


def multi_power_laws(curves: Sequence[Curve]) -> dict[str, Fit]:
    """The law of `curves`, whose rates are all known, without and with those that each may know."""
    shapes = {source: shape_elsewhere(curves, source) for source in {curve.source for curve in curves}}
    known = {mine.name: [curves[other] for other in places_before(curves, i)] for i, mine in enumerate(curves)}
    return {
        "multi-power law": lambda curve, n: MultiPowerLaw.fit(curve, n, [], shapes[curve.source]),
        "multi-power law + runs": lambda curve, n: MultiPowerLaw.fit(curve, n, known[curve.name], shapes[curve.source]),
    }


def known_runs(curves: Sequence[Curve]) -> dict[str, Prior]:
    """What is known of the others when each curve is predicted."""
    runs = [FinishedRun.of(each.steps, each.losses, schedule=schedule_of(each)) for each in curves]
    return {curve.name: Prior.of(runs_before(curves, runs, place)) for place, curve in enumerate(curves)}


def chosen_elsewhere(curves: Sequence[Curve], errors: Mapping[T, Sequence[Sequence[float]]]) -> dict[str, T]:
    """For each source the choice with the least errors, by prefix and curve, on all other sources.

    By the sum of the logarithms of the mean and of the median error over all prefixes.
    """
    table = np.array(list(errors.values()))  # (choices, prefixes, curves)
    sources = np.array([curve.source for curve in curves])
    chosen = {}
    for source in sources:
        others = table[:, :, sources != source] if (sources != source).any() else table
        summed = np.log(others.mean(axis=2) + 1e-4) + np.log(np.median(others, axis=2) + 1e-4)
        chosen[source] = list(errors)[int(np.argmin(summed.sum(axis=1)))]
    return chosen


def falls_elsewhere(curves: Sequence[Curve], schedules: Schedules) -> Schedules:
    """The learning rates with the fall of losses that is best for all other sources, without finished runs."""
    logged = [curve for curve in curves if schedules[curve.name] is not None]
    if not logged:
        return schedules
    falling = {fall: _with_falls(schedules, dict.fromkeys(schedules, fall)) for fall in FALLS}
    chosen = chosen_elsewhere(logged, {fall: _final_errors(logged, None, each) for fall, each in falling.items()})
    return _with_falls(schedules, {curve.name: chosen[curve.source] for curve in logged})


def _with_falls(schedules: Schedules, falls: Mapping[str, float]) -> Schedules:
    return {name: each and each._replace(fall=falls[name]) for name, each in schedules.items()}


def _final_errors(
    curves: Sequence[Curve], known: Mapping[str, Prior] | None, schedules: Schedules, weighing: Weighing = WEIGHING
) -> list[list[float]]:
    """Of each curve at each prefix."""
    priors = [replace(known[curve.name], weighing=weighing) if known else None for curve in curves]
    rates = [schedules[curve.name] for curve in curves]

    def errors(part: float) -> list[float]:
        seen = [(curve, points_of(curve, part)) for curve in curves]
        histories = [LossHistory.of(curve.steps[:n], curve.losses[:n]) for curve, n in seen]
        fitted = LossCurve.fit_many(histories, priors=priors, schedules=rates)
        return [_final_error(model, curve) for model, curve in zip(fitted, curves, strict=True)]

    return [errors(part) for part in PREFIXES]


def points_of(curve: Curve, part: float) -> int:
    """How many points of a curve a model sees."""
    return max(LEAST_POINTS, round(part * len(curve.losses)))


@dataclass(frozen=True)
class Score:
    """Errors of one model at one prefix, as fractions; one entry per curve that counts."""

    final: list[float]
    convergence: list[float]
    covered: list[bool]
    factors: list[float] = field(default_factory=list)
    """By what the interval would have to be multiplied to hold the final loss just so."""
    source: list[str] = field(default_factory=list)

    def covered_elsewhere(self) -> float | None:
        """Share held when intervals are multiplied by what makes those of the other sources hold 80 %, in per cent."""
        return coverage_elsewhere(self.factors, self.source)

    def summary(self) -> dict[str, float | int | None]:
        """Medians and 90th percentiles over curves, in per cent."""
        return {
            "final_median": _percent(self.final, 50),
            "final_p90": _percent(self.final, 90),
            "coverage_80": 100.0 * float(np.mean(self.covered)) if self.covered else None,
            "convergence_median": _percent(self.convergence, 50),
            "convergence_p90": _percent(self.convergence, 90),
            "coverage_80_by_others": self.covered_elsewhere(),
            "curves": len(self.final),
            "converging_curves": len(self.convergence),
        }


def _percent(errors: list[float], percentile: float) -> float | None:
    return 100.0 * float(np.percentile(errors, percentile)) if errors else None


def evaluate(fit: Fit, curves: Iterable[Curve]) -> dict[float, Score]:
    """Score one model on all curves, by prefix."""
    scores = {prefix: Score([], [], []) for prefix in PREFIXES}
    for curve in curves:
        truth = smoothed(curve.losses)
        true_epoch = convergence_epoch(truth, float(np.max(np.abs(truth))))
        for prefix, score in scores.items():
            n = points_of(curve, prefix)
            model = fit(curve, n)
            _score_final(model, curve, score)
            if true_epoch is not None and true_epoch > n:
                score.convergence.append(abs(_epoch_on_curve(model, curve, n) - true_epoch) / true_epoch)
    return scores


def _tail(curve: Curve) -> int:
    return max(1, round(TAIL_SHARE * len(curve.losses)))


def _final_error(model: Forecaster, curve: Curve) -> float:
    tail = _tail(curve)
    true = float(np.mean(curve.losses[-tail:]))
    return abs(float(np.mean(model.predict(curve.steps[-tail:]))) - true) / curve.largest


def _score_final(model: Forecaster, curve: Curve, score: Score) -> None:
    tail = _tail(curve)
    steps, true = curve.steps[-tail:], float(np.mean(curve.losses[-tail:]))
    score.final.append(_final_error(model, curve))
    low, high = (float(np.mean(bound)) for bound in model.predict_interval(steps))
    mean = float(np.mean(model.predict(steps)))
    score.covered.append(low <= true <= high)
    half_width = high - mean if true > mean else mean - low
    score.factors.append(abs(true - mean) / max(half_width, 1e-12))
    score.source.append(curve.source)


def _epoch_on_curve(model: Forecaster, curve: Curve, n: int) -> int:
    """Where the rule of the figures, taken literally, holds on the predicted losses."""
    cap = CAP * len(curve.losses)
    predicted = model.predict(curve.steps[0] + curve.spacing * np.arange(cap))
    largest = float(np.max(np.abs(smoothed(curve.losses[:n]))))
    return convergence_epoch(predicted, largest, after=n - 1) or cap


def print_table(tables: Mapping[str, Mapping[float, Mapping[str, float | int | None]]]) -> None:
    """Print summaries by model and prefix."""
    if not tables:
        print("none")
        return
    columns = list(next(iter(next(iter(tables.values())).values())))
    print(f"{'model':26}{'part':>6}" + "".join(f"{column:>24}" for column in columns))
    for model, by_part in tables.items():
        for part, summary in by_part.items():
            cells = "".join(f"{'-':>24}" if summary[c] is None else f"{summary[c]:24.2f}" for c in columns)
            print(f"{model:26}{part:6.0%}{cells}")


Summary = dict[str, float | int | None]


def measure(curves: Sequence[Curve], *, leave_out: bool) -> dict[str, dict[str, dict[float, Summary]]]:
    """All tables: by name of the table, model and part of the run."""
    known, weighings = known_runs(curves), {curve.source: WEIGHING for curve in curves}
    schedules: Schedules = {curve.name: schedule_of(curve) for curve in curves}
    if leave_out:
        schedules = falls_elsewhere(curves, schedules)
        weighings = chosen_elsewhere(curves, {each: _final_errors(curves, known, schedules, each) for each in GRID})

    def weighing(curve: Curve) -> Weighing:
        return weighings[curve.source]

    models = {
        **MODELS,
        RATES: ours_with(None, schedules),
        WITH_RUNS: ours_with(known, None, weighing),
        WITH_RATES: ours_with(known, schedules, weighing),
    }
    scored = {name: evaluate(fit, curves) for name, fit in models.items()}
    logged = [curve for curve in curves if curve.rates is not None]
    informed = {**models, **multi_power_laws(logged)}
    return {
        "percent": _summaries(scored),
        "percent_with_learning_rates": _summaries({name: evaluate(fit, logged) for name, fit in informed.items()}),
        "percent_by_family": by_family(curves, known, scored),
        "worse_with_runs": worse_with_runs(curves, known, scored),
        **{f"percent_of_ends_{name}": loss_ends.measure(curves, name, weighing) for name in loss_ends.RULES},
    }


def by_family(
    curves: Sequence[Curve], known: Mapping[str, Prior], scored: Mapping[str, Mapping[float, Score]]
) -> dict[str, dict[float, Summary]]:
    """Median errors of the final loss by family and prefix, without and with finished runs, where any are known."""

    def row(places: Sequence[int], part: float) -> Summary:
        errors = {
            name: [scored[name][part].final[i] for i in places] for name in ("ours", RATES, WITH_RUNS, WITH_RATES)
        }
        return {"curves": len(places), **{name: _percent(each, 50) for name, each in errors.items()}}

    families = _families(curves, known).items()
    return {family: {part: row(places, part) for part in PREFIXES} for family, places in families}


def worse_with_runs(
    curves: Sequence[Curve], known: Mapping[str, Prior], scored: Mapping[str, Mapping[float, Score]]
) -> dict[str, dict[float, Summary]]:
    """The families and prefixes at which finished runs make errors larger, more than chance does."""
    found: dict[str, dict[float, Summary]] = {}
    for family, places in _families(curves, known).items():
        for part in PREFIXES:
            alone, with_runs = (np.array(scored[name][part].final)[places] for name in (RATES, WITH_RATES))
            if len(places) < LEAST_CURVES or (with_runs == alone).all():
                continue
            chance = float(wilcoxon(with_runs - alone, alternative="greater", zero_method="zsplit").pvalue)
            if chance < CHANCE:
                worse_by = 100.0 * float(np.mean(with_runs - alone))
                found.setdefault(family, {})[part] = {"curves": len(places), "worse_by": worse_by, "chance": chance}
    return found


def _families(curves: Sequence[Curve], known: Mapping[str, Prior]) -> dict[str, list[int]]:
    """The places of the curves of each family of which finished runs are known."""
    families: dict[str, list[int]] = {}
    for place, curve in enumerate(curves):
        if known[curve.name].runs:
            families.setdefault(curve.family, []).append(place)
    return dict(sorted(families.items()))


def _summaries(scored: Mapping[str, Mapping[float, Score]]) -> dict[str, dict[float, Summary]]:
    return {name: {part: score.summary() for part, score in scores.items()} for name, scores in scored.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="a CSV file of loss curves, or a folder with curves.csv"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--leave-out", choices=["source"], help="choose what is chosen without the source judged")
    options = parser.parse_args(arguments)
    path = options.data / "curves.csv" if options.data.is_dir() else options.data
    curves = usable_curves(path)
    tables = measure(curves, leave_out=options.leave_out is not None)
    if options.json:
        logged = sum(curve.rates is not None for curve in curves)
        print(json.dumps({"curves": len(curves), "curves_with_learning_rates": logged, **tables}, indent=2))
    else:
        for name, table in tables.items():
            print(name)
            print_table(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
