"""kill -9 of the service, of a worker, of a server, of a coordinator: nothing is lost and the jobs finish."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from tests.end_to_end.harness import Service, wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]


def digits_job(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "task": "optimus_workers.zoo.digits:mlp",
        "convergence": {"max_epochs": 60},
        "checkpoint_seconds": 2,
        "workers": {"min": 1, "max": 2},
        "servers": {"min": 1, "max": 2},
        **changes,
    }


def events_of(service: Service, job_id: str, kind: str) -> list[dict[str, Any]]:
    found = service.get(f"/v1/jobs/{job_id}/events", limit=200)["events"]
    return [event for event in found if event["type"] == kind]


def running_tasks(service: Service, job_id: str, role: str) -> list[str]:
    return sorted(name for name in service.processes() if name.startswith(f"{job_id}-{role}-"))


def train_until(service: Service, job_id: str, step: int) -> None:
    wait_until(f"{job_id} has made {step} steps", lambda: service.job(job_id)["step"] >= step)


def assert_steps_never_went_back(service: Service, job_id: str) -> None:
    points = service.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    steps = [point["step"] for point in points]
    assert steps == sorted(steps)
    assert [point["lost_steps"] for point in points] == [0] * len(points), points


def test_killed_service_adopts_its_tasks_and_loses_nothing(service: Service) -> None:
    first = service.submit(digits_job("first"))
    second = service.submit(digits_job("second", mode="async", task="optimus_workers.zoo.digits:cnn"))
    for job_id in (first, second):
        train_until(service, job_id, 20)
    service.kill()
    before = service.processes()
    assert running_tasks(service, first, "worker")
    acknowledged = {job_id: service.sequences(job_id) for job_id in (first, second)}

    service.start()

    for job_id in (first, second):
        now = service.sequences(job_id)
        for key, numbers in acknowledged[job_id].items():
            assert set(numbers) <= set(now[key])
    # Whatever still runs is the very same process; nothing was started a second time under a new incarnation.
    wait_until("a round has run", lambda: service.get("/v1/cluster")["last_round_at"])
    survivors = {name: pid for name, pid in service.processes().items() if name in before}
    assert survivors
    assert all(before[name] == pid for name, pid in survivors.items())
    for job_id in (first, second):
        job = service.wait_for_end(job_id)
        assert job["result"]["metrics"]["test_accuracy"] > 0.8
        assert_steps_never_went_back(service, job_id)
        for numbers in service.sequences(job_id).values():
            assert numbers == list(range(len(numbers))), "a sample is missing"
        assert not [event for event in events_of(service, job_id, "TaskExited") if event["data"].get("exit_code")]


def lost_steps(service: Service, job_id: str) -> int:
    return sum(point["lost_steps"] for point in service.get(f"/v1/jobs/{job_id}/allocations")["allocations"])


def kill_and_see_replaced(service: Service, job_id: str, role: str) -> str:
    """The task of this role that was killed; another one has its place."""
    victim = running_tasks(service, job_id, role)[0]
    os.kill(service.processes()[victim], signal.SIGKILL)
    wait_until(
        "the task was replaced or its job went on without it",
        lambda: [name for name in running_tasks(service, job_id, role) if name != victim],
    )
    return victim


def _was_heard(service: Service, job_id: str, role: str) -> bool:
    return any(
        task["usage"] is not None for task in service.get(f"/v1/jobs/{job_id}/tasks")["tasks"] if task["role"] == role
    )


def test_a_stopped_coordinator_is_replaced_while_its_tasks_wait_for_it(service: Service) -> None:
    job_id = service.submit(digits_job("waits", checkpoint_seconds=3000, convergence={"max_epochs": 400}))
    train_until(service, job_id, 20)
    wait_until("the coordinator was heard", lambda: _was_heard(service, job_id, "coordinator"))
    tasks = set(running_tasks(service, job_id, "worker") + running_tasks(service, job_id, "server"))
    (stopped,) = running_tasks(service, job_id, "coordinator")
    os.killpg(os.getpgid(service.processes()[stopped]), signal.SIGSTOP)
    wait_until("it is told", lambda: events_of(service, job_id, "CoordinatorSilent"))
    wait_until("another takes over", lambda: service.job(job_id)["membership_epoch"] > 1)
    assert stopped not in running_tasks(service, job_id, "coordinator")
    train_until(service, job_id, service.job(job_id)["step"] + 1)
    assert tasks <= set(running_tasks(service, job_id, "worker") + running_tasks(service, job_id, "server"))
    assert_steps_never_went_back(service, job_id)


def test_job_survives_the_death_of_each_of_its_processes(service: Service) -> None:
    """One after the other, each while it trains again."""
    job_id = service.submit(digits_job("loses-all"))
    train_until(service, job_id, 40)
    victims: list[str] = []
    for role in ("worker", "coordinator", "server"):
        assert lost_steps(service, job_id) <= len(victims), "only a lost server may cost more than one"
        step = service.job(job_id)["step"]
        victims.append(kill_and_see_replaced(service, job_id, role))
        train_until(service, job_id, step + 40)
    job = service.wait_for_end(job_id)
    assert job["result"]["metrics"]["test_accuracy"] > 0.8
    assert job["step"] == job["result"]["step"]
    exits = events_of(service, job_id, "TaskExited")
    killed = [event["data"]["task"] for event in exits if event["data"]["exit_code"] == 137]
    assert set(victims) <= set(killed)
