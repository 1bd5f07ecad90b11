"""The jobs that compete in a round, with the numbers that are asked of all of them as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.allocate.optimus.outlook_columns import FIGURES, Rows, rows_of
from optimus_scheduler.allocate.optimus.resource_shapes import ResourceShapes
from optimus_scheduler.forecast.outlook import Outlook

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class JobColumns(tuple[Outlook, ...]):
    """Outlooks, and columns of them: arrays (n,) in the same order."""

    @classmethod
    def of(cls, outlooks: Sequence[Outlook]) -> JobColumns:
        """`outlooks` itself if it has columns already."""
        return outlooks if isinstance(outlooks, JobColumns) else cls(outlooks)

    @classmethod
    def by_arrival(cls, outlooks: Sequence[Outlook]) -> JobColumns:
        """Sorted by arrival, then by id."""
        by_id = sorted(outlooks, key=attrgetter("job.id"))
        order = np.argsort([one.job.submitted_at for one in by_id], kind="stable")
        competing = cls([by_id[place] for place in order.tolist()])
        competing.id_rank = order
        return competing

    @cached_property
    def _rows(self) -> Rows:
        return rows_of(self)

    @cached_property
    def _columns(self) -> dict[str, FloatArray]:
        return dict(zip(FIGURES, self._rows.figures, strict=True))

    def column(self, name: str) -> FloatArray:
        """See `FIGURES`."""
        return self._columns[name]

    def pairs(self, kind: str) -> IntArray:
        """(n, 2) workers and servers: `least_`, `most_` or, without a name, present ones."""
        pairs = self._pairs.get(kind)
        if pairs is None:
            workers, servers = self.column(f"{kind}workers"), self.column(f"{kind}servers")
            pairs = self._pairs[kind] = np.stack([workers, servers], axis=1).astype(np.int64)
        return pairs

    @cached_property
    def _pairs(self) -> dict[str, IntArray]:
        return {}

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
        """(n,) whether the job has tasks."""
        return np.asarray(self.column("workers") + self.column("servers") > 0)

    @property
    def remaining(self) -> FloatArray:
        """Steps left; NaN where nothing says how many."""
        return self.column("remaining")

    @property
    def shapes(self) -> ResourceShapes:
        """What workers and servers of these jobs ask for."""
        return self._rows.shapes

    @property
    def worker_shape(self) -> IntArray:
        """(n,) the number of what a worker of each asks for."""
        return self._rows.asked[:, 0]

    @property
    def server_shape(self) -> IntArray:
        """(n,) ... and a server."""
        return self._rows.asked[:, 1]

    @cached_property
    def is_unknown(self) -> BoolArray:
        """(n,) whether the remaining steps or the speeds of the job are unknown."""
        return np.asarray(np.isnan(self.remaining) | (self.column("speeds_known") == 0))
