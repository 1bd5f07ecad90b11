"""The default policy: the sizes that are worth most together, where short jobs are worth more and changes cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from optimus_scheduler.allocate.optimus.arrays import FloatArray
from optimus_scheduler.allocate.optimus.candidates import Candidates, candidates, sizes_of
from optimus_scheduler.allocate.optimus.frontier import Frontiers
from optimus_scheduler.allocate.optimus.greedy import GreedyResult, allocate_greedily
from optimus_scheduler.allocate.optimus.guarantees import guaranteed, present_rows, turn_of
from optimus_scheduler.allocate.optimus.job_columns import JobColumns, amounts
from optimus_scheduler.allocate.optimus.reasons import grants
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import TOLERANCE
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings


class OptimusPolicy:
    """Maximises the sum of weight · speed, with weights by remaining work, charged with the cost of changing.

    `weights` has the theory, `candidates` the sizes that are compared, `guaranteed` the guaranteed minima, and
    `allocate_greedily` the method.
    """

    name = "optimus"
    keeps_places = True
    places_in_order = False
    scales_batches = True
    gathers = True
    spread = staticmethod(spread_least_transfer)

    def allocate(self, inputs: AllocationInput, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        if not inputs.competing:
            return {}
        outlooks = JobColumns.by_arrival(inputs.competing)
        frontiers = Frontiers(outlooks, inputs.capacity)
        table = candidates(outlooks, frontiers, sizes_of(outlooks, settings), settings, inputs.now)
        amounts = _ResourceArrays.of(outlooks, inputs)
        demand = amounts.demand(table)
        problem = _Problem(outlooks, table, demand, amounts, settings)
        result = problem.solve()
        needless = problem.needlessly_shrunk(result)
        if needless:
            result = problem.solve(needless)
        return grants(outlooks, table, result, demand, amounts.capacity, amounts.leaving, settings)

    def seconds_to_turn(self, outlook: Outlook, settings: Settings, /) -> float:
        """See `turn_of`."""
        return turn_of(outlook, settings).in_seconds


@dataclass(frozen=True, slots=True, eq=False)
class _ResourceArrays:
    """Amounts of each resource: cores, bytes, GPUs of each type; r of them."""

    capacity: FloatArray
    """(r,)"""
    leaving: FloatArray
    """(r,) what jobs that are being finished will free in a moment."""
    worker: FloatArray
    """(n, r) what a worker of each job needs."""
    server: FloatArray

    @classmethod
    def of(cls, outlooks: JobColumns, inputs: AllocationInput) -> _ResourceArrays:
        worker, server = outlooks.worker_shape, outlooks.server_shape
        types = sorted({*inputs.capacity.gpus, *outlooks.shapes.gpu_types})
        each = outlooks.shapes.amounts(types)
        capacity, leaving = (np.array(amounts(given, types)) for given in (inputs.capacity, inputs.leaving))
        return cls(capacity, leaving, each[worker], each[server])

    def demand(self, table: Candidates) -> FloatArray:
        """(k, r) of each candidate."""
        n_rows = table.first[1:] - table.first[:-1]
        worker, server = (each.repeat(n_rows, axis=0) for each in (self.worker, self.server))
        worker *= table.workers[:, None]
        server *= table.servers[:, None]
        worker += server
        return worker


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """The allocation problem of one round, as arrays."""

    outlooks: JobColumns
    table: Candidates
    demand: FloatArray
    """(k, r) of each candidate."""
    amounts: _ResourceArrays
    settings: Settings

    def solve(self, unchanged: Collection[int] = ()) -> GreedyResult:
        """The best sizes; the jobs `unchanged` keep theirs."""
        settings, table = self.settings, self.table
        sure = guaranteed(self.outlooks, table, self.demand, self.amounts.capacity, settings, unchanged)
        shut = ~sure.may_start[table.job] & (table.workers + table.servers > 0)
        if shut.any():
            table = replace(table, worth=np.where(shut, -1.0, table.worth))
        return allocate_greedily(table, self.demand, sure.row, sure.available, settings.least_task_gain)

    def needlessly_shrunk(self, result: GreedyResult) -> frozenset[int]:
        """Jobs whose shrinking is unnecessary: ending jobs free enough capacity in a moment; else empty.

        Also empty when a waiting job would start: it does not have to wait for that capacity.
        """
        table, has_tasks = self.table, self.outlooks.has_tasks
        near_end = has_tasks & (table.seconds_left < self.settings.near_end_seconds)
        starts = ~has_tasks & (result.row > table.first[:-1])
        if starts.any() or not (self.amounts.leaving.any() or near_end.any()):
            return frozenset()
        present = self.demand[present_rows(self.outlooks, table)]
        leaving = self.amounts.leaving + present[near_end].sum(axis=0)
        gets = self.demand[result.row]
        gives = has_tasks & (present > gets).any(axis=1)
        wanted = gets.sum(axis=0) + (present - gets)[gives].sum(axis=0)  # if the shrinking jobs kept what they have
        comes = (wanted - self.amounts.capacity <= leaving + TOLERANCE).all()
        return frozenset(gives.nonzero()[0].tolist()) if comes else frozenset()
