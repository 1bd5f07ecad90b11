"""The models of a job, fitted to its telemetry and remembered: rounds are frequent, and most telemetry is old.

A fit is a pure function of what was reported, so remembering it changes no answer. The caches are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

import numpy as np

from optimus_models.history import LossHistory
from optimus_models.loss_curve import LossCurve
from optimus_models.rescale import RescaleCost
from optimus_models.speed_model import SpeedModel
from optimus_scheduler.settings import Settings
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import JobSpec, Mode, SpeedSample

_REMEMBERED = 8192
"""Fits of each kind that are kept: a few for each of the thousands of jobs that one cluster has."""

Losses = tuple[tuple[float, ...], tuple[float, ...]]
"""Steps and the loss at each."""

_known_curves: OrderedDict[Losses, LossCurve] = OrderedDict()
"""Recently used last."""
_known_curves_lock = Lock()


def loss_curves(reported: Sequence[Losses]) -> list[LossCurve]:
    """The loss curve of each job, in one batch: fitted one by one they would take ten times as long."""
    with _known_curves_lock:
        curves = {losses: _known_curves.pop(losses) for losses in set(reported) & _known_curves.keys()}
    missing = [losses for losses in dict.fromkeys(reported) if losses not in curves]
    curves.update(zip(missing, LossCurve.fit_many([LossHistory.of(*losses) for losses in missing]), strict=True))
    with _known_curves_lock:
        _known_curves.update(curves)
        while len(_known_curves) > _REMEMBERED:
            _known_curves.popitem(last=False)
    return [curves[losses] for losses in reported]


@lru_cache(maxsize=_REMEMBERED)
def stop_seconds(observed: tuple[float, ...]) -> float:
    """Predicted stop of the next change of size, from the stops of those before."""
    return RescaleCost.fit(observed).predict()


def speeds(samples: tuple[SpeedSample, ...], spec: JobSpec, settings: Settings) -> Speeds:
    """The speeds of a job that reported `samples`."""
    half_life, full_weight = settings.sample_half_life_seconds, settings.full_weight_steps
    return _speeds(samples, spec.mode, spec.global_batch_size, half_life, full_weight)


@lru_cache(maxsize=_REMEMBERED)
def _speeds(
    samples: tuple[SpeedSample, ...], mode: Mode, batch: int | None, half_life_seconds: float, full_weight_steps: int
) -> Speeds:
    # Only the proportions of the weights matter, so ages may be taken from the newest sample instead of from now.
    newest = max((sample.at for sample in samples), default=0.0)
    ages = np.array([newest - sample.at for sample in samples])
    exactness = np.array([min(sample.n_steps / full_weight_steps, 1.0) for sample in samples])
    model = SpeedModel.fit(
        [sample.workers for sample in samples],
        [max(sample.servers, 1) for sample in samples],  # all-reduce: one exchange among the workers
        [sample.steps_per_second for sample in samples],
        weights=exactness * np.exp2(-np.minimum(ages / half_life_seconds, 50.0)),
        at=[sample.at for sample in samples],
        mode="sync" if mode is Mode.SYNC else "async",
        global_batch_size=batch,
    )
    return Speeds(model)
