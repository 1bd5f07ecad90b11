"""Clusters to test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.clusters.cluster_harness import FakeHarness, Harness, LocalHarness
from tests.service.clusters.kubernetes.fake_kubelet import FakeKubelet
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, gateway_of


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path)
    yield harness
    harness.close()


@pytest.fixture(scope="session")
def kubelet(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeKubelet]:
    """Nodes `local-0` and `local-1`, whose pods run on nothing."""
    fake = FakeKubelet(gateway_of(kubeconfig), tmp_path_factory.mktemp("kubelet"))
    labels = {"optimus-test": KubernetesHarness.kubelet_label}
    for number in range(2):
        fake.add_node(f"local-{number}", labels=labels)
    yield fake
    for name in list(fake.nodes):
        fake.remove_node(name)
    fake.close()


@pytest.fixture
def kubernetes(kubeconfig: Path, kubelet: FakeKubelet) -> Iterator[KubernetesHarness]:
    """A namespace and a cluster in it. The kubelet is shared: what one test asks of it must not last for the next."""
    kubelet.stubborn.clear()
    kubelet.stays_pending.clear()
    harness = KubernetesHarness(gateway_of(kubeconfig), kubeconfig, kubelet)
    yield harness
    harness.close()


@pytest.fixture(params=["fake", "local", "kubernetes"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == "kubernetes":
        yield request.getfixturevalue("kubernetes")
        return
    found: Harness = FakeHarness() if request.param == "fake" else LocalHarness(tmp_path)
    yield found
    found.close()
