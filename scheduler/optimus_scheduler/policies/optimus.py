"""The default policy: the sizes that are worth most together, where short jobs are worth more and changes cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.policies.base import Contest, Grant
from optimus_scheduler.policies.candidates import candidates, sizes_of
from optimus_scheduler.policies.claims import claims
from optimus_scheduler.policies.hand_out import hand_out
from optimus_scheduler.policies.ladders import FloatArray, Ladders
from optimus_scheduler.policies.reasons import grants
from optimus_scheduler.settings import Settings
from optimus_scheduler.transfer import spread_least_transfer
from optimus_scheduler.types import Resources


class OptimusPolicy:
    """Maximises the sum of weight · speed, with weights by remaining work, charged with the cost of changing.

    See `weights` for the theory, `candidates` for what is compared, `claims` for who cannot lose, `hand_out` for how.
    """

    name = "optimus"
    keeps_places = True
    places_in_order = False
    spread = staticmethod(spread_least_transfer)

    def allocate(self, contest: Contest, settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every contender; together they fit in the capacity."""
        if not contest.contenders:
            return {}
        outlooks = sorted(contest.contenders, key=lambda one: (one.job.submitted_at, one.id))
        ladders = Ladders(outlooks, contest.capacity)
        table = candidates(outlooks, ladders, sizes_of(outlooks, settings), settings)
        room, per_worker, per_server = _amounts(outlooks, contest.capacity)
        demand = table.workers[:, None] * per_worker[table.job] + table.servers[:, None] * per_server[table.job]
        claimed = claims(outlooks, table, demand, room, settings)
        blocked = ~claimed.may_start[table.job] & (table.workers + table.servers > 0)
        open_table = replace(table, worth=np.where(blocked, -1.0, table.worth)) if blocked.any() else table
        result = hand_out(open_table, demand, claimed.row, claimed.room, 1e-9 * np.maximum(room, 1.0))
        return grants(outlooks, table, result, demand, settings)


def _amounts(outlooks: Sequence[Outlook], capacity: Resources) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(r,) the capacity and (n, r) what a worker and a server of each job need: cores, bytes, GPUs of each type."""
    kinds = sorted({*capacity.gpus, *(kind for one in outlooks for kind in one.job.spec.worker.resources.gpus)})
    known: dict[int, list[float]] = {}

    def amounts(resources: Resources) -> list[float]:
        if id(resources) not in known:
            known[id(resources)] = [
                resources.cpu, float(resources.memory_bytes), *(float(resources.gpus.get(kind, 0)) for kind in kinds)
            ]
        return known[id(resources)]

    per_worker = np.array([amounts(one.job.spec.worker.resources) for one in outlooks])
    per_server = np.array([amounts(one.job.spec.server.resources) for one in outlooks])
    return np.array(amounts(capacity)), per_worker, per_server
