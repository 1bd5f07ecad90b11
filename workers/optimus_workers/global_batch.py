"""What the steps of one membership train on: how many examples, from where in the stream, at what learning rate. Pure.

With strong scaling all memberships have the same batch. With weak scaling the batch grows with the workers, so that the
number of a step no longer says which examples it has: each membership says where it begins. The service is told steps
of the base batch (`told_step`), whose number says how far training is, whatever the sizes on the way.

An elastic batch is set by the scheduler. A step with it counts as what it achieves, in steps with the smallest batch:
its gain (`coordinator.elastic`), which is less than its examples say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The batch of one membership epoch of sync training, or of its steps from `first_step` on."""

    size: int
    """Examples in one step."""
    slots: int
    """Micro-batches that it is cut into."""
    base_size: int
    """Examples in one step as the service counts them: the batch of the task or the job."""
    first_step: int
    """The membership's first step (counted from 0) ..."""
    first_example: int
    """... begins here in the endless stream of examples (see `sampler`)."""
    from_factor: float = 1.0
    """Of the learning rate, at `first_example`."""
    to_factor: float = 1.0
    """Of the learning rate, from `warmup_examples` later on; in between it grows linearly."""
    warmup_examples: float = 0.0
    counted: float | None = None
    """Elastic: steps of the base batch that everything before `first_step` was worth; None: examples are counted."""
    gain: float = 1.0
    """Elastic: what each step is worth, in steps of the base batch; 1 at least."""
    noise_scale: float = 0.0
    """Elastic: that of the gradients, in examples, which `gain` was calculated from; 0 before it is known."""

    @property
    def is_elastic(self) -> bool:
        return self.counted is not None

    def position(self, step: int) -> int:
        """Where step `step` begins in the stream; so also: examples trained on after `step` steps of the job."""
        return self.first_example + (step - self.first_step) * self.size

    def counted_at(self, step: int) -> float:
        """`step` in steps of the base batch."""
        if self.counted is None:
            return self.position(step) / self.base_size
        return self.counted + (step - self.first_step) * self.gain

    def told_step(self, step: int) -> int:
        """The same, rounded down."""
        if self.counted is None:
            return self.position(step) // self.base_size
        return int(self.counted_at(step))

    def told_examples(self, step: int) -> int:
        """Examples in that many steps of the base batch: what schedules of the learning rate go by."""
        return self.position(step) if self.counted is None else int(self.counted_at(step) * self.base_size)

    def learning_rate_factor(self, step: int) -> float:
        """What to multiply the learning rate of step `step` with."""
        done = self.position(step) - self.first_example
        if done >= self.warmup_examples:
            return self.to_factor
        return self.from_factor + (self.to_factor - self.from_factor) * done / self.warmup_examples


def constant_batch(size: int, slots: int) -> GlobalBatch:
    """The same batch at every step of the job."""
    return GlobalBatch(size, slots, size, 0, 0)


def followed(batches: Sequence[GlobalBatch], batch: GlobalBatch) -> tuple[GlobalBatch, ...]:
    """The batches that lead to `batch`, and itself: what was trained from its first step on before, is given up."""
    return (*(before for before in batches if before.first_step < batch.first_step), batch)
