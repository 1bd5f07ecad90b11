from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from queue import Queue
from threading import Event
from typing import Any

import httpx
import pytest
from tests.workers.telemetry_steps import record

from optimus_contract.membership import MembershipReport, WantedMembership
from optimus_contract.result import JobProfile, JobResult
from optimus_workers.coordinator import service_calls
from optimus_workers.coordinator.service_calls import watch_wanted
from optimus_workers.errors import ServiceAway, ServiceBusy, ServiceRefused
from optimus_workers.service_client import LONG_POLL_GRACE_SECONDS, ServiceClient

Handler = Callable[[httpx.Request], httpx.Response]


def client(handler: Handler) -> ServiceClient:
    return ServiceClient("http://127.0.0.1:8080/", "digits-1", "secret", transport=httpx.MockTransport(handler))


def answering(status: int, body: Any = None, **options: Any) -> Handler:
    return lambda _: (
        httpx.Response(status, json=body, **options) if body is not None else httpx.Response(status, **options)
    )


def test_who_cannot_wait_for_the_end_of_a_poll_gets_an_answer_at_once() -> None:
    """Also when the service is away for a moment."""
    asked, answers, changes = list[dict[str, str]](), Queue[WantedMembership](), Event()

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        if request.url.params["after"] == "7":  # the long poll
            changes.wait()
        return httpx.Response(503 if len(asked) == 3 else 200, json={"generation": 7, "directive": "run", "tasks": []})

    ask = watch_wanted(client(handler).wanted, answers.put)
    assert answers.get(timeout=10.0).generation == 7
    while len(asked) < 2:
        time.sleep(0.01)
    ask()
    assert answers.get(timeout=10.0).generation == 7
    assert asked[2:] == [{"after": "0", "timeout_seconds": "0.0"}] * 2


MEMBERSHIP = MembershipReport(epoch=1, generation=2, at=3.0, step=4, workers=["w"], servers=["s"], cause="start")
PROFILE = JobProfile(n_parameters=9, n_examples=5, global_batch_size=2, steps_per_epoch=2.5)
RESULT = JobResult(outcome="failed", step=3, error="why")
SAMPLE = record(step=3, loss=math.nan)
REQUIRED = ("membership_epoch", "rank", "sequence", "workers", "servers", "at", "step", "data_epoch", "n_examples")
WRITTEN = {name: [getattr(SAMPLE, name)] for name in (*REQUIRED, "seconds")} | {"loss": ["NaN"]}

CALLS: list[tuple[Callable[[ServiceClient], Any], str, str, Any]] = [
    (lambda service: service.report_membership(MEMBERSHIP), "POST", "membership", asdict(MEMBERSHIP)),
    (lambda service: service.put_profile(PROFILE), "PUT", "profile", asdict(PROFILE)),
    (lambda service: service.post_result(RESULT), "POST", "result", asdict(RESULT)),
    (lambda service: service.post_telemetry([SAMPLE]), "POST", "telemetry", {"columns": WRITTEN}),
]


@pytest.mark.parametrize(("call", "method", "path", "body"), CALLS)
def test_calls(call: Callable[[ServiceClient], Any], method: str, path: str, body: Any) -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"accepted": 1, "ignored": []})

    with client(handler) as service:
        call(service)
    (request,) = seen
    assert (request.method, str(request.url)) == (method, f"http://127.0.0.1:8080/v1/jobs/digits-1/{path}")
    assert request.headers["Authorization"] == "Bearer secret"
    assert json.loads(request.content) == body


def test_samples_of_unknown_memberships_come_back() -> None:
    """What else is ignored has been counted, or never will be."""
    ignored = [
        {"index": index, "why": why} for index, why in enumerate(("duplicate", "unknown_membership", "old_membership"))
    ]
    samples = [record(step, loss=1.0) for step in range(1, 5)]
    with client(answering(200, {"accepted": 1, "ignored": ignored})) as service:
        assert service.post_telemetry(samples) == samples[1:2]
    with client(answering(200, {"welcome": True})) as service, pytest.raises(ServiceAway):
        service.post_telemetry(samples)


