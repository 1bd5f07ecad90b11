"""The chart on a real API server: dry run, installation, upgrade, test, rollback, uninstallation, and its rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Config
from tests.helm.chart import CHART, EVERYTHING, REQUIRED, objects
from tests.service.clusters.kubernetes.control_plane import ControlPlane
from tests.service.clusters.kubernetes.fake_kubelet import FakeKubelet
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, gateway_of, key_of, wait_for

from optimus_scheduler.model import TaskPhase
from optimus_service.clusters.kubernetes.gateway import ApiRefused
from optimus_service.clusters.kubernetes.names import anchor_name

Json = dict[str, Any]
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule"}
PATHS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "HorizontalPodAutoscaler": "/apis/autoscaling/{version}/namespaces/{}/horizontalpodautoscalers",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodDisruptionBudget": "/apis/policy/{version}/namespaces/{}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
}


@dataclass
class Release:
    """An installed chart."""

    harness: KubernetesHarness
    config: Config
    values: Json
    summary: Json


@pytest.fixture
def empty(kubeconfig: Path, helm_kubelet: FakeKubelet) -> Iterator[KubernetesHarness]:
    harness = KubernetesHarness(gateway_of(kubeconfig), kubeconfig, helm_kubelet)
    yield harness
    harness.close()


@pytest.fixture
def release(empty: KubernetesHarness) -> Iterator[Release]:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "optimus"},
        "stringData": {"token": "t" * 16, "secret": "s" * 16, "database-url": "postgresql://nowhere/optimus"},
    }
    empty.admin.create(empty.path("secrets"), secret)
    values = {**REQUIRED, "fullnameOverride": "optimus", "tasks": {"nodeSelector": {"optimus-test": "helm"}}}
    with Config(kubeconfig_path=empty.kubeconfig, namespace=empty.namespace) as config:
        remove_definition(empty)
        summary = config.install(CHART, "demo", values, namespace=empty.namespace, timeout=60)
        yield Release(empty, config, values, summary)
        config.uninstall("demo", ignore_not_found=True)
        remove_definition(empty)


def remove_definition(harness: KubernetesHarness) -> None:
    """It belongs to the whole cluster, and to the release that installed it."""
    path = f"{PATHS['CustomResourceDefinition']}/trainingjobs.optimus.dev"

    def is_gone() -> bool:
        try:
            harness.admin.delete(path)
        except ApiRefused as error:
            return error.is_missing
        return False

    wait_for("there is no definition", is_gone)


def for_this_server(found: Json, harness: KubernetesHarness) -> Json:
    """Offline, the chart takes today's versions; on the server it asks which there are."""
    groups = {each["name"]: [v["version"] for v in each["versions"]] for each in harness.admin.get("/apis")["groups"]}
    text = yaml.safe_dump(found)
    if "v1" not in groups["policy"]:
        text = text.replace("policy/v1\n", "policy/v1beta1\n")
    if "v2" not in groups["autoscaling"]:
        text = text.replace("autoscaling/v2\n", "autoscaling/v2beta2\n")
    mapped: Json = yaml.safe_load(text)
    return mapped


def test_every_object_passes_a_dry_run(empty: KubernetesHarness) -> None:
    checked = 0
    remove_definition(empty)  # other tests may have made it
    values = {**EVERYTHING, "priorityClassName": ""}  # admission knows the classes that exist
    for each in objects(values, namespace=empty.namespace):
        if each["kind"] in OF_OPERATORS:
            continue
        sent = for_this_server(each, empty)
        path = PATHS[sent["kind"]].format(empty.namespace, version=sent["apiVersion"].rpartition("/")[2])
        found = empty.admin.create(f"{path}?dryRun=All", sent)
        assert found["kind"] == sent["kind"]
        assert set(sent.get("spec", {})) <= set(found.get("spec", {})), sent["metadata"]["name"]
        checked += 1
    assert checked >= 16


