"""What a dashboard is: sections of panels, and each panel a title, a unit and its expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    """One expression and what its lines are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    about: str = ""
    stacked: bool = False
    width: int = 12
    height: int = 8
    thresholds: tuple[tuple[str, float], ...] = ()
    """Colours from a value on."""
    maximum: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """One page."""

    name: str
    title: str
    about: str
    sections: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[tuple[str, str], ...] = ()
    """Name and the query of its values."""


def quantile(level: float, metric: str, *by: str, where: str = "") -> str:
    labels = ", ".join(("le", *by))
    return f"histogram_quantile({level}, sum by ({labels}) (rate({metric}_bucket{where}{RATE})))"


def stat(title: str, expr: str, unit: str = "short", about: str = "", **more: Any) -> Panel:
    return Panel(title, (Query(expr),), unit, "stat", about, width=more.pop("width", 4), height=4, **more)


def lines(title: str, *queries: tuple[str, str], unit: str = "short", about: str = "", **more: Any) -> Panel:
    return Panel(title, tuple(Query(*query) for query in queries), unit, about=about, **more)
