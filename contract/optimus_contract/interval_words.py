"""How an interval of a prediction is written: one way for the command line and for sentences of the API. Pure.

The page says it alike (`intervalWords` of web/src/words.ts).
"""

from __future__ import annotations

import math
from typing import NamedTuple

NOT_KNOWN = "?"
"""An end of an interval that nothing bounds."""
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
_FAR = 1000
"""An end of so many units of the mean is written in its own unit, and so is the other end."""


class IntervalWords(NamedTuple):
    """An interval in words: `24 s`, `18`, `33`, or `118 s`, `15 s`, `18.8 min`."""

    mean: str
    low: str
    high: str


def interval_words(mean: float, low: float | None, high: float | None, finer: int = 0) -> IntervalWords:
    """Seconds, `mean` finite, each end in the unit of the mean; where the high end is far from that, each in its own.

    None and what is not finite: nothing bounds that end. `finer`: so many more decimals than usual.
    """
    unit = _unit(mean)
    is_far = high is not None and math.isfinite(high) and high >= _FAR * unit[0] and _unit(high) != unit

    def end(seconds: float | None) -> str:
        if seconds is None or not math.isfinite(seconds):
            return NOT_KNOWN
        if is_far:
            return _figure(seconds, *_unit(seconds), finer, with_unit=True)
        return _figure(seconds, *unit, finer)

    return IntervalWords(_figure(mean, *unit, finer, with_unit=True), end(low), end(high))


def in_unit_of(mean: float, seconds: float, finer: int = 0) -> str:
    """What came, in the unit of the mean that was predicted, to compare the two; in its own where that is far away."""
    unit = _unit(mean)
    return _figure(seconds, *(unit if seconds < _FAR * unit[0] else _unit(seconds)), finer, with_unit=True)


def seems_held(mean: float, low: float | None, high: float | None, came: float, finer: int = 0) -> bool:
    """Whether the figures of `interval_words` have that of `in_unit_of` between them, all rounded: seconds."""
    seconds, _ = unit = _unit(mean)

    def rounded(value: float) -> float:
        return float(_figure(value, *unit, finer)) * seconds

    is_above = low is None or not math.isfinite(low) or rounded(low) <= rounded(came)
    return is_above and (high is None or not math.isfinite(high) or rounded(came) <= rounded(high))


def is_limit(mean: float, low: float | None, high: float | None) -> bool:
    """Whether nothing is known but that it is `high` at most, in seconds or steps."""
    return high == mean and not low and high >= 0.5


def _figure(seconds: float, unit_seconds: int, unit: str, finer: int = 0, *, with_unit: bool = False) -> str:
    figure = f"{seconds / unit_seconds:.{finer if unit == 's' else 1 + finer}f}"
    return f"{figure} {unit}" if with_unit else figure


def _unit(seconds: float) -> tuple[int, str]:
    """The largest unit of which there are two or more."""
    return next((each for each in _UNITS if seconds >= 2 * each[0]), (1, "s"))
