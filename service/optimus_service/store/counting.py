"""Which samples count, and what they say of a job's progress: pure rules, no database.

A job's history is a chain of membership epochs. Epoch e owns the steps from where it began up to where a later epoch
began; when a death rolled training back, the steps beyond that point were done again by the later epoch, and what e
tells of them counts no more::

    epoch 1   ├──────────────┼─ ─ ─ ─┤  rolled back: samples that reach into this part are "old_membership"
    epoch 2                  ├──────────────▶
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optimus_contract.telemetry import Sample
from optimus_service.store.records import IgnoredWhy

SampleKey = tuple[int, int, int]
"""(membership epoch, rank, sequence): unique in a job."""


@dataclass(frozen=True, slots=True)
class EpochBounds:
    """What the telemetry rules need to know of a reported membership."""

    step: int
    """Steps completed when it began."""
    n_workers: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is."""

    step: int
    first_step: int | None
    epoch: float | None
    loss: float | None


def key_of(sample: Sample) -> SampleKey:
    """What makes the sample unique in its job."""
    return sample.membership_epoch, sample.rank, sample.sequence


def why_ignored(sample: Sample, reported: Mapping[int, EpochBounds]) -> IgnoredWhy | None:
    """Why the job's history, `reported` by epoch, has no place for the sample; None when it has."""
    if sample.membership_epoch > max(reported, default=0) + 1:
        return "unknown_membership"
    own = reported.get(sample.membership_epoch)
    if own is not None and sample.rank >= own.n_workers:
        return "old_membership"
    ended_at = min((bounds.step for epoch, bounds in reported.items() if epoch > sample.membership_epoch), default=None)
    if ended_at is not None and sample.step > ended_at:
        return "old_membership"
    return None


def split_repeats(
    samples: Sequence[Sample], reported: Mapping[int, EpochBounds]
) -> tuple[dict[SampleKey, int], dict[int, IgnoredWhy]]:
    """Sort a post into candidates (index of the first sample of each key) and ignored ones (why, by index)."""
    candidates: dict[SampleKey, int] = {}
    ignored: dict[int, IgnoredWhy] = {}
    for index, sample in enumerate(samples):
        why = why_ignored(sample, reported)
        if why is None and key_of(sample) in candidates:
            why = "duplicate"
        if why is None:
            candidates[key_of(sample)] = index
        else:
            ignored[index] = why
    return candidates, ignored


def advance_progress(progress: Progress, counted: Iterable[Sample]) -> Progress:
    """Where a job is after these samples: the furthest one tells step, epoch and loss; the step never goes back."""
    for sample in sorted(counted, key=lambda sample: (sample.step, sample.membership_epoch, sample.rank)):
        begun = max(0, sample.step - sample.n_steps + 1)
        first = begun if progress.first_step is None else min(progress.first_step, begun)
        if progress.first_step is None or sample.step >= progress.step:
            loss = progress.loss if sample.loss is None else sample.loss
            progress = Progress(max(progress.step, sample.step), first, sample.data_epoch, loss)
        else:
            progress = Progress(progress.step, first, progress.epoch, progress.loss)
    return progress
