"""The jobs that compete in a round, with the numbers that are asked of all of them as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.types import Resources

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_COLUMNS = {
    "workers": "job.allocation.workers",
    "servers": "job.allocation.servers",
    "least_workers": "job.spec.worker.minimum",
    "least_servers": "job.spec.server.minimum",
    "most_workers": "job.spec.worker.maximum",
    "most_servers": "job.spec.server.maximum",
    "priority": "job.spec.priority",
    "submitted_at": "job.submitted_at",
    "attained": "job.attained_share_seconds",
    "confidence": "forecast.confidence",
    "learning": "learning",
    "measured": "measured",
    "claimed": "claimed",
    "stop_seconds": "stop_seconds",
    "waited_seconds": "waited_seconds",
    "held_seconds": "held_seconds",
    "typical_seconds": "typical_seconds",
}
_row_of = attrgetter(*_COLUMNS.values())


class Kinds(NamedTuple):
    """Amounts of resources: many jobs ask for the same."""

    different: tuple[Resources, ...]
    number: IntArray
    """(n,) which of them each job asks for."""

    @classmethod
    def of(cls, resources: Sequence[Resources]) -> Kinds:
        ids = np.array(list(map(id, resources)), dtype=np.int64)
        _, first, number = np.unique(ids, return_index=True, return_inverse=True)
        return cls(tuple([resources[i] for i in first.tolist()]), number)


class Contenders(tuple[Outlook, ...]):
    """Outlooks, and columns of them: arrays (n,) in the same order."""

    @classmethod
    def of(cls, outlooks: Sequence[Outlook]) -> Contenders:
        """`outlooks` itself if it has columns already."""
        return outlooks if isinstance(outlooks, Contenders) else cls(outlooks)

    @cached_property
    def _columns(self) -> dict[str, FloatArray]:
        table = np.array([_row_of(one) for one in self], dtype=np.float64).reshape(-1, len(_COLUMNS))
        return dict(zip(_COLUMNS, table.T.copy(), strict=True))

    def column(self, name: str) -> FloatArray:
        """See `_COLUMNS`."""
        return self._columns[name]

    def pairs(self, kind: str) -> IntArray:
        """(n, 2) workers and servers: `least_`, `most_` or, without a name, present ones."""
        workers, servers = self.column(f"{kind}workers"), self.column(f"{kind}servers")
        return np.stack([workers, servers], axis=1).astype(np.int64)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple([one.job.id for one in self])

    @cached_property
    def id_rank(self) -> IntArray:
        """The place of each in the order of the ids."""
        rank = np.empty(len(self), dtype=np.int64)
        rank[sorted(range(len(self)), key=self.ids.__getitem__)] = np.arange(len(self))
        return rank

    @cached_property
    def held(self) -> BoolArray:
        """Who has tasks."""
        return np.asarray(self.column("workers") + self.column("servers") > 0)

    @cached_property
    def remaining(self) -> FloatArray:
        """Steps left; NaN where nothing says how many."""
        found = [one.forecast.remaining_steps for one in self]
        return np.array([math.nan if each is None else each.mean for each in found])

    @cached_property
    def worker_kinds(self) -> Kinds:
        """What a worker of each asks for."""
        return Kinds.of([one.job.spec.worker.resources for one in self])

    @cached_property
    def server_kinds(self) -> Kinds:
        return Kinds.of([one.job.spec.server.resources for one in self])

    @cached_property
    def is_unknown(self) -> BoolArray:
        """Of whom either steps left or speeds are not known."""
        return np.asarray(np.isnan(self.remaining) | [one.speeds.source is None for one in self])
