"""How long a size will last: by that a change of size is charged, and no constant says it.

*Turnover* T is the time in which the predicted ends of the running jobs free once what is in use:

    T = 1 / Σ (job's part of what is in use / its seconds left).

Each end changes what the others should have; so does each arrival, and where the load lasts there are as many: the load
changes every T/2. Meanwhile the best size moves on, and what a size that stays loses grows as t / (T/2). A change that
takes c seconds is then best made every √(2 · c · T/2): the interval at which both together cost least, as between
checkpoints, where it is the mean time between failures that T/2 stands for. What a size has lasted already counts on
top: what the load has left alone for long, it will leave alone for longer. While a job's speeds are learned it is
changed as soon as more is known of them, and not by that interval: T/2 itself stands there.

Measured against other rules: docs/studies/size-horizons.md.

References: Young: "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17, 1974;
Daly: "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22, 2006.
"""

from __future__ import annotations

import math

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import BoolArray, FloatArray

_SOON = 1.0
"""Seconds: a job that is predicted to have less left, or is past its predicted end, ends this soon; as rounds come."""
_LEAST = 1e-3
"""Seconds: what is divided by a horizon stays finite."""


def turnover(in_use: FloatArray, seconds_left: FloatArray) -> float:
    """Seconds in which predicted ends free once what is in use; infinite where nothing is, or no end is known.

    `in_use`: (n,) shares of the cluster that each job has, at least 0, of whatever unit. `seconds_left`: (n,) until
    each one's predicted end with the size that it has; infinite or NaN where that is not known: it frees nothing.
    """
    runs = in_use > 0
    if not runs.any():
        return math.inf
    has, left = in_use[runs], seconds_left[runs]
    left = np.where(np.isnan(left), np.inf, np.maximum(left, _SOON))
    freed = float((has / has.max() / left).sum())
    return float((has / has.max()).sum()) / freed if freed > 0 else math.inf


def horizons(
    age: FloatArray, change_seconds: FloatArray, seconds_left: FloatArray, learning: BoolArray, turnover_seconds: float
) -> FloatArray:
    """(n,) seconds for which the size of each job will last: above 0, and no longer than the job.

    `age`: for how long it has had its size; `change_seconds`: what a change takes, its stop and the time until new
    tasks take part; `seconds_left`: until its predicted end, infinite or NaN where that is not known; `learning`:
    whether its speeds are being learned; all (n,), seconds at least 0. `turnover_seconds`: see `turnover`.
    """
    if turnover_seconds == math.inf:  # nothing is known to end
        lasts = np.full(len(age), np.inf)
    else:
        half = turnover_seconds / 2.0
        lasts = age + np.where(learning, half, np.sqrt(2.0 * change_seconds * half))
    return np.asarray(np.maximum(np.fmin(lasts, seconds_left), _LEAST))
