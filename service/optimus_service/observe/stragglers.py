"""Which workers of a job are stragglers: what each needs for an example, beside the others of its membership."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from optimus_service.observe.speeds import FIRST_RECORD, Columns
from optimus_service.store.records import Document

WINDOW_STEPS = 200
"""Steps that count, the newest: a node may become slow."""
LEAST_STEPS = 20
LEAST_SECONDS = 5.0
"""Of work, of each worker, before anybody is judged: short steps say little on a busy machine."""
SLOW = 0.5
"""Part of the median speed below which a worker is a straggler (Peng et al., section 5.2)."""
_FIELDS: Final = (
    *("membership_epoch", "rank", "sequence"),
    *("n_steps", "compute_seconds", "data_seconds", "n_examples"),
)


@dataclass(slots=True)
class _Work:
    """The newest steps of one worker: (steps, seconds of its own work, examples)."""

    parts: list[tuple[int, float, int]] = field(default_factory=list)
    """Few: a deque has room for 64 from the beginning, in each of thousands of workers."""
    n_steps: int = 0

    def add(self, n_steps: int, seconds: float, n_examples: int) -> None:
        self.parts.append((n_steps, seconds, n_examples))
        self.n_steps += n_steps
        while self.n_steps - self.parts[0][0] >= WINDOW_STEPS:
            self.n_steps -= self.parts.pop(0)[0]

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
        self._found: tuple[int, ...] | None = ()
        """What `ranks` says; None: to be found anew."""

    def add(self, columns: Columns) -> None:
        self._found = None
        epochs = columns["membership_epoch"]
        newest = max(epochs)
        if newest > self.epoch:
            self.epoch, self._n_workers = newest, columns["workers"][epochs.index(newest)]
            self._by_rank.clear()
        for rank, part in reversed(self._newest_parts(columns)):
            work = self._by_rank.get(rank)
            if work is None:
                work = self._by_rank[rank] = _Work()
            work.add(*part)

    def _newest_parts(self, columns: Columns) -> list[tuple[int, tuple[int, float, int]]]:
        """Ranks with parts of their work that may count, the newest first: of many samples, most are too old."""
        found: list[tuple[int, tuple[int, float, int]]] = []
        steps: dict[int, int] = {}
        n_full = 0
        for epoch, rank, sequence, n_steps, compute_seconds, data_seconds, n_examples in zip(
            *(reversed(columns[name]) for name in _FIELDS), strict=True
        ):
            if epoch != self.epoch or sequence == FIRST_RECORD or not n_examples:
                continue
            known = steps.get(rank, 0)
            if known >= WINDOW_STEPS:
                continue
            steps[rank] = known + n_steps
            found.append((rank, (n_steps, compute_seconds + data_seconds, n_examples)))
            n_full += steps[rank] >= WINDOW_STEPS
            if n_full == self._n_workers:
                break
        return found

    def state(self) -> Document:
        """All that is known, for `restore`. Arrays: (parts, 3) of each rank."""
        parts = [(rank, np.array(list(work.parts), dtype=np.float64)) for rank, work in sorted(self._by_rank.items())]
        return {"epoch": self.epoch, "n_workers": self._n_workers, "parts": parts}

    def restore(self, state: Document) -> None:
        """Know what the watch knew that had this state."""
        self.epoch, self._n_workers, self._found = state["epoch"], state["n_workers"], None
        for rank, parts in state["parts"]:
            n_steps, seconds, n_examples = parts.reshape(-1, 3).T
            whole = n_steps.astype(np.int64).tolist()
            counted = list(zip(whole, seconds.tolist(), n_examples.astype(np.int64).tolist(), strict=True))
            self._by_rank[rank] = _Work(counted, sum(whole))

    def ranks(self) -> tuple[int, ...]:
        """The stragglers, the slowest first; none before there is enough of everybody."""
        if self._found is None:
            self._found = self._slowest_first()
        return self._found

    def _slowest_first(self) -> tuple[int, ...]:
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
