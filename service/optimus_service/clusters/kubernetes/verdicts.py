"""What a pod's state means for its task, after some patience."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterable

from optimus_scheduler.model import Task, TaskPhase, Trouble
from optimus_service.clusters.kubernetes.observed import COULD_NOT_START, ObservedNode, ObservedPod
from optimus_service.settings.kubernetes import KubernetesSettings

_ENDED_FROM_OUTSIDE = (None, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""None: some kubelets lose the exit code of a pod that they are told to remove."""


class Verdicts:
    """Remembers since when something is wrong, by its own clock: those of the API server and of nodes may differ."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def judge(
        self,
        pods: Iterable[ObservedPod],
        nodes: Iterable[ObservedNode],
        now: float,
        asked_to_leave: Collection[str] = (),
    ) -> list[Task]:
        """The pods' tasks at `now` (monotonic seconds). `asked_to_leave`: uids of those that we deleted."""
        by_name = {node.name: node for node in nodes}
        with self._lock:
            before, self._since = self._since, {}

            def lasted(subject: str, what: str) -> float:
                since = before.get((subject, what), now)
                self._since[subject, what] = since
                return now - since

            return [self._task(pod, by_name.get(pod.node), lasted, pod.uid in asked_to_leave) for pod in pods]

    def _task(
        self, pod: ObservedPod, node: ObservedNode | None, lasted: Callable[[str, str], float], asked: bool
    ) -> Task:
        cordoned = node is not None and node.is_cordoned
        if pod.phase is TaskPhase.EXITED:
            if pod.is_deleted and not asked and pod.exit_code in _ENDED_FROM_OUTSIDE:
                return _given_up(pod, pod.trouble or _removed(pod, cordoned))
            return _as_is(pod, pod.trouble)
        if pod.is_bound and (node is None or not node.is_ready):
            return self._on_silent_node(pod, lasted(pod.node, "NotReady"))
        if pod.phase is TaskPhase.RUNNING:
            return _as_is(pod, _removed(pod, cordoned) if pod.is_deleted and cordoned else pod.trouble)
        return self._not_started(pod, lasted)

    def _on_silent_node(self, pod: ObservedPod, seconds: float) -> Task:
        """Its node does not answer: it may come back, and its tasks with it; after a while they are given up."""
        trouble = Trouble("NodeLost", f"node {pod.node} has not been ready for {seconds:.0f} s")
        if seconds < self._settings.node_lost_seconds:
            return _as_is(pod, trouble)
        return _given_up(pod, trouble)

    def _not_started(self, pod: ObservedPod, lasted: Callable[[str, str], float]) -> Task:
        trouble, settings = pod.trouble, self._settings
        if trouble is None:
            return _as_is(pod, None)
        seconds = lasted(pod.uid, trouble.code)
        if trouble.code == "Unschedulable" and seconds >= settings.unschedulable_seconds:
            # Somebody else took the room: nobody's fault, and another place is looked for.
            return _given_up(pod, trouble)
        if trouble.code in ("ImagePull", "CannotStart") and seconds >= settings.start_seconds:
            return Task(pod.key, pod.node, TaskPhase.EXITED, exit_code=COULD_NOT_START, trouble=trouble)
        return _as_is(pod, trouble)


def _given_up(pod: ObservedPod, trouble: Trouble) -> Task:
    """It has ended and that does not speak against its job: no exit code."""
    return Task(pod.key, pod.node, TaskPhase.EXITED, exit_code=None, trouble=trouble)


def _removed(pod: ObservedPod, cordoned: bool) -> Trouble:
    if cordoned:
        return Trouble("Drained", f"node {pod.node} is being drained")
    return Trouble("Deleted", "its pod was deleted")


def _as_is(pod: ObservedPod, trouble: Trouble | None) -> Task:
    return Task(pod.key, pod.node, pod.phase, exit_code=pod.exit_code, trouble=trouble)
