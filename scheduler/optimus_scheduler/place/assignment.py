"""Who sits where while a round places tasks: the seats that jobs have, and the room that these leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optimus_scheduler.model import Allocation, Node, Role
from optimus_scheduler.model.amounts import Vector, plus, together
from optimus_scheduler.place.bottleneck import Added, Extra
from optimus_scheduler.place.free_capacity import Rooms
from optimus_scheduler.place.network_cost import Present, Spread
from optimus_scheduler.place.requests import Placed, Post, Request, posts


@dataclass(slots=True)
class Seats:
    """The seats of one job."""

    request: Request
    worker: Vector
    server: Vector
    taken: dict[Post, int]
    """Node number of each seat."""
    outcome: Placed | None = None
    """What was answered last, and still holds; None since the seats have changed."""

    @property
    def are_complete(self) -> bool:
        """Whether there is one for everything that was asked for."""
        return len(self.taken) == self.request.allocation.workers + self.request.allocation.servers

    @property
    def allocation(self) -> Allocation:
        """The size that these are."""
        if self.are_complete:
            return self.request.allocation
        workers = sum([role is Role.WORKER for role, _ in self.taken])
        return Allocation(workers, len(self.taken) - workers, self.request.allocation.gpu_type)

    @property
    def surplus(self) -> int:
        """Seats beyond the minimum."""
        return len(self.taken) - self.request.minimum.workers - self.request.minimum.servers

    def need(self, post: Post) -> Vector:
        return self.worker if post[0] is Role.WORKER else self.server

    def by_node(self) -> Present:
        """Workers and servers on each node."""
        return by_node(self.taken)


class Seating:
    """All seats of a round and the rooms that they are in."""

    def __init__(self, nodes: Iterable[Node], spread: Spread) -> None:
        self.rooms = Rooms(nodes)
        self._spread = spread
        self.jobs: dict[str, Seats] = {}

    # --- jobs come and go ----------------------------------------------------------------------------------------

    def knows(self, request: Request) -> bool:
        """Whether the same was asked for the last time, by a job that held all that it was given."""
        seats = self.jobs.get(request.job_id)
        return (
            seats is not None
            and seats.outcome is not None
            and seats.request == request
            and seats.outcome == (request.allocation, request.held)
        )

    def keeps(self, request: Request) -> bool:
        """Whether the job has exactly the seats that it would get if it were admitted anew."""
        seats = self.jobs.get(request.job_id)
        if seats is None or (seats.request.worker, seats.request.server) != (request.worker, request.server):
            return False
        if seats.outcome != (request.allocation, request.held):
            if self._held(request) != seats.taken:
                return False
            # To be known the next time: what it holds is what it asks for.
            size = request.allocation.workers + request.allocation.servers
            is_all = len(request.held) == len(seats.taken) == size
            seats.outcome = Placed(request.allocation, request.held) if is_all else None
        seats.request = request
        return True

    def admit(self, requests: Sequence[Request]) -> bool:
        """Give these jobs the seats that they hold; False where a node has become too small for all."""
        return self._take_all([self._newcomer(request) for request in requests])

    def admit_in_part(self, requests: Sequence[Request]) -> None:
        """... as far as the nodes hold them, minima first."""
        newcomers = [self._newcomer(request) for request in requests]
        for in_minimum in (True, False):
            for seats in newcomers:
                self._take_held(seats, in_minimum)

    def dismiss(self, job_id: str) -> None:
        """The job is gone, and what it had is free."""
        seats = self.jobs.pop(job_id)
        for node, counts in seats.by_node().items():
            self.rooms.give_back(together(seats.worker, counts[0], seats.server, counts[1]), node)

    def _newcomer(self, request: Request) -> Seats:
        need = self.rooms.amounts.need
        seats = self.jobs[request.job_id] = Seats(request, need(request.worker), need(request.server), {})
        return seats

    def _take_all(self, newcomers: Sequence[Seats]) -> bool:
        """All held seats at once; False, and nothing changed, where a node does not hold all of them."""
        wanted: dict[int, Vector] = {}
        for seats in newcomers:
            seats.taken = self._held(seats.request)
            for node, counts in seats.by_node().items():
                need = together(seats.worker, counts[0], seats.server, counts[1])
                wanted[node] = plus(wanted[node], need) if node in wanted else need
        if all(self.rooms.fits(need, node) for node, need in wanted.items()):
            for node, need in wanted.items():
                self.rooms.take(need, node)
            return True
        for seats in newcomers:
            seats.taken = {}
        return False

    def _held(self, request: Request) -> dict[Post, int]:
        index, size = self.rooms.index, request.allocation
        return {post: index[node] for post, node in request.held.items() if is_within(post, size) and node in index}

    def _take_held(self, seats: Seats, in_minimum: bool) -> None:
        request = seats.request
        for post, node in request.held.items():
            if is_within(post, request.allocation) and is_within(post, request.minimum) == in_minimum:
                number = self.rooms.index.get(node)
                if number is not None:
                    self.take(seats, post, number)

    # --- seats ---------------------------------------------------------------------------------------------------

    def outcome(self, seats: Seats) -> Placed:
        """Where the job sits."""
        if seats.outcome is None:
            names = self.rooms.names
            seats.outcome = Placed(seats.allocation, {post: names[node] for post, node in seats.taken.items()})
        return seats.outcome

    def take(self, seats: Seats, post: Post, node: int) -> bool:
        """One seat, if the node has the room."""
        need = seats.need(post)
        if not self.rooms.fits(need, node):
            return False
        self.rooms.take(need, node)
        seats.taken[post] = node
        seats.outcome = None
        return True

    def release(self, seats: Seats, keep: Allocation) -> dict[Post, int]:
        """Give up the seats beyond `keep`; what was given up."""
        released = {post: node for post, node in seats.taken.items() if not is_within(post, keep)}
        if released:
            seats.outcome = None
            seats.taken = {post: node for post, node in seats.taken.items() if post not in released}
            for node, (workers, servers) in by_node(released).items():
                self.rooms.give_back(together(seats.worker, workers, seats.server, servers), node)
        return released

    def complete(self, seats: Seats, allocation: Allocation) -> bool:
        """Find seats for all of `allocation` beside those that the job has; False, and nothing changed, if not."""
        if not seats.taken and self._goes_back(seats, allocation):
            return True
        missing = [post for post in posts(allocation) if post not in seats.taken] if seats.taken else posts(allocation)
        added = self.ways(seats, allocation) if missing else {}
        if added is None:
            return False
        self._add(seats, missing, added)
        return True

    def ways(self, seats: Seats, allocation: Allocation) -> Added | None:
        """Where what is missing could go."""
        present = seats.by_node()
        workers = allocation.workers - sum([counts[0] for counts in present.values()])
        servers = allocation.servers - sum([counts[1] for counts in present.values()])
        return self._spread(self.rooms, Extra(workers, servers, seats.worker, seats.server), present)

    def _goes_back(self, seats: Seats, allocation: Allocation) -> bool:
        """Whether a job that would be placed anew, but in the end as large as before, has its old seats again."""
        before, index = seats.request.before, self.rooms.index
        if len(before) != allocation.workers + allocation.servers:
            return False
        if not all(is_within(post, allocation) and node in index for post, node in before.items()):
            return False
        old = {post: index[node] for post, node in before.items()}
        counts = {node: together(seats.worker, w, seats.server, p) for node, (w, p) in by_node(old).items()}
        if not all(self.rooms.is_open[node] and self.rooms.fits(need, node) for node, need in counts.items()):
            return False
        for node, need in counts.items():
            self.rooms.take(need, node)
        seats.taken, seats.outcome = old, None
        return True

    def _add(self, seats: Seats, missing: Sequence[Post], added: Added) -> None:
        """Who was on one of the nodes before stays there; the others by rank, nodes in order."""
        for node, (workers, servers) in added.items():
            self.rooms.take(together(seats.worker, workers, seats.server, servers), node)
        seats.outcome = None
        ordered = sorted(added.items())
        if not seats.request.before:  # servers are first in `missing`
            nodes = [node for column in (1, 0) for node, counts in ordered for _ in range(counts[column])]
            seats.taken.update(zip(missing, nodes, strict=True))
            return
        for role, column in ((Role.SERVER, 1), (Role.WORKER, 0)):
            left = {node: counts[column] for node, counts in ordered}
            ranks = [post for post in missing if post[0] is role]
            stayed = self._stay(seats, ranks, left)
            seats.taken.update(stayed)
            nodes = [node for node, count in left.items() for _ in range(count)]
            seats.taken.update(zip([post for post in ranks if post not in stayed], nodes, strict=True))

    def _stay(self, seats: Seats, ranks: Iterable[Post], left: dict[int, int]) -> dict[Post, int]:
        """Posts of `ranks` that sit where they did before; takes them out of what is `left` on each node."""
        before = seats.request.before
        stayed: dict[Post, int] = {}
        for post in ranks if before else ():
            node = self.rooms.index.get(before.get(post, ""), -1)
            if left.get(node, 0) > 0:
                left[node] -= 1
                stayed[post] = node
        return stayed


def by_node(seats: Mapping[Post, int]) -> Present:
    """Workers and servers on each node."""
    counts: dict[int, tuple[int, int]] = {}
    for (role, _), node in seats.items():
        workers, servers = counts.get(node, (0, 0))
        counts[node] = (workers + 1, servers) if role is Role.WORKER else (workers, servers + 1)
    return counts


def is_within(post: Post, allocation: Allocation) -> bool:
    """Whether an allocation has that post."""
    role, rank = post
    return rank < (allocation.workers if role is Role.WORKER else allocation.servers)
