"""The jobs that compete in a round as a struct of arrays: sizes, forecasts and the resources of their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.allocate.optimus.arrays import BoolArray, FloatArray, IntArray
from optimus_scheduler.forecast.outlook import STEADY_COLUMNS, Outlook
from optimus_scheduler.model import Resources

_LEAST_SHARE = 1e-9


class ResourceShapes:
    """The different amounts that the jobs of one round ask for."""

    def __init__(self) -> None:
        self.all: list[Resources] = []
        """By number."""
        self._number_of: dict[object, int] = {}

    def numbers(self, outlooks: Sequence[Outlook]) -> IntArray:
        """(n, 2) the numbers of a worker's and of a server's, the same for equal amounts."""
        asks = [one.steady.asks or one.asks for one in outlooks]
        places = list(map(id, asks))  # in memory: to hash what is asked for takes longer
        different = dict(zip(places, outlooks, strict=True))
        pairs = np.array([self._pair(one) for one in different.values()], dtype=np.int64).reshape(-1, 2)
        number = dict(zip(different, range(len(different)), strict=True))
        return pairs[np.fromiter(map(number.__getitem__, places), np.int64, len(places))]

    def _pair(self, one: Outlook) -> tuple[int, int]:
        (worker, server), spec = one.asks, one.job.spec
        return self._number(worker, spec.worker.resources), self._number(server, spec.server.resources)

    def _number(self, key: object, resources: Resources) -> int:
        number = self._number_of.get(key)
        if number is None:
            number = self._number_of[key] = len(self.all)
            self.all.append(resources)
        return number

    @property
    def gpu_types(self) -> list[str]:
        """All types that any of the shapes has."""
        return list(dict.fromkeys(gpu_type for one in self.all for gpu_type in one.gpus))

    def dominant_shares(self, capacity: Resources) -> FloatArray:
        """(k,) of the capacity, above 0, at most 1."""
        shares = [one.dominant_share(capacity) for one in self.all]
        return np.minimum(np.maximum(shares, _LEAST_SHARE), 1.0)

    def amounts(self, gpu_types: Sequence[str]) -> FloatArray:
        """(k, 2 + types) cores, bytes, and GPUs of each of these types."""
        return np.array([amounts(one, gpu_types) for one in self.all], dtype=np.float64)


def amounts(resources: Resources, gpu_types: Sequence[str]) -> list[float]:
    """Cores, bytes, and GPUs of each of these types."""
    gpus = (float(resources.gpus.get(gpu_type, 0)) for gpu_type in gpu_types)
    return [resources.cpu, float(resources.memory_bytes), *gpus]


_ATTRIBUTES = {
    "attained": "job.attained_share_seconds",
    "measured": "measured",
    "unsaved_seconds": "job.unsaved_seconds",
    "waited_seconds": "waited_seconds",
    "allocated_seconds": "allocated_seconds",
}
"""Columns, and what of an outlook they hold ..."""
COLUMNS = (*STEADY_COLUMNS, *_ATTRIBUTES)
"""... beside those that time does not change."""
_values_of = attrgetter(*_ATTRIBUTES.values())


class Rows(NamedTuple):
    """Of n jobs, in their order."""

    columns: NDArray[np.float64]
    """(columns, n)"""
    asked: NDArray[np.int64]
    """(n, 2) the resource shapes of a worker and of a server, as numbers ..."""
    shapes: ResourceShapes
    """... of these."""


def rows_of(outlooks: Sequence[Outlook]) -> Rows:
    """The rows of these jobs."""
    n, steady, width = len(outlooks), len(STEADY_COLUMNS), len(_ATTRIBUTES)
    columns = np.empty((len(COLUMNS), n))
    packed = [one.steady.columns or one.steady_columns for one in outlooks]
    columns[:steady] = np.frombuffer(b"".join(packed)).reshape(-1, steady).T
    reported = np.fromiter(chain.from_iterable(map(_values_of, outlooks)), np.float64, n * width)
    columns[steady:] = reported.reshape(-1, width).T
    shapes = ResourceShapes()
    return Rows(columns, shapes.numbers(outlooks), shapes)


class JobColumns(tuple[Outlook, ...]):
    """Outlooks, and columns of them: arrays (n,) in the same order."""

    @classmethod
    def of(cls, outlooks: Sequence[Outlook]) -> JobColumns:
        """`outlooks` itself if it has columns already."""
        return outlooks if isinstance(outlooks, JobColumns) else cls(outlooks)

    @classmethod
    def by_arrival(cls, outlooks: Sequence[Outlook]) -> JobColumns:
        """Sorted by arrival, then by id."""
        by_id = sorted(outlooks, key=attrgetter("id"))
        order = np.array([one.job.submitted_at for one in by_id]).argsort(kind="stable")
        competing = cls([by_id[place] for place in order.tolist()])
        competing.id_rank = order
        return competing

    @cached_property
    def _rows(self) -> Rows:
        return rows_of(self)

    @cached_property
    def _columns(self) -> dict[str, FloatArray]:
        return dict(zip(COLUMNS, self._rows.columns, strict=True))

    def column(self, name: str) -> FloatArray:
        """See `COLUMNS`."""
        return self._columns[name]

    def pairs(self, prefix: str) -> IntArray:
        """(n, 2) workers and servers: `least_`, `most_` or, without a name, present ones."""
        pairs = self._pairs.get(prefix)
        if pairs is None:
            workers, servers = self.column(f"{prefix}workers"), self.column(f"{prefix}servers")
            pairs = self._pairs[prefix] = np.empty((len(self), 2), dtype=np.int64)
            pairs[:, 0], pairs[:, 1] = workers, servers
        return pairs

    @cached_property
    def _pairs(self) -> dict[str, IntArray]:
        return {}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple([one.id for one in self])

    @cached_property
    def id_rank(self) -> IntArray:
        """The place of each in the order of the ids."""
        rank = np.empty(len(self), dtype=np.int64)
        rank[sorted(range(len(self)), key=self.ids.__getitem__)] = np.arange(len(self))
        return rank

    @cached_property
    def has_tasks(self) -> BoolArray:
        """(n,) whether the job has tasks."""
        return np.asarray(self.column("workers") + self.column("servers") > 0)

    @property
    def remaining(self) -> FloatArray:
        """Steps left; NaN where unknown."""
        return self.column("remaining")

    @property
    def shapes(self) -> ResourceShapes:
        """What workers and servers of these jobs ask for."""
        return self._rows.shapes

    @property
    def worker_shape(self) -> IntArray:
        """(n,) the number of the resource shape of a worker."""
        return self._rows.asked[:, 0]

    @property
    def server_shape(self) -> IntArray:
        """(n,) ... and a server."""
        return self._rows.asked[:, 1]

    @cached_property
    def is_unknown(self) -> BoolArray:
        """(n,) whether the remaining steps or the speeds of the job are unknown."""
        return np.asarray(np.isnan(self.remaining) | (self.column("speeds_known") == 0))
