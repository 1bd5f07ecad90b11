"""Step 4 of a round: what has to be done so that the observed tasks become the wanted ones.

A comparison, not a history: whatever failed before is found again here. Applied to its own result it finds nothing.

| observed | action |
|---|---|
| wanted set, size or directive differ from what the job has | `SetWanted` |
| wanted task, not there | `StartTask` |
| wanted task, not there, its place not yet left by a task of another job | none: the exit of that task brings a round |
| wanted task, exited | `SetWanted` with the next incarnation of it, `StartTask` |
| task not wanted any more | none: the job's coordinator lets it go; `StopTask` once it has overstayed |
| worker not wanted any more, before it has joined | `StopTask` at once: no coordinator reaches it while it loads |
| task of a job that is being cancelled | `StopTask` at once |
| task of a job that ended | as if it were not wanted any more: it was let go, it leaves, and its place is free then |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from optimus_scheduler.forecast.gpu_types import has_left_its_type
from optimus_scheduler.model import (
    Action,
    Allocation,
    Architecture,
    Directive,
    Job,
    JobState,
    Nodes,
    PlacedTask,
    Resources,
    Role,
    SetWanted,
    Snapshot,
    StartTask,
    StopTask,
    Task,
    TaskKey,
    TaskPhase,
)
from optimus_scheduler.place.place import TaskSlot, task_slots
from optimus_scheduler.settings import Settings

_COORDINATOR: TaskSlot = (Role.COORDINATOR, 0)
_FIRST_SERVER: TaskSlot = (Role.SERVER, 0)
_FIRST_WORKER: TaskSlot = (Role.WORKER, 0)

# What `_make` of a named tuple does, without a call of Python's own for each of tens of thousands.
_make = tuple.__new__
_start: Callable[[Iterable[object]], StartTask] = partial(tuple.__new__, StartTask)


class Want(NamedTuple):
    """What one job should have from now on. A tuple, as each round makes one for every job."""

    directive: Directive
    allocation: Allocation
    nodes: Mapping[TaskSlot, str]
    """Node of each worker and server."""
    batch: int | None = None
    """Of a job with an elastic batch."""
    paused_by: str | None = None
    """Of one that loses all it has to others: who has it pause, in words."""


class _Settled(NamedTuple):
    """A job that had what it should have, all of it alive, and what that was seen by."""

    want: Want
    wanted: tuple[PlacedTask, ...]
    observed: tuple[Task, ...]
    used: frozenset[str]
    """The nodes of these tasks."""


class Reconciler:
    """Reconciles round after round: a job with the very tasks of the round before is not compared again.

    What it returns does not depend on the rounds before. Belongs to one shell; not to be shared between threads.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._settled: dict[str, _Settled] = {}

    def reconcile(self, snapshot: Snapshot, wants: Mapping[str, Want], settings: Settings) -> tuple[Action, ...]:
        """The actions, in the order in which they are to be applied: wanted sets, stops, starts.

        `wants` has an entry for every job of the snapshot.
        """
        self._tasks = tasks_by_job = _by_job(snapshot.tasks, self._tasks)
        before, now_settled = self._settled, dict[str, _Settled]()
        self._settled = now_settled
        nodes = Nodes.of(snapshot.nodes)
        emptied = nodes.emptied_names
        moving = list[_JobSide]()
        observed_of, settled_before = tasks_by_job.get, before.get
        for job in snapshot.jobs:
            job_id = job.id
            want, observed, known = wants[job_id], observed_of(job_id, ()), settled_before(job_id)
            # Most jobs want and have the very same objects as in the round before: a few looks, and no call, for each.
            if (
                known is None
                or known[0] is not want
                or known[1] is not job.wanted_tasks
                or known[2] is not observed
                or want[0] is not job.directive
                or want[1] is not job.allocation
                or want[3] != job.batch
            ):
                known = _as_settled(job, want, observed, known)
            if known is not None and (not emptied or known.used.isdisjoint(emptied)):
                now_settled[job_id] = known
            else:
                moving.append(_JobSide(job, want, observed, nodes))
        gone = tasks_by_job.keys() - now_settled.keys() - {side.job_id for side in moving}
        orphans = [task for job_id in tasks_by_job if job_id in gone for task in tasks_by_job[job_id]] if gone else []
        sets: list[SetWanted] = []
        stops: list[StopTask] = list(_stops(orphans, snapshot.now, settings.drain_seconds, 2 * settings.drain_seconds))
        for side in moving:
            sets += side.set_wanted()
            stops += side.stops(snapshot.now, settings)
        ended = [task for task in orphans if task.phase is not TaskPhase.EXITED]
        left_nodes = {task.node for side in moving for task in side.leaving()} | {task.node for task in ended}
        if left_nodes:  # what remains of settled jobs occupies nodes that others free
            beside = {job_id for job_id, known in now_settled.items() if not known.used.isdisjoint(left_nodes)}
            moving += [
                _JobSide(job, wants[job.id], now_settled[job.id].observed, nodes)
                for job in (snapshot.jobs if beside else ())
                if job.id in beside
            ]
        return (
            *sorted(sets, key=lambda action: action.job_id),
            *sorted(stops, key=lambda action: action.key),
            *_starts_with_available(moving, ended, nodes),
        )


