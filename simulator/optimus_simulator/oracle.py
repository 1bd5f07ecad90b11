"""A forecaster that knows the truth, or errs by a stated amount: what perfect prediction would be worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimus_models.cost import Estimate
from optimus_models.speed.servers import SpeedModel
from optimus_scheduler.forecast.forecast import RememberingForecaster
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import Allocation, Interval, Job
from optimus_scheduler.settings import Settings
from optimus_simulator.options import Options
from optimus_simulator.running import RunningJob
from optimus_simulator.truth.truth import Truth

Choices = Callable[[int], tuple[int, ...]]
"""The batches that so many workers may have."""


class TrueSpeeds(Speeds):
    """The true speed of every size, placed as well as can be; with errors, one fixed error for each size."""

    def __init__(self, truth: Truth, error: float, seed: tuple[int, ...], factor: float = 1.0) -> None:
        """`factor`: of the GPU type that the job is on."""
        super().__init__(_KNOWN)
        self.confidence = 1.0 - error
        self._truth, self._error, self._seed, self._factor = truth, error, seed, factor

    def at(self, allocation: Allocation) -> float:
        if allocation.workers < 1:
            return 0.0
        size = (allocation.workers, allocation.servers)
        if size not in self._known:
            self._known[size] = self._true(*size) * self._wrong_by(size) * self._factor
        return self._known[size]

    def estimate(self, allocation: Allocation) -> Estimate:
        speed = self.at(allocation)
        return Estimate(speed, speed * (1.0 - self._error), speed * (1.0 + self._error))

    def compared(self, size: Allocation, other: Allocation) -> Estimate:
        return self.estimate(size).over(self.estimate(other))

    def _true(self, workers: int, servers: int) -> float:
        return self._truth.oracle_speed(workers, servers)

    def many(self, workers: NDArray[np.int64], servers: NDArray[np.int64]) -> NDArray[np.float64]:
        sizes = zip(workers.tolist(), servers.tolist(), strict=True)
        return np.array([self.at(Allocation(*size)) for size in sizes])

    def _wrong_by(self, size: tuple[int, int]) -> float:
        if not self._error:
            return 1.0
        sign = np.random.default_rng((*self._seed, *size)).choice((-1.0, 1.0))
        return float(1.0 + sign * self._error)


_KNOWN = SpeedModel.fit([1], [1], [1.0])
"""Stands where a fitted model is expected; one measured size makes it count as known."""


class TrueGoodputs(TrueSpeeds):
    """The same of a job with an elastic batch, as it is now: with the best batch for each size."""

    def __init__(
        self, running: RunningJob, choices: Choices, error: float, seed: tuple[int, ...], factor: float
    ) -> None:
        super().__init__(running.entry.truth, error, seed, factor)
        self._training, self._choices = running.training, choices

    def batch_at(self, workers: int) -> int | None:
        return max(self._choices(workers), key=lambda batch: (self.with_batch(workers, batch), -batch))

    def with_batch(self, workers: int, batch: int) -> float:
        return self._training.goodput(workers, batch)

    def _true(self, workers: int, servers: int) -> float:
        del servers  # there are none
        return max(self.with_batch(workers, batch) for batch in self._choices(workers))


class Oracle:
    """Puts the truth in the place of every forecast. References: the paper, section 6.3, for its errors."""

    def __init__(self, jobs: Mapping[str, RunningJob], options: Options, seed: int) -> None:
        self._jobs, self._options, self._seed = jobs, options, seed
        self._speeds: dict[tuple[str, str | None], TrueSpeeds] = {}
        self._goodputs: dict[tuple[str, str | None], tuple[float | None, TrueGoodputs]] = {}
        self._signs: dict[str, float] = {}
        self._forecaster = RememberingForecaster()

    def __call__(self, jobs: Sequence[Job], now: float, settings: Settings) -> tuple[Outlook, ...]:
        nothing: dict[str, Any] = {"loss_steps": (), "losses": (), "speed_samples": (), "similar": ()}
        nothing |= {"noise_steps": (), "noise_scales": ()}
        unfitted = [replace(job, **nothing) for job in jobs]  # nothing is fitted to them
        return tuple(self._corrected(outlook, settings) for outlook in self._forecaster(unfitted, now, settings))

    def _corrected(self, outlook: Outlook, settings: Settings) -> Outlook:
        job = outlook.job
        running = self._jobs[job.id]
        limits, fixed = job.spec.elastic_batch, job.spec.global_batch_size
        if limits is None:
            speeds = self._speeds_of(job.id, job.spec.gpu_type)
        elif settings.scale_batches or fixed is None:
            speeds = self._goodputs_of(job.id, job.spec.gpu_type, limits.choices)
        else:
            speeds = self._goodputs_of(job.id, job.spec.gpu_type, lambda _: (fixed,))
        steps = running.training.steps_left() * self._convergence_factor(running)
        remaining = Interval(steps, steps, steps)
        true_forecast = outlook.forecast._replace(
            total_steps=Interval(*(job.step + steps,) * 3),
            remaining_steps=remaining,
            confidence=1.0,
            steps_per_second=speeds.at(job.allocation) or None,
            converged=False,
        )
        # Where changes cost nothing, there is no stop to learn that from.
        stop = outlook.stop_seconds if self._options.restart_seconds else 0.0
        return outlook._replace(forecast=true_forecast, speeds=speeds, stop_seconds=stop, measured=True, learning=False)

    def _speeds_of(self, job_id: str, gpu_type: str | None) -> TrueSpeeds:
        if (job_id, gpu_type) not in self._speeds:
            seed, entry = (self._seed, *job_id.encode()), self._jobs[job_id].entry
            speeds = TrueSpeeds(entry.truth, self._options.speed_error, seed, entry.speed_factor(gpu_type))
            self._speeds[job_id, gpu_type] = speeds
        return self._speeds[job_id, gpu_type]

    def _goodputs_of(self, job_id: str, gpu_type: str | None, choices: Choices) -> TrueGoodputs:
        """Remembered for as long as its gradients are as noisy as they are."""
        running, key = self._jobs[job_id], (job_id, gpu_type)
        noise, known = running.training.noise_scale(), self._goodputs.get(key)
        if known is not None and known[0] == noise:
            return known[1]
        seed, factor = (self._seed, *job_id.encode()), running.entry.speed_factor(gpu_type)
        speeds = TrueGoodputs(running, choices, self._options.speed_error, seed, factor)
        self._goodputs[key] = noise, speeds
        return speeds

    def _convergence_factor(self, running: RunningJob) -> float:
        """v(1 ± e), the error fading with progress."""
        error = self._options.convergence_error
        if not error:
            return 1.0
        if running.id not in self._signs:
            random = np.random.default_rng((self._seed, *running.id.encode(), 1))
            self._signs[running.id] = float(random.choice((-1.0, 1.0)))
        done, left = running.training.step, running.training.steps_left()
        return 1.0 + self._signs[running.id] * error * left / max(done + left, 1e-9)
