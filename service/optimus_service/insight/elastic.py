"""Figures of jobs with an elastic batch: speeds in steps of their own count, and the truth of a trace. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from optimus_models.speed.batch import BatchSpeed
from optimus_models.speed.goodput import ElasticBatch, gain
from optimus_scheduler.forecast.goodput_fits import fit_step_times
from optimus_scheduler.model import Job, SpeedSample
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import Document

_NO_NOISE = 1e-6
"""Examples: told of a job that measured none. A larger batch gains it nothing, as the scheduler assumed."""


def counted_speed(job: Job, sample: SpeedSample) -> float:
    """Steps per second of the job's own count: a step with an elastic batch is worth several of the smallest."""
    limits = job.spec.elastic_batch
    if limits is None or sample.batch is None or not job.noise_scales:
        return sample.steps_per_second
    return sample.steps_per_second * float(gain([sample.batch], limits.minimum, job.noise_scales[-1])[0])


def elastic_speed(limits: ElasticBatch, batch: int, samples: Sequence[SpeedSample]) -> Document:
    """The law of its step times, fitted to those that were measured; `batch`: the one that policies give which choose
    none."""
    speed = fit_step_times(samples, (), limits).speed
    each, fixed = _pass_law(speed, limits.per_pass)
    return {
        "compute_seconds": each * batch,
        "exchange_seconds": 2.0 * float(speed.exchange_seconds([2])[0]),
        "pass_seconds": fixed,
    }


def _pass_law(speed: BatchSpeed, per_pass: int) -> tuple[float, float]:
    """Seconds of one more example, and of a pass without any: the line through a full and a half full pass."""
    half = max(per_pass // 2, 1)
    small, full = speed.pass_seconds([half, per_pass]).tolist()
    slope = (full - small) / (per_pass - half) if per_pass > half else 0.0
    fixed = min(max(full - slope * per_pass, 0.0), 0.9 * full)
    return (full - fixed) / per_pass, fixed


def noise_ends(history: JobHistory) -> list[float]:
    """The first and the last noise scale that are known, in examples."""
    scales = [scale for _, scale in history.noise_curve()]
    return [scales[0], scales[-1]] if scales else [_NO_NOISE, _NO_NOISE]
