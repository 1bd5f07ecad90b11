"""How well arithmetic predicts the seconds of an epoch on one GPU, before and after it has seen other networks."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from optimus_models.analytic import DEVICES, ColdStart, NetworkCost, count
from optimus_models.analytic.networks import CIFAR, cifar_resnet, resnet
from optimus_models.analytic.step_time import DEFAULT_PERCENT_OF_PEAK
from optimus_models.study.runs import Run

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
