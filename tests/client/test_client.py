"""`Client` and `AsyncClient` against the service's own API over HTTP, and against one that fails."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from tests.cli import builders
from tests.cli.test_real_api import api as served

import optimus_client
from optimus_client.answers import Explanation, Job, Plan, Predictions, Table, Update
from optimus_client.configuration import configuration_file, place, store
from optimus_client.tracking import tracked_spec

api = served
SPEC = {"task": "pkg.net:net", "workers": {"max": 2}, "convergence": {"max_epochs": 3}}


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPTIMUS_URL", raising=False)
    monkeypatch.delenv("OPTIMUS_TOKEN", raising=False)


def test_a_jobs_way(api: str) -> None:
    with optimus_client.Client(api) as client:
        job = client.submit({**SPEC, "name": "first"}, idempotency_key="once")
        assert client.submit({**SPEC, "name": "first"}, idempotency_key="once") == job
        assert (job.name, job.state, job.is_ended) == ("first", "queued", False)
        assert job.created_at.tzinfo == UTC
        assert job.body["spec"]["workers"]["max"] == 2
        assert [each.id for each in client.list(name="first", state=["queued", "running"])] == [job.id]
        assert client.get(job.id) == client.find(job.id) == client.find("first") == job
        assert client.find("firs") is None
        assert client.explain(job.id).job_id == job.id
        assert client.predict(job.id, workers="1-4").confidence >= 0
        assert client.logs(job.id) == ()
        assert client.cancel(job.id).state == "cancelled"
        assert [each.state for each in client.watch(job.id)] == ["cancelled"]


def test_lists_have_all_pages(api: str) -> None:
    client = optimus_client.Client(api)
    for index in range(5):
        client.submit({**SPEC, "name": f"page-{index}"})
    assert len(client.list(name="page-", limit=3)) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optimus_client.calls.PAGE_SIZE", 2)
        assert [each.name for each in client.list(name="page-")] == [f"page-{index}" for index in range(4, -1, -1)]


def test_a_job_is_watched_to_its_end(api: str) -> None:
    client = optimus_client.Client(api)
    job = client.submit({**SPEC, "name": "watched"})
    updates = client.watch(job.id)
    assert next(updates).state == "queued"
    threading.Timer(1.5, client.cancel, [job.id]).start()
    assert [each.state for each in updates][-1] == "cancelled"


def test_asyncio(api: str) -> None:
    async def way() -> list[str]:
        async with optimus_client.AsyncClient(api) as client:
            job = await client.submit(SPEC | {"name": "async"})
            assert [each.id for each in await client.list(name="async")] == [job.id]
            assert await client.get(job.id) == await client.find("async") == job
            assert (await client.explain(job.id)).state == "queued"
            assert (await client.predict(job.id)).speeds is not None
            assert await client.logs(job.id) == ()
            states = []
            async for update in client.watch(job.id):
                states.append(update.state)
                if len(states) == 1:
                    await client.cancel(job.id)
            with pytest.raises(optimus_client.NotFound):
                await client.get("no-such-job")
            return states

    states = asyncio.run(way())
    assert (states[0], states[-1]) == ("queued", "cancelled")


def test_refusals_carry_the_problem(api: str) -> None:
    client = optimus_client.Client(api)
    with pytest.raises(optimus_client.NotFound) as missing:
        client.get("no-such-job/../x")
    assert (missing.value.status, missing.value.problem["type"]) == (404, "urn:optimus:problem:not-found")
    with pytest.raises(optimus_client.NotFound):
        next(client.watch("no-such-job"))
    with pytest.raises(optimus_client.Invalid) as invalid:
        client.submit({"name": "bad", "task": "a:b", "workers": {"max": 0}})
    assert "workers.max" in invalid.value.errors
    assert "workers.max: " in str(invalid.value)
    job = client.submit({**SPEC, "name": "twice"})
    client.cancel(job.id)
    with pytest.raises(optimus_client.Conflict):
        client.cancel(job.id)


# --- a service that fails --------------------------------------------------------------------------------------------


@contextmanager
def scripted(answer: Callable[[str, int], tuple[int, bytes]]) -> Iterator[tuple[str, list[Any]]]:
    """A service that answers (path, number of the request); its address and the requests' headers."""
    requests: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.headers)
            status, content = answer(self.path, len(requests))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Not needed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()


