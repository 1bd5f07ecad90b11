"""Others give up what they have beyond their minima, so that a job for whose minimum there is no room fits after all.

Thousands of jobs may have something to give, and most of it is of no use: on nodes that lack something else, or of a
kind that is not short. Only who helps gives way: where a node would hold more tasks of the kind that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from optimus_scheduler.model import Allocation, Role
from optimus_scheduler.model.amounts import Vector, holds, minus, plus, times, together
from optimus_scheduler.place.assignment import Seating, Seats, by_node
from optimus_scheduler.place.free_capacity import Rooms
from optimus_scheduler.place.requests import Post


def givers(seating: Seating) -> list[Seats]:
    """Jobs with seats beyond their minimum, the largest surplus first."""
    others = [seats for seats in seating.jobs.values() if seats.surplus > 0]
    return sorted(others, key=lambda seats: (-seats.surplus, seats.request.job_id))


def make_room(seating: Seating, seats: Seats, others: Sequence[Seats]) -> bool:
    """Let `others` fall back to their minima, one after the other, until this job's minimum fits."""
    released: list[tuple[Seats, dict[Post, int]]] = []
    offers = _Offers(seating.rooms, seats)
    for other in others:
        if other.surplus <= 0 or other is seats:
            continue
        helpful = offers.with_that_of(other)
        while helpful and not seats.taken:
            released += [(giver, seating.release(giver, giver.request.minimum)) for giver in helpful]
            if not seating.complete(seats, seats.request.minimum):
                helpful = offers.for_what_is_short_now()
        if seats.taken:
            break
    for other, given in released:  # what was not needed after all goes back
        _return(seating, other, given)
    return bool(seats.taken)


def _short_of(rooms: Rooms, seats: Seats) -> Allocation:
    """How many tasks of each kind do not even fit by themselves; all of both if only the two together do not."""
    least = seats.request.minimum
    workers = 0 if rooms.groups.hold(seats.worker, least.workers) else least.workers
    servers = 0 if rooms.groups.hold(seats.server, least.servers) else least.servers
    return Allocation(workers, servers) if workers + servers else least


class _Offers:
    """What jobs could give up, added up by node until it is of use."""

    def __init__(self, rooms: Rooms, seats: Seats) -> None:
        """What could be of use for these seats."""
        self._rooms, self._seats = rooms, seats
        self._short = _short_of(rooms, seats)
        self._offered: dict[int, Vector] = {}
        """What each node would have besides what is free there ..."""
        self._by: dict[int, dict[str, Seats]] = {}
        """... and whose it is."""

    def with_that_of(self, other: Seats) -> list[Seats]:
        """Who has to give way, now that this job may, for a node to hold more; nobody if none would."""
        surplus = _surplus(other)
        for node, amount in surplus.items():
            offered = self._offered.get(node)
            self._offered[node] = amount if offered is None else plus(offered, amount)
            self._by.setdefault(node, {})[other.request.job_id] = other
        return self._withdrawn(surplus)

    def for_what_is_short_now(self) -> list[Seats]:
        """The same among all that were asked so far, if something else is short than before."""
        before, self._short = self._short, _short_of(self._rooms, self._seats)
        return [] if self._short == before else self._withdrawn(self._offered)

    def _withdrawn(self, nodes: Iterable[int]) -> list[Seats]:
        helpful = [node for node in nodes if self._helps(node)]
        found = {job_id: giver for node in helpful for job_id, giver in self._by[node].items()}
        for giver in found.values():
            for node, amount in _surplus(giver).items():
                self._offered[node] = minus(self._offered[node], amount)
                del self._by[node][giver.request.job_id]
        return list(found.values())

    def _helps(self, node: int) -> bool:
        free = self._rooms.open_room(node)
        if min(free) < 0:  # closed, or too small for what is there
            return False
        return self._held(plus(free, self._offered[node])) != self._held(free)

    def _held(self, room: Vector) -> list[int]:
        """How many servers fit beside no worker, beside one, and so on, of those that are short."""
        worker, server, short = self._seats.worker, self._seats.server, self._short
        workers = min(holds(room, worker), short.workers) if short.workers else 0
        return [min(holds(minus(room, times(worker, x)), server), short.servers) for x in range(workers + 1)]


def _surplus(seats: Seats) -> dict[int, Vector]:
    """By node, what the seats beyond the minimum take."""
    least = seats.request.minimum
    limits = {Role.WORKER: least.workers, Role.SERVER: least.servers}
    beyond = by_node({post: node for post, node in seats.taken.items() if post[1] >= limits[post[0]]})
    return {node: together(seats.worker, w, seats.server, p) for node, (w, p) in beyond.items()}


def _return(seating: Seating, seats: Seats, given: Mapping[Post, int]) -> None:
    """Take back seats by rank, as long as they are free: ranks have no gaps."""
    for role in (Role.SERVER, Role.WORKER):
        for post in _of(role, given):
            if not seating.take(seats, post, given[post]):
                break


def _of(role: Role, given: Iterable[Post]) -> list[Post]:
    return sorted(post for post in given if post[0] is role)
