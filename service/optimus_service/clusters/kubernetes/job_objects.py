"""A job's objects beside its pods: made before its first pod, removed after its last."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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


class JobObjects:
    """Makes and removes them. Different jobs may be asked for at a time; the owner has a lock for each job.

    Every method raises `ClusterUnavailable` and `ApiRefused` as the gateway does.
    """

    def __init__(
        self, gateway: Gateway, settings: KubernetesSettings, owner_of: Callable[[str], Owner | None] = lambda _: None
    ) -> None:
        """`owner_of`: what the job's anchor itself belongs to (its TrainingJob)."""
        self._gateway = gateway
        self._settings = settings
        self._owner_of = owner_of
        self._namespace = f"/api/v1/namespaces/{settings.namespace}"
        self.anchors: Mirror[Anchor] = Mirror(anchor_of)
        self._made: dict[str, Owner] = {}
        """Jobs whose anchor and services were seen or made by this process."""
        self._with_secret: set[str] = set()
        self._addresses: dict[str, str] = {}
        self._removed: set[str] = set()

    def known(self) -> dict[str, float]:
        """Jobs that have an anchor: when it was made, by the API server's clock."""
        return {anchor.job_id: anchor.created_at for anchor in self.anchors.values()}

    def ensure(self, job_id: str, environment: Mapping[str, str]) -> Owner:
        """All objects that the job's pods need are there; their owner."""
        owner = self._ensure_services(job_id)
        if job_id not in self._with_secret:
            self._create("secrets", job_manifests.secret(job_id, environment, self._settings, owner))
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
        if made is not None and (present is None or present.uid == made.uid) and job_id in self._addresses:
            return made
        settings = self._settings
        anchor = self._create("configmaps", job_manifests.anchor(job_id, settings, self._owner_of(job_id)))
        owner = Owner(anchor["metadata"]["name"], anchor["metadata"]["uid"])
        self._create("services", job_manifests.headless_service(job_id, settings, owner))
        service = self._create("services", job_manifests.coordinator_service(job_id, settings, owner))
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

    def _create(self, kind: str, body: Json) -> Json:
        return self._create_at(f"{self._namespace}/{kind}", body)

    def _create_at(self, path: str, body: Json) -> Json:
        """The object as it is: made now, or there before."""
        try:
            return self._gateway.create(path, body)
        except ApiRefused as error:
            if not (error.is_conflict and error.reason == "AlreadyExists"):
                raise
        if path.endswith("/secrets"):
            return body  # reading secrets is not allowed to us, and nothing of it is needed
        return self._gateway.get(f"{path}/{body['metadata']['name']}")

    def _delete(self, path: str) -> None:
        try:
            self._gateway.delete(path, {"propagationPolicy": "Background"})
        except ApiRefused as error:
            if not error.is_missing:
                raise
