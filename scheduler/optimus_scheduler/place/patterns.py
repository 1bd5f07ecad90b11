"""How a job is best cut into parts when there are enough nodes with the same free capacity.

With w workers and p servers, a node costs (w - its workers) if it has servers and (p - its servers) if it has workers;
the dearest node counts (`network_cost.transfer_cost`, times p). So every node with servers wants many workers beside
them and the other way round, and there are only four ways worth having:

| way | cost |
|---|---|
| everything on one node | 0 |
| m nodes with an even part of both kinds | w - w/m or p - p/m |
| the servers on few nodes, each beside as many workers as fit; other workers anywhere | w - those workers, at least p |
| the workers on few nodes, each beside as many servers as fit; other servers anywhere | p - those servers, at least w |

In each of them even parts are best: it is the poorest part that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from optimus_scheduler.model.amounts import Vector, covers, holds, minus, times, together
from optimus_scheduler.place.bottleneck import Extra


@dataclass(frozen=True)
class Pattern:
    """Parts that each go to a node of their own, and tasks that may go anywhere without making the step slower."""

    cost: int
    """Transfer cost times p."""
    parts: tuple[tuple[int, int], ...]
    """(workers, servers) of each part, the largest first."""
    loose: tuple[int, int] = (0, 0)

    @cached_property
    def different(self) -> Mapping[tuple[int, int], int]:
        """How often each part is there, the largest first."""
        return Counter(self.parts)


@lru_cache(maxsize=2**16)
def best_pattern(extra: Extra, available: Vector) -> Pattern | None:
    """The cheapest pattern for tasks of both kinds on nodes with that room; None when a task needs more."""
    w, p, worker, server = extra.workers, extra.servers, extra.worker, extra.server
    if not (covers(available, worker) and covers(available, server)):
        return None
    best = _even(extra, available) or Pattern(max(w, p), (), (w, p))
    best = _hosts(w, p, worker, server, available, best.cost) or best
    mirrored = _hosts(p, w, server, worker, available, best.cost)
    return best if mirrored is None else _mirrored(mirrored)


def _even(extra: Extra, available: Vector) -> Pattern | None:
    """The smallest number of even parts that fit: more parts cost more."""
    w, p, worker, server = extra.workers, extra.servers, extra.worker, extra.server
    fewest = max([-(-amount // free) for amount, free in zip(extra.need, available, strict=True) if amount], default=1)
    for m in range(max(fewest, 2), min(w, p) + 1):
        parts = {part: number for part, number in _parts(w, p, m) if number}
        if all(covers(available, together(worker, x, server, y)) for x, y in parts):
            in_all = [part for part in sorted(parts, reverse=True) for _ in range(parts[part])]
            return Pattern(max(w - w // m, p - p // m), tuple(in_all))
    return None


def _parts(w: int, p: int, m: int) -> Iterator[tuple[tuple[int, int], int]]:
    """m even parts and how many there are of each: those with a worker more get no server more, if possible."""
    (x, more_workers), (y, more_servers) = divmod(w, m), divmod(p, m)
    both = max(more_workers + more_servers - m, 0)
    yield (x + 1, y + 1), both
    yield (x + 1, y), more_workers - both
    yield (x, y + 1), more_servers - both
    yield (x, y), m - more_workers - more_servers + both


def _hosts(w: int, p: int, worker: Vector, server: Vector, available: Vector, limit: int) -> Pattern | None:
    """The servers on 1, 2, ... nodes with workers beside them, if that costs less than `limit`."""
    best: tuple[int, int] | None = None
    for hosts in range(1, p + 1):
        if max(w - w // hosts, p) >= limit:
            break  # with more of them, fewer workers are beside each
        beside = min(holds(minus(available, times(server, -(-p // hosts))), worker), w // hosts)
        if beside and max(w - beside, p) < limit:
            best, limit = (hosts, beside), max(w - beside, p)
    if best is None:
        return None
    hosts, beside = best
    parts, loose = [], w - beside * hosts
    for number in range(hosts):
        servers = even_part(p, hosts, number)
        more = min(loose, holds(minus(available, together(worker, beside, server, servers)), worker))
        parts.append((beside + more, servers))
        loose -= more
    return Pattern(limit, tuple(sorted(parts, reverse=True)), (loose, 0))


def _mirrored(way: Pattern) -> Pattern:
    """The same with workers and servers exchanged."""
    return Pattern(way.cost, tuple(sorted(((y, x) for x, y in way.parts), reverse=True)), (way.loose[1], way.loose[0]))


def even_part(total: int, parts: int, number: int) -> int:
    """Size of part `number` when `total` is cut into `parts` as evenly as whole numbers allow."""
    return total // parts + (1 if number < total % parts else 0)
