"""Calls to a server that is slow, silent, or not there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from kubernetes import client
from tests.service.clusters.kubernetes.kubernetes_harness import wait_for

from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.kubernetes import gateway as gateway_module
from optimus_service.clusters.kubernetes.cluster import KubernetesCluster
from optimus_service.clusters.kubernetes.gateway import Gateway
from optimus_service.settings.kubernetes import KubernetesSettings


@dataclass
class Silent:
    """A server that accepts connections and says nothing."""

    listener: socket.socket
    connections: list[socket.socket] = field(default_factory=list)

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Silent(listener)
        thread = threading.Thread(target=found.accept, daemon=True)
        thread.start()
        yield found
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in found.connections:
            connection.close()


def gateway_to(port: int, call_seconds: float = 0.2) -> Gateway:
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    return Gateway(configuration, call_seconds)


def test_a_silent_server_is_waited_for_once(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = gateway_to(silent.listener.getsockname()[1])
    for _ in range(50):
        with pytest.raises(ClusterUnavailable):
            gateway.create("/api/v1/namespaces/ml/pods", {})
    assert len(silent.connections) == 1
    monkeypatch.setattr(gateway_module, "_SILENCE_SECONDS", 0.0)
    with pytest.raises(ClusterUnavailable, match="does not answer"):
        gateway.get("/version")
    gateway.close()


def test_no_server_at_all() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gateway = gateway_to(unused.getsockname()[1])
        with pytest.raises(ClusterUnavailable, match="does not answer"):
            gateway.get("/version")
        cluster = KubernetesCluster(KubernetesSettings(), gateway)
        wait_for("it was asked", lambda: cluster.problem != "not asked yet")
        with pytest.raises(ClusterUnavailable):
            cluster.nodes()
        cluster.close()


def test_without_a_configuration_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterUnavailable, match="no access to a Kubernetes cluster is configured"):
        KubernetesCluster(KubernetesSettings())
