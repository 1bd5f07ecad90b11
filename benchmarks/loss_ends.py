"""How well the end of a job is predicted that its loss decides, on real training logs.

    python -m benchmarks.loss_ends --data curves.csv

A job has one loss in each epoch and one of two rules: `epochs` is that of the service, less than 1 % of the loss for
three epochs; `figures` that of the paper's figures, less than 1 % of the largest loss for an epoch of three losses. It
ends where `has_converged` first holds on the curve fitted to the losses so far, looked for after each of them. Asked
for by `convergence_step` after 10, 25, 50 and 75 % of that life, but not before five losses; only jobs that end count.

* error: |predicted - true total steps| / true, 90 for a job whose end is not predicted;
* held: how often the 80 % interval holds the true number of steps, in per cent; a job without prediction is not held;
* left: the error of the steps that are left.

With runs, the jobs known are the curves of the same family that come from other sources or stand earlier in the file,
as the service knows them: up to their end. Those that the rule never ended are known as they are.

`other_decrease`: where each job would have ended under the rule `epochs` with another decrease, by what it told until
its end (`ends_under`), for each two of the decreases 0.005, 0.01, 0.02 and 0.04 that end it. `by_inverse`: the error of
epochs in inverse proportion to the decrease.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.known_runs import WeighingOf, coverage_elsewhere, runs_before
from benchmarks.training_logs import LEAST_POINTS, Curve, usable_curves

from optimus_models import (
    FinishedRun,
    LossCurve,
    LossHistory,
    Prediction,
    Prior,
    Rule,
    convergence_step,
    has_converged,
)
from optimus_models.loss.finished_runs import WEIGHING
from optimus_scheduler.forecast.precedents import ends_under
from optimus_scheduler.model import REACH, ConvergenceRule, EndedJob

PARTS = (0.1, 0.25, 0.5, 0.75)
UNPREDICTED = 0.9
"""Error of a job whose end is not predicted."""


class LossRule(NamedTuple):
    """A rule and how many losses make its epoch."""

    rule: Rule
    losses: int


RULES: Mapping[str, LossRule] = {
    "epochs": LossRule(Rule(loss_decrease=0.01), 1),
    "figures": LossRule(Rule(loss_decrease=0.01, relative=False, patience_epochs=1), 3),
}


class Case(NamedTuple):
    """A job seen after `n` losses that ends after `end` of them."""

    curve: Curve
    n: int
    end: int
    predicted: Prediction | None

    @property
    def true(self) -> float:
        return float(self.curve.steps[self.end - 1])

    @property
    def error(self) -> float:
        return UNPREDICTED if self.predicted is None else abs(self.predicted.mean - self.true) / self.true

    @property
    def left_error(self) -> float:
        left = self.true - float(self.curve.steps[self.n - 1])
        return UNPREDICTED if self.predicted is None else abs(self.predicted.mean - self.true) / left

    @property
    def factor(self) -> float:
        """By what the interval, in logarithms, would have to be multiplied to hold the truth just so."""
        if self.predicted is None:
            return math.inf
        mean, low, high, _ = self.predicted
        bound = high if self.true > mean else low
        return abs(math.log(self.true / mean)) / max(abs(math.log(bound / mean)), 1e-9)


def ended_after(curve: Curve, rule: LossRule) -> int | None:
    """The number of losses after which the service ends the job; None if it never does."""
    numbers = range(LEAST_POINTS, len(curve.losses) + 1)
    fitted = LossCurve.fit_many([LossHistory.of(curve.steps[:n], curve.losses[:n]) for n in numbers])
    epoch = rule.losses * curve.spacing
    return next(
        (
            n
            for n, model in zip(numbers, fitted, strict=True)
            if has_converged(model, rule.rule, steps_per_epoch=epoch, now_step=float(curve.steps[n - 1]))
        ),
        None,
    )


def cases(
    curves: Sequence[Curve], ends: Sequence[int | None], rule: LossRule, part: float, weighing: WeighingOf | None
) -> list[Case]:
    """Each job that ends, seen after `part` of its life. `weighing`: of finished runs; None without them."""
    seen = [(place, max(LEAST_POINTS, round(part * end)), end) for place, end in enumerate(ends) if end]
    seen = [(place, n, end) for place, n, end in seen if n < end]
    histories = [LossHistory.of(curves[place].steps[:n], curves[place].losses[:n]) for place, n, _ in seen]
    runs = [_run(curve, end) for curve, end in zip(curves, ends, strict=True)] if weighing else []
    priors = [
        Prior.of(runs_before(curves, runs, place), weighing(curves[place])) if weighing else None
        for place, _, _ in seen
    ]
    return [
        Case(curve, n, end, _predicted(model, curve, n, rule))
        for (place, n, end), model in zip(seen, LossCurve.fit_many(histories, priors=priors), strict=True)
        for curve in [curves[place]]
    ]


def _run(curve: Curve, end: int | None) -> FinishedRun | None:
    end_step = float(curve.steps[end - 1]) if end else None
    return FinishedRun.of(curve.steps[:end], curve.losses[:end], end_step=end_step)


def _predicted(model: LossCurve, curve: Curve, n: int, rule: LossRule) -> Prediction | None:
    epoch, now = rule.losses * curve.spacing, float(curve.steps[n - 1])
    return convergence_step(model, rule.rule, steps_per_epoch=epoch, now_step=now)


def summary(seen: Sequence[Case]) -> dict[str, float | int | None]:
    """Medians and shares in per cent."""
    held = [case.factor <= 1.0 + 1e-6 for case in seen]
    return {
        "error_median": _median(case.error for case in seen),
        "left_median": _median(case.left_error for case in seen),
        "held_80": 100.0 * float(np.mean(held)) if held else None,
        "held_80_by_others": coverage_elsewhere([case.factor for case in seen], [case.curve.source for case in seen]),
        "unpredicted": sum(case.predicted is None for case in seen),
        "jobs": len(seen),
    }


def _median(errors: Iterable[float]) -> float | None:
    values = list(errors)
    return 100.0 * float(np.median(values)) if values else None


def measure(
    curves: Sequence[Curve], name: str, weighing: WeighingOf
) -> dict[str, dict[float, dict[str, float | int | None]]]:
    """Summaries by model and part of the life, for the rule of this name."""
    rule = RULES[name]
    ends = [ended_after(curve, rule) for curve in curves]
    return {
        model: {part: summary(cases(curves, ends, rule, part, known)) for part in PARTS}
        for model, known in (("ours", None), ("ours + runs", weighing))
    }


DECREASES = (0.005, 0.01, 0.02, 0.04)


def other_decreases(curves: Sequence[Curve]) -> dict[str, dict[str, float | int]]:
    """Errors, in per cent of the epochs that it took, by whether the other decrease ends the job sooner or later."""
    ends = [{each: ended_after(curve, LossRule(Rule(loss_decrease=each), 1)) for each in DECREASES} for curve in curves]
    found: dict[str, list[tuple[float, float, bool]]] = {"sooner": [], "later": []}
    for curve, by_decrease in zip(curves, ends, strict=True):
        known = {each: n for each, n in by_decrease.items() if n}
        for (asked, n), (other, true) in permutations(known.items(), 2):
            job = EndedJob(
                curve.name,
                curve.family,
                "",
                curve.spacing,
                tuple(curve.steps[:n].tolist()),
                tuple(curve.losses[:n].tolist()),
                total_steps=round(n * curve.spacing),
                rule=ConvergenceRule(loss_decrease=asked),
            )
            (end,) = ends_under(ConvergenceRule(loss_decrease=other), [job]).values()
            held = abs(math.log(end.epochs / true)) <= REACH * end.spread
            error, by_inverse = (abs(each - true) / true for each in (end.epochs, n * asked / other))
            found["sooner" if other > asked else "later"].append((error, by_inverse, held))
    return {
        name: {
            "pairs": len(each),
            "error_median": 100.0 * float(np.median([own for own, _, _ in each])),
            "by_inverse": 100.0 * float(np.median([inverse for _, inverse, _ in each])),
            "held_80": 100.0 * float(np.mean([held for _, _, held in each])),
        }
        for name, each in found.items()
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a CSV file of loss curves, or its folder")
    options = parser.parse_args(arguments)
    curves = usable_curves(options.data / "curves.csv" if options.data.is_dir() else options.data)
    found: dict[str, object] = {name: measure(curves, name, lambda _: WEIGHING) for name in RULES}
    print(json.dumps({**found, "other_decrease": other_decreases(curves)}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
