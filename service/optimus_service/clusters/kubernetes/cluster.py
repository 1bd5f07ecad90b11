"""Tasks as pods: a `Cluster` on a Kubernetes API server.

::

    API server ──watch──▶ mirrors (nodes, our pods, other pods, anchors) ──▶ nodes(), tasks(): no call at all
        ▲                                                                        │
        └── create pod, delete pod, label pod ◀── start, stop, forget ◀──────────┘
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from optimus_scheduler.model import Node, Role, Task, TaskKey, TaskPhase, Trouble
from optimus_service.clusters.base import ClusterUnavailable, TaskLaunch, TaskObjection, TaskRefused
from optimus_service.clusters.kubernetes import capacity, manifests, observed
from optimus_service.clusters.kubernetes.backoff import Backoff
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.clusters.kubernetes.job_objects import JobObjects
from optimus_service.clusters.kubernetes.mirror import Mirror, PodMirror
from optimus_service.clusters.kubernetes.names import (
    CONTAINER,
    FORGOTTEN,
    INSTALLATION,
    installation,
    ours,
    pod_name,
)
from optimus_service.clusters.kubernetes.observed import ObservedNode, ObservedPod, OtherPod
from optimus_service.clusters.kubernetes.verdicts import Verdicts
from optimus_service.clusters.kubernetes.watcher import Threads, Watcher
from optimus_service.clusters.local import checking
from optimus_service.settings.kubernetes import KubernetesSettings

_FORCED_GRACE_SECONDS = 1
"""0 would remove the pod from the API while its container may still run, and nobody would see how it ended."""
_TAIL_LINES = 5000
"""The API counts a log's end in lines only."""
_N_LOCKS = 64
"""Jobs share locks by hash: there are never more than a few of them in a hurry at a time."""
_LISTED_SECONDS = 30.0
"""Longest wait for the first lists."""

_log = structlog.get_logger(__name__)


