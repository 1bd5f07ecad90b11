"""From a wanted task to the pod that runs it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optimus_scheduler.model import Role
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.kubernetes.names import (
    CONTAINER,
    JOB_ID,
    anchor_name,
    job_labels,
    pod_name,
    task_labels,
)
from optimus_service.clusters.kubernetes.quantities import cpu_text
from optimus_service.settings.kubernetes import KubernetesSettings

Json = dict[str, Any]
_PLAIN = (
    "OPTIMUS_TASK_NAME",
    "OPTIMUS_TASK_RANK",
    "OPTIMUS_COORDINATOR_ADDRESS",
    "OPTIMUS_SERVICE_URL",
    "OPTIMUS_ATTEMPT",
)
"""Variables that differ between a job's tasks or in time and are no secrets; the others come from the job's secret."""
_AGENT, _AGENT_DIRECTORY = "optimus-agent", "/optimus-agent"
_AGENT_LEAVES_SECONDS = 15.0
"""What the agent needs beyond the time that its script may take."""
_TEMPORARY, _MEMORY = "/tmp", "/dev/shm"  # noqa: S108 - paths inside the container, on volumes of its own


@dataclass(frozen=True, slots=True)
class Owner:
    """The object whose deletion takes ours with it."""

    name: str
    uid: str
    api_version: str = "v1"
    kind: str = "ConfigMap"

    def reference(self) -> Json:
        # Not a controller reference: those let no other controller adopt the pod, and nobody waits for its deletion.
        return {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid}


def pod(launch: TaskLaunch, settings: KubernetesSettings, owner: Owner) -> Json:
    """The manifest of one task's pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(launch.key),
            "namespace": settings.namespace,
            "labels": {
                **settings.labels,
                **task_labels(launch.key, settings.namespace, settings.instance),
                **_gang_labels(settings),
            },
            "annotations": {
                **settings.annotations,
                **_gang_annotations(launch.key.job_id, settings),
                JOB_ID: launch.key.job_id,
            },
            "ownerReferences": [owner.reference()],
        },
        "spec": _spec(launch, settings),
    }


def _spec(launch: TaskLaunch, settings: KubernetesSettings) -> Json:
    optional: Mapping[str, Any] = {
        "priorityClassName": settings.priority_class,
        "runtimeClassName": settings.runtime_class,
        "schedulerName": settings.scheduler_name or ("volcano" if settings.gang == "volcano" else None),
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets] or None,
    }
    return {
        "restartPolicy": "Never",  # a replacement is another task, with the next incarnation
        "terminationGracePeriodSeconds": _grace_seconds(launch, settings),
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # variables of other services would look like our settings
        "subdomain": anchor_name(launch.key.job_id),
        "affinity": {"nodeAffinity": _affinity(launch, settings)},
        "tolerations": _tolerations(settings),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as_user,
            "runAsGroup": settings.run_as_group,
            "fsGroup": settings.run_as_group,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({} if launch.image is None else {"initContainers": [_agent_container(settings)]}),
        "containers": [_container(launch, settings)],
        "volumes": [*_volumes(settings), *([] if launch.image is None else [{"name": _AGENT, "emptyDir": {}}])],
        **{name: value for name, value in optional.items() if value is not None},
    }


def _grace_seconds(launch: TaskLaunch, settings: KubernetesSettings) -> int:
    """A script may take longer to save than other tasks take to leave."""
    return max(settings.grace_seconds, math.ceil((launch.stop_seconds or 0.0) + _AGENT_LEAVES_SECONDS))


def _agent_container(settings: KubernetesSettings) -> Json:
    """Copies the agent of scripts from the service's own image, so that a job's image need not have it."""
    limits = {"cpu": "500m", "memory": "128Mi"}
    return {
        "name": "agent",
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "optimus_workers.script.bundle", _AGENT_DIRECTORY],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": limits},
        "securityContext": _unprivileged(),
        "volumeMounts": [{"name": _AGENT, "mountPath": _AGENT_DIRECTORY}],
    }


