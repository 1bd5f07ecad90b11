"""Preemption: jobs shrink towards their minima, or move to other nodes, so that the minimum of another job fits.

Thousands of jobs may have something to give, and most of it is of no use: on nodes that lack something else, or of a
kind that is not short. So only jobs give way that help: a node would then hold more tasks of the kind that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from optimus_scheduler.model import NOTHING, Allocation, Role
from optimus_scheduler.model.amounts import Vector, holds, minus, plus, times, together
from optimus_scheduler.place.assignment import Assignment, Assignments, by_node
from optimus_scheduler.place.free_capacity import FreeCapacity
from optimus_scheduler.place.requests import TaskSlot


def preempt(assignments: Assignments, assignment: Assignment, others: Iterable[Assignment]) -> bool:
    """Let `others` fall back to their minima, one after the other, until this job's minimum fits."""
    giving = (other for other in others if other is not assignment and other.surplus > 0)
    released = _released(assignments, assignment, giving, lambda other: other.request.minimum)
    for other, given in released:  # what was not needed after all goes back
        _return(assignments, other, given)
    return bool(assignment.taken)


def displace(
    assignments: Assignments,
    assignment: Assignment,
    others: Sequence[Assignment],
    pays: Callable[[Sequence[str]], bool],
) -> list[str]:
    """Let `others` move to other nodes, one after the other, until this job's minimum fits; who does, by job id.

    Nobody moves where one of them finds no other place for all its tasks, or where the moves do not pay.
    """
    sizes = {other.request.job_id: other.allocation for other in others}
    released = _released(assignments, assignment, others, lambda _: NOTHING)
    moved = [other for other, given in released if assignment.taken and not _goes_back(assignments, other, given)]
    moved.sort(key=lambda other: (-len(other.request.current), other.request.job_id))  # the largest choose first
    ids = [other.request.job_id for other in moved]
    fits = bool(assignment.taken) and (not moved or pays(ids))
    if fits and all(assignments.complete(other, sizes[other.request.job_id]) for other in moved):
        return ids
    for each in (assignment, *(other for other, _ in released)):
        assignments.release(each, NOTHING)
    for other, given in released:
        _goes_back(assignments, other, given)
    return []


_Released = list[tuple[Assignment, dict[TaskSlot, int]]]
"""Jobs with the task slots that they have given up, and the nodes of these."""


def _released(
    assignments: Assignments,
    assignment: Assignment,
    others: Iterable[Assignment],
    keep: Callable[[Assignment], Allocation],
) -> _Released:
    """Have `others` give up what they have beyond `keep`, as far as it helps, until this job's minimum fits."""
    released: _Released = []
    offers = _Surpluses(assignments.free_capacity, assignment, keep)
    for other in others:
        helpful = offers.with_that_of(other)
        while helpful and not assignment.taken:
            released += [(each, assignments.release(each, keep(each))) for each in helpful]
            if not assignments.complete(assignment, assignment.request.minimum):
                helpful = offers.for_what_is_short_now()
        if assignment.taken:
            break
    return released


def _goes_back(assignments: Assignments, assignment: Assignment, given: Mapping[TaskSlot, int]) -> bool:
    """A job without tasks takes all of these back; False, and it has none, if they do not fit any more."""
    if all(assignments.take(assignment, slot, node) for slot, node in given.items()):
        return True
    assignments.release(assignment, NOTHING)
    return False


def _short_of(free_capacity: FreeCapacity, assignment: Assignment) -> Allocation:
    """How many tasks of each kind do not even fit by themselves; all of both if only the two together do not."""
    least = assignment.request.minimum
    workers = 0 if free_capacity.node_classes.hold(assignment.worker, least.workers) else least.workers
    servers = 0 if free_capacity.node_classes.hold(assignment.server, least.servers) else least.servers
    return Allocation(workers, servers) if workers + servers else least


class _Surpluses:
    """What jobs could give up, added up by node until it is of use."""

    def __init__(
        self, free_capacity: FreeCapacity, assignment: Assignment, keep: Callable[[Assignment], Allocation]
    ) -> None:
        """What could be of use for these task slots; `keep`: what each job keeps."""
        self._free_capacity, self._assignment, self._keep = free_capacity, assignment, keep
        self._short = _short_of(free_capacity, assignment)
        self._offered: dict[int, Vector] = {}
        """What each node would have besides what is free there ..."""
        self._by: dict[int, dict[str, Assignment]] = {}
        """... and the jobs that it comes from."""
        self._fit: dict[Vector, list[int]] = {}
        """What was found out of rooms (`_fitting`): many nodes have the same."""

    def with_that_of(self, other: Assignment) -> list[Assignment]:
        """The jobs that have to shrink, now that `other` may, for a node to hold more; empty if no node would."""
        surplus = _surplus(other, self._keep(other))
        for node, amount in surplus.items():
            offered = self._offered.get(node)
            self._offered[node] = amount if offered is None else plus(offered, amount)
            self._by.setdefault(node, {})[other.request.job_id] = other
        return self._withdrawn(surplus)

    def for_what_is_short_now(self) -> list[Assignment]:
        """The same among all jobs so far, if another kind of task is short than before."""
        before, self._short = self._short, _short_of(self._free_capacity, self._assignment)
        self._fit.clear()
        return [] if self._short == before else self._withdrawn(self._offered)

    def _withdrawn(self, nodes: Iterable[int]) -> list[Assignment]:
        helpful = [node for node in nodes if self._helps(node)]
        found = {job_id: preempted for node in helpful for job_id, preempted in self._by[node].items()}
        for preempted in found.values():
            for node, amount in _surplus(preempted, self._keep(preempted)).items():
                self._offered[node] = minus(self._offered[node], amount)
                del self._by[node][preempted.request.job_id]
        return list(found.values())

    def _helps(self, node: int) -> bool:
        free = self._free_capacity.open_capacity(node)
        if min(free) < 0:  # closed, or too small for what is there
            return False
        return self._fitting(plus(free, self._offered[node])) != self._fitting(free)

    def _fitting(self, available: Vector) -> list[int]:
        """How many servers fit beside no worker, beside one, and so on, of those that are short."""
        found = self._fit.get(available)
        if found is None:
            worker, server, short = self._assignment.worker, self._assignment.server, self._short
            workers = min(holds(available, worker), short.workers) if short.workers else 0
            beside = (minus(available, times(worker, x)) for x in range(workers + 1))
            found = self._fit[available] = [min(holds(left, server), short.servers) for left in beside]
        return found


def _surplus(assignment: Assignment, least: Allocation) -> dict[int, Vector]:
    """By node, what the task slots beyond `least` take."""
    limits = {Role.WORKER: least.workers, Role.SERVER: least.servers}
    beyond = by_node({slot: node for slot, node in assignment.taken.items() if slot[1] >= limits[slot[0]]})
    return {node: together(assignment.worker, w, assignment.server, p) for node, (w, p) in beyond.items()}


def _return(assignments: Assignments, assignment: Assignment, given: Mapping[TaskSlot, int]) -> None:
    """Take back task slots by rank, as long as they are free: ranks have no gaps."""
    for role in (Role.SERVER, Role.WORKER):
        for slot in _of(role, given):
            if not assignments.take(assignment, slot, given[slot]):
                break


def _of(role: Role, given: Iterable[TaskSlot]) -> list[TaskSlot]:
    return sorted(slot for slot in given if slot[0] is role)
