"""How noisy the gradients are: |G|² and tr(Σ), from the gradients of a small and of a large batch at the same point.

With mean gradients g of b and of B examples, E|g|² = |G|² + tr(Σ)/b and likewise for B, so

    |G|² ≈ (B·|g_B|² − b·|g_b|²) / (B − b)        tr(Σ) ≈ (|g_b|² − |g_B|²) / (1/b − 1/B)

are unbiased; each is averaged over steps before their quotient, the noise scale in examples, is taken (McCandlish et
al. 2018, An Empirical Model of Large-Batch Training, appendix A.1). Here B is the global batch, and b one micro-batch,
or among several workers of an all-reduce job one worker's share. In mode async there is no global batch, but each push
is of one mini-batch whose parts are computed with the same parameters, however old these are: B is that mini-batch, and
b the first of two parts of it. Pushes of different parameters are never compared: how far these have moved would be
taken for noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Gradients
from optimus_workers.wire.values import TaskProfile

PERIOD = 20
"""Steps from one measurement to the next; what it costs is in docs/gradients.md."""
ELASTIC_PERIOD = 10
"""... of a job with an elastic batch, which depends on them ..."""
ELASTIC_LEAST = 5
"""... and so many of its measurements make the first estimate: one alone errs by a factor."""
DECAY = 0.95
"""Decay of the moving averages, per measurement."""
UNIT_DECAY = 0.8
"""Decay of the unit that the measurements of an elastic batch are in."""


class GradientStatistics:
    """The estimates of one worker. A step: `begin`, `micro_batch_done` after each micro-batch, `step_done`."""

    def __init__(self, period: int, *, is_elastic: bool = False) -> None:
        """`period`: in steps; 0: nothing is ever measured. `is_elastic`: a batch is chosen by the estimates."""
        self._period = period
        self._is_elastic = is_elastic
        self._n_measured = 0
        self._examples = 0.0
        """Examples that the averages are of, faded like them."""
        self._small: tuple[float, float] | None = None
        self._share: tuple[int, float] | None = None
        self._weight = 0.0
        self._square = 0.0
        self._variance = 0.0
        self._unit: float | None = None
        """With an elastic batch, what a measurement is divided by: |g|² of the few before it. Gradients are ten times
        as large at the beginning: undivided, these measurements would outweigh all others for a thousand steps."""

    @property
    def estimates(self) -> Gradients | None:
        """Moving averages of the estimates, which may be negative while noise hides them; None: none yet.

        With an elastic batch |G|² is at least tr(Σ)/n, n the examples measured: n examples cannot show less than that.
        Where noise hides |G|² a larger batch is needed most, and shows more.
        """
        if not self._weight or (self._is_elastic and self._n_measured < ELASTIC_LEAST):
            return None
        unit = self._unit or 1.0
        square, variance = unit * self._square / self._weight, unit * self._variance / self._weight
        if self._is_elastic:
            square = max(square, variance / self._examples)
        return Gradients(square=square, variance=variance)

    @property
    def noise_scale(self) -> float | None:
        """tr(Σ)/|G|² in examples; None: not known."""
        estimates = self.estimates
        if estimates is None or estimates.square <= 0 or estimates.variance <= 0:
            return None
        scale = estimates.variance / estimates.square
        return scale if math.isfinite(scale) else None

    def measures(self, step: int) -> bool:
        """Whether this step is one of those that are measured."""
        return self._period > 0 and step % self._period == 0

    def begin(self, step: int, n_examples: int, weight: float) -> None:
        """The small batch of a step is going to be computed: its examples, its share of the batch."""
        self._share = (n_examples, weight) if self.measures(step) and weight > 0 else None
        self._small = None

    def micro_batch_done(self, square_of: Callable[[], float]) -> None:
        """`square_of`: |sum of the weighted gradients so far|²."""
        if self._share is not None and self._small is None:
            n_examples, weight = self._share
            self._small = n_examples, square_of() / weight**2

    def parts_done(self, squares: float, inverses: float, n_parts: float) -> None:
        """Instead of micro-batches, all parts of a measured step: sums of their |mean gradient|², 1 / examples, 1."""
        self._small = (n_parts / inverses, squares / n_parts) if n_parts else None

    def step_done(self, large_square: float | None, batch_size: int) -> None:
        """|gradient of the whole batch|², if this worker has it."""
        small, self._small = self._small, None
        if small is None or large_square is None or small[0] >= batch_size:
            return
        n_examples, small_square = small
        square = (batch_size * large_square - n_examples * small_square) / (batch_size - n_examples)
        variance = (small_square - large_square) / (1 / n_examples - 1 / batch_size)
        if math.isfinite(square) and math.isfinite(variance):
            size = (n_examples * small_square + batch_size * large_square) / (n_examples + batch_size)
            unit = self._unit or size
            if not self._is_elastic:
                unit = 1.0
            elif size > 0:
                # Of this measurement it would be the larger where noise is large, and hide it.
                self._unit = unit + (1 - UNIT_DECAY) * (size - unit)
            else:
                return  # no gradient at all
            self._n_measured += 1
            self._examples = DECAY * self._examples + batch_size
            self._weight = DECAY * self._weight + 1 - DECAY
            self._square = DECAY * self._square + (1 - DECAY) * square / unit
            self._variance = DECAY * self._variance + (1 - DECAY) * variance / unit


def period_of_spec(spec: JobSpec) -> int:
    """The steps from one measurement of a job to the next; 0: nothing is measured. An elastic batch needs them."""
    if spec.elastic_batch is not None:
        return ELASTIC_PERIOD
    return PERIOD if spec.gradient_statistics else 0


def period_of(profile: TaskProfile, rank: int) -> int:
    """In steps; worker 0 measures. Sync, the servers send it the whole batch's square; async, it has its own."""
    return 0 if rank else profile.gradient_period
