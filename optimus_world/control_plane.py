"""What surrounds the model of the API server: its scheduler, kubelets, controllers, and connections to it.

Pods that are bound and whose secret is there become tasks of the simulated machines. How these end, the pod's status
says. A node that is lost is noticed late, and its pods stay until it is back or somebody removes them by force.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import urllib3

from optimus_scheduler.model import Resources, Role, TaskPhase, Trouble
from optimus_service.clusters.base import Cluster, TaskLaunch
from optimus_service.clusters.kubernetes.cluster import KubernetesCluster
from optimus_service.clusters.kubernetes.gateway import Gateway
from optimus_service.clusters.kubernetes.names import CONTAINER, task_key_of
from optimus_service.clusters.kubernetes.quantities import pod_requests
from optimus_service.clusters.kubernetes.watcher import Threads
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_world.api_server import ApiServer, Change, Json, Refused, encoded
from optimus_world.cluster import Machines, RunningTask
from optimus_world.kernel import Kernel, Process, Signal

NAMESPACE = "optimus"
TICK_SECONDS = 5.0
"""Between two looks of the controllers."""
NOT_READY_SECONDS = 40.0
"""A node that says nothing for so long is not ready."""
_LATENCY_SECONDS = 0.01
_START_SECONDS = 1.0
_GATHER_SECONDS = 0.05
"""Events of a watch that come so close to each other arrive together."""


@dataclass
class ControlPlane:
    """The server with its controllers, and one kubelet for each node of the machines."""

    kernel: Kernel
    machines: Machines
    now: Callable[[], float]
    settings: KubernetesSettings
    say: Callable[[str], None]
    answers_429: bool = False

    def __post_init__(self) -> None:
        self.server = ApiServer(self.now, changed=self._changed)
        self._silent_since: dict[str, float] = {}
        self._streams: set[Stream] = set()
        self._launched: set[str] = set()
        """Uids of pods that became tasks."""
        for node in self.machines.nodes():
            memory = str(node.capacity.memory_bytes)
            self.server.put("nodes", _node(node.name, f"{node.capacity.cpu:g}", memory))
        self.kernel.after(TICK_SECONDS, self._tick)

    # --- the service's side ------------------------------------------------------------------------------------------

    def cluster(self, process: Process, clock: Callable[[], float], strike: Callable[[], None]) -> Cluster:
        """The real backend in this process. `strike`: called at each call that changes something."""
        threads = Threads(
            monotonic=lambda: self.kernel.now,
            event=lambda: Signal(self.kernel),
            start=lambda name, body: cast(None, self.kernel.spawn(process, name, body)),
        )
        connection = Connection(self, strike)
        gateway = Gateway(
            cast(Any, SimpleNamespace()), self.settings.call_seconds, threads.monotonic, lambda _: cast(Any, connection)
        )
        return KubernetesCluster(self.settings, gateway, clock, threads)

    def cut_watches(self) -> None:
        """All watches break off, and what has happened so far is not known any more: 410 for who goes on from it."""
        self.server.forget_history()
        for stream in list(self._streams):
            stream.cut()

    def opened(self, stream: Stream) -> None:
        self._streams.add(stream)

    def closed(self, stream: Stream) -> None:
        self._streams.discard(stream)

    def _changed(self, change: Change) -> None:
        for stream in self._streams:
            stream.notice(change.kind)
        pod = change.after
        if change.kind == "pods" and change.before is None and pod is not None:
            self.kernel.after(0.1, lambda: self._schedule(pod["metadata"]["uid"]))
        if change.kind == "pods" and pod is not None and pod["metadata"].get("deletionTimestamp"):
            self._stop(pod)
        if change.kind == "pods" and pod is None and change.before is not None:
            self._removed(change.before)
        if pod is None and change.before is not None:
            owner = change.before["metadata"]["uid"]
            self.kernel.after(0.5, lambda: self._collect(owner))

    # --- scheduler and kubelets --------------------------------------------------------------------------------------

    def _pod(self, uid: str) -> Json | None:
        return next((pod for pod in self.server.stored["pods"].values() if pod["metadata"]["uid"] == uid), None)

    def _schedule(self, uid: str) -> None:
        pod = self._pod(uid)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        name = _wanted_node(pod)
        node = self.server.stored["nodes"].get(("", name))
        if node is None or not _is_ready(node) or not self._fits(pod, node):
            self._edit(pod, lambda each: _set_condition(each, "PodScheduled", "False", "Unschedulable", "no room"))
            return

        def bind(each: Json) -> None:
            each["spec"]["nodeName"] = name
            _set_condition(each, "PodScheduled", "True", "", "")

        self._edit(pod, bind)
        self.kernel.after(_START_SECONDS, lambda: self._start(uid))

    def _fits(self, pod: Json, node: Json) -> bool:
        free = {
            "cpu": float(node["status"]["allocatable"]["cpu"]),
            "memory": int(node["status"]["allocatable"]["memory"]),
        }
        for other in (*self._bound_to(node["metadata"]["name"]), pod):
            asked = pod_requests(other["spec"])
            free = {name: amount - float(asked.get(name, 0)) for name, amount in free.items()}
        return all(amount >= 0 for amount in free.values())

    def _bound_to(self, node: str) -> list[Json]:
        return [
            pod
            for pod in self.server.objects("pods")
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def _start(self, uid: str) -> None:
        pod = self._pod(uid)
        if pod is None or pod["metadata"].get("deletionTimestamp") or uid in self._launched:
            return
        if pod["spec"]["nodeName"] in self.machines.down:
            return
        secret = self.server.stored["secrets"].get((NAMESPACE, _secret_of(pod)))
        if secret is None:
            self._edit(pod, lambda each: _set_state(each, {"waiting": {"reason": "CreateContainerConfigError"}}))
            return
        self._launched.add(uid)
        self._edit(pod, lambda each: _set_running(each))
        self.machines.start(_launch(pod, secret), None)

    def _stop(self, pod: Json) -> None:
        """A pod that was asked to leave: its task is told; a pod without one is gone."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if node in self.machines.down:
            return  # nobody there hears it
        running = self._task_of(pod)
        if uid in self._launched and running is not None and running.task.phase is not TaskPhase.EXITED:
            key, force = running.launch.key, pod["metadata"].get("deletionGracePeriodSeconds", 30) <= 1
            self.kernel.after(0.0, lambda: self.machines.stop(key, force=force))
        else:
            self.kernel.after(0.2, lambda: self._remove(uid))

    def _remove(self, uid: str) -> None:
        pod = self._pod(uid)
        if pod is not None:
            self.server.remove("pods", pod)

    def _removed(self, pod: Json) -> None:
        """It is not there any more: nor is its task, on a node that answers."""
        running = self._task_of(pod)
        if running is None or pod["metadata"]["uid"] not in self._launched:
            return
        key = running.launch.key
        if running.task.phase is not TaskPhase.EXITED:
            self.kernel.after(0.0, lambda: self.machines.exit(key, 137))
        else:
            self.machines.tasks.pop(key, None)

    def exited(self, running: RunningTask) -> None:
        """A task has ended: its kubelet says so, if its node is there."""
        pod = self.server.stored["pods"].get((NAMESPACE, running.launch.key.name))
        if pod is None:
            self.machines.tasks.pop(running.launch.key, None)
        elif running.launch.node not in self.machines.down:
            self._say_exited(pod, running)

    def _say_exited(self, pod: Json, running: RunningTask) -> None:
        uid, code, trouble = pod["metadata"]["uid"], running.task.exit_code, running.task.trouble
        self._edit(pod, lambda each: _set_exited(each, 137 if code is None else code, trouble))
        if pod["metadata"].get("deletionTimestamp"):
            self.kernel.after(0.1, lambda: self._remove(uid))

    def _task_of(self, pod: Json) -> RunningTask | None:
        key = task_key_of(pod["metadata"])
        return None if key is None else self.machines.tasks.get(key)

    def _edit(self, pod: Json, edit: Callable[[Json], None]) -> None:
        self.server.change("pods", (NAMESPACE, pod["metadata"]["name"]), edit)

    # --- controllers -------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for node in self.server.objects("nodes"):
            self._watch_node(node["metadata"]["name"])
        for pod in self.server.objects("pods"):
            uid = pod["metadata"]["uid"]
            if not pod["spec"].get("nodeName"):
                self._schedule(uid)
            elif uid not in self._launched:
                self._start(uid)
        self.kernel.after(TICK_SECONDS, self._tick)

    def _watch_node(self, name: str) -> None:
        is_down = name in self.machines.down
        if not is_down:
            was_down = self._silent_since.pop(name, None) is not None
            if was_down:
                self._come_back(name)
            return
        seconds = self.kernel.now - self._silent_since.setdefault(name, self.kernel.now)
        if seconds >= NOT_READY_SECONDS:
            self._set_ready(name, "Unknown")
        if seconds >= NOT_READY_SECONDS + self.settings.node_lost_seconds:
            for pod in self._bound_to(name):
                if not pod["metadata"].get("deletionTimestamp"):
                    self._edit(pod, _taint_eviction)

    def _come_back(self, name: str) -> None:
        """The machine has booted: none of its containers lives."""
        self._set_ready(name, "True")
        for pod in self._bound_to(name):
            uid, running = pod["metadata"]["uid"], self._task_of(pod)
            if pod["metadata"].get("deletionTimestamp"):
                self._remove(uid)
            elif uid in self._launched:
                self._edit(pod, lambda each: _set_exited(each, 137, None))
            if running is not None and running.task.phase is not TaskPhase.EXITED:
                self.machines.exit(running.launch.key, None)

    def _set_ready(self, name: str, status: str) -> None:
        self.server.change("nodes", ("", name), lambda node: _set_condition(node, "Ready", status, "", ""))

    def _collect(self, owner: str) -> None:
        """What belongs to an object that is gone goes as well."""
        for kind in ("secrets", "services", "pods"):
            for found in self.server.objects(kind):
                if any(each["uid"] == owner for each in found["metadata"].get("ownerReferences") or []):
                    self.delete(kind, found["metadata"]["name"])

    def delete(self, kind: str, name: str) -> None:
        """As somebody with `kubectl delete`."""
        self.server.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/{kind}/{name}", {}, {})


