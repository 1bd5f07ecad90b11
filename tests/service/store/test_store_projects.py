"""Projects with quotas, and what tasks and memberships ran on."""

from __future__ import annotations

import pytest
from tests.service.store.store_builders import MakeJob, a_membership, put_task

from optimus_scheduler.model import Quota, Role, TaskKey
from optimus_service.store.errors import ProjectNotFound
from optimus_service.store.records import ProjectRecord
from optimus_service.store.repository import Repository

VISION = Quota("vision", share=0.25)
TEXT = Quota("text", cpu=4.0, memory_bytes=2**33, gpus={"v100": 2}, may_borrow=False)


def test_a_quota_is_stored_as_it_was_given(repository: Repository) -> None:
    assert repository.projects.put(TEXT, 1.0)
    assert repository.projects.get("text") == ProjectRecord(TEXT, 1.0)


def test_projects_come_by_name(repository: Repository) -> None:
    for quota in (VISION, TEXT):
        repository.projects.put(quota, 1.0)
    assert [record.quota for record in repository.projects.all()] == [TEXT, VISION]


def test_a_quota_is_replaced_as_a_whole(repository: Repository) -> None:
    repository.projects.put(TEXT, 1.0)
    assert not repository.projects.put(Quota("text", share=0.5), 2.0)
    assert repository.projects.all() == [ProjectRecord(Quota("text", share=0.5), 2.0)]


def test_a_project_without_quota_is_not_found(repository: Repository) -> None:
    with pytest.raises(ProjectNotFound, match="project 'vision' has no quota"):
        repository.projects.get("vision")
    with pytest.raises(ProjectNotFound):
        repository.projects.remove("vision")
    repository.projects.put(VISION, 1.0)
    repository.projects.remove("vision")
    assert repository.projects.all() == []


def test_a_membership_has_the_type_that_its_workers_were_started_on(repository: Repository, make_job: MakeJob) -> None:
    """What is wanted by the time of the report may be another type already."""
    job = make_job("job-1")
    for rank in (0, 1):
        put_task(repository, TaskKey(job.id, Role.WORKER, rank), "node", 1.0, gpu_type="k80")
    put_task(repository, TaskKey(job.id, Role.WORKER, 0, 1), "node", 2.0, gpu_type="v100")
    repository.memberships.report(job.id, a_membership(job.id))
    second = a_membership(job.id, 2, workers=(f"{job.id}-worker-0-1",))
    repository.memberships.report(job.id, second)
    assert [one.gpu_type for one in repository.memberships.of_job(job.id)] == ["k80", "v100"]
    assert repository.jobs.get(job.id).running.gpu_type == "v100"
    assert {task.gpu_type for task in repository.tasks.select()} == {"k80", "v100"}
