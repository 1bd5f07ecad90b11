"""An upgrade under faults: an earlier release at work beside the present one, on one database."""

from __future__ import annotations

from importlib import import_module

import pytest
from optimus_world.__main__ import reproduction
from optimus_world.release import BEFORE_0025, NoHistory, Release, load
from optimus_world.world import Script, run

import optimus_service.store.database.tables
from optimus_scheduler.model import Resources, Role, Task, TaskKey, TaskPhase
from optimus_service.clusters.base import TaskLaunch
from optimus_service.store.jobs import wanted


@pytest.fixture(scope="module")
def earlier() -> Release:
    try:
        return load(BEFORE_0025)
    except NoHistory as missing:
        pytest.skip(f"the earlier release cannot be had, for example in a shallow clone: {missing}")


def test_the_earlier_release_is_another_code(earlier: Release) -> None:
    present = optimus_service.store.database.tables
    with earlier:
        those = import_module("optimus_service.store.tables")  # where it was then
        assert those is not present
        assert not hasattr(those, "EndedJobsRow")
    assert import_module("optimus_service.store.database.tables") is present


def test_values_cross_the_border_by_what_the_other_knows(earlier: Release) -> None:
    task = Task(TaskKey("j", Role.WORKER, 1), "n", TaskPhase.EXITED, exit_code=1, resources=Resources(1.0))
    theirs = earlier.own((task,))[0]
    assert type(theirs) is not Task
    assert type(theirs.phase) is not TaskPhase
    assert earlier.present(theirs) == task
    launch = TaskLaunch(task.key, "n", Resources(2.0), {"A": "b"})
    assert earlier.present(earlier.own(launch)) == launch


@pytest.mark.parametrize("seed", [2, 3])
def test_no_invariant_is_broken_by_an_upgrade(seed: int, earlier: Release) -> None:
    outcome = run(Script.drawn(seed, 1.0, BEFORE_0025))
    assert outcome.violation is None, "\n".join([*outcome.story[-40:], reproduction(outcome)])
    assert outcome.n_samples > 100
    told = [line.split("  ")[-1] for line in outcome.story]
    old = {line.partition(" ")[0] for line in told if line.endswith(", of the earlier release")}
    leads = [line.partition(" ")[0] in old for line in told if line.endswith(" leads")]
    after = leads[leads.index(False) :]
    assert leads[0]
    assert True in after, "the earlier release led no more once the present one had"
    assert not leads[-1]


def test_what_the_earlier_release_cannot_read_is_noticed(earlier: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    store = wanted._store_task
    read = wanted._load_task
    monkeypatch.setattr(wanted, "_store_task", lambda job_id, task: [*store(job_id, task), "something new"])
    monkeypatch.setattr(wanted, "_load_task", lambda job_id, stored: read(job_id, stored[:4]))
    outcome = run(Script.drawn(3, 1.0, BEFORE_0025))
    assert outcome.violation is not None
    assert outcome.violation.invariant in ("no thread dies", "no error is unexpected"), outcome.violation
    assert "ValueError" in outcome.violation.what
    assert outcome.script.upgrade is not None
    assert outcome.violation.at > outcome.script.upgrade.at
