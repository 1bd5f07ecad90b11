"""A worker that is much slower than the others moves to another node, if there is one with room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.builders import a_cluster, a_job, a_snapshot, a_spec

from optimus_scheduler.model import (
    Allocation,
    Directive,
    Job,
    Node,
    Resources,
    Role,
    SetWanted,
    StartTask,
    TaskKey,
)
from optimus_scheduler.moves import move_stragglers
from optimus_scheduler.place.place import TaskSlot, task_slots
from optimus_scheduler.reconcile import Reconciler, Want
from optimus_scheduler.settings import Settings

SLOW = TaskKey("a", Role.WORKER, 1, 0)
SIZE = (3, 1)


def a_slow_job(spread: dict[TaskSlot, str] | str = "node-0", **fields: Any) -> Job:
    return a_job("a", has=SIZE, nodes=spread, spec=a_spec(maximum=SIZE), stragglers=(SLOW,), **fields)


def stays(job: Job) -> Want:
    return Want(Directive.RUN, job.allocation, {(task.key.role, task.key.rank): task.node for task in job.wanted_tasks})


def test_it_moves_to_a_node_with_room_as_a_new_task() -> None:
    job = a_slow_job()
    snapshot = a_snapshot([job], a_cluster(8, 8))
    wants = move_stragglers(snapshot, {"a": stays(job)})
    assert wants["a"].nodes[Role.WORKER, 1] == "node-1"
    assert [slot for slot, node in wants["a"].nodes.items() if node != "node-0"] == [(Role.WORKER, 1)]
    actions = Reconciler().reconcile(snapshot, wants, Settings())
    replacement = SLOW._replace(incarnation=1)
    assert [action.task.key for action in actions if isinstance(action, StartTask)][-1] == replacement
    (wanted,) = (action for action in actions if isinstance(action, SetWanted))
    assert SLOW not in {placed.key for placed in wanted.tasks}


def test_it_stays_where_there_is_no_other_room() -> None:
    job = a_slow_job()
    closed = Node("node-1", Resources(8, 2**36), schedulable=False)
    for nodes in (a_cluster(8), (*a_cluster(8), closed), a_cluster(8, 0.5)):
        assert move_stragglers(a_snapshot([job], nodes), {"a": stays(job)}) == {"a": stays(job)}


def test_beside_the_others_of_its_job_rather_than_alone() -> None:
    spread: dict[TaskSlot, str] = dict.fromkeys(task_slots(Allocation(*SIZE)), "node-2")
    spread[Role.WORKER, 1] = "node-0"
    job = a_slow_job(spread)
    wants = move_stragglers(a_snapshot([job], a_cluster(8, 8, 8)), {"a": stays(job)})
    assert wants["a"].nodes[Role.WORKER, 1] == "node-2"


def test_a_job_that_is_stopping_and_a_task_that_leaves_anyway_are_left_alone() -> None:
    job = a_slow_job()
    snapshot = a_snapshot([job], a_cluster(8, 8))
    finishing = stays(job)._replace(directive=Directive.FINISH)
    assert move_stragglers(snapshot, {"a": finishing}) == {"a": finishing}
    smaller = Want(Directive.RUN, Allocation(1, 1), {(Role.WORKER, 0): "node-0", (Role.SERVER, 0): "node-0"})
    assert move_stragglers(snapshot, {"a": smaller}) == {"a": smaller}


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.lists(st.integers(0, 2), max_size=3, unique=True))
def test_no_node_gets_more_than_it_has(cpus: list[int], slow: list[int]) -> None:
    nodes = a_cluster(4, *cpus)
    job = a_slow_job()
    job = replace(job, stragglers=tuple(TaskKey("a", Role.WORKER, rank, 0) for rank in slow))
    want = move_stragglers(a_snapshot([job], nodes), {"a": stays(job)})["a"]
    for node in nodes:
        held = sum(1 for name in want.nodes.values() if name == node.name)
        assert held <= node.capacity.cpu
    assert len([name for name in want.nodes.values() if name != "node-0"]) <= 1, "one at a time"
