"""Every query finds its rows by an index: no table that grows is read as a whole."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.service.store.store_builders import a_membership, a_round, a_sample, add_samples

from optimus_scheduler.lifecycle import CancelRequested, MembershipFormed
from optimus_scheduler.model import JobState, Role, TaskKey
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.database.pages import encode_cursor
from optimus_service.store.jobs.taught import name_tasks
from optimus_service.store.repository import Repository
from optimus_service.store.samples.counting import BLOCK


def _name_tasks(store: Repository) -> None:
    with store._write() as session:
        name_tasks(session, 10)


CALLS: dict[str, Callable[[Repository], object]] = {
    "get_job": lambda store: store.jobs.get("job-1"),
    "list_jobs": lambda store: store.jobs.page(cursor=encode_cursor("jobs", (1.0, "a"))),
    "list_jobs by state": lambda store: store.jobs.page(states={JobState.RUNNING}),
    "list_jobs that are starting": lambda store: store.jobs.page(states={JobState.RUNNING}, starting=True),
    "list_jobs by project": lambda store: store.jobs.page(project="vision"),
    "active_jobs": lambda store: store.jobs.active(),
    "running and paused jobs": lambda store: store.jobs.begun(),
    "count_jobs_by_state": lambda store: store.jobs.count_by_state(),
    "generations": lambda store: store.wanted.generations(["job-1", "job-2"]),
    "memberships": lambda store: store.memberships.of_job("job-1"),
    "report_membership": lambda store: store.memberships.report("job-1", a_membership(lost_steps=1)),
    "add_samples": lambda store: add_samples(store, "job-1", [a_sample()], 1.0),
    "add_samples of many blocks": lambda store: add_samples(
        store, "job-1", [a_sample(sequence=BLOCK * number) for number in range(5)], 1.0
    ),
    "find_submission": lambda store: store.jobs.find_submission("key", "hash"),
    "newest_samples": lambda store: store.samples.newest("job-1", 5),
    "finished_runs_after": lambda store: store.finished_runs.after(5, 10),
    "finished_runs_of_tasks": lambda store: store.finished_runs.of_tasks(["m:f", "m:g"], 100, 16),
    "finished_runs_of_jobs": lambda store: (
        store.finished_runs.n_of(["job-1", "job-2"]),
        store.finished_runs.jobs_of(["job-1", "job-2"]),
    ),
    "finished_runs_without_task": lambda store: _name_tasks(store),
    "jobs_without_finished_run": lambda store: store.finished_runs.jobs_without(5.0, 4),
    "network_of": lambda store: store.jobs.network_of("job-1"),
    "current_lease": lambda store: store.leases.current("scheduling-loop"),
    "histories_reach": lambda store: store.histories.reach(["job-1", "job-2"]),
    "histories_of": lambda store: store.histories.of_jobs(["job-1", "job-2"]),
    "samples_after_each": lambda store: store.samples.after_each({"job-1": 5, "job-2": 0}, 10),
    "newest_samples_of_each": lambda store: store.samples.newest_of_each(["job-1", "job-2"], 5),
    "networks_of": lambda store: store.jobs.networks_of(["job-1"]),
    "planned_rates_of": lambda store: store.jobs.planned_rates_of(["job-1"]),
    "observed": lambda store: store.observed(),
    "tasks": lambda store: store.tasks.select(),
    "tasks of a job": lambda store: store.tasks.select(active_only=False, job_id="job-1"),
    "ages of tasks": lambda store: store.tasks.ages(["job-1", "job-2"]),
    "put_usage": lambda store: store.tasks.put_usage("job-1", {"job-1-server-0-0": {"cpu_cores": 1.0}}, 1.0),
    "mark_exited": lambda store: store.tasks.mark_exited(TaskKey("job-1", Role.WORKER, 0), 0, 1.0),
    "events of a job": lambda store: store.events.page("job-1", cursor=encode_cursor("events", (5,))),
    "events": lambda store: store.events.page(cursor=encode_cursor("events", (5,))),
    "rounds": lambda store: store.rounds.page(cursor=encode_cursor("rounds", (5,))),
    "decisions": lambda store: store.rounds.decisions("job-1", cursor=encode_cursor("decisions", (5,))),
    "latest_decisions": lambda store: store.rounds.latest_decisions(["job-1", "job-2"]),
    "starts_of_ended": lambda store: (
        store.jobs.advance("job-1", MembershipFormed(1), 1.0),
        store.jobs.advance("job-1", CancelRequested(), 1.0),
        store.memberships.starts_of_ended(10),
    ),
    "prune": lambda store: (store.jobs.advance("job-1", CancelRequested(), 1.0), store.retention.prune(100.0, 10.0)),
    "prune_rounds": lambda store: (
        store.rounds.add(a_round(at=1.0), []),
        store.retention.prune_rounds(100.0, 10.0, 0.0),
    ),
    "newest": lambda store: store.jobs.newest(40),
    "lengths_of_ended": lambda store: store.jobs.lengths_of_ended(200),
    "list_jobs by the name or id that is meant": lambda store: store.jobs.page(name_contains="a", name_match="one"),
    "list_jobs by a beginning": lambda store: store.jobs.page(name_contains="a", name_match="start"),
    "list_jobs by a part of the name": lambda store: store.jobs.page(name_contains="a"),
    "list_jobs by a part of anything": lambda store: store.jobs.page(name_contains="a", name_match="any"),
    "count_jobs_by_state of a project": lambda store: store.jobs.count_by_state(["vision"]),
    "list_jobs by label": lambda store: store.jobs.page(labels={"sweep": "a"}),
    "list_jobs by any value of a label": lambda store: store.jobs.page(labels={"sweep": None}),
    "list_jobs by two labels": lambda store: store.jobs.page(labels={"sweep": "a", "team": None}),
    "list_jobs by label and part of the name": lambda store: store.jobs.page(labels={"a": "b"}, name_contains="c"),
    "list_jobs by label, active": lambda store: store.jobs.page({JobState.RUNNING}, labels={"sweep": "a"}),
    "list_jobs by owner": lambda store: store.jobs.page(owner="ada"),
    "find_submissions": lambda store: store.jobs.find_submissions(["key-1", "key-2"]),
    "advance_jobs": lambda store: store.jobs.advance_together({"job-1": CancelRequested()}, 1.0),
}


FEW = {"projects", "users", "leases", "ended_jobs", "looked_at"}
"""Tables that stay small, and a part of one that is cut off by an index."""


@pytest.fixture
def sqlite_repository(migrated_sqlite: Path, tmp_path: Path) -> Iterator[Repository]:
    """SQLite only: its plans depend on the indexes alone, PostgreSQL's on how many rows there are."""
    shutil.copy(migrated_sqlite, tmp_path / "optimus.db")
    repository = Repository(create_engine_from_url(f"sqlite:///{tmp_path / 'optimus.db'}"))
    repository.jobs.create("job-1", {"name": "a", "project": "b"}, "nonce", None, "hash", 0.0)
    yield repository
    repository.close()


