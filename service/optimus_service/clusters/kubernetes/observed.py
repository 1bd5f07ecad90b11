"""What the API server says of pods and nodes, as small values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from optimus_scheduler.model import TaskKey, TaskPhase, Trouble
from optimus_service.clusters.kubernetes.names import CONTAINER, FORGOTTEN, task_key_of
from optimus_service.clusters.kubernetes.quantities import Amounts, amounts, pod_requests

Json = Mapping[str, Any]
COULD_NOT_START = 125
"""Exit code of a task whose container could not be started, as container engines give it."""

_PULL = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_START = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError", "ContainerCannotRun"}
)
_OF_THE_NODE = {
    "Evicted": "Evicted",
    "NodeLost": "NodeLost",
    "NodeShutdown": "NodeShutdown",
    "Terminated": "NodeShutdown",
    "Shutdown": "NodeShutdown",
    "Preempting": "Preempted",
    "EvictionByEvictionAPI": "Drained",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
    "PreemptionByScheduler": "Preempted",
    "PreemptionByKubeScheduler": "Preempted",
    "TerminationByKubelet": "Evicted",
    "UnexpectedAdmissionError": "RefusedByNode",
    "NodeAffinity": "RefusedByNode",
    "OutOfcpu": "RefusedByNode",
    "OutOfmemory": "RefusedByNode",
    "OutOfpods": "RefusedByNode",
}
"""Reasons of pods and of their DisruptionTarget condition: what happened to the task is not its own doing."""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """One of our pods."""

    key: TaskKey
    uid: str
    node: str
    """Where it runs or, while it is not bound, where it is to run."""
    phase: TaskPhase
    created_at: float
    """POSIX seconds, by the API server's clock."""
    exit_code: int | None = None
    finished_at: float | None = None
    trouble: Trouble | None = None
    is_forgotten: bool = False
    is_deleted: bool = False
    """It has been asked to leave, by us or by somebody else."""
    is_bound: bool = False
    requests: tuple[tuple[str, Decimal], ...] = ()
    """What the scheduler counts for it, by resource name."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node."""

    name: str
    allocatable: Amounts
    labels: Mapping[str, str]
    is_ready: bool
    is_cordoned: bool
    taints: tuple[Mapping[str, str], ...] = ()
    """Those that keep new pods away which do not tolerate them."""


@dataclass(frozen=True, slots=True)
class OtherPod:
    """A pod of somebody else: all that matters is what it takes."""

    node: str
    requests: Amounts


def our_pod(pod: Json) -> ObservedPod | None:
    """None if it only looks like one of ours."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    key = task_key_of(metadata)
    if key is None:
        return None
    ended = status.get("phase") in ("Succeeded", "Failed")
    terminated = _container_state(status).get("terminated") or {}
    return ObservedPod(
        key=key,
        uid=metadata["uid"],
        node=spec.get("nodeName") or _intended_node(spec),
        phase=_phase(status),
        created_at=posix(metadata["creationTimestamp"]) or 0.0,
        exit_code=_exit_code(status, terminated) if ended or terminated else None,
        finished_at=posix(terminated.get("finishedAt")) if ended else None,
        trouble=_trouble(status),
        is_forgotten=FORGOTTEN in (metadata.get("labels") or {}),
        is_deleted=bool(metadata.get("deletionTimestamp")),
        is_bound=bool(spec.get("nodeName")),
        requests=tuple(sorted(pod_requests(spec).items())),
    )


def node(found: Json) -> ObservedNode:
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
    return ObservedNode(
        name=metadata["name"],
        allocatable=amounts(status.get("allocatable")),
        labels=metadata.get("labels") or {},
        is_ready=conditions.get("Ready") == "True",
        is_cordoned=bool(spec.get("unschedulable")),
        taints=tuple(taint for taint in spec.get("taints") or [] if taint.get("effect") in ("NoSchedule", "NoExecute")),
    )


def other_pod(pod: Json) -> OtherPod | None:
    """None if it takes nothing (any more)."""
    bound = pod["spec"].get("nodeName")
    if not bound or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    return OtherPod(bound, pod_requests(pod["spec"]))


def posix(text: str | None) -> float | None:
    """A timestamp of the API as POSIX seconds."""
    return datetime.fromisoformat(text).timestamp() if text else None


# --- a pod's state ---------------------------------------------------------------------------------------------------


def _phase(status: Json) -> TaskPhase:
    if status.get("phase") in ("Succeeded", "Failed"):
        return TaskPhase.EXITED
    if _container_state(status).get("terminated"):
        return TaskPhase.EXITED  # the pod's own phase follows in a moment
    return TaskPhase.RUNNING if status.get("phase") == "Running" else TaskPhase.STARTING


def _container_state(status: Json) -> Json:
    for container in status.get("containerStatuses") or []:
        if container.get("name") == CONTAINER:
            state: Json = container.get("state") or {}
            return state
    return {}


def _exit_code(status: Json, terminated: Json) -> int | None:
    """None: not known, or it was not the task's own doing (evicted, its node shut down)."""
    trouble = _trouble(status)
    if trouble is not None and trouble.code in _OF_THE_NODE.values():
        return None
    if terminated.get("reason") in _START:
        return COULD_NOT_START
    code = terminated.get("exitCode")
    return int(code) if code is not None else None


def _trouble(status: Json) -> Trouble | None:
    """The first that applies of: its node's doing, its container's end, its container's start, no room."""
    for trouble in (
        _trouble_of_node(status),
        _trouble_of_container(_container_state(status)),
        _trouble_of_scheduling(status.get("conditions") or []),
    ):
        if trouble is not None:
            return trouble
    return None


def _trouble_of_node(status: Json) -> Trouble | None:
    if (code := _OF_THE_NODE.get(status.get("reason") or "")) is not None:
        return Trouble(code, str(status.get("message") or status["reason"]))
    for condition in status.get("conditions") or []:
        code = _OF_THE_NODE.get(condition.get("reason") or "")
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True" and code is not None:
            return Trouble(code, str(condition.get("message") or condition["reason"]))
    return None


def _trouble_of_container(state: Json) -> Trouble | None:
    ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
    if ended.get("reason") == "OOMKilled":
        return Trouble("OutOfMemory", "it used more memory than it had asked for and was killed")
    if ended.get("reason") in _START:
        return Trouble("CannotStart", f"{ended['reason']}: {ended.get('message') or 'no message'}")
    if waiting.get("reason") in _PULL:
        return Trouble("ImagePull", f"{waiting['reason']}: {waiting.get('message') or 'no message'}")
    if waiting.get("reason") in _START:
        return Trouble("CannotStart", f"{waiting['reason']}: {waiting.get('message') or 'no message'}")
    return None


def _trouble_of_scheduling(conditions: Iterable[Json]) -> Trouble | None:
    for condition in conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            gated = condition.get("reason") == "SchedulingGated"
            message = str(condition.get("message") or "no message")
            return Trouble("Queued" if gated else "Unschedulable", message)
    return None


def _intended_node(spec: Json) -> str:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""
