"""The assignment of task slots to nodes while a round places tasks, and the capacity that it leaves free."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from optimus_scheduler.model import Allocation, Node, Role
from optimus_scheduler.model.amounts import Vector, plus, together
from optimus_scheduler.place.bottleneck import Added, Extra
from optimus_scheduler.place.free_capacity import FreeCapacity
from optimus_scheduler.place.network_cost import Present, Spread
from optimus_scheduler.place.requests import Placed, Request, TaskSlot, task_slots


@dataclass(slots=True)
class Assignment:
    """The task slots of one job."""

    request: Request
    worker: Vector
    server: Vector
    taken: dict[TaskSlot, int]
    """Node number of each task slot."""
    outcome: Placed | None = None
    """The last result; None once the task slots have changed."""

    @property
    def are_complete(self) -> bool:
        """Whether every task of the request is assigned."""
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

    def need(self, slot: TaskSlot) -> Vector:
        return self.worker if slot[0] is Role.WORKER else self.server

    def by_node(self) -> Present:
        """Workers and servers on each node."""
        return by_node(self.taken)


class Assignments:
    """The task slots of all jobs of a round, and the free capacity of the nodes."""

    def __init__(self, nodes: Iterable[Node], spread: Spread) -> None:
        self.free_capacity = FreeCapacity(nodes)
        self._spread = spread
        self.jobs: dict[str, Assignment] = {}
        self.touched: set[str] = set()
        """Jobs whose outcome may be another since whoever asks cleared this."""
        self._surpluses = _Surpluses()

    def above_minimum(self) -> list[str]:
        """Jobs with task slots beyond their minimum, the largest surplus first."""
        return self._surpluses.ordered(self.jobs)

    # --- jobs come and go ----------------------------------------------------------------------------------------

    def knows(self, request: Request) -> bool:
        """Whether the last request was equal, and the job had all tasks of its allocation."""
        assignment = self.jobs.get(request.job_id)
        if assignment is None or assignment.outcome is None:
            return False
        if assignment.request is not request and assignment.request != request:
            return False
        allocation, nodes = assignment.outcome
        if nodes is request.current and allocation is request.allocation:
            return True
        if nodes != request.current or allocation != request.allocation:
            return False
        # The next round recognises it by the very objects.
        assignment.request, assignment.outcome = request, Placed(request.allocation, request.current)
        return True

    def keeps(self, request: Request) -> bool:
        """Whether the job has exactly the task slots that it would get if it were admitted anew."""
        assignment = self.jobs.get(request.job_id)
        if assignment is None or (assignment.request.worker, assignment.request.server) != (
            request.worker,
            request.server,
        ):
            return False
        has_all = assignment.outcome == (request.allocation, request.current)
        if not has_all and self._current(request) != assignment.taken:
            return False
        size = request.allocation.workers + request.allocation.servers
        has_all = has_all or len(request.current) == len(assignment.taken) == size
        # The next round recognises it by the very objects.
        assignment.request = request
        self._changes(assignment)
        assignment.outcome = Placed(request.allocation, request.current) if has_all else None
        return True

    def admit(self, requests: Sequence[Request]) -> bool:
        """Assign the slots that these jobs have now; False if a node has become too small for all of them."""
        return self._take_all([self._newcomer(request) for request in requests])

    def admit_in_part(self, requests: Sequence[Request]) -> None:
        """... as far as the nodes hold them, minima first."""
        newcomers = [self._newcomer(request) for request in requests]
        for in_minimum in (True, False):
            for assignment in newcomers:
                self._take_current(assignment, in_minimum)

    def dismiss(self, job_id: str) -> None:
        """The job is gone, and what it had is free."""
        assignment = self.jobs.pop(job_id)
        self._changes(assignment)
        for node, counts in assignment.by_node().items():
            self.free_capacity.give_back(together(assignment.worker, counts[0], assignment.server, counts[1]), node)

    def _changes(self, assignment: Assignment) -> None:
        """Its task slots, or what is asked for it, are others than before."""
        assignment.outcome = None
        self.touched.add(assignment.request.job_id)
        self._surpluses.changed.add(assignment.request.job_id)

    def _newcomer(self, request: Request) -> Assignment:
        need = self.free_capacity.amounts.need
        assignment = self.jobs[request.job_id] = Assignment(request, need(request.worker), need(request.server), {})
        self._changes(assignment)
        return assignment

    def _take_all(self, newcomers: Sequence[Assignment]) -> bool:
        """All held task slots at once; False, and nothing changed, where a node does not hold all of them."""
        wanted: dict[int, Vector] = {}
        for assignment in newcomers:
            assignment.taken = self._current(assignment.request)
            for node, counts in assignment.by_node().items():
                need = together(assignment.worker, counts[0], assignment.server, counts[1])
                wanted[node] = plus(wanted[node], need) if node in wanted else need
        if all(self.free_capacity.fits(need, node) for node, need in wanted.items()):
            for node, need in wanted.items():
                self.free_capacity.take(need, node)
            return True
        for assignment in newcomers:
            assignment.taken = {}
        return False

    def _current(self, request: Request) -> dict[TaskSlot, int]:
        index, size = self.free_capacity.index, request.allocation
        return {slot: index[node] for slot, node in request.current.items() if is_within(slot, size) and node in index}

    def _take_current(self, assignment: Assignment, in_minimum: bool) -> None:
        request = assignment.request
        for slot, node in request.current.items():
            if is_within(slot, request.allocation) and is_within(slot, request.minimum) == in_minimum:
                number = self.free_capacity.index.get(node)
                if number is not None:
                    self.take(assignment, slot, number)

    # --- task slots ---------------------------------------------------------------------------------------------------

    def outcome(self, assignment: Assignment) -> Placed:
        """The nodes of the job's tasks."""
        if assignment.outcome is None:
            names = self.free_capacity.names
            nodes = map(names.__getitem__, assignment.taken.values())
            assignment.outcome = Placed(assignment.allocation, dict(zip(assignment.taken, nodes, strict=True)))
        return assignment.outcome

    def take(self, assignment: Assignment, slot: TaskSlot, node: int) -> bool:
        """Assign one task slot to the node; False if the node has too little free capacity."""
        need = assignment.need(slot)
        if not self.free_capacity.fits(need, node):
            return False
        self.free_capacity.take(need, node)
        assignment.taken[slot] = node
        self._changes(assignment)
        return True

    def release(self, assignment: Assignment, keep: Allocation) -> dict[TaskSlot, int]:
        """Give up the task slots beyond `keep`; what was given up."""
        released = {slot: node for slot, node in assignment.taken.items() if not is_within(slot, keep)}
        if released:
            self._changes(assignment)
            assignment.taken = {slot: node for slot, node in assignment.taken.items() if slot not in released}
            for node, (workers, servers) in by_node(released).items():
                self.free_capacity.give_back(together(assignment.worker, workers, assignment.server, servers), node)
        return released

    def complete(self, assignment: Assignment, allocation: Allocation) -> bool:
        """Assign the missing slots of `allocation`; False, and nothing changed, if they do not fit."""
        if not assignment.taken and self._goes_back(assignment, allocation):
            return True
        missing = (
            [slot for slot in task_slots(allocation) if slot not in assignment.taken]
            if assignment.taken
            else task_slots(allocation)
        )
        added = self.ways(assignment, allocation) if missing else {}
        if added is None:
            return False
        self._add(assignment, missing, added)
        return True

    def ways(self, assignment: Assignment, allocation: Allocation) -> Added | None:
        """Where what is missing could go."""
        if not assignment.taken:
            extra = Extra(allocation.workers, allocation.servers, assignment.worker, assignment.server)
            return self._spread(self.free_capacity, extra, {})
        present = assignment.by_node()
        workers = allocation.workers - sum([counts[0] for counts in present.values()])
        servers = allocation.servers - sum([counts[1] for counts in present.values()])
        return self._spread(self.free_capacity, Extra(workers, servers, assignment.worker, assignment.server), present)

    def _goes_back(self, assignment: Assignment, allocation: Allocation) -> bool:
        """Whether a job that would be placed anew, but in the end as large as before, has its old task slots again."""
        before, index = assignment.request.before, self.free_capacity.index
        if len(before) != allocation.workers + allocation.servers:
            return False
        if not all(is_within(slot, allocation) and node in index for slot, node in before.items()):
            return False
        old = {slot: index[node] for slot, node in before.items()}
        counts = {node: together(assignment.worker, w, assignment.server, p) for node, (w, p) in by_node(old).items()}
        if not all(
            self.free_capacity.is_open[node] and self.free_capacity.fits(need, node) for node, need in counts.items()
        ):
            return False
        for node, need in counts.items():
            self.free_capacity.take(need, node)
        assignment.taken = old
        self._changes(assignment)
        return True

    def _add(self, assignment: Assignment, missing: Sequence[TaskSlot], added: Added) -> None:
        """Tasks that were on one of the nodes before stay there; the others follow by rank, nodes in order."""
        self.free_capacity.take_all(assignment.worker, assignment.server, added)
        self._changes(assignment)
        ordered = sorted(added.items())
        if not assignment.request.before:  # servers are first in `missing`
            nodes: list[int] = []
            for column in (1, 0):
                for node, counts in ordered:
                    nodes += (node,) * counts[column]
            assignment.taken.update(zip(missing, nodes, strict=True))
            return
        for role, column in ((Role.SERVER, 1), (Role.WORKER, 0)):
            left = {node: counts[column] for node, counts in ordered}
            ranks = [slot for slot in missing if slot[0] is role]
            stayed = self._stay(assignment, ranks, left)
            assignment.taken.update(stayed)
            nodes = [node for node, count in left.items() for _ in range(count)]
            assignment.taken.update(zip([slot for slot in ranks if slot not in stayed], nodes, strict=True))

    def _stay(self, assignment: Assignment, ranks: Iterable[TaskSlot], left: dict[int, int]) -> dict[TaskSlot, int]:
        """The slots of `ranks` that keep their node; subtracts them from what is `left` on each node."""
        before = assignment.request.before
        stayed: dict[TaskSlot, int] = {}
        for slot in ranks if before else ():
            node = self.free_capacity.index.get(before.get(slot, ""), -1)
            if left.get(node, 0) > 0:
                left[node] -= 1
                stayed[slot] = node
        return stayed


