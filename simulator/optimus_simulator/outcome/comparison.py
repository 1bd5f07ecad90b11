"""Policies side by side: means over seeds with confidence intervals, and the figures that tables show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from optimus_simulator.bounds.bound import MOST_JOBS
from optimus_simulator.outcome.outcome import OF_JOBS_THAT_RAN, Outcome, deadline_answers, time_left


class Column(NamedTuple):
    """One column of a table."""

    name: str
    """Key in `Outcome.figures`."""
    title: str
    write: Callable[[float], str]

    def cell(self, figures: Mapping[str, Estimate], spread: str = " ± {}") -> str:
        """The mean, and with several seeds what it may be off, as `spread` says it; `—`: there is none."""
        found = figures.get(self.name)
        if found is None:
            return "—"
        return self.write(found.mean) + (spread.format(self.write(found.half_width)) if found.half_width else "")


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


COLUMNS = (
    Column("mean_jct_seconds", "mean JCT s", _whole),
    Column("p50_jct_seconds", "p50 JCT s", _whole),
    Column("p99_jct_seconds", "p99 JCT s", _whole),
    Column("makespan_seconds", "makespan s", _whole),
    Column("restarts_per_job", "restarts/job", _two_digits),
    Column("utilisation", "utilisation", _percent),
    Column("useful_utilisation", "training", _percent),
    Column("fairness_p90", "ρ p90", _two_digits),
    Column("fairness_worst", "ρ worst", _two_digits),
    Column("deadlines_met", "deadlines met", _percent),
    Column("above_bound", "JCT above bound", _percent),
    Column("makespan_above_bound", "makespan above bound", _percent),
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and the half-width of its 95 % confidence interval; 0 with one seed."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        n = len(values)
        mean = float(np.mean(values))
        if n < 2:
            return cls(mean, 0.0)
        return cls(mean, float(stdtrit(n - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(n))


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """All runs of one policy."""

    policy: str
    outcomes: tuple[Outcome, ...]
    figures: dict[str, Estimate]


IN_SENTENCES = ("above_bound", "makespan_above_bound")
"""Figures that `possible` tells."""


def columns_among(results: Sequence[PolicyResult]) -> tuple[Column, ...]:
    """Those of jobs that ran, and others that there are values for of any of these: not every trace has deadlines, and
    where a policy drops jobs its figures are compared with no bound."""
    found = {name for result in results for name in result.figures} | set(OF_JOBS_THAT_RAN)
    return tuple(column for column in COLUMNS if column.name in found)


def compare(outcomes: Sequence[Outcome]) -> list[PolicyResult]:
    """One result per policy, in the order of their first appearance."""
    results = []
    for policy in dict.fromkeys(outcome.policy for outcome in outcomes):
        runs = tuple(outcome for outcome in outcomes if outcome.policy == policy)
        figures = [outcome.figures() for outcome in runs]
        names = [name for name in figures[0] if all(name in each for each in figures)]
        estimates = {name: Estimate.of([figure[name] for figure in figures]) for name in names}
        results.append(PolicyResult(policy, runs, estimates))
    return results


_NONE: Mapping[str, float | None] = MappingProxyType(dict.fromkeys(OF_JOBS_THAT_RAN))


def as_json(results: Sequence[PolicyResult]) -> dict[str, Any]:
    """The comparison as one JSON document: figures of each policy, and of each of its runs; null: no job ran.
    `no_bound` says why it is compared with none.
    """
    return {
        "trace": results[0].outcomes[0].trace,
        "policies": [
            {
                "policy": result.policy,
                "seeds": [outcome.seed for outcome in result.outcomes],
                "figures": {**_NONE, **{name: estimate.mean for name, estimate in result.figures.items()}},
                "confidence_95": {**_NONE, **{name: estimate.half_width for name, estimate in result.figures.items()}},
                "runs": [{**_NONE, **outcome.figures()} for outcome in result.outcomes],
                "time_left": time_left(result.outcomes),
                **_answers(result),
                **_bounds(result),
            }
            for result in results
        ],
    }


def _answers(result: PolicyResult) -> dict[str, Any]:
    """How true the answers to deadlines were, where they were given."""
    found = deadline_answers(result.outcomes)
    return {"deadline_answers": found} if any(found.values()) else {}


def _bounds(result: PolicyResult) -> dict[str, Any]:
    """What no scheduler can do better than, run by run."""
    bounds = [outcome.bound.as_json() for outcome in result.outcomes if outcome.bound]
    why = _why_without_bound(result)
    return ({"bounds": bounds} if bounds else {}) | ({"no_bound": why} if why else {})


# --- how far from what is possible -----------------------------------------------------------------------------------


def possible(results: Sequence[PolicyResult]) -> list[str]:
    """How far each policy is from what no scheduler can do better than, or why that is not known; and what would say it
    more exactly.
    """
    whys = {result.policy: _why_without_bound(result) for result in results}
    lines = [_distance(result) for result in results if not whys[result.policy]]
    if len(set(whys.values())) == 1:
        lines += [f"Not compared with what is possible: {why}." for why in set(whys.values()) if why]
    else:
        lines += [f"{policy}: not compared with what is possible: {why}." for policy, why in whys.items() if why]
    lines += _deadlines(results)
    bounds = [each.bound for result in results for each in result.outcomes if each.bound]
    if any(each.programme_seconds is None and each.jobs <= MOST_JOBS for each in bounds):
        lines.append(_SIMPLE)
    return lines


_SIMPLE = "These are simple bounds. With --bound a linear programme gives nearer ones, in half a minute for 160 jobs."


def _distance(result: PolicyResult) -> str:
    least = [outcome.bound.mean_jct_seconds for outcome in result.outcomes if outcome.bound]
    jct, makespan = (_share(result.figures[name].mean) for name in IN_SENTENCES)
    return (
        f"{result.policy}: mean JCT within {jct} of what is possible (no scheduler is below {np.mean(least):,.0f} s), "
        f"makespan within {makespan}"
    )


def _deadlines(results: Sequence[PolicyResult]) -> list[str]:
    """The most that can be met, once where it is the same for all."""
    met = {result.policy: _most_met(result) for result in results}
    said = {
        policy: f"no scheduler meets more than {most:.1%} of the deadlines"
        for policy, most in met.items()
        if most is not None
    }
    if len(said) == len(results) and len(set(said.values())) == 1:
        return [f"N{next(iter(said.values()))[1:]}."]
    return [f"{policy}: {words}." for policy, words in said.items()]


def _most_met(result: PolicyResult) -> float | None:
    found = [each.bound.deadlines_met for each in result.outcomes if each.bound]
    known = [each for each in found if each is not None]
    return float(np.mean(known)) if known and len(known) == len(result.outcomes) else None


def _share(value: float) -> str:
    return f"{0.0 if abs(value) < 5e-4 else value:.1%}"  # rounding may leave less than nothing, written as -0.0%


def _why_without_bound(result: PolicyResult) -> str:
    """Empty where it is compared with a bound."""
    if any(job.dropped for outcome in result.outcomes for job in outcome.jobs):
        return "it declined jobs, and the bound is one of all jobs"
    unknown = [outcome.no_bound or "no bound was asked for" for outcome in result.outcomes if outcome.bound is None]
    if unknown:
        return unknown[0]
    known = set(IN_SENTENCES) <= set(result.figures)
    return "" if known else "its jobs take no time"
