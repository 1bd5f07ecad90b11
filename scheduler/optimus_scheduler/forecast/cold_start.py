"""A job's speed before it has run: by arithmetic on the layers of its network (`optimus_models.analytic`)."""

from __future__ import annotations

from typing import NamedTuple

from optimus_models.analytic import CPU_CORE, DEVICES, ColdStart, Device, NetworkCost, Scheme
from optimus_models.analytic.step_time import DEFAULT_PERCENT_OF_PEAK
from optimus_scheduler.model import JobSpec, Mode, SpeedSample

_SIZES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (4, 4), (8, 4), (8, 8), (16, 8))
"""Sizes that speeds are calculated for: enough for the speed model to know the terms of the step time."""
_DEFAULT_BYTES_PER_SECOND = 1.25e9


class Platform(NamedTuple):
    """What a job runs on, as far as it was measured."""

    percent_of_peak: float = DEFAULT_PERCENT_OF_PEAK
    """Which part of the data sheet's speed layers reach."""
    bytes_per_second: float = _DEFAULT_BYTES_PER_SECOND
    """Of the network, each way, per node (10 Gbit/s)."""


def device_name(spec: JobSpec) -> str:
    """What the percent of peak of one platform is known by: the GPU type, or that of a CPU core."""
    return spec.gpu_type or CPU_CORE.name


def device_of(spec: JobSpec) -> Device | None:
    """The device that one worker computes on; None for a GPU without a data sheet. A CPU worker uses one core."""
    if spec.gpu_type is None:
        return CPU_CORE
    by_name = {name.lower(): device for name, device in DEVICES.items()}
    return by_name.get(spec.gpu_type.lower())


def calculated_speeds(cost: NetworkCost, spec: JobSpec, platform: Platform) -> tuple[SpeedSample, ...]:
    """Speeds at some sizes within the job's limits; empty where device or batch size are not known."""
    device, batch = device_of(spec), spec.global_batch_size
    if device is None or not batch:
        return ()
    model = ColdStart(
        cost,
        device,
        bytes_per_second=platform.bytes_per_second,
        scheme=Scheme.PARAMETER_SERVER if spec.architecture.has_servers else Scheme.RING,
        percent_of_peak=platform.percent_of_peak,
    )
    within = [(w, p) for w, p in _SIZES if w <= spec.worker.maximum and p <= max(spec.server.maximum, 1)]
    return tuple(SpeedSample(w, p, _speed(model, w, p, batch, spec.mode)) for w, p in within)


def _speed(model: ColdStart, workers: int, servers: int, batch: int, mode: Mode) -> float:
    """Sync: the batch is shared. Async: each worker makes steps of its own, which add up."""
    if mode is Mode.SYNC:
        return 1.0 / model.step_seconds(workers, servers, batch_size=batch)
    return workers / model.step_seconds(workers, servers, batch_size=batch, scaling="weak")


def measured_percent_of_peak(cost: NetworkCost, spec: JobSpec, seconds: float, examples: float) -> float | None:
    """What `seconds` of computing on `examples` per worker and step say of the platform; None if nothing sensible."""
    device = device_of(spec)
    if device is None or not seconds > 0 or not examples > 0:
        return None
    percent = ColdStart(cost, device, bytes_per_second=1.0).calibrated(seconds, examples).percent_of_peak
    return percent if 1e-4 <= percent <= 10.0 else None
