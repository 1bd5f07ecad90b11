"""The figures that tables show: their titles and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple


class Figure(NamedTuple):
    """One column of a table."""

    name: str
    """Key in `Outcome.figures`."""
    title: str
    write: Callable[[float], str]


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


FIGURES = (
    Figure("mean_jct_seconds", "mean JCT s", _whole),
    Figure("p50_jct_seconds", "p50 JCT s", _whole),
    Figure("p99_jct_seconds", "p99 JCT s", _whole),
    Figure("makespan_seconds", "makespan s", _whole),
    Figure("restarts_per_job", "restarts/job", _two_digits),
    Figure("utilisation", "utilisation", _percent),
    Figure("useful_utilisation", "training", _percent),
    Figure("fairness_p90", "ρ p90", _two_digits),
    Figure("fairness_worst", "ρ worst", _two_digits),
    Figure("deadlines_met", "deadlines met", _percent),
)


def figures_among(names: Collection[str]) -> tuple[Figure, ...]:
    """Those that there are values for: not every trace has deadlines."""
    return tuple(figure for figure in FIGURES if figure.name in names)
