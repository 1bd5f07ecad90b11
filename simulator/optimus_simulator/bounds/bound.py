"""Bounds on what any scheduler can reach on a trace and its cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, vstack

from optimus_simulator.bounds.area import least_makespan, mixes, one_machine, squashed_area
from optimus_simulator.bounds.needs import Need, needs_of
from optimus_simulator.bounds.prices import Choice, JobTimes, Sizes
from optimus_simulator.options import Options
from optimus_simulator.trace import Trace

FloatArray = NDArray[np.float64]

# --- the time-indexed linear programme: which size each job has in each interval -------------------------------------
# Its dual is solved: prices of the resources in each interval. Whatever the prices are, what all jobs cost at them less
# what the cluster is worth is a bound; HiGHS proposes prices by the ways found so far, so that its tolerances and an
# early stop cost tightness and never truth.
#
# References: Dyer and Wolsey, "Formulating the single machine sequencing problem with release dates as a mixed integer
# program", 1990, for time-indexed programmes; Kelley, "The cutting-plane method", 1960; Wentges, "Weighted
# Dantzig-Wolfe decomposition", 1997, for prices between the best and the proposed ones.

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


# --- the bounds ------------------------------------------------------------------------------------------------------

MOST_JOBS = 2000
"""Traces with more get no linear programme: it takes about as many milliseconds a round as there are jobs."""
_MOST_SIZES, _SIZES_OF_A_JOB = 100_000, 100
"""Without it so many sizes are looked at, and so many more for each job: a second, and a millisecond for each."""
_WHILE_ARRIVING, _AFTERWARDS = 60, 30
"""Intervals of the grid while jobs arrive, equally long, and after that, each longer than the one before."""
_DEADLINES = 60
"""Deadlines that are edges of the grid, at most."""
_SCALES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
"""Prices to begin with: so many times the number of jobs that are left on a machine that does the cluster's work."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What no scheduler can do better than."""

    trace: str
    jobs: int
    alone_seconds: float
    """Mean completion time if every job had the cluster for itself."""
    squashed_area_seconds: float
    """... if the cluster were one machine, and every size as efficient as the best."""
    programme_seconds: float | None
    """... by the linear programme; None where the trace has too many jobs for it, or it was not asked for."""
    makespan_seconds: float
    """From the first submission to the last end, at least."""
    deadlines_met: float | None
    """At most so large a part of those that have one; None where no job has."""
    start_seconds: float = 0.0
    """For which each job makes no progress at its first start: what is assumed."""

    @property
    def mean_jct_seconds(self) -> float:
        """No scheduler has a lower mean completion time: the largest of those that are known."""
        return max(self.alone_seconds, self.squashed_area_seconds, self.programme_seconds or 0.0)

    def as_json(self) -> dict[str, Any]:
        """All of it, and the mean completion time."""
        return {**asdict(self), "mean_jct_seconds": self.mean_jct_seconds}


def bound(trace: Trace, options: Options, *, programme: bool = True) -> Bound:
    """Of any scheduler, with the stops of these options: each job stops at least at its first start. Without the linear
    `programme` it takes a moment, and is not as near.

    Raises:
        BadTrace: a job has no size that fits, or there is no bound for its kind.
        TooManySizes: without the programme it would not take a moment.
    """
    start_seconds = 0.0 if options.restart_spread else options.restart_seconds
    most_sizes = math.inf if programme else _MOST_SIZES + _SIZES_OF_A_JOB * len(trace.jobs)
    needs = needs_of(trace, start_seconds, most_sizes)
    alone = sum(need.trains_from + need.work.shortest - need.submitted_at for need in needs)
    makespan, area = least_makespan(needs), squashed_area(needs)
    small = programme and len(needs) <= MOST_JOBS
    times, grid = _times(needs, makespan) if small else ([], np.zeros(0))
    count = len(needs)
    return Bound(
        trace=trace.name,
        jobs=count,
        alone_seconds=alone / count,
        squashed_area_seconds=area / count,
        programme_seconds=_least_sum(times, needs, grid) / count if small else None,
        makespan_seconds=makespan,
        deadlines_met=_most_in_time(needs, times, grid),
        start_seconds=start_seconds,
    )