def _statements(repository: Repository, name: str) -> list[tuple[str, Any]]:
    statements: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if re.match("SELECT|UPDATE|DELETE", statement):
            statements.append((statement, parameters[0] if isinstance(parameters, list) else parameters))

    engine = repository._engine
    event.listen(engine, "before_cursor_execute", note)
    CALLS[name](repository)
    event.remove(engine, "before_cursor_execute", note)
    assert statements
    return statements


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_queries_can_use_indexes_of_postgresql(repository: Repository) -> None:
    """One test for all calls: each new database takes longer than all of them."""
    repository.jobs.create("job-1", {"name": "a", "project": "b"}, "nonce", None, "hash", 0.0)
    wrong = []
    for name in CALLS:
        statements = _statements(repository, name)
        with repository._engine.connect() as connection:
            connection.exec_driver_sql("SET enable_seqscan = off")  # so that a small table is no reason to read it all
            for statement, parameters in statements:
                plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
                found = set(re.findall(r"Seq Scan on (\w+)", plan)) - FEW
                wrong += [(name, table, statement) for table in found]
            connection.rollback()
    assert wrong == []


@pytest.mark.parametrize("name", CALLS)
def test_queries_use_indexes(sqlite_repository: Repository, name: str) -> None:
    statements = _statements(sqlite_repository, name)
    engine = sqlite_repository._engine
    with engine.connect() as connection:
        plan = [
            row.detail
            for statement, parameters in statements
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    plan = [step for step in plan if step.removeprefix("SCAN ") not in FEW]
    assert [step for step in plan if re.match("SCAN", step) and "INDEX" not in step] == []


def test_finished_runs_of_tasks_come_from_their_index(sqlite_repository: Repository) -> None:
    """Of a hundred thousand runs only those of these tasks are looked at, and of these the newest."""
    ((statement, parameters),) = _statements(sqlite_repository, "finished_runs_of_tasks")
    with sqlite_repository._engine.connect() as connection:
        plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
    runs = [step for step in plan if "finished_runs" in step or "earlier" in step]
    assert len(runs) == 2, plan
    assert all("INDEX ix_finished_runs_task_id (task=? AND" in step for step in runs), plan
    assert [step for step in plan if "TEMP B-TREE" in step] == [], plan


@pytest.mark.parametrize(
    "name",
    [
        *("list_jobs by label", "list_jobs by any value of a label", "list_jobs by two labels", "list_jobs by owner"),
        *("newest", "lengths_of_ended"),
    ],
)
def test_the_newest_jobs_come_from_an_index(sqlite_repository: Repository, name: str) -> None:
    """The newest of a million jobs with a label, or of an owner, and those that ended last, come from an index."""
    with sqlite_repository._engine.connect() as connection:
        for statement, parameters in _statements(sqlite_repository, name):
            plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
            assert [step for step in plan if "TEMP B-TREE" in step] == [], plan
