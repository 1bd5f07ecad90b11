"""What finished runs of similar jobs say about a running one: how their losses went on from where it is now.

A run of the same kind, aligned by step, tells what no history can: when the learning rate will be lowered, and how far
the loss then falls. Each finished run is one more expert beside the fitted curve. It predicts the present loss times
its own ratio (its loss then / its loss at the present step), and counts the more, the more alike the two have gone on
so far. The fitted curve itself has a fixed weight, so that it decides where no run is alike.

Runs of other kinds do not help (docs/models.md), so a prior should hold those of the same family only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray, LossHistory
from optimus_models.loss_batch import LossBatch
from optimus_models.power_mixture import PowerMixture, fit_power_mixtures

MAX_RUNS = 64
"""Runs in one prior; the newest are kept. More only cost time."""

_SAME_PROJECT, _SAME_FAMILY = 15.0, 0.35
"""Weights of a run that went exactly the same way, where the job's own fitted curve has 1. Other people's runs of the
same family alone hardly help, those of the same project very much; measured, see docs/models.md."""
_UNLIKE, _UNLIKE_POWER = 0.15, 2
"""Mean difference in log loss at which a run counts a quarter, and how fast it then counts less."""
_COMPARED = np.linspace(0.15, 1.0, 12)
"""Where two runs are compared, as parts of the present step."""
_HALF_WINDOW = 0.045
"""Losses are means over this part of the step before and after."""
_LARGEST_RISE = 0.3
"""No finished run may predict that the logarithm of the loss rises by more."""
_LEAST_LOSS = 1e-9
"""Normalised losses are not below this when logarithms are taken."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedRun:
    """The losses of a job that has ended; arrays (n,), n >= 1."""

    steps: FloatArray
    losses: FloatArray
    """Normalised and above 0."""
    mixture: PowerMixture
    """How it would have gone on."""
    same_project: bool

    @classmethod
    def of(cls, steps: ArrayLike, losses: ArrayLike, *, same_project: bool = False) -> FinishedRun | None:
        """None without any finite loss. `same_project`: it differs from the running job in details only."""
        history = LossHistory.of(steps, losses)
        if not len(history):
            return None
        batch = LossBatch.of([history])
        return cls(batch.steps[0], batch.losses[0], fit_power_mixtures(batch)[0], same_project)

    def log_loss(self, steps: FloatArray) -> FloatArray:
        """(n,) log of the smoothed loss; beyond its end as its fitted curve goes on."""
        seen = smoothed(self.steps, self.losses, np.minimum(steps, self.steps[-1]))
        beyond = steps > self.steps[-1]
        if not beyond.any():
            return _log(seen)
        end = self.mixture.loss(self.steps[-1:])
        return _log(seen) + np.where(beyond, _log(self.mixture.loss(steps)) - _log(end), 0.0)


@dataclass(frozen=True, slots=True)
class Prior:
    """Finished runs of the same family as a running job."""

    runs: tuple[FinishedRun, ...]

    @classmethod
    def of(cls, runs: Iterable[FinishedRun | None]) -> Prior:
        """The newest (last) of `runs`, without those that are None."""
        return cls(tuple(run for run in runs if run is not None)[-MAX_RUNS:])

    def experts(self, steps: FloatArray, losses: FloatArray) -> Experts | None:
        """Weigh the runs by how they resemble a job with normalised `losses` (n,) at `steps` (n,); None without any."""
        last = float(steps[-1])
        if not self.runs or last <= 0:
            return None
        at = _COMPARED * last
        theirs = np.array([run.log_loss(at) for run in self.runs])  # (r, 12)
        own = _log(smoothed(steps, losses, at))
        unlike = np.mean((theirs - theirs[:, -1:] - own + own[-1]) ** 2, axis=1)
        weights = np.array([_SAME_PROJECT if run.same_project else _SAME_FAMILY for run in self.runs])
        weights /= (1.0 + unlike / _UNLIKE**2) ** _UNLIKE_POWER
        total = weights.sum() + 1.0
        return Experts(self.runs, weights / total, float(1.0 / total), theirs[:, -1], last)


class Experts(NamedTuple):
    """r finished runs with their weights for one running job."""

    runs: tuple[FinishedRun, ...]
    shares: FloatArray
    """(r,) together with `own_share` they sum to 1."""
    own_share: float
    """Weight of the job's own curve."""
    log_present: FloatArray
    """(r,) the log loss of each run at `last_step`."""
    last_step: float

    def ratios(self, steps: FloatArray) -> FloatArray:
        """(r, n) loss at `steps` (n,) relative to the present one; 1 for the past."""
        ahead = np.maximum(steps, self.last_step)
        log_ratio = np.array([run.log_loss(ahead) for run in self.runs]) - self.log_present[:, None]
        return np.asarray(np.exp(np.minimum(log_ratio, _LARGEST_RISE)))


def smoothed(steps: FloatArray, losses: FloatArray, at: FloatArray) -> FloatArray:
    """(m,) means of `losses` (n,) over the points round each of `at` (m,); the nearest point where there are none."""
    total = np.concatenate([[0.0], np.cumsum(losses)])
    gap = 0.5 * float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0
    first = np.searchsorted(steps, at * (1.0 - _HALF_WINDOW) - gap, side="left")
    last = np.searchsorted(steps, at * (1.0 + _HALF_WINDOW) + gap, side="right")
    first = np.minimum(first, len(steps) - 1)
    last = np.maximum(last, first + 1)
    return np.asarray((total[last] - total[first]) / (last - first))


def _log(losses: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(losses, _LEAST_LOSS)))
