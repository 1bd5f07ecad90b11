"""Whole scheduling rounds on a real API server: what goes wrong reaches the job's owner; only a leader acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.service import leases
from tests.service.clusters.kubernetes.control_plane import ControlPlane
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, wait_for
from tests.service.loop.loop_world import World

from optimus_scheduler.model import Role, TaskKey, TaskPhase
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.settings import Settings
from optimus_service.store.errors import StaleLeader
from optimus_service.store.repository import LEADER_LEASE, Repository

WORKER = TaskKey("job-1", Role.WORKER, 0)


@pytest.fixture
def world(kubernetes: KubernetesHarness, repository: Repository, tmp_path: Path) -> World:
    return World(repository, tmp_path, kubernetes.cluster, starts_at_once=8)  # type: ignore[arg-type]


def events(world: World, kind: str) -> list[dict[str, Any]]:
    found = world.repository.events.page("job-1", limit=100).items
    return [{"message": each.message, **each.data} for each in found if each.type == kind]


def explanation(world: World, kubernetes: KubernetesHarness) -> dict[str, Any]:
    services = Services(
        settings=Settings(data_directory=world.directory),
        repository=world.repository,
        cluster=kubernetes.cluster,
        long_polls=LongPolls(world.repository.wanted.generations),
        job_tokens=JobTokens(b"secret"),
        version="0",
        clock=world.clock,
    )
    with TestClient(create_app(services), base_url="http://127.0.0.1") as client:
        found: dict[str, Any] = client.get("/v1/jobs/job-1/explanation").json()
        return found


def test_a_job_gets_its_pods_and_goes_on_after_a_restart(world: World, kubernetes: KubernetesHarness) -> None:
    job = world.submit()
    world.round()
    for role in Role:
        kubernetes.wait_for_task(TaskKey(job.id, role, 0), TaskPhase.RUNNING)
    address = world.repository.jobs.get(job.id).coordinator_address
    assert address is not None
    assert address.endswith(":7070")
    worker = kubernetes.pod(WORKER)["spec"]["containers"][0]
    assert {"name": "OPTIMUS_COORDINATOR_ADDRESS", "value": address} in worker["env"]
    before = {pod["metadata"]["uid"] for pod in kubernetes.pods()}
    kubernetes.cluster.close()
    kubernetes.cluster = kubernetes.open()
    world.cluster = kubernetes.cluster  # type: ignore[assignment]
    world.restarted().round()
    assert {pod["metadata"]["uid"] for pod in kubernetes.pods()} == before


def test_a_deposed_leader_makes_and_deletes_nothing(world: World, kubernetes: KubernetesHarness) -> None:
    world.submit()
    leases.run_out(world.repository)
    assert world.repository.leases.acquire(LEADER_LEASE, "somebody-else", 10.0) is not None
    with pytest.raises(StaleLeader):
        world.round()
    assert kubernetes.pods() == []
    assert kubernetes.names("secrets") == set()


def test_a_quota_is_told_once_and_explained(world: World, kubernetes: KubernetesHarness) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}}
    kubernetes.admin.create(kubernetes.path("resourcequotas"), quota)
    path = kubernetes.path("resourcequotas/q")
    wait_for("the quota counts", lambda: kubernetes.admin.get(path)["status"].get("hard"))
    world.submit()
    for _ in range(3):
        world.round()
        world.clock.now += 1.0
    (told,) = events(world, "ActionFailed")
    assert told["reason"] == "Quota"
    assert "exceeded quota" in told["message"]
    found = explanation(world, kubernetes)
    assert len(found["troubles"]) == 1
    assert "exceeded quota" in " ".join(found["sentences"])


def test_an_image_that_cannot_be_pulled_is_told_and_explained(world: World, kubernetes: KubernetesHarness) -> None:
    kubernetes.kubelet.stays_pending["job-1-worker-0-0"] = {"reason": "ErrImagePull", "message": "no such image"}
    try:
        world.submit()
        world.round()
        kubernetes.wait_for_trouble(WORKER, "ImagePull")
        for _ in range(2):
            world.round()
        # While the image is missing: as soon as it is there, the task has no trouble left to tell.
        found = explanation(world, kubernetes)
    finally:
        del kubernetes.kubelet.stays_pending["job-1-worker-0-0"]
    (told,) = events(world, "TaskTrouble")
    assert (told["task"], told["reason"]) == (WORKER.name, "ImagePull")
    assert any("no such image" in each for each in found["sentences"])


def test_an_evicted_task_is_replaced_and_does_not_count_as_a_failure(
    world: World, kubernetes: KubernetesHarness
) -> None:
    world.submit()
    world.round()
    kubernetes.wait_for_task(WORKER, TaskPhase.RUNNING)
    kubernetes.kubelet.set_pod_status(
        kubernetes.namespace, WORKER.name, phase="Failed", reason="Evicted", message="low on memory"
    )
    kubernetes.wait_for_task(WORKER, TaskPhase.EXITED)
    world.round()
    (told,) = events(world, "TaskExited")
    assert (told["reason"], told["exit_code"]) == ("Evicted", None)
    assert "low on memory" in told["message"]
    kubernetes.wait_for_task(TaskKey("job-1", Role.WORKER, 0, 1), TaskPhase.RUNNING)


def test_while_the_api_server_is_away_decisions_wait(
    world: World, kubernetes: KubernetesHarness, control_plane: ControlPlane
) -> None:
    world.submit()
    world.round()
    kubernetes.wait_for_task(WORKER, TaskPhase.RUNNING)
    before = {pod["metadata"]["uid"] for pod in kubernetes.pods()}
    control_plane.stop_api_server()
    try:
        wait_for("it is noticed", lambda: kubernetes.clusters[-1].problem)
        for _ in range(3):
            with pytest.raises(ClusterUnavailable):
                world.round()
            world.clock.now += 1.0
    finally:
        control_plane.start_api_server()
    wait_for("it is back", lambda: kubernetes.clusters[-1].problem is None)
    world.round()
    assert {pod["metadata"]["uid"] for pod in kubernetes.pods()} == before
    assert events(world, "TaskExited") == []
