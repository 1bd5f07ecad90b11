"""What jobs should have: generations, directives, the fence."""

from __future__ import annotations

import pytest
from sqlalchemy import event
from tests.service import leases
from tests.service.store.store_builders import MakeJob, placed, set_wanted

from optimus_scheduler.lifecycle import CancelRequested, ConvergenceReached, MembershipFormed, Paused
from optimus_scheduler.model import NOTHING, Allocation, Directive, Role, SetWanted
from optimus_service.store.errors import StaleLeader
from optimus_service.store.records import WantedRecord
from optimus_service.store.repository import LEADER_LEASE, Repository

ONE_AND_ONE = (placed("job-1", Role.WORKER, 0, 2, "local-1"), placed("job-1", Role.SERVER, 0))


def test_nothing_is_wanted_at_first(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    nothing = WantedRecord(generation=0, directive=Directive.RUN, allocation=NOTHING, tasks=())
    assert repository.wanted.get("job-1") == nothing
    assert repository.wanted.generations(["job-1", "nothing"]) == {"job-1": 0}


def test_the_wanted_tasks_come_back_sorted(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    assert set_wanted(repository, "job-1", Allocation(1, 1, "v100"), Directive.RUN, ONE_AND_ONE, 7.0) == 1
    stored = repository.wanted.get("job-1")
    assert stored.tasks == tuple(sorted(ONE_AND_ONE, key=lambda task: task.key))
    assert (stored.generation, stored.allocation) == (1, Allocation(1, 1, "v100"))
    assert repository.wanted.of_active_jobs() == {"job-1": stored}
    job = repository.jobs.get("job-1")
    assert (job.wanted, job.wanted_at, job.generation) == (Allocation(1, 1, "v100"), 7.0, 1)


def test_who_took_the_tasks_of_a_job_is_told_of_the_last_time(repository: Repository, make_job: MakeJob) -> None:
    """Also where it did not train in between; nobody is named where nobody took them."""
    make_job()
    repository.jobs.advance("job-1", MembershipFormed(1), 1.0)

    def told(size: Allocation, by: str | None = None) -> str | None:
        tasks = () if size.is_empty else ONE_AND_ONE
        directive = Directive.PAUSE if size.is_empty else Directive.RUN
        repository.wanted.put([SetWanted("job-1", size, directive, tasks, None, by)], 2.0)
        return repository.jobs.get("job-1").paused_by

    assert told(Allocation(1, 1)) is None
    assert told(NOTHING, "job other, which has a deadline") == "job other, which has a deadline"
    repository.jobs.advance("job-1", Paused(), 3.0)
    assert told(Allocation(1, 1)) == "job other, which has a deadline", "it does not train yet"
    assert told(NOTHING, "quotas") == "quotas"
    assert told(Allocation(1, 1)) == "quotas"
    assert told(NOTHING) is None


def test_wanting_the_same_again_changes_nothing(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    set_wanted(repository, "job-1", Allocation(1, 1), Directive.RUN, ONE_AND_ONE, 7.0)
    before = repository.jobs.get("job-1")
    assert set_wanted(repository, "job-1", Allocation(1, 1), Directive.RUN, ONE_AND_ONE[::-1], 8.0) == 1
    assert repository.jobs.get("job-1") == before


def test_a_replaced_task_is_a_new_generation_of_the_same_size(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    set_wanted(repository, "job-1", Allocation(1, 1), Directive.RUN, ONE_AND_ONE, 7.0)
    replaced = (placed("job-1", Role.WORKER, 0, 3), ONE_AND_ONE[1])
    assert set_wanted(repository, "job-1", Allocation(1, 1), Directive.RUN, replaced, 8.0) == 2
    assert repository.jobs.get("job-1").wanted_at == 7.0  # when the size changed


def test_a_pause_can_be_taken_back_an_end_cannot(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    repository.jobs.advance("job-1", MembershipFormed(1), 1.0)

    def directive_after(directive: Directive) -> Directive:
        set_wanted(repository, "job-1", NOTHING, directive, (), 2.0)
        return repository.wanted.get("job-1").directive

    assert directive_after(Directive.PAUSE) is Directive.PAUSE
    assert directive_after(Directive.RUN) is Directive.RUN
    repository.jobs.advance("job-1", ConvergenceReached("max_steps"), 3.0)
    assert directive_after(Directive.RUN) is Directive.FINISH
    repository.jobs.advance("job-1", CancelRequested(has_tasks=True), 4.0)
    assert directive_after(Directive.RUN) is Directive.CANCEL
    assert directive_after(Directive.FINISH) is Directive.CANCEL


def test_only_active_jobs_want_tasks(repository: Repository, make_job: MakeJob) -> None:
    make_job("job-1")
    make_job("job-2")
    repository.jobs.advance("job-2", CancelRequested(), 1.0)
    assert set(repository.wanted.of_active_jobs()) == {"job-1"}
    assert repository.wanted.generations(["job-1", "job-2", "none"]) == {"job-1": 0, "job-2": 1}, (
        "its tasks ask what to do"
    )


def test_specifications_are_not_read_for_what_jobs_should_have(repository: Repository, make_job: MakeJob) -> None:
    """They are most of a row: of 10,000 jobs a hundred megabytes."""
    make_job()
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(repository._engine, "before_cursor_execute", note)
    repository.wanted.of_active_jobs()
    event.remove(repository._engine, "before_cursor_execute", note)
    assert [each for each in asked if "wanted_tasks" in each]
    assert not [each for each in asked if "jobs.spec" in each]


def test_a_leader_of_yesterday_wants_in_vain(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    old = repository.leases.acquire(LEADER_LEASE, "a", 10.0)
    leases.run_out(repository)
    new = repository.leases.acquire(LEADER_LEASE, "b", 10.0)
    assert old is not None
    assert new is not None
    with pytest.raises(StaleLeader):
        set_wanted(repository.as_leader(old.token), "job-1", Allocation(1, 1), Directive.RUN, ONE_AND_ONE, 21.0)
    assert repository.wanted.get("job-1").generation == 0
    leader = repository.as_leader(new.token)
    assert set_wanted(leader, "job-1", Allocation(1, 1), Directive.RUN, ONE_AND_ONE, 21.0) == 1
