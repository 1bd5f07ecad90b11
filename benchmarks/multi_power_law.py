"""The multi-power law, a loss curve that follows from the learning rates of a run, to compare ours with.

    l(k) = l0 + a·(1 + S(k)/w)^-α - a·b·Σ_i (η_(i-1) - η_i)·G(S(k) - S(i), η_i),  G(x, η) = 1 - (c·x·η^-γ + 1)^-β

with learning rates η by step, their sum S(k), and a sum over the changes i up to k. Rates are in units of the highest
one, S in units of its value at the end of the plan. α, w, b, c, β and γ are the `Shape`; l0 and a >= 0 then are linear
least squares. The paper fits all to two or three whole runs of a model; a prefix with a constant rate says nothing of
b, c, β and γ. Here a shape is first that of all runs of other sources, then that of the finished runs of the family,
if any, then that of the prefix, each beside a belief in the one before.

References: Luo et al., "A multi-power law for loss curve prediction across learning rate schedules", ICLR 2025,
arXiv 2503.12811. Differences: squares of errors instead of Huber's loss of logarithms, changes of a warm-up are left
out, b is relative to a (so that runs of different sizes can share it), and the curve is moved through the last losses,
as ours is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from benchmarks.known_runs import schedule_of
from benchmarks.training_logs import Curve, FloatArray
from scipy.optimize import least_squares

from optimus_models import RateSchedule

Shape = FloatArray
"""(6,) logarithms of α, w, b, c, β and γ."""
START: Shape = np.log([0.5, 0.02, 0.2, 20.0, 0.6, 0.6])
"""Round numbers, before anything is fitted."""
DOUBT = 1.5
"""Standard deviation of each logarithm round the belief before ..."""
RESIDUAL = 0.005
"""... where the root mean squared residual of a run is this part of its largest loss."""
POINTS = 60
"""Points of one run that a fit uses."""
RECENT = 0.09
"""The curve is moved through the mean of this last part of the points."""


class _Plan(NamedTuple):
    """The learning rates of a run, in units of its own highest; the sums in steps."""

    steps: FloatArray
    sums: FloatArray
    changes: FloatArray
    """η before - η after, where it changes, ..."""
    at: FloatArray
    """... the sum there, ..."""
    after: FloatArray
    """... and η after it."""

    @classmethod
    def of(cls, schedule: RateSchedule) -> _Plan:
        steps = np.append(0.0, schedule.steps)
        sums = np.append(0.0, np.cumsum(np.diff(steps) * schedule.shares))
        changes = -np.diff(schedule.shares)
        changing = np.flatnonzero(np.abs(changes) > 1e-9)
        after = np.maximum(schedule.shares[1:], 1e-3)
        return cls(steps, sums, changes[changing], sums[2:][changing], after[changing])


@dataclass(frozen=True)
class _Run:
    """One run, or its prefix: losses (n,) in units of the largest, at these sums (n,)."""

    plan: _Plan
    unit: float
    """The sum that counts 1."""
    at: FloatArray
    losses: FloatArray

    @classmethod
    def of(cls, curve: Curve, n: int, unit: float | None = None) -> _Run:
        schedule = schedule_of(curve)
        assert schedule is not None  # only curves with rates are asked
        plan = _Plan.of(schedule)
        kept = np.unique(np.linspace(0, n - 1, POINTS).round().astype(int))
        at = np.interp(curve.steps[kept], plan.steps, plan.sums)
        losses = curve.losses[:n] / np.max(np.abs(curve.losses[:n]))
        return cls(plan, unit or float(plan.sums[-1]), at, losses[kept])

    def basis(self, shape: Shape, sums: FloatArray) -> FloatArray:
        """(p,) what a is multiplied with, at `sums` (p,)."""
        alpha, width, b, c, beta, gamma = np.exp(np.clip(shape, -9.0, 9.0))
        beyond = np.maximum(sums[:, None] - self.plan.at, 0.0) / self.unit
        gained = 1.0 - (c * beyond * self.plan.after ** -min(gamma, 9.0) + 1.0) ** -beta
        return np.asarray((1.0 + sums / self.unit / width) ** -alpha - b * (gained @ self.plan.changes))

    def line(self, shape: Shape) -> tuple[float, float]:
        """l0 and a >= 0."""
        basis = self.basis(shape, self.at)
        apart, loss = basis - basis.mean(), self.losses.mean()
        a = max(float(apart @ self.losses) / max(float(apart @ apart), 1e-12), 0.0)
        level = float(loss - a * basis.mean())
        if level >= 0:
            return level, a
        return 0.0, max(float(basis @ self.losses) / max(float(basis @ basis), 1e-12), 0.0)

    def residuals(self, shape: Shape) -> FloatArray:
        level, a = self.line(shape)
        return np.asarray(level + a * self.basis(shape, self.at) - self.losses)


def _fitted_shape(runs: Sequence[_Run], around: Shape) -> Shape:
    """The shape of all `runs` together, beside a belief `around`."""

    def residuals(shape: Shape) -> FloatArray:
        parts = [run.residuals(shape) / (RESIDUAL * np.sqrt(len(run.at))) for run in runs]
        return np.concatenate([*parts, (shape - around) / DOUBT])

    return np.asarray(least_squares(residuals, around, loss="soft_l1", max_nfev=40).x)


def shape_elsewhere(curves: Sequence[Curve], source: str) -> Shape:
    """The one shape of the whole runs of all other sources."""
    return _fitted_shape([_Run.of(each, len(each.losses)) for each in curves if each.source != source], START)


@dataclass(frozen=True)
class MultiPowerLaw:
    """A fitted law."""

    run: _Run
    shape: Shape
    moved: float
    """Mean of the last losses over what the law says of them."""
    noise: float
    scale: float

    @classmethod
    def fit(cls, curve: Curve, n: int, known: Sequence[Curve], around: Shape) -> MultiPowerLaw:
        """The first `n` points of `curve`, whose rates are known; `known`: finished runs whose rates are."""
        run = _Run.of(curve, n)
        if known:
            around = _fitted_shape([_Run.of(each, len(each.losses), run.unit) for each in known], around)
        shape = _fitted_shape([run], around)
        residuals = run.residuals(shape)
        moved = -float(residuals[-max(2, round(RECENT * len(residuals))) :].mean())
        return cls(run, shape, moved, float(residuals.std()), float(np.max(np.abs(curve.losses[:n]))))

    def predict(self, steps: FloatArray) -> FloatArray:
        level, a = self.run.line(self.shape)
        at = np.interp(steps, self.run.plan.steps, self.run.plan.sums)
        return np.asarray(self.scale * np.maximum(level + a * self.run.basis(self.shape, at) + self.moved, 0.0))

    def predict_interval(self, steps: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Twice the residuals: the paper gives none."""
        mean = self.predict(steps)
        return mean - 2.0 * self.scale * self.noise, mean + 2.0 * self.scale * self.noise
