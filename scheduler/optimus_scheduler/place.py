"""Step 3 of a round: which task goes to which node.

Tasks that are wanted already stay where they are; only what is missing is placed. A size that does not fit is made
smaller, task by task, down to the job's minimum. If not even that fits, others give up what they have beyond their
own minima as far as that helps. What remains is `Unplaced`, with the reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from optimus_scheduler.requests import Placed, Placements, Post, Request, Unplaced, posts
from optimus_scheduler.seats import Seating, Seats
from optimus_scheduler.transfer import Spread
from optimus_scheduler.types import NOTHING, Allocation, Node, Role

__all__ = ["Placed", "Placements", "Post", "Request", "Unplaced", "fits_when_empty", "place", "posts"]

_NO_ROOM = Unplaced("no combination of nodes has room for its smallest size")


def place(
    requests: Sequence[Request], nodes: Iterable[Node], spread: Spread, *, smallest_first: bool = True
) -> Placements:
    """Place every request; by job id. Jobs choose in the order of `requests`; with `smallest_first` only if equal."""
    seating = Seating(nodes, spread)
    seating.admit(requests)
    return settle_all(seating, requests, smallest_first=smallest_first)


def fits_when_empty(request: Request, nodes: Iterable[Node], spread: Spread) -> bool:
    """Whether the minimum could be placed if nobody else had any task."""
    alone = Request(request.job_id, request.worker, request.server, request.minimum, request.minimum, {})
    return isinstance(place([alone], nodes, spread)[request.job_id], Placed)


def settle_all(seating: Seating, requests: Sequence[Request], *, smallest_first: bool) -> Placements:
    """Find the seats that are missing, and say where everybody sits."""
    incomplete = [request for request in requests if not seating.jobs[request.job_id].are_complete]
    ordered = sorted(incomplete, key=_growth) if smallest_first else incomplete
    unplaced = [request for request in ordered if not _seat_shrinking(seating, seating.jobs[request.job_id])]
    for request in unplaced:
        _make_room(seating, seating.jobs[request.job_id])
    return {request.job_id: _outcome(seating, seating.jobs[request.job_id]) for request in requests}


def _growth(request: Request) -> tuple[bool, int]:
    """Jobs that have no task yet choose first (they ask for little), then those that grow; smallest growth first."""
    return bool(request.held), request.allocation.workers + request.allocation.servers - len(request.held)


def _seat_shrinking(seating: Seating, seats: Seats) -> bool:
    """Seat the request or as much of it as fits; gives everything up when that is less than the minimum."""
    if seating.complete(seats, seats.request.allocation):
        return True
    sizes = list(_smaller(seats.request))
    workers = sum([role is Role.WORKER for role, _ in seats.taken])
    servers = len(seats.taken) - workers
    growing = [size for size in sizes if size.workers >= workers and size.servers >= servers]
    # What fits at one size fits at every smaller one: the largest is found by bisection.
    first = bisect_left(growing, True, key=lambda size: seating.ways(seats, size) is not None)
    for size in sizes[first:]:
        seating.release(seats, size)
        if seating.complete(seats, size):
            return True
    seating.release(seats, NOTHING)
    return False


def _make_room(seating: Seating, seats: Seats) -> bool:
    """Let others fall back to their minima, one after the other, until this job's minimum fits."""
    released: list[tuple[Seats, dict[Post, int]]] = []
    for other in _givers(seating, seats):
        released.append((other, seating.release(other, other.request.minimum)))
        if seating.complete(seats, seats.request.minimum):
            break
    for other, given in released:  # what was not needed after all goes back
        _return(seating, other, given)
    return bool(seats.taken)


def _givers(seating: Seating, seats: Seats) -> list[Seats]:
    """Jobs with seats beyond their minimum, the largest surplus first."""
    others = [other for other in seating.jobs.values() if other.taken and other.surplus > 0 and other is not seats]
    return sorted(others, key=lambda other: (-other.surplus, other.request.job_id))


def _return(seating: Seating, seats: Seats, given: Mapping[Post, int]) -> None:
    """Take back seats by rank, as long as they are free: ranks have no gaps."""
    for role in (Role.SERVER, Role.WORKER):
        for post in sorted(post for post in given if post[0] is role):
            if not seating.take(seats, post, given[post]):
                break


def _outcome(seating: Seating, seats: Seats) -> Placed | Unplaced:
    if not seats.taken:
        return _NO_ROOM
    names, size = seating.rooms.names, seats.request.allocation
    if not seats.are_complete:
        workers = sum([role is Role.WORKER for role, _ in seats.taken])
        size = Allocation(workers, len(seats.taken) - workers, size.gpu_type)
    return Placed(size, {post: names[node] for post, node in seats.taken.items()})


def _smaller(request: Request) -> Iterator[Allocation]:
    """One task less at a time, keeping the proportion, down to the minimum."""
    workers, servers = request.allocation.workers, request.allocation.servers
    least, gpu_type = request.minimum, request.allocation.gpu_type
    while workers > least.workers or servers > least.servers:
        # The role that is further above its minimum gives; workers on ties, as servers serve them all.
        if (workers - least.workers) * max(least.servers, 1) >= (servers - least.servers) * max(least.workers, 1):
            workers -= 1
        else:
            servers -= 1
        yield Allocation(workers, servers, gpu_type)