def _times(needs: Sequence[Need], makespan: float) -> tuple[list[JobTimes], FloatArray]:
    grid = _grid(needs, makespan)
    sizes = {id(need.work): Sizes.of(need.work) for need in needs}
    return [JobTimes.on(need, sizes[id(need.work)], grid) for need in needs], grid


def _grid(needs: Sequence[Need], makespan: float) -> FloatArray:
    """(intervals + 1,) edges; the last interval is the time after every end, when the cluster is free of charge."""
    first, last = needs[0].submitted_at, max(need.trains_from for need in needs)
    after = max(1.4 * makespan - (last - first), 0.2 * makespan, 1.0)
    arriving = np.linspace(first, last, _WHILE_ARRIVING + 1) if last > first else np.array([first])
    growing = last + after * np.cumsum(np.linspace(1.0, 4.0, _AFTERWARDS)) / np.linspace(1.0, 4.0, _AFTERWARDS).sum()
    due = [need.deadline_at for need in needs if need.deadline_at is not None]
    places = np.linspace(0.0, 1.0, min(len(due), _DEADLINES))
    ends = np.quantile(due, places, method="nearest") if due else np.zeros(0)
    longest = max(max(need.work.shortest, (need.deadline_at or 0.0) - need.submitted_at) for need in needs)
    after_all = max([growing[-1], *ends]) + 2.0 * longest + 1.0
    return np.unique(np.concatenate([arriving, growing, ends, [after_all]]))


# --- completion times ------------------------------------------------------------------------------------------------


def _least_sum(jobs: Sequence[JobTimes], needs: Sequence[Need], grid: FloatArray) -> float:
    lengths = np.diff(grid)

    def value(prices: FloatArray) -> float:
        return sum(job.soonest(prices).least for job in jobs) - float((lengths[:, None] * prices).sum())

    resources = needs[0].work.usage.shape[1]
    begins = [_crowd(needs, grid, np.eye(resources))]
    begins += [_crowd(needs, grid, weights[None]) for weights in mixes(needs)[1:]]
    begin = max((scale * begin for begin in begins for scale in _SCALES), key=value)
    return best_prices(jobs, lengths, begin, JobTimes.soonest, ceiling=2.0 * len(jobs))


def _crowd(needs: Sequence[Need], grid: FloatArray, machines: FloatArray) -> FloatArray:
    """(intervals, resources) jobs that are left on one machine that does the cluster's work: what a second is worth,
    as each of them would end so much earlier. Of several `machines`, (machines, resources) weights, the sum.
    """
    order = sorted(needs, key=lambda need: need.trains_from)
    prices = np.zeros((len(grid) - 1, machines.shape[1]))
    middles = (grid[:-1] + grid[1:]) / 2
    for weights in machines:
        areas = [need.work.least_area(weights) for need in order]
        begins = [need.trains_from for need in order]
        ends = one_machine(begins, areas)
        left = np.zeros(len(middles))
        for begin, end, area in zip(begins, ends, areas, strict=True):
            left += (middles >= begin) & (middles < end) & (area > 0)
        prices += left[:, None] * weights[None, :]
    prices[-1] = 0.0
    return prices


# --- deadlines -------------------------------------------------------------------------------------------------------


def _most_in_time(needs: Sequence[Need], jobs: Sequence[JobTimes], grid: FloatArray) -> float | None:
    """The largest part of deadlines that can be met; by jobs alone where there is no programme."""
    due = [need for need in needs if need.deadline_at is not None]
    if not due:
        return None
    possible = sum(need.trains_from + need.work.shortest <= (need.deadline_at or 0.0) + 1e-6 for need in due)
    if jobs:
        ceiling = 1.0 / min(_smallest_area(need) for need in due)
        free = np.zeros((len(grid) - 1, due[0].work.usage.shape[1]))
        missed = best_prices(jobs, np.diff(grid), free, JobTimes.in_time, ceiling=ceiling)
        possible = min(possible, math.floor(len(due) - missed + 1e-6))
    return possible / len(due)


def _smallest_area(need: Need) -> float:
    """Of the resource that it takes most of, in seconds of the whole."""
    resources = need.work.usage.shape[1]
    return max(max(need.work.least_area(row) for row in np.eye(resources)), 1e-9)
