"""What finished runs of similar jobs say about a running one: how their losses went on from where it is now.

A run of the same kind, aligned by step, tells what no history can: when the learning rate will be lowered, and how far
the loss then falls. Each finished run is one more expert beside the fitted curve. It predicts the present loss times
its own ratio (its loss then / its loss at the present step), and counts the more, the more alike the two have gone on
so far. The fitted curve counts by how well the same fit to the first half of the known losses foretold the second.
Where learning rates are planned, it counts against either that it has seen others than those to come.

Runs of other kinds do not help (docs/studies/models.md), so a prior should hold those of the same family only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray, LossBatch, LossHistory
from optimus_models.loss.mixture import PowerMixture, fit_power_mixtures, near_losses
from optimus_models.loss.rate_schedule import RateSchedule

MAX_RUNS = 64
"""Runs in one prior; the newest are kept. More only cost time."""


class Weighing(NamedTuple):
    """By what runs and the job's own curve count; chosen as docs/studies/models.md says."""

    same_project: float = 15.0
    """Weight of a run of the same project, where the job's own curve and a run that is only of the same family have 1:
    other people's runs hardly help."""
    error: float = 0.15
    """Mean error in log loss at which a run, or the own curve, counts a quarter of that."""
    rate_error: float = 0.4
    """Error in log loss by a rate that will be lowered to 0 where that of a run, or what the own curve saw, is not."""

    def weights(self, squared_errors: FloatArray) -> FloatArray:
        """(...) what is left of a weight of 1 with these mean squared errors."""
        return np.asarray((1.0 + squared_errors / self.error**2) ** -2)


WEIGHING = Weighing()
_COMPARED = np.linspace(0.15, 1.0, 12)
"""Where two runs are compared, as parts of the present step."""
_PREDICTED = slice(5, None)
"""Those in the second half of the run."""
_HALF_WINDOW = 0.045
"""Losses are means over this part of the step before and after."""
_LARGEST_RISE = 0.3
"""No finished run may predict that the logarithm of the loss rises by more."""
_TABLE_STEPS, _TABLE_SPACING, _TABLE_BEYOND = 512, 0.02, 16.0
"""Runs are tabulated at so many steps, 2 % apart (less than the window they are smoothed over), up to so many times the
length of the longest: down to a 1700th of it."""
_LEAST_LOSS = 1e-9
"""Normalised losses are not below this when logarithms are taken."""


@dataclass(frozen=True, slots=True, eq=False)
class FinishedRun:
    """The losses of a job that has ended."""

    history: LossHistory
    batch: LossBatch
    """The same, normalised, in one row."""
    mixture: PowerMixture
    """How it would have gone on."""
    same_project: bool
    end_step: float | None
    schedule: RateSchedule | None
    end_spread: float = 0.0

    @classmethod
    def of(
        cls,
        steps: ArrayLike,
        losses: ArrayLike,
        *,
        same_project: bool = False,
        end_step: float | None = None,
        schedule: RateSchedule | None = None,
        end_spread: float = 0.0,
    ) -> FinishedRun | None:
        """None without any finite loss. `same_project`: it differs from the running job in details only.

        `end_step`: the step at which the rule of the running job ended it, or would have: `end_spread` is the spread of
        its logarithm then; None if another rule or none did.
        `schedule`: its learning rates.
        """
        history = LossHistory.of(steps, losses)
        if not len(history):
            return None
        batch = LossBatch.of([history])
        return cls(history, batch, fit_power_mixtures(batch)[0], same_project, end_step, schedule, end_spread)

    def log_loss(self, steps: FloatArray) -> FloatArray:
        """(n,) log of the smoothed loss; beyond its end as its fitted curve goes on."""
        last = self.batch.steps[0, -1:]
        seen = _log(smoothed(self.batch, np.minimum(steps, last)[None])[0])
        beyond, at_end = (_log(self.mixture.loss_and_spread(k)[0]) for k in (np.maximum(steps, last), last))
        return seen + beyond - at_end


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Finished runs of the same family as a running job, as one table of log losses: many jobs may share one."""

    runs: tuple[FinishedRun, ...]
    _table: FloatArray = field(repr=False)
    """(r, g) log losses of the runs at steps that grow by the same factor ..."""
    _first: float = field(repr=False)
    """... from this logarithm on."""
    weighing: Weighing = WEIGHING

    @classmethod
    def of(cls, runs: Iterable[FinishedRun | None], weighing: Weighing = WEIGHING) -> Prior:
        """The newest (last) of `runs`, without those that are None."""
        kept = tuple(run for run in runs if run is not None)[-MAX_RUNS:]
        longest = max((float(run.batch.steps[0, -1]) for run in kept), default=1.0)
        last = np.log(max(longest, 1.0) * _TABLE_BEYOND)
        first = last - (_TABLE_STEPS - 1) * _TABLE_SPACING
        grid = np.exp(first + _TABLE_SPACING * np.arange(_TABLE_STEPS))
        table = np.array([run.log_loss(grid) for run in kept]).reshape(len(kept), _TABLE_STEPS)
        return cls(kept, table, float(first), weighing)

    def log_losses(self, steps: FloatArray) -> FloatArray:
        """(r, ...) log loss of each run at `steps` (...); before and after the table, as at its ends."""
        place = (np.log(np.maximum(steps, 1e-300)) - self._first) / _TABLE_SPACING
        place = np.clip(place, 0.0, _TABLE_STEPS - 1.001)
        before = place.astype(np.intp)
        share = place - before
        return np.asarray(self._table[:, before] * (1.0 - share) + self._table[:, before + 1] * share)

    def experts(
        self, at: FloatArray, own: FloatArray, missed: FloatArray, schedules: Sequence[RateSchedule | None]
    ) -> list[Experts | None]:
        """Weigh the runs by how they resemble each of j jobs; None for a job without any step.

        `own`: (j, p) log losses of each job at its steps `at` (j, p), the last of which is the present one; `missed`:
        (j,) mean squared error with which its own curve foretold them; `schedules`: its learning rates.
        """
        if not self.runs:
            return [None] * len(at)
        theirs, last = self.log_losses(at), at[:, -1]  # (r, j, p)
        apart = theirs - theirs[:, :, -1:] - own + own[:, -1:]
        own_rates, rates = self._rate_errors(last, schedules)
        kind = np.array([self.weighing.same_project if run.same_project else 1.0 for run in self.runs])
        weights = kind[:, None] * self.weighing.weights(np.mean(apart**2, axis=2) + rates)  # (r, j)
        own_weights = self.weighing.weights(missed + own_rates)
        total = weights.sum(axis=0) + own_weights
        shares, own_shares = weights / total, own_weights / total
        return [
            Experts(self, shares[:, j], float(own_shares[j]), theirs[:, j, -1], float(last[j])) if last[j] > 0 else None
            for j in range(len(at))
        ]

    def _rate_errors(self, last: FloatArray, schedules: Sequence[RateSchedule | None]) -> tuple[FloatArray, FloatArray]:
        """Mean squared errors in log loss, by planned learning rates, of each of j jobs' own curves (j,), which saw the
        past ones, and of the runs (r, j), which had their own."""
        own, theirs = np.zeros(len(last)), np.zeros((len(self.runs), len(last)))
        for j, (step, schedule) in enumerate(zip(last.tolist(), schedules, strict=True)):
            if schedule is not None:
                steps = schedule.planned(step)
                mine = schedule.lowered(steps) - schedule.lowered(last[j])
                known = (run.schedule or schedule for run in self.runs)
                apart = np.array([rates.lowered(steps) - rates.lowered(last[j]) for rates in known]) - mine
                own[j], theirs[:, j] = np.mean(mine**2), np.mean(apart**2, axis=1)
        return self.weighing.rate_error**2 * own, self.weighing.rate_error**2 * theirs


class Experts(NamedTuple):
    """r finished runs with their weights for one running job."""

    prior: Prior
    shares: FloatArray
    """(r,) together with `own_share` they sum to 1."""
    own_share: float
    """Weight of the job's own curve."""
    log_present: FloatArray
    """(r,) the log loss of each run at `last_step`."""
    last_step: float

    @property
    def n_runs(self) -> int:
        return len(self.prior.runs)

    def ratios(self, steps: FloatArray) -> FloatArray:
        """(r, n) loss at `steps` (n,) relative to the present one; 1 for the past."""
        ahead = np.maximum(steps, self.last_step)
        log_ratio = self.prior.log_losses(ahead) - self.log_present[:, None]
        return np.asarray(np.exp(np.minimum(log_ratio, _LARGEST_RISE)))


