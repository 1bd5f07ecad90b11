"""Sizes that jobs keep while nodes are closed: none shrinks, or pauses, for room that no job can take.

What jobs have on closed nodes counts as room that is shared out (`allocate/staying.py`), but only they can have it
there. So whoever gave tasks back for room that nobody was placed in, and could have them where they are, keeps them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

from optimus_scheduler.allocate.policy import Grant
from optimus_scheduler.allocate.staying import closed_words, size_of
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Nodes, Reason, Resources, Role, Snapshot
from optimus_scheduler.place.requests import CurrentNodes, Placed, TaskSlot, Unplaced

Placement = Placed | Unplaced

_FOR_ROOM = frozenset(
    {
        *(Reason.BETTER_USED_ELSEWHERE, Reason.MINIMUM_ELSEWHERE, Reason.CLUSTER_FULL, Reason.WAITING_FOR_RESOURCES),
        *(Reason.LEARNING_SPEED, Reason.NOT_WORTH_RESCALING),
    }
)
"""Reasons of jobs that get less than they have so that others get more. Quotas, limits, deadlines, budgets and a gain
that is too small are none."""


def with_kept_sizes(
    outlooks: Sequence[Outlook],
    snapshot: Snapshot,
    current: CurrentNodes,
    grants: dict[str, Grant],
    placements: Mapping[str, Placement],
    moved: Collection[str] = (),
) -> tuple[dict[str, Grant], Mapping[str, Placement]]:
    """The same, where jobs that shrink in vain keep what they have, and where they have it. `current`: the nodes of the
    tasks that may stay; `moved`: jobs that move for others."""
    nodes = Nodes.of(snapshot.nodes)
    if not nodes.closed_names or not nodes.open_names:
        return grants, placements
    having = [
        one
        for one in outlooks
        if one.has_tasks and one.id not in moved and _nodes(placements.get(one.id)) != current[one.id]  # most are equal
    ]
    current = {one.id: _that_stay(current[one.id], grants[one.id]) for one in having}
    shrunk = [one for one in having if _has_shrunk(one, current[one.id], grants[one.id], placements.get(one.id))]
    if not shrunk:
        return grants, placements
    grants, placements = dict(grants), dict(placements)
    free = _free(outlooks, snapshot, placements)
    reserved = nodes.open_names if any(grant.goes_first for grant in grants.values()) else frozenset[str]()
    limited = _limited(outlooks, snapshot, placements)
    closed = closed_words(nodes)
    open_names = nodes.open_names
    waiting = [one for one in shrunk if not {one.job.spec.project, one.job.owner} & limited]
    while waiting:  # what one takes back may be where another one was
        lacking = []
        for one in waiting:
            if not _fits(one, current, placements, free, reserved=reserved):
                lacking.append(one)
                continue
            _put(free, one, placements.get(one.id), 1)
            placements[one.id] = placed = Placed(size_of(one, current[one.id]), current[one.id])
            _put(free, one, placed, -1)
            left = [free[name] for name in open_names]
            grants[one.id] = _as_kept(one, placed.allocation, grants[one.id], left, closed)
        if len(lacking) == len(waiting):
            break
        waiting = lacking
    return grants, placements


def _has_shrunk(one: Outlook, here: Mapping[TaskSlot, str], grant: Grant, placed: Placement | None) -> bool:
    """Whether a job gets no more than it could keep where it is, `here`: for the sake of others, or for want of a place
    for more."""
    stays, least, most = size_of(one, here), one.minimum, one.maximum
    if not _within(least, stays) or not _within(stays, most):
        return False
    size = placed.allocation if isinstance(placed, Placed) else None
    if size is not None and (_tasks(size) > _tasks(stays) or _counts(placed) == _counts(Placed(stays, here))):
        return False
    return grant.reason in _FOR_ROOM or size != grant.allocation


def _that_stay(here: Mapping[TaskSlot, str], grant: Grant) -> Mapping[TaskSlot, str]:
    """Those of its tasks that a job could keep: as ranks are counted from 0, none after a gap, and no more than it is
    granted where it gets less for another reason than room."""
    kept: dict[TaskSlot, str] = {}
    for role, granted in ((Role.WORKER, grant.allocation.workers), (Role.SERVER, grant.allocation.servers)):
        for rank in count() if grant.reason in _FOR_ROOM else range(granted):
            if (role, rank) not in here:
                break
            kept[role, rank] = here[role, rank]
    return here if len(kept) == len(here) else kept


def _within(size: Allocation, most: Allocation) -> bool:
    return size.workers <= most.workers and size.servers <= most.servers


def _tasks(size: Allocation) -> int:
    return size.workers + size.servers


def _free(outlooks: Iterable[Outlook], snapshot: Snapshot, placements: Mapping[str, Placement]) -> dict[str, Resources]:
    """What is left of each node."""
    free = {node.name: node.capacity for node in snapshot.nodes}
    for one in outlooks:
        _put(free, one, placements.get(one.id), -1)
    return free


def _put(free: dict[str, Resources], one: Outlook, placed: Placement | None, times: int) -> None:
    """Give back (1) or take (-1) what a job has."""
    for (role, node), tasks in _counts(placed).items():
        free[node] += one.job.spec.need(role) * (times * tasks)


def _nodes(placed: Placement | None) -> Mapping[TaskSlot, str]:
    return placed.nodes if isinstance(placed, Placed) else {}


def _counts(placed: Placement | None) -> Counter[tuple[Role, str]]:
    return Counter((role, node) for (role, _), node in _nodes(placed).items())


def _fits(
    one: Outlook,
    current: CurrentNodes,
    placements: Mapping[str, Placement],
    free: Mapping[str, Resources],
    *,
    reserved: Collection[str],
) -> bool:
    """Whether the job could have all its tasks where they are, in place of those that it gets. `reserved`: nodes whose
    free room is kept for a job that has waited so long that it goes first."""
    gets, has = _counts(placements.get(one.id)), _counts(Placed(size_of(one, current[one.id]), current[one.id]))
    more: dict[str, Resources] = {}
    for role, node in gets | has:
        added = has[role, node] - gets[role, node]
        more[node] = more.get(node, Resources()) + one.job.spec.need(role) * added
        if node in reserved and added > 0:
            return False
    return all(each.fits_in(free[node]) for node, each in more.items())


def _limited(outlooks: Iterable[Outlook], snapshot: Snapshot, placements: Mapping[str, Placement]) -> set[str | None]:
    """Projects and owners that may have no more than they have, where one of their jobs gets more: that is what others
    of theirs give back."""
    projects: set[str | None] = {each.project for each in snapshot.quotas if not each.may_borrow}
    bound = projects | {each.project or each.owner for each in snapshot.worker_limits}
    growing = (
        one
        for one in outlooks
        if isinstance(placed := placements.get(one.id), Placed) and _tasks(placed.allocation) > _tasks(one.present)
    )
    return {name for one in growing for name in (one.job.spec.project, one.job.owner) if name in bound}


def _as_kept(one: Outlook, size: Allocation, grant: Grant, left: Collection[Resources], closed: str | None) -> Grant:
    """The grant of a job that keeps what stays, and why it has no more."""
    present, most = one.present, one.maximum
    if size == grant.allocation:
        return grant
    size = present if size == present else size
    kept = grant._replace(allocation=size, gain=None, grown=(), ideal=None)
    more = [
        (role, one.size(size.workers + (role is Role.WORKER), size.servers + (role is Role.SERVER)))
        for role, may in ((Role.WORKER, most.workers > size.workers), (Role.SERVER, most.servers > size.servers))
        if may
    ]
    if not more:
        return kept._replace(reason=Reason.AT_MAXIMUM)
    lacking = [each for role, each in more if not any(one.job.spec.need(role).fits_in(room) for room in left)]
    if not lacking and size is present:
        return kept._replace(reason=Reason.UNCHANGED)
    note = " ".join(filter(None, (closed, grant.note)))
    if size is present:
        return kept._replace(reason=Reason.NO_FEASIBLE_NODE, ideal=lacking[0], note=note or None)
    ideal = present if grant.reason in _FOR_ROOM else grant.allocation
    return kept._replace(reason=Reason.NO_FEASIBLE_NODE, ideal=ideal, note=note or None)
