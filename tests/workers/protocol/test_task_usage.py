"""What servers and the coordinator take of their machines reaches the service."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workers.protocol.conftest import Job, server, worker

from optimus_contract.telemetry import TaskUsageReport, Telemetry, Usage
from optimus_service.requests import checked
from optimus_workers.coordinator.service_calls import UsageReporter
from optimus_workers.errors import ServiceAway
from optimus_workers.wire.messages import Pong

COORDINATOR = "job-coordinator-0-0"


def resident_bytes(pid: int) -> int:
    """As the kernel says."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_real_servers_and_their_coordinator_tell_what_they_use(make_job: Callable[..., Job]) -> None:
    job = make_job({"step_seconds": 0.002}, lease_seconds=12.0)
    names = [server(0), server(1), COORDINATOR]
    job.scale(worker(0), server(0), server(1))
    job.wait_for_step(20)

    def told(name: str) -> list[dict[str, Any]]:
        return [each["usage"] for each in job.service.usage if each["task"] == name]

    job.wait_for("usage of all three, twice", lambda: all(len(told(name)) >= 2 for name in names))
    for name in names:
        newest = told(name)[-1]
        # Of that very process: each has a size of its own, and neither has torch, which takes 200 MB by itself.
        assert newest["memory_bytes"] == pytest.approx(resident_bytes(job.processes[name].pid), rel=0.3)
        assert all(0.0 <= each["cpu_cores"] <= 2 * (os.cpu_count() or 1) for each in told(name))
        assert any(each["cpu_cores"] > 0.0 for each in told(name))
        assert newest["memory_bytes"] < 100e6
    assert told(worker(0)) == [], "workers tell it with their samples"
    checked(Telemetry, {"tasks": job.service.usage[-3:]})

    job.scale(worker(0), server(0))
    job.wait_for_size(1, 1)
    gone = len(told(server(1)))
    told_before = len(told(COORDINATOR))
    job.wait_for("two more reports", lambda: len(told(COORDINATOR)) >= told_before + 2)
    assert len(told(server(1))) <= gone + 1, "what is gone is not told of again"


class Client:
    """Takes what is posted; away until `back` is set."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.back = threading.Event()
        self.posts: list[list[TaskUsageReport]] = []
        self.posted = threading.Semaphore(0)

    def post_usage(self, tasks: list[TaskUsageReport]) -> None:
        self.asked.release()
        if not self.back.is_set():
            raise ServiceAway("not now")
        self.posts.append(tasks)
        self.posted.release()


def test_what_was_heard_while_the_service_was_away_is_not_told_late() -> None:
    client = Client()
    reporter = UsageReporter(client, COORDINATOR)  # type: ignore[arg-type]
    reporter.heard("job-server-0-0", Pong(0.25, 100))
    reporter.report()
    assert client.asked.acquire(timeout=60)
    client.back.set()
    reporter.heard("job-server-1-0", Pong(0.5, 200))
    reporter.heard("job-server-2-0", Pong(0.5, 200))
    reporter.heard("job-worker-0-0", Pong())
    reporter.forget("job-server-2-0")
    reporter.report()
    assert client.posted.acquire(timeout=60)
    ((first, own),) = client.posts
    assert first == TaskUsageReport(task="job-server-1-0", usage=Usage(cpu_cores=0.5, memory_bytes=200))
    assert own.task == COORDINATOR
    assert own.usage.memory_bytes > 1_000_000
