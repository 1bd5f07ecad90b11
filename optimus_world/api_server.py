"""A Kubernetes API server as a model: objects with versions, lists in pages, watches, deletions with grace.

::

    KubernetesCluster (real) ─▶ Gateway (real) ─▶ Connection ─▶ ApiServer: objects, and the history of their changes
                                                                   ▲
                                  control_plane: scheduler, kubelets, node and garbage controllers

What it answers is compared with what a real API server answers to the same calls
(`tests/simulation/test_api_server.py`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]

_KINDS = {
    "nodes": "Node",
    "pods": "Pod",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "services": "Service",
}


class Refused(Exception):
    """The server says no: a `Status` of the API."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason

    def body(self) -> Json:
        status = {"status": "Failure", "message": str(self), "reason": self.reason, "code": self.code}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, **status}


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one object."""

    version: int
    kind: str
    before: Json | None
    after: Json | None


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    kind: str
    namespace: str | None
    name: str | None
    part: str | None

    @classmethod
    def of(cls, path: str) -> Target:
        """Raises `Refused`: there is nothing like that."""
        words = path.removeprefix("/api/v1/").split("/")
        namespace = None
        if words[0] == "namespaces" and len(words) > 2:
            namespace, words = words[1], words[2:]
        kind, name, part = [*words, None, None][:3]
        if kind not in _KINDS:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return cls(str(kind), namespace, name, part)


@dataclass
class ApiServer:
    """One server, with all that it stores. Knows nothing of time but what `now` says."""

    now: Callable[[], float]
    """POSIX seconds."""
    refuses_pods: bool = False
    """A quota is used up."""
    stored: dict[str, dict[tuple[str, str], Json]] = field(default_factory=lambda: {kind: {} for kind in _KINDS})
    """Objects by kind, and by namespace and name."""
    history: list[Change] = field(default_factory=list)
    forgotten: int = 0
    """Changes up to this version are not known any more: who wants to go on from there is told 410."""
    version: int = 100
    changed: Callable[[Change], None] = lambda _: None
    """Is told of each change."""
    uids: Iterator[str] = field(default_factory=lambda: (f"00000000-0000-0000-0000-{n:012d}" for n in range(10**9)))

    # --- calls -------------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, query: Mapping[str, str], body: Json | None) -> Json | str:
        """The answer to one call that is no watch.

        Raises:
            Refused: it says no.
        """
        target = Target.of(path)
        if target.part == "log":
            self._get(target)
            return "the model of a task prints nothing\n"
        match method:
            case "GET" if target.name is None:
                return self._list(target, query)
            case "GET":
                return copy.deepcopy(self._get(target))
            case "POST":
                return self._create(target, body or {})
            case "DELETE":
                return self._delete(target, body or {})
            case "PATCH":
                return self._patch(target, body or {})
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def changes(self, path: str, query: Mapping[str, str], after: int) -> list[Json]:
        """Events of a watch of this collection since a version.

        Raises:
            Refused: it is too long ago.
        """
        if after < self.forgotten:
            raise Refused(410, "Expired", f"too old resource version: {after} ({self.forgotten})")
        target, found = Target.of(path), list[Json]()
        for change in reversed(self.history):
            if change.version <= after:
                break
            if change.kind == target.kind and (event := _event(change, target, query)) is not None:
                found.append(event)
        return found[::-1]

    def bookmark(self, path: str) -> Json:
        """The event by which an idle watch learns how far it has come."""
        kind = _KINDS[Target.of(path).kind]
        metadata = {"resourceVersion": str(self.version)}
        return {"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": "v1", "metadata": metadata}}

    def forget_history(self) -> None:
        """As compaction does it."""
        self.history.clear()
        self.forgotten = self.version

    # --- what other parts of a control plane do ----------------------------------------------------------------------

    def objects(self, kind: str) -> list[Json]:
        """All of a kind, by name. They are not to be changed in place: see `put`."""
        return [self.stored[kind][key] for key in sorted(self.stored[kind])]

    def put(self, kind: str, found: Json) -> None:
        """Store a new or changed object, with the next version. Nothing if it is as it was."""
        key = _key(found)
        before = self.stored[kind].get(key)
        if before is not None and {**found, "metadata": {**found["metadata"], "resourceVersion": ""}} == {
            **before,
            "metadata": {**before["metadata"], "resourceVersion": ""},
        }:
            return
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.stored[kind][key] = found
        self._note(Change(self.version, kind, before, found))

    def remove(self, kind: str, found: Json) -> None:
        """It is gone."""
        before = self.stored[kind].pop(_key(found), None)
        if before is not None:
            self.version += 1
            self._note(Change(self.version, kind, before, None))

    def change(self, kind: str, key: tuple[str, str], edit: Callable[[Json], None]) -> None:
        """Edit one object; nothing if it is not there."""
        before = self.stored[kind].get(key)
        if before is not None:
            after = copy.deepcopy(before)
            edit(after)
            self.put(kind, after)

    def _note(self, change: Change) -> None:
        self.history.append(change)
        if len(self.history) > _MOST_CHANGES:
            self.forgotten = self.history[_MOST_CHANGES // 2 - 1].version
            del self.history[: _MOST_CHANGES // 2]
        self.changed(change)

    # --- the verbs ---------------------------------------------------------------------------------------------------

    def _get(self, target: Target) -> Json:
        found = self.stored[target.kind].get((target.namespace or "", target.name or ""))
        if found is None:
            raise Refused(404, "NotFound", f'{target.kind} "{target.name}" not found')
        return found

    def _list(self, target: Target, query: Mapping[str, str]) -> Json:
        found = [each for each in self.objects(target.kind) if _is_in(each, target, query)]
        metadata: Json = {"resourceVersion": str(self.version)}
        first, limit = 0, int(query.get("limit", 0))
        if "continue" in query:
            version, _, number = query["continue"].partition(":")
            first = int(number)
            if int(version) < self.forgotten:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
        page = found[first : first + limit] if limit else found[first:]
        if first + len(page) < len(found):
            metadata["continue"] = f"{self.version}:{first + len(page)}"
        kind = f"{_KINDS[target.kind]}List"
        return {"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": copy.deepcopy(page)}

    def _create(self, target: Target, body: Json) -> Json:
        made = copy.deepcopy(body)
        name = made["metadata"]["name"]
        if (target.namespace or "", name) in self.stored[target.kind]:
            raise Refused(409, "AlreadyExists", f'{target.kind} "{name}" already exists')
        if target.kind == "pods" and self.refuses_pods:
            words = "exceeded quota: all, requested: pods=1, used: pods=9, limited: pods=9"
            raise Refused(403, "Forbidden", f'pods "{name}" is forbidden: {words}')
        created = {"uid": next(self.uids), "creationTimestamp": timestamp(self.now())}
        if target.namespace is not None:
            made["metadata"]["namespace"] = target.namespace
        made["metadata"] |= created
        if target.kind == "pods":
            made["status"] = {"phase": "Pending"}
        if target.kind == "services" and "clusterIP" not in made["spec"]:
            made["spec"]["clusterIP"] = f"10.0.{self.version // 250 % 250}.{self.version % 250 + 1}"
        self.put(target.kind, made)
        return copy.deepcopy(made)

    def _delete(self, target: Target, options: Json) -> Json:
        found = self._get(target)
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted is not None and wanted != found["metadata"]["uid"]:
            words = (
                f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found['metadata']['uid']}"
            )
            raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {target.kind} "{target.name}": {words}')
        if target.kind != "pods":
            self.remove(target.kind, found)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        grace = options.get("gracePeriodSeconds", found["spec"].get("terminationGracePeriodSeconds", 30))
        is_over = found["status"].get("phase") in ("Succeeded", "Failed")
        if grace == 0 or is_over or not found["spec"].get("nodeName"):
            self.remove("pods", found)
            return copy.deepcopy(found)
        present = found["metadata"].get("deletionGracePeriodSeconds")
        if present is None or grace < present:
            self.change("pods", _key(found), lambda pod: self._mark(pod, int(grace)))
        return copy.deepcopy(self._get(target))

    def _mark(self, pod: Json, grace: int) -> None:
        pod["metadata"]["deletionTimestamp"] = timestamp(self.now() + grace)
        pod["metadata"]["deletionGracePeriodSeconds"] = grace

    def _patch(self, target: Target, body: Json) -> Json:
        found = self._get(target)
        wanted = body.get("metadata", {}).get("uid")
        if wanted is not None and wanted != found["metadata"]["uid"]:
            raise Refused(
                409, "Conflict", f'Operation cannot be fulfilled on {target.kind} "{target.name}": another UID'
            )
        self.put(target.kind, _merged(found, body))
        return copy.deepcopy(self._get(target))


_OTHER_UID = 'Operation cannot be fulfilled on {} "{}": Precondition failed: UID in precondition: {}'
_MOST_CHANGES = 20_000
"""Of which the older half is forgotten then."""


def timestamp(at: float) -> str:
    """As the API writes times: whole seconds."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def encoded(event: Json) -> bytes:
    """One line of a watch."""
    return json.dumps(event).encode() + b"\n"


