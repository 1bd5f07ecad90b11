"""From observed tasks to wanted ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from tests.scheduler.builders import NOW, a_cluster, a_job, a_snapshot, applied, live_tasks

from optimus_scheduler.allocate.staying import CurrentSlots
from optimus_scheduler.model import (
    NOTHING,
    Action,
    Allocation,
    Architecture,
    Directive,
    Job,
    JobState,
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
from optimus_scheduler.place.place import task_slots
from optimus_scheduler.reconcile import Reconciler, Want
from optimus_scheduler.settings import Settings

SETTINGS = Settings(drain_seconds=20.0, cancel_force_seconds=10.0)


def want(workers: int, servers: int, directive: Directive = Directive.RUN, node: str = "node-0") -> Want:
    size = Allocation(workers, servers)
    return Want(directive, size, dict.fromkeys(task_slots(size), node))


def key(job: str, role: Role, rank: int = 0, incarnation: int = 0) -> TaskKey:
    return TaskKey(job, role, rank, incarnation)


def snapshot_of(job: Job, tasks: Iterable[Task] | None = None) -> Snapshot:
    return a_snapshot([job], a_cluster(16), tuple(tasks) if tasks is not None else None)


def actions_for(job: Job, wanted: Want, tasks: Iterable[Task] | None = None) -> tuple[Action, ...]:
    return Reconciler().reconcile(snapshot_of(job, tasks), {job.id: wanted}, SETTINGS)


def started(actions: Iterable[Action]) -> list[TaskKey]:
    return [action.task.key for action in actions if isinstance(action, StartTask)]


def stopped(actions: Iterable[Action]) -> list[StopTask]:
    return [action for action in actions if isinstance(action, StopTask)]


def exited(tasks: Iterable[Task], gone: TaskKey, exit_code: int | None) -> list[Task]:
    return [replace(task, phase=TaskPhase.EXITED, exit_code=exit_code) if task.key == gone else task for task in tasks]


def test_a_new_job_gets_its_set_and_its_tasks_coordinator_first() -> None:
    actions = actions_for(a_job("a"), want(1, 1))
    tasks = tuple(PlacedTask(key("a", role), "node-0") for role in (Role.SERVER, Role.WORKER))
    assert actions == (
        SetWanted("a", Allocation(1, 1), Directive.RUN, tasks),
        StartTask(PlacedTask(key("a", Role.COORDINATOR), "node-0")),
        *(StartTask(task) for task in tasks),
    )


def test_nothing_to_do_when_all_is_as_wanted() -> None:
    assert actions_for(a_job("a", has=(2, 1)), want(2, 1)) == ()


def test_a_task_that_never_appeared_is_started_again_under_its_name() -> None:
    job = a_job("a", has=(2, 1))
    missing = key("a", Role.WORKER, 1)
    tasks = [task for task in live_tasks([job]) if task.key != missing]
    assert actions_for(job, want(2, 1), tasks) == (StartTask(PlacedTask(missing, "node-0")),)


@pytest.mark.parametrize("exit_code", [0, 1, 137, None])
def test_an_exited_task_is_replaced_by_the_next_incarnation(exit_code: int | None) -> None:
    job = a_job("a", has=(2, 1))
    tasks = exited(live_tasks([job]), key("a", Role.WORKER, 1), exit_code)
    actions = actions_for(job, want(2, 1), tasks)
    assert started(actions) == [key("a", Role.WORKER, 1, 1)]
    assert isinstance(actions[0], SetWanted)
    assert PlacedTask(key("a", Role.WORKER, 1, 1), "node-0") in actions[0].tasks


def test_incarnations_are_never_used_again() -> None:
    """A rank that was given up and comes back does not take the name of the task that is still leaving."""
    job = a_job("a", has=(1, 1))
    leaving = Task(key("a", Role.WORKER, 1, 4), "node-0", TaskPhase.RUNNING, unwanted_since=NOW - 1)
    actions = actions_for(job, want(2, 1), [*live_tasks([job]), leaving])
    assert started(actions) == [key("a", Role.WORKER, 1, 5)]


def test_a_moved_task_is_a_new_incarnation() -> None:
    actions = actions_for(a_job("a", has=(1, 1)), want(1, 1, node="node-1"))
    assert set(started(actions)) == {key("a", Role.WORKER, 0, 1), key("a", Role.SERVER, 0, 1)}


def test_an_exited_coordinator_starts_again_where_it_was() -> None:
    job = a_job("a", has=(1, 1), nodes="node-1")
    tasks = exited(live_tasks([job]), key("a", Role.COORDINATOR), 1)
    snapshot = a_snapshot([job], a_cluster(16, 16), tuple(tasks))
    actions = Reconciler().reconcile(snapshot, {"a": want(1, 1, node="node-1")}, SETTINGS)
    assert actions == (StartTask(PlacedTask(key("a", Role.COORDINATOR, 0, 1), "node-1")),)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_coordinator_whose_node_is_closed_or_gone_starts_beside_the_first_server(is_known: bool) -> None:
    job = a_job("a", has=(1, 1), nodes="node-0")
    tasks = [
        replace(task, node="lost", phase=TaskPhase.EXITED) if task.key.role is Role.COORDINATOR else task
        for task in live_tasks([job])
    ]
    nodes = (*a_cluster(16), *((replace(a_cluster(16)[0], name="lost", schedulable=False),) if is_known else ()))
    actions = Reconciler().reconcile(a_snapshot([job], nodes, tuple(tasks)), {"a": want(1, 1)}, SETTINGS)
    assert actions == (StartTask(PlacedTask(key("a", Role.COORDINATOR, 0, 1), "node-0")),)


def test_a_coordinator_leaves_a_node_that_is_being_emptied_before_the_others() -> None:
    """All of the job was on it, and the wanted tasks still are."""
    job = a_job("a", has=(1, 1), nodes="node-0")
    tasks = exited(live_tasks([job]), key("a", Role.COORDINATOR), None)
    first, *_ = a_cluster(16)
    nodes = (replace(first, schedulable=False), replace(first, name="node-9"))
    actions = Reconciler().reconcile(a_snapshot([job], nodes, tuple(tasks)), {"a": want(1, 1)}, SETTINGS)
    assert actions == (StartTask(PlacedTask(key("a", Role.COORDINATOR, 0, 1), "node-9")),)


def test_a_node_is_emptied_with_its_coordinator_last() -> None:
    job = a_job("a", has=(1, 1), nodes="node-0")
    first, second = a_cluster(16, 16)
    nodes = (replace(first, schedulable=False, emptied=True), second)
    snapshot = a_snapshot([job], nodes, tuple(live_tasks([job])))
    assert CurrentSlots().of(snapshot) == {"a": {}}, "nothing of it may stay"
    wants = {"a": want(1, 1, node="node-1")}
    actions = Reconciler().reconcile(snapshot, wants, SETTINGS)
    assert set(started(actions)) == {key("a", Role.WORKER, 0, 1), key("a", Role.SERVER, 0, 1)}
    assert stopped(actions) == [], "they leave at a step boundary, when the others have joined"

    moved = applied(snapshot, actions)
    for role in (Role.WORKER, Role.SERVER):
        moved = replace(moved, tasks=tuple(exited(moved.tasks, key("a", role), 0)))
    actions = Reconciler().reconcile(moved, wants, SETTINGS)
    assert (started(actions), stopped(actions)) == ([], [StopTask(key("a", Role.COORDINATOR), force=False)])
    left = replace(moved, tasks=tuple(exited(moved.tasks, key("a", Role.COORDINATOR), 143)))
    actions = Reconciler().reconcile(left, wants, SETTINGS)
    assert actions == (StartTask(PlacedTask(key("a", Role.COORDINATOR, 0, 1), "node-1")),)
    assert Reconciler().reconcile(applied(left, actions), wants, SETTINGS) == ()


def test_a_coordinator_stays_where_no_other_node_is_open() -> None:
    job = a_job("a", has=(1, 1), nodes="node-0")
    nodes = (replace(a_cluster(16)[0], schedulable=False, emptied=True),)
    coordinator = tuple(task for task in live_tasks([job]) if task.key.role is Role.COORDINATOR)
    assert stopped(Reconciler().reconcile(a_snapshot([job], nodes, coordinator), {"a": want(1, 1)}, SETTINGS)) == []


def test_a_place_is_taken_when_it_has_been_left() -> None:
    """Four cores: a goes from two workers to one, b from one to two."""
    shrinks, grows = a_job("a", has=(2, 1)), a_job("b", has=(1, 0))
    wants = {"a": want(1, 1), "b": want(2, 0)}
    newcomer = key("b", Role.WORKER, 1)
    snapshot = a_snapshot([shrinks, grows], a_cluster(4))
    actions = Reconciler().reconcile(snapshot, wants, SETTINGS)
    assert {action.job_id for action in actions if isinstance(action, SetWanted)} == {"a", "b"}
    assert started(actions) == []

    after = applied(snapshot, actions)
    assert Reconciler().reconcile(after, wants, SETTINGS) == ()
    left = exited(after.tasks, key("a", Role.WORKER, 1), 0)
    assert started(Reconciler().reconcile(replace(after, tasks=tuple(left)), wants, SETTINGS)) == [newcomer]


def test_a_place_is_waited_for_while_the_coordinator_of_its_task_is_replaced() -> None:
    """Its start waits for no place, so nobody could wait for each other; the simulation of faults found this."""
    shrinks, grows = a_job("a", has=(2, 1)), a_job("b", has=(1, 0))
    wants = {"a": want(1, 1), "b": want(2, 0)}
    snapshot = a_snapshot([shrinks, grows], a_cluster(4))
    lost = exited(snapshot.tasks, key("a", Role.COORDINATOR), 137)
    actions = Reconciler().reconcile(replace(snapshot, tasks=tuple(lost)), wants, SETTINGS)
    assert started(actions) == [key("a", Role.COORDINATOR, 0, 1)]


def test_a_task_is_started_beside_one_that_leaves_if_there_is_room_for_both() -> None:
    jobs = [a_job("a", has=(2, 1)), a_job("b", has=(1, 0))]
    actions = Reconciler().reconcile(a_snapshot(jobs, a_cluster(5)), {"a": want(1, 1), "b": want(2, 0)}, SETTINGS)
    assert started(actions) == [key("b", Role.WORKER, 1)]


def test_nobody_waits_for_jobs_that_wait_for_newcomers() -> None:
    """Each gives a worker up for a server: waiting for the other's worker, both would stand until it is stopped."""
    jobs = [a_job("a", has=(2, 1)), a_job("b", has=(2, 1))]
    actions = Reconciler().reconcile(a_snapshot(jobs, a_cluster(6)), {"a": want(1, 2), "b": want(1, 2)}, SETTINGS)
    assert started(actions) == [key("a", Role.SERVER, 1), key("b", Role.SERVER, 1)]


