"""The noise scale of gradients, from the samples that report it: pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimus_contract.telemetry import Sample


def noise_scale(sample: Sample) -> float | None:
    """tr(Σ)/|G|² in examples, as the sample's worker estimates it; None when it told none, or noise hides it."""
    if sample.gradients is None:
        return None
    square, variance = sample.gradients.square, sample.gradients.variance
    scale = variance / square if square > 0 and variance > 0 else math.inf
    return scale if math.isfinite(scale) else None


def newest_noise_scale(newest: Sequence[Sample]) -> float | None:
    """Of the newest sample that tells one."""
    told = [sample for sample in newest if noise_scale(sample) is not None]
    return noise_scale(max(told, key=lambda sample: (sample.membership_epoch, sample.sequence))) if told else None
