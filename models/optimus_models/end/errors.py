"""How wrong predicted ends of jobs are: the intervals of `convergence_step`, from measured errors (docs/models.md)."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple


class EndErrors(NamedTuple):
    """80 % bounds of log(true / predicted total steps), as functions of a = log(predicted / present step)."""

    down: float
    """Below: minus this share of a ..."""
    least_down: float
    """... but at least so much."""
    up: float
    """Above: this ..."""
    up_per_ahead: float
    """... plus this share of a ..."""
    least_up: float
    """... but at least so much."""


_FITTED_END = EndErrors(down=0.4, least_down=0.0, up=0.1, up_per_ahead=0.15, least_up=0.1)
"""A decrease rule judged by `has_converged`: it looks at fits like the one that predicts."""
_MEASURED_END = EndErrors(down=0.61, least_down=0.05, up=0.48, up_per_ahead=-0.12, least_up=0.1)
"""The same rule on measured losses. A job that seems about to end often does not: its learning rate is lowered."""
_MEASURED_WITH_RUNS = EndErrors(down=0.59, least_down=0.05, up=0.37, up_per_ahead=-0.09, least_up=0.1)
"""The same with finished runs to go by. All three are quantile regressions; docs/models.md."""
_TARGET = EndErrors(down=0.53, least_down=0.0, up=0.45, up_per_ahead=-0.06, least_up=0.2)
"""A target of the loss or of a metric: taken from measured ends of an earlier version, no data to fit it to."""


def end_errors(*, by_decrease: bool, measured: bool, with_runs: bool) -> EndErrors:
    """Those of a rule about the decrease of the loss, or of another one; `with_runs`: finished runs are known."""
    if not by_decrease:
        return _TARGET
    if not measured:
        return _FITTED_END
    return _MEASURED_WITH_RUNS if with_runs else _MEASURED_END


def bounds(expected: float, now_step: float, coverage: float, errors: EndErrors) -> tuple[float, float]:
    """Lowest and highest total number of steps. Errors are multiplicative."""
    ahead = math.log(expected / max(now_step, 1.0)) if expected > max(now_step, 1.0) else 0.0
    width = NormalDist().inv_cdf(0.5 + coverage / 2.0) / NormalDist().inv_cdf(0.9)
    down = max(errors.down * ahead, errors.least_down)
    up = max(errors.up + errors.up_per_ahead * ahead, errors.least_up)
    return max(expected * math.exp(-width * down), now_step), expected * math.exp(width * up)
