"""Where along the steps a condition begins to hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from optimus_models.history import FloatArray
from optimus_models.loss.batch import BoolArray

_SEARCH_POINTS = 128
"""Steps at which a curve without closed forms is looked at; again as often round the first hit, twice."""


def first_step(holds: Callable[[FloatArray], BoolArray], earliest: float, horizon: float) -> float:
    """The first step from `earliest` to `horizon` at which `holds`, to about 0.1 % of the way; inf if there is none."""
    if earliest > horizon:
        return math.inf
    offsets = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, _SEARCH_POINTS)])
    steps = earliest + (horizon - earliest) * offsets
    for _ in range(2):
        hits = holds(steps)
        first = int(np.argmax(hits))
        if not hits[first]:
            return math.inf
        if first == 0:
            return float(steps[0])
        steps = np.linspace(steps[first - 1], steps[first], _SEARCH_POINTS)
    return float(steps[np.argmax(holds(steps))])
