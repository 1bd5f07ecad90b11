"""Step 3 of a round: which task goes to which node.

Tasks that are wanted already stay where they are; only what is missing is placed. A size that does not fit is made
smaller, task by task, down to the job's minimum. If not even that fits, others give up what they have beyond their
own minima as far as that helps. What remains is `Unplaced`, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from optimus_scheduler.rooms import Rooms
from optimus_scheduler.transfer import Counts, Extra, Space, Spread
from optimus_scheduler.types import Allocation, Node, Resources, Role

_NODES_AT_FIRST = 32
"""Nodes looked at first, with and without GPUs: the emptiest nearly always do, and a cluster may have thousands."""

Post = tuple[Role, int]
"""A role and a rank: what a task is within its job, whichever process fills it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be placed for one job."""

    job_id: str
    worker: Resources
    server: Resources
    allocation: Allocation
    minimum: Allocation
    held: Mapping[Post, str]
    """Node of each task that the job has and that may stay."""

    def need(self, role: Role) -> Resources:
        return self.worker if role is Role.WORKER else self.server


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the tasks of a job go. `allocation` may be less than was asked for, never below the minimum."""

    allocation: Allocation
    nodes: Mapping[Post, str]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Not even the minimum fits on the nodes."""

    reason: str


Placements = Mapping[str, Placed | Unplaced]


def place(
    requests: Sequence[Request], nodes: Iterable[Node], spread: Spread, *, smallest_first: bool = True
) -> Placements:
    """Place every request; by job id. Jobs choose in the order of `requests`; with `smallest_first` only if equal."""
    return _Placer(nodes, spread).run(requests, _in_order(requests) if smallest_first else requests)


def fits_when_empty(request: Request, nodes: Iterable[Node], spread: Spread) -> bool:
    """Whether the minimum could be placed if nobody else had any task."""
    alone = Request(request.job_id, request.worker, request.server, request.minimum, request.minimum, {})
    return isinstance(place([alone], nodes, spread)[request.job_id], Placed)


def posts(allocation: Allocation) -> Iterator[Post]:
    """All roles and ranks of an allocation."""
    yield from ((Role.SERVER, rank) for rank in range(allocation.servers))
    yield from ((Role.WORKER, rank) for rank in range(allocation.workers))


class _Placer:
    """Room on the nodes and the seats taken so far."""

    def __init__(self, nodes: Iterable[Node], spread: Spread) -> None:
        self._rooms = Rooms(nodes)
        self._spread = spread
        self._seats: dict[str, dict[Post, str]] = {}
        self._requests: dict[str, Request] = {}

    def run(self, requests: Sequence[Request], in_order: Sequence[Request]) -> Placements:
        self._requests = {request.job_id: request for request in requests}
        self._keep_held(requests)
        unplaced = [request for request in in_order if not self._seat_shrinking(request)]
        for request in unplaced:
            self._make_room(request)
        return {request.job_id: self._outcome(request) for request in requests}

    # --- seats ---------------------------------------------------------------------------------------------------

    def _keep_held(self, requests: Sequence[Request]) -> None:
        """Take the seats of tasks that stay; minima first, in case a node has become too small for all."""
        for in_minimum in (True, False):
            for request in requests:
                seats = self._seats.setdefault(request.job_id, {})
                for post, node in request.held.items():
                    if _is_within(post, request.allocation) and _is_within(post, request.minimum) == in_minimum:
                        self._take(request, seats, post, node)

    def _take(self, request: Request, seats: dict[Post, str], post: Post, node: str) -> None:
        need = request.need(post[0])
        if self._rooms.fits(need, node):
            self._rooms.take(need, node)
            seats[post] = node

    def _release(self, request: Request, keep: Allocation) -> dict[Post, str]:
        """Give up the seats beyond `keep`; what was given up."""
        seats, kept = self._seats[request.job_id], set(posts(keep))
        released = {post: node for post, node in seats.items() if post not in kept}
        for post, node in released.items():
            self._rooms.give_back(request.need(post[0]), node)
            del seats[post]
        return released

    def _seat(self, request: Request, allocation: Allocation) -> bool:
        """Find seats for all of `allocation` beside those that the job has; False, and nothing changed, if not."""
        seats = self._seats[request.job_id]
        missing = [post for post in posts(allocation) if post not in seats]
        extra = Extra(
            workers=sum(role is Role.WORKER for role, _ in missing),
            servers=sum(role is Role.SERVER for role, _ in missing),
            worker=request.worker,
            server=request.server,
        )
        counts = self._counts(seats, extra) if missing else {}
        if counts is None:
            return False
        for post, node in _assign(missing, counts):
            self._take(request, seats, post, node)
        assert all(post in seats for post in posts(allocation)), "a spread places everything where it fits"
        return True

    def _counts(self, seats: Mapping[Post, str], extra: Extra) -> Counts | None:
        """How the extra tasks spread over the emptiest nodes; all nodes are looked at only if those do not do."""
        counts = self._spread(self._spaces(seats, self._rooms.emptiest(_NODES_AT_FIRST)), extra)
        if counts is None and len(self._rooms) > _NODES_AT_FIRST:
            counts = self._spread(self._spaces(seats, self._rooms.emptiest()), extra)
        return counts

    def _spaces(self, seats: Mapping[Post, str], names: Sequence[str]) -> list[Space]:
        """The named nodes and those of the seats, as the job sees them."""
        present = Counter((node, role) for (role, _), node in seats.items())
        closed = Resources()  # on a cordoned node there is no room, only what is there
        return [
            Space(
                name,
                self._rooms.free(name) if self._rooms.is_open(name) else closed,
                present[name, Role.WORKER],
                present[name, Role.SERVER],
            )
            for name in sorted({*names, *seats.values()})
        ]

    # --- smaller -------------------------------------------------------------------------------------------------

    def _seat_shrinking(self, request: Request) -> bool:
        """Seat the request or as much of it as fits; gives everything up when that is less than the minimum."""
        if len(self._seats[request.job_id]) == request.allocation.workers + request.allocation.servers:
            return True  # all of it stays where it is
        for allocation in _smaller_and_smaller(request):
            self._release(request, allocation)
            if self._seat(request, allocation):
                return True
        self._release(request, Allocation(0, 0))
        return False

    def _make_room(self, request: Request) -> bool:
        """Let others fall back to their minima, one after the other, until this job's minimum fits."""
        released: list[tuple[Request, dict[Post, str]]] = []
        for other in self._givers(request):
            released.append((other, self._release(other, other.minimum)))
            if self._seat(request, request.minimum):
                break
        for other, seats in released:  # what was not needed after all goes back
            self._return(other, seats)
        return bool(self._seats[request.job_id])

    def _givers(self, request: Request) -> list[Request]:
        """Jobs with seats beyond their minimum, the largest surplus first."""
        surplus = {
            job_id: len(seats) - other.minimum.workers - other.minimum.servers
            for job_id, seats in self._seats.items()
            if seats and job_id != request.job_id
            for other in (self._requests[job_id],)
        }
        return [
            self._requests[job_id] for job_id in sorted(surplus, key=lambda i: (-surplus[i], i)) if surplus[job_id] > 0
        ]

    def _return(self, request: Request, released: Mapping[Post, str]) -> None:
        """Take back seats by rank, as long as they are free: ranks have no gaps."""
        seats = self._seats[request.job_id]
        for role in (Role.SERVER, Role.WORKER):
            for post in sorted(post for post in released if post[0] is role):
                self._take(request, seats, post, released[post])
                if post not in seats:
                    break

    def _outcome(self, request: Request) -> Placed | Unplaced:
        seats = self._seats[request.job_id]
        if not seats:
            return Unplaced("no combination of nodes has room for its smallest size")
        workers = sum(role is Role.WORKER for role, _ in seats)
        return Placed(Allocation(workers, len(seats) - workers, request.allocation.gpu_type), dict(seats))