def _by_job(tasks: Sequence[Task], before: Mapping[str, tuple[Task, ...]]) -> dict[str, tuple[Task, ...]]:
    """The tasks of each job that has any: the very tuple of `before` where that is the same.

    Tasks mostly come sorted by job, and most are those of the round before: so these are passed over together.
    """
    found: dict[str, tuple[Task, ...]] = {}
    expected = iter(before.items())
    next_id, following = next(expected, _NOBODY)
    at, n = 0, len(tasks)
    while at < n:
        first = tasks[at]
        if following and first is following[0]:  # the next job of the round before: no task itself is looked at
            job_id, known = next_id, following
            next_id, following = next(expected, _NOBODY)
        else:
            job_id = first.key.job_id
            known = before.get(job_id, ())
            if known:
                while next_id not in (job_id, ""):  # these have gone
                    next_id, following = next(expected, _NOBODY)
                next_id, following = next(expected, _NOBODY)
        end = at + len(known)
        # Where the first is not the same, hardly any is: to compare new objects by their values would take long.
        if not (known and first is known[0] and tasks[at:end] == known):
            known, end = (), at
        while end < n and not (following and tasks[end] is following[0]) and tasks[end].key.job_id == job_id:
            end += 1
        own = known if end == at + len(known) else tuple(tasks[at:end])
        found[job_id] = (*found[job_id], *own) if job_id in found else own
        at = end
    return found


_NOBODY: tuple[str, tuple[Task, ...]] = ("", ())
"""After the last job."""


def _as_settled(job: Job, want: Want, observed: tuple[Task, ...], before: _Settled | None) -> _Settled | None:
    """What makes the job settled; None if it is not."""
    if want.directive is not job.directive or want.batch != job.batch:
        return None
    if want.allocation is not job.allocation and want.allocation != job.allocation:
        return None
    if before is not None and before.observed is observed and before.wanted is job.wanted_tasks:
        if before.want is want:
            return before
        if before.want.nodes is want.nodes:
            return before._replace(want=want)
    if not _is_settled(job, want, observed):
        return None
    return _Settled(want, job.wanted_tasks, observed, frozenset([task.node for task in observed]))


def _is_settled(job: Job, want: Want, observed: Sequence[Task]) -> bool:
    """Whether the job, which has its size, has just these tasks, all of them alive: most jobs in most rounds."""
    wanted = job.wanted_tasks
    if len(want.nodes) != len(wanted) or len(observed) != len(wanted) + bool(wanted):
        return False
    keys = [task.key for task in observed if task.phase is not TaskPhase.EXITED]
    wanted_keys = [placed.key for placed in wanted]
    if keys[1:] != wanted_keys:  # in that order they mostly come: the coordinator's is the first
        live = set(keys)
        if not live.issuperset(wanted_keys):
            return False
        keys = [*live.difference(wanted_keys), *wanted_keys]
    if observed and (keys[0].role, keys[0].rank) != _COORDINATOR:
        return False
    nodes = want.nodes
    return [nodes.get((role, rank)) for (_, role, rank, _), _ in wanted] == [node for _, node in wanted]