def test_a_service_that_was_away_is_asked_without_a_wait() -> None:
    """Its database may be an older one by now: what it has forgotten is to be known at once."""
    asked = Queue[tuple[int, float]]()
    answers = iter([7, None, 7, 8, None, None, 5])

    def ask(after: int, timeout_seconds: float) -> WantedMembership:
        asked.put((after, timeout_seconds))
        if (generation := next(answers, 0)) == 0:
            Event().wait()
        if generation is None:
            raise ServiceAway("not now")
        return WantedMembership(generation=generation, directive="run", tasks=[])

    watch_wanted(ask, lambda _: None)
    poll = service_calls.POLL_SECONDS
    expected = [(0, 0.0), (7, poll), (0, 0.0), (7, poll), (8, poll), (0, 0.0), (0, 0.0), (8, poll)]
    assert [asked.get(timeout=10.0) for _ in expected] == expected


def test_wanted_waits_longer_than_the_service_does() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert dict(request.url.params) == {"after": "4", "timeout_seconds": "25.0"}
        assert request.extensions["timeout"]["read"] == 25.0 + LONG_POLL_GRACE_SECONDS
        return httpx.Response(200, json={"generation": 5, "directive": "run", "tasks": []})

    with client(handler) as service:
        assert service.wanted(4, 25.0) == WantedMembership(generation=5, directive="run", tasks=[])


@pytest.mark.parametrize("status", [500, 502, 503, 408])
def test_away_when_trying_later_may_help(status: int) -> None:
    with client(answering(status)) as service, pytest.raises(ServiceAway, match=str(status)):
        service.put_profile(PROFILE)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("99999", 60.0), ("soon", 1.0), (None, 1.0)])
def test_busy_says_when_to_come_again(header: str | None, seconds: float) -> None:
    headers = {} if header is None else {"Retry-After": header}
    with client(answering(429, headers=headers)) as service, pytest.raises(ServiceBusy) as caught:
        service.post_telemetry([SAMPLE])
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError])
def test_away_when_there_is_no_answer(error: type[httpx.TransportError]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise error("no answer", request=request)

    with client(handler) as service, pytest.raises(ServiceAway, match=error.__name__) as caught:
        service.post_result(RESULT)
    assert isinstance(caught.value.__cause__, error)


@pytest.mark.parametrize("content", [b"<html>welcome</html>", b"[]", b"{}"])
def test_away_when_somebody_else_answers(content: bytes) -> None:
    with client(lambda _: httpx.Response(200, content=content)) as service, pytest.raises(ServiceAway):
        service.wanted(0, 1.0)


def test_refused_with_the_problems_detail() -> None:
    problem = {
        "type": "about:blank",
        "title": "Unprocessable Content",
        "status": 422,
        "detail": "one field is not valid",
        "errors": [{"field": "samples[0].rank", "message": "must be below workers"}],
    }
    with client(answering(422, problem)) as service, pytest.raises(ServiceRefused) as caught:
        service.post_telemetry([SAMPLE])
    assert caught.value.status == 422
    assert caught.value.detail == "one field is not valid; samples[0].rank: must be below workers"


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (answering(404, {"title": "Not Found"}), "Not Found"),
        (answering(404, ["odd"]), '["odd"]'),
        (answering(403, text="go away"), "go away"),
        (answering(401), "Unauthorized"),
    ],
)
def test_refused_without_a_problem_document(answer: Handler, detail: str) -> None:
    with client(answer) as service, pytest.raises(ServiceRefused) as caught:
        service.put_profile(PROFILE)
    assert caught.value.detail == detail


def test_ignores_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with ServiceClient("http://127.0.0.1:9", "job", "secret") as service, pytest.raises(ServiceAway) as caught:
        service.put_profile(PROFILE)
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
