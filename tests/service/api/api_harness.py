"""The API under test, called without a network: requests go through all its layers, answers come back as values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
from anyio.from_thread import BlockingPortal

from optimus_scheduler.model import Node, Resources
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.store.repository import Repository

NOW = 1_760_000_000.0
CORES = 8
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For the many tests of requests that are refused before the database is asked: once is enough."""
MEMORY_BYTES = 8 * 2**30


@dataclass
class Clock:
    """A clock that stands still unless it is moved."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Surroundings:
    """What a test may do to the service's surroundings."""

    cluster: FakeCluster = field(default_factory=lambda: FakeCluster([Node("node-1", Resources(CORES, MEMORY_BYTES))]))
    clock: Clock = field(default_factory=Clock)
    triggers: list[str] = field(default_factory=list)
    """Why rounds were asked for."""
    loop_error: str | None = None


@dataclass
class Api:
    """A client of one app. `token` is sent with every call unless another one is given."""

    portal: BlockingPortal
    client: httpx.AsyncClient
    services: Services
    surroundings: Surroundings
    token: str | None = None

    @property
    def repository(self) -> Repository:
        return self.services.repository

    def call(self, method: str, path: str, *, token: str | None = None, **options: Any) -> httpx.Response:
        """One request. `token` "" sends none."""
        answer: httpx.Response = self.portal.call(self.call_async(method, path, token=token, **options))
        return answer

    def call_async(
        self, method: str, path: str, *, token: str | None = None, **options: Any
    ) -> Callable[[], Coroutine[Any, Any, httpx.Response]]:
        """The same request, to be made in the event loop."""
        sent = self.token if token is None else token
        headers = {**({"Authorization": f"Bearer {sent}"} if sent else {}), **options.pop("headers", {})}

        async def request() -> httpx.Response:
            return await self.client.request(method, path, headers=headers, **options)

        return request

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.call("POST", path, **options)

    # --- jobs

    def submit(self, **spec: Any) -> str:
        """A job's id."""
        answer = self.post("/v1/jobs", json=job_spec(**spec))
        assert answer.status_code == 201, answer.text
        return cast(str, answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return cast(dict[str, Any], answer.json())

    def job_token(self, job_id: str) -> str:
        return self.services.job_tokens.issue(job_id, self.repository.jobs.get(job_id).token_nonce)

    def as_task(self, method: str, job_id: str, what: str, **options: Any) -> httpx.Response:
        """A call of the job's own tasks: `as_task("POST", job_id, "telemetry", json=...)`."""
        return self.call(method, f"/v1/jobs/{job_id}/{what}", token=self.job_token(job_id), **options)

    def start(self, job_id: str, **report: Any) -> None:
        """Report a membership, by default the first one with two workers and one server."""
        answer = self.as_task("POST", job_id, "membership", json=membership(job_id, **report))
        assert answer.status_code == 204, answer.text


def job_spec(**changes: Any) -> dict[str, Any]:
    return {"name": "digits", "task": "package.module:task", **changes}


def membership(job_id: str, workers: int = 2, servers: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "epoch": 1,
        "generation": 1,
        "at": NOW,
        "step": 0,
        "workers": [f"{job_id}-worker-{rank}-0" for rank in range(workers)],
        "servers": [f"{job_id}-server-{rank}-0" for rank in range(servers)],
        "cause": "start",
        **changes,
    }


def sample(**changes: Any) -> dict[str, Any]:
    return {
        "membership_epoch": 1,
        "rank": 0,
        "sequence": 0,
        "workers": 2,
        "servers": 1,
        "at": NOW,
        "step": 10,
        "n_steps": 10,
        "data_epoch": 1.0,
        "loss": 2.5,
        "n_examples": 640,
        "seconds": 1.0,
        **changes,
    }


def telemetry(*samples: Mapping[str, Any]) -> dict[str, Any]:
    return {"samples": list(samples) or [sample()]}


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem document of an answer, after checking that it is a proper one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = cast(dict[str, Any], answer.json())
    assert document["status"] == status
    assert document["type"].startswith("urn:optimus:problem:")
    assert document["title"]
    assert document["detail"]
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


def faults(answer: httpx.Response, status: int = 422) -> dict[str, str]:
    """The fields at fault and what is said of each."""
    return {error["field"]: error["message"] for error in problem(answer, status)["errors"]}


async def until(condition: Callable[[], bool]) -> None:
    """Give way to others until `condition` holds. The caller bounds the time."""
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0)
