"""A job's tasks and what each takes of its machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.service.api.api_harness import NOW, Api, faults, membership, on_sqlite, problem, sample, telemetry
from tests.service.store.store_builders import put_task

from optimus_scheduler.model import Role, TaskKey
from optimus_service.insight.jobs.usage import LATELY_SECONDS

COORDINATOR, SERVER, WORKER, OTHER_WORKER = (
    (Role.COORDINATOR, 0, 0),
    (Role.SERVER, 0, 2),
    (Role.WORKER, 0, 0),
    (Role.WORKER, 3, 1),
)


@pytest.fixture
def job_id(api: Api) -> str:
    """A job of two workers, of which the one with number 3 has rank 0 in the membership."""
    job_id = api.submit()
    for role, rank, incarnation in (COORDINATOR, SERVER, WORKER, OTHER_WORKER):
        put_task(api.repository, TaskKey(job_id, role, rank, incarnation), "node-1", NOW - 5)
    names = [name(job_id, OTHER_WORKER), name(job_id, WORKER)]
    report = membership(job_id) | {"workers": names, "servers": [name(job_id, SERVER)]}
    assert api.as_task("POST", job_id, "membership", json=report).status_code == 204
    return job_id


def name(job_id: str, task: tuple[Role, int, int]) -> str:
    return TaskKey(job_id, *task).name


def used(cpu_cores: float, memory_bytes: int) -> dict[str, Any]:
    return {"cpu_cores": cpu_cores, "memory_bytes": memory_bytes}


def tell(api: Api, job_id: str, **usage: Any) -> None:
    """By role, of the tasks above."""
    tasks = {"coordinator": COORDINATOR, "server": SERVER}
    told = [{"task": name(job_id, tasks[role]), "usage": each} for role, each in usage.items()]
    answer = api.as_task("POST", job_id, "telemetry", json={"tasks": told})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"accepted": 0, "ignored": []}


def tasks_of(api: Api, job_id: str) -> dict[str, Any]:
    answer = api.get(f"/v1/jobs/{job_id}/tasks")
    assert answer.status_code == 200, answer.text
    return {task["name"]: task for task in answer.json()["tasks"]}


def test_each_task_is_shown_with_what_it_uses(api: Api, job_id: str) -> None:
    tell(api, job_id, server=used(0.5, 200), coordinator=used(0.125, 50))
    tell(api, job_id, server=used(0.75, 300))
    first = sample(usage={**used(0.9, 1000), "gpu_utilization": 0.5, "gpu_memory_bytes": 7})
    answer = api.as_task("POST", job_id, "telemetry", json=telemetry(first, sample(rank=1, usage=used(0.8, 900))))
    assert answer.json()["accepted"] == 2

    tasks = tasks_of(api, job_id)
    assert set(tasks) == {name(job_id, task) for task in (COORDINATOR, SERVER, WORKER, OTHER_WORKER)}
    server = tasks[name(job_id, SERVER)]
    assert (server["role"], server["rank"], server["node"], server["gpu_type"]) == ("server", 0, "node-1", None)
    assert server["usage"]["at"] == "2025-10-09T08:53:20Z"
    assert server["started_at"] == "2025-10-09T08:53:15Z"
    figures = {task: (each["usage"]["cpu_cores"], each["usage"]["memory_bytes"]) for task, each in tasks.items()}
    assert figures == {
        name(job_id, COORDINATOR): (0.125, 50),
        name(job_id, SERVER): (0.75, 300),
        name(job_id, OTHER_WORKER): (0.9, 1000),
        name(job_id, WORKER): (0.8, 900),
    }
    assert tasks[name(job_id, OTHER_WORKER)]["usage"]["gpu_utilization"] == 0.5
    assert server["usage"]["gpu_memory_bytes"] is None
    assert api.job(job_id)["usage"]["memory_bytes"] == 1900, "workers only"


def test_nothing_is_said_of_who_told_nothing_lately_or_has_ended(api: Api, job_id: str) -> None:
    assert tasks_of(api, job_id)[name(job_id, SERVER)]["usage"] is None
    tell(api, job_id, server=used(0.5, 200))
    api.surroundings.clock.now += LATELY_SECONDS
    tell(api, job_id, coordinator=used(0.5, 200))
    assert tasks_of(api, job_id)[name(job_id, SERVER)]["usage"] is not None
    api.surroundings.clock.now += 1
    tasks = tasks_of(api, job_id)
    assert tasks[name(job_id, SERVER)]["usage"] is None
    assert tasks[name(job_id, COORDINATOR)]["usage"] is not None
    api.repository.tasks.mark_exited(TaskKey(job_id, *SERVER), 0, NOW)
    tell(api, job_id, server=used(0.5, 200))
    assert name(job_id, SERVER) not in tasks_of(api, job_id)
    problem(api.get("/v1/jobs/ghost/tasks"), 404)


def test_a_job_tells_nothing_of_another_ones_tasks(api: Api, job_id: str) -> None:
    other = api.submit(name="other")
    stolen = [{"task": name(job_id, SERVER), "usage": used(0.5, 200)}]
    assert api.as_task("POST", other, "telemetry", json={"tasks": stolen}).status_code == 200
    assert tasks_of(api, job_id)[name(job_id, SERVER)]["usage"] is None


@on_sqlite
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"samples": None}, "body"),
        ({"tasks": []}, "tasks"),
        ({"tasks": [{"task": "a"}]}, "tasks.0.usage"),
        ({"tasks": [{"task": "a", "usage": used(-1.0, 1)}]}, "tasks.0.usage.cpu_cores"),
        ({"tasks": [{"task": "a", "usage": used(float("nan"), 1)}]}, "tasks.0.usage.cpu_cores"),
    ],
)
def test_reports_that_say_nothing_are_refused(api: Api, job_id: str, body: dict[str, Any], field: str) -> None:
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    assert field in faults(api.as_task("POST", job_id, "telemetry", content=content, headers=headers))
