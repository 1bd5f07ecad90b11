"""What every task of a real job takes of this machine, as the real service tells it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.end_to_end.harness import Service, wait_until
from tests.end_to_end.test_survival import digits_job

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]
MEMORY = "optimus_job_used_memory_bytes"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_all_tasks_are_told_with_the_kernels_figures(service: Service) -> None:
    job_id = service.submit(
        digits_job("watched", mode="async", gradient_statistics=True, convergence={"max_epochs": 10_000})
    )

    def tasks() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = service.get(f"/v1/jobs/{job_id}/tasks")["tasks"]
        return found

    def all_told() -> list[dict[str, Any]]:
        found = tasks()
        roles = {task["role"] for task in found}
        return found if len(roles) == 3 and all(task["usage"] for task in found) else []

    told = wait_until("each task has told what it uses", all_told)
    processes = service.processes()
    for task in told:
        assert task["node"].startswith("local")
        assert task["usage"]["memory_bytes"] == pytest.approx(resident_bytes(processes[task["name"]]), rel=0.5)

    def by_role(name: str) -> dict[str, float]:
        text = service.client.get("/metrics").text
        found = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {each.labels["role"]: each.value for each in found if each.name == name}

    memory = wait_until("all roles in the metrics", lambda: len(by_role(MEMORY)) == 3 and by_role(MEMORY))
    assert memory["coordinator"] + memory["server"] < memory["worker"], "only workers have torch"
    assert by_role("optimus_job_used_cpu_cores")["worker"] > 0
    wait_until("the noise scale of an asynchronous job", lambda: service.job(job_id)["noise_scale"])
    assert service.client.post(f"/v1/jobs/{job_id}/cancel").is_success
    wait_until("its end", lambda: service.job(job_id)["finished_at"])
    assert tasks() == []
