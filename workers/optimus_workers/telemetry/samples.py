"""From samples of single steps to the samples that are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from optimus_contract.telemetry import Sample, Usage

SAMPLE_SECONDS = 0.25
"""Steps are gathered for at least this long: short steps would otherwise cost more to report than to compute."""

_SUMMED = (
    "n_steps",
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
    """Gathers consecutive steps of one origin into samples, and numbers them per (membership epoch, rank).

    An origin is a worker in one membership: epoch, rank, workers and servers.
    """

    def __init__(self, sample_seconds: float = SAMPLE_SECONDS, usage: Callable[[], Usage] | None = None) -> None:
        """`usage`: what the task took of its machine since the last sample."""
        self._sample_seconds = sample_seconds
        self._usage = usage
        self._open: list[Sample] = []
        self._sequences: dict[tuple[int, int], int] = {}

    def add(self, step: Sample) -> list[Sample]:
        """Take in one step, whose `sequence` does not count; the samples that are complete now (none, one or two)."""
        complete = self.take() if self._open and _origin(self._open[0]) != _origin(step) else []
        self._open.append(step)
        # Figures of an evaluation belong to one step: the sample ends with it.
        if step.metrics is not None or sum(each.seconds for each in self._open) >= self._sample_seconds:
            complete += self.take()
        return complete

    def take(self) -> list[Sample]:
        """Close the open sample, if any, however short it is."""
        steps, self._open = self._open, []
        if not any(step.n_examples for step in steps):
            return []  # a worker without a slot has trained on nothing and has no loss to report
        key = steps[0].membership_epoch, steps[0].rank
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        last = steps[-1]
        return [
            replace(
                last,
                sequence=sequence,
                updates=None if last.global_batch is None else len(steps),
                loss=_mean_loss(steps),
                staleness=_mean(step.staleness for step in steps if step.staleness is not None),
                usage=None if self._usage is None else self._usage(),
                **{name: sum(getattr(step, name) for step in steps) for name in _SUMMED},
            )
        ]


def _origin(sample: Sample) -> tuple[int, int, int, int]:
    return sample.membership_epoch, sample.rank, sample.workers, sample.servers


def _mean_loss(steps: list[Sample]) -> float:
    """The mean over all examples of these steps."""
    weighed = [(step.loss, step.n_examples) for step in steps if step.n_examples]
    return sum(loss * n for loss, n in weighed) / sum(n for _, n in weighed)


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