def test_places_of_a_job_that_moves_are_waited_for() -> None:
    """Its tasks leave when its newcomers have joined; others were started beside them."""
    moves, new = a_job("a", has=(1, 1)), a_job("b")
    wants = {"a": want(1, 1, node="node-1"), "b": want(1, 1)}
    snapshot = a_snapshot([moves, new], a_cluster(2, 2))
    actions = Reconciler().reconcile(snapshot, wants, SETTINGS)
    newcomers = [key("a", Role.SERVER, 0, 1), key("a", Role.WORKER, 0, 1)]
    assert started(actions) == [*newcomers, key("b", Role.COORDINATOR)]

    after = applied(snapshot, actions)
    assert Reconciler().reconcile(after, wants, SETTINGS) == ()
    left = exited(exited(after.tasks, key("a", Role.WORKER), 0), key("a", Role.SERVER), 0)
    actions = Reconciler().reconcile(replace(after, tasks=tuple(left)), wants, SETTINGS)
    assert started(actions) == [key("b", Role.SERVER), key("b", Role.WORKER)]


def test_jobs_that_change_places_do_not_wait_for_each_other() -> None:
    jobs = [a_job("a", has=(1, 1)), a_job("b", has=(1, 1), nodes="node-1"), a_job("c")]
    wants = {"a": want(1, 1, node="node-1"), "b": want(1, 1), "c": want(1, 0)}
    actions = Reconciler().reconcile(a_snapshot(jobs, a_cluster(3, 2)), wants, SETTINGS)
    roles = (Role.SERVER, Role.WORKER)
    assert started(actions) == [*(key(job, role, 0, 1) for job in "ab" for role in roles), key("c", Role.COORDINATOR)]


