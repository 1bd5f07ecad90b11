"""The samples that a job reports while it trains: speeds and losses with noise, thinned out as they get old."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from optimus_scheduler.model import Allocation, SpeedSample
from optimus_simulator.options import Options
from optimus_simulator.truth import Training

_REFRESH = 4.0
"""A measurement is reported again when it covers so many times as many steps: earlier it would add nothing."""
_FIRST_STEPS = 8
"""Steps of a size before its speed is reported."""
_LOSS_SPACING = 1.03
"""Losses are reported at steps that grow by this factor: some 300 over a whole run."""
_NOISE_SPACING = 1.1
"""... and noise scales by this one."""


@dataclass(slots=True)
class _Visit:
    """A stay at one size."""

    size: tuple[int, int]
    gpu_type: str | None
    batch: int | None = None
    exchange_part: float | None = None
    """Of each step of an all-reduce job."""
    nodes: int = 0
    steps: float = 0.0
    seconds: float = 0.0
    reported_steps: float = 0.0


@dataclass(slots=True)
class Telemetry:
    """The telemetry of one job."""

    random: np.random.Generator
    options: Options
    samples: tuple[SpeedSample, ...] = ()
    """Of each size at most two: the present stay and all before it."""
    loss_steps: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    stops: tuple[float, ...] = ()
    """Seconds of each change so far."""
    noise_steps: tuple[float, ...] = ()
    noise_scales: tuple[float, ...] = ()
    _visit: _Visit | None = field(default=None, repr=False)

    def changed(
        self, allocation: Allocation, batch: int | None = None, exchange_part: float | None = None, nodes: int = 0
    ) -> None:
        """The job gets other tasks, another size or other places, or another elastic batch."""
        size = (allocation.workers, allocation.servers)
        if self._visit is not None:
            self._close(self._visit)
        self._visit = _Visit(size, allocation.gpu_type, batch, exchange_part, nodes) if size[0] else None

    def stopped(self, seconds: float) -> None:
        self.stops = (*self.stops, seconds)

    def trained(self, now: float, steps: float, seconds: float, training: Training) -> None:
        """The job did `steps` in the last `seconds`."""
        visit = self._visit
        if visit is None or steps <= 0:
            return
        visit.steps += steps
        visit.seconds += seconds
        if visit.steps >= max(_FIRST_STEPS, visit.reported_steps * _REFRESH):
            self._tell(visit, now)
        if visit.steps >= _FIRST_STEPS:
            self._tell_noise(training)
        if not self.loss_steps or training.step >= self.loss_steps[-1] * _LOSS_SPACING + 1.0:
            self._tell_loss(training)

    def _tell(self, visit: _Visit, now: float) -> None:
        speed, exchange = self._measured(visit)
        sample = SpeedSample(
            *visit.size,
            speed,
            int(visit.steps),
            at=now,
            gpu_type=visit.gpu_type,
            batch=visit.batch,
            exchange_seconds=exchange,
        )
        others = self.samples[:-1] if visit.reported_steps else self.samples
        self.samples = (*others, sample)
        visit.reported_steps = visit.steps

    def _measured(self, visit: _Visit) -> tuple[float, float | None]:
        """Steps per second with noise; of an all-reduce job also the exchange in each step, with noise of its own."""
        speed = visit.steps / visit.seconds
        errors = [self.options.speed_noise * float(self.random.standard_normal())]
        if visit.exchange_part is None:
            return speed * float(np.exp(errors[0])), None
        errors.append(self.options.speed_noise * float(self.random.standard_normal()))
        computing = (1.0 - visit.exchange_part) / speed * float(np.exp(errors[0]))
        exchange = visit.exchange_part / speed * float(np.exp(errors[1]))
        return 1.0 / (computing + exchange), exchange

    def _tell_noise(self, training: Training) -> None:
        """How noisy its gradients are, as the job estimates it."""
        true = training.noise_scale()
        if true is None or (self.noise_steps and training.step < self.noise_steps[-1] * _NOISE_SPACING):
            return
        error = self.options.noise_scale_noise * float(self.random.standard_normal())
        self.noise_steps = (*self.noise_steps, training.step)
        self.noise_scales = (*self.noise_scales, true * float(np.exp(error)))

    def _close(self, visit: _Visit) -> None:
        """Merge the measurement of this visit with earlier ones of the same size."""
        if not visit.reported_steps:
            return
        *others, newest = self.samples
        here = (*visit.size, visit.gpu_type, visit.batch)
        twin = next((old for old in others if (old.workers, old.servers, old.gpu_type, old.batch) == here), None)
        if twin is None:
            return
        n_steps = twin.n_steps + newest.n_steps
        speed = (twin.n_steps * twin.steps_per_second + newest.n_steps * newest.steps_per_second) / n_steps
        merged = replace(newest, steps_per_second=speed, n_steps=n_steps)
        if twin.exchange_seconds is not None and newest.exchange_seconds is not None:
            both = twin.n_steps * twin.exchange_seconds + newest.n_steps * newest.exchange_seconds
            merged = replace(merged, exchange_seconds=both / n_steps)
        self.samples = (*(old for old in others if old is not twin), merged)

    def _tell_loss(self, training: Training) -> None:
        loss = training.loss()
        if loss is None:
            return
        noise = self.options.loss_noise * float(self.random.standard_normal())
        self.loss_steps = (*self.loss_steps, training.step)
        self.losses = (*self.losses, loss * float(np.exp(noise)))