class _JobSide:
    """One job: its observed tasks beside the wanted ones."""

    def __init__(self, job: Job, want: Want, observed: Iterable[Task], nodes: Nodes) -> None:
        self._job, self._want = job, want
        self._open_nodes, self._emptied = nodes.open_names, nodes.emptied_names
        self.job_id = job.id
        self._has_left = has_left_its_type(job)
        self._observed: Sequence[Task] = sorted(observed, key=attrgetter("key")) if observed else ()
        self._by_key = {task.key: task for task in self._observed}
        self._previous = {(placed.key.role, placed.key.rank): placed for placed in job.wanted_tasks}
        self._wanted = self._filled()
        self._all_wanted = (*self._coordinator(), *self._wanted)
        """Sorted by key."""

    def set_wanted(self) -> Iterator[SetWanted]:
        """The new wanted set, if it is new."""
        job, want = self._job, self._want
        before = (job.allocation, job.directive, job.wanted_tasks, job.batch)
        if before != (want.allocation, want.directive, self._wanted, want.batch):
            yield SetWanted(job.id, want.allocation, want.directive, self._wanted, want.batch, want.paused_by)

    def starts(self) -> Sequence[PlacedTask]:
        """Wanted tasks that were never seen, by key: one that exited is wanted only as its next incarnation."""
        return self._starts if self._observed else self._all_wanted

    @cached_property
    def _starts(self) -> Sequence[PlacedTask]:
        return [placed for placed in self._all_wanted if placed.key not in self._by_key]

    def stops(self, now: float, settings: Settings) -> Iterable[StopTask]:
        """Live tasks that should not be there any more."""
        if not self._observed:
            return ()
        unwanted = [task for task in self._observed if not self._wants(task)]
        if self._want.directive is Directive.CANCEL:
            return _stops(unwanted, now, 0.0, settings.cancel_force_seconds)
        starting = [task for task in unwanted if self._has_yet_to_join(task)]
        others = [task for task in unwanted if task not in starting] if starting else unwanted
        return chain(
            self._moved(),
            _stops(starting, now, 0.0, 2 * settings.drain_seconds),
            _stops(others, now, settings.drain_seconds, 2 * settings.drain_seconds),
        )

    def _has_yet_to_join(self, task: Task) -> bool:
        """Whether it is a worker that the job loses before it has trained with it: one that is still starting takes
        part in no change of membership, and its coordinator does not reach it before all is loaded.

        Of a job that goes on, those beyond its last membership are stopped once: one that has just joined leaves at
        the next step boundary. Agents of scripts start within a second, and their processes may be about to save.
        """
        if task.key.role is not Role.WORKER:
            return False
        job = self._job
        if self._want.allocation.is_empty:
            return job.state in (JobState.QUEUED, JobState.PAUSED)
        is_new = job.formed is not None and task.key.rank >= job.formed.workers
        return is_new and task.unwanted_since is None and job.spec.architecture is not Architecture.SCRIPT

    def _moved(self) -> Iterator[StopTask]:
        """The coordinator, if its node is being emptied and it is the last to leave, as others leave at its word.

        It stays wanted: when it has exited it is started elsewhere, for two of one job would not know of each other.
        """
        on_emptied = [t for t in self._observed if t.node in self._emptied and t.phase is not TaskPhase.EXITED]
        if self._open_nodes and all(task.key.role is Role.COORDINATOR for task in on_emptied):
            yield from (StopTask(task.key, force=False) for task in on_emptied if self._wants(task))

    def staying(self) -> Sequence[Task]:
        """Live tasks that are wanted."""
        return [task for task in self._observed if task.phase is not TaskPhase.EXITED and self._wants(task)]

    def leaving(self) -> Sequence[Task]:
        """Live tasks that are let go, at once or when those that are to join have joined."""
        return self._leaving if self._observed else ()

    @cached_property
    def _leaving(self) -> Sequence[Task]:
        return [task for task in self._observed if task.phase is not TaskPhase.EXITED and not self._wants(task)]

    @cached_property
    def moves(self) -> bool:
        """Whether tasks are let go when others have joined. A coordinator waits for no place, so its start delays
        nobody."""
        return bool(self.leaving()) and any(placed.key.role is not Role.COORDINATOR for placed in self.starts())

    def need(self, role: Role, gpu_type: str | None = None) -> Resources:
        """What one task takes, a worker on that GPU type."""
        return self._job.spec.on(gpu_type).need(role)

    def resources_of(self, task: Task) -> Resources:
        """What a live task holds: its GPUs are of the type that the job had until now."""
        return self.need(task.key.role, task.gpu_type or self._job.allocation.gpu_type)

    @cached_property
    def _wanted_keys(self) -> set[TaskKey]:
        return {placed.key for placed in self._all_wanted}

    def _wants(self, task: Task) -> bool:
        return task.key in self._wanted_keys

    def _coordinator(self) -> tuple[PlacedTask, ...]:
        """The coordinator, while the job wants tasks. It stays on its node, if it can: so its address stays, too."""
        if self._want.allocation.is_empty:
            return ()
        seen = [task for task in self._observed if task.key.role is Role.COORDINATOR]
        newest = max(seen, key=lambda task: task.key.incarnation) if seen else None
        if newest is None:
            return (PlacedTask(TaskKey(self._job.id, *_COORDINATOR), self._first_node()),)
        if newest.phase is not TaskPhase.EXITED or self._is_done(newest):
            return (PlacedTask(newest.key, newest.node),)
        node = newest.node if newest.node in self._open_nodes else self._first_node()
        return (PlacedTask(self._next_key(_COORDINATOR), node),)

    def _first_node(self) -> str:
        """Beside the first server, or the first worker of a job without servers; not on a node that is closed.

        While a node is being emptied, wanted tasks are still on it, and its coordinator may have left first.
        """
        nodes = self._want.nodes
        beside = nodes.get(_FIRST_SERVER) or nodes[_FIRST_WORKER]
        if beside in self._open_nodes:
            return beside
        candidates = (*sorted(nodes.values()), *sorted(self._open_nodes))
        return next((node for node in candidates if node in self._open_nodes), beside)

    def _filled(self) -> tuple[PlacedTask, ...]:
        """The tasks that fill the wanted slots, sorted by key, as the slots are."""
        slots, nodes, job_id = task_slots(self._want.allocation), self._want.nodes, self._job.id
        if not self._observed and not self._previous:  # nothing to go on with
            placed = nodes.items() if tuple(nodes) == slots else [(slot, nodes[slot]) for slot in slots]  # mostly so
            return tuple(
                [_make(PlacedTask, (_make(TaskKey, (job_id, role, rank, 0)), node)) for (role, rank), node in placed]
            )
        return tuple([self._fill(slot) for slot in slots])

    def _fill(self, slot: TaskSlot) -> PlacedTask:
        """The task that fills a task slot: the one that does so already, or the next incarnation."""
        node, previous = self._want.nodes[slot], self._previous.get(slot)
        moved = slot[0] is Role.WORKER and self._has_left
        if previous is not None and previous.node == node and not moved:
            observed = self._by_key.get(previous.key)
            if observed is None or observed.phase is not TaskPhase.EXITED or self._is_done(observed):
                return previous
        return PlacedTask(self._next_key(slot), node)

    def _next_key(self, slot: TaskSlot) -> TaskKey:
        """An incarnation that was never seen."""
        return TaskKey(self._job.id, *slot, self._incarnations.get(slot, -1) + 1)

    @cached_property
    def _incarnations(self) -> dict[TaskSlot, int]:
        """The highest that was seen of each task slot."""
        known = [task.key for task in self._observed] + [placed.key for placed in self._job.wanted_tasks]
        return {(key.role, key.rank): key.incarnation for key in sorted(known)}

    def _is_done(self, task: Task) -> bool:
        """Whether an exited task has nothing left to do: it was let go by a job that is finishing.

        A paused job let its tasks go as well; once it has some again, it finishes with a coordinator of its own.
        """
        finishing = self._want.directive is Directive.FINISH and self._job.state is not JobState.PAUSED
        return finishing and task.phase is TaskPhase.EXITED and task.exit_code == 0


