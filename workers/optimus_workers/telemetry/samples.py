"""From the records of single steps to the samples that are sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Sample = dict[str, Any]
"""A `Sample` as plain JSON values."""

SAMPLE_SECONDS = 0.25
"""Steps are gathered for at least this long: short steps would otherwise cost more to report than to compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One step of one worker. Seconds are wall time; the parts need not add up to `seconds`."""

    membership_epoch: int
    rank: int
    workers: int
    servers: int
    at: float
    """POSIX seconds at the end of the step."""
    step: int
    """Steps of the job completed at the end of this one, in steps of the base batch (see `global_batch`)."""
    n_steps: int = 1
    """Those of this one: more than 1 with weak scaling and with an elastic batch."""
    global_batch: int | None = None
    """Examples of this step over all workers, if the job's batch is elastic."""
    data_epoch: float
    """Passes over the data so far."""
    loss: float
    """Mean over this worker's examples of the step; may be NaN or infinite."""
    n_examples: int
    seconds: float
    data_seconds: float = 0.0
    compute_seconds: float = 0.0
    push_seconds: float = 0.0
    wait_seconds: float = 0.0
    pull_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    staleness: float | None = None
    """Async mode: updates by others between the pull and the push of this step."""
    gradients: dict[str, float] | None = None
    """Estimates of |G|² (`square`) and tr(Σ) (`variance`), if they are measured (`telemetry.gradients`)."""
    metrics: dict[str, float] | None = None
    """Figures of an evaluation after this step, if there was one."""

    @property
    def origin(self) -> tuple[int, int, int, int]:
        """What all steps of one sample have in common."""
        return self.membership_epoch, self.rank, self.workers, self.servers


_SUMMED = (
    "n_examples",
    "seconds",
    "data_seconds",
    "compute_seconds",
    "push_seconds",
    "wait_seconds",
    "pull_seconds",
    "sent_bytes",
    "received_bytes",
)


class Aggregator:
    """Gathers consecutive steps of one origin into samples, and numbers them per (membership epoch, rank)."""

    def __init__(
        self, sample_seconds: float = SAMPLE_SECONDS, usage: Callable[[], dict[str, float | int]] | None = None
    ) -> None:
        """`usage`: what the task took of its machine since the last sample."""
        self._sample_seconds = sample_seconds
        self._usage = usage
        self._open: list[Record] = []
        self._sequences: dict[tuple[int, int], int] = {}

    def add(self, record: Record) -> list[Sample]:
        """Take one record in; the samples that are complete now (none, one or two)."""
        complete = self.take() if self._open and self._open[0].origin != record.origin else []
        self._open.append(record)
        # Figures belong to one step: the sample ends with it.
        if record.metrics is not None or sum(step.seconds for step in self._open) >= self._sample_seconds:
            complete += self.take()
        return complete

    def take(self) -> list[Sample]:
        """Close the open sample, if any, however short it is."""
        records, self._open = self._open, []
        if not any(record.n_examples for record in records):
            return []  # a worker without a slot has trained on nothing and has no loss to tell
        key = records[0].membership_epoch, records[0].rank
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        usage = {} if self._usage is None else {"usage": self._usage()}
        return [_sample(records, sequence) | usage]


def _sample(records: list[Record], sequence: int) -> Sample:
    last = records[-1]
    sample: Sample = {
        "membership_epoch": last.membership_epoch,
        "rank": last.rank,
        "sequence": sequence,
        "workers": last.workers,
        "servers": last.servers,
        "at": last.at,
        "step": last.step,
        "n_steps": sum(record.n_steps for record in records),
        "data_epoch": last.data_epoch,
        "loss": json_number(_mean_loss(records)),
        "staleness": _mean(record.staleness for record in records if record.staleness is not None),
    }
    if last.global_batch is not None:
        sample |= {"global_batch": last.global_batch, "updates": len(records)}
    if last.gradients is not None:
        sample["gradients"] = dict(last.gradients)
    if last.metrics is not None:
        sample["metrics"] = {name: json_number(value) for name, value in last.metrics.items()}
    return sample | {name: sum(getattr(record, name) for record in records) for name in _SUMMED}


def _mean_loss(records: list[Record]) -> float:
    """The mean over all examples of these steps."""
    weighed = [(record.loss, record.n_examples) for record in records if record.n_examples]
    return sum(loss * n for loss, n in weighed) / sum(n for _, n in weighed)


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def json_number(value: float) -> float | str:
    """The number, or where JSON has no number for it one of the strings "NaN", "Infinity", "-Infinity"."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