def _is_within(post: Post, allocation: Allocation) -> bool:
    """Whether an allocation has that post."""
    role, rank = post
    return rank < (allocation.workers if role is Role.WORKER else allocation.servers)


def _in_order(requests: Sequence[Request]) -> list[Request]:
    """Jobs that have no task yet choose first (they ask for little), then those that grow; smallest growth first."""
    ranked = enumerate(requests)
    return [request for _, request in sorted(ranked, key=lambda entry: (*_growth(entry[1]), entry[0]))]


def _growth(request: Request) -> tuple[bool, int]:
    return bool(request.held), request.allocation.workers + request.allocation.servers - len(request.held)


def _smaller_and_smaller(request: Request) -> Iterator[Allocation]:
    """The allocation, then one task less at a time, keeping the proportion, down to the minimum."""
    workers, servers = request.allocation.workers, request.allocation.servers
    least, gpu_type = request.minimum, request.allocation.gpu_type
    yield request.allocation
    while workers > least.workers or servers > least.servers:
        # The role that is further above its minimum gives; workers on ties, as servers serve them all.
        if (workers - least.workers) * max(least.servers, 1) >= (servers - least.servers) * max(least.workers, 1):
            workers -= 1
        else:
            servers -= 1
        yield Allocation(workers, servers, gpu_type)


def _assign(missing: Sequence[Post], counts: Mapping[str, tuple[int, int]]) -> Iterator[tuple[Post, str]]:
    """Ranks in order to nodes in order."""
    nodes: dict[Role, list[str]] = {Role.WORKER: [], Role.SERVER: []}
    for node in sorted(counts):
        nodes[Role.WORKER] += [node] * counts[node][0]
        nodes[Role.SERVER] += [node] * counts[node][1]
    for role, places in nodes.items():
        yield from zip((post for post in missing if post[0] is role), places, strict=True)