# --- connections ------------------------------------------------------------------------------------------------------


class Connection:
    """What sends the calls of one `Gateway`, in the place of the official client."""

    def __init__(self, plane: ControlPlane, strike: Callable[[], None]) -> None:
        self._plane, self._strike = plane, strike
        self.rest_client = SimpleNamespace(close=lambda: None)

    def param_serialize(
        self,
        method: str,
        path: str,
        query_params: list[tuple[str, str]],
        header_params: Mapping[str, str],
        body: Json | None,
        **_: object,
    ) -> tuple[str, str, Mapping[str, str], Json, None]:
        """As the client's; what is sent keeps the path, the query and the body apart."""
        return method, path, header_params, {"query": dict(query_params), "body": body}, None

    def call_api(
        self, method: str, path: str, _headers: object, sent: Json, _request_timeout: tuple[float, float]
    ) -> SimpleNamespace:
        """Raises urllib3's errors, as the client does."""
        plane, kernel = self._plane, self._plane.kernel
        kernel.check_alive()
        if method != "GET":
            self._strike()
        if plane.machines.unavailable:
            kernel.sleep(_request_timeout[0])
            raise urllib3.exceptions.ConnectTimeoutError("no route to the model of the API server")
        kernel.sleep(_LATENCY_SECONDS)
        if plane.answers_429:
            return _answer(429, Refused(429, "TooManyRequests", "the server has received too many requests").body())
        query = {name: str(value) for name, value in sent["query"].items()}
        if query.get("watch") == "true":
            return SimpleNamespace(response=Stream(plane, path, query))
        if method == "POST" and path.endswith("/pods"):
            self._tell_start(sent["body"])
        try:
            found = plane.server.call(method, path, query, sent["body"])
        except Refused as refusal:
            return _answer(refusal.code, refusal.body())
        if plane.machines.loses_answers and method != "GET":
            kernel.sleep(_request_timeout[1])
            raise urllib3.exceptions.ReadTimeoutError(cast(Any, None), path, "the answer was lost")
        kernel.check_alive()
        return _answer(200, found)

    def _tell_start(self, pod: Json) -> None:
        fiber, key = self._plane.kernel.current(), task_key_of(pod["metadata"])
        if fiber is None:
            return
        secret = self._plane.server.stored["secrets"].get((NAMESPACE, _secret_of(pod)))
        if key is not None and (NAMESPACE, key.name) not in self._plane.server.stored["pods"]:
            self._plane.machines.started(fiber.process, _launch(pod, secret or {}))


