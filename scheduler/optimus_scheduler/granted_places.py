"""Steps 2 and 3 of a round together: how many tasks each job gets, and on which nodes; what has no place is lent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from optimus_scheduler.allocate.allocate import allocate, request_for
from optimus_scheduler.allocate.policy import Grant, PatientPolicy, Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.kept_sizes import with_kept_sizes
from optimus_scheduler.model import Nodes, Reason, Snapshot
from optimus_scheduler.moves import Moves
from optimus_scheduler.place.place import Placements, Placer
from optimus_scheduler.place.requests import CurrentNodes, Placed, Request, Unplaced
from optimus_scheduler.settings import Settings

_MOST_PASSED_OVER = 4
"""Room is lent so many times in a round at most: each time all grants are made anew."""
Timer = Callable[[str], AbstractContextManager[object]]
"""Given by a shell that has a clock: entered around each named step."""


def untimed(_: str) -> AbstractContextManager[object]:
    """For those that have no clock."""
    return nullcontext()


class Asked(NamedTuple):
    """What both steps read."""

    outlooks: Sequence[Outlook]
    snapshot: Snapshot
    current: CurrentNodes
    """The nodes of each job's tasks."""
    placer: Placer
    policy: Policy
    settings: Settings


class GrantedPlaces(NamedTuple):
    """What each job gets, and where."""

    grants: dict[str, Grant]
    placements: Placements
    moves: Moves
    """Of other jobs, so that some have a place."""


def granted_places(asked: Asked, timer: Timer = untimed, placeless: Collection[str] = ()) -> GrantedPlaces:
    """One pass of both steps. `placeless` get nothing: no node has room for them."""
    outlooks, snapshot, current, placer, policy, settings = asked
    with timer("allocate"):
        grants = allocate(outlooks, snapshot, current, policy, settings, placer, placeless)
    with timer("place"):
        moves = Moves(outlooks, snapshot.capacity, settings)
        return GrantedPlaces(grants, _place(asked, grants, moves), moves)


def with_lent_room(granted: GrantedPlaces, asked: Asked, timer: Timer = untimed) -> GrantedPlaces:
    """The same, but what jobs were granted that have no place yet is lent to others until their turn has come, and
    none that could keep its tasks shrinks for room that nobody was placed in (`kept_sizes`).

    Those that come in their stead may have no place, either: then they are passed over, too.
    """
    lent = _with_lent_room(granted, asked, timer)
    outlooks, snapshot, current, _, _, _ = asked
    grants, placements = with_kept_sizes(outlooks, snapshot, current, lent.grants, lent.placements, lent.moves.made)
    return lent if placements is lent.placements else GrantedPlaces(grants, placements, lent.moves)


def _with_lent_room(granted: GrantedPlaces, asked: Asked, timer: Timer) -> GrantedPlaces:
    lent, stuck = granted, dict[str, tuple[Grant, Placed | Unplaced]]()
    for _ in range(_MOST_PASSED_OVER):
        placeless = _without_place(asked, lent.placements)
        stuck |= {job_id: (lent.grants[job_id], lent.placements[job_id]) for job_id in placeless}
        if not placeless or not _others_want_more(lent.grants, stuck):
            break
        lent = granted_places(asked, timer, stuck)
    if lent is granted:
        return granted
    grants = {**lent.grants, **{job_id: grant for job_id, (grant, _) in stuck.items()}}
    return GrantedPlaces(grants, {**lent.placements, **{job_id: at for job_id, (_, at) in stuck.items()}}, lent.moves)


def _place(asked: Asked, grants: Mapping[str, Grant], moves: Moves) -> Placements:
    """Places for all jobs with a grant, in order of arrival or in that of the grants."""
    outlooks, snapshot, current, placer, policy, _ = asked
    granted = [(one, size) for one in outlooks if (size := grants[one.id].allocation).workers or size.servers]
    granted.sort(key=lambda each: each[0].job.submitted_at)  # they come by id
    if policy.places_in_order:
        position = {job_id: number for number, job_id in enumerate(grants)}
        granted.sort(key=lambda each: position[each[0].id])
    requests = []
    for one, size in granted:
        known, here = one.steady.request, current[one.id]
        if known is not None and known[0] is size and known[1] is here and known[2] is policy:
            requests.append(known[3])  # as `request_for` does, without a call
        else:
            requests.append(request_for(one, size, here, policy))
    in_order, nodes = policy.places_in_order, snapshot.nodes
    found = placer.place(requests, nodes, policy.spread, smallest_first=not in_order, moves=moves)
    closed = Nodes.of(nodes).closed_names
    stuck = [each for each in requests if closed and _left(each, closed) and isinstance(found[each.job_id], Unplaced)]
    if not stuck:
        return found
    # Placed anew these would have tasks nowhere: they stay on the closed nodes, with as many as that leaves them.
    stay = {each.job_id: each._replace(current=each.before, before={}) for each in stuck}
    moves.made.clear()
    requests = [stay.get(each.job_id, each) for each in requests]
    return placer.place(requests, nodes, policy.spread, smallest_first=not in_order, moves=moves)


def _left(request: Request, closed: Collection[str]) -> bool:
    """Whether the job is to be placed anew, and had tasks on closed nodes that could stay."""
    return not request.current and any(node in closed for node in request.before.values())


def _without_place(asked: Asked, placements: Placements) -> frozenset[str]:
    """Waiting jobs that were granted something and have no place for it, but for those whose turn has come: for these
    room is kept until they have a place. None under a policy that knows no turns."""
    policy, settings = asked.policy, asked.settings
    placeless = [one for one in asked.outlooks if not one.has_tasks and isinstance(placements.get(one.id), Unplaced)]
    if not placeless or not isinstance(policy, PatientPolicy):  # to ask that takes longer than to look
        return frozenset()
    return frozenset(one.id for one in placeless if policy.seconds_to_turn(one, settings) > 0)


def _others_want_more(grants: Mapping[str, Grant], placeless: Collection[str]) -> bool:
    return any(grant.reason in _LACK_ROOM for job_id, grant in grants.items() if job_id not in placeless)


_LACK_ROOM = (
    Reason.WAITING_FOR_RESOURCES,
    Reason.WAITING_FOR_QUOTA,
    Reason.BETTER_USED_ELSEWHERE,
    Reason.CLUSTER_FULL,
    Reason.MINIMUM_ELSEWHERE,
)
