"""Tetris: multi-resource packing; demands that align with the free capacity, and short jobs, go first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optimus_scheduler.allocate.baselines.fixed_ratio import by_arrival, grant
from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, JobSpec, Resources
from optimus_scheduler.place.network_cost import spread_least_transfer
from optimus_scheduler.settings import Settings


class TetrisPolicy:
    """Multi-resource packing mixed with shortest remaining work; what runs is not touched.

    score = a/ā + p̄/p, where a is the alignment, the sum over resources of demand by what is free (both as fractions of
    the cluster), p the remaining work, demand by predicted time, and bars are means over the waiting jobs. The waiting
    job with the largest score starts with what it asked for, until none fits.

    References: Grandl et al., "Multi-resource packing for cluster schedulers", SIGCOMM 2014, sections 3.2 and 3.3.
    """

    name = "tetris"
    keeps_places = True
    places_in_order = False
    scales_batches = False
    gathers = False
    spread = staticmethod(spread_least_transfer)

    def only_size(self, spec: JobSpec, /) -> tuple[int, int] | None:
        return spec.asked_size

    def allocate(self, inputs: AllocationInput, _settings: Settings, /) -> Mapping[str, Grant]:
        """A grant for every competing job; together they fit in the capacity."""
        sizes: dict[str, Allocation] = {}
        available, waiting = inputs.capacity, []
        for outlook in sorted(inputs.competing, key=by_arrival):
            if outlook.has_tasks and outlook.demand(outlook.present).fits_in(available):
                sizes[outlook.id], available = outlook.present, available - outlook.demand(outlook.present)
            else:
                waiting.append(outlook)
        while waiting:
            chosen = _best(waiting, available, inputs.capacity)
            waiting.remove(chosen)
            if chosen.demand(chosen.requested).fits_in(available):
                sizes[chosen.id], available = chosen.requested, available - chosen.demand(chosen.requested)
        return {outlook.id: grant(outlook, sizes.get(outlook.id)) for outlook in inputs.competing}


def _best(waiting: Sequence[Outlook], available: Resources, capacity: Resources) -> Outlook:
    alignment = [_alignment(outlook.demand(outlook.requested), available, capacity) for outlook in waiting]
    work = [_work(outlook, capacity) for outlook in waiting]
    mean_alignment = sum(alignment) / len(waiting) or 1.0
    mean_work = sum(work) / len(waiting)
    scores = [a / mean_alignment + mean_work / max(p, 1e-9 * mean_work) for a, p in zip(alignment, work, strict=True)]
    return max(zip(scores, waiting, strict=True), key=lambda pair: (pair[0], pair[1].id))[1]


def _alignment(demand: Resources, available: Resources, capacity: Resources) -> float:
    pairs = [(demand.cpu, available.cpu, capacity.cpu)]
    pairs.append((float(demand.memory_bytes), float(available.memory_bytes), float(capacity.memory_bytes)))
    for gpu_type, count in demand.gpus.items():
        pairs.append((float(count), float(available.gpus.get(gpu_type, 0)), float(capacity.gpus.get(gpu_type, 0))))
    return sum(wanted / total * free / total for wanted, free, total in pairs if total > 0)


def _work(outlook: Outlook, capacity: Resources) -> float:
    """Share-seconds that the job still needs."""
    share = outlook.demand(outlook.requested).dominant_share(capacity)
    return max(outlook.remaining_seconds(outlook.requested), 1.0) * max(share, 1e-12)