def _answer(code: int, body: Json | str) -> SimpleNamespace:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    nothing = lambda: None  # noqa: E731 - of a response that is read whole
    return SimpleNamespace(
        response=SimpleNamespace(status=code, reason="", read=lambda: data, release_conn=nothing, close=nothing)
    )


class Stream:
    """An open watch: the answer of which more comes for as long as it was asked for."""

    status, reason = 200, ""

    def __init__(self, plane: ControlPlane, path: str, query: Mapping[str, str]) -> None:
        self._plane, self._path, self._query = plane, path, query
        self._after = int(query["resourceVersion"])
        self._ends_at = plane.kernel.now + float(query["timeoutSeconds"])
        self._news = Signal(plane.kernel)
        self._kind = path.rsplit("/", 1)[-1]
        self._is_cut = False
        plane.opened(self)

    def notice(self, kind: str) -> None:
        """Something of this kind has changed."""
        if kind == self._kind:
            self._news.set()

    def cut(self) -> None:
        """The connection breaks."""
        self._is_cut = True
        self._news.set()

    def stream(self, amt: int | None = None) -> Iterator[bytes]:  # noqa: ARG002 - as urllib3's
        """What comes, as it comes."""
        kernel, server = self._plane.kernel, self._plane.server
        try:
            while True:
                if self._is_cut or self._plane.machines.unavailable:
                    raise urllib3.exceptions.ProtocolError("the connection broke")
                try:
                    events = server.changes(self._path, self._query, self._after)
                except Refused as refusal:
                    yield encoded({"type": "ERROR", "object": refusal.body()})
                    return
                self._after = server.version
                if events:
                    yield b"".join(map(encoded, events))
                if kernel.now >= self._ends_at or kernel.current() is None:  # outside of fibers no time passes
                    yield encoded(server.bookmark(self._path))
                    return
                self._news = Signal(kernel)
                self._news.wait(self._ends_at - kernel.now)
                kernel.sleep(_GATHER_SECONDS)
        finally:
            self._plane.closed(self)

    def close(self) -> None:
        self._plane.closed(self)


