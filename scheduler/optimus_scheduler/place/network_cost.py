"""How the tasks of one job are spread over nodes, so that little of its model crosses between nodes.

A step moves the model between every server and every worker; what happens inside one node is free. With p servers
and w workers, p_k and w_k of them on node k, and one unit of time to send the whole model once, a step costs

    max over k of:  (w - w_k)/p  if p_k > 0   (each server of k serves the workers elsewhere)
                    (p - p_k)/p  if w_k > 0   (each worker of k asks the servers elsewhere)

This is the paper's objective, with each term counted only where there is such a task: counted everywhere, as in its
Theorem 1, an even spread looks best even where it is not (Optimus reference, section 4.3).

Among spreads of the same cost, those within one rack are preferred, then those with fewer nodes, then those on the
fullest nodes, which leave whole nodes free for jobs that need them.

References: Peng et al., "Optimus", EuroSys 2018, section 4.2 and appendix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from optimus_scheduler.model.amounts import Vector, covers, holds, minus, times, together
from optimus_scheduler.place.bottleneck import Added, Extra, Space, cheapest_of_all, spread_over
from optimus_scheduler.place.equivalence_classes import Domain
from optimus_scheduler.place.free_capacity import FreeCapacity
from optimus_scheduler.place.patterns import Pattern, best_pattern, even_part

_FEW = 12
"""Nodes of each kind that are looked at first for a job that does not fit a pattern."""
_QUICK = 1_500
"""Combinations that are looked at for a job that does not seem to fit: many wait, and ask in every round."""

Present = Mapping[int, tuple[int, int]]
"""Node → (workers, servers) of the job that stay there."""
Spread = Callable[[FreeCapacity, Extra, Present], Added | None]
"""Chooses nodes for further tasks of one job; None when it finds no way."""


def transfer_cost(counts: Iterable[tuple[int, int]]) -> float:
    """What a step costs with (workers, servers) on each node; 0 on a single node. See the head of this module."""
    counts = list(counts)
    w, p = sum(workers for workers, _ in counts), sum(servers for _, servers in counts)
    return max((_node_cost(w, p, w_k, p_k) for w_k, p_k in counts), default=0.0)


def _node_cost(w: int, p: int, w_k: int, p_k: int) -> float:
    by_servers = (w - w_k) / p if p_k else 0.0
    by_workers = (p - p_k) / p if w_k and p else 0.0
    return max(by_servers, by_workers)


# --- least transfer --------------------------------------------------------------------------------------------------


def spread_least_transfer(free_capacity: FreeCapacity, extra: Extra, present: Present) -> Added | None:
    """The spread with the least transfer cost.

    For a job that has no tasks yet, the best pattern there is (`patterns`) if it fits on the nodes: in one rack
    if one rack has. Otherwise the cheapest spread over the nodes that could matter (`bottleneck`, and for
    small sizes `cheapest_of_all`).
    """
    if extra.workers + extra.servers == 0:
        return {}
    if len(present) <= 1 and (on_one := _on_one_node(free_capacity, extra, present)) is not None:
        return on_one
    if _has_no_servers(extra, present):
        return _fill_closely(free_capacity, extra, present)
    if not present and extra.workers and extra.servers:
        added = _by_pattern(free_capacity, extra)
        if added is not None:
            return added
    return _over_candidates(free_capacity, extra, present)


def _has_no_servers(extra: Extra, present: Present) -> bool:
    """Whether the job is an all-reduce job."""
    return extra.servers == 0 and not any(servers for _, servers in present.values())


def _on_one_node(free_capacity: FreeCapacity, extra: Extra, present: Present) -> Added | None:
    """Everything beside what is there, or on the fullest node that holds it."""
    need = extra.need
    for node in present:
        return (
            {node: (extra.workers, extra.servers)}
            if free_capacity.is_open[node] and free_capacity.fits(need, node)
            else None
        )
    largest = free_capacity.node_classes.largest_available(extra.worker)
    if largest is None or not covers(largest, need):
        return None
    nodes = free_capacity.node_classes.tightest(need, 1, ())
    return {nodes[0]: (extra.workers, extra.servers)} if nodes else None


# --- patterns on nodes -----------------------------------------------------------------------------------------------


def _by_pattern(free_capacity: FreeCapacity, extra: Extra) -> Added | None:
    """The best pattern for nodes as large as any; None when there are too few of them."""
    expected = free_capacity.node_classes.largest_available(extra.worker)
    added = _with_available(free_capacity, extra, expected)
    if added is None:
        free_capacity.node_classes.forget_largest(extra.worker)
        present = free_capacity.node_classes.largest_available(extra.worker)
        if present != expected:
            added = _with_available(free_capacity, extra, present)
    return added


def _with_available(free_capacity: FreeCapacity, extra: Extra, available: Vector | None) -> Added | None:
    """The best pattern for nodes with that free capacity, in one rack if one has enough of them."""
    pattern = best_pattern(extra, available) if available else None
    if pattern is None:
        return None
    domains = _domains(free_capacity, extra.need, ())
    return next((added for domain in domains if (added := _realise(domain, pattern, extra)) is not None), None)


def _domains(free_capacity: FreeCapacity, need: Vector, near: Collection[int]) -> Iterator[Domain]:
    """Racks that may hold the job, then the whole cluster."""
    yield from free_capacity.racks.for_job(need, near)
    yield free_capacity.node_classes


def _realise(domain: Domain, pattern: Pattern, extra: Extra) -> Added | None:
    """Each part on the fullest node that holds it, what is loose on as few further nodes as will do."""
    added: Added = {}
    for part, count in pattern.different.items():
        nodes = domain.tightest(together(extra.worker, part[0], extra.server, part[1]), count, added)
        if len(nodes) < count:
            return None
        added.update(dict.fromkeys(nodes, part))
    for role, left in enumerate(pattern.loose):
        if left and not _fill_others(domain, extra, role, left, added):
            return None
    return added


def _fill_others(domain: Domain, extra: Extra, role: int, left: int, added: Added) -> bool:
    """Tasks of one role on further nodes: the fullest that holds them all, or the roomiest while there is none."""
    need = extra.needs[role]
    while left:
        nodes, each = domain.tightest(times(need, left), 1, added), left
        if not nodes:
            each, nodes = domain.emptiest(need, left, added)
        if not nodes:
            return False
        added.update(dict.fromkeys(nodes, _more((0, 0), role, each)))
        left -= each * len(nodes)
    return True


def _more(counts: tuple[int, int], role: int, count: int) -> tuple[int, int]:
    return (counts[0], counts[1] + count) if role else (counts[0] + count, counts[1])


def _fill_closely(free_capacity: FreeCapacity, extra: Extra, present: Present) -> Added | None:
    """The workers of an all-reduce job: on few nodes, those that it uses first, in one rack if one holds them."""
    own = {node: holds(free_capacity.open_capacity(node), extra.worker) for node in present}
    used: Added = {}
    left = extra.workers
    for node in sorted(own, key=lambda node: (own[node] < left, own[node] if own[node] >= left else -own[node], node)):
        used[node] = (min(own[node], left), 0)
        left -= used[node][0]
    for domain in _domains(free_capacity, times(extra.worker, left), present):
        added = dict(used)
        if _fill_others(domain, extra, 0, left, added):
            return {node: counts for node, counts in added.items() if counts[0]}
    return None


# --- any free capacity -----------------------------------------------------------------------------------------------


def _over_candidates(free_capacity: FreeCapacity, extra: Extra, present: Present) -> Added | None:
    """The cheapest spread over the nodes that the job uses and the emptiest others; at first only a few."""
    tasks = extra.workers + extra.servers
    servers = extra.servers + sum([counts[1] for counts in present.values()])
    least = 0 if present else _least_cost(free_capacity, extra)
    spaces: list[Space] = []
    for count in dict.fromkeys((min(tasks, _FEW), tasks)):
        nodes = free_capacity.node_classes.most_suitable(extra.needs, extra.need, count)
        spaces = [
            Space(node, free_capacity.open_capacity(node), *present.get(node, (0, 0)))
            for node in dict.fromkeys((*present, *nodes))
        ]
        hold_all = _hold_together(spaces, extra)
        added = spread_over(spaces, extra, least) if hold_all else None
        if added is not None:
            is_best = round(_cost_with(spaces, added) * servers) <= least
            return added if is_best else _cheaper(spaces, added, cheapest_of_all(spaces, extra))
    # Nodes that must be filled to the last core take luck, or looking at every way.
    return cheapest_of_all(spaces, extra, _QUICK) if _hold_together(spaces, extra) else None


def _hold_together(spaces: Sequence[Space], extra: Extra) -> bool:
    """Whether the nodes would hold all of it if their free capacity were on one node."""
    columns = zip(*[space.available for space in spaces], strict=True)
    total = tuple([sum([amount for amount in column if amount > 0]) for column in columns])
    return bool(total) and covers(total, extra.need)


def _least_cost(free_capacity: FreeCapacity, extra: Extra) -> int:
    """What the best pattern would cost if there were enough of the largest nodes, times p."""
    available = free_capacity.node_classes.largest_available(extra.worker)
    pattern = best_pattern(extra, available) if available else None
    return pattern.cost if pattern else 0


def _cheaper(spaces: Sequence[Space], found: Added, exact: Added | None) -> Added:
    """The cheaper of two spreads, the first if they cost the same."""
    return exact if exact is not None and _cost_with(spaces, exact) < _cost_with(spaces, found) else found


def _cost_with(spaces: Sequence[Space], added: Added) -> float:
    more = ((space, added.get(space.node, (0, 0))) for space in spaces)
    return transfer_cost((space.workers + x, space.servers + y) for space, (x, y) in more)


# --- the paper's spread ----------------------------------------------------------------------------------------------


def spread_evenly(free_capacity: FreeCapacity, extra: Extra, present: Present) -> Added | None:
    """The paper's placement: the first k nodes by available CPU that host the job evenly, for the smallest k."""
    if _has_no_servers(extra, present):
        return _fill_emptiest(free_capacity, extra)
    # The paper's nodes are alike. Where only some have the GPUs that workers need, the others are none of the first k.
    gpus = (0, 0, *extra.worker[2:]) if extra.workers and any(extra.worker[2:]) else None
    ordered = free_capacity.node_classes.by_cores(extra.workers + extra.servers, gpus)
    for k in range(1, len(ordered) + 1):
        shares = [(even_part(extra.workers, k, number), even_part(extra.servers, k, number)) for number in range(k)]
        if all(
            covers(free_capacity.free(node), together(extra.worker, x, extra.server, y))
            for node, (x, y) in zip(ordered, shares, strict=False)
        ):
            return dict(zip(ordered, shares, strict=False))
    return None