def _unprivileged() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _container(launch: TaskLaunch, settings: KubernetesSettings) -> Json:
    # Only workers load the user's code; other images need not have its directory.
    is_worker = launch.key.role is Role.WORKER
    directory = launch.working_directory if is_worker else None
    command = [part.replace("{role}", launch.key.role.value) for part in settings.command]
    if launch.image is not None:
        command = ["python3", f"{_AGENT_DIRECTORY}/run.py", launch.key.role.value]
    return {
        "name": CONTAINER,
        "image": launch.image or (settings.image if is_worker else settings.server_image or settings.image),
        "imagePullPolicy": settings.image_pull_policy,
        "command": command,
        "workingDir": directory or job_directory(launch.key.job_id, settings),
        "env": [{"name": name, "value": value} for name, value in sorted(_plain(launch, settings).items())],
        "envFrom": [{"secretRef": {"name": anchor_name(launch.key.job_id)}}],
        "resources": _resources(launch, settings),
        "securityContext": _unprivileged(),
        "volumeMounts": _mounts(launch, settings),
        # What a failed container printed last is in its status, even when its log is gone.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def job_directory(job_id: str, settings: KubernetesSettings) -> str:
    """Where a job's journal and checkpoints are, as its tasks see it."""
    return f"{settings.jobs_directory.rstrip('/')}/{job_id}"


def secret_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What goes into the job's secret: the token, and whatever its owner wrote."""
    return {name: value for name, value in environment.items() if name not in _PLAIN}


def _plain(launch: TaskLaunch, settings: KubernetesSettings) -> dict[str, str]:
    given = launch.environment
    found = {name: value for name, value in _defaults(launch).items() if name not in given}
    found |= {name: given[name] for name in _PLAIN if name in given}
    if launch.key.role is Role.COORDINATOR:
        # It listens on its own address, which is not known before it runs; the others dial the job's service.
        everywhere = "[::]" if given.get("OPTIMUS_COORDINATOR_ADDRESS", "").startswith("[") else "0.0.0.0"  # noqa: S104
        found["OPTIMUS_COORDINATOR_ADDRESS"] = f"{everywhere}:{settings.coordinator_port}"
    return found


def _defaults(launch: TaskLaunch) -> dict[str, str]:
    threads = str(max(1, int(launch.resources.cpu)))
    found = {"HOME": _TEMPORARY, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": threads}
    if not any(launch.resources.gpus.values()):
        # Images made for GPUs show all of a node's GPUs to containers that did not ask for any.
        found["NVIDIA_VISIBLE_DEVICES"] = "void"
    return found


def _resources(launch: TaskLaunch, settings: KubernetesSettings) -> Json:
    wanted = launch.resources
    cpu, memory = wanted.cpu, wanted.memory_bytes
    if launch.key.role is Role.COORDINATOR:
        cpu, memory = settings.coordinator_cpu, settings.coordinator_memory_bytes
    gpus = {
        settings.gpu_types[kind].resource: str(count)
        for kind, count in sorted(wanted.gpus.items())
        if count and kind in settings.gpu_types
    }
    requests = {"cpu": cpu_text(cpu), "memory": str(memory), **gpus}
    limits = {"memory": str(memory), **gpus}
    if settings.cpu_limits and cpu > 0:
        limits["cpu"] = requests["cpu"]
    # No memory limit of 0: that would be a container that cannot run.
    return {"requests": requests, "limits": {name: text for name, text in limits.items() if text != "0"}}


def _affinity(launch: TaskLaunch, settings: KubernetesSettings) -> Json:
    """This node and no other; the cluster's scheduler still checks that there is room."""
    labels = dict(settings.node_selector)
    for kind, count in launch.resources.gpus.items():
        if count and kind in settings.gpu_types:
            labels |= settings.gpu_types[kind].labels
    term: Json = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [launch.node]}]}
    if labels:
        term["matchExpressions"] = [
            {"key": key, "operator": "In", "values": [value]} for key, value in sorted(labels.items())
        ]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def _tolerations(settings: KubernetesSettings) -> list[Json]:
    """The operator's, and a short patience with nodes that are gone: the cluster's own is five minutes."""
    gone = [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": int(settings.node_lost_seconds),
        }
        for what in ("not-ready", "unreachable")
    ]
    return [*settings.tolerations, *gone]


def _volumes(settings: KubernetesSettings) -> list[Json]:
    jobs: Json = settings.jobs_volume or {"emptyDir": {}}
    if settings.jobs_claim is not None:
        jobs = {"persistentVolumeClaim": {"claimName": settings.jobs_claim}}
    memory: Json = {"medium": "Memory", "sizeLimit": str(settings.shared_memory_bytes)}
    return [
        {"name": "jobs", **jobs},
        {"name": "temporary", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": memory},
        *settings.volumes,
    ]


def _mounts(launch: TaskLaunch, settings: KubernetesSettings) -> list[Json]:
    job_id, origin = launch.key.job_id, launch.from_job
    origins: list[Json] = []
    agent = [] if launch.image is None else [{"name": _AGENT, "mountPath": _AGENT_DIRECTORY, "readOnly": True}]
    if origin is not None:
        checkpoints = f"{job_directory(origin, settings)}/checkpoints"
        inside = f"{origin}/checkpoints"
        origins = [{"name": "jobs", "mountPath": checkpoints, "subPath": inside, "readOnly": True}]
    return [
        # A job sees its own directory only, and the checkpoints that it starts from.
        {"name": "jobs", "mountPath": job_directory(job_id, settings), "subPath": job_id},
        *origins,
        *agent,
        {"name": "temporary", "mountPath": _TEMPORARY},
        {"name": "shared-memory", "mountPath": _MEMORY},
        *settings.volume_mounts,
    ]


def _gang_labels(settings: KubernetesSettings) -> dict[str, str]:
    return {"kueue.x-k8s.io/queue-name": settings.queue} if settings.gang == "kueue" else {}


def _gang_annotations(job_id: str, settings: KubernetesSettings) -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": anchor_name(job_id)} if settings.gang == "volcano" else {}


def labelled(name: str, job_id: str, settings: KubernetesSettings) -> Json:
    """Metadata of one of a job's objects that is no pod."""
    return {
        "name": name,
        "namespace": settings.namespace,
        "labels": job_labels(job_id, settings.namespace, settings.instance),
        "annotations": {JOB_ID: job_id},
    }
