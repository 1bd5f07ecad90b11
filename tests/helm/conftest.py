"""A node on which the chart's pods run (on nothing)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.clusters.kubernetes.fake_kubelet import FakeKubelet
from tests.service.clusters.kubernetes.kubernetes_harness import gateway_of


@pytest.fixture(scope="session")
def helm_kubelet(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeKubelet]:
    fake = FakeKubelet(gateway_of(kubeconfig), tmp_path_factory.mktemp("kubelet"))
    fake.add_node("helm-0", labels={"optimus-test": "helm"})
    yield fake
    fake.remove_node("helm-0")
    fake.close()
