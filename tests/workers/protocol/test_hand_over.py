"""Coordinators that are replaced while they live: one at a time has a say, and those that leave are let go."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from tests.workers.protocol.conftest import Job, server, worker

from optimus_workers.coordinator.journal import Began, Journal, _signed_record
from optimus_workers.errors import LEAVE_SECONDS, LET_GO, TERMINATED

# Whole processes on a machine that may be busy with other tests.
ARGUMENTS: dict[str, Any] = {"step_seconds": 0.01}


def writers(job: Job) -> list[int]:
    """Who wrote each record of the journal."""
    lines = (job.directory / "journal.jsonl").read_bytes().splitlines()
    return [_signed_record(line, None)[0] for line in lines]


def test_a_coordinator_that_is_cut_off_stops_when_another_has_begun(make_job: Callable[..., Job]) -> None:
    job = make_job(ARGUMENTS)
    job.scale(worker(0), server(0))
    job.wait_for_size(1, 1)
    # The service and the tasks lose sight of it; it goes on, on its own address, with the same journal.
    job.port += 1
    job.start_coordinator()
    assert job.exit_code("job-coordinator-0-0") == TERMINATED
    assert "coordinator 1 of this job has begun, and this is 0" in job.logs()
    assert job.processes["job-coordinator-0-1"].poll() is None
    found = writers(job)
    assert found == sorted(found)
    # A third that is older than the second does not even begin.
    job.start("job-coordinator-0-0")
    assert job.exit_code("job-coordinator-0-0") == TERMINATED
    assert writers(job) == found
    journal = Journal(job.directory, 2)
    assert not any(isinstance(record, Began) for record in journal.read())
    journal.close()


def test_a_drained_node_lets_its_tasks_go_before_its_coordinator(make_job: Callable[..., Job]) -> None:
    job = make_job(ARGUMENTS)
    job.scale(worker(0), worker(1), server(0))
    both = job.wait_for_size(2, 1)
    job.wait_for_step(both["step"] + 5)
    for name in ("job-coordinator-0-0", worker(1)):
        job.processes[name].send_signal(signal.SIGTERM)
    assert job.processes[worker(1)].wait(LEAVE_SECONDS - 5.0) in (LET_GO, TERMINATED)
    assert job.exit_code("job-coordinator-0-0") == TERMINATED
    alone = job.wait_for_size(1, 1, after_epoch=both["epoch"])
    assert alone["lost_steps"] == 0
    job.start_coordinator()
    after = job.wait_for_size(1, 1, after_epoch=alone["epoch"])
    assert (after["cause"], after["lost_steps"]) == ("coordinator_restart", 0)
    job.wait_for_step(after["step"] + 5)


def test_a_coordinator_that_nobody_leaves_goes_soon(make_job: Callable[..., Job]) -> None:
    job = make_job(ARGUMENTS)
    job.scale(worker(0), server(0))
    formed = job.wait_for_size(1, 1)
    job.wait_for_step(formed["step"] + 5)
    job.processes["job-coordinator-0-0"].send_signal(signal.SIGTERM)
    assert job.exit_code("job-coordinator-0-0") == TERMINATED
    assert {job.processes[name].poll() for name in (worker(0), server(0))} == {None}