class KubernetesCluster:
    """One namespace of a Kubernetes cluster, and the nodes that Optimus may use. Thread-safe."""

    def __init__(
        self,
        settings: KubernetesSettings,
        gateway: Gateway | None = None,
        clock: Callable[[], float] = time.time,
        threads: Threads = Threads(),  # noqa: B008 - a value
    ) -> None:
        """Raises `ClusterUnavailable` when no cluster is configured; one that does not answer yet is no error."""
        self._monotonic = threads.monotonic
        self._settings = settings
        self._gateway = gateway or Gateway.connect(settings)
        self._clock = clock
        self._locks = tuple(threading.Lock() for _ in range(_N_LOCKS))
        """The API server's answers decide who made a job's objects, so one at a time of each job asks it."""
        self._backoff = Backoff(threads.monotonic)
        self._pods = PodMirror(observed.our_pod, threads.monotonic)
        self._nodes: Mirror[ObservedNode] = Mirror(observed.node)
        self._others: Mirror[OtherPod] = Mirror(observed.other_pod)
        self._jobs = JobObjects(self._gateway, settings)
        self._verdicts = Verdicts(settings)
        self._usable_nodes = capacity.UsableNodes(settings)
        namespace = f"/api/v1/namespaces/{settings.namespace}"
        self._pods_path = f"{namespace}/pods"
        mine = {"labelSelector": ours(settings.namespace, settings.instance)}
        self._watchers = tuple(
            Watcher(self._gateway, path, query, mirror, settings.watch_seconds, threads)
            for path, query, mirror in (
                ("/api/v1/nodes", {}, self._nodes),
                (self._pods_path, mine, self._pods),
                ("/api/v1/pods", _others(settings), self._others),
                (f"{namespace}/configmaps", mine, self._jobs.anchors),
            )
        )
        for watcher in self._watchers:
            watcher.start()

    # --- what there is ----------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        self._require_up_to_date()
        pods = self._pods.known()
        coordinators = Counter(
            pod.node for pod in pods if pod.key.role is Role.COORDINATOR and pod.phase is not TaskPhase.EXITED
        )
        return self._usable_nodes.of(self._nodes.values(), self._others.values(), coordinators)

    def tasks(self) -> tuple[Task, ...]:
        self._require_up_to_date()
        pods, vanished, asked = self._pods.look()
        found = {task.key: task for task in vanished}
        nodes = {node.name: node for node in self._nodes.values()}
        requests = {pod.key: pod.requests for pod in pods}
        for task in self._verdicts.judge(pods, nodes.values(), self._monotonic(), asked):
            resources = capacity.resources_of_pod(requests[task.key], nodes.get(task.node), self._settings)
            found[task.key] = replace(task, resources=resources)
        return tuple(found[key] for key in sorted(found))

    def log_tail(self, key: TaskKey, max_bytes: int) -> str:
        if max_bytes <= 0:
            return ""
        query = {"container": CONTAINER, "tailLines": str(_TAIL_LINES)}
        try:
            text = self._gateway.get_text(f"{self._pods_path}/{pod_name(key)}/log", query)
        except ApiRefused:  # no such pod, or its container has not started
            return ""
        return text.encode()[-max_bytes:].decode(errors="replace")

    def check_task(self, import_path: str, working_directory: str | None) -> str | None:  # noqa: ARG002 - the seam's
        """Tasks that come with Optimus are in the service's installation, too; of others only their own image knows."""
        if not import_path.startswith("optimus_workers."):
            return None
        return checking.check_task((sys.executable, "-P", "-m", "optimus_workers.check_task"), import_path, None)

    def try_task(self, job: Mapping[str, Any]) -> TaskObjection | None:  # noqa: ARG002 - the seam's
        return None  # only the task's own image knows; the job itself will report it

    def remove_checkpoints(self, job: Mapping[str, Any], job_id: str) -> str | None:
        command = f"python -m optimus_workers.checkpoint.remove {job['checkpoint_url']} {job_id}"
        where = "in the workers' image, with the job's variables"
        return f"the service's image cannot reach object stores; this does it {where}: {command}"

    def check_command(self, job: Mapping[str, Any]) -> TaskObjection | None:  # noqa: ARG002 - the seam's
        return None  # what its image has, only a pod can tell

    def coordinator_address(self, job_id: str) -> str | None:
        with self._lock_of(job_id):
            try:
                return self._jobs.coordinator_address(job_id)
            except ApiRefused as error:
                raise TaskRefused(_refusal(error)) from error

    # --- what is done -----------------------------------------------------------------------------------------------

    def start(self, launch: TaskLaunch) -> None:
        self._require_up_to_date()
        key = launch.key
        if self._pods.has_vanished(key) or self._pods.of(key) is not None:
            return
        self._backoff.check(key)
        try:
            with self._lock_of(key.job_id):
                owner = self._jobs.ensure(key.job_id, launch.environment)
            made = self._gateway.create(self._pods_path, manifests.pod(launch, self._settings, owner))
        except ApiRefused as error:
            self._refused(key, error)
            return
        self._backoff.accepted(key)
        self._pods.started(made)

    def _lock_of(self, job_id: str) -> threading.Lock:
        return self._locks[hash(job_id) % _N_LOCKS]

    def _refused(self, key: TaskKey, error: ApiRefused) -> None:
        if error.is_conflict and error.reason == "AlreadyExists":
            return  # that is what was wanted
        if error.is_conflict or error.is_missing:
            with self._lock_of(key.job_id):
                self._jobs.lost(key.job_id)  # looked for anew by the next try
        trouble = _refusal(error)
        self._backoff.refused(key, trouble)
        raise TaskRefused(trouble) from error

    def stop(self, key: TaskKey, *, force: bool = False, with_all: bool = False) -> None:
        pod = self._pods.of(key)
        if pod is None or pod.phase is TaskPhase.EXITED or (pod.is_deleted and not force):
            return
        grace = None
        if force:
            node_answers = any(node.name == pod.node and node.is_ready for node in self._nodes.values())
            grace = _FORCED_GRACE_SECONDS if node_answers else 0
        if not with_all:  # else it is like a pod that somebody else deletes, to the next service, too
            self._pods.stopping(pod.uid, force=force)
        self._delete(pod, grace)

    def forget(self, keys: Iterable[TaskKey]) -> None:
        running = {task.key for task in self.tasks() if task.phase is not TaskPhase.EXITED}
        for key in keys:
            pod = self._pods.of(key)
            if key in running:
                continue
            if pod is not None and pod.phase is not TaskPhase.EXITED:
                self._delete(pod, None)  # given up (no room, its node lost), and not to come back to life
            elif pod is not None and not pod.is_forgotten and not pod.is_deleted:
                self._label_forgotten(pod)
            self._pods.forget(key)

    def forget_logs(self, before: float) -> None:
        before = max(before, self._clock() - self._settings.keep_pods_seconds)
        for pod in self._pods.values():
            if pod.is_forgotten and (pod.finished_at or pod.created_at) < before and not pod.is_deleted:
                self._delete(pod, None)

    def retain(self, job_ids: Collection[str]) -> None:
        """Remove what is left of all other jobs, unless it is young: its job may just be being made."""
        self._require_up_to_date()
        pods: dict[str, list[ObservedPod]] = {}
        for pod in self._pods.values():
            pods.setdefault(pod.key.job_id, []).append(pod)
        young_until = self._clock() - self._settings.orphan_seconds
        for job_id in {*pods, *self._jobs.known()} - set(job_ids):
            alive = [pod for pod in pods.get(job_id, ()) if pod.phase is not TaskPhase.EXITED]
            for pod in alive:
                if pod.created_at < young_until and not pod.is_deleted:
                    _log.warning("orphan deleted", pod=pod.key.name)
                    self._delete(pod, None)
            if not alive and self._jobs.known().get(job_id, 0.0) < young_until:
                self._remove_objects(job_id, keep_anchor=bool(pods.get(job_id)))

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.close()
        self._gateway.close()

    # --- parts ------------------------------------------------------------------------------------------------------

    def wait_until_listed(self, timeout_seconds: float = _LISTED_SECONDS) -> bool:
        """Whether everything was listed once."""
        give_up_at = self._monotonic() + timeout_seconds
        return all(each.wait_until_listed(max(give_up_at - self._monotonic(), 0.0)) for each in self._watchers)

    def _require_up_to_date(self) -> None:
        if self.problem is not None and self.problem.startswith("not asked"):
            self.wait_until_listed()
        if self.problem is not None:
            raise ClusterUnavailable(self.problem)

    @property
    def problem(self) -> str | None:
        """Why the mirrors may be out of date."""
        return next((each.problem for each in self._watchers if each.problem is not None), None)

    def _remove_objects(self, job_id: str, *, keep_anchor: bool) -> None:
        with self._lock_of(job_id):
            try:
                self._jobs.remove(job_id, keep_anchor=keep_anchor)
            except ApiRefused as error:
                raise ClusterUnavailable(f"the objects of {job_id} could not be removed: {error}") from error

    def _delete(self, pod: ObservedPod, grace_seconds: int | None) -> None:
        """This very pod: another one of its name is none of our business."""
        options: dict[str, object] = {"preconditions": {"uid": pod.uid}, "propagationPolicy": "Background"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            self._gateway.delete(f"{self._pods_path}/{pod_name(pod.key)}", options)
        except ApiRefused as error:
            if not (error.is_missing or error.is_conflict):
                raise ClusterUnavailable(f"{pod.key.name} could not be deleted: {error}") from error

    def _label_forgotten(self, pod: ObservedPod) -> None:
        body = {"metadata": {"labels": {FORGOTTEN: "true"}, "uid": pod.uid}}
        try:
            self._gateway.patch(f"{self._pods_path}/{pod_name(pod.key)}", body)
        except ApiRefused as error:
            if not (error.is_missing or error.is_conflict):
                raise ClusterUnavailable(f"{pod.key.name} could not be labelled: {error}") from error


def _others(settings: KubernetesSettings) -> dict[str, str]:
    """Selects the pods of others that take room of a node."""
    return {
        "labelSelector": f"{INSTALLATION}!={installation(settings.namespace, settings.instance)}",
        "fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
    }


def _refusal(error: ApiRefused) -> Trouble:
    if error.status == 403 and "exceeded quota" in str(error):
        return Trouble("Quota", str(error))
    if error.status == 403:
        return Trouble("Forbidden", str(error))
    return Trouble("Refused", str(error))
