"""A namespace of a real API server for one test, with fake nodes and the cluster under test."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from kubernetes import client, config
from tests.service.clusters.kubernetes.fake_kubelet import FakeKubelet

from optimus_scheduler.model import Resources, Role, Task, TaskKey, TaskPhase
from optimus_service.clusters.base import Cluster, TaskLaunch
from optimus_service.clusters.kubernetes.cluster import KubernetesCluster
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.clusters.kubernetes.names import pod_name
from optimus_service.settings.kubernetes import KubernetesSettings

WAIT_SECONDS = 150.0
"""Longest wait for a condition: this only bounds a hang."""
_numbers = itertools.count()
Json = dict[str, Any]


def gateway_of(kubeconfig: Path, call_seconds: float = 15.0) -> Gateway:
    configuration = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    return Gateway(configuration, call_seconds)


def wait_for(what: str, condition: Any, seconds: float = WAIT_SECONDS) -> Any:
    """The condition's value once it is true."""
    pause, give_up_at = Event(), time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"still not true: {what}"
        pause.wait(0.02)
    return found


@dataclass
class KubernetesHarness:
    """What a test has in its hands."""

    admin: Gateway
    kubeconfig: Path
    kubelet: FakeKubelet
    settings: dict[str, Any] = field(default_factory=dict)
    clusters: list[KubernetesCluster] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.namespace = f"optimus-test-{os.getpid()}-{next(_numbers)}"
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        self.admin.create("/api/v1/namespaces", body)
        wait_for("pods may be made", self._has_account)
        self.cluster: Cluster = self.open()

    def _has_account(self) -> bool:
        """Until the default service account has its token, pods are refused (up to 1.23 that takes a moment)."""
        try:
            found = self.admin.get(self.path("serviceaccounts/default"))
        except ApiRefused:
            return False
        minor = int(self.admin.get("/version")["minor"].rstrip("+"))
        return minor >= 24 or bool(found.get("secrets"))

    def open(self, **changes: Any) -> KubernetesCluster:
        """Another instance, as after a restart of the service."""
        node_selector = {"optimus-test": self.kubelet_label}
        wanted = {
            "namespace": self.namespace,
            "kubeconfig": self.kubeconfig,
            "node_selector": node_selector,
            "coordinator_memory_bytes": 2**20,
            **self.settings,
            **changes,
        }
        cluster = KubernetesCluster(KubernetesSettings.model_validate(wanted))
        self.clusters.append(cluster)
        assert cluster.wait_until_listed()
        wait_for("all watches are open", lambda: cluster.problem is None)
        return cluster

    kubelet_label = "local"

    def path(self, rest: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{rest}"

    def pods(self) -> list[Json]:
        found: list[Json] = self.admin.get(self.path("pods"))["items"]
        return found

    def pod(self, key: TaskKey) -> Json:
        return self.admin.get(self.path(f"pods/{pod_name(key)}"))

    def names(self, kind: str) -> set[str]:
        """Objects of a kind that carry our labels."""
        found = self.admin.get(self.path(kind), {"labelSelector": "app.kubernetes.io/managed-by=optimus"})
        return {each["metadata"]["name"] for each in found["items"]}

    def launch(self, key: TaskKey, node: str = "local-0", **environment: str) -> TaskLaunch:
        variables = {"OPTIMUS_TASK_NAME": key.name, "OPTIMUS_JOB_TOKEN": "secret-of-the-job", **environment}
        return TaskLaunch(key, node, Resources(1.0, 2**20), variables)

    def run(self, key: TaskKey, node: str = "local-0", **environment: str) -> None:
        """Start it and wait until it runs."""
        self.cluster.start(self.launch(key, node, **environment))
        self.wait_for_task(key, TaskPhase.RUNNING)

    def end(self, key: TaskKey, code: int) -> None:
        self.wait_for_task(key, TaskPhase.RUNNING)
        self.kubelet.end(self.namespace, pod_name(key), code)

    def task(self, key: TaskKey) -> Task | None:
        return next((task for task in self.cluster.tasks() if task.key == key), None)

    def wait_for_task(self, key: TaskKey, phase: TaskPhase) -> Task:
        def found() -> Task | None:
            task = self.task(key)
            return task if task is not None and task.phase is phase else None

        task: Task = wait_for(f"{key.name} is {phase}", found)
        return task

    def wait_for_trouble(self, key: TaskKey, code: str) -> Task:
        def found() -> Task | None:
            task = self.task(key)
            return task if task is not None and task.trouble is not None and task.trouble.code == code else None

        task: Task = wait_for(f"{key.name} has the trouble {code}", found)
        return task

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.close()
        # What runs on the nodes would count in the next test: the namespace goes in its own time, its pods go now.
        for pod in self.pods():
            with suppress(ApiRefused):
                self.admin.delete(self.path(f"pods/{pod['metadata']['name']}"), {"gracePeriodSeconds": 0})
        self.admin.delete(f"/api/v1/namespaces/{self.namespace}")


def key_of(rank: int, role: Role = Role.WORKER, incarnation: int = 0, job_id: str = "job-1") -> TaskKey:
    return TaskKey(job_id, role, rank, incarnation)
