"""Measured all-reduce jobs: step times by placement and statistical efficiency by epoch (the Pollux profiles).

A job trains with a fixed target batch, or with one that is set from outside. Its progress is counted in
*scale-invariant iterations*: what one step at the application's initial batch achieves. An epoch ends when its progress
is reached.

References: Qiao et al., "Pollux", OSDI 2021, sections 3 and 5.3, and the files of its artifact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from optimus_simulator.truth.truth import Shape

FloatArray = NDArray[np.float64]

MAX_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""Epochs that each application trains for."""
MAX_LOCAL_BATCH = {"yolov3": 8}
"""Local batches that do not fit in memory although they were measured for fewer."""
GPUS_PER_NODE = 4
"""Of the cluster that was measured."""
_MOST_NODES = 16
"""Measured placements end here; more nodes are taken for so many."""
_ROUNDING = 1e-8
"""Taken off before every ceiling, so that 4.0000000001 counts as 4."""


@dataclass(frozen=True, slots=True)
class Batch:
    """How a target batch is cut for one number of replicas."""

    atomic: int
    """Examples that one replica computes at once."""
    accumulation: int
    """Further such computations before gradients are exchanged."""
    replicas: int

    @property
    def effective(self) -> int:
        return self.replicas * self.atomic * (self.accumulation + 1)


