"""Time, cost and efficiency against the number of workers, from the seconds of one worker's step and arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import nnls

from optimus_models.analytic import DEVICES, ColdStart, NetworkCost, Scheme, count, exchange_seconds
from optimus_models.analytic.networks import CIFAR, cifar_resnet, resnet
from optimus_models.analytic.step_time import DEFAULT_PERCENT_OF_PEAK
from optimus_models.cost import Allocation, Estimate, Prices, TimeAndCost, times_and_costs
from optimus_models.speed.servers import SpeedModel
from optimus_models.study.runs import Run


class Setting(NamedTuple):
    """What a job runs with."""

    batch_size: int
    """Global batch size; one worker's with weak scaling."""
    examples: int
    """Of one epoch."""
    gradient_bytes: float
    bytes_per_second: float
    """Each way, per node."""
    prices: Prices
    latency_seconds: float = 50e-6

    @property
    def steps_per_epoch(self) -> int:
        return ceil(self.examples / self.batch_size)

    def step_seconds(self, alone_seconds: float, workers: int, servers: int, kind: Literal["strong", "weak"]) -> float:
        """`alone_seconds`: one worker's step with `batch_size` examples, without any exchange.

        Strong scaling shares the batch among the workers; weak scaling gives each the whole. Gradients then go to the
        servers and parameters come back.
        """
        gradient = alone_seconds / workers if kind == "strong" else alone_seconds
        exchange = exchange_seconds(
            Scheme.PARAMETER_SERVER,
            workers,
            self.gradient_bytes,
            bytes_per_second=self.bytes_per_second,
            latency_seconds=self.latency_seconds,
            servers=servers,
        )
        return gradient + exchange


class ScalingPoint(NamedTuple):
    """One number of workers."""

    workers: int
    examples_per_second: float
    epoch_seconds: float
    epoch_cost: float
    efficiency: float
    """Throughput over workers times the throughput of one worker that needs no exchange."""


def time_to_target(
    setting: Setting, epochs: Estimate, alone_seconds: float, gpu: str, workers: Sequence[int], servers: int
) -> tuple[TimeAndCost, ...]:
    """Time and cost of `epochs` epochs with strong scaling, for each number of `workers`."""
    sizes = [Allocation(w, servers, gpu) for w in workers]
    steps = epochs.times(setting.steps_per_epoch)
    return times_and_costs(
        sizes,
        steps,
        lambda size: Estimate.exactly(1.0 / setting.step_seconds(alone_seconds, size.workers, size.servers, "strong")),
        setting.prices,
    )


def scaling(
    setting: Setting,
    alone_seconds: float,
    gpu: str,
    workers: Sequence[int],
    servers: int,
    kind: Literal["strong", "weak"],
) -> list[ScalingPoint]:
    """Throughput, time and cost of one epoch, and efficiency, for each number of `workers`."""
    alone = setting.batch_size / alone_seconds
    points = []
    for w in workers:
        step = setting.step_seconds(alone_seconds, w, servers, kind)
        throughput = setting.batch_size * (w if kind == "weak" else 1) / step
        seconds = setting.examples / throughput
        cost = seconds * setting.prices.per_second(Allocation(w, servers, gpu))
        points.append(ScalingPoint(w, throughput, seconds, cost, throughput / (w * alone)))
    return points


_GIGABIT = 125e6
_IMAGENET_FAMILY = (18, 34, 50)


class ComputeCheck(NamedTuple):
    """One run; seconds per epoch."""

    layers: int
    gpu: str
    measured: float
    by_data_sheet: float
    """With the usual share of the peak speed."""
    calibrated: float | None
    """With the share of the peak and the time per layer that fit the other networks on the same GPU type best; None
    with fewer than two of those."""
    percent_of_peak: float
    """The share, 0 to 1, of the peak speed that this run reached."""

    def errors(self) -> tuple[float, float | None]:
        """Of the two predictions, as fractions of what was measured."""
        after = None if self.calibrated is None else self.calibrated / self.measured - 1.0
        return self.by_data_sheet / self.measured - 1.0, after


class _Timed(NamedTuple):
    """One run's epoch: measured seconds, seconds at peak speed, layers that are computed in it."""

    layers: int
    gpu: str
    measured: float
    at_peak: float
    launched: float


def network_of(layers: int) -> NetworkCost | None:
    """The ResNet of that depth on 32x32 images of ten classes; None when no published one has it.

    Depths 18, 34 and 50 are the networks made for ImageNet, on small images; 6n + 2 otherwise is the family made for
    CIFAR (50 is both; in use it means the former).
    """
    if layers in _IMAGENET_FAMILY:
        return count(resnet(layers, 10, CIFAR))
    return count(cifar_resnet(layers)) if layers >= 8 and (layers - 2) % 6 == 0 else None