def experts_of(
    batch: LossBatch, priors: Sequence[Prior | None], schedules: Sequence[RateSchedule | None]
) -> list[Experts | None]:
    """What the finished runs of each job of `batch` say; jobs that share a prior are weighed together."""
    experts: list[Experts | None] = [None] * len(priors)
    rows: dict[int, list[int]] = {}
    for row, prior in enumerate(priors):
        rows.setdefault(id(prior), []).append(row)
    if len(rows) == 1 and priors[0] is None:
        return experts
    at = batch.steps[:, -1:] * _COMPARED  # (j, p)
    own = _log(smoothed(batch, at))
    predicted = _log(near_losses(batch.first_half(), at[:, _PREDICTED], schedules))
    missed = np.mean((predicted - own[:, _PREDICTED]) ** 2, axis=1)
    for same in rows.values():
        prior = priors[same[0]]
        if prior is not None:
            found = prior.experts(at[same], own[same], missed[same], [schedules[row] for row in same])
            for row, each in zip(same, found, strict=True):
                experts[row] = each
    return experts


def smoothed(batch: LossBatch, at: FloatArray) -> FloatArray:
    """(j, m) means of the losses of each row over the points round its steps `at` (j, m); the nearest point if none."""
    steps, losses, inside, counts = batch.steps, batch.losses, batch.inside, batch.counts.astype(np.intp)
    rows = np.arange(len(steps))[:, None]
    gaps = np.sort(np.where(inside[:, 1:], np.diff(steps, axis=1), np.inf), axis=1)
    middle = np.maximum(counts - 2, 0)
    gap = np.zeros(len(steps))
    if gaps.shape[1]:
        gap = 0.25 * (gaps[rows[:, 0], middle // 2] + gaps[rows[:, 0], (middle + 1) // 2])
    gap = np.where(counts > 1, gap, 0.0)[:, None]
    places = np.where(inside, steps, np.inf)[:, None, :]  # (j, 1, n)
    first = (places < (at * (1.0 - _HALF_WINDOW) - gap)[:, :, None]).sum(axis=2)
    last = (places <= (at * (1.0 + _HALF_WINDOW) + gap)[:, :, None]).sum(axis=2)
    first = np.minimum(first, counts[:, None] - 1)
    last = np.maximum(last, first + 1)
    total = np.concatenate([np.zeros((len(steps), 1)), np.cumsum(np.where(inside, losses, 0.0), axis=1)], axis=1)
    return np.asarray((total[rows, last] - total[rows, first]) / (last - first))


def _log(losses: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(losses, _LEAST_LOSS)))
