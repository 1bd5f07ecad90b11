"""Exhaustive search for the spread with the least transfer cost: for small sizes only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from optimus_scheduler.model.amounts import covers, together
from optimus_scheduler.place.bottleneck import Added, Extra, Space

_MOST_WORK = 6_000
"""Combinations that are looked at, some 6 ms."""


class _Option(NamedTuple):
    """What one node could get."""

    node: int
    workers: int
    servers: int
    cost: int
    new_nodes: int


class _Chain(NamedTuple):
    """A way through the nodes so far: its value, the last option taken, and what came before."""

    value: int
    option: _Option | None
    before: _Chain | None


def cheapest_of_all(spaces: Sequence[Space], extra: Extra, most_work: int = _MOST_WORK) -> Added | None:
    """The cheapest spread and among those the one with the fewest nodes; None if there is none, or too many ways."""
    w, p = extra.workers + sum(s.workers for s in spaces), extra.servers + sum(s.servers for s in spaces)
    states = (extra.workers + 1) * (extra.servers + 1)
    if states * len(spaces) > most_work:
        return None
    sites = [list(_options(space, w, p, extra)) for space in spaces]
    if states * sum(map(len, sites)) > most_work:
        return None
    cheapest = _best_chain(sites, extra, lambda value, option: max(value, option.cost))
    if cheapest is None:
        return None
    within = [[option for option in options if option.cost <= cheapest.value] for options in sites]
    chain = _best_chain(within, extra, lambda value, option: value + option.new_nodes)
    assert chain is not None, "the cheapest spread is among those within its own cost"
    return {option.node: (option.workers, option.servers) for option in _taken(chain)}


def _options(space: Space, w: int, p: int, extra: Extra) -> Iterator[_Option]:
    for workers in range(extra.workers + 1):
        for servers in range(extra.servers + 1):
            if not covers(space.available, together(extra.worker, workers, extra.server, servers)):
                break
            x, y = space.workers + workers, space.servers + servers
            cost = max(w - x if y else 0, p - y if x else 0)
            yield _Option(space.node, workers, servers, cost, int(workers + servers > 0 and not space.is_used))


def _best_chain(
    sites: Sequence[Sequence[_Option]], extra: Extra, value_with: Callable[[int, _Option], int]
) -> _Chain | None:
    """The chain with the least value that places all of `extra`; states are (workers, servers) placed so far."""
    table = {(0, 0): _Chain(0, None, None)}
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
