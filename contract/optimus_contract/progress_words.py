"""How the part of a job that is done is written: one way for the command line and for Kubernetes objects. Pure.

The page says it alike (`percent` of web/src/words.ts).
"""

from __future__ import annotations

import math

_ROUNDING = 1e-9
"""29 of 100 steps are 28.999999999999996 % in numbers of the machine."""


def percent_done(part: float) -> int:
    """Whole per cent of a part (0 to 1; beyond counts as these), rounded down: what is not finished is never 100 %."""
    part = min(max(part, 0.0), 1.0)
    return min(math.floor(100.0 * part + _ROUNDING), 100 if part == 1.0 else 99)
