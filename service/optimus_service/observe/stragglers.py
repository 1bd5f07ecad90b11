"""Which workers of a job are stragglers: what each needs for an example, beside the others of its membership."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from optimus_contract.telemetry import Sample

WINDOW_STEPS = 200
"""Steps that count, the newest: a node may become slow."""
LEAST_STEPS = 20
LEAST_SECONDS = 5.0
"""Of work, of each worker, before anybody is judged: short steps say little on a busy machine."""
SLOW = 0.5
"""Part of the median speed below which a worker is a straggler (Peng et al., section 5.2)."""
_FIRST_RECORD = 0
"""Of a membership: has the start in it."""


@dataclass(slots=True)
class _Work:
    """The newest steps of one worker: (steps, seconds of its own work, examples)."""

    parts: deque[tuple[int, float, int]] = field(default_factory=deque)
    n_steps: int = 0

    def add(self, sample: Sample) -> None:
        seconds = sample.compute_seconds + sample.data_seconds
        self.parts.append((sample.n_steps, seconds, sample.n_examples))
        self.n_steps += sample.n_steps
        while self.n_steps - self.parts[0][0] >= WINDOW_STEPS:
            self.n_steps -= self.parts.popleft()[0]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds, _ in self.parts)

    @property
    def examples_per_second(self) -> float:
        """Waiting for others does not count."""
        return sum(n for _, _, n in self.parts) / self.seconds


class SlowWorkers:
    """Watches the newest membership epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self._by_rank: dict[int, _Work] = {}
        self._n_workers = 0

    def add(self, sample: Sample) -> None:
        if sample.membership_epoch > self.epoch:
            self.epoch, self._n_workers = sample.membership_epoch, sample.workers
            self._by_rank.clear()
        if sample.membership_epoch == self.epoch and sample.sequence != _FIRST_RECORD and sample.n_examples:
            self._by_rank.setdefault(sample.rank, _Work()).add(sample)

    def ranks(self) -> tuple[int, ...]:
        """The stragglers, the slowest first; none before there is enough of everybody."""
        judged = {
            rank: work
            for rank, work in self._by_rank.items()
            if work.n_steps >= LEAST_STEPS and work.seconds >= LEAST_SECONDS
        }
        if len(judged) < max(2, self._n_workers):
            return ()
        speeds = {rank: work.examples_per_second for rank, work in judged.items()}
        limit = SLOW * statistics.median(speeds.values())
        return tuple(sorted((rank for rank in speeds if speeds[rank] < limit), key=lambda rank: (speeds[rank], rank)))
