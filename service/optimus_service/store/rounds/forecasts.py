"""The forecast of a decision, and its parts, as the JSON that is stored: `to_json`, and `from_json`, its inverse.

Rows are read whatever release has written them. Fields that are not known are left out: rows of decisions are never
written again, so nothing of them is lost. A field that is missing or cannot be read says what `Forecast` says by
default: that nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from optimus_models.calibration import AS_PREDICTED, UNCALIBRATED, Calibration, Widening
from optimus_models.speed.course import AS_MEASURED, CourseToCome
from optimus_scheduler.model import Forecast, Interval, SpeedSource
from optimus_service.store.records import DecisionRecord, Document

_WITHOUT_END = "is_without_end"


def to_json(forecast: Forecast) -> Document:
    """The forecast with the names of its fields. Infinities and NaN stay numbers: the column `Json` can say them."""
    return {name: plain(value) for name, value in forecast._asdict().items()}


def plain(value: Any) -> Any:
    """One value of a forecast: an interval is an object with mean, low and high."""
    match value:
        case Interval(mean=mean, low=low, high=high):
            return {"mean": mean, "low": low, "high": high}
        case Calibration():
            parts, always = value._asdict().items(), ("steps", "seconds")
            return {name: _factors(part) for name, part in parts if name in always or part != AS_PREDICTED}
        case CourseToCome(ratio=ratio, doubt=doubt, knots=knots):
            return {"ratio": ratio, "doubt": doubt, "knots": [list(each) for each in knots]} if knots else None
        case Mapping():
            return dict(value)
        case _:
            return value


def _factors(widening: Widening) -> Document:
    factors: Document = {"down": widening.down, "up": widening.up}
    return factors | ({"shift": widening.shift} if widening.shift else {})


def from_json(job_id: str, document: object) -> Forecast:
    """The forecast that is stored of a job; never raises."""
    stored = _object(document)
    return Forecast(
        job_id,
        total_steps=interval(stored.get("total_steps")),
        remaining_steps=interval(stored.get("remaining_steps")),
        confidence=_number_or(0.0, stored.get("confidence")),
        rule=_text(stored.get("rule")),
        loss_curve=_coefficients(stored.get("loss_curve")),
        speed_model=_coefficients(stored.get("speed_model")),
        steps_per_second=_number(stored.get("steps_per_second")),
        remaining_seconds=interval(stored.get("remaining_seconds")),
        seconds_per_step=interval(stored.get("seconds_per_step")),
        calibration=calibration(stored.get("calibration")),
        finished_runs=_count(stored.get("finished_runs")),
        finished_runs_share=_number_or(0.0, stored.get("finished_runs_share")),
        speed_from=_source(stored.get("speed_from")),
        cost=interval(stored.get("cost")),
        converged=stored.get("converged") is True,
        seconds_after_steps=interval(stored.get("seconds_after_steps")),
        course=course(stored.get("course")),
    )


def beside(decision: DecisionRecord) -> Document:
    """What is stored with the forecast of a decision beside its own fields."""
    return {"step_at": decision.step_at} | ({_WITHOUT_END: True} if decision.is_without_end else {})


def is_without_end(document: object) -> bool:
    """Whether nothing told when the job ends as the stored forecast was made; earlier releases did not say it."""
    return _object(document).get(_WITHOUT_END) is True


def step_at(document: object) -> float | None:
    """When the step was reported that the stored forecast is made at; None: it does not say so."""
    return _number(_object(document).get("step_at"))


def interval(document: object) -> Interval | None:
    """A stored interval; None without a mean. A bound that is not said is as far away as it can be."""
    stored = _object(document)
    mean = _number(stored.get("mean"))
    if mean is None:
        return None
    return Interval(mean, _number_or(0.0, stored.get("low")), _number_or(math.inf, stored.get("high")))


def known(value: Interval | None) -> Interval | None:
    """The interval, if its mean is a number; bounds that are none are as far away as they can be."""
    if value is None or not math.isfinite(value.mean):
        return None
    low, high = value.low, value.high
    return Interval(value.mean, low if math.isfinite(low) else 0.0, high if math.isfinite(high) else math.inf)


def calibration(document: object) -> Calibration:
    """How the intervals were corrected; releases before predictions were judged do not say it."""
    stored = _object(document)
    if not stored:
        return UNCALIBRATED
    return Calibration(*(_widening(stored.get(kind)) for kind in Calibration._fields))


def course(document: object) -> CourseToCome:
    """How the pace was expected to go on; releases that expected no change do not say it."""
    stored = _object(document)
    ratio, doubt = _number(stored.get("ratio")), _number_or(0.0, stored.get("doubt"))
    knots = [_knot(each) for each in _list(stored.get("knots"))]
    steps = [each for each in knots if each is not None]
    is_course = len(steps) == len(knots) > 1 and ratio is not None and math.isfinite(ratio) and ratio > 0
    increases = all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(steps))
    if ratio is None or not is_course or not increases or not 0.0 <= doubt < math.inf:
        return AS_MEASURED
    return CourseToCome(ratio, doubt, tuple(steps))


def _knot(value: object) -> tuple[float, float] | None:
    numbers = [number for each in _list(value) if (number := _number(each)) is not None and math.isfinite(number)]
    return (numbers[0], numbers[1]) if len(numbers) == len(_list(value)) == 2 else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _widening(document: object) -> Widening:
    stored = _object(document)
    if not stored:
        return AS_PREDICTED
    down, up, shift = (_number_or(instead, stored.get(name)) for name, instead in AS_PREDICTED._asdict().items())
    found = Widening(down, up, shift)
    return AS_PREDICTED if found == AS_PREDICTED else found


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number_or(instead: float, value: object) -> float:
    found = _number(value)
    return instead if found is None else found


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _source(value: object) -> SpeedSource | None:
    return next((source for source in SpeedSource if source.value == value), None)


def _coefficients(document: object) -> dict[str, float]:
    found = {name: _number(value) for name, value in _object(document).items()}
    return {name: value for name, value in found.items() if value is not None}
