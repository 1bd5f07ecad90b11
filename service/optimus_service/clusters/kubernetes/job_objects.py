"""A job's objects beside its pods: made before its first pod, removed after its last."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optimus_service.clusters.kubernetes import job_manifests
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.clusters.kubernetes.manifests import Owner
from optimus_service.clusters.kubernetes.mirror import Mirror
from optimus_service.clusters.kubernetes.names import anchor_name, coordinator_service_name, job_id_of
from optimus_service.clusters.kubernetes.observed import posix
from optimus_service.settings.kubernetes import KubernetesSettings

Json = dict[str, Any]
_MOST_GONE = 20_000
"""Anchors that are gone and remembered."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """The object that owns all others of a job."""

    job_id: str
    uid: str
    created_at: float


def anchor_of(found: Json) -> Anchor | None:
    """None if it only looks like one of ours."""
    metadata = found["metadata"]
    job_id = job_id_of(metadata)
    if job_id is None or metadata["name"] != anchor_name(job_id) or metadata.get("deletionTimestamp"):
        return None
    return Anchor(job_id, metadata["uid"], posix(metadata["creationTimestamp"]) or 0.0)


class AnchorMirror(Mirror[Anchor]):
    """Anchors, and which of them were there and are gone: what belonged to these is gone as well, or about to be."""

    def __init__(self) -> None:
        super().__init__(anchor_of)
        self._gone: OrderedDict[str, None] = OrderedDict()

    def replace(self, objects: Iterable[Json], listed_at: float) -> None:
        with self._lock:
            before = set(self._objects)
            super().replace(objects, listed_at)
            for uid in sorted(before - set(self._objects)):
                self._bury(uid)

    def put(self, found: Json) -> None:
        with self._lock:
            super().put(found)
            if found["metadata"].get("deletionTimestamp"):
                self._bury(found["metadata"]["uid"])

    def remove(self, found: Json) -> None:
        with self._lock:
            super().remove(found)
            self._bury(found["metadata"]["uid"])

    def is_gone(self, uid: str) -> bool:
        with self._lock:
            return uid in self._gone

    def _bury(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)


class JobObjects:
    """Makes and removes them. Different jobs may be asked for at a time; the owner has a lock for each job.

    Every method raises `ClusterUnavailable` and `ApiRefused` as the gateway does.
    """

    def __init__(self, gateway: Gateway, settings: KubernetesSettings) -> None:
        self._gateway = gateway
        self._settings = settings
        self._namespace = f"/api/v1/namespaces/{settings.namespace}"
        self.anchors = AnchorMirror()
        self._made: dict[str, Owner] = {}
        """Jobs whose anchor and services were seen or made by this process."""
        self._with_secret: set[str] = set()
        self._with_new_anchor: set[str] = set()
        """Jobs whose anchor this process has made, and not yet all that belongs to it."""
        self._addresses: dict[str, str] = {}
        self._removed: set[str] = set()

    def known(self) -> dict[str, float]:
        """Jobs that have an anchor: when it was made, by the API server's clock."""
        return {anchor.job_id: anchor.created_at for anchor in self.anchors.values()}

    def ensure(self, job_id: str, environment: Mapping[str, str]) -> Owner:
        """All objects that the job's pods need are there; their owner."""
        owner = self._ensure_services(job_id)
        if job_id not in self._with_secret:
            secret = job_manifests.secret(job_id, environment, self._settings, owner)
            self._create("secrets", secret, is_ours=job_id not in self._with_new_anchor)
            self._with_new_anchor.discard(job_id)
            if self._settings.gang == "volcano":
                self._ensure_pod_group(job_id, environment, owner)
            self._with_secret.add(job_id)
        return owner

    def coordinator_address(self, job_id: str) -> str:
        """`host:port` that reaches the job's coordinator, whichever pod it runs in."""
        self._ensure_services(job_id)
        return self._addresses[job_id]

    def lost(self, job_id: str) -> None:
        """Something of it is not there (any more): look again the next time."""
        self._made.pop(job_id, None)
        self._with_secret.discard(job_id)
        self._with_new_anchor.discard(job_id)

    def remove(self, job_id: str, *, keep_anchor: bool) -> None:
        """The job is over. While its finished pods are kept for their logs, so is their owner."""
        if job_id not in self._removed:
            self._delete(f"{self._namespace}/secrets/{anchor_name(job_id)}")
            self._delete(f"{self._namespace}/services/{anchor_name(job_id)}")
            self._delete(f"{self._namespace}/services/{coordinator_service_name(job_id)}")
            self._removed.add(job_id)
        if not keep_anchor:
            self._delete(f"{self._namespace}/configmaps/{anchor_name(job_id)}")
            self._removed.discard(job_id)
        self.lost(job_id)
        self._addresses.pop(job_id, None)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _ensure_services(self, job_id: str) -> Owner:
        present = next((anchor for anchor in self.anchors.values() if anchor.job_id == job_id), None)
        made = self._made.get(job_id)
        is_known = made is not None and not self.anchors.is_gone(made.uid)
        if made is not None and is_known and (present is None or present.uid == made.uid) and job_id in self._addresses:
            return made
        settings = self._settings
        anchor, is_new = self._create("configmaps", job_manifests.anchor(job_id, settings))
        owner = Owner(anchor["metadata"]["name"], anchor["metadata"]["uid"])
        if is_new:
            self._with_new_anchor.add(job_id)
        is_ours = job_id not in self._with_new_anchor
        self._create("services", job_manifests.headless_service(job_id, settings, owner), is_ours=is_ours)
        named = job_manifests.coordinator_service(job_id, settings, owner)
        service, _ = self._create("services", named, is_ours=is_ours)
        host = service["spec"]["clusterIP"]
        self._addresses[job_id] = f"{f'[{host}]' if ':' in host else host}:{settings.coordinator_port}"
        self._made[job_id] = owner
        self._with_secret.discard(job_id)
        self._removed.discard(job_id)
        return owner

    def _ensure_pod_group(self, job_id: str, environment: Mapping[str, str], owner: Owner) -> None:
        spec = json.loads(environment["OPTIMUS_JOB_SPEC"])
        minimum = int(spec["workers"]["min"]) + int(spec["servers"]["min"]) + 1  # and the coordinator
        body = job_manifests.pod_group(job_id, minimum, self._settings, owner)
        path = f"/apis/{body['apiVersion']}/namespaces/{self._settings.namespace}/podgroups"
        self._create_at(path, body)

    def _create(self, kind: str, body: Json, *, is_ours: bool = True) -> tuple[Json, bool]:
        return self._create_at(f"{self._namespace}/{kind}", body, is_ours=is_ours)

    def _create_at(self, path: str, body: Json, *, is_ours: bool = True) -> tuple[Json, bool]:
        """The object as it is, and whether it was made now.

        `is_ours`: one that is there belongs to the job's anchor. Otherwise it belongs to an anchor that is gone, and
        follows it sooner or later: another takes its place.
        """
        try:
            return self._gateway.create(path, body), True
        except ApiRefused as error:
            if not (error.is_conflict and error.reason == "AlreadyExists"):
                raise
        if not is_ours:
            self._delete(f"{path}/{body['metadata']['name']}")
            return self._gateway.create(path, body), True
        if path.endswith("/secrets"):
            return body, False  # reading secrets is not allowed to us, and nothing of it is needed
        return self._gateway.get(f"{path}/{body['metadata']['name']}"), False

    def _delete(self, path: str) -> None:
        try:
            self._gateway.delete(path, {"propagationPolicy": "Background"})
        except ApiRefused as error:
            if not error.is_missing:
                raise
