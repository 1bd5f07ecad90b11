"""What every cluster promises (`clusters/base.py`), checked on each implementation."""

from __future__ import annotations

import pytest
from tests.service.clusters.cluster_harness import Harness, key_of, phase_of, task_of, wait_for_phase, wait_until

from optimus_scheduler.model import Role, TaskPhase


def test_nodes_are_sorted_and_offer_something(harness: Harness) -> None:
    nodes = harness.cluster.nodes()
    assert [node.name for node in nodes] == sorted(node.name for node in nodes)
    assert all(node.schedulable and node.capacity.cpu > 0 for node in nodes)


def test_started_task_runs_where_it_was_put(harness: Harness) -> None:
    key = key_of(0)
    harness.cluster.start(harness.launch(key))
    wait_for_phase(harness.cluster, key, TaskPhase.RUNNING)
    task = task_of(harness.cluster, key)
    assert (task.node, task.exit_code, task.unwanted_since) == ("local-0", None, None)


def test_starting_twice_starts_once(harness: Harness) -> None:
    key = key_of(0)
    for _ in range(3):
        harness.cluster.start(harness.launch(key))
    wait_for_phase(harness.cluster, key, TaskPhase.RUNNING)
    harness.cluster.start(harness.launch(key))
    harness.end(key, 7)
    wait_for_phase(harness.cluster, key, TaskPhase.EXITED)
    # An exited task is not started again either: a replacement has a higher incarnation, so another name.
    harness.cluster.start(harness.launch(key))
    assert phase_of(harness.cluster, key) is TaskPhase.EXITED


def test_tasks_are_sorted_by_key(harness: Harness) -> None:
    keys = [key_of(1), key_of(0, Role.SERVER), key_of(0, Role.COORDINATOR), key_of(0), key_of(0, incarnation=1)]
    for key in keys:
        harness.cluster.start(harness.launch(key))
    assert [task.key for task in harness.cluster.tasks()] == sorted(keys)


@pytest.mark.parametrize("code", [0, 3, 4, 77])
def test_exit_code_is_told_until_forgotten(harness: Harness, code: int) -> None:
    key = key_of(0)
    harness.cluster.start(harness.launch(key))
    harness.end(key, code)
    wait_for_phase(harness.cluster, key, TaskPhase.EXITED)
    assert task_of(harness.cluster, key).exit_code == code
    harness.cluster.forget([key])
    assert harness.cluster.tasks() == ()
    harness.cluster.forget([key])


def test_running_task_cannot_be_forgotten(harness: Harness) -> None:
    key = key_of(0)
    harness.cluster.start(harness.launch(key))
    wait_for_phase(harness.cluster, key, TaskPhase.RUNNING)
    harness.cluster.forget([key])
    assert phase_of(harness.cluster, key) is TaskPhase.RUNNING


@pytest.mark.parametrize(("force", "code"), [(False, 143), (True, 137)])
def test_stop_ends_the_task(harness: Harness, force: bool, code: int) -> None:
    key, other = key_of(0), key_of(1)
    for started in (key, other):
        harness.cluster.start(harness.launch(started))
        wait_for_phase(harness.cluster, started, TaskPhase.RUNNING)
    harness.cluster.stop(key, force=force)
    wait_for_phase(harness.cluster, key, TaskPhase.EXITED)
    assert task_of(harness.cluster, key).exit_code == code
    assert phase_of(harness.cluster, other) is TaskPhase.RUNNING
    harness.cluster.stop(key, force=force)


@pytest.mark.parametrize("force", [False, True])
def test_a_task_that_is_stopped_with_all_is_found_without_an_exit_code(harness: Harness, force: bool) -> None:
    key, ended = key_of(0), key_of(1)
    for started in (key, ended):
        harness.cluster.start(harness.launch(started))
        wait_for_phase(harness.cluster, started, TaskPhase.RUNNING)
    harness.end(ended, 3)
    wait_for_phase(harness.cluster, ended, TaskPhase.EXITED)
    for each in (key, ended):
        harness.cluster.stop(each, force=force, with_all=True)
    wait_for_phase(harness.cluster, key, TaskPhase.EXITED)
    assert task_of(harness.cluster, key).exit_code is None
    assert task_of(harness.cluster, key).trouble is not None
    assert task_of(harness.cluster, ended).exit_code == 3, "it had ended by itself"


def test_stop_of_an_unknown_task_is_no_error(harness: Harness) -> None:
    harness.cluster.stop(key_of(9))
    harness.cluster.stop(key_of(9), force=True)


def test_log_tail_is_bounded_and_survives_forgetting(harness: Harness) -> None:
    key = key_of(0)
    harness.cluster.start(harness.launch(key))
    wait_until("the task has printed", lambda: harness.cluster.log_tail(key, 1000) == f"started {key.name}\n")
    harness.end(key, 0)
    wait_for_phase(harness.cluster, key, TaskPhase.EXITED)
    harness.cluster.forget([key])
    assert harness.cluster.log_tail(key, 3) == "-0\n"
    assert harness.cluster.log_tail(key, 0) == ""
    assert harness.cluster.log_tail(key_of(9), 1000) == ""
