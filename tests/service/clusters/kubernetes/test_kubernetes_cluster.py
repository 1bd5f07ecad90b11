"""The backend on a real API server with fake nodes: what it makes, adopts, removes, and leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.service.clusters.kubernetes.control_plane import ControlPlane
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, key_of, wait_for

from optimus_scheduler.model import Resources, Role, TaskPhase
from optimus_service.clusters.base import ClusterUnavailable, TaskLaunch, TaskRefused
from optimus_service.clusters.kubernetes import manifests
from optimus_service.clusters.kubernetes.cluster import KubernetesCluster
from optimus_service.clusters.kubernetes.names import FORGOTTEN, anchor_name, coordinator_service_name, pod_name
from optimus_service.settings.kubernetes import KubernetesSettings

KEY = key_of(0)
SOON = {"orphan_seconds": 0.001, "keep_pods_seconds": 0.0}


def contains(found: Any, sent: Any) -> list[str]:
    """Where `found` lacks something of `sent`: an older server drops what it does not know."""
    if isinstance(sent, dict):
        missing = [f".{key}" for key in sent if key not in (found or {})]
        return missing + [f".{key}{each}" for key in sent if key in found for each in contains(found[key], sent[key])]
    if isinstance(sent, list):
        if len(found) < len(sent):
            return ["[]"]
        return [f"[{i}]{each}" for i, (a, b) in enumerate(zip(found, sent, strict=False)) for each in contains(a, b)]
    return [] if found == sent else [f": {found!r} instead of {sent!r}"]


def test_what_came_back_is_what_was_sent(kubernetes: KubernetesHarness) -> None:
    settings = KubernetesSettings(namespace=kubernetes.namespace, jobs_claim="jobs", priority_class=None)
    launch = kubernetes.launch(KEY)
    sent = manifests.pod(launch, settings, manifests.Owner("job-job-1", "0d7ab3a0-0000-0000-0000-000000000000"))
    found = kubernetes.admin.create(f"{kubernetes.path('pods')}?dryRun=All", sent)
    del sent["spec"]["volumes"], sent["spec"]["containers"][0]["volumeMounts"]  # as sent, but for added defaults
    sent["spec"]["containers"][0]["resources"] = {}  # amounts come back in another notation
    assert contains(found, sent) == []


def test_objects_of_a_job_belong_to_its_anchor(kubernetes: KubernetesHarness) -> None:
    address = kubernetes.cluster.coordinator_address("job-1")
    kubernetes.run(KEY)
    (owner,) = kubernetes.pod(KEY)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("ConfigMap", anchor_name("job-1"))
    service = kubernetes.admin.get(kubernetes.path(f"services/{coordinator_service_name('job-1')}"))
    assert address == f"{service['spec']['clusterIP']}:7070"
    headless = kubernetes.admin.get(kubernetes.path(f"services/{anchor_name('job-1')}"))
    assert headless["spec"]["clusterIP"] == "None"
    for kind in ("secrets", "services"):
        for name in kubernetes.names(kind):
            references = kubernetes.admin.get(kubernetes.path(f"{kind}/{name}"))["metadata"]["ownerReferences"]
            assert [each["uid"] for each in references] == [owner["uid"]]
    # Deleting the anchor removes all of it.
    kubernetes.admin.delete(kubernetes.path(f"configmaps/{anchor_name('job-1')}"))
    for kind in ("pods", "services", "secrets"):
        wait_for(f"no {kind} are left", lambda kind=kind: not kubernetes.names(kind))


def test_what_belonged_to_a_deleted_anchor_is_made_anew(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    before = kubernetes.admin.get(kubernetes.path(f"configmaps/{anchor_name('job-1')}"))["metadata"]["uid"]
    kubernetes.admin.delete(kubernetes.path(f"configmaps/{anchor_name('job-1')}"))
    wait_for("the deletion is seen", lambda: not kubernetes.cluster._jobs.known())  # type: ignore[attr-defined]
    kubernetes.run(KEY._replace(incarnation=1))
    after = kubernetes.admin.get(kubernetes.path(f"configmaps/{anchor_name('job-1')}"))["metadata"]["uid"]
    assert after != before
    for kind in ("secrets", "services"):
        for name in kubernetes.names(kind):
            references = kubernetes.admin.get(kubernetes.path(f"{kind}/{name}"))["metadata"]["ownerReferences"]
            assert [each["uid"] for each in references] == [after]


def test_token_is_in_the_secret_and_nowhere_else(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    assert "secret-of-the-job" not in json.dumps(kubernetes.pods())
    secret = kubernetes.admin.get(kubernetes.path(f"secrets/{anchor_name('job-1')}"))
    assert set(secret["data"]) == {"OPTIMUS_JOB_TOKEN"}


def test_tasks_are_adopted_after_a_restart(kubernetes: KubernetesHarness) -> None:
    other = key_of(1)
    for key in (KEY, other):
        kubernetes.run(key)
    kubernetes.cluster.close()
    kubernetes.end(other, 3)  # while nobody watches
    uid = kubernetes.pod(KEY)["metadata"]["uid"]
    kubernetes.cluster = kubernetes.open()
    adopted = {task.key: (task.phase, task.exit_code) for task in kubernetes.cluster.tasks()}
    assert adopted == {KEY: (TaskPhase.RUNNING, None), other: (TaskPhase.EXITED, 3)}
    kubernetes.cluster.start(kubernetes.launch(KEY))
    assert kubernetes.pod(KEY)["metadata"]["uid"] == uid


def test_a_pod_that_somebody_deleted_is_told_until_forgotten(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    kubernetes.admin.delete(kubernetes.path(f"pods/{pod_name(KEY)}"))
    task = kubernetes.wait_for_task(KEY, TaskPhase.EXITED)
    # 143 would speak against the job, whose fault it is not.
    assert (task.exit_code, task.trouble and task.trouble.code) == (None, "Deleted")
    kubernetes.cluster.start(kubernetes.launch(KEY))  # its name is used up
    wait_for("the pod is gone", lambda: not kubernetes.pods())
    found = kubernetes.task(KEY)
    assert found is not None
    assert (found.exit_code, found.trouble and found.trouble.code) == (None, "Deleted")
    kubernetes.cluster.forget([KEY])
    assert kubernetes.cluster.tasks() == ()


def test_finished_pods_are_kept_for_their_logs_only(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    kubernetes.end(KEY, 0)
    kubernetes.wait_for_task(KEY, TaskPhase.EXITED)
    kubernetes.cluster.forget([KEY])
    labels = wait_for("it is labelled", lambda: kubernetes.pod(KEY)["metadata"]["labels"])
    assert labels[FORGOTTEN] == "true"
    again = kubernetes.open(**SOON)
    assert again.tasks() == ()
    assert again.log_tail(KEY, 100) == f"started {KEY.name}\n"
    wait_for("it is seen", lambda: again._pods.values())
    kubernetes.cluster.forget_logs(0.0)  # kept for a day
    assert len(kubernetes.pods()) == 1

    def deleted() -> bool:
        again.forget_logs(0.0)
        return not kubernetes.pods()

    wait_for("it is deleted", deleted)


def test_orphans_are_removed_and_strangers_are_not(kubernetes: KubernetesHarness) -> None:
    mine, orphan = key_of(0, job_id="mine"), key_of(0, job_id="orphan")
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "labels": {"app.kubernetes.io/managed-by": "optimus"}},
        "spec": {"containers": [{"name": "task", "image": "none"}], "nodeName": "local-0"},
    }
    kubernetes.admin.create(kubernetes.path("pods"), stranger)
    for key in (mine, orphan):
        kubernetes.run(key)
    kubernetes.cluster.retain(["mine"])  # too young to be called an orphan
    assert {task.key for task in kubernetes.cluster.tasks()} == {mine, orphan}
    strict = kubernetes.open(**SOON)

    def swept() -> bool:
        strict.retain(["mine"])
        return kubernetes.names("configmaps") == {anchor_name("mine")}

    wait_for("the orphan's objects are gone", swept)
    assert {pod["metadata"]["name"] for pod in kubernetes.pods()} == {"stranger", pod_name(mine)}
    assert kubernetes.names("secrets") == {anchor_name("mine")}
    assert kubernetes.names("services") == {anchor_name("mine"), coordinator_service_name("mine")}


def test_two_installations_do_not_see_each_other(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    other = kubernetes.open(instance="other", **SOON)
    assert other.tasks() == ()
    other.retain([])
    assert len(kubernetes.pods()) == 1
    # What one of them uses, the other cannot.
    cpu = {node.name: node.capacity.cpu for node in other.nodes()}
    assert cpu == {"local-0": 7.0, "local-1": 8.0}
    assert {node.name: node.capacity.cpu for node in kubernetes.cluster.nodes()} == {"local-0": 8.0, "local-1": 8.0}


# --- reactions -------------------------------------------------------------------------------------------------------


def test_a_quota_refuses_for_a_reason_and_later_allows(kubernetes: KubernetesHarness) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    kubernetes.admin.create(kubernetes.path("resourcequotas"), quota)
    wait_for(
        "the quota counts", lambda: kubernetes.admin.get(kubernetes.path("resourcequotas/q"))["status"].get("hard")
    )
    for _ in range(2):  # the second time is not even tried: back-off
        with pytest.raises(TaskRefused, match="exceeded quota") as refused:
            kubernetes.cluster.start(kubernetes.launch(KEY))
        assert refused.value.trouble.code == "Quota"
    kubernetes.admin.delete(kubernetes.path("resourcequotas/q"))
    with pytest.raises(TaskRefused):
        kubernetes.cluster.start(kubernetes.launch(KEY))
    again = kubernetes.open()
    again.start(kubernetes.launch(KEY))
    wait_for("it exists", kubernetes.pods)


def test_a_manifest_that_the_server_refuses(kubernetes: KubernetesHarness) -> None:
    wrong = kubernetes.open(volume_mounts=[{"name": "no-such-volume", "mountPath": "/x"}])
    with pytest.raises(TaskRefused) as refused:
        wrong.start(kubernetes.launch(KEY))
    assert refused.value.trouble.code == "Refused"
    assert "no-such-volume" in str(refused.value)


def test_a_pod_without_room_is_given_back(kubernetes: KubernetesHarness) -> None:
    kubernetes.cluster = kubernetes.open(unschedulable_seconds=1.0)
    kubernetes.cluster.start(TaskLaunch(KEY, "local-0", Resources(100.0, 2**20), {}))
    waiting = kubernetes.wait_for_trouble(KEY, "Unschedulable")
    assert waiting.phase is TaskPhase.STARTING
    assert waiting.trouble is not None
    assert "Insufficient cpu" in waiting.trouble.message
    given_up = kubernetes.wait_for_task(KEY, TaskPhase.EXITED)
    assert given_up.exit_code is None
    kubernetes.cluster.forget([KEY])
    wait_for("its pod is gone", lambda: not kubernetes.pods())
    assert kubernetes.cluster.tasks() == ()


def test_an_image_that_cannot_be_pulled(kubernetes: KubernetesHarness) -> None:
    kubernetes.cluster = kubernetes.open(start_seconds=1.0)
    kubernetes.kubelet.stays_pending["worker-0-77"] = {"reason": "ImagePullBackOff", "message": "no such image"}
    key = key_of(0, incarnation=77)
    kubernetes.cluster.start(kubernetes.launch(key))
    assert kubernetes.wait_for_trouble(key, "ImagePull").phase is TaskPhase.STARTING
    assert kubernetes.wait_for_task(key, TaskPhase.EXITED).exit_code == 125


def test_out_of_memory_is_told(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    kubernetes.kubelet.end(kubernetes.namespace, pod_name(KEY), 137, "OOMKilled")
    task = kubernetes.wait_for_task(KEY, TaskPhase.EXITED)
    assert (task.exit_code, task.trouble and task.trouble.code) == (137, "OutOfMemory")


def test_an_eviction_is_nobodys_fault(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    message = "The node was low on resource: memory."
    kubernetes.kubelet.set_pod_status(
        kubernetes.namespace, pod_name(KEY), phase="Failed", reason="Evicted", message=message
    )
    task = kubernetes.wait_for_task(KEY, TaskPhase.EXITED)
    assert (task.exit_code, task.trouble and task.trouble.message) == (None, message)


def test_draining_a_node(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    kubernetes.kubelet.stubborn.add(pod_name(KEY))
    kubernetes.kubelet.cordon("local-0")
    try:
        wait_for("nothing new goes there", lambda: [n.schedulable for n in kubernetes.cluster.nodes()] == [False, True])
        assert kubernetes.task(KEY) is not None  # what runs there goes on
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod_name(KEY)}}
        kubernetes.admin.create(kubernetes.path(f"pods/{pod_name(KEY)}/eviction"), eviction)
        assert kubernetes.wait_for_trouble(KEY, "Drained").phase is TaskPhase.RUNNING
        kubernetes.kubelet.end(kubernetes.namespace, pod_name(KEY), 0)  # it left at a step boundary
        assert kubernetes.wait_for_task(KEY, TaskPhase.EXITED).exit_code == 0
    finally:
        kubernetes.kubelet.cordon("local-0", cordoned=False)


def test_losing_a_node(kubernetes: KubernetesHarness) -> None:
    kubernetes.cluster = kubernetes.open(node_lost_seconds=1.0)
    kubernetes.kubelet.add_node("lost", labels={"optimus-test": "local"})
    kubernetes.run(KEY, "lost")
    kubernetes.kubelet.set_ready("lost", "Unknown")
    wait_for("it is closed", lambda: {n.name: n.schedulable for n in kubernetes.cluster.nodes()}.get("lost") is False)
    task = kubernetes.wait_for_task(KEY, TaskPhase.EXITED)
    assert (task.exit_code, task.trouble and task.trouble.code) == (None, "NodeLost")
    kubernetes.cluster.stop(key_of(9), force=True)
    kubernetes.kubelet.remove_node("lost")
    wait_for("it is not offered", lambda: "lost" not in {node.name for node in kubernetes.cluster.nodes()})


def test_a_task_that_does_not_leave_is_killed(kubernetes: KubernetesHarness) -> None:
    kubernetes.run(KEY)
    kubernetes.kubelet.stubborn.add(pod_name(KEY))
    for _ in range(2):
        kubernetes.cluster.stop(KEY)
    wait_for("it was asked", lambda: kubernetes.pod(KEY)["metadata"].get("deletionTimestamp"))
    assert kubernetes.task(KEY) is not None
    kubernetes.cluster.stop(KEY, force=True)
    assert kubernetes.wait_for_task(KEY, TaskPhase.EXITED).exit_code == 137


def test_api_server_away(kubernetes: KubernetesHarness, control_plane: ControlPlane) -> None:
    kubernetes.run(KEY)
    uid = kubernetes.pod(KEY)["metadata"]["uid"]
    cluster = kubernetes.cluster
    assert isinstance(cluster, KubernetesCluster)
    control_plane.stop_api_server()
    try:
        wait_for("it is noticed", lambda: cluster.problem)
        for ask in (cluster.nodes, cluster.tasks, lambda: cluster.start(kubernetes.launch(key_of(1)))):
            with pytest.raises(ClusterUnavailable):
                ask()
        with pytest.raises(ClusterUnavailable):
            cluster.stop(KEY)
        with pytest.raises(ClusterUnavailable):
            cluster.retain([])
    finally:
        control_plane.start_api_server()
    wait_for("it is back", lambda: cluster.problem is None)
    assert kubernetes.pod(KEY)["metadata"]["uid"] == uid
    assert [task.phase for task in cluster.tasks()] == [TaskPhase.RUNNING]
    kubernetes.run(key_of(1))


def test_a_coordinator_takes_room_that_nobody_planned_for(kubernetes: KubernetesHarness) -> None:
    cluster = kubernetes.cluster = kubernetes.open(coordinator_cpu=0.5)
    assert [node.capacity.cpu for node in cluster.nodes()] == [7.5, 7.5]  # room for one is kept free
    for number in range(2):
        kubernetes.run(key_of(0, Role.COORDINATOR, job_id=f"job-{number}"))
    assert [node.capacity.cpu for node in cluster.nodes()] == [7.0, 7.5]
