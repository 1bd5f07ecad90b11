"""Between objects and jobs. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from optimus_contract.codec import write
from optimus_contract.fields import MAX_LABELS, is_label
from optimus_contract.job import JobSpec
from optimus_contract.progress_words import percent_done
from optimus_scheduler.model import Role
from optimus_service.clusters.kubernetes.names import (
    INSTALLATION,
    JOB,
    JOB_ID,
    PREFIX,
    ROLE,
    installation,
    job_id_of,
    job_labels,
    short,
)
from optimus_service.crd.definition import GROUP, KIND, VERSION
from optimus_service.insight.jobs.progress import progress_of
from optimus_service.insight.jobs.why import Explanation, explain
from optimus_service.observe.standstills import Standstills
from optimus_service.requests import checked
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.store.records import DecisionRecord, JobRecord

Json = dict[str, Any]
INVALID = "Invalid"
"""Reason in the status of an object that describes no job, or was changed to something impossible."""
NOT_CHANGED = "NotChanged"
"""Reason in the status of an object whose specification says something that its job cannot follow any more."""
_HIDDEN = ("environment",)
"""Of a job's specification, what may be secret: objects are read by more people than a job's owner."""
_OF_THE_OBJECT = ("name", "labels")
"""What an object says in its metadata."""
MIRRORED = f"{PREFIX}/mirrored"
"""Label of an object that the service made for a job which was submitted by REST."""
_LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One object."""

    name: str
    uid: str
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    mirrors: str | None = None
    """The job that this object was made to show; None: the object itself is the job's origin."""
    installation: str | None = None
    """Which installation its label names: the one that made it, or that its owner wants."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its own: those of the service are left out."""
    resource_version: str = ""
    """Which version of the object this is, by the API server's count."""

    @property
    def claimed_by(self) -> str | None:
        """The installation that took it."""
        found = self.status.get("installation")
        return found if isinstance(found, str) and found else None


def training_job(found: Json) -> TrainingJob | None:
    """None for one that is being deleted."""
    metadata = found["metadata"]
    if metadata.get("deletionTimestamp"):
        return None
    return TrainingJob(
        metadata["name"],
        metadata["uid"],
        metadata.get("generation", 1),
        found.get("spec") or {},
        found.get("status") or {},
        mirrored_job(metadata),
        (metadata.get("labels") or {}).get(INSTALLATION),
        _own_labels(metadata),
        metadata.get("resourceVersion", ""),
    )


def body_of(found: TrainingJob, job: JobRecord | None) -> JobSpec:
    """The job that the object describes.

    Raises:
        ValidationError: (pydantic's) it describes none.
    """
    if found.mirrors is not None and job is not None:
        asked = write(job.asked)
        return checked(JobSpec, {**found.spec, **{name: asked[name] for name in (*_OF_THE_OBJECT, *_HIDDEN)}})
    name = found.name.replace(".", "-")[:_LONGEST_NAME].rstrip("-")
    return checked(JobSpec, {**found.spec, "name": name, "labels": dict(found.labels)})


def _own_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    given = (metadata.get("labels") or {}).items()
    own = sorted((name, value) for name, value in given if not name.startswith(f"{PREFIX}/") and is_label(name, value))
    return dict(own[:MAX_LABELS])


def object_names(job_id: str) -> tuple[str, str]:
    """What the object of a job submitted by REST is called; the second where somebody has taken the first."""
    digest = hashlib.sha256(job_id.encode()).hexdigest()[:8]
    return short(job_id), f"{short(job_id, _LONGEST_NAME - 9)}-{digest}"


def mirrored_job(metadata: Mapping[str, Any]) -> str | None:
    """The job that an object was made for; None for a user's own, one with copied labels included."""
    job_id = job_id_of(metadata)
    if job_id is None or (metadata.get("labels") or {}).get(MIRRORED) != "true":
        return None
    return job_id if metadata["name"] in object_names(job_id) else None


def object_of(job: JobRecord, name: str, settings: KubernetesSettings) -> Json:
    """The object that shows a job which was submitted by REST. It belongs to nothing and says nothing secret."""
    spec = {
        key: value for key, value in job.spec.items() if key not in (*_OF_THE_OBJECT, *_HIDDEN) and value is not None
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {
                **_own_labels({"labels": job.asked.labels}),
                **job_labels(job.id, settings.namespace, settings.instance),
                MIRRORED: "true",
            },
            "annotations": {JOB_ID: job.id},
        },
        "spec": _without_nulls(spec),
    }


def is_ours(found: TrainingJob, settings: KubernetesSettings) -> bool:
    """Whether this installation made the object."""
    return found.installation == installation(settings.namespace, settings.instance)


def _without_nulls(value: Any) -> Any:
    """Fields that are not set, left out as a person would leave them out."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return value


def status_of(
    job: JobRecord,
    decision: DecisionRecord | None,
    generation: int,
    now: float,
    fixed: tuple[str, ...] = (),
    still: Standstills = MappingProxyType({}),
    speed: float | None = None,
) -> Json:
    """What `kubectl get tj` shows of the job."""
    seen, words = progress_of(job, decision, now, None, still, speed), explain(job, decision, now)
    status: Json = {
        "jobId": job.id,
        "state": job.state.value,
        "workers": job.running.workers,
        "servers": job.running.servers,
        "step": job.step,
        "selector": f"{JOB}={short(job.id)},{ROLE}={Role.WORKER.value}",
        "observedGeneration": generation,
        "loss": None if job.loss is None else f"{job.loss:.4g}",
        "progress": None if seen.progress is None else f"{percent_done(seen.progress)}%",
        "eta": None if seen.remaining_seconds is None else age(seen.remaining_seconds.mean),
        "reason": NOT_CHANGED if fixed else words.reason,
        "message": _message(job, words, fixed),
    }
    return status


def invalid_status(
    job: JobRecord,
    decision: DecisionRecord | None,
    message: str,
    generation: int,
    now: float,
    still: Standstills = MappingProxyType({}),
) -> Json:
    """Of an object that was changed to something impossible while its job goes on as it was."""
    return {**status_of(job, decision, generation, now, (), still), "reason": INVALID, "message": message}


def refused_status(message: str, generation: int) -> Json:
    """Of an object that describes no job."""
    return {"state": "refused", "reason": INVALID, "message": message, "observedGeneration": generation}


def age(seconds: float) -> str:
    """As kubectl writes ages: two units at most."""
    whole = max(round(seconds), 0)
    for unit, length, smaller, part in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length}{unit}{rest}{smaller}" if rest else f"{whole // length}{unit}"
    return f"{whole}s"


def differs(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the object's status is to be written anew (a field that is None is not there)."""
    return any(present.get(name) != value for name, value in wanted.items())


def _message(job: JobRecord, words: Explanation, fixed: tuple[str, ...]) -> str:
    if fixed:
        return f"cannot be changed any more: {', '.join(fixed)}; the job goes on as it was submitted"
    if job.failure is not None:
        return job.failure[:1000]
    return words.message
