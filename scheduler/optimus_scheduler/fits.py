"""The models of all jobs, fitted to their telemetry and remembered for one round: most telemetry is old.

A fit is a pure function of what was reported, so remembering it changes no answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimus_models.history import LossHistory
from optimus_models.loss_curve import LossCurve
from optimus_models.speed_model import SpeedModel
from optimus_scheduler.settings import Settings
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import Job, Mode, SpeedSample

_Losses = tuple[tuple[float, ...], tuple[float, ...]]
"""Steps and the loss at each."""
_Measured = tuple[tuple[SpeedSample, ...], Mode, int | None, float, int]
"""Speed samples, mode, global batch size, half-life of a sample in seconds, steps for full weight."""


class Fits:
    """Fits models, and keeps those of the last call only: its size is that of the jobs last asked about.

    Belongs to one shell; not to be shared between threads.
    """

    def __init__(self) -> None:
        self._curves: dict[_Losses, LossCurve] = {}
        self._speeds: dict[_Measured, Speeds] = {}

    def of(self, jobs: Sequence[Job], settings: Settings) -> list[tuple[LossCurve, Speeds]]:
        """The loss curve and the speeds of each job."""
        losses = [(job.loss_steps, job.losses) for job in jobs]
        measured = [_measured(job, settings) for job in jobs]
        self._curves = self._fitted_curves(losses)
        self._speeds = {each: self._speeds.get(each) or _fit_speeds(*each) for each in dict.fromkeys(measured)}
        return [(self._curves[told], self._speeds[each]) for told, each in zip(losses, measured, strict=True)]

    def _fitted_curves(self, losses: Sequence[_Losses]) -> dict[_Losses, LossCurve]:
        """In one batch: fitted one by one they would take ten times as long."""
        missing = [told for told in dict.fromkeys(losses) if told not in self._curves]
        fitted = LossCurve.fit_many([LossHistory.of(*told) for told in missing])
        known = {told: self._curves[told] for told in losses if told in self._curves}
        return known | dict(zip(missing, fitted, strict=True))


def _measured(job: Job, settings: Settings) -> _Measured:
    half_life_seconds, full_weight_steps = settings.sample_half_life_seconds, settings.full_weight_steps
    return job.speed_samples, job.spec.mode, job.spec.global_batch_size, half_life_seconds, full_weight_steps


def _fit_speeds(
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
