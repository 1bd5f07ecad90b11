"""Nodes without machines: their pods start, print a line, and end when they are asked to or when a test says so.

Everything else is real: the API server stores the pods, the scheduler binds them, the garbage collector removes them.
"""

from __future__ import annotations

import http.server
import itertools
import re
import ssl
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.clusters.kubernetes.mirror import Mirror
from optimus_service.clusters.kubernetes.watcher import Watcher

Json = dict[str, Any]
_LOG_PATH = re.compile(r"/containerLogs/([^/]+)/([^/]+)/([^/?]+)")
KILLED, TERMINATED = 137, 143


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class FakeKubelet:
    """The kubelets of all nodes that it makes."""

    def __init__(self, gateway: Gateway, directory: Path) -> None:
        self._gateway = gateway
        self._directory = directory
        self.nodes: set[str] = set()
        self.logs: dict[str, str] = {}
        """Of a pod, by its name."""
        self.stays_pending: dict[str, Json] = {}
        """Pods (by the end of their name) whose container never starts: its state."""
        self.succeeds = {"migrations", "test"}
        """Components (by label) whose pods are done at once."""
        self.stubborn: set[str] = set()
        """Pods that do not end when they are asked to."""
        self._addresses = (f"10.{a}.{b}.{c}" for a in range(1, 255) for b in range(255) for c in range(1, 255))
        self._counter = itertools.count()
        self._lock = threading.Lock()
        self._server = self._serve_logs()
        self._mirror = _Watched(self)
        self._watcher = Watcher(gateway, "/api/v1/pods", {"fieldSelector": "spec.nodeName!="}, self._mirror, 300)
        self._watcher.start()

    def close(self) -> None:
        self._watcher.close()
        self._server.shutdown()
        self._server.server_close()

    # --- nodes ------------------------------------------------------------------------------------------------------

    def add_node(
        self, name: str, cpu: str = "8", memory: str = "16Gi", gpus: int = 0, labels: Mapping[str, str] | None = None
    ) -> None:
        self.nodes.add(name)
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}}
        with suppress(ApiRefused):
            self._gateway.create("/api/v1/nodes", body)
        offered = {"cpu": cpu, "memory": memory, "pods": "250", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        self.set_node_status(
            name,
            capacity=offered,
            allocatable=offered,
            addresses=[{"type": "InternalIP", "address": "127.0.0.1"}],
            daemonEndpoints={"kubeletEndpoint": {"Port": self._server.server_address[1]}},
            conditions=[_ready("True")],
        )

    def set_ready(self, name: str, status: str) -> None:
        self.set_node_status(name, conditions=[_ready(status)])

    def cordon(self, name: str, *, cordoned: bool = True) -> None:
        self._gateway.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": cordoned}})

    def set_node_status(self, name: str, **status: Any) -> None:
        self._gateway.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def remove_node(self, name: str) -> None:
        self.nodes.discard(name)
        with suppress(ApiRefused):
            self._gateway.delete(f"/api/v1/nodes/{name}")

    # --- pods -------------------------------------------------------------------------------------------------------

    def end(self, namespace: str, name: str, code: int, reason: str | None = None, container: str = "task") -> None:
        """The container ends by itself."""
        ended = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"), "finishedAt": now()}
        phase = "Succeeded" if code == 0 else "Failed"
        self.set_pod_status(
            namespace, name, phase=phase, containerStatuses=[_container({"terminated": ended}, container)]
        )

    def set_pod_status(self, namespace: str, name: str, **status: Any) -> None:
        self._gateway.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})

    def observe(self, pod: Json) -> None:
        """What a kubelet does when one of its pods is new or changed."""
        metadata, phase = pod["metadata"], pod.get("status", {}).get("phase")
        if pod["spec"].get("nodeName") not in self.nodes:
            return
        namespace, name = metadata["namespace"], metadata["name"]
        with suppress(ApiRefused, ClusterUnavailable):  # it is gone meanwhile, or the server is
            if metadata.get("deletionTimestamp"):
                self._leave(pod, namespace, name)
            elif phase == "Pending" and metadata.get("labels", {}).get("app.kubernetes.io/component") in self.succeeds:
                self.end(namespace, name, 0, container=pod["spec"]["containers"][0]["name"])
            elif phase == "Pending":
                self._start(namespace, name, pod["spec"]["containers"][0]["name"])

    def _start(self, namespace: str, name: str, container: str) -> None:
        for end, waiting in self.stays_pending.items():
            if name.endswith(end):
                self.set_pod_status(namespace, name, containerStatuses=[_container({"waiting": waiting}, container)])
                return
        self.logs.setdefault(name, f"started {name}\n")
        with self._lock:
            address = next(self._addresses)
        self.set_pod_status(
            namespace,
            name,
            phase="Running",
            podIP=address,
            startTime=now(),
            containerStatuses=[_container({"running": {"startedAt": now()}}, container)],
            conditions=[{"type": kind, "status": "True"} for kind in ("Initialized", "ContainersReady", "Ready")],
        )

    def _leave(self, pod: Json, namespace: str, name: str) -> None:
        if pod.get("status", {}).get("phase") == "Running":
            forced = (pod["metadata"].get("deletionGracePeriodSeconds") or 0) <= 1
            if name in self.stubborn and not forced:
                return
            self.end(namespace, name, KILLED if forced else TERMINATED)
        self._gateway.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    # --- logs -------------------------------------------------------------------------------------------------------

    def _serve_logs(self) -> http.server.ThreadingHTTPServer:
        kubelet = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                match = _LOG_PATH.match(self.path)
                text = kubelet.logs.get(match[2]) if match else None
                self.send_response(200 if text is not None else 404)
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, *_: Any) -> None:
                """Not to the tests' output."""

        certificate, key = self._directory / "kubelet.crt", self._directory / "kubelet.key"
        options = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet", "-days", "2"]
        command = ["openssl", "req", "-x509", *options, "-out", str(certificate), "-keyout", str(key)]
        subprocess.run(command, check=True, capture_output=True)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server


class _Watched(Mirror[str]):
    """Keeps nothing; hands everything to the kubelet."""

    def __init__(self, kubelet: FakeKubelet) -> None:
        super().__init__(lambda _: None)
        self._kubelet = kubelet

    def replace(self, objects: Any, listed_at: float) -> None:
        for each in objects:
            self._kubelet.observe(each)

    def put(self, found: Json) -> None:
        self._kubelet.observe(found)


def _ready(status: str) -> Json:
    return {"type": "Ready", "status": status, "reason": "FakeKubelet", "lastHeartbeatTime": now()}


def _container(state: Json, name: str) -> Json:
    return {
        "name": name,
        "image": "none",
        "imageID": "none",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }
