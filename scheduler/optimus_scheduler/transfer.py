"""How the tasks of one job are spread over nodes, so that little of its model crosses between nodes.

A step moves the model between every server and every worker; what happens inside one node is free. With p servers
and w workers, p_k and w_k of them on node k, and one unit of time to send the whole model once, a step costs

    max over k of:  (w - w_k)/p  if p_k > 0   (each server of k serves the workers elsewhere)
                    (p - p_k)/p  if w_k > 0   (each worker of k asks the servers elsewhere)

This is the paper's objective, with each term counted only where there is such a task: counted everywhere, as in its
Theorem 1, an even spread looks best even where it is not (Optimus reference, section 4.3).

References: Peng et al., "Optimus", EuroSys 2018, section 4.2 and appendix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from optimus_scheduler.packing import pack_closely, pack_emptiest
from optimus_scheduler.types import Resources

_MOST_CANDIDATES = 16
"""Nodes that the exact search looks at: those that hold tasks of the job, then those with most room."""
_MOST_WORK = 60_000
"""Combinations that the exact search may look at, some 50 ms; beyond that a heuristic answers."""


@dataclass(frozen=True, slots=True)
class Space:
    """A node as one job sees it: room for more tasks, and the tasks of the job that stay there."""

    node: str
    room: Resources
    workers: int = 0
    servers: int = 0

    @property
    def is_used(self) -> bool:
        return self.workers + self.servers > 0


@dataclass(frozen=True, slots=True)
class Extra:
    """Tasks to be placed: how many workers and servers, and what one of each needs."""

    workers: int
    servers: int
    worker: Resources
    server: Resources

    def of(self, workers: int, servers: int) -> Resources:
        return self.worker * workers + self.server * servers


Counts = Mapping[str, tuple[int, int]]
"""Node name → (workers, servers) to be added there; nodes that get nothing may be left out."""
Spread = Callable[[Sequence[Space], Extra], Counts | None]
"""Chooses nodes for the tasks of one job; None when it finds no way."""


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


def spread_least_transfer(spaces: Sequence[Space], extra: Extra) -> Counts | None:
    """The spread with the least transfer cost and, among those, the fewest nodes.

    One node if one is enough (the one with most room: jobs grow). Otherwise exact for small sizes; for large ones the
    best of a few ways to fill node after node.
    """
    if extra.workers + extra.servers == 0:
        return {}
    if _has_no_servers(spaces, extra):
        return pack_closely(spaces, extra.worker, extra.workers)
    ordered = sorted(spaces, key=lambda space: _preference(space, extra))
    on_one = _on_one_node(ordered, extra)
    if on_one is not None:
        return on_one
    sites = [_options(space, ordered, extra) for space in _candidates(ordered, extra)]
    states = (extra.workers + 1) * (extra.servers + 1)
    if states * sum(len(options) for options in sites) <= _MOST_WORK:
        exact = _search(sites, extra)
        if exact is not None:
            return exact
    return _fill(ordered, extra)


def _has_no_servers(spaces: Sequence[Space], extra: Extra) -> bool:
    """Whether the job is an all-reduce job."""
    return extra.servers == 0 and not any(space.servers for space in spaces)


def _preference(space: Space, extra: Extra) -> tuple[bool, int, float, int, str]:
    """Sorts nodes: those that the job uses, then those that waste no GPUs on it, then the emptiest."""
    wants_gpus = bool(extra.worker.gpus) or bool(extra.server.gpus)
    idle_gpus = 0 if wants_gpus else sum(space.room.gpus.values())
    return (not space.is_used, idle_gpus, -space.room.cpu, -space.room.memory_bytes, space.node)


def _on_one_node(ordered: Sequence[Space], extra: Extra) -> Counts | None:
    used = [space for space in ordered if space.is_used]
    if len(used) > 1:
        return None
    everything = extra.of(extra.workers, extra.servers)
    for space in used or ordered:
        if everything.fits_in(space.room):
            return {space.node: (extra.workers, extra.servers)}
    return None


def _candidates(ordered: Sequence[Space], extra: Extra) -> list[Space]:
    """Nodes worth searching: all that the job uses, and of equal nodes no more than there are tasks."""
    seen: dict[tuple[float, int, tuple[tuple[str, int], ...]], int] = {}
    candidates: list[Space] = []
    for space in ordered:
        kind = (space.room.cpu, space.room.memory_bytes, tuple(sorted(space.room.gpus.items())))
        seen[kind] = seen.get(kind, 0) + 1
        if space.is_used or (len(candidates) < _MOST_CANDIDATES and seen[kind] <= extra.workers + extra.servers):
            candidates.append(space)
    return candidates


class _Option(NamedTuple):
    """What one node could get."""

    node: str
    workers: int
    servers: int
    cost: float
    new_nodes: int


class _Chain(NamedTuple):
    """A way through the nodes so far: its value, the last option taken, and what came before."""

    value: float
    option: _Option | None
    before: _Chain | None


def _options(space: Space, spaces: Sequence[Space], extra: Extra) -> list[_Option]:
    w = extra.workers + sum(other.workers for other in spaces)
    p = extra.servers + sum(other.servers for other in spaces)
    options = []
    for workers in range(extra.workers + 1):
        for servers in range(extra.servers + 1):
            if not extra.of(workers, servers).fits_in(space.room):
                break
            cost = _node_cost(w, p, space.workers + workers, space.servers + servers)
            is_new = workers + servers > 0 and not space.is_used
            options.append(_Option(space.node, workers, servers, cost, int(is_new)))
    return options


def _search(sites: Sequence[Sequence[_Option]], extra: Extra) -> Counts | None:
    """Exact, in two passes of dynamic programming over the nodes: least cost first, then fewest nodes at that cost."""
    cheapest = _best_chain(sites, extra, lambda value, option: max(value, option.cost))
    if cheapest is None:
        return None
    limit = cheapest.value
    within = [[option for option in options if option.cost <= limit] for options in sites]
    chain = _best_chain(within, extra, lambda value, option: value + option.new_nodes)
    assert chain is not None, "the cheapest spread is among those within its own cost"
    return {option.node: (option.workers, option.servers) for option in _taken(chain)}


def _best_chain(
    sites: Sequence[Sequence[_Option]], extra: Extra, value_with: Callable[[float, _Option], float]
) -> _Chain | None:
    """The chain with the least value that places all of `extra`; states are (workers, servers) placed so far."""
    table = {(0, 0): _Chain(0.0, None, None)}
    for options in sites:
        following: dict[tuple[int, int], _Chain] = {}
        for (workers, servers), chain in table.items():
            for option in options:
                state = (workers + option.workers, servers + option.servers)
                if state[0] > extra.workers or state[1] > extra.servers:
                    continue
                value = value_with(chain.value, option)
                known = following.get(state)
                if known is None or value < known.value:
                    following[state] = _Chain(value, option, chain)
        table = following
    return table.get((extra.workers, extra.servers))


def _taken(chain: _Chain) -> Iterator[_Option]:
    link: _Chain | None = chain
    while link is not None and link.option is not None:
        if link.option.workers + link.option.servers:
            yield link.option
        link = link.before


def _fill(ordered: Sequence[Space], extra: Extra) -> Counts | None:
    """The cheapest of: servers first, workers first, both in proportion; each fills node after node."""
    servers, workers = [(0, 1)] * extra.servers, [(1, 0)] * extra.workers
    mixed = sorted(
        [(rank / max(extra.workers, 1), (1, 0)) for rank in range(extra.workers)]
        + [(rank / max(extra.servers, 1), (0, 1)) for rank in range(extra.servers)]
    )
    orders = (servers + workers, workers + servers, [task for _, task in mixed])
    ways = [way for order in orders if (way := _fill_in_order(ordered, extra, order)) is not None]
    return min(ways, key=lambda way: transfer_cost(_with_present(ordered, way)), default=None)


def _fill_in_order(ordered: Sequence[Space], extra: Extra, tasks: Sequence[tuple[int, int]]) -> Counts | None:
    counts: dict[str, tuple[int, int]] = {}
    first = {(1, 0): 0, (0, 1): 0}  # a node too full for one task is too full for the next of its kind
    for task in tasks:
        for position in range(first[task], len(ordered)):
            space = ordered[position]
            workers, servers = counts.get(space.node, (0, 0))
            more = (workers + task[0], servers + task[1])
            if extra.of(*more).fits_in(space.room):
                counts[space.node] = more
                first[task] = position
                break
        else:
            return None
    return counts


def _with_present(spaces: Sequence[Space], added: Counts) -> list[tuple[int, int]]:
    """(workers, servers) on each node with what is there already."""
    return [
        (space.workers + more[0], space.servers + more[1])
        for space in spaces
        for more in (added.get(space.node, (0, 0)),)
    ]


# --- the paper's spread ----------------------------------------------------------------------------------------------


def spread_evenly(spaces: Sequence[Space], extra: Extra) -> Counts | None:
    """The paper's placement: the first k nodes by available CPU that host the job evenly, for the smallest k."""
    if _has_no_servers(spaces, extra):
        return pack_emptiest(spaces, extra.worker, extra.workers)
    ordered = sorted(spaces, key=lambda space: (-space.room.cpu, space.node))
    for k in range(1, min(extra.workers + extra.servers, len(ordered)) + 1):
        shares = [(_part(extra.workers, k, index), _part(extra.servers, k, index)) for index in range(k)]
        if all(extra.of(*share).fits_in(space.room) for share, space in zip(shares, ordered, strict=False)):
            return {space.node: share for space, share in zip(ordered, shares, strict=False)}
    return None


def _part(total: int, parts: int, index: int) -> int:
    """Size of part `index` when `total` is cut into `parts` as evenly as whole numbers allow."""
    return total // parts + (1 if index < total % parts else 0)


def spread_emptiest(spaces: Sequence[Space], extra: Extra) -> Counts | None:
    """Jobs without servers on the emptiest nodes, others where the transfer is least."""
    if _has_no_servers(spaces, extra):
        return pack_emptiest(spaces, extra.worker, extra.workers)
    return spread_least_transfer(spaces, extra)
