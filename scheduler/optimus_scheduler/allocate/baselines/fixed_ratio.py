"""Sizes that the baselines give: workers and servers in step, one to one, as in the paper's comparison."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any

from optimus_scheduler.allocate.policy import AllocationInput, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, Reason, Resources


def one_more(outlook: Outlook, size: Allocation) -> Allocation | None:
    """The next size: a worker or a server, whichever there are fewer of; None at the maximum."""
    most = outlook.maximum
    more_workers = size.workers < most.workers
    more_servers = size.servers < most.servers
    if more_workers and (size.workers <= size.servers or not more_servers):
        return outlook.size(size.workers + 1, size.servers)
    return outlook.size(size.workers, size.servers + 1) if more_servers else None


def largest_fitting(outlook: Outlook, available: Resources, most: Allocation) -> Allocation | None:
    """The largest size up to `most` that fits, grown in step from the minimum; None when not even that fits."""
    if outlook.demand(most).fits_in(available):
        return most
    size = outlook.minimum
    if not outlook.demand(size).fits_in(available):
        return None
    while (larger := one_more(outlook, size)) is not None and outlook.demand(larger).fits_in(available):
        if larger.workers > most.workers or larger.servers > most.servers:
            break
        size = larger
    return size


def in_turn(
    inputs: AllocationInput,
    order: Callable[[Outlook], Any],
    size_of: Callable[[Outlook, Resources], Allocation | None],
) -> Mapping[str, Grant]:
    """One job after the other, sorted by `order`: each gets `size_of` it and of what is left; None: nothing."""
    available = inputs.capacity
    grants: dict[str, Grant] = {}
    for outlook in sorted(inputs.competing, key=order):
        size = size_of(outlook, available)
        grants[outlook.id] = grant(outlook, size)
        available = available - outlook.demand(size) if size else available
    return grants


def progressive_filling(
    inputs: AllocationInput, level_of: Callable[[Outlook, Allocation, Allocation], float | None]
) -> Mapping[str, Grant]:
    """The job with the lowest level is next and grows by one step, until nothing more fits; by job id.

    Each job starts with its minimum. `level_of(outlook, size, larger)` is the level of a job that has `size` and would
    grow to `larger`; None if it should not grow. Of jobs with equal levels the first to arrive is next.
    """
    jobs = sorted(inputs.competing, key=by_arrival)
    sizes: dict[str, Allocation] = {}
    available = inputs.capacity
    # (level, arrival, next size): a job that does not fit in what is left never will.
    queue = [(0.0, number, outlook.minimum) for number, outlook in enumerate(jobs)]
    heapq.heapify(queue)
    while queue:
        _, number, size = heapq.heappop(queue)
        outlook = jobs[number]
        present = sizes.get(outlook.id)
        added = outlook.demand(size) - outlook.demand(present) if present else outlook.demand(size)
        if not added.fits_in(available):
            continue
        available, sizes[outlook.id] = available - added, size
        larger = one_more(outlook, size)
        level = level_of(outlook, size, larger) if larger is not None else None
        if larger is not None and level is not None:
            heapq.heappush(queue, (level, number, larger))
    return {outlook.id: grant(outlook, sizes.get(outlook.id)) for outlook in jobs}


def grant(outlook: Outlook, size: Allocation | None) -> Grant:
    """The grant of a policy that reckons no gains; None: the job waits."""
    if size is None or size.is_empty:
        return Grant(NOTHING, Reason.WAITING_FOR_RESOURCES)
    before = outlook.present.workers + outlook.present.servers
    after = size.workers + size.servers
    if after > before:
        return Grant(size, Reason.GRANTED_MORE)
    return Grant(size, Reason.BETTER_USED_ELSEWHERE if after < before else Reason.UNCHANGED)


def by_arrival(outlook: Outlook) -> tuple[float, str]:
    """Sorts jobs by arrival."""
    return outlook.job.submitted_at, outlook.id
