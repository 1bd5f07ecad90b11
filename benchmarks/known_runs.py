"""What a curve of the benchmarks may know of others, and what is chosen without a source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from benchmarks.training_logs import Curve

from optimus_models import FinishedRun, RateSchedule
from optimus_models.loss.finished_runs import Weighing

WeighingOf = Callable[[Curve], Weighing]
"""By what the finished runs of a curve are weighed."""


def schedule_of(curve: Curve) -> RateSchedule | None:
    """The learning rates of the whole run, if they were logged."""
    return None if curve.rates is None else RateSchedule.of(curve.steps, curve.rates)


def places_before(curves: Sequence[Curve], place: int) -> list[int]:
    """What the curve at `place` may know of: those of its family of other sources, and those that stand before it."""
    mine = curves[place]
    return [
        other
        for other, curve in enumerate(curves)
        if curve.family == mine.family and (curve.source != mine.source or other < place)
    ]


def runs_before(curves: Sequence[Curve], runs: Sequence[FinishedRun | None], place: int) -> list[FinishedRun]:
    """The `runs` of those."""
    known = ((curves[other], runs[other]) for other in places_before(curves, place))
    return [replace(run, same_project=curve.source == curves[place].source) for curve, run in known if run is not None]


def coverage_elsewhere(factors: Sequence[float], sources: Sequence[str]) -> float | None:
    """How often intervals hold, in per cent, that are multiplied by what makes those of all other sources hold 80 %.

    `factors`: by what each interval would have to be multiplied to hold the truth just so. None with one source.
    """
    each, source = np.array(factors), np.array(sources)
    others = [each[source != mine] for mine in source]
    held = [factor <= np.percentile(known, 80) for factor, known in zip(each, others, strict=True) if len(known)]
    return 100.0 * float(np.mean(held)) if held else None
