"""Two installations in one namespace, each with a database of its own, on a real API server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.service.clusters.kubernetes.control_plane import ControlPlane
from tests.service.clusters.kubernetes.door import Door, services_of
from tests.service.clusters.kubernetes.kubernetes_harness import KubernetesHarness, wait_for

from optimus_scheduler.model import JobState
from optimus_service.crd.definition import definition
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository


@pytest.fixture
def doors(
    kubernetes: KubernetesHarness,
    resource: None,
    migrated_sqlite: Path,
    control_plane: ControlPlane,
    tmp_path: Path,
) -> Iterator[tuple[Door, Door]]:
    control_plane.kubectl("apply", "-f", "-", stdin=json.dumps(definition()))
    found = []
    for instance in ("first", "second"):
        shutil.copy(migrated_sqlite, tmp_path / f"{instance}.db")
        repository = Repository(create_engine_from_url(f"sqlite:///{tmp_path / instance}.db"))
        rounds: list[str] = []
        settings = KubernetesSettings(namespace=kubernetes.namespace, instance=instance)
        services = services_of(repository, tmp_path / instance, rounds)
        found.append(Door(kubernetes, services, control_plane, rounds, settings))
    yield found[0], found[1]
    for door in found:
        door.close()
        door.repository.close()


def n_jobs(door: Door) -> int:
    return len(door.repository.jobs.page().items)


def sync_all(*doors: Door) -> None:
    """One pass of each, all at once."""
    with ThreadPoolExecutor(len(doors)) as pool:
        list(pool.map(lambda door: door.controller.sync(), doors))


def test_each_object_becomes_one_job_of_one_installation(doors: tuple[Door, Door]) -> None:
    names = [f"job-{number}" for number in range(6)]
    for name in names:
        doors[0].apply(name)

    def all_have_jobs() -> bool:
        sync_all(*doors)
        return all(doors[0].status(name).get("jobId") for name in names)

    wait_for("each object has a job", all_have_jobs)
    for _ in range(3):
        sync_all(*doors)
    assert n_jobs(doors[0]) + n_jobs(doors[1]) == len(names)
    for door in doors:
        mine = [each["status"] for each in door.objects() if each["status"]["installation"] == door.identity]
        claimed = {status["jobId"] for status in mine}
        assert claimed == {job.id for job in door.repository.jobs.page().items}


def test_an_installation_leaves_what_another_has_claimed(doors: tuple[Door, Door]) -> None:
    first, second = doors
    first.apply()
    status = first.wait_for_status(state="queued")
    wait_for("the second one sees the claim", lambda: any(each.status for each in second.controller._objects.values()))
    for _ in range(3):
        second.controller.sync()
    assert (n_jobs(first), n_jobs(second)) == (1, 0)
    assert first.status() == status


def test_a_claim_that_is_lost_by_a_moment_changes_nothing(doors: tuple[Door, Door]) -> None:
    first, second = doors
    first.apply()
    wait_for("the second one sees it", lambda: second.controller._objects.values())
    second.controller._watcher.close()  # from here on it hears nothing, and takes the object for unclaimed
    first.wait_for_status(state="queued")
    second.controller.sync()
    assert n_jobs(second) == 0
    assert first.status()["installation"] == first.identity


def test_an_object_of_a_dead_installation_is_handed_over(doors: tuple[Door, Door]) -> None:
    first, second = doors
    first.apply()
    job_id = first.wait_for_status(state="queued")["jobId"]
    first.kubectl("label", "tj", "digits-mlp", f"optimus.dev/installation={second.identity}")
    status = second.wait_for_status(installation=second.identity, state="queued")
    assert status["jobId"] != job_id
    assert n_jobs(second) == 1
    # Should the first one live after all, it gives its job up.
    first.wait_for_state(job_id, JobState.CANCELLED)
    assert first.status()["jobId"] == status["jobId"]


def test_a_label_says_which_installation_is_to_have_it(doors: tuple[Door, Door]) -> None:
    first, second = doors
    first.apply("chosen", labels={"optimus.dev/installation": second.identity})
    wait_for("the first one sees it", lambda: first.controller._objects.values())
    first.controller.sync()
    assert first.status("chosen") == {}
    second.wait_for_status("chosen", state="queued")
    assert (n_jobs(first), n_jobs(second)) == (0, 1)


def test_nothing_is_taken_where_claims_cannot_be_written(doors: tuple[Door, Door]) -> None:
    """The definition in the cluster is of an earlier release, which drops the field."""
    first, _ = doors
    older = definition()
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["installation"]
    first.kubectl("apply", "-f", "-", stdin=json.dumps(older))
    try:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.optimus.dev"

        def is_older() -> bool:
            first.apply("probe")
            return first.controller.claims.of(first.seen("probe")) is None

        assert first.harness.admin.get(path)
        wait_for("the definition is in force", is_older)
        first.controller.sync()
        assert n_jobs(first) == 0
    finally:
        first.kubectl("apply", "-f", "-", stdin=json.dumps(definition()))
    first.wait_for_status("probe", state="queued")
