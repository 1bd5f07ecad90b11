"""The time-indexed linear programme: which size each job has in each interval, jobs as mixtures of ways through them.

Its dual is solved: prices of the resources in each interval. Whatever the prices are, what all jobs cost at them less
what the cluster is worth is a bound; HiGHS proposes prices by the ways found so far, so that its tolerances and an
early stop cost tightness and never truth.

References: Dyer and Wolsey, "Formulating the single machine sequencing problem with release dates as a mixed integer
program", 1990, for time-indexed programmes; Kelley, "The cutting-plane method", 1960; Wentges, "Weighted Dantzig-Wolfe
decomposition", 1997, for prices between the best and the proposed ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, vstack

from optimus_simulator.bounds.prices import Choice, JobTimes

FloatArray = NDArray[np.float64]
Question = Callable[[JobTimes, FloatArray], Choice]

_ROUNDS = 60
"""Of pricing, at most ..."""
_STALLED = 8
"""... and so many that have not raised the bound by a ten-thousandth, when it is near what it can be ..."""
_NEAR = 0.05
"""... by this part."""
_ENOUGH = 0.002
"""The programme is solved when what it may still gain is less than this part."""
_TOWARDS_BEST = 0.75
"""Where prices are asked: so far from the proposed ones towards the best ones."""
_KEPT_ROUNDS = 6
"""Ways that have not mattered for so many rounds are forgotten."""


@dataclass(slots=True)
class _Ways:
    """Ways through jobs that have been found: the rows of the master programme."""

    jobs: list[int] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    usages: list[csr_matrix] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    """Rounds in which each has not mattered."""

    def add(self, job: int, choice: Choice) -> None:
        self.jobs.append(job)
        self.costs.append(choice.cost)
        self.usages.append(csr_matrix(choice.usage.reshape(1, -1)))
        self.idle.append(0)

    def forget(self, matters: NDArray[np.bool_]) -> None:
        self.idle = [0 if used else rounds + 1 for rounds, used in zip(self.idle, matters.tolist(), strict=True)]
        kept = [index for index, rounds in enumerate(self.idle) if rounds < _KEPT_ROUNDS]
        for name in ("jobs", "costs", "usages", "idle"):
            values = getattr(self, name)
            setattr(self, name, [values[index] for index in kept])


def best_prices(
    jobs: Sequence[JobTimes], lengths: FloatArray, begin: FloatArray, ask: Question, *, ceiling: float
) -> float:
    """The largest bound that was found on the sum of the jobs' costs.

    `lengths`: (intervals,) seconds; `begin`: (intervals, resources) prices to begin with, those of the last interval 0:
    it is the time after everything. `ceiling`: of every price; without one, few ways would let prices grow for ever.
    """
    ways, best, prices = _Ways(), -math.inf, begin
    asked, reach, stalled = begin, math.inf, 0
    for _ in range(_ROUNDS):
        choices = [ask(job, asked) for job in jobs]
        value = sum(choice.least for choice in choices) - float((lengths[:, None] * asked).sum())
        is_near = reach - best <= _NEAR * abs(reach) < math.inf
        stalled = stalled + 1 if is_near and value <= best + 1e-4 * abs(best) else 0
        if value > best:
            best, prices = value, asked
        if stalled > _STALLED or (math.isfinite(reach) and reach - best <= _ENOUGH * abs(reach)):
            break
        for job, choice in enumerate(choices):
            ways.add(job, choice)
        proposed, reach = _master(ways, lengths, begin.shape, len(jobs), ceiling)
        if reach - best <= _ENOUGH * abs(reach):
            break
        asked = _TOWARDS_BEST * prices + (1.0 - _TOWARDS_BEST) * proposed
    return best


def _master(
    ways: _Ways, lengths: FloatArray, shape: tuple[int, ...], n_jobs: int, ceiling: float
) -> tuple[FloatArray, float]:
    """Prices at which the ways found so far cost most, and what they cost then: no prices can reach more."""
    rows = len(ways.jobs)
    of_job = csr_matrix((np.ones(rows), (np.arange(rows), ways.jobs)), shape=(rows, n_jobs))
    matrix = hstack([of_job, -vstack(ways.usages)], format="csr")
    worth = np.repeat(lengths, shape[1])
    objective = np.concatenate([-np.ones(n_jobs), worth])
    free = [(0.0, ceiling)] * (shape[0] - 1) * shape[1] + [(0.0, 0.0)] * shape[1]
    bounds = [(None, None)] * n_jobs + free
    found = linprog(objective, A_ub=matrix, b_ub=np.array(ways.costs), bounds=bounds, method="highs")
    if found.x is None or found.fun is None or found.slack is None:
        raise AssertionError(f"HiGHS: {found.message}")
    ways.forget(found.slack <= 1e-9 * (1.0 + np.abs(np.array(ways.costs))))
    return np.asarray(found.x[n_jobs:]).reshape(shape), float(-found.fun)
