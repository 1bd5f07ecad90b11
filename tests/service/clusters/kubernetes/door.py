"""What tests of the second door have in their hands: a controller, its database, and kubectl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.service.clusters.kubernetes.control_plane import ControlPlane
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, wait_for

from optimus_contract.job import JobSpec
from optimus_scheduler.model import JobState, Node, Resources
from optimus_service.api.jobs.submission import submit
from optimus_service.api.services import Services
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters.fake import FakeCluster
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.clusters.kubernetes.names import installation
from optimus_service.crd.controller import TrainingJobController
from optimus_service.crd.translate import TrainingJob
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.requests import checked
from optimus_service.settings import Settings
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import Repository

REPOSITORY = Path(__file__).resolve().parents[4]
EXAMPLE = yaml.safe_load((REPOSITORY / "examples/kubernetes/digits-mlp.yaml").read_text())
Json = dict[str, Any]


@dataclass
class Door:
    """A controller, its database, and kubectl."""

    harness: KubernetesHarness
    services: Services
    control_plane: ControlPlane
    rounds: list[str]
    settings: KubernetesSettings

    def __post_init__(self) -> None:
        self.repository = self.services.repository
        self.controller = self.open()

    def open(self) -> TrainingJobController:
        """A controller that has seen all objects; as after a restart."""
        controller = TrainingJobController(self.harness.admin, self.settings, self.services)
        controller._watcher.start()
        wait_for("objects are watched", lambda: controller.problem is None)
        return controller

    def restart(self, **settings: Any) -> None:
        self.close()
        self.settings = KubernetesSettings.model_validate({**self.settings.model_dump(), **settings})
        self.controller = self.open()

    def close(self) -> None:
        self.controller._watcher.close()

    def submit(self, **spec: Any) -> JobRecord:
        """As `POST /v1/jobs` does."""
        body = checked(JobSpec, {"name": "by-rest", **EXAMPLE["spec"], **spec})
        job, _ = submit(self.services, TaskChecks(self.services.cluster.check_task), body, None)
        return job

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.control_plane.kubectl("-n", self.harness.namespace, *arguments, stdin=stdin)

    @property
    def identity(self) -> str:
        """What this installation calls itself in objects."""
        return installation(self.settings.namespace, self.settings.instance)

    def apply(self, name: str = "digits-mlp", labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        metadata = {"name": name, "labels": dict(labels or {})}
        found = {**EXAMPLE, "metadata": metadata, "spec": {**EXAMPLE["spec"], **spec}}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(found))

    def seen(self, name: str) -> TrainingJob:
        """The object as the controller knows it."""
        found: TrainingJob = wait_for(
            f"{name} is seen",
            lambda: next((each for each in self.controller._objects.values() if each.name == name), None),
        )
        return found

    def status(self, name: str = "digits-mlp") -> Json:
        return next((each.get("status") or {} for each in self.objects() if each["metadata"]["name"] == name), {})

    def objects(self) -> list[Json]:
        """All there are. (Not by kubectl, which takes half a second each time.)"""
        path = f"/apis/optimus.dev/v1alpha1/namespaces/{self.harness.namespace}/trainingjobs"
        found: list[Json] = self.harness.admin.get(path)["items"]
        return found

    def wait_for_status(self, name: str = EXAMPLE["metadata"]["name"], **wanted: Any) -> Json:
        def reached() -> Json | None:
            self.controller.sync()
            found = self.status(name)
            return found if wanted.items() <= found.items() else None

        status: Json = wait_for(f"status {wanted}", reached)
        return status

    def wait_for_state(self, job_id: str, state: JobState) -> None:
        def reached() -> bool:
            self.controller.sync()
            return self.repository.jobs.get(job_id).state is state

        wait_for(f"{job_id} is {state}", reached)


def services_of(repository: Repository, directory: Path, rounds: list[str]) -> Services:
    """A service that has a database and decides nothing."""
    return Services(
        settings=Settings(data_directory=directory),
        repository=repository,
        cluster=FakeCluster([Node("node-0", Resources(16.0, 2**36))]),
        long_polls=LongPolls(repository.wanted.generations),
        job_tokens=JobTokens(b"secret"),
        version="0",
        trigger_round=rounds.append,
    )


def is_served(gateway: Gateway) -> bool:
    try:
        gateway.get("/apis/optimus.dev/v1alpha1")
    except ApiRefused:
        return False
    return True


def only_job(door: Door) -> Any:
    (job,) = door.repository.jobs.page().items
    return job