def _event(name: str, data: Any) -> bytes:
    return f": comment\n\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _line(**changes: Any) -> dict[str, Any]:
    job = builders.job()
    return {**job, **job["running"], "state": "running", "id": "j", **changes}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_watching_outlasts_a_service_that_restarts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that break, refusals for the moment, lines of other jobs, and what was said before."""
    monkeypatch.setattr("optimus_client.client.RETRY_SECONDS", 0.01)
    streams = iter(
        [
            _event("jobs", [_line(step=1), _line(id="other")]) + _event("jobs", [_line(step=2)]),
            b"event: jobs\ndata: [{",
            None,
            _event("jobs", [_line(step=2)]) + _event("jobs", [_line(step=3, state="succeeded")]),
        ]
    )
    served = {"step": 1}

    def answer(path: str, _: int) -> tuple[int, bytes]:
        if path == "/v1/stream":
            content = next(streams)
            served["step"] = 2
            return (503, b"{}") if content is None else (200, content)
        return 200, json.dumps(_line(step=served["step"])).encode()

    with scripted(answer) as (url, _):
        if kind == "sync":
            updates = list(optimus_client.Client(url).watch("j"))
        else:

            async def watch() -> list[Update]:
                async with optimus_client.AsyncClient(url) as client:
                    return [each async for each in client.watch("j")]

            updates = asyncio.run(watch())
    assert [(each.step, each.state) for each in updates] == [(1, "running"), (2, "running"), (3, "succeeded")]


def test_what_is_no_service() -> None:
    with pytest.raises(optimus_client.Unreachable, match="no service answers at http"):
        optimus_client.Client("http://127.0.0.1:1").list()
    with scripted(lambda *_: (200, b"<html>")) as (url, _), pytest.raises(optimus_client.Unreachable):
        optimus_client.Client(url).get("j")
    with scripted(lambda *_: (502, b"<html>")) as (url, _), pytest.raises(optimus_client.ApiError) as error:
        optimus_client.Client(url).get("j")
    assert (error.value.status, error.value.problem) == (502, {})
    with pytest.raises(ValueError, match="is not an address like"):
        optimus_client.Client("localhost:8080")


def test_the_token_goes_to_its_service_only() -> None:
    """No redirect is followed; a stored token goes to the address that it was stored with."""
    with scripted(lambda *_: (302, b"")) as (url, requests):
        store(url, "secret")
        with pytest.raises(optimus_client.ApiError):
            optimus_client.Client().get("j")
        assert requests[0]["Authorization"] == "Bearer secret"
    assert place("http://other.example.com") == ("http://other.example.com", None)
    assert configuration_file().stat().st_mode & 0o777 == 0o600


def test_a_plan() -> None:
    with scripted(lambda *_: (200, json.dumps(builders.plan()).encode())) as (url, _):
        plan = optimus_client.Client(url).plan(SPEC)

        async def planned() -> Plan:
            async with optimus_client.AsyncClient(url) as client:
                return await client.plan(SPEC)

        assert asyncio.run(planned()) == plan
    assert repr(plan) == "\n".join(builders.plan()["sentences"])
    assert plan.allocation.workers == builders.plan()["allocation"]["workers"]


def test_a_submission_is_repeated_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimus_client.client.RETRY_SECONDS", 0.01)
    answers = {1: (200, b"<html>"), 2: (201, json.dumps(builders.job()).encode())}
    with scripted(lambda _, number: answers[number]) as (url, requests):
        assert isinstance(optimus_client.Client(url).submit(SPEC), Job)
    assert len({each["Idempotency-Key"] for each in requests}) == 1
    assert len(requests) == 2


# --- what answers look like ------------------------------------------------------------------------------------------


def test_answers_print_and_show_as_html() -> None:
    job = Job.of(builders.job(name="<b>"))
    assert repr(job).startswith(f"<Job {job.id} {job.state}: step {job.step}, loss ")
    assert "&lt;b&gt;" in job._repr_html_()
    table = Table([job])
    assert table._repr_html_().count("<tr>") == 2
    assert Table()._repr_html_() == "<p>none</p>"
    assert repr(Explanation.of(builders.explanation())) == "\n".join(builders.explanation()["sentences"])
    predictions = Predictions.of(builders.predictions())
    assert "confidence" in repr(predictions)
    assert "<table>" in predictions._repr_html_()
    assert Plan.of(builders.plan()).expected is not None


def test_answers_keep_what_a_newer_service_says_and_miss_what_an_older_one_does_not() -> None:
    job = Job.of({**builders.job(), "new": 1})
    assert job.body["new"] == 1
    assert Job.of({"id": "j", "state": "running"}).remaining_seconds is None


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    job = Job.of(builders.job())
    frame = Table([job, job]).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["step"]) == [job.step] * 2
    assert {"remaining_seconds", "remaining_seconds_low", "running_workers"} <= set(frame.columns)
    assert job.to_pandas()["id"] == job.id
    assert "steps_per_second" in Predictions.of(builders.predictions()).to_pandas().columns


@pytest.mark.parametrize(
    ("argv", "name"), [(["-c"], "run"), ([""], "run"), (["a/my_run.py"], "my-run"), (["2.py"], "2-py"), (["2"], "run")]
)
def test_a_tracked_run_is_named_after_its_script(argv: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [*argv, "x"])
    assert tracked_spec()["name"] == name
