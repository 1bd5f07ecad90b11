"""Tasks that the service started."""

from __future__ import annotations

from tests.service.store.store_builders import MakeJob, put_task

from optimus_scheduler.lifecycle import CancelRequested
from optimus_scheduler.model import Role, TaskKey
from optimus_service.store.records import TaskAges, TaskRecord
from optimus_service.store.repository import Repository

COORDINATOR = TaskKey("job-1", Role.COORDINATOR, 0)
SERVER = TaskKey("job-1", Role.SERVER, 0)
WORKER = TaskKey("job-1", Role.WORKER, 0)
WORKER_AGAIN = TaskKey("job-1", Role.WORKER, 0, 1)


def test_a_task_is_remembered_once(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    put_task(repository, WORKER, "local-0", 1.0)
    put_task(repository, WORKER, "local-1", 2.0)
    assert repository.tasks.select() == [TaskRecord(key=WORKER, node="local-0", created_at=1.0)]


def test_tasks_come_sorted_by_key(repository: Repository, make_job: MakeJob) -> None:
    make_job("job-1")
    make_job("Job-0")
    keys = [TaskKey("job-1", Role.WORKER, rank) for rank in (10, 2)] + [SERVER, TaskKey("Job-0", Role.WORKER, 0)]
    for key in keys:
        put_task(repository, key, "local-0", 1.0)
    assert [task.key for task in repository.tasks.select()] == sorted(keys)
    assert [task.key for task in repository.tasks.select(job_id="Job-0")] == [keys[-1]]


def test_the_first_time_unwanted_counts_until_wanted_again(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    for key in (SERVER, WORKER):
        put_task(repository, key, "local-0", 1.0)

    def unwanted() -> list[float | None]:
        return [task.unwanted_since for task in repository.tasks.select()]

    repository.tasks.mark_unwanted([WORKER], 5.0)
    repository.tasks.mark_unwanted([WORKER, SERVER, TaskKey("ghost", Role.WORKER, 0)], 6.0)
    assert unwanted() == [6.0, 5.0]
    repository.tasks.mark_wanted([SERVER])
    assert unwanted() == [None, 5.0]
    repository.tasks.mark_unwanted([SERVER], 7.0)
    assert unwanted() == [7.0, 5.0]
    repository.tasks.mark_unwanted([], 8.0)
    repository.tasks.mark_wanted([])


def test_the_first_report_of_an_end_counts(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    for key in (SERVER, WORKER):
        put_task(repository, key, "local-0", 1.0)
    repository.tasks.mark_exited(WORKER, None, 9.0)
    repository.tasks.mark_exited(WORKER, 137, 10.0)
    repository.tasks.mark_exited(WORKER_AGAIN, 0, 10.0)
    assert [task.key for task in repository.tasks.select()] == [SERVER]
    _, exited = repository.tasks.select(active_only=False)
    assert (exited.key, exited.exited_at, exited.exit_code) == (WORKER, 9.0, None)


def test_ages_are_those_of_the_tasks_that_have_not_exited(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("job-1", "job-2", "job-3"):
        make_job(job_id)
    put_task(repository, SERVER, "local-0", 1.0)
    put_task(repository, WORKER, "local-0", 2.0)
    repository.tasks.mark_exited(WORKER, 1, 3.0)
    assert repository.tasks.ages(["job-1", "job-2", "job-3"]) == {"job-1": TaskAges(1.0, 0)}
    put_task(repository, WORKER_AGAIN, "local-0", 4.0)
    put_task(repository, TaskKey("job-2", Role.WORKER, 0), "local-0", 5.0)
    assert repository.tasks.ages(["job-1", "job-3"]) == {"job-1": TaskAges(4.0, 1)}
    assert repository.tasks.ages([]) == {}


def test_newest_tasks_are_what_a_round_looks_at(repository: Repository, make_job: MakeJob) -> None:
    make_job("job-1")
    make_job("job-2")
    ended = TaskKey("job-2", Role.WORKER, 0)
    lingering = TaskKey("job-2", Role.SERVER, 0)
    for key in (COORDINATOR, SERVER, WORKER, WORKER_AGAIN, ended, lingering):
        put_task(repository, key, "local-0", 1.0)
    for key in (SERVER, WORKER, WORKER_AGAIN, ended):
        repository.tasks.mark_exited(key, 1, 2.0)
    repository.jobs.advance("job-2", CancelRequested(), 3.0)
    assert [task.key for task in repository.observed().tasks] == [COORDINATOR, SERVER, WORKER_AGAIN, lingering]


def test_ten_thousand_keys_are_marked_at_once(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    keys = [TaskKey("job-1", Role.WORKER, rank) for rank in range(40)]
    for key in keys:
        put_task(repository, key, "local-0", 1.0)
    repository.tasks.mark_unwanted(keys * 250, 2.0)
    assert {task.unwanted_since for task in repository.tasks.select()} == {2.0}
