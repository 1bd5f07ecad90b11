"""The objects that a job has beside its pods. Pure.

::

    ConfigMap job-ID          the anchor: owns everything below and every pod; deleting it removes all of it
    Secret job-ID             the job's token and the variables that its owner set
    Service job-ID            headless: names for the pods where the cluster has DNS (nothing of ours needs them)
    Service job-ID-coordinator   one address for the coordinator, whichever pod it runs in
    PodGroup job-ID           with Volcano only
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimus_scheduler.model import Role
from optimus_service.clusters.kubernetes.manifests import Owner, labelled, secret_environment
from optimus_service.clusters.kubernetes.names import (
    INSTALLATION,
    JOB,
    ROLE,
    anchor_name,
    coordinator_service_name,
    installation,
    short,
)
from optimus_service.settings.kubernetes import KubernetesSettings

Json = dict[str, Any]


def anchor(job_id: str, settings: KubernetesSettings) -> Json:
    """The object that owns all others of the job."""
    metadata = labelled(anchor_name(job_id), job_id, settings)
    about = "Owns every object of this Optimus job; deleting it removes them all."
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job": job_id, "about": about}}


def secret(job_id: str, environment: Mapping[str, str], settings: KubernetesSettings, owner: Owner) -> Json:
    """What the job's tasks are started with and what is nobody else's business."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _owned(anchor_name(job_id), job_id, settings, owner),
        "type": "Opaque",
        "stringData": secret_environment(environment),
    }


def headless_service(job_id: str, settings: KubernetesSettings, owner: Owner) -> Json:
    """DNS names for all tasks: `TASK.job-ID.NAMESPACE.svc`."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned(anchor_name(job_id), job_id, settings, owner),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(job_id, settings),
        },
    }


def coordinator_service(job_id: str, settings: KubernetesSettings, owner: Owner) -> Json:
    """The address that servers and workers dial; it stays when the coordinator is replaced."""
    port = {"name": "control", "port": settings.coordinator_port, "targetPort": settings.coordinator_port}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _owned(coordinator_service_name(job_id), job_id, settings, owner),
        "spec": {
            "ports": [{**port, "protocol": "TCP"}],
            "selector": {**_selector(job_id, settings), ROLE: Role.COORDINATOR.value},
        },
    }


def pod_group(job_id: str, minimum_pods: int, settings: KubernetesSettings, owner: Owner) -> Json:
    """Volcano's: no pod is bound before so many can be."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": _owned(anchor_name(job_id), job_id, settings, owner),
        "spec": {"minMember": minimum_pods, "queue": settings.queue},
    }


def _selector(job_id: str, settings: KubernetesSettings) -> dict[str, str]:
    return {INSTALLATION: installation(settings.namespace, settings.instance), JOB: short(job_id)}


def _owned(name: str, job_id: str, settings: KubernetesSettings, owner: Owner) -> Json:
    return {**labelled(name, job_id, settings), "ownerReferences": [owner.reference()]}