def test_shrinking_leaves_the_rest_to_the_coordinator() -> None:
    actions = actions_for(a_job("a", has=(3, 1)), want(1, 1))
    assert [type(action) for action in actions] == [SetWanted]
    assert isinstance(actions[0], SetWanted)
    assert [task.key.rank for task in actions[0].tasks if task.key.role is Role.WORKER] == [0]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, []), (19.9, []), (20.0, [False]), (39.9, [False]), (40.0, [True])]
)
def test_an_unwanted_task_has_time_to_leave(seconds: float, expected: list[bool]) -> None:
    job = a_job("a", has=(1, 1))
    leaving = Task(key("a", Role.WORKER, 1), "node-0", TaskPhase.RUNNING, unwanted_since=NOW - seconds)
    actions = actions_for(job, want(1, 1), [*live_tasks([job]), leaving])
    assert actions == tuple(StopTask(leaving.key, force) for force in expected)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PAUSED])
def test_workers_that_have_not_joined_are_stopped_at_once_when_their_job_loses_its_tasks(state: JobState) -> None:
    """No change of membership tells them to leave. They held the room of the next job for 20 s."""
    job = replace(a_job("a", has=(2, 1)), state=state)
    pause = want(0, 0, Directive.PAUSE)
    assert [each.key for each in stopped(actions_for(job, pause))] == [key("a", Role.WORKER, n) for n in (0, 1)]
    assert not any(each.force for each in stopped(actions_for(job, pause)))
    assert stopped(actions_for(replace(job, state=JobState.RUNNING), pause)) == [], "its coordinator tells them"
    assert stopped(actions_for(job, want(1, 1))) == [], "nor one of those that are left"


