"""What the API server said last, kept up to date by watches. Thread-safe; each method is one step."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from optimus_scheduler.model import Task, TaskKey, TaskPhase, Trouble
from optimus_service.clusters.kubernetes.observed import ObservedPod

Json = dict[str, Any]
T = TypeVar("T")
_MAX_VANISHED = 20_000
"""Tasks whose pods are gone are remembered until they are forgotten; a follower, which never forgets, keeps these."""
_KILLED, _TERMINATED = 137, 143


class Mirror(Generic[T]):
    """Objects of one kind by uid, condensed to what is needed of them."""

    def __init__(self, condense: Callable[[Json], T | None]) -> None:
        self._condense = condense
        self._lock = threading.RLock()
        self._objects: dict[str, T] = {}

    def replace(self, objects: Iterable[Json], listed_at: float) -> None:  # noqa: ARG002 - of use to pods
        """All there are, as a list that was asked for at `listed_at` (monotonic) says."""
        found = {each["metadata"]["uid"]: value for each in objects if (value := self._condense(each)) is not None}
        with self._lock:
            self._objects = found

    def put(self, found: Json) -> None:
        """It is there, new or changed."""
        uid, value = found["metadata"]["uid"], self._condense(found)
        with self._lock:
            if value is None:
                self._objects.pop(uid, None)
            else:
                self._objects[uid] = value

    def remove(self, found: Json) -> None:
        """It is gone."""
        with self._lock:
            self._objects.pop(found["metadata"]["uid"], None)

    def values(self) -> list[T]:
        with self._lock:
            return list(self._objects.values())


@dataclass(frozen=True, slots=True)
class _Vanished:
    """A task whose pod is gone: what it came to, as far as anybody saw."""

    task: Task
    uid: str


class PodMirror(Mirror[ObservedPod]):
    """Our pods, and the tasks whose pods vanished until somebody has taken notice of that."""

    def __init__(
        self, condense: Callable[[Json], ObservedPod | None], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(condense)
        self._monotonic = monotonic
        self._vanished: OrderedDict[TaskKey, _Vanished] = OrderedDict()
        self._by_key: dict[TaskKey, str] = {}
        self._stopped: dict[str, bool] = {}
        """Pods that we asked to leave: uid → by force."""
        self._forgotten: set[str] = set()
        """Pods that are of no interest any more: uids."""
        self._started_at: dict[str, float] = {}
        """Pods that we made, by uid: when (monotonic). A list that was asked for before does not have them."""
        self._gone: OrderedDict[str, None] = OrderedDict()
        """Uids of pods that are gone: an answer that comes late must not bring them back."""

    def replace(self, objects: Iterable[Json], listed_at: float) -> None:
        found = {each["metadata"]["uid"]: pod for each in objects if (pod := self._condense(each)) is not None}
        with self._lock:
            young = {
                uid: pod
                for uid, pod in self._objects.items()
                if uid not in found and self._started_at.get(uid, 0.0) >= listed_at
            }
            for uid, pod in self._objects.items():
                if uid not in found and uid not in young:
                    self._bury(uid, pod)
            self._objects = {**found, **young}
            self._by_key = {pod.key: uid for uid, pod in self._objects.items()}
            self._started_at = {uid: at for uid, at in self._started_at.items() if uid in young}

    def started(self, found: Json) -> None:
        """We made it; the watch may have reported more of it, or of its end, already."""
        uid, pod = found["metadata"]["uid"], self._condense(found)
        with self._lock:
            if pod is not None and uid not in self._objects and uid not in self._gone:
                self._objects[uid] = pod
                self._by_key[pod.key] = uid
                self._started_at[uid] = self._monotonic()

    def put(self, found: Json) -> None:
        uid = found["metadata"]["uid"]
        with self._lock:  # at one instant: who sees the pod can also ask for it by its key
            super().put(found)
            if (pod := self._objects.get(uid)) is not None:
                self._by_key[pod.key] = uid

    def remove(self, found: Json) -> None:
        uid, last = found["metadata"]["uid"], self._condense(found)
        with self._lock:
            known = self._objects.pop(uid, None)
            pod = last or known
            if pod is not None:
                if self._by_key.get(pod.key) == uid:
                    del self._by_key[pod.key]
                self._bury(uid, pod)

    def stopping(self, uid: str, *, force: bool) -> None:
        """We asked it to leave."""
        with self._lock:
            self._stopped[uid] = force or self._stopped.get(uid, False)

    def look(self) -> tuple[list[ObservedPod], list[Task], frozenset[str]]:
        """At one instant: pods that are not forgotten, tasks whose pods vanished, uids of pods that we asked to leave.

        Asked one after the other, a pod that vanishes in between would be in neither list.
        """
        with self._lock:
            return self.known(), self.vanished(), frozenset(self._stopped)

    def forget(self, key: TaskKey) -> None:
        """Report this task no more."""
        with self._lock:
            self._vanished.pop(key, None)
            if (uid := self._by_key.get(key)) is not None:
                self._forgotten.add(uid)

    def of(self, key: TaskKey) -> ObservedPod | None:
        with self._lock:
            return self._objects.get(self._by_key.get(key, ""))

    def known(self) -> list[ObservedPod]:
        """Pods that are not forgotten."""
        with self._lock:
            return [pod for uid, pod in self._objects.items() if uid not in self._forgotten and not pod.is_forgotten]

    def vanished(self) -> list[Task]:
        with self._lock:
            return [each.task for each in self._vanished.values()]

    def has_vanished(self, key: TaskKey) -> bool:
        with self._lock:
            return key in self._vanished

    def _bury(self, uid: str, pod: ObservedPod) -> None:
        self._gone[uid] = None
        while len(self._gone) > _MAX_VANISHED:
            self._gone.popitem(last=False)
        force = self._stopped.pop(uid, None)
        if uid in self._forgotten or pod.is_forgotten:
            self._forgotten.discard(uid)
            return
        task = Task(pod.key, pod.node, TaskPhase.EXITED, exit_code=pod.exit_code, trouble=pod.trouble)
        if pod.exit_code is None and force is not None:
            task = replace(task, exit_code=_KILLED if force else _TERMINATED)
        elif force is None and pod.exit_code in (None, _KILLED, _TERMINATED):
            # Somebody else's doing: it does not speak against the job.
            trouble = pod.trouble or Trouble("Deleted", "its pod was deleted, and not by Optimus")
            task = replace(task, exit_code=None, trouble=trouble)
        self._vanished[pod.key] = _Vanished(task, uid)
        while len(self._vanished) > _MAX_VANISHED:
            self._vanished.popitem(last=False)
