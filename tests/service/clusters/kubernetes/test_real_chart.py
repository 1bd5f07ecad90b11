"""The chart on real nodes: its pods run, its migrations migrate a real PostgreSQL, jobs train; then it is all gone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from helm_python import Config
from tests.helm.chart import CHART
from tests.service.clusters.kubernetes.forwarding import Forwarder
from tests.service.clusters.kubernetes.kubernetes_harness import wait_for
from tests.service.clusters.kubernetes.real_nodes import BRIDGE, SERVICE_IMAGE, RealCluster
from tests.service.postgres_cluster import PostgresCluster

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

NAMESPACE = "ml"
PATIENCE_SECONDS = 300
TOKEN = "token-of-the-chart-test"
ADDRESS = "10.96.77.7"
"""The service's fixed address: there is no cluster DNS here."""
PORT = 8080
Json = dict[str, Any]


@dataclass
class Installation:
    """An empty namespace with all that docs/kubernetes.md asks for before `helm install`."""

    cluster: RealCluster
    config: Config
    values: Json
    database_url: str

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *arguments, stdin=stdin)

    def items(self, kind: str, selector: str) -> list[Json]:
        found: list[Json] = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]
        return found

    def ready_pods(self) -> dict[str, str]:
        """Addresses by name of the service's pods that are ready and stay."""
        return {
            pod["metadata"]["name"]: pod["status"]["podIP"]
            for pod in self.items("pods", "app.kubernetes.io/component=service")
            if not pod["metadata"].get("deletionTimestamp")
            and {"type": "Ready", "status": "True"}.items()
            <= next((each for each in pod["status"].get("conditions", ()) if each["type"] == "Ready"), {}).items()
        }

    def rest(self, method: str, path: str, body: Json | None = None) -> Json:
        """Asks any replica."""
        url = f"http://{next(iter(self.ready_pods().values()))}:{PORT}/v1/{path}"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.request(method, url, headers=headers, json=body, timeout=30, trust_env=False)
        assert answer.is_success, answer.text
        found: Json = answer.json()
        return found

    def statuses(self) -> dict[str, Json]:
        found = json.loads(self.kubectl("get", "tj", "-o", "json"))["items"]
        return {each["metadata"]["name"]: each.get("status") or {} for each in found}

    def wait_for_state(self, state: str, name: str) -> None:
        def reached() -> bool:
            status = self.statuses()[name]
            assert status.get("state") != "failed", status
            return status.get("state") == state

        wait_for(f"{name} is {state}", reached, PATIENCE_SECONDS)


def specification(epochs: int) -> Json:
    resources = {"cpu": 0.25, "memory_bytes": "600Mi"}
    return {
        "task": "optimus_workers.zoo.digits:mlp",
        "convergence": {"max_epochs": epochs},
        "workers": {"min": 1, "max": 1, "resources": resources},
        "servers": {"min": 1, "max": 1, "resources": resources},
    }


@pytest.fixture
def database() -> Iterator[tuple[str, str]]:
    """The URL for pods, and the one for the test."""
    postgres = PostgresCluster()
    name = postgres.create_database()
    url = postgres.url(name)
    forwarder = Forwarder(BRIDGE, Path(url.partition("host=")[2]) / ".s.PGSQL.5432")
    yield f"postgresql://optimus@{BRIDGE}:{forwarder.port}/{name}", url
    postgres.close()
    forwarder.close()


