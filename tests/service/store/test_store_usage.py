"""What jobs were given, added up by month, project, owner and GPU type."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.store.store_builders import a_membership, set_wanted

from optimus_scheduler.lifecycle import (
    AllTasksGone,
    CancelRequested,
    Event,
    PauseRequested,
    ResumeRequested,
    TasksGranted,
)
from optimus_scheduler.model import NOTHING, Allocation, Directive
from optimus_service.store.database.engine import create_engine_from_url, downgrade, upgrade
from optimus_service.store.jobs.charging import month_of, months
from optimus_service.store.records import UsageRecord
from optimus_service.store.repository import Repository

NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0
SPEC = {
    "name": "a",
    "project": "vision",
    "task": "m:f",
    "workers": {"min": 1, "max": 4, "resources": {"cpu": 2.0, "gpus": 1}},
    "servers": {"min": 1, "max": 4, "resources": {"cpu": 0.5}},
}


def make(repository: Repository, job_id: str, owner: str | None = "ada", at: float = NOVEMBER, **said: object) -> str:
    repository.jobs.create(job_id, SPEC | said, "nonce", None, "hash", at, None, owner)
    return job_id


def give(repository: Repository, job_id: str, size: Allocation, at: float) -> None:
    set_wanted(repository, job_id, size, Directive.RUN, [], at)


def hours(records: list[UsageRecord]) -> dict[tuple[str, str | None, str | None], tuple[float, float, float]]:
    return {
        (each.project, each.owner, each.gpu_type): (
            each.worker_seconds / HOUR,
            each.core_seconds / HOUR,
            each.gpu_seconds / HOUR,
        )
        for each in records
    }


def test_each_size_counts_for_the_time_that_it_was_given(repository: Repository) -> None:
    job_id = make(repository, "job-1")
    give(repository, job_id, Allocation(2, 1, "v100"), NOVEMBER + HOUR)
    give(repository, job_id, Allocation(2, 1, "v100"), NOVEMBER + 2 * HOUR)  # the same again
    give(repository, job_id, Allocation(1, 0, "k80"), NOVEMBER + 3 * HOUR)
    found = hours(repository.usage.of_month("2026-11", NOVEMBER + 4 * HOUR))
    assert found == {("vision", "ada", "v100"): (4.0, 9.0, 4.0), ("vision", "ada", "k80"): (1.0, 2.0, 1.0)}
    give(repository, job_id, NOTHING, NOVEMBER + 5 * HOUR)
    later = hours(repository.usage.of_month("2026-11", NOVEMBER + 100 * HOUR))
    assert later == {("vision", "ada", "v100"): (4.0, 9.0, 4.0), ("vision", "ada", "k80"): (2.0, 4.0, 2.0)}


def test_a_month_ends_while_a_job_runs(repository: Repository) -> None:
    job_id = make(repository, "job-1")
    give(repository, job_id, Allocation(1, 0), DECEMBER - HOUR)
    for ask in (DECEMBER + 3 * HOUR, DECEMBER + 7 * HOUR):
        assert hours(repository.usage.of_month("2026-11", ask)) == {("vision", "ada", None): (1.0, 2.0, 1.0)}
        worked = (ask - DECEMBER) / HOUR
        assert hours(repository.usage.of_month("2026-12", ask)) == {
            ("vision", "ada", None): (worked, 2 * worked, worked)
        }
    give(repository, job_id, NOTHING, DECEMBER + HOUR)
    assert hours(repository.usage.of_month("2026-11", DECEMBER + 9 * HOUR)) == {
        ("vision", "ada", None): (1.0, 2.0, 1.0)
    }
    assert hours(repository.usage.of_month("2026-12", DECEMBER + 9 * HOUR)) == {
        ("vision", "ada", None): (1.0, 2.0, 1.0)
    }
    assert repository.usage.of_month("2026-10", DECEMBER) == []


def test_what_ends_or_pauses_a_job_ends_what_it_is_charged(repository: Repository) -> None:
    stories: list[list[Event]] = [[CancelRequested(), AllTasksGone()], [PauseRequested(), ResumeRequested()]]
    for number, events in enumerate(stories):
        job_id = make(repository, f"job-{number}", owner=f"user-{number}")
        give(repository, job_id, Allocation(1, 0), NOVEMBER)
        repository.jobs.advance(job_id, TasksGranted(Allocation(1, 0)), NOVEMBER)
        for hour, event in enumerate(events, 1):
            repository.jobs.advance(job_id, event, NOVEMBER + hour * HOUR)
        give(repository, job_id, NOTHING, NOVEMBER + 3 * HOUR)
    workers = {
        each.owner: each.worker_seconds / HOUR for each in repository.usage.of_month("2026-11", NOVEMBER + 9 * HOUR)
    }
    assert workers == {"user-0": 1.0, "user-1": 3.0}


def test_only_projects_that_were_asked_for_and_nothing_of_jobs_that_run_elsewhere(repository: Repository) -> None:
    for job_id, project in (("job-1", "vision"), ("job-2", "speech")):
        give(repository, make(repository, job_id, None, project=project), Allocation(1, 0), NOVEMBER)
    give(repository, make(repository, "job-3", tracked=True), Allocation(1, 0), NOVEMBER)
    give(repository, "job-2", NOTHING, NOVEMBER + HOUR)
    at = NOVEMBER + HOUR
    assert [each.project for each in repository.usage.of_month("2026-11", at)] == ["speech", "vision"]
    assert [each.project for each in repository.usage.of_month("2026-11", at, {"speech"})] == ["speech"]
    assert repository.usage.of_month("2026-11", at, set()) == []


def test_what_a_deleted_job_had_stays(repository: Repository) -> None:
    job_id = make(repository, "job-1")
    give(repository, job_id, Allocation(1, 0), NOVEMBER)
    repository.jobs.advance(job_id, CancelRequested(), NOVEMBER + HOUR)
    repository.jobs.advance(job_id, AllTasksGone(), NOVEMBER + HOUR)
    repository.retention.delete_job(job_id)
    assert hours(repository.usage.of_month("2026-11", NOVEMBER + 9 * HOUR)) == {
        ("vision", "ada", None): (1.0, 2.0, 1.0)
    }


def test_nothing_is_charged_by_a_transaction_that_fails(repository: Repository) -> None:
    job_id = make(repository, "job-1")
    give(repository, job_id, Allocation(1, 0), NOVEMBER)
    with suppress(RuntimeError), repository.write() as tx:
        set_wanted(tx, job_id, NOTHING, Directive.RUN, [], NOVEMBER + HOUR)
        raise RuntimeError
    assert hours(repository.usage.of_month("2026-11", NOVEMBER + 2 * HOUR)) == {
        ("vision", "ada", None): (2.0, 4.0, 2.0)
    }


@given(st.floats(0, 4e9), st.floats(0, 1e8))
def test_months_make_up_the_whole_time(since: float, seconds: float) -> None:
    parts = list(months(since, since + seconds))
    assert sum(part for _, part in parts) == pytest.approx(since + seconds - since)
    assert all(before < after for (before, _), (after, _) in pairwise(parts))
    assert not parts or (parts[0][0], min(part for _, part in parts) > 0) == (month_of(since), True)


def test_a_clock_that_was_set_back_charges_nothing() -> None:
    assert list(months(100.0, 50.0)) == []
    assert list(months(None, 50.0)) == []


def test_an_upgrade_adds_up_what_jobs_had_before(database_url: str) -> None:
    repository = Repository(create_engine_from_url(database_url))
    for job_id in ("ended", "active"):
        make(repository, job_id, at=DECEMBER - 9 * HOUR)
        give(repository, job_id, Allocation(2, 1), DECEMBER - 2 * HOUR)
        repository.jobs.advance(job_id, TasksGranted(Allocation(2, 1)), DECEMBER - 2 * HOUR)
        repository.memberships.report(job_id, a_membership(job_id, at=DECEMBER - HOUR))
        repository.memberships.report(job_id, a_membership(job_id, 2, at=DECEMBER + HOUR, workers=("w",), servers=()))
    for event in (CancelRequested(), AllTasksGone()):
        repository.jobs.advance("ended", event, DECEMBER + 2 * HOUR)
    give(repository, "active", Allocation(1, 0), DECEMBER)
    repository.close()
    downgrade(database_url, "0021")
    upgrade(database_url)
    repository = Repository(create_engine_from_url(database_url))
    try:
        # ended: 2 workers and a server for two hours, a worker for one; active: an hour of that, then what it is given
        november, december = (
            hours(repository.usage.of_month(month, DECEMBER + 4 * HOUR)) for month in ("2026-11", "2026-12")
        )
        assert november == {("vision", "ada", None): (2.0 + 2.0, 4.5 + 4.5, 2.0 + 2.0)}
        assert december == {("vision", "ada", None): (3.0 + 4.0, 6.5 + 8.0, 3.0 + 4.0)}
    finally:
        repository.close()
