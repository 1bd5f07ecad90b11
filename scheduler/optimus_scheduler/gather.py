"""Scattered all-reduce jobs come together: a job moves onto fewer nodes when others have left room there.

Tasks stay where they are as long as their job's size does, so that what was scattered in a full cluster stays so. What
a move saves is not known before it is made, but it is no more than what the workers exchange, and that part of a step
they measure. So a job moves if the exchange would take longer until its end than the stop, with the margin of a
change. Where exchange between nodes is as quick as within one that is a stop for nothing, but one only: from then on
the job is on as few nodes as there is room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Directive, JobSpec, Node, Nodes, Resources, Role, Snapshot
from optimus_scheduler.moves import free_capacity, may_move
from optimus_scheduler.place.free_capacity import rack_of
from optimus_scheduler.place.requests import TaskSlot
from optimus_scheduler.reconcile import Want
from optimus_scheduler.settings import Settings

_MOST_TRIED = 16
"""Jobs for which room is looked for in one round, those first that exchange most: each looks at every node."""


class Gathered(NamedTuple):
    """A job that moves."""

    before: int
    """Nodes that it was on ..."""
    nodes: int
    """... and that it is on then."""
    exchange_part: float
    """Of each step."""


class WithoutRoom:
    """Jobs for which the round before found no room on fewer nodes, and what it saw of the cluster.

    What room a job has depends on the nodes and, of every job, on what its tasks need and where they are wanted: while
    none of that has changed, a job that had no room has none. Belongs to one shell; not to be shared between threads.
    """

    def __init__(self) -> None:
        self._nodes: Sequence[Node] = ()
        self._seats: Mapping[str, tuple[JobSpec, str | None, Mapping[TaskSlot, str]]] = {}
        self._ids: set[str] = set()

    def of(self, snapshot: Snapshot, wants: Mapping[str, Want]) -> set[str]:
        """Those known in the round of these; further ones may be added to it."""
        jobs, nodes = snapshot.jobs, snapshot.nodes
        seats = {job.id: (job.spec, wants[job.id].allocation.gpu_type, wants[job.id].nodes) for job in jobs}
        if seats != self._seats or (nodes is not self._nodes and nodes != self._nodes):
            self._ids = set()
        self._nodes, self._seats = nodes, seats
        return self._ids


def gather(
    snapshot: Snapshot,
    outlooks: Iterable[Outlook],
    wants: Mapping[str, Want],
    settings: Settings,
    without_room: WithoutRoom | None = None,
) -> tuple[dict[str, Want], dict[str, Gathered]]:
    """`wants`, with fewer racks or else fewer nodes for jobs for which that pays; and these jobs by id.

    `without_room`: what the round before found out; it changes no answer.
    """
    alone = [one for one in outlooks if one.present.workers > 1 and not one.present.servers]  # most jobs have servers
    scattered = [(part * left, part, one) for one in alone for part, left in _exchange(one, wants[one.id], settings)]
    if not scattered:
        return dict(wants), {}
    scattered.sort(key=lambda each: (-each[0], each[2].id))
    stay = (without_room or WithoutRoom()).of(snapshot, wants)
    tried = [each for each in scattered[:_MOST_TRIED] if each[2].id not in stay]
    if not tried:
        return dict(wants), {}
    free, moved = free_capacity({job.id: job for job in snapshot.jobs}, snapshot.nodes, wants), dict(wants)
    found: dict[str, Gathered] = {}
    nodes = Nodes.of(snapshot.nodes).by_name
    for _, part, one in tried:
        want = moved[one.id]
        need, here = one.job.spec.on(want.allocation.gpu_type).need(Role.WORKER), Counter(want.nodes.values())
        own = {name: free[name] + need * count for name, count in here.items() if name in free}
        counts = _fewest(here, nodes, free | own, need)
        if counts is None:
            if not found:  # those that move take room, and leave some
                stay.add(one.id)
            continue
        free |= own
        for name, count in counts.items():
            free[name] -= need * count
        moved[one.id] = want._replace(nodes=_seated(want.nodes, counts))
        found[one.id] = Gathered(len(here), len(counts), part)
    return moved, found


def _exchange(one: Outlook, want: Want, settings: Settings) -> Iterable[tuple[float, float]]:
    """(part of a step in which gradients travel, seconds left) of a job on several nodes that may move and for which
    that could pay; nothing for any other.
    """
    job = one.job
    if job.spec.architecture.has_servers or want.directive is not Directive.RUN or not may_move(one, settings):
        return
    size = job.allocation.workers, job.allocation.gpu_type
    told = next(
        (
            sample.exchange_seconds * sample.steps_per_second
            for sample in reversed(job.speed_samples)
            if sample.exchange_seconds is not None and (sample.workers, sample.gpu_type) == size
        ),
        None,
    )
    if told is None or one.end_is_guessed or len({node for _, node in job.wanted_tasks}) < 2:
        return
    left = one.remaining_seconds(one.present)
    margin = settings.rescale_margin + settings.doubt_margin * (1.0 - one.speeds.confidence)
    pays = margin * one.stop_seconds < told * left
    if pays and want.nodes == {(key.role, key.rank): node for key, node in job.wanted_tasks}:
        yield told, left


def _fewest(
    here: Mapping[str, int], nodes: Mapping[str, Node], room: Mapping[str, Resources], need: Resources
) -> dict[str, int] | None:
    """Tasks by node, as many as `here`, on fewer racks or else fewer nodes; None where there is no room for that."""
    wanted = sum(here.values())
    fit = {name: min(int(1.0 / max(need.dominant_share(each), 1e-9) + 1e-9), wanted) for name, each in room.items()}
    by_rack = sorted((rack_of(nodes[name]), name) for name, count in fit.items() if count)
    racks = [[name for _, name in group] for _, group in groupby(by_rack, key=lambda each: each[0])]
    places = [_packed(rack, fit, here, wanted) for rack in (racks if len(racks) > 1 else [])]
    places.append(_packed([name for _, name in by_rack], fit, here, wanted))
    best = min(
        (each for each in places if each), key=lambda each: (_spread(each, nodes), -_stay(each, here)), default={}
    )
    return best if best and _spread(best, nodes) < _spread(here, nodes) else None


def _packed(names: Sequence[str], fit: Mapping[str, int], here: Mapping[str, int], wanted: int) -> dict[str, int]:
    """So many tasks on as few of these nodes as can be; empty where they have no room."""
    found: dict[str, int] = {}
    while wanted and (open_to := [name for name in names if name not in found]):
        # The last node is the one that is used best; those before it are the emptiest.
        whole = [name for name in open_to if fit[name] >= wanted]
        if whole:
            name = min(whole, key=lambda name: (-here.get(name, 0), fit[name], name))
        else:
            name = max(open_to, key=lambda name: (fit[name], here.get(name, 0), name))
        found[name] = min(fit[name], wanted)
        wanted -= found[name]
    return {} if wanted else found


def _spread(counts: Mapping[str, int], nodes: Mapping[str, Node]) -> tuple[int, int]:
    return len({rack_of(nodes[name]) for name in counts if name in nodes}), len(counts)


def _stay(counts: Mapping[str, int], here: Mapping[str, int]) -> int:
    return sum(min(count, here.get(name, 0)) for name, count in counts.items())


def _seated(nodes: Mapping[TaskSlot, str], counts: Mapping[str, int]) -> dict[TaskSlot, str]:
    """A node for every task: those stay that can."""
    left, found = Counter(counts), dict[TaskSlot, str]()
    for slot, node in nodes.items():
        if left[node] > 0:
            found[slot] = node
            left[node] -= 1
    others = iter(left.elements())
    return {slot: found.get(slot) or next(others) for slot in nodes}