def test_a_worker_that_has_not_joined_is_stopped_at_once_when_its_job_shrinks() -> None:
    """It was still loading, so that its coordinator could not tell it to leave."""
    job = a_job("a", has=(2, 1), formed=Allocation(1, 1))
    newest = key("a", Role.WORKER, 1)
    assert stopped(actions_for(job, want(1, 1))) == [StopTask(newest, force=False)]
    assert stopped(actions_for(replace(job, formed=Allocation(2, 1)), want(1, 1))) == [], "it has joined"
    script = replace(job, spec=replace(job.spec, architecture=Architecture.SCRIPT))
    assert stopped(actions_for(script, want(1, 1))) == [], "it may be about to save"
    told = [replace(task, unwanted_since=NOW - 1 if task.key == newest else None) for task in live_tasks([job])]
    assert stopped(actions_for(job, want(1, 1), told)) == [], "once"


@pytest.mark.parametrize(("since", "force"), [(None, False), (NOW - 9.9, False), (NOW - 10.0, True)])
def test_cancelling_stops_at_once(since: float | None, force: bool) -> None:
    job = a_job("a", has=(1, 1), directive=Directive.CANCEL)
    tasks = [replace(task, unwanted_since=since) for task in live_tasks([job])]
    actions = actions_for(job, Want(Directive.CANCEL, NOTHING, {}), tasks)
    assert actions[0] == SetWanted("a", NOTHING, Directive.CANCEL, ())
    assert {(stop.key.role, stop.force) for stop in stopped(actions)} == {(role, force) for role in Role}
    assert started(actions) == []


