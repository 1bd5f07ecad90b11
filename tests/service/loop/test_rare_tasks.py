"""A task that ran seldom, long ago, is known after a restart of the service, however many runs of others came since."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple
from typing import Any

import pytest
from sqlalchemy import text
from tests.service.loop.loop_world import World

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_scheduler.forecast.priors import MAX_PER_TASK, MAX_TASKS
from optimus_service.observe import finished_runs
from optimus_service.observe.finished_runs import MAX_LOADED, FinishedRunHistory
from optimus_service.requests import checked
from optimus_service.store.database.engine import create_engine_from_url, downgrade, upgrade
from optimus_service.store.histories import FinishedRuns
from optimus_service.store.records import Document, FinishedRunRecord, NewJob
from optimus_service.store.repository import Repository

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
RARE, USUAL = "m:rare", "m:usual"


def a_document(task: str, number: int) -> Document:
    return {
        "task": task,
        "project": "default",
        "steps_per_epoch": 10.0,
        "loss_steps": list(range(8)),
        "losses": [2.0 / (1 + step) + number * 1e-6 for step in range(8)],
        "speeds": [[1, 1, 2.5]],
        "mode": "sync",
        "architecture": "ps",
        "global_batch_size": 32,
    }


def add_runs(repository: Repository, name: str, task: str, count: int) -> None:
    spec = write(checked(JobSpec, {"name": name, "task": "m:f"}))
    job_ids = [f"{name}-{number:05d}" for number in range(count)]
    for begin in range(0, count, 1000):
        new = [NewJob(job_id, spec, "nonce", None, "hash") for job_id in job_ids[begin : begin + 1000]]
        repository.jobs.create_many(new, 1.0)
    with repository.write() as together:
        for number, job_id in enumerate(job_ids):
            together.finished_runs.add(job_id, a_document(task, number))


def told(history: FinishedRunHistory, task: str) -> list[tuple[Any, ...]]:
    history.refresh()
    history.read_tasks([task])
    return [astuple(each) for each in history.similar_to(task)]


@once
def test_one_run_among_ten_thousand_of_others_is_known_as_before_a_restart(repository: Repository) -> None:
    before = FinishedRunHistory(repository, 1e9)
    add_runs(repository, "rare", RARE, 1)
    before.refresh()
    for part in range(5):
        add_runs(repository, f"usual-{part}", f"{USUAL}{part}", MAX_LOADED - 48)
        before.refresh()
    after = FinishedRunHistory(repository, 1e9)
    for task in (RARE, *(f"{USUAL}{part}" for part in range(5))):
        assert told(after, task) == told(before, task)
    assert len(told(after, RARE)) == 1
    assert len(told(after, f"{USUAL}0")) == MAX_PER_TASK


@once
def test_the_first_round_after_a_restart_knows_all_runs_of_a_task(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit("job-1")
    world.round()
    world.live_until("it has ended", lambda: world.state("job-1").is_final)
    world.round()
    add_runs(world.repository, "usual", USUAL, 40)
    monkeypatch.setattr(finished_runs, "MAX_LOADED", 16)
    world.submit("job-2")
    again = world.restarted()
    again.round()
    decision = again.repository.rounds.latest_decisions(["job-2"])["job-2"]
    assert decision.forecast.speed_from == "similar jobs"


def test_the_newest_of_each_task_are_found(repository: Repository) -> None:
    for part in range(3):
        add_runs(repository, f"a-{part}", "m:a", 3)
        add_runs(repository, f"b-{part}", "m:b", 1)
    runs = repository.finished_runs
    found = runs.of_tasks(["m:a", "m:b", "m:none"], until_id=100, newest=4)
    assert [run.job_id for run in found] == [
        *("b-0-00000", "a-1-00002", "b-1-00000"),
        *("a-2-00000", "a-2-00001", "a-2-00002", "b-2-00000"),
    ]
    until = found[1].id
    assert [run.job_id for run in runs.of_tasks(["m:a"], until, newest=2)] == ["a-1-00001", "a-1-00002"]
    assert runs.of_tasks([], until, newest=2) == []
    some = ["a-0-00000", "b-2-00000", "gone"]
    assert runs.n_of(some) == 2
    assert runs.jobs_of(some) == set(some[:2])


@once
def test_a_run_of_a_rare_task_that_was_deleted_teaches_no_more(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_runs, "MAX_LOADED", 4)
    add_runs(repository, "rare", RARE, 3)
    add_runs(repository, "usual", USUAL, 10)
    history = FinishedRunHistory(repository, 1e9)
    assert [each[0] for each in told(history, RARE)] == ["rare-00000", "rare-00001", "rare-00002"]
    with repository._engine.begin() as connection:
        connection.execute(text("DELETE FROM finished_runs WHERE job_id = 'rare-00001'"))
    assert [each[0] for each in told(history, RARE)] == ["rare-00000", "rare-00002"]
    assert len(told(history, USUAL)) == 10


@once
def test_tasks_that_are_asked_for_are_read_once_and_again_where_others_took_their_place(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_runs, "MAX_LOADED", 4)
    add_runs(repository, "rare", RARE, 2)
    add_runs(repository, "usual", USUAL, 6)
    reads: list[list[str]] = []
    of_tasks = FinishedRuns.of_tasks

    def noted(self: FinishedRuns, tasks: Collection[str], until_id: int, newest: int) -> list[FinishedRunRecord]:
        reads.append(list(tasks))
        return of_tasks(self, tasks, until_id, newest)

    monkeypatch.setattr(FinishedRuns, "of_tasks", noted)
    history = FinishedRunHistory(repository, 1e9)
    for _ in range(3):
        assert len(told(history, RARE)) == 2
        assert told(history, "m:none") == []
    assert reads == [[RARE], ["m:none"]]
    for number in range(MAX_TASKS):  # nothing of the rare task is remembered any more
        add_runs(repository, f"other-{number}", f"m:other{number}", 1)
        history.refresh()
    assert history.similar_to(RARE) == ()
    add_runs(repository, "rare-again", RARE, 1)
    assert [each[0] for each in told(history, RARE)] == ["rare-00000", "rare-00001", "rare-again-00000"]


@once
def test_runs_that_came_while_nobody_asked_leave_no_gap(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished_runs, "MAX_LOADED", 4)
    add_runs(repository, "rare", RARE, 1)
    history = FinishedRunHistory(repository, 1e9)
    assert len(told(history, RARE)) == 1
    add_runs(repository, "later", RARE, 2)
    add_runs(repository, "usual", USUAL, 10)
    assert [each[0] for each in told(history, RARE)] == ["rare-00000", "later-00000", "later-00001"]


def test_a_task_may_be_called_as_no_database_takes_it(database_url: str) -> None:
    tasks = ["x" * 1000, "/x/" + "".join(map(str, range(5000))), "a\0.py", "b\udc80.py", "\N{SNOWMAN}.py", "?.py"]
    repository = Repository(create_engine_from_url(database_url))
    for number, task in enumerate(tasks):
        add_runs(repository, f"a-{number}", task, 1)

    def found() -> list[str]:
        return [run.document["task"] for each in tasks for run in repository.finished_runs.of_tasks([each], 100, 16)]

    assert found() == tasks
    repository.close()
    downgrade(database_url, "0029")
    upgrade(database_url)
    repository = Repository(create_engine_from_url(database_url))
    assert found() == tasks
    assert len(repository.finished_runs.of_tasks(tasks, 100, 16)) == len(tasks)
    repository.close()


def test_runs_of_an_earlier_release_are_of_their_tasks(database_url: str) -> None:
    """Up, down and up again; and those that it stored beside this release."""
    repository = Repository(create_engine_from_url(database_url))
    add_runs(repository, "a", "m:\u2603", 2)
    repository.jobs.create("nothing", {"name": "n", "project": "p"}, "nonce", None, "hash", 1.0)
    repository.finished_runs.add("nothing", {})
    repository.jobs.create("few", {"name": "n", "project": "p"}, "nonce", None, "hash", 1.0)
    repository.finished_runs.add("few", a_document("m:few", 0) | {"losses": [float("nan")], "speeds": []})
    before = repository.finished_runs.of_tasks(["m:\u2603", "m:few", ""], 100, 16)
    everything = repository.finished_runs.after(0, 100)
    repository.close()
    downgrade(database_url, "0029")
    upgrade(database_url)
    repository = Repository(create_engine_from_url(database_url))
    assert repository.finished_runs.of_tasks(["m:\u2603", "m:few"], 100, 16) == before[:2]
    assert len(repository.finished_runs.after(0, 100)) == len(everything) == 4
    assert [run.job_id for run in repository.finished_runs.of_tasks([""], 100, 16)] == ["nothing", "few"]
    with repository._engine.begin() as connection:
        connection.execute(text("UPDATE finished_runs SET task = NULL"))
    assert repository.finished_runs.of_tasks(["m:\u2603"], 100, 16) == []
    repository.retention.mend_after_upgrade()
    assert repository.finished_runs.of_tasks(["m:\u2603"], 100, 16) == before[:2]
    repository.close()
