"""One database is enough here: what differs between them is tested elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.clusters.kubernetes.control_plane import ControlPlane
from tests.service.clusters.kubernetes.door import Door, is_served, services_of
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, wait_for
from tests.service.clusters.kubernetes.machine_wide import held
from tests.service.clusters.kubernetes.real_nodes import (
    NodesMissing,
    RealCluster,
    scripts_and_binaries,
    visible_to_pods,
)

from optimus_service.crd.definition import definition
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository


@pytest.fixture
def repository(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Repository]:
    path = tmp_path / "optimus.db"
    shutil.copy(migrated_sqlite, path)
    found = Repository(create_engine_from_url(f"sqlite:///{path}"))
    yield found
    found.close()


@pytest.fixture(scope="package")
def real_cluster() -> Iterator[RealCluster]:
    """Two real nodes, shared by the tests that need them: they take half a minute to start."""
    try:
        scripts_and_binaries()  # before anything on this machine is touched
    except NodesMissing as missing:
        if os.environ.get("OPTIMUS_TEST_REQUIRE_KUBE_NODES") == "1":
            pytest.fail(f"OPTIMUS_TEST_REQUIRE_KUBE_NODES=1, but {missing}")
        pytest.skip(f"no real Kubernetes nodes: {missing}")
    directory = Path(tempfile.mkdtemp(prefix="optimus-nodes-"))  # of short name: containerd's sockets are in it
    directory.chmod(0o755)
    with held(["kn1", "kn2"]), visible_to_pods() as seen:
        cluster = RealCluster.start(directory / "cluster", 2, gpus=2, seen=seen)
        try:
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def resource(kubernetes: KubernetesHarness, control_plane: ControlPlane) -> None:
    """The definition of TrainingJob is there (made once; a test that deletes it leaves it to the next)."""
    if is_served(kubernetes.admin):
        return
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(definition()))
    control_plane.kubectl("wait", "--for=condition=established", "crd/trainingjobs.optimus.dev", "--timeout=60s")
    wait_for(
        "clients are told of it", lambda: "tj" in control_plane.kubectl("api-resources", "--api-group=optimus.dev")
    )


@pytest.fixture
def door(
    kubernetes: KubernetesHarness,
    resource: None,
    repository: Repository,
    control_plane: ControlPlane,
    tmp_path: Path,
) -> Iterator[Door]:
    rounds: list[str] = []
    settings = KubernetesSettings(namespace=kubernetes.namespace)
    found = Door(kubernetes, services_of(repository, tmp_path, rounds), control_plane, rounds, settings)
    yield found
    found.close()