@dataclass(frozen=True)
class Application:
    """One application's measurements."""

    name: str
    batches: FloatArray
    """(b,) batches with a validation file, rising."""
    iterations: FloatArray
    """(b, e) steps done at the end of each epoch."""
    grad_sqr: FloatArray
    """(b, e) squared norm of the gradient ..."""
    grad_var: FloatArray
    """... and its variance, at each epoch."""
    epoch_progress: FloatArray
    """(e,) progress at which each epoch ends."""
    min_local: int
    max_local: int
    placements: dict[tuple[int, ...], tuple[FloatArray, FloatArray]]
    """Placement → local batches (m,), step and synchronisation time (m, 2)."""
    grid: tuple[FloatArray, FloatArray]
    """(nodes, replicas, local batch) (g, 3) and step and synchronisation time (g, 2)."""
    _gains: dict[int, FloatArray] = field(default_factory=dict, repr=False, compare=False)
    _seconds: dict[tuple[tuple[int, ...], Batch], tuple[float, float]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def max_epochs(self) -> int:
        return MAX_EPOCHS[self.name]

    @property
    def initial_batch(self) -> int:
        return int(self.batches[0])

    @property
    def max_batch(self) -> int:
        return int(self.batches[-1])

    def cut(self, target: int, replicas: int, *, as_oracle: bool = False) -> Batch:
        """How `replicas` share the target batch. The oracle of the published runs accumulates on one GPU always."""
        local = math.ceil(target / replicas - _ROUNDING)
        accumulation = math.ceil(local / self.max_local - _ROUNDING) - 1
        if replicas == 1 and (as_oracle or target > self.initial_batch):
            accumulation = max(accumulation, 1)
        atomic = math.ceil(local / (accumulation + 1) - _ROUNDING)
        most = self.max_batch // (replicas * (accumulation + 1))
        return Batch(min(atomic, most), accumulation, replicas)

    def step_seconds(self, placement: tuple[int, ...], batch: Batch) -> float:
        """A whole step with its accumulation, GPUs per node in `placement`."""
        return self.step_parts(placement, batch)[0]

    def step_parts(self, placement: tuple[int, ...], batch: Batch) -> tuple[float, float]:
        """Seconds of a whole step, and those of its synchronisation."""
        if (placement, batch) not in self._seconds:
            step, synchronisation = self._measured(smallest_rotation(placement), batch.atomic)
            whole = step + batch.accumulation * (step - synchronisation)
            self._seconds[placement, batch] = whole, synchronisation
        return self._seconds[placement, batch]

    def fastest_step_seconds(self, gpus: int, batch: Batch, most_nodes: int) -> float:
        """A whole step on the fastest of all placements of so many GPUs, measured or not, on at most so many nodes."""
        local = batch.atomic
        measured = [
            self._measured(placement, local)
            for placement in self.placements
            if sum(placement) == gpus and len(placement) <= most_nodes
        ]
        fewest = -(-gpus // GPUS_PER_NODE)
        nodes = range(min(fewest, _MOST_NODES), min(gpus, most_nodes, _MOST_NODES) + 1)
        between = self._between([(float(count), float(gpus), float(local)) for count in nodes]).tolist()
        parts = [*measured, *between]
        return float(min(step + batch.accumulation * (step - exchange) for step, exchange in parts))

    def gains(self, batch: int) -> FloatArray:
        """(e,) progress that one step with this batch makes in each epoch, in steps at the initial batch."""
        if batch not in self._gains:
            scale = batch / self.initial_batch
            sqr, var = self.at_batch(self.grad_sqr, batch), self.at_batch(self.grad_var, batch)
            self._gains[batch] = (var + sqr) / (var / scale + sqr)
        return self._gains[batch]

    def noise_scale(self, batch: int, epoch: int) -> float:
        """tr(Σ)/|G|² in an epoch, in examples; infinite where the gradient was measured to vanish."""
        sqr, var = (float(np.interp(batch, self.batches, table[:, epoch])) for table in (self.grad_sqr, self.grad_var))
        return self.initial_batch * var / sqr if sqr > 0 else math.inf

    def at_batch(self, table: FloatArray, batch: float) -> FloatArray:
        """(e,) a (b, e) table at one batch, linear between the batches that were measured."""
        low = int(np.searchsorted(self.batches, batch, side="right")) - 1
        if low < 0 or low + 1 == len(self.batches) or self.batches[low] == batch:
            return np.array(table[max(low, 0)], dtype=np.float64)
        slope = (table[low + 1] - table[low]) / (self.batches[low + 1] - self.batches[low])
        return np.asarray(slope * (batch - self.batches[low]) + table[low])

    def _measured(self, placement: tuple[int, ...], local: int) -> tuple[float, float]:
        if placement in self.placements:
            batches, times = self.placements[placement]
            return float(np.interp(local, batches, times[:, 0])), float(np.interp(local, batches, times[:, 1]))
        at = (float(min(len(placement), _MOST_NODES)), float(sum(placement)), float(local))
        return self._interpolated(at)

    def _interpolated(self, at: tuple[float, float, float]) -> tuple[float, float]:
        step, synchronisation = self._between([at])[0]
        return float(step), float(synchronisation)

    def _between(self, points: Sequence[tuple[float, float, float]]) -> FloatArray:
        """(p, 2) step and synchronisation times; outside of everything that was measured those that are nearest."""
        times = np.asarray(self._linear(points), dtype=np.float64)
        outside = np.isnan(times[:, 0])
        if outside.any():
            times[outside] = self._nearest(np.asarray(points)[outside])
        return times

    @cached_property
    def _linear(self) -> LinearNDInterpolator:
        """Made when first needed: triangulating takes a tenth of a second."""
        return LinearNDInterpolator(*self.grid)

    @cached_property
    def _nearest(self) -> NearestNDInterpolator:
        return NearestNDInterpolator(*self.grid, rescale=True)


def smallest_rotation(placement: tuple[int, ...]) -> tuple[int, ...]:
    """A ring has no beginning: the name under which its measurements are kept."""
    return min(placement[i:] + placement[:i] for i in range(len(placement)))


def packed(gpus: int) -> tuple[int, ...]:
    """4, 4, ..., the rest: the fewest nodes."""
    full, rest = divmod(gpus, GPUS_PER_NODE)
    return (GPUS_PER_NODE,) * full + ((rest,) if rest else ())


# --- jobs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProfiledTruth:
    """A job of a measured application with a target batch, from which an elastic one may depart.

    `whole_seconds`: an epoch takes whole seconds, as in the published simulations; progress is never lost by it.
    `quirks`: the oracle errs as the published one does (see `Application.cut`, and its count of remaining steps).
    """

    application: Application
    target_batch: int
    whole_seconds: bool = False
    quirks: bool = False
    elastic: bool = False
    """Its batch may be set, and it counts scale-invariant steps."""
    _rates: dict[tuple[Shape, int], tuple[FloatArray, FloatArray]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _expected: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    def begin(self) -> ProfiledTraining:
        return ProfiledTraining(self)

    def steps_per_second(self, shape: Shape) -> float:
        placement = _gpus(shape)
        if not placement:
            return 0.0
        return 1.0 / self.application.step_seconds(placement, self.application.cut(self.target_batch, sum(placement)))

    def oracle_speed(self, workers: int, servers: int) -> float:
        del servers  # there are none
        if workers not in self._expected:
            batch = self.application.cut(self.target_batch, workers, as_oracle=self.quirks)
            self._expected[workers] = 1.0 / self.application.step_seconds(packed(workers), batch)
        return self._expected[workers]

    def fastest(self, workers: int, servers: int) -> Shape:
        del servers
        return tuple((gpus, 0) for gpus in packed(workers))

    def rates(self, shape: Shape, target: int) -> tuple[FloatArray, FloatArray]:
        """(e,) progress per second and (e,) progress per step in each epoch with a target batch; remembered."""
        if (shape, target) not in self._rates:
            placement = _gpus(shape)
            batch = self.application.cut(target, sum(placement))
            gains = self.application.gains(batch.effective)
            self._rates[shape, target] = gains / self.application.step_seconds(placement, batch), gains
        return self._rates[shape, target]

    @cached_property
    def target_iterations(self) -> FloatArray:
        """(e,) steps done at the end of each epoch with the target batch."""
        return self.application.at_batch(self.application.iterations, self.target_batch)

    @cached_property
    def target_gains(self) -> FloatArray:
        """(e,) progress that a step with the target batch makes in each epoch."""
        return self.application.gains(self.target_batch)


def _gpus(shape: Shape) -> tuple[int, ...]:
    return tuple(workers for workers, _ in shape if workers)


class ProfiledTraining:
    """A run of a `ProfiledTruth`."""

    def __init__(self, truth: ProfiledTruth) -> None:
        self.truth = truth
        self.batch: int | None = None
        self.updates = 0.0
        self.epoch = 0
        """Epochs completed."""
        self.progress = 0.0
        self._gain = 1.0
        """Progress per step, lately."""
        self._ends: list[float] = truth.application.epoch_progress.tolist()

    @property
    def step(self) -> float:
        return self.progress if self.truth.elastic else self.updates

    @property
    def is_done(self) -> bool:
        return self.epoch >= self.truth.application.max_epochs

    @property
    def _target(self) -> int:
        return self.batch or self.truth.target_batch

    def advance(self, seconds: float, shape: Shape, factor: float = 1.0) -> float:
        if not shape:
            return seconds
        rates, gains = self.truth.rates(shape, self._target)
        left = seconds
        while left > 0 and not self.is_done:
            rate, gain = float(rates[self.epoch]) * factor, float(gains[self.epoch])
            end, self._gain = self._ends[self.epoch], gain
            if self.progress + rate * left < end:
                self.updates += rate * left / gain
                self.progress += rate * left
                return seconds
            taken = (end - self.progress) / rate
            self.updates += (end - self.progress) / gain
            self.progress, self.epoch = end, self.epoch + 1
            left -= round(taken) if self.truth.whole_seconds else taken
        return seconds - max(left, 0.0)

    def seconds_left(self, shape: Shape, factor: float = 1.0) -> float:
        if self.is_done:
            return 0.0
        if not shape:
            return math.inf
        rates, _ = self.truth.rates(shape, self._target)
        ends = self.truth.application.epoch_progress[self.epoch :]
        parts = np.diff(ends, prepend=self.progress)
        # A hair late rather than early: the event of the end must find the job at its end.
        return float((parts / rates[self.epoch :]).sum() / factor) * (1.0 + 1e-12) + 1e-9

    def steps_left(self) -> float:
        if self.truth.elastic:
            return max(self._ends[-1] - self.progress, 0.0)
        if self.truth.quirks:
            iterations, last = self.truth.target_iterations, self.truth.application.max_epochs - 1
            return float(iterations[last] - iterations[self.epoch]) if self.epoch < last else 1.0
        gains = self.truth.target_gains[self.epoch :]
        parts = np.diff(self.truth.application.epoch_progress[self.epoch :], prepend=self.progress)
        return float((parts / gains).sum())

    def steps_per_epoch(self) -> float | None:
        """As its efficiency is now: a job knows its noise, not how that will change."""
        if self.truth.elastic:  # a pass over its data with the initial batch, whatever the noise
            return self._ends[-1] / len(self._ends)
        total = self.updates + (self._ends[-1] - self.progress) / self._gain
        return total / len(self._ends)

    def epochs(self) -> float | None:
        """In an epoch, by progress."""
        if self.truth.elastic or self.is_done:
            return None
        begin = self._ends[self.epoch - 1] if self.epoch else 0.0
        return self.epoch + (self.progress - begin) / (self._ends[self.epoch] - begin)

    def loss(self) -> float | None:
        """The profiles have none."""
        return None

    def noise_scale(self) -> float | None:
        if not self.truth.elastic:
            return None
        return self.truth.application.noise_scale(self._target, min(self.epoch, len(self._ends) - 1))

    def exchange_part(self, shape: Shape) -> float | None:
        placement = _gpus(shape)
        batch = self.truth.application.cut(self._target, sum(placement))
        seconds, synchronisation = self.truth.application.step_parts(placement, batch)
        return synchronisation / seconds

    def goodput(self, workers: int, batch: int) -> float:
        placement = packed(workers)
        rates, _ = self.truth.rates(tuple((gpus, 0) for gpus in placement), batch)
        return float(rates[min(self.epoch, len(self._ends) - 1)])
