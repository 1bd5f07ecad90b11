"""A backup of the database is restored while tasks train on that began after it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.harness import Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]


LOOP = """
import time
for step in range(1, 4001):
    time.sleep(0.2)
    print(f"step {step}/4000 loss {1 / step + 0.1:.4f}", flush=True)
"""


def loop_job(name: str) -> dict[str, Any]:
    command = [sys.executable, "-c", LOOP]
    return {"name": name, "command": command, "architecture": "script", "workers": {"min": 1, "max": 1}}


def back_up(service: Service, copy: Path) -> None:
    """As `.backup` of the command line."""
    with closing(sqlite3.connect(service.directory / "optimus.db")) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def restore(service: Service, copy: Path) -> None:
    """As docs/data-directory.md says."""
    service.kill()
    for ending in ("-wal", "-shm"):
        (service.directory / f"optimus.db{ending}").unlink(missing_ok=True)
    (service.directory / "optimus.db").write_bytes(copy.read_bytes())
    service.start()


def task_of(service: Service, job_id: str, role: str) -> tuple[str, int]:
    """The newest task of this role, and its process."""
    return max((name, pid) for name, pid in service.processes().items() if name.startswith(f"{job_id}-{role}-"))


def replace_coordinator(service: Service, job_id: str) -> None:
    name, pid = task_of(service, job_id, "coordinator")
    epoch = newest_epoch(service, job_id)
    os.kill(pid, signal.SIGKILL)
    wait_until(f"another follows {name}", lambda: newest_epoch(service, job_id) > epoch, 90.0)


def newest_epoch(service: Service, job_id: str) -> int:
    told = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    return max((each["membership_epoch"] for each in told), default=0)


def change(service: Service, job_id: str, verb: str) -> None:
    answer = service.client.post(f"/v1/jobs/{job_id}/{verb}")
    assert answer.is_success, answer.text


def trains(service: Service, job_id: str, step: int) -> bool:
    job = service.job(job_id)
    return bool(job["state"] == "running" and job["step"] >= step)


def wait_for_steps(service: Service, job_id: str, more: int = 5) -> None:
    step = service.job(job_id)["step"] + more
    wait_until(f"{job_id} runs and has made step {step}", partial(trains, service, job_id, step), 90.0)


def has_one_of_each(service: Service, job_id: str) -> bool:
    names = (name for name in service.processes() if name.startswith(job_id))
    return sorted(name.split("-")[-3] for name in names) == ["coordinator", "worker"]


def test_tasks_that_began_after_the_backup_collide_with_nothing(service: Service, tmp_path: Path) -> None:
    started, replaced = service.submit(loop_job("started")), service.submit(loop_job("replaced"))
    for job_id in (started, replaced):
        wait_for_steps(service, job_id)
    change(service, started, "pause")
    wait_until("it is paused", lambda: service.job(started)["state"] == "paused")
    wait_until("its tasks are gone", lambda: not [each for each in service.processes() if each.startswith(started)])
    back_up(service, tmp_path / "copy.db")
    change(service, replaced, "pause")
    wait_until("it is paused", lambda: service.job(replaced)["state"] == "paused")
    for job_id in (started, replaced):
        change(service, job_id, "resume")
    for job_id in (started, replaced):
        wait_for_steps(service, job_id)
    trained = {name: pid for name, pid in service.processes().items() if name.startswith(replaced)}

    restore(service, tmp_path / "copy.db")

    change(service, started, "resume")
    for job_id in (started, replaced):
        wait_for_steps(service, job_id)
        events = service.get(f"/v1/jobs/{job_id}/events", limit=200)["events"]
        assert "TasksAdopted" in [event["type"] for event in events]
    now = service.processes()
    assert {name: now.get(name) for name in trained} == trained, "it trains on in the same processes"
    # Nothing of a job runs twice, and nothing that runs has lost its coordinator.
    for job_id in (started, replaced):
        wait_until("one coordinator and one worker run", partial(has_one_of_each, service, job_id), 60.0)
    wait_for_steps(service, started, 20)
    assert service.get("/v1/cluster")["unknown_tasks"] == []


def test_a_job_whose_coordinator_was_replaced_since_the_backup_tells_every_step_and_loses_none(
    service: Service, tmp_path: Path
) -> None:
    job_id = service.submit(loop_job("told"))
    wait_for_steps(service, job_id)
    back_up(service, tmp_path / "copy.db")
    shutil.copytree(service.directory / "jobs", tmp_path / "jobs")
    for _ in range(2):
        replace_coordinator(service, job_id)
    wait_for_steps(service, job_id)
    trained, epoch = task_of(service, job_id, "worker"), newest_epoch(service, job_id)
    service.kill()
    told = service.sequences(job_id)[epoch, 0][-1]

    restore(service, tmp_path / "copy.db")

    wait_until("its newest steps are told", lambda: (epoch, 0) in service.sequences(job_id), 90.0)
    wait_for_steps(service, job_id)
    counted = service.sequences(job_id)[epoch, 0]
    assert counted == list(range(counted[0], counted[-1] + 1))
    assert counted[0] <= told + 1, "what was not told before the restore has waited"
    wait_until("dead tasks are gone from its list", lambda: has_tasks_that_run(service, job_id), 30.0)

    # With the journal of the backup beside it the numbers of memberships are not used a second time.
    service.kill()
    shutil.rmtree(service.directory / "jobs" / job_id)
    shutil.copytree(tmp_path / "jobs" / job_id, service.directory / "jobs" / job_id)
    restore(service, tmp_path / "copy.db")
    wait_for_steps(service, job_id)
    replace_coordinator(service, job_id)
    wait_for_steps(service, job_id, 10)
    assert newest_epoch(service, job_id) > epoch
    assert {each["lost_steps"] for each in service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]} == {0}
    assert task_of(service, job_id, "worker") == trained
    wait_until("dead tasks are gone from its list", lambda: has_tasks_that_run(service, job_id), 30.0)


def has_tasks_that_run(service: Service, job_id: str) -> bool:
    listed = {each["name"] for each in service.get(f"/v1/jobs/{job_id}/tasks")["tasks"]}
    return listed == {name for name in service.processes() if name.startswith(job_id)}
