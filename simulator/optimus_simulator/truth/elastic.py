"""All-reduce jobs whose batch is chosen, by laws: what our own traces describe.

A step of w workers is `passes` gradients of m examples and an exchange; its worth in steps with the smallest batch is
the gain of `optimus_models.speed.goodput`. The noise scale grows geometrically over the job.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq

from optimus_models.speed.goodput import ElasticBatch, cut
from optimus_simulator.truth.truth import AllReduceLaw, Shape, TrainingByLaws, size_of


@dataclass(frozen=True, slots=True)
class ElasticTruth:
    """A job of `total_steps` steps with its smallest batch."""

    total_steps: float
    law: AllReduceLaw
    """Of `batch`."""
    batch: int
    """The one that it has where none is chosen, in examples."""
    limits: ElasticBatch
    noise: tuple[float, float]
    """tr(Σ)/|G|² in examples at the beginning and at the end, above 0."""
    loss_law: Callable[[float], float] | None = None
    """Of the epoch."""
    epoch_steps: float | None = None
    crossing_factor: float = 1.0
    """Speed that is left of a job on several nodes, in (0, 1]."""

    def begin(self) -> ElasticTraining:
        return ElasticTraining(self)

    def steps_per_second(self, shape: Shape) -> float:
        if size_of(shape)[0] < 1:
            return 0.0
        return 1.0 / self.step_parts(shape, self.batch)[0]

    def oracle_speed(self, workers: int, servers: int) -> float:
        return self.steps_per_second(self.fastest(workers, servers))

    def fastest(self, workers: int, servers: int) -> Shape:
        return ((workers, servers),)

    def step_parts(self, shape: Shape, batch: int) -> tuple[float, float]:
        """Seconds of a step, and of its exchange."""
        workers, _ = size_of(shape)
        passes, local = self._cut(workers, batch)
        computing = passes * (self.law.pass_seconds + self.law.compute_seconds * local / self.batch)
        whole = computing + self.law.exchange_seconds * (workers - 1) / workers
        if len(shape) > 1:
            whole /= self.crossing_factor
        return whole, whole - computing

    def in_effect(self, workers: int, batch: int) -> int:
        """The examples of a step: all passes of all workers are equal."""
        passes, local = self._cut(workers, batch)
        return passes * local * workers

    def noise_at(self, step: float) -> float:
        """The noise scale, in examples."""
        first, last = self.noise
        return float(first * (last / first) ** min(step / self.total_steps, 1.0))

    def updates(self, step: float, batch: int) -> float:
        """Steps with `batch` examples that it takes to come from nothing to `step`: the integral of 1/gain.

        With N = a·exp(c·step) the noise scale, M the smallest batch, B the batch: 1/gain = M/B + (1 - M/B)/(1 + N/M).
        """
        smallest, (first, last) = self.limits.minimum, self.noise
        growth = math.log(last / first) / self.total_steps
        noisy = math.log1p(self.noise_at(step) / smallest) - math.log1p(first / smallest)
        useful = step - noisy / growth if abs(growth) > 1e-12 else step / (1.0 + first / smallest)
        part = smallest / batch
        return part * step + (1.0 - part) * useful

    def _cut(self, workers: int, batch: int) -> tuple[int, int]:
        found = cut(self.limits, [workers], [batch])
        return int(found.passes[0]), int(found.local[0])


@dataclass(slots=True)
class ElasticTraining(TrainingByLaws):
    """A run of an `ElasticTruth`."""

    truth: ElasticTruth
    step: float = 0.0
    updates: float = 0.0
    batch: int | None = None

    def advance(self, seconds: float, shape: Shape, factor: float = 1.0) -> float:
        needed = self.seconds_left(shape, factor)
        # A hair early counts as the end: the event of the end was computed with the same rounding errors.
        if needed <= seconds + 1e-9 * max(seconds, 1.0):
            self._go_to(self.truth.total_steps, shape)
            return min(needed, seconds)
        if shape:
            done = seconds * factor / self.truth.step_parts(shape, self._target)[0]
            self._go_to(self._step_after(done, shape), shape)
        return seconds

    def seconds_left(self, shape: Shape, factor: float = 1.0) -> float:
        if self.is_done:
            return 0.0
        if size_of(shape)[0] < 1:
            return math.inf
        return self._updates_to(self.truth.total_steps, shape) * self.truth.step_parts(shape, self._target)[0] / factor

    def noise_scale(self) -> float | None:
        return self.truth.noise_at(self.step)

    def exchange_part(self, shape: Shape) -> float | None:
        whole, exchange = self.truth.step_parts(shape, self._target)
        return exchange / whole

    def goodput(self, workers: int, batch: int) -> float:
        truth, examples = self.truth, self.truth.in_effect(workers, batch)
        noise, smallest = truth.noise_at(self.step), truth.limits.minimum
        gain = (1.0 + noise / smallest) / (1.0 + noise / examples)
        return gain / truth.step_parts(truth.fastest(workers, 0), batch)[0]

    @property
    def _target(self) -> int:
        return self.batch or self.truth.batch

    def _updates_to(self, step: float, shape: Shape) -> float:
        examples = self.truth.in_effect(size_of(shape)[0], self._target)
        return self.truth.updates(step, examples) - self.truth.updates(self.step, examples)

    def _step_after(self, updates: float, shape: Shape) -> float:
        """Where so many updates lead to, fewer than it takes to the end."""

        def too_many(step: float) -> float:
            return self._updates_to(step, shape) - updates

        return float(
            brentq(too_many, self.step, self.truth.total_steps, xtol=1e-9 * self.truth.total_steps, rtol=1e-12)
        )

    def _go_to(self, step: float, shape: Shape) -> None:
        self.updates += self._updates_to(step, shape)
        self.step = step