@pytest.fixture
def installation(real_cluster: RealCluster, database: tuple[str, str]) -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="optimus-jobs-") as directory:
        Path(directory).chmod(0o777)
        real_cluster.kubectl("create", "namespace", NAMESPACE)
        with Config(kubeconfig_path=real_cluster.kubeconfig, namespace=NAMESPACE) as config:
            found = Installation(real_cluster, config, values(real_cluster), database[1])
            found.kubectl("apply", "-f", "-", stdin=json.dumps(prepared(directory, database[0])))
            yield found
            config.uninstall("demo", ignore_not_found=True)
        real_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def prepared(directory: str, url: str) -> Json:
    """The secret, and the volume that all nodes can write."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": directory}, "storageClassName": "shared"}
    claim = {"resources": {"requests": size}, "accessModes": modes, "storageClassName": "shared"}
    secret = {"token": TOKEN, "secret": "s" * 32, "database-url": url}
    objects = [
        {"kind": "Secret", "metadata": {"name": "optimus"}, "stringData": secret},
        {"kind": "PersistentVolume", "metadata": {"name": "jobs"}, "spec": volume},
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "jobs"}, "spec": claim},
    ]
    return {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", **each} for each in objects]}


def values(cluster: RealCluster) -> Json:
    repository, _, tag = SERVICE_IMAGE.rpartition(":")
    return {
        "existingSecret": "optimus",
        "fullnameOverride": "optimus",
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "service": {"clusterIP": ADDRESS},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        "scheduler": {"roundSeconds": 5, "learningRoundSeconds": 3},
        "tasks": {
            "serviceUrl": f"http://{ADDRESS}:{PORT}",
            "graceSeconds": 15,
            "jobs": {"existingClaim": "jobs", "create": False},
            "extra": {**cluster.task_settings, "image_pull_policy": "Never"},
        },
        "autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 3},
    }


def test_install_train_upgrade_uninstall(installation: Installation) -> None:
    config = installation.config
    config.install(CHART, "demo", installation.values, namespace=NAMESPACE, timeout=PATIENCE_SECONDS)
    with psycopg.connect(installation.database_url) as connection:  # the hook has run, in its pod
        assert connection.execute("SELECT count(*) FROM alembic_version").fetchone() == (1,)
    wait_for("both replicas are ready", lambda: len(installation.ready_pods()) == 2, PATIENCE_SECONDS)
    config.test("demo", timeout=PATIENCE_SECONDS)
    autoscaler = json.loads(installation.kubectl("get", "hpa", "optimus", "-o", "json"))
    assert autoscaler["spec"]["maxReplicas"] == 3
    budget = json.loads(installation.kubectl("get", "pdb", "optimus", "-o", "json"))
    wait_for("the budget counts", lambda: budget["spec"]["minAvailable"] == 1)

    group = (
        "api-resources",
        "--api-group=optimus.dev",
        "-o",
        "name",
    )  # looks anew; other commands remember for minutes
    wait_for("kubectl is told", lambda: "trainingjobs" in installation.kubectl(*group))

    # Both doors. A job of the REST API is an object, too, and deleting that cancels it.
    by_rest = str(installation.rest("POST", "jobs", {"name": "by-rest", **specification(12)})["id"])
    wait_for("it is shown", lambda: by_rest in installation.statuses(), PATIENCE_SECONDS)
    installation.kubectl("delete", "tj", by_rest)
    wait_for("it is cancelled", lambda: installation.rest("GET", f"jobs/{by_rest}")["state"] == "cancelled")
    example = {"apiVersion": "optimus.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "by-object"}}
    installation.kubectl("apply", "-f", "-", stdin=json.dumps({**example, "spec": specification(12)}))
    installation.wait_for_state("running", "by-object")

    # Every replica is replaced while it trains.
    before = set(installation.ready_pods())
    changed = {**installation.values, "logs": {"level": "debug"}}
    config.upgrade(CHART, "demo", changed, namespace=NAMESPACE, timeout=PATIENCE_SECONDS)
    wait_for(
        "the new replicas are ready",
        lambda: len(now := installation.ready_pods()) == 2 and not before & set(now),
        PATIENCE_SECONDS,
    )
    installation.wait_for_state("succeeded", "by-object")

    config.uninstall("demo")
    ours = "app.kubernetes.io/managed-by=optimus,app.kubernetes.io/instance=demo"
    installation.kubectl("delete", "configmap", "-l", ours)  # as docs/kubernetes.md says
    kinds = (
        "pods,services,secrets,configmaps,deployments,jobs,roles,rolebindings,serviceaccounts,networkpolicies,pdb,hpa"
    )
    wait_for(
        "nothing is left",
        lambda: not installation.items(kinds, "app.kubernetes.io/instance=demo"),
        PATIENCE_SECONDS,
    )
    assert set(installation.statuses()) == {"by-object"}  # the definition stays, and with it what it defines
    assert installation.kubectl("get", "pvc", "jobs", "-o", "name").strip() == "persistentvolumeclaim/jobs"
