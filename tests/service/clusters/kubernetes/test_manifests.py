"""From a wanted task to objects: checked against today's API models, and for what must never be in them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from optimus_scheduler.model import Resources, Role, TaskKey
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.kubernetes import job_manifests, manifests, names
from optimus_service.clusters.kubernetes.observed import our_pod
from optimus_service.settings.kubernetes import GpuType, KubernetesSettings

OWNER = manifests.Owner("job-digits", "0d7ab3a0-0000-0000-0000-000000000000")
KEY = TaskKey("digits-x7k2p", Role.WORKER, 1, 2)
SECRETS = {"OPTIMUS_JOB_TOKEN": "token-of-the-job", "OPTIMUS_JOB_SPEC": '{"workers": {"min": 1}}', "PASSWORD": "mine"}
ROOM = Resources(1.5, 2**30)
PLAIN = {
    "OPTIMUS_TASK_NAME": KEY.name,
    "OPTIMUS_TASK_RANK": "1",
    "OPTIMUS_COORDINATOR_ADDRESS": "10.96.0.7:7070",
    "OPTIMUS_SERVICE_URL": "http://optimus:8080",
    "OPTIMUS_ATTEMPT": "1",
}


def settings(**changes: Any) -> KubernetesSettings:
    return KubernetesSettings.model_validate({"image": "registry.example/worker:1", **changes})


def launch(key: TaskKey = KEY, resources: Resources = ROOM, directory: str | None = None) -> TaskLaunch:
    return TaskLaunch(key, "node-7", resources, {**PLAIN, **SECRETS}, directory)


def pod(key: TaskKey = KEY, resources: Resources = ROOM, **changes: Any) -> dict[str, Any]:
    return manifests.pod(launch(key, resources), settings(**changes), OWNER)


def container(found: dict[str, Any]) -> dict[str, Any]:
    only: dict[str, Any] = found["spec"]["containers"][0]
    return only


EVERYTHING: dict[str, Any] = {
    "image_pull_secrets": ["registry"],
    "priority_class": "training",
    "runtime_class": "nvidia",
    "scheduler_name": "other-scheduler",
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    "jobs_claim": "optimus-jobs",
    "node_selector": {"pool": "training"},
    "gpu_types": {"A100": {"resource": "nvidia.com/gpu", "labels": {"nvidia.com/gpu.product": "A100"}}},
    "gang": "kueue",
    "queue": "research",
    "labels": {"team": "vision"},
    "annotations": {"note": "hello"},
}


def test_servers_and_coordinators_may_have_an_image_of_their_own() -> None:
    def images(**changes: Any) -> list[str]:
        return [container(pod(TaskKey("job-1", role, 0), **changes))["image"] for role in Role]

    usual = "registry.example/worker:1"
    assert images() == [usual] * len(Role)
    small = "registry.example/server:1"
    assert images(server_image=small) == [usual if role is Role.WORKER else small for role in Role]


@pytest.mark.parametrize(
    "changes", [{}, EVERYTHING, {"gang": "volcano"}, {"jobs_volume": {"hostPath": {"path": "/x"}}}]
)
def test_pods_are_valid_by_todays_models(changes: dict[str, Any]) -> None:
    gpus = {"A100": 2} if "gpu_types" in changes else {}
    client.V1Pod.model_validate(pod(resources=Resources(1.5, 2**30, gpus), **changes))


def test_objects_of_a_job_are_valid_by_todays_models() -> None:
    found = settings()
    client.V1ConfigMap.model_validate(job_manifests.anchor("digits-x7k2p", found))
    client.V1Secret.model_validate(job_manifests.secret("digits-x7k2p", SECRETS, found, OWNER))
    client.V1Service.model_validate(job_manifests.headless_service("digits-x7k2p", found, OWNER))
    client.V1Service.model_validate(job_manifests.coordinator_service("digits-x7k2p", found, OWNER))
    group = job_manifests.pod_group("digits-x7k2p", 3, settings(gang="volcano", queue="research"), OWNER)
    assert group["spec"] == {"minMember": 3, "queue": "research"}


def test_no_secret_is_in_a_pod() -> None:
    text = json.dumps(pod())
    for value in SECRETS.values():
        assert value not in text
    assert container(pod())["envFrom"] == [{"secretRef": {"name": names.anchor_name("digits-x7k2p")}}]
    secret = job_manifests.secret("digits-x7k2p", {**PLAIN, **SECRETS}, settings(), OWNER)
    assert secret["stringData"] == SECRETS


def test_tasks_have_no_privileges_and_no_access_to_the_api() -> None:
    spec = pod()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert container(pod())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_task_runs_on_its_node_only() -> None:
    terms = pod(
        **EVERYTHING,
    )["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = terms["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["node-7"]}]
    assert {"key": "pool", "operator": "In", "values": ["training"]} in term["matchExpressions"]


def test_a_gpu_is_asked_for_by_its_resource_and_label() -> None:
    types = {"A100": GpuType(resource="nvidia.com/gpu", labels={"nvidia.com/gpu.product": "A100"}).model_dump()}
    found = pod(resources=Resources(4, 2**34, {"A100": 2}), gpu_types=types)
    resources = container(found)["resources"]
    assert resources["requests"]["nvidia.com/gpu"] == resources["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu.product" in json.dumps(found["spec"]["affinity"])
    names_of = {each["name"] for each in container(found)["env"]}
    assert "NVIDIA_VISIBLE_DEVICES" not in names_of
    assert "NVIDIA_VISIBLE_DEVICES" in {each["name"] for each in container(pod())["env"]}


def test_coordinator_listens_everywhere_and_asks_for_little() -> None:
    key = TaskKey("digits-x7k2p", Role.COORDINATOR, 0)
    found = container(pod(key, Resources()))
    assert {"name": "OPTIMUS_COORDINATOR_ADDRESS", "value": "0.0.0.0:7070"} in found["env"]
    assert found["command"][-1] == "coordinator"
    assert found["resources"]["requests"] == {"cpu": "0m", "memory": str(128 * 2**20)}
    assert "cpu" not in found["resources"]["limits"]


def test_a_job_sees_its_own_directory_only() -> None:
    mounts = {each["name"]: each for each in container(pod(jobs_claim="jobs"))["volumeMounts"]}
    assert mounts["jobs"] == {"name": "jobs", "mountPath": "/optimus/jobs/digits-x7k2p", "subPath": "digits-x7k2p"}
    assert container(pod())["workingDir"] == "/optimus/jobs/digits-x7k2p"
    code = {role: launch(TaskKey("digits-x7k2p", role, 0), directory="/code") for role in Role}
    found = {role: container(manifests.pod(code[role], settings(), OWNER))["workingDir"] for role in Role}
    assert found == {role: "/code" if role is Role.WORKER else "/optimus/jobs/digits-x7k2p" for role in Role}


def test_limits_of_cpu_can_be_left_out() -> None:
    assert container(pod())["resources"]["limits"]["cpu"] == "1500m"
    assert "cpu" not in container(pod(cpu_limits=False))["resources"]["limits"]


job_ids = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,68}[a-z0-9])?", fullmatch=True)
keys = st.builds(TaskKey, job_ids, st.sampled_from(list(Role)), st.integers(0, 1023), st.integers(0, 10**6))


@given(keys)
def test_a_pod_tells_which_task_it_is(key: TaskKey) -> None:
    found = pod(key)
    labels = found["metadata"]["labels"]
    assert all(len(value) <= 63 for value in labels.values())
    assert found["metadata"]["name"] == names.pod_name(key)
    assert names.task_key_of(found["metadata"]) == key
    seen = {
        **found,
        "metadata": {**found["metadata"], "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Pending"},
    }
    observed = our_pod(seen)
    assert observed is not None
    assert (observed.key, observed.node, observed.is_bound) == (key, "node-7", False)


@given(job_ids, job_ids)
def test_names_of_objects_are_valid_and_different(one: str, other: str) -> None:
    for job_id in (one, other):
        assert len(names.coordinator_service_name(job_id)) <= 63
        assert names.anchor_name(job_id)[0].isalpha()
    assert (names.anchor_name(one) == names.anchor_name(other)) == (one == other)


def test_pods_of_others_with_our_labels_are_not_ours() -> None:
    metadata = dict(pod()["metadata"])
    assert names.task_key_of(metadata) == KEY
    assert names.task_key_of({**metadata, "name": "somebody-elses"}) is None
    assert names.task_key_of({**metadata, "annotations": {}}) is None
    assert names.task_key_of({**metadata, "labels": {**metadata["labels"], names.ROLE: "cook"}}) is None


def test_a_job_may_read_the_checkpoints_that_it_starts_from_and_nothing_else_of_that_job() -> None:
    found = manifests.pod(replace(launch(), from_job="other-b2c3d"), settings(jobs_claim="optimus-jobs"), OWNER)
    jobs = [mount for mount in container(found)["volumeMounts"] if mount["name"] == "jobs"]
    assert jobs[1:] == [
        {
            "name": "jobs",
            "mountPath": "/optimus/jobs/other-b2c3d/checkpoints",
            "subPath": "other-b2c3d/checkpoints",
            "readOnly": True,
        }
    ]


def test_the_image_of_a_script_gets_its_agent_from_ours() -> None:
    script = replace(launch(), image="images.example.com/train:1", stop_seconds=100.0)
    found = manifests.pod(script, settings(), OWNER)
    spec, own = found["spec"], container(found)
    (copies,) = spec["initContainers"]
    assert copies["image"] == settings().image
    assert copies["command"][:3] == ["python", "-m", "optimus_workers.script.bundle"]
    assert copies["securityContext"] == own["securityContext"]
    directory = copies["command"][3]
    assert own["image"] == "images.example.com/train:1"
    assert own["command"] == ["python3", f"{directory}/run.py", "worker"]
    mounted = {each["mountPath"]: each for each in own["volumeMounts"]}
    assert mounted[directory]["readOnly"]
    assert spec["terminationGracePeriodSeconds"] > 100, "it may take so long to save"
    client.V1Pod.model_validate(found)


def test_a_script_without_an_image_runs_in_ours() -> None:
    found = manifests.pod(replace(launch(), stop_seconds=20.0), settings(), OWNER)
    assert "initContainers" not in found["spec"]
    assert container(found)["image"] == settings().image
