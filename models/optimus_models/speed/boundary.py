"""How much slower than told by sizes within a node a job may be once its ring leaves it: a doubt, no prediction.

Within a node gradients travel over its own links, between nodes over the network, and no size within a node says how
much slower that is. So as long as no size of a job was measured beyond, what its model says of such sizes is
divided by e^J, J >= 0. Jumps of jobs of one cluster are alike: J is exponential with an unknown rate whose gamma prior
is weak, so that after n observed jumps it has a Lomax distribution (Pareto's from 0 on):

    P(J > j) = (b / (b + j))^a,   a = 2 + n,   b = 0.9 + the sum of the observed jumps

Decisions go by the mean of the model, which has no jump in it: one that has it made them worse, as sizes that are
believed to be slow are not tried (docs/studies/policies.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray
from optimus_models.speed import half_width

_NODES = 32
"""Values that stand for a distribution, each with the same probability."""


class Jumps(NamedTuple):
    """What is believed of jumps. Before any was observed as of two jobs, the fewest for which there is a mean, whose
    jumps add up to what makes those of the Pollux profiles likeliest (docs/studies/speeds.md)."""

    shape: float = 2.0
    scale: float = 0.9
    """Of the logarithm of a speed."""

    @classmethod
    def after(cls, observed: Sequence[float]) -> Jumps:
        """`observed`: one for each kind of job, at least 0."""
        return cls(_PRIOR.shape + len(observed), _PRIOR.scale + sum(observed))

    def half_width_below(self, without: ArrayLike, coverage: float = 0.8) -> FloatArray:
        """(n,) how far down an interval reaches, in logarithms of the speed, at least as far as `without` a jump (n,).

        It reaches up as far as without one, as there may be none, and holds with probability `coverage`.
        """
        up = np.asarray(without, dtype=np.float64).reshape(-1)
        sigma = up / half_width(coverage)
        jumps = self.scale * (_uniform() ** (-1.0 / self.shape) - 1.0)
        possible = np.sort((sigma[:, None, None] * _normal()[:, None] - jumps).reshape(len(sigma), -1), axis=1)
        above = 1.0 - (possible <= up[:, None]).mean(axis=1)
        below = np.maximum(1.0 - coverage - above, 0.0)
        first = np.minimum((below * possible.shape[1]).astype(np.intp), possible.shape[1] - 1)
        return np.asarray(np.maximum(-possible[np.arange(len(sigma)), first], up))


_PRIOR = Jumps()


class Boundary(NamedTuple):
    """The boundary of a node, as far as it concerns one job."""

    workers: int
    """So many of its workers fit on one node."""
    jumps: Jumps = _PRIOR

    def widened(
        self, without: FloatArray, workers: ArrayLike, most_measured: float, coverage: float = 0.8
    ) -> FloatArray:
        """(n,) how far down the intervals of these `workers` reach, in logarithms of the speed.

        `without`: how far they do if there is no jump. Once so many workers were measured that they left a node
        (`most_measured`), the jump is part of what was measured.
        """
        beyond = np.asarray(workers) > self.workers
        if not beyond.any() or most_measured > self.workers:
            return without
        found = without.copy()
        found[beyond] = self.jumps.half_width_below(without[beyond], coverage)
        return found


@lru_cache(maxsize=1)
def _uniform() -> FloatArray:
    return (np.arange(_NODES) + 0.5) / _NODES


@lru_cache(maxsize=1)
def _normal() -> FloatArray:
    return np.array([NormalDist().inv_cdf(each) for each in _uniform().tolist()])
