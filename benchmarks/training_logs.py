"""Loss curves of real runs in a CSV file, and the rule that says when one has converged.

The file has columns curve, source, family, k, loss, lr (lr may be empty).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LEAST_POINTS = 5
"""A prefix has at least so many points."""
SMOOTHED_SHARE = 40
"""The smoothing window is the N-th part of a curve by this number."""
_LEAST_LOGGED = 0.9
"""Share of the points at which a learning rate must be logged."""


@dataclass(frozen=True)
class Curve:
    """One training log."""

    name: str
    source: str
    family: str
    steps: FloatArray
    losses: FloatArray
    rates: FloatArray | None = None
    """Learning rates at `steps`, NaN where not logged; None if hardly ever logged."""

    @property
    def largest(self) -> float:
        return float(np.max(np.abs(self.losses)))

    @property
    def spacing(self) -> float:
        """Mean distance of its steps."""
        return float((self.steps[-1] - self.steps[0]) / (len(self.steps) - 1))


def load_curves(path: Path) -> list[Curve]:
    """All curves of a file, in its order; rows whose loss is empty or no number are NaN."""
    rows: dict[str, list[dict[str, str]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["curve"], []).append(row)
    return [
        Curve(
            name=name,
            source=group[0].get("source", ""),
            family=group[0].get("family", ""),
            steps=np.array([float(row["k"]) for row in group]),
            losses=np.array([float(row["loss"] or "nan") for row in group]),
            rates=_rates(group),
        )
        for name, group in rows.items()
    ]


def _rates(rows: Sequence[Mapping[str, str]]) -> FloatArray | None:
    rates = np.array([float(row.get("lr") or "nan") for row in rows])
    return rates if np.mean(np.isfinite(rates)) >= _LEAST_LOGGED else None


def usable_curves(path: Path) -> list[Curve]:
    """Those whose losses are all finite and that are long enough for a prefix."""
    curves = load_curves(path)
    return [curve for curve in curves if np.all(np.isfinite(curve.losses)) and len(curve.losses) > LEAST_POINTS]


def smoothed(losses: FloatArray) -> FloatArray:
    """Centred moving average of max(3, N/40 made odd) points, narrower at the ends."""
    n = len(losses)
    half = max(3, (n // SMOOTHED_SHARE) | 1) // 2
    total = np.concatenate([[0.0], np.cumsum(losses)])
    here = np.arange(n)
    first, last = np.maximum(here - half, 0), np.minimum(here + half + 1, n)
    means: FloatArray = (total[last] - total[first]) / (last - first)
    return means


def convergence_epoch(losses: FloatArray, largest: float, after: int = 0) -> int | None:
    """The first epoch (counted from 1) beyond `after` at which the rule of the figures holds; None if it never does."""
    fell = np.full(len(losses), np.inf)
    fell[3:] = losses[:-3] - losses[3:]
    small = fell < 0.01 * largest
    holds = small[:-2] & small[1:-1] & small[2:]
    epochs = np.flatnonzero(holds) + 1
    later = epochs[epochs > after]
    return int(later[0]) if len(later) else None
