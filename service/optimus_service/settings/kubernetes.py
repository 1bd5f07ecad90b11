"""What an operator decides about a Kubernetes cluster. Part of the one settings object: `OPTIMUS_KUBERNETES__*`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuType(_Part):
    """How one type of GPU is asked for."""

    resource: str = Field(default="nvidia.com/gpu", description="extended resource of the device plugin")
    labels: dict[str, str] = Field(
        default_factory=dict, description="labels of the nodes that have it; none: every node with the resource"
    )


class KubernetesSettings(_Part):
    """Every field is an environment variable: `OPTIMUS_KUBERNETES__NAMESPACE` and so on; maps and lists as JSON."""

    namespace: str = Field(default="optimus", pattern=NAME, max_length=63, description="where task pods are made")
    instance: str = Field(
        default="optimus", pattern=NAME, max_length=63, description="tells several installations of a namespace apart"
    )
    kubeconfig: Path | None = Field(default=None, description="default: the pod's own service account")
    context: str | None = Field(default=None, description="of the kubeconfig; default: its current one")
    node_selector: dict[str, str] = Field(default_factory=dict, description="labels of the nodes that may be used")

    # --- task pods
    image: str = Field(default="optimus-worker:latest", min_length=1, description="of task pods")
    server_image: str | None = Field(
        default=None, min_length=1, description="of servers and coordinators, which need no PyTorch; default: `image`"
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    command: tuple[str, ...] = Field(
        default=("python", "-m", "optimus_workers", "{role}"), min_length=1, description="{role} is replaced"
    )
    service_account: str = Field(default="default", description="of task pods; they get no token of it")
    priority_class: str | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = Field(default=(), description="more volumes of task pods, as in a pod")
    volume_mounts: tuple[dict[str, Any], ...] = ()
    jobs_claim: str | None = Field(
        default=None, description="persistent volume claim (ReadWriteMany) for journals and checkpoints"
    )
    jobs_volume: dict[str, Any] | None = Field(
        default=None, description="another volume source for them, as in a pod, e.g. {hostPath: {path: /srv/jobs}}"
    )
    jobs_directory: str = Field(default="/optimus/jobs", pattern="^/", description="where they are mounted")
    run_as_user: int = Field(default=10_001, ge=1)
    run_as_group: int = Field(default=10_001, ge=1)
    cpu_limits: bool = Field(default=True, description="whether tasks may not use more CPU than they asked for")
    coordinator_cpu: float = Field(default=0.0, ge=0, le=64, description="requested for a job's coordinator")
    coordinator_memory_bytes: int = Field(default=128 * 2**20, ge=0, le=2**40)
    coordinator_port: int = Field(default=7070, ge=1024, le=65_535)
    shared_memory_bytes: int = Field(default=2**30, ge=0, le=2**40, description="size of /dev/shm at most")
    grace_seconds: int = Field(default=60, ge=1, le=3600, description="time that a pod has to leave after SIGTERM")
    gpu_types: dict[str, GpuType] = Field(default_factory=lambda: {"gpu": GpuType()})
    runtime_class: str | None = None
    scheduler_name: str | None = Field(default=None, description="default: the cluster's own")
    gang: Literal["none", "kueue", "volcano"] = Field(default="none", description="hand-over, see docs/kubernetes.md")
    queue: str = Field(default="default", description="of Kueue or Volcano")
    labels: dict[str, str] = Field(default_factory=dict, description="more labels of task pods")
    annotations: dict[str, str] = Field(default_factory=dict, description="more annotations of task pods")

    # --- reactions
    unschedulable_seconds: Seconds = Field(default=60.0, description="then a pod without room is placed anew")
    start_seconds: Seconds = Field(default=300.0, description="then a pod whose container cannot start has failed")
    node_lost_seconds: Seconds = Field(default=30.0, description="then tasks of a node that is not ready are lost")
    orphan_seconds: Seconds = Field(default=120.0, description="age at which objects of no known job are removed")
    keep_pods_seconds: float = Field(
        default=86_400.0, ge=0, le=1e9, description="finished pods, and so their logs, are deleted later"
    )

    # --- traffic
    call_seconds: Seconds = Field(default=15.0, description="longest wait for one answer of the API server")
    starts_at_once: int = Field(default=16, ge=1, le=64, description="pods that are asked for at the same time")
    watch_seconds: int = Field(default=240, ge=5, le=3600, description="after which a watch is renewed")
    training_jobs: bool = Field(
        default=False, description="jobs are TrainingJob objects as well: taken from objects, and shown as objects"
    )
    keep_objects_seconds: float = Field(
        default=86_400.0, ge=0, le=1e9, description="objects made for jobs of the REST API are deleted so long after"
    )

    @property
    def keeps_jobs(self) -> bool:
        """Whether journals and checkpoints outlive a job's pods."""
        return self.jobs_claim is not None or self.jobs_volume is not None
