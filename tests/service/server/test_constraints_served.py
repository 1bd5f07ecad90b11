"""GPU types, quotas and traces in a running service, with tasks that are processes of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from tests.service.clusters.cluster_harness import wait_until
from tests.service.server.test_server import serving

SCRIPT = """#!/bin/sh
case "$*" in *check_task* | *try_task*) exit 0 ;; esac
echo "type [$OPTIMUS_GPU_TYPE] count [$OPTIMUS_GPUS] may use [$CUDA_VISIBLE_DEVICES]"
exec sleep 1000
"""


def test_a_job_gets_gpus_of_one_type_within_its_quota(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(SCRIPT)
    python.chmod(0o700)
    settings = {
        "OPTIMUS_LOCAL_PYTHON": str(python),
        "OPTIMUS_LOCAL_NODES": "2",
        "OPTIMUS_LOCAL_GPUS": json.dumps({"k80": 2, "v100": 2}),
        "OPTIMUS_STOP_TASKS": "true",
        "OPTIMUS_DEBOUNCE_SECONDS": "0.05",
    }
    with serving(tmp_path / "data", **settings) as (process, told):
        with httpx.Client(base_url=told["url"], trust_env=False, timeout=30) as client:
            quota = {"gpus": {"k80": 1}, "may_borrow": False}
            assert client.put("/v1/projects/vision", json=quota).status_code == 201
            jobs = [client.post("/v1/jobs", json=_job(name)).json()["id"] for name in ("one", "two")]
            wait_until("one job has its tasks", lambda: len(_logs(client, jobs)) == 3)
            waiting = [job for job in jobs if client.get(f"/v1/jobs/{job}").json()["wanted"]["workers"] == 0]
            assert len(waiting) == 1
            wait_until("it is told why", lambda: _reason(client, waiting[0]) == "WaitingForQuota")
            worker = next(text for task, text in _logs(client, jobs).items() if "-worker-" in task)
            assert worker == "type [k80] count [1] may use [0]"
            others = [text for task, text in _logs(client, jobs).items() if "-worker-" not in task]
            assert others == ["type [] count [] may use []"] * 2
            project = client.get("/v1/projects/vision").json()
            assert (project["used"]["gpus"], project["guaranteed"]["gpus"]) == ({"k80": 1}, {"k80": 1})
            trace = [json.loads(line) for line in client.get("/v1/trace").text.splitlines()]
            assert [group["gpus"] for group in trace[0]["nodes"]] == [{"k80": 2}, {"v100": 2}]
            assert trace[-1] == {"end": {"jobs": 0, "active": 2, "unmeasured": 0}}
        process.terminate()
        process.communicate(timeout=240)


def _reason(client: httpx.Client, job: str) -> str | None:
    reason: str | None = client.get(f"/v1/jobs/{job}").json()["reason"]
    return reason


def _job(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "project": "vision",
        "task": "mine:task",
        "gpu_types": ["k80", "v100"],
        "workers": {"resources": {"cpu": 0.5, "gpus": 1}},
        "servers": {"resources": {"cpu": 0.5}},
    }


def _logs(client: httpx.Client, jobs: list[str]) -> dict[str, str]:
    """What the tasks have printed, by task; those that have printed."""
    logs = [log for job in jobs for log in client.get(f"/v1/jobs/{job}/logs").json()["logs"]]
    return {log["task"]: log["text"].strip() for log in logs if log["text"]}
