"""What a job's workers take of their machines, and how noisy its gradients are, from its newest samples: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimus_service.store.records import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """Sums over the workers that told it, each from its newest sample. `None`: nobody has a GPU."""

    workers: int
    cpu_cores: float
    memory_bytes: float
    gpu_utilization: float | None = None
    """Mean over the workers, 0 to 1; of a shared GPU each tells the whole."""
    gpu_memory_bytes: float | None = None


def job_usage(newest: Sequence[Sample]) -> JobUsage | None:
    """Of the newest membership among these samples (any order); None when nobody told."""
    epoch = max((sample.membership_epoch for sample in newest), default=0)
    by_rank: dict[int, Sample] = {}
    for sample in newest:
        latest = by_rank.get(sample.rank)
        if sample.membership_epoch == epoch and sample.usage and (latest is None or sample.sequence > latest.sequence):
            by_rank[sample.rank] = sample
    told = [sample.usage for sample in by_rank.values() if sample.usage]
    if not told:
        return None
    busy = _values(told, "gpu_utilization")
    gpu_memory = _values(told, "gpu_memory_bytes")
    return JobUsage(
        workers=len(told),
        cpu_cores=sum(_values(told, "cpu_cores")),
        memory_bytes=sum(_values(told, "memory_bytes")),
        gpu_utilization=sum(busy) / len(busy) if busy else None,
        gpu_memory_bytes=sum(gpu_memory) if gpu_memory else None,
    )


def _values(told: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [usage[name] for usage in told if name in usage]


def noise_scale(sample: Sample) -> float | None:
    """tr(Σ)/|G|² in examples, as the sample's worker estimates it; None when it told none, or noise hides it."""
    gradients = sample.gradients or {}
    square, variance = gradients.get("square", 0.0), gradients.get("variance", 0.0)
    scale = variance / square if square > 0 and variance > 0 else math.inf
    return scale if math.isfinite(scale) else None


def newest_noise_scale(newest: Sequence[Sample]) -> float | None:
    """Of the newest sample that tells one."""
    told = [sample for sample in newest if noise_scale(sample) is not None]
    return noise_scale(max(told, key=lambda sample: (sample.membership_epoch, sample.sequence))) if told else None
