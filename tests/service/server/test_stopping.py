"""Stopping all tasks when the service is stopped for good."""

from __future__ import annotations

import pytest

from optimus_scheduler.model import Node, Resources, Role, TaskKey
from optimus_service.clusters import stop_all as stopping
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.fake import FakeCluster

KEYS = [TaskKey("job-1", Role.WORKER, rank) for rank in range(3)]


@pytest.fixture
def cluster() -> FakeCluster:
    found = FakeCluster([Node("node-0", Resources(4.0, 2**30))])
    for key in KEYS:
        found.start(TaskLaunch(key, "node-0", Resources(), {}))
    return found


def test_obedient_tasks_are_asked_only(cluster: FakeCluster) -> None:
    assert stopping.stop_all_tasks(cluster)
    assert cluster.stopped == [(key, False) for key in KEYS]


def test_stubborn_tasks_are_killed(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "_LEAVE_SECONDS", 0.0)
    cluster.stubborn = {KEYS[1].name}
    assert stopping.stop_all_tasks(cluster)
    assert cluster.stopped == [*((key, False) for key in KEYS), (KEYS[1], True)]


def test_cluster_that_cannot_be_asked_is_no_error(cluster: FakeCluster) -> None:
    cluster.available = False
    assert not stopping.stop_all_tasks(cluster)