class _Surpluses:
    """Jobs by their surplus, kept in order: from round to round, that of few jobs changes."""

    def __init__(self) -> None:
        self.changed: set[str] = set()
        """Jobs whose surplus may have changed since the last question."""
        self._of: dict[int, list[str]] = {}
        """The jobs with each surplus, in order."""
        self._known: dict[str, int] = {}
        """The surplus of each of these."""

    def ordered(self, jobs: Mapping[str, Assignment]) -> list[str]:
        """Jobs with a surplus, the largest first."""
        for job_id in self.changed:
            surplus = max(jobs[job_id].surplus, 0) if job_id in jobs else 0
            before = self._known.pop(job_id, 0)
            if surplus:
                self._known[job_id] = surplus
            if surplus == before:
                continue
            if before:
                with_that = self._of[before]
                del with_that[bisect_left(with_that, job_id)]
            if surplus:
                insort(self._of.setdefault(surplus, []), job_id)
        self.changed.clear()
        return [job_id for surplus in sorted(self._of, reverse=True) for job_id in self._of[surplus]]


def by_node(assignment: Mapping[TaskSlot, int]) -> Present:
    """Workers and servers on each node."""
    counts: dict[int, tuple[int, int]] = {}
    for (role, _), node in assignment.items():
        workers, servers = counts.get(node, (0, 0))
        counts[node] = (workers + 1, servers) if role is Role.WORKER else (workers, servers + 1)
    return counts


def is_within(slot: TaskSlot, allocation: Allocation) -> bool:
    """Whether an allocation has that task slot."""
    role, rank = slot
    return rank < (allocation.workers if role is Role.WORKER else allocation.servers)