# --- objects ----------------------------------------------------------------------------------------------------------


def _node(name: str, cpu: str, memory: str) -> Json:
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": {}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _is_ready(node: Json) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])


def _wanted_node(pod: Json) -> str:
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _secret_of(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["envFrom"][0]["secretRef"]["name"])


def _launch(pod: Json, secret: Json) -> TaskLaunch:
    """What the kubelet starts: by the pod and its secret alone."""
    key, container = task_key_of(pod["metadata"]), pod["spec"]["containers"][0]
    assert key is not None, "only the service makes pods"
    environment = {**secret.get("stringData", {}), **{each["name"]: each["value"] for each in container["env"]}}
    environment = {
        **{name: base64.b64decode(value).decode() for name, value in secret.get("data", {}).items()},
        **environment,
    }
    asked = pod_requests(pod["spec"])
    held = Resources(float(asked.get("cpu", 0)), int(asked.get("memory", 0)))
    node = pod["spec"].get("nodeName") or _wanted_node(pod)
    return TaskLaunch(key, node, Resources() if key.role is Role.COORDINATOR else held, environment)


def _set_condition(found: Json, kind: str, status: str, reason: str, message: str) -> None:
    others = [each for each in found["status"].get("conditions") or [] if each["type"] != kind]
    condition = {"type": kind, "status": status, "reason": reason, "message": message}
    found["status"]["conditions"] = [*others, {name: value for name, value in condition.items() if value}]


def _set_state(pod: Json, state: Json) -> None:
    pod["status"]["containerStatuses"] = [{"name": CONTAINER, "state": state}]


def _set_running(pod: Json) -> None:
    pod["status"]["phase"] = "Running"
    _set_state(pod, {"running": {}})


def _set_exited(pod: Json, code: int, trouble: Trouble | None) -> None:
    pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
    if trouble is not None:
        pod["status"] |= {"reason": trouble.code, "message": trouble.message}
    _set_state(pod, {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}})


def _taint_eviction(pod: Json) -> None:
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    words = "the node does not answer"
    _set_condition(pod, "DisruptionTarget", "True", "DeletionByTaintManager", words)
