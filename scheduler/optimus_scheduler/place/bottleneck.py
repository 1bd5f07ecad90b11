"""The spread with the least transfer cost over given nodes, whatever their room and whatever is there already.

With w workers and p servers in all, a node costs (w - its workers) if it has servers and (p - its servers) if it has
workers (times 1/p; see `network_cost`). A spread costs no more than C if and only if every node with servers has at
least a = w - C workers and every node with workers at least b = p - C servers. For a given C that is easily answered,
and what is possible at C is possible above it: C is found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from optimus_scheduler.model.amounts import Vector, covers, holds, minus, times, together

Added = dict[int, tuple[int, int]]
"""Node → (workers, servers) to be added there; nodes that get nothing are left out."""


class Space(NamedTuple):
    """A node as one job sees it: room for more tasks, and the tasks of the job that stay there."""

    node: int
    available: Vector
    workers: int = 0
    servers: int = 0

    @property
    def is_used(self) -> bool:
        return self.workers + self.servers > 0


class Extra(NamedTuple):
    """Tasks to be placed: how many workers and servers, and what one of each needs."""

    workers: int
    servers: int
    worker: Vector
    server: Vector

    @property
    def needs(self) -> tuple[Vector, Vector]:
        """What a worker and what a server needs."""
        return self.worker, self.server

    @property
    def need(self) -> Vector:
        """Of all of them together."""
        return together(self.worker, self.workers, self.server, self.servers)


def spread_over(spaces: Sequence[Space], extra: Extra, at_least: int = 0) -> Added | None:
    """The cheapest spread over these nodes, those that come first preferred; None when they do not hold everything.

    `at_least`: a cost, times p, that no spread is below.
    """
    w, p = extra.workers + sum(s.workers for s in spaces), extra.servers + sum(s.servers for s in spaces)
    best = _Attempt(spaces, extra, 0, 0).run()
    if best is None:
        return None
    low, high = at_least, best.cost(w, p) - 1
    while low <= high:
        limit = (low + high) // 2
        attempt = _Attempt(spaces, extra, max(w - limit, 0), max(p - limit, 0)).run()
        if attempt is None:
            low = limit + 1
        else:
            best, high = attempt, min(attempt.cost(w, p), limit) - 1
    return best.added()


_WORKERS, _SERVERS = 0, 1


@dataclass(slots=True)
class _Site:
    """A node and what it has got so far."""

    space: Space
    available: Vector
    has: list[int]
    """Workers and servers, those that were there included."""


class _Attempt:
    """Tries to give every node with servers `a` workers and every node with workers `b` servers, at least."""

    def __init__(self, spaces: Sequence[Space], extra: Extra, a: int, b: int) -> None:
        self._sites = [_Site(space, space.available, [space.workers, space.servers]) for space in spaces]
        self._needs = (extra.worker, extra.server)
        self._left = [extra.workers, extra.servers]
        self._least = (a, b)
        """Workers on a node with servers, servers on a node with workers."""

    def run(self) -> _Attempt | None:
        """Itself if it succeeds."""
        if not all(self._complete(site) for site in self._sites if sum(site.has)):
            return None
        match (self._least[_WORKERS] > 0, self._least[_SERVERS] > 0):
            case (True, True):
                done = self._fill_mixed()
            case (True, False):
                done = self._fill_hosts(_SERVERS, _WORKERS)
            case (False, True):
                done = self._fill_hosts(_WORKERS, _SERVERS)
            case _:
                done = self._fill_both(self._sites)
        return self if done else None

    def cost(self, w: int, p: int) -> int:
        """Transfer cost, times p."""
        return max(
            (max(w - x if y else 0, p - y if x else 0) for x, y in (site.has for site in self._sites)), default=0
        )

    def added(self) -> Added:
        more = ((site.space, site.has[0], site.has[1]) for site in self._sites)
        return {s.node: (x - s.workers, y - s.servers) for s, x, y in more if x > s.workers or y > s.servers}

    # --- nodes that must have both -------------------------------------------------------------------------------

    def _complete(self, site: _Site) -> bool:
        """Give a node with tasks the partners that they need."""
        a, b = self._least
        workers, servers = site.has
        fewest_workers = a if servers or b > 0 else 0
        fewest_servers = b if workers or a > 0 else 0
        return self._raise(site, _WORKERS, fewest_workers) and self._raise(site, _SERVERS, fewest_servers)

    def _raise(self, site: _Site, role: int, least: int) -> bool:
        return site.has[role] >= least or self._add(site, role, least - site.has[role])

    def _fill_mixed(self) -> bool:
        """Both kinds on every node: those that have some, then with as few further ones as will do."""
        active = [site for site in self._sites if sum(site.has)]
        a, b = self._least
        part = together(self._needs[0], a, self._needs[1], b)
        idle = (site for site in self._sites if not sum(site.has) and covers(site.available, part))
        while True:
            if self._hold_rest(active):
                return self._fill_both(active)
            site = next(idle, None)
            if site is None or not (self._add(site, _WORKERS, a) and self._add(site, _SERVERS, b)):
                return False
            active.append(site)

    def _hold_rest(self, sites: Sequence[_Site]) -> bool:
        """Whether what is left fits there."""
        return any(self._packs([site.available for site in sites], first) for first in (_SERVERS, _WORKERS))

    def _packs(self, free_capacity: list[Vector], first: int) -> bool:
        for role in (first, 1 - first):
            left, need = self._left[role], self._needs[role]
            for number, available in enumerate(free_capacity):
                count = min(holds(available, need), left)
                if count:
                    free_capacity[number], left = minus(available, times(need, count)), left - count
            if left:
                return False
        return True

    # --- one kind with partners, the other one anywhere ------------------------------------------------------------

    def _fill_hosts(self, role: int, partner: int) -> bool:
        """Tasks of `role` where enough of the partner are; the partners that are left anywhere."""
        least, need = self._least[partner], self._needs[role]
        for site in sorted(self._sites, key=lambda site: self._as_host(site, role, partner)):
            if not self._left[role]:
                break
            missing = max(least - site.has[partner], 0)
            if missing > self._left[partner]:
                continue
            beside = minus(site.available, times(self._needs[partner], missing))
            count = min(holds(beside, need), self._left[role])
            if count:
                self._add(site, partner, missing)
                self._add(site, role, count)
        return not self._left[role] and self._fill(partner, self._busy_first(partner))

    def _as_host(self, site: _Site, role: int, partner: int) -> tuple[bool, int]:
        """Sorts nodes: those that need no further partners, then those with most room beside them."""
        missing = max(self._least[partner] - site.has[partner], 0)
        available = minus(site.available, times(self._needs[partner], missing)) if missing else site.available
        return missing > 0, -holds(available, self._needs[role])

    # --- no conditions -------------------------------------------------------------------------------------------

    def _fill_both(self, sites: Sequence[_Site]) -> bool:
        first = _SERVERS if self._packs([site.available for site in sites], _SERVERS) else _WORKERS
        return self._fill(first, sites) and self._fill(1 - first, sites)

    def _busy_first(self, role: int) -> list[_Site]:
        need = self._needs[role]
        return sorted(self._sites, key=lambda site: (not sum(site.has), -holds(site.available, need)))

    def _fill(self, role: int, sites: Iterable[_Site]) -> bool:
        for site in sites:
            if not self._left[role]:
                break
            count = min(holds(site.available, self._needs[role]), self._left[role])
            if count:
                self._add(site, role, count)
        return not self._left[role]

    def _add(self, site: _Site, role: int, count: int) -> bool:
        """False, and nothing changed, if that many are not left or do not fit."""
        available = minus(site.available, times(self._needs[role], count))
        if count > self._left[role] or min(available) < 0:
            return False
        site.available = available
        site.has[role] += count
        self._left[role] -= count
        return True


# --- exhaustive search for the spread with the least transfer cost: for small sizes only -----------------------------

_MOST_WORK = 6_000
"""Combinations that are looked at, some 6 ms."""


class _Option(NamedTuple):
    """What one node could get."""

    workers: int
    servers: int
    cost: int
    new_nodes: int


_Chain = tuple[int, int, _Option | None, Any]
"""A way through the nodes so far: its value, the last node, what it gets, and the chain before. A plain tuple, as a
search makes thousands."""


def cheapest_of_all(spaces: Sequence[Space], extra: Extra, most_work: int = _MOST_WORK) -> Added | None:
    """The cheapest spread and among those the one with the fewest nodes; None if there is none, or too many ways."""
    w, p = extra.workers + sum(s.workers for s in spaces), extra.servers + sum(s.servers for s in spaces)
    states = (extra.workers + 1) * (extra.servers + 1)
    if states * len(spaces) > most_work:
        return None
    kinds = [space[1:] for space in spaces]
    different = dict(zip(kinds, spaces, strict=True))  # few are
    options = {kind: list(_options(space, w, p, extra)) for kind, space in different.items()}
    if states * sum([len(options[kind]) for kind in kinds]) > most_work:
        return None
    nodes = [space.node for space in spaces]
    cheapest = _best_chain(nodes, [options[kind] for kind in kinds], extra, by_cost=True)
    if cheapest is None:
        return None
    within = {kind: [each for each in found if each.cost <= cheapest[0]] for kind, found in options.items()}
    chain = _best_chain(nodes, [within[kind] for kind in kinds], extra, by_cost=False)
    assert chain is not None, "the cheapest spread is among those within its own cost"
    return dict(_taken(chain))


def _options(space: Space, w: int, p: int, extra: Extra) -> Iterator[_Option]:
    for workers in range(extra.workers + 1):
        for servers in range(extra.servers + 1):
            if not covers(space.available, together(extra.worker, workers, extra.server, servers)):
                break
            x, y = space.workers + workers, space.servers + servers
            cost = max(w - x if y else 0, p - y if x else 0)
            yield _Option(workers, servers, cost, int(workers + servers > 0 and not space.is_used))


def _best_chain(
    nodes: Sequence[int], sites: Sequence[Sequence[_Option]], extra: Extra, *, by_cost: bool
) -> _Chain | None:
    """The chain with the least value that places all of `extra`: the highest cost of its options, or how many nodes
    are new. `sites`: what each of `nodes` could get. States are (workers, servers) placed so far."""
    most_workers, most_servers = extra.workers, extra.servers
    table: dict[tuple[int, int], _Chain] = {(0, 0): (0, -1, None, None)}
    for node, options in zip(nodes, sites, strict=True):
        following: dict[tuple[int, int], _Chain] = {}
        for (workers_before, servers_before), chain in table.items():
            before = chain[0]
            for option in options:
                workers, servers, cost, new_nodes = option
                workers += workers_before
                servers += servers_before
                if workers > most_workers or servers > most_servers:
                    continue
                value = max(cost, before) if by_cost else before + new_nodes
                known = following.get((workers, servers))
                if known is None or value < known[0]:
                    following[workers, servers] = value, node, option, chain
        table = following
    return table.get((most_workers, most_servers))


def _taken(chain: _Chain) -> Iterator[tuple[int, tuple[int, int]]]:
    """Workers and servers of each node that gets some."""
    link: _Chain | None = chain
    while link is not None:
        _, node, option, link = link
        if option is not None and option.workers + option.servers:
            yield node, (option.workers, option.servers)
