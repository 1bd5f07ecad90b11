"""Steps of a training as samples of its job."""

from __future__ import annotations

import math
from dataclasses import replace

from optimus_contract.readings.progress import Advance, Learned
from optimus_contract.telemetry import Sample

MOST_STEPS = 10**6
"""Of one sample."""
LARGEST_RATE = 1e9
RESUMED_STEPS = 1000
"""A run whose first report is beyond this step did not make all these steps itself."""


def first_of_run(advance: Advance) -> Advance:
    """The first advance of a run, which may go on from a checkpoint."""
    return replace(advance, n_steps=1) if advance.n_steps > RESUMED_STEPS else advance


def sample_of(advance: Advance, learned: Learned, *, membership_epoch: int, workers: int) -> Sample:
    """The steps of an advance as a sample; `Gathered` gives it its sequence."""
    each = learned.steps_per_epoch
    epoch = advance.epoch if advance.epoch is not None else advance.step / each if each else 0.0
    return Sample(
        membership_epoch=membership_epoch,
        rank=0,
        sequence=0,
        workers=workers,
        servers=0,
        at=advance.at,
        step=advance.step,
        n_steps=min(advance.n_steps, MOST_STEPS),
        data_epoch=epoch if math.isfinite(epoch) and epoch >= 0 else 0.0,
        loss=advance.loss,
        learning_rate=rate_or_none(advance.learning_rate),
        n_examples=advance.examples or 0,
        seconds=advance.seconds,
        metrics=dict(advance.metrics) or None,
    )


def rate_or_none(rate: float | None) -> float | None:
    """A learning rate as samples may have it; a script may call anything so."""
    return rate if rate is not None and 0 <= rate <= LARGEST_RATE else None
