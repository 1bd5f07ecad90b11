"""What a task is started with (docs/protocol.md, section 1)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimus_scheduler.model import JobSpec, PlacedTask, Resources, Role
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.origins import ORIGIN
from optimus_service.observe.spec import environment_of, on_type, spec_of
from optimus_service.process.job_tokens import JobTokens
from optimus_service.store.records import JobRecord


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What all launches of one service have in common."""

    service_url: str
    """How tasks reach the service."""
    jobs_directory: Path
    """Each job has a directory of its own in it."""
    tokens: JobTokens
    local: bool = True
    """Whether tasks see this machine's files: then the job's directory is made here."""

    def launch(self, task: PlacedTask, job: JobRecord, coordinator_address: str) -> TaskLaunch:
        """Everything that the cluster needs to start `task`. Makes the job's directory if tasks see it.

        Raises:
            UnreadableSpecification: of a job that was in no snapshot.
        """
        spec = spec_of(job)
        directory = self.jobs_directory / job.id
        if self.local:
            directory = directory.resolve()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = {
            "OPTIMUS_SERVICE_URL": self.service_url,
            "OPTIMUS_JOB_ID": job.id,
            "OPTIMUS_JOB_TOKEN": self.tokens.issue(job.id, job.token_nonce),
            "OPTIMUS_TASK_NAME": task.key.name,
            "OPTIMUS_TASK_RANK": str(task.key.rank),
            "OPTIMUS_COORDINATOR_ADDRESS": coordinator_address,
            "OPTIMUS_JOB_DIRECTORY": str(directory),
            "OPTIMUS_JOB_SPEC": json.dumps(job.spec),
            "OPTIMUS_ATTEMPT": str(job.attempt),
        }
        from_job = job.spec.get("from_job")
        if from_job is not None:
            ours["OPTIMUS_ORIGIN"] = self._origin(directory, job.spec.get("checkpoint_url"), str(from_job))
        resources = _resources(task.key.role, spec, job.wanted.gpu_type)
        for gpu_type, count in resources.gpus.items():
            ours |= {"OPTIMUS_GPU_TYPE": gpu_type, "OPTIMUS_GPUS": str(count)}
        return TaskLaunch(
            key=task.key,
            node=task.node,
            resources=resources,
            environment={**environment_of(job), **ours},
            working_directory=job.spec.get("working_directory") or str(directory),
            **_of_script(task.key.role, job),
            from_job=from_job if job.spec.get("checkpoint_url") is None else None,
        )

    def _origin(self, directory: Path, url: object, from_job: str) -> str:
        """Where tasks read the checkpoints of the job that theirs starts from."""
        if url is not None:
            return f"{str(url).rstrip('/')}/{from_job}"
        return str(directory / ORIGIN if self.local else self.jobs_directory / from_job / "checkpoints")


def _of_script(role: Role, job: JobRecord) -> dict[str, Any]:
    if role is not Role.WORKER or not job.spec.get("command"):
        return {}
    return {"image": job.spec.get("image"), "stop_seconds": job.spec.get("stop_seconds")}


def _resources(role: Role, spec: JobSpec, gpu_type: str | None) -> Resources:
    """A coordinator is not allocated: it takes next to nothing."""
    match role:
        case Role.WORKER:
            return on_type(spec.worker.resources, gpu_type)
        case Role.SERVER:
            return on_type(spec.server.resources, gpu_type)
        case Role.COORDINATOR:
            return Resources()
