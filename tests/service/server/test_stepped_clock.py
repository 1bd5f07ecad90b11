"""A real service whose machine's clock is set while a job trains, and again while the service is away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from tests.service.clusters.cluster_harness import wait_until
from tests.service.server.test_server import interpreted

from optimus_workers.wire.ports import reserve_port

STEPPED = """
import pathlib, time
_time, _step = time.time, pathlib.Path({path!r})
time.time = lambda: _time() + float(_step.read_text())
"""
JOB: dict[str, Any] = {
    "name": "long",
    "task": "paced:mlp",
    "task_args": {"seconds_per_pass": 0.1},
    "working_directory": str(Path(__file__).parents[2] / "tasks"),
    "convergence": {"max_seconds": 3600},
    "workers": {"max": 1},
}


def test_neither_two_hours_ahead_nor_one_back_ends_or_holds_a_job(tmp_path: Path) -> None:
    step = tmp_path / "step"
    step.write_text("0")
    first = STEPPED.format(path=str(step))
    data = tmp_path / "data"
    settings = {"OPTIMUS_ROUND_SECONDS": "1", "OPTIMUS_PORT": str(reserve_port("127.0.0.1"))}
    with interpreted(data, first, **settings) as (_, told), _client(told) as client:
        job_id = client.post("/v1/jobs", json=JOB).json()["id"]
        wait_until("it trains", lambda: _job(client, job_id)["state"] == "running")
        step.write_text("7200")
        _rounds_pass(client)
        assert _job(client, job_id)["state"] == "running"
        membership = _job(client, job_id)["membership_epoch"]
    (data / "service.json").unlink()  # of the service that was killed
    step.write_text("-3600")
    with interpreted(data, first, **settings, OPTIMUS_STOP_TASKS="true") as (process, told):
        with _client(told) as client:
            before = _job(client, job_id)
            assert before["membership_epoch"] == membership
            _rounds_pass(client)
            wait_until("it trains on", lambda: _job(client, job_id)["step"] > before["step"])
            assert _job(client, job_id)["state"] == "running"
            client.post(f"/v1/jobs/{job_id}/cancel")
            wait_until("it is cancelled", lambda: _job(client, job_id)["state"] == "cancelled")
        process.terminate()
        process.wait(60)


def _client(told: dict[str, Any]) -> httpx.Client:
    return httpx.Client(base_url=told["url"], trust_env=False, timeout=30)


def _job(client: httpx.Client, job_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/v1/jobs/{job_id}").json()
    return answer


def _rounds_pass(client: httpx.Client) -> None:
    """Three of them, which see the clock as it is now."""

    def newest() -> int:
        number: int = client.get("/v1/rounds", params={"limit": 1}).json()["rounds"][0]["id"]
        return number

    before = newest()
    wait_until("rounds pass", lambda: newest() >= before + 3)