def test_tasks_of_ended_jobs_have_time_to_leave() -> None:
    leaving = Task(key("gone", Role.WORKER), "node-0", TaskPhase.RUNNING, unwanted_since=NOW - 1)
    assert Reconciler().reconcile(a_snapshot([], a_cluster(4), (leaving,)), {}, SETTINGS) == ()


def test_starts_wait_until_tasks_of_ended_jobs_have_left() -> None:
    leaving = Task(
        key("gone", Role.SERVER), "node-0", TaskPhase.RUNNING, unwanted_since=NOW, resources=Resources(1.0, 2**30)
    )
    left = replace(leaving, phase=TaskPhase.EXITED, exit_code=0)
    for task, roles in ((leaving, [Role.COORDINATOR, Role.SERVER]), (left, list(Role))):
        snapshot = a_snapshot([a_job("a")], a_cluster(2), (task,))
        starts = started(Reconciler().reconcile(snapshot, {"a": want(1, 1)}, SETTINGS))
        assert {start.role for start in starts} == set(roles)


def test_orphans_are_stopped() -> None:
    live = Task(key("gone", Role.WORKER), "node-0", TaskPhase.RUNNING, unwanted_since=NOW - 60)
    dead = Task(key("gone", Role.SERVER), "node-0", TaskPhase.EXITED, exit_code=0)
    actions = Reconciler().reconcile(a_snapshot([], a_cluster(4), (live, dead)), {}, SETTINGS)
    assert actions == (StopTask(live.key, force=True),)


def test_a_finishing_job_lets_its_tasks_go_by_themselves() -> None:
    job = a_job("a", has=(1, 1), directive=Directive.FINISH)
    tasks = [replace(task, phase=TaskPhase.EXITED, exit_code=0) for task in live_tasks([job])]
    assert actions_for(job, want(1, 1, Directive.FINISH), tasks) == ()


def test_a_finishing_job_still_gets_lost_tasks_back() -> None:
    job = a_job("a", has=(1, 1), directive=Directive.FINISH)
    tasks = exited(live_tasks([job]), key("a", Role.SERVER), 137)
    assert started(actions_for(job, want(1, 1, Directive.FINISH), tasks)) == [key("a", Role.SERVER, 0, 1)]


def test_a_job_that_finishes_after_a_pause_gets_another_coordinator() -> None:
    let_go = Task(key("a", Role.COORDINATOR), "node-0", TaskPhase.EXITED, exit_code=0)
    job = a_job("a", directive=Directive.FINISH, state=JobState.PAUSED)
    actions = actions_for(job, want(1, 1, Directive.FINISH), [let_go])
    assert key("a", Role.COORDINATOR, 0, 1) in started(actions)
    with_tasks = a_job("a", has=(1, 1), directive=Directive.FINISH, state=JobState.PAUSED)
    again = actions_for(with_tasks, want(1, 1, Directive.FINISH), [*live_tasks([with_tasks])[:-1], let_go])
    assert started(again) == [key("a", Role.COORDINATOR, 0, 1)]


def test_pausing_takes_everything_without_killing() -> None:
    actions = actions_for(a_job("a", has=(2, 1)), Want(Directive.PAUSE, NOTHING, {}))
    assert actions == (SetWanted("a", NOTHING, Directive.PAUSE, ()),)


def test_finishing_is_told_without_touching_the_tasks() -> None:
    job = a_job("a", has=(2, 1))
    assert actions_for(job, want(2, 1, Directive.FINISH)) == (
        SetWanted("a", Allocation(2, 1), Directive.FINISH, job.wanted_tasks),
    )


@pytest.mark.parametrize("directive", [Directive.RUN, Directive.FINISH])
def test_nothing_is_left_to_do_after_it_was_done(directive: Directive) -> None:
    job = a_job("a", has=(3, 2))
    tasks = exited(live_tasks([job]), key("a", Role.WORKER, 0), 1)
    snapshot, wants = snapshot_of(job, tasks), {"a": want(2, 4, directive)}
    after = applied(snapshot, Reconciler().reconcile(snapshot, wants, SETTINGS))
    assert Reconciler().reconcile(after, wants, SETTINGS) == ()