def test_install_upgrade_rollback_uninstall(release: Release) -> None:
    harness, config = release.harness, release.config
    assert "kubectl" in release.summary["notes"] if "notes" in release.summary else True
    deployment = f"/apis/apps/v1/namespaces/{harness.namespace}/deployments/optimus"
    wait_for("both replicas are ready", lambda: harness.admin.get(deployment)["status"].get("readyReplicas") == 2)
    config.test("demo", timeout=60)
    config.upgrade(CHART, "demo", {**release.values, "replicas": 3}, namespace=harness.namespace, timeout=60)
    assert harness.admin.get(deployment)["spec"]["replicas"] == 3
    config.rollback("demo", version=1, timeout=60)
    assert harness.admin.get(deployment)["spec"]["replicas"] == 2
    assert [each["status"] for each in config.history("demo")][-1] == "deployed"
    config.uninstall("demo")
    left = [
        f"{kind} {each['metadata']['name']}"
        for kind, path in PATHS.items()
        if kind not in ("CustomResourceDefinition", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Pod")
        for each in harness.admin.get(path.format(harness.namespace))["items"]
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == "demo"
        and not each["metadata"].get("deletionTimestamp")
    ]
    assert left == ["PersistentVolumeClaim optimus-jobs"]  # checkpoints stay
    assert harness.admin.get(f"{PATHS['CustomResourceDefinition']}/trainingjobs.optimus.dev")  # and so do jobs' objects


# --- what the service may do -----------------------------------------------------------------------------------------


def account(harness: KubernetesHarness, control_plane: ControlPlane, directory: Path, name: str = "optimus") -> Path:
    """The configuration of somebody who has this service account's token."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    made = harness.admin.create(harness.path(f"serviceaccounts/{name}/token"), request)
    configuration = json.loads(harness.kubeconfig.read_text())
    configuration["users"][0]["user"] = {"token": made["status"]["token"]}
    path = directory / f"{name}.kubeconfig"
    path.write_text(json.dumps(configuration))
    return path


def test_the_service_may_do_all_that_it_does(release: Release, control_plane: ControlPlane, tmp_path: Path) -> None:
    harness = release.harness
    harness.kubeconfig = account(harness, control_plane, tmp_path)
    cluster = harness.cluster = harness.open(
        instance="demo",
        service_account="optimus-task",
        node_selector={"optimus-test": "helm"},
        orphan_seconds=0.001,
        keep_pods_seconds=0.0,
    )
    leaves, ends, stopped = key_of(0), key_of(1), key_of(2)
    assert [node.name for node in cluster.nodes()] == ["helm-0"]
    assert cluster.coordinator_address("job-1")
    for key in (leaves, ends, stopped):
        harness.run(key, "helm-0")
    assert cluster.log_tail(leaves, 1000) == f"started {leaves.name}\n"
    harness.end(ends, 0)
    harness.wait_for_task(ends, TaskPhase.EXITED)
    cluster.forget([ends])
    cluster.stop(stopped)
    assert harness.wait_for_task(stopped, TaskPhase.EXITED).exit_code == 143

    def swept() -> bool:
        cluster.retain([])
        cluster.forget_logs(0.0)
        return not harness.names("configmaps") and not harness.names("secrets") and not harness.names("services")

    wait_for("all is removed", swept)
    assert anchor_name("job-1") not in harness.names("configmaps")


VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
RESOURCES = (
    ("", "pods", ""),
    ("", "pods", "log"),
    ("", "pods", "exec"),
    ("", "pods", "attach"),
    ("", "pods", "portforward"),
    ("", "pods", "eviction"),
    ("", "pods", "status"),
    ("", "pods", "binding"),
    ("", "configmaps", ""),
    ("", "secrets", ""),
    ("", "services", ""),
    ("", "services", "proxy"),
    ("", "serviceaccounts", ""),
    ("", "serviceaccounts", "token"),
    ("", "persistentvolumeclaims", ""),
    ("", "endpoints", ""),
    ("", "events", ""),
    ("", "nodes", ""),
    ("", "nodes", "proxy"),
    ("", "nodes", "status"),
    ("", "namespaces", ""),
    ("", "resourcequotas", ""),
    ("apps", "deployments", ""),
    ("batch", "jobs", ""),
    ("policy", "poddisruptionbudgets", ""),
    ("networking.k8s.io", "networkpolicies", ""),
    ("rbac.authorization.k8s.io", "roles", ""),
    ("rbac.authorization.k8s.io", "rolebindings", ""),
    ("rbac.authorization.k8s.io", "clusterroles", ""),
    ("coordination.k8s.io", "leases", ""),
    ("optimus.dev", "trainingjobs", ""),
    ("optimus.dev", "trainingjobs", "status"),
    ("optimus.dev", "trainingjobs", "scale"),
)
IN_NAMESPACE = {
    "pods": {"create", "delete", "list", "patch", "watch"},
    "pods/log": {"get"},
    "configmaps": {"create", "delete", "get", "list", "watch"},
    "services": {"create", "delete", "get"},
    "secrets": {"create", "delete"},
    "trainingjobs": {"create", "delete", "get", "list", "patch", "watch"},
    "trainingjobs/status": {"patch"},
    "nodes": {"list", "watch"},
}
ELSEWHERE = {"pods": {"list", "watch"}, "nodes": {"list", "watch"}}


@pytest.mark.parametrize(("namespace", "allowed"), [(None, IN_NAMESPACE), ("kube-system", ELSEWHERE)])
def test_the_service_may_do_nothing_else(
    release: Release, control_plane: ControlPlane, tmp_path: Path, namespace: str | None, allowed: dict[str, set[str]]
) -> None:
    caller = gateway_of(account(release.harness, control_plane, tmp_path))
    found: dict[str, set[str]] = {}
    for group, resource, subresource in RESOURCES:
        for verb in VERBS:
            asked = {
                "namespace": namespace or release.harness.namespace,
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "verb": verb,
            }
            review = caller.create(
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                {
                    "apiVersion": "authorization.k8s.io/v1",
                    "kind": "SelfSubjectAccessReview",
                    "spec": {"resourceAttributes": asked},
                },
            )
            if review["status"]["allowed"]:
                found.setdefault(f"{resource}/{subresource}".rstrip("/"), set()).add(verb)
    assert found == allowed
    with pytest.raises(ApiRefused) as refused:
        caller.get(release.harness.path("secrets"))
    assert refused.value.status == 403


def test_tasks_may_do_nothing(release: Release, control_plane: ControlPlane, tmp_path: Path) -> None:
    caller = gateway_of(account(release.harness, control_plane, tmp_path, "optimus-task"))
    for path in (release.harness.path("pods"), release.harness.path("secrets"), "/api/v1/nodes"):
        with pytest.raises(ApiRefused) as refused:
            caller.get(path)
        assert refused.value.status == 403