def _key(found: Json) -> tuple[str, str]:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def _event(change: Change, target: Target, query: Mapping[str, str]) -> Json | None:
    """What a watch of the target shows of the change: an object that leaves its selection is gone for it."""
    was = change.before is not None and _is_in(change.before, target, query)
    is_in = change.after is not None and _is_in(change.after, target, query)
    if is_in:
        return {"type": "MODIFIED" if was else "ADDED", "object": change.after}
    if not was or change.before is None:
        return None
    last = {**change.before, "metadata": {**change.before["metadata"], "resourceVersion": str(change.version)}}
    return {"type": "DELETED", "object": last}


def _is_in(found: Json, target: Target, query: Mapping[str, str]) -> bool:
    if target.namespace is not None and found["metadata"].get("namespace") != target.namespace:
        return False
    labels = found["metadata"].get("labels") or {}
    if not all(_matches(labels, term) for term in query.get("labelSelector", "").split(",") if term):
        return False
    return all(_matches(_fields(found), term) for term in query.get("fieldSelector", "").split(",") if term)


def _fields(found: Json) -> dict[str, str]:
    return {
        "metadata.name": found["metadata"]["name"],
        "metadata.namespace": found["metadata"].get("namespace", ""),
        "spec.nodeName": (found.get("spec") or {}).get("nodeName", ""),
        "status.phase": (found.get("status") or {}).get("phase", ""),
    }


def _matches(values: Mapping[str, str], term: str) -> bool:
    """One term of a selector: `key`, `!key`, `key=value` or `key!=value`, which holds where there is no key, too."""
    if "!=" in term:
        key, _, value = term.partition("!=")
        return values.get(key) != value
    if "=" in term:
        key, _, value = term.partition("=")
        return values.get(key) == value.removeprefix("=")
    return term[1:] not in values if term.startswith("!") else term in values


def _merged(found: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    after = dict(found) if isinstance(found, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = _merged(after.get(name), value)
    return copy.deepcopy(after)
