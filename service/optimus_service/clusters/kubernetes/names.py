"""What our objects are called, and the labels by which they are found again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from optimus_scheduler.model import Role, TaskKey

_LONGEST = 63
"""Of a label's value and of a service's name."""
PREFIX = "optimus.dev"
INSTALLATION = f"{PREFIX}/installation"
JOB = f"{PREFIX}/job"
ROLE = f"{PREFIX}/role"
RANK = f"{PREFIX}/rank"
INCARNATION = f"{PREFIX}/incarnation"
FORGOTTEN = f"{PREFIX}/forgotten"
"""On a finished pod that is kept for its log only."""
JOB_ID = f"{PREFIX}/job-id"
"""Annotation: the whole job id, of which the label may hold a shortened form."""
MANAGED_BY = "app.kubernetes.io/managed-by"
INSTANCE = "app.kubernetes.io/instance"
CONTAINER = "task"


def short(job_id: str, longest: int = _LONGEST) -> str:
    """The job id if it is short enough, else its beginning and a hash of the whole."""
    if len(job_id) <= longest:
        return job_id
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:10]
    return f"{job_id[: longest - 11].rstrip('-')}-{digest}"


def anchor_name(job_id: str) -> str:
    """Of the object that owns all others of a job, of its secret and of its headless service."""
    return f"job-{short(job_id, _LONGEST - 16)}"


def coordinator_service_name(job_id: str) -> str:
    return f"{anchor_name(job_id)}-coordinator"


def installation(namespace: str, instance: str) -> str:
    """One value that tells our pods from those of every other installation in the cluster."""
    return short(f"{namespace}.{instance}")


def job_labels(job_id: str, namespace: str, instance: str) -> dict[str, str]:
    """Of every object of a job."""
    return {
        INSTALLATION: installation(namespace, instance),
        "app.kubernetes.io/name": "optimus",
        INSTANCE: instance,
        MANAGED_BY: "optimus",
        "app.kubernetes.io/part-of": short(job_id),
        JOB: short(job_id),
    }


def task_labels(key: TaskKey, namespace: str, instance: str) -> dict[str, str]:
    """Of a task's pod."""
    return {
        **job_labels(key.job_id, namespace, instance),
        "app.kubernetes.io/component": key.role.value,
        ROLE: key.role.value,
        RANK: str(key.rank),
        INCARNATION: str(key.incarnation),
    }


def ours(namespace: str, instance: str) -> str:
    """Label selector of everything that this installation made."""
    return f"{MANAGED_BY}=optimus,{INSTALLATION}={installation(namespace, instance)},{JOB}"


def job_id_of(metadata: Mapping[str, Any]) -> str | None:
    """The job that an object belongs to; None if it is none of ours."""
    found = (metadata.get("annotations") or {}).get(JOB_ID)
    return found if isinstance(found, str) and found else None


def task_key_of(metadata: Mapping[str, Any]) -> TaskKey | None:
    """The task that a pod is; None if it is none of ours (somebody may have copied our labels)."""
    job_id, labels = job_id_of(metadata), metadata.get("labels") or {}
    rank, incarnation = str(labels.get(RANK, "")), str(labels.get(INCARNATION, ""))
    if job_id is None or labels.get(ROLE) not in set(Role) or not (rank.isdecimal() and incarnation.isdecimal()):
        return None
    key = TaskKey(job_id, Role(labels[ROLE]), int(rank), int(incarnation))
    return key if metadata.get("name") == pod_name(key) else None


def pod_name(key: TaskKey) -> str:
    """Unique and stable for (job, role, rank, incarnation)."""
    return key.name