def _starts_with_available(sides: Iterable[_JobSide], ended: Iterable[Task], nodes: Nodes) -> Iterable[StartTask]:
    """The starts, by key, but for those that have to wait until a task of another job has left.

    `ended`: live tasks of jobs that have ended; they hold what the cluster says that they were started with.

    Two tasks in one place would slow each other, and on a GPU run out of memory. Only jobs that move start newcomers in
    places of others that move: the tasks of each leave when its newcomers have joined, so these jobs could wait for
    each other, until their tasks are stopped.
    """
    sides = sorted(sides, key=lambda side: side.job_id)
    leaving = [(side, task) for side in sides for task in side.leaving()]
    ended = list(ended)
    left_nodes = {task.node for _, task in leaving} | {task.node for task in ended}
    if not left_nodes:
        return chain.from_iterable(map(_start, zip(side.starts())) for side in sides)
    free = {name: nodes.by_name[name].capacity for name in left_nodes if name in nodes.by_name}
    return _starts_in(free, sides, leaving, ended)


def _starts_in(
    free: dict[str, Resources],
    sides: Sequence[_JobSide],
    leaving: Sequence[tuple[_JobSide, Task]],
    ended: Sequence[Task],
) -> Iterator[StartTask]:
    """The same where tasks are `leaving`, each with its job. `free`: the capacity of the nodes that they leave."""
    beside = dict.fromkeys(free, Resources())
    for owner, task in (*leaving, *((side, task) for side in sides for task in side.staying())):
        if task.node in free:
            free[task.node] -= owner.resources_of(task)
    for owner, task in leaving:
        if owner.moves and task.node in free:
            beside[task.node] += owner.resources_of(task)
    for task in ended:
        if task.node in free and task.resources is not None:
            free[task.node] -= task.resources
    for owner in sides:
        for placed in owner.starts():
            if placed.node in free:
                need, available = owner.need(placed.key.role), free[placed.node]
                available = available + beside[placed.node] if owner.moves else available
                if placed.key.role is not Role.COORDINATOR and not need.fits_in(available):
                    continue
                free[placed.node] -= need
            yield StartTask(placed)


def _stops(unwanted: Iterable[Task], now: float, patience: float, force_after: float) -> Iterator[StopTask]:
    """Stop live tasks that were unwanted for `patience` seconds, by force after `force_after`."""
    for task in unwanted:
        if task.phase is TaskPhase.EXITED:
            continue
        overstayed = now - task.unwanted_since if task.unwanted_since is not None else 0.0
        if overstayed >= patience:
            yield StopTask(task.key, force=overstayed >= force_after and task.unwanted_since is not None)