def spread_balanced(free_capacity: FreeCapacity, extra: Extra, present: Present) -> Added | None:
    """Each task on the node with the most free cores, as Kubernetes does it by default, and the paper's baselines."""
    if _has_no_servers(extra, present):
        return _fill_emptiest(free_capacity, extra)
    gpus = (0, 0, *extra.worker[2:]) if extra.workers and any(extra.worker[2:]) else None
    count = extra.workers + extra.servers
    nodes = dict.fromkeys(
        (*free_capacity.node_classes.by_cores(count, gpus), *free_capacity.node_classes.by_cores(count))
    )
    heap = [(-free_capacity.free(node)[0], number, node, free_capacity.free(node)) for number, node in enumerate(nodes)]
    heapify(heap)
    added: dict[int, tuple[int, int]] = {}
    # Workers first: only they may need what few nodes have.
    for role, need in (*[(0, extra.worker)] * extra.workers, *[(1, extra.server)] * extra.servers):
        full = []
        while heap and not covers(heap[0][3], need):
            full.append(heappop(heap))
        if not heap:
            return None
        _, number, node, free = heap[0]
        left = minus(free, need)
        heapreplace(heap, (-left[0], number, node, left))
        workers, servers = added.get(node, (0, 0))
        added[node] = (workers + (role == 0), servers + (role == 1))
        for entry in full:
            heappush(heap, entry)
    return added


def spread_emptiest(free_capacity: FreeCapacity, extra: Extra, present: Present) -> Added | None:
    """Jobs without servers on the emptiest nodes, others where the transfer is least."""
    if _has_no_servers(extra, present):
        return _fill_emptiest(free_capacity, extra)
    return spread_least_transfer(free_capacity, extra, present)


def _fill_emptiest(free_capacity: FreeCapacity, extra: Extra) -> Added | None:
    """Fill the node with most room, then the next: the fewest nodes, the paper's rule for jobs without servers."""
    added: Added = {}
    left = extra.workers
    for node in free_capacity.node_classes.by_tasks(extra.worker, left):
        count = min(holds(free_capacity.free(node), extra.worker), left)
        added[node] = (count, 0)
        left -= count
        if not left:
            return added
    return None if left else added
