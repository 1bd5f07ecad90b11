"""Elastic batches: how the steps of a batch that the scheduler chose are cut, counted and weighed. Pure.

With the noise scale N = tr(Σ)/|G|² of the gradients (`telemetry.gradients`), in examples, a step with B examples is
worth

    gain(B) = (1 + N/M) / (1 + N/B)

steps with the smallest batch M (McCandlish et al. 2018, section 2): what the scheduler's goodput is made of. The
learning rate grows linearly with the batch (Goyal et al. 2017), over a warm-up; for a smaller batch it falls at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from optimus_workers.wire.values import GlobalBatch

DEFAULT_WARMUP_EPOCHS = 1.0
"""Passes over the data. Shorter than with weak scaling: batches are changed by small factors."""
RECOUNT = 0.05
"""From this relative change of the gain on, steps are counted anew: one reading of the noise errs by more."""


@dataclass(frozen=True, slots=True)
class ElasticBounds:
    """What the job's owner allows (`ElasticBatch`). All numbers are examples."""

    minimum: int
    per_pass: int
    """What one worker computes at once."""
    warmup_epochs: float = DEFAULT_WARMUP_EPOCHS

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self | None:
        """From a `JobSpec`'s JSON; None for a job whose batch is fixed."""
        body = spec.get("elastic_batch")
        if body is None:
            return None
        warmup = body.get("warmup_epochs")
        return cls(body["minimum"], body["per_pass"], DEFAULT_WARMUP_EPOCHS if warmup is None else float(warmup))

    def slots(self, n_workers: int, size: int) -> int:
        """Micro-batches that a batch of `size` is cut into: equally many for each worker, none above `per_pass`.

        As the scheduler assumes (`optimus_models.speed.elastic_batch.cut`): a worker alone computes two, of all but the
        smallest batch, to tell noise from signal.
        """
        examples = -(-size // n_workers)
        passes = -(-examples // self.per_pass)
        return n_workers * (max(passes, 2) if n_workers == 1 and size > self.minimum else passes)


def gain(size: int, smallest: int, noise_scale: float) -> float:
    """Steps with the `smallest` batch that one with `size` examples is worth."""
    return (1.0 + noise_scale / smallest) / (1.0 + noise_scale / size)


def elastic_batch(
    bounds: ElasticBounds,
    n_workers: int,
    n_examples: int,
    size: int,
    step: int,
    before: GlobalBatch,
    noise: float | None,
) -> GlobalBatch:
    """The batch of `size` from `step` on, after steps with the batch `before`.

    `n_examples`: of the data set; `noise`: the newest reading of the noise scale, if there is one.
    """
    noise_scale = before.noise_scale if noise is None else noise
    present, factor = before.learning_rate_factor(step), size / bounds.minimum
    grows = factor > present and bounds.warmup_epochs > 0
    return GlobalBatch(
        size=size,
        slots=bounds.slots(n_workers, size),
        base_size=bounds.minimum,
        first_step=step,
        first_example=before.position(step),
        from_factor=present if grows else factor,
        to_factor=factor,
        warmup_examples=bounds.warmup_epochs * n_examples if grows else 0.0,
        counted=before.counted_at(step),
        gain=gain(size, bounds.minimum, noise_scale),
        noise_scale=noise_scale,
    )


def recounted(batch: GlobalBatch, step: int, noise_scale: float) -> GlobalBatch | None:
    """The same batch from `step` on, with the gain of this noise scale; None where that is no other one."""
    new = gain(batch.size, batch.base_size, noise_scale)
    if abs(new / batch.gain - 1.0) <= RECOUNT:
        return None
    done = batch.position(step) - batch.first_example
    return replace(
        batch,
        first_step=step,
        first_example=batch.position(step),
        from_factor=batch.learning_rate_factor(step),
        warmup_examples=max(batch.warmup_examples - done, 0.0),
        counted=batch.counted_at(step),
        gain=new,
        noise_scale=noise_scale,
    )