def check_compute(runs: Sequence[Run], *, batch_size: int, examples: int) -> list[ComputeCheck]:
    """Every run with epoch seconds, a network that is known and a GPU type with a data sheet."""
    steps = ceil(examples / batch_size)
    timed = []
    for run in runs:
        cost, device, measured = network_of(run.layers), DEVICES.get(run.gpu), run.epoch_seconds
        if cost is not None and device is not None and measured is not None:
            at_peak = ColdStart(cost, device, _GIGABIT, percent_of_peak=1.0).compute_seconds(batch_size)
            timed.append(_Timed(run.layers, run.gpu, measured, at_peak * steps, float(len(cost.layers) * steps)))
    return [_check(run, timed) for run in timed]


def _check(run: _Timed, timed: Sequence[_Timed]) -> ComputeCheck:
    others = [other for other in timed if other.gpu == run.gpu and other.layers != run.layers]
    calibrated = _calibrated(run, others) if len({other.layers for other in others}) > 1 else None
    share = run.at_peak / run.measured
    return ComputeCheck(run.layers, run.gpu, run.measured, run.at_peak / DEFAULT_PERCENT_OF_PEAK, calibrated, share)


def _calibrated(run: _Timed, others: Sequence[_Timed]) -> float:
    """Seconds of `run` with the two coefficients >= 0 that minimise the relative error on `others`."""
    unit = sum(other.measured / other.launched for other in others) / len(others)
    rows = np.array([(other.at_peak, unit * other.launched) for other in others])
    measured = np.array([other.measured for other in others])
    (slowness, per_layer), _ = nnls(rows / measured[:, None], np.ones(len(others)))
    return float(slowness * run.at_peak + per_layer * unit * run.launched)


# --- Measured speeds by (workers, servers) in the place of arithmetic: a `SpeedModel`, at the level of a GPU type ----


class MeasuredSpeed(NamedTuple):
    """One measurement: steps per second of the whole job."""

    workers: int
    servers: int
    steps_per_second: float


class MeasuredSpeeds(NamedTuple):
    """What was measured, and the model fitted to it."""

    rows: tuple[MeasuredSpeed, ...]
    model: SpeedModel
    level: float = 1.0
    """What predictions are multiplied by: measured elsewhere, on hardware so many times slower."""

    @classmethod
    def fit(cls, rows: Sequence[MeasuredSpeed], batch_size: int) -> MeasuredSpeeds:
        """`rows`: one or more, of synchronous training."""
        model = SpeedModel.fit(*_columns(rows), global_batch_size=batch_size)
        return cls(tuple(rows), model)

    def at_level_of(self, alone_seconds: float) -> MeasuredSpeeds:
        """How the job scales, on hardware where one worker's step takes `alone_seconds`."""
        return self._replace(level=1.0 / alone_seconds / float(self.model.predict(1, 1)[0]))

    def steps_per_second(self, workers: int, servers: int) -> Estimate:
        """With the model's 80 % interval."""
        low, high = self.model.predict_interval(workers, servers)
        mean = self.model.predict(workers, servers)
        return Estimate(float(mean[0]), float(low[0]), float(high[0])).times(self.level)

    def held_out_errors(self) -> list[float]:
        """Of each measured size, predicted from the others: |predicted - measured| / measured. Empty for one size."""
        sizes = sorted({(row.workers, row.servers) for row in self.rows})
        if len(sizes) < 2:
            return []
        return [self._held_out_error(size) for size in sizes]

    def _held_out_error(self, size: tuple[int, int]) -> float:
        others = [row for row in self.rows if (row.workers, row.servers) != size]
        mine = float(np.mean([r.steps_per_second for r in self.rows if (r.workers, r.servers) == size]))
        model = SpeedModel.fit(*_columns(others), global_batch_size=self.model.form.batch)
        return abs(float(model.predict(*size)[0]) - mine) / mine


def _columns(rows: Sequence[MeasuredSpeed]) -> tuple[list[int], list[int], list[float]]:
    return [row.workers for row in rows], [row.servers for row in rows], [row.steps_per_second for row in rows]


def measured_time_to_target(
    speeds: MeasuredSpeeds, steps: Estimate, gpu: str, workers: Sequence[int], servers: int, prices: Prices
) -> tuple[TimeAndCost, ...]:
    """Time and cost of `steps` steps for each number of `workers`."""
    sizes = [Allocation(w, servers, gpu) for w in workers]
    return times_and_costs(sizes, steps, lambda size: speeds.steps_per_second(size.workers, size.servers), prices)
