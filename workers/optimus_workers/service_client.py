"""The calls that a job's tasks make to the service (docs/protocol.md, section 2). Every one may be repeated."""

from __future__ import annotations

import json
import ssl
from types import TracebackType
from typing import Any, Self

import httpx

from optimus_contract.codec import read, write
from optimus_contract.membership import MembershipReport, WantedMembership
from optimus_contract.result import JobProfile, JobResult, PlannedRates
from optimus_contract.telemetry import Note, Sample, SampleColumns, TaskUsageReport, TelemetryAnswer
from optimus_workers.errors import ServiceAway, ServiceBusy, ServiceRefused

CALL_TIMEOUT_SECONDS = 10.0
"""For connecting and for an answer that the service gives at once."""
LONG_POLL_GRACE_SECONDS = 10.0
"""How much later than asked for a long poll may come back before the service counts as away."""


class ServiceClient:
    """One job's access to the service. Safe to use from several threads.

    Every call raises `ServiceAway` when the service cannot be reached, answers with a server error or asks to slow
    down (try again later), and `ServiceRefused` when it says no (repeating does not help).
    """

    def __init__(self, url: str, job_id: str, token: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self._client = httpx.Client(
            base_url=f"{url.rstrip('/')}/v1/jobs/{job_id}/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=CALL_TIMEOUT_SECONDS,
            # The service is a neighbour: a proxy set up for the internet is not the way to it.
            trust_env=False,
            # Reading the certificate store costs tens of milliseconds of CPU, which plain HTTP does not need.
            verify=ssl.create_default_context() if url.startswith("https:") else False,
            transport=transport,
        )
        self._urls: dict[str, httpx.URL] = {}
        """Of the paths: they are parsed once."""

    def wanted(self, after: int, timeout_seconds: float) -> WantedMembership:
        """The wanted membership, once its generation is above `after` or after `timeout_seconds`."""
        answer = self._call(
            "GET",
            "membership",
            params={"after": after, "timeout_seconds": timeout_seconds},
            timeout=httpx.Timeout(CALL_TIMEOUT_SECONDS, read=timeout_seconds + LONG_POLL_GRACE_SECONDS),
        )
        try:
            return read(WantedMembership, answer.json())
        except ValueError as error:  # not from the service, but from a proxy
            raise ServiceAway(f"{answer.url}: {error}") from error

    def report_membership(self, report: MembershipReport) -> None:
        """Report a membership epoch that was formed."""
        self._report("POST", "membership", write(report))

    def put_profile(self, profile: JobProfile) -> None:
        """Report what the job's tasks know about it."""
        self._report("PUT", "profile", write(profile))

    def put_network(self, network: dict[str, Any]) -> None:
        """Report the layers of the network (the contract's `Network`, as `task.network` makes it)."""
        self._report("PUT", "network", network)

    def put_planned_rates(self, plan: PlannedRates) -> None:
        """Report the learning rates that the job is to have."""
        self._report("PUT", "learning-rates", write(plan))

    def post_result(self, result: JobResult) -> None:
        """Report how the job ended."""
        self._report("POST", "result", write(result))

    def post_telemetry(self, samples: list[Sample]) -> list[Sample]:
        """Send 1 to 1000 samples. Those that the service ignores are no error.

        Returns:
            Those whose membership it does not know (yet): they would count later.
        """
        answer = self._report("POST", "telemetry", {"columns": write(SampleColumns.of(samples), without_none=True)})
        try:
            ignored = read(TelemetryAnswer, answer.json()).ignored
        except ValueError as error:  # not from the service, but from a proxy
            raise ServiceAway(f"{answer.url}: {error}") from error
        unknown = {each.index for each in ignored if each.why == "unknown_membership"}
        return [sample for index, sample in enumerate(samples) if index in unknown]

    def post_usage(self, tasks: list[TaskUsageReport]) -> None:
        """Report what tasks other than workers take of their machines."""
        self._report("POST", "telemetry", {"tasks": [write(task, without_none=True) for task in tasks]})

    def post_checkpoints(self, news: str) -> None:
        """Say why a checkpoint could not be written, or that they are written again."""
        self._report("POST", "telemetry", {"checkpoints": news[:2000]})

    def post_silence(self, news: str) -> None:
        """Say that a task does not answer its coordinator, or answers again."""
        self._report("POST", "telemetry", {"silence": news[:2000]})

    def post_note(self, note: Note) -> None:
        """Say what the owner of a script should know of it."""
        self._report("POST", "telemetry", {"notes": [write(note)]})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _report(self, method: str, path: str, body: dict[str, Any]) -> httpx.Response:
        try:
            # ASCII: half of a surrogate pair, which UTF-8 has no bytes for, is then the service's to refuse.
            content = json.dumps(body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ServiceRefused(httpx.codes.BAD_REQUEST, f"{path}: there is no JSON for it: {error}") from error
        return self._call(method, path, content=content, headers={"Content-Type": "application/json"})

    def _call(self, method: str, path: str, **options: Any) -> httpx.Response:
        url = self._urls.get(path) or self._urls.setdefault(path, self._client.base_url.join(path))
        try:
            answer = self._client.request(method, url, **options)
        except httpx.RequestError as error:
            raise ServiceAway(f"{method} {path}: {type(error).__name__}: {error}") from error
        if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise ServiceBusy(f"{method} {path}: {_detail(answer)}", _retry_after(answer))
        if answer.is_server_error or answer.status_code == httpx.codes.REQUEST_TIMEOUT:
            raise ServiceAway(f"{method} {path}: {answer.status_code} {answer.reason_phrase}")
        if not answer.is_success:
            raise ServiceRefused(answer.status_code, _detail(answer))
        return answer


MAX_RETRY_AFTER_SECONDS = 60.0
"""Longest pause that the service is believed."""


def _retry_after(answer: httpx.Response) -> float:
    """The seconds of the header Retry-After; 1 where there are none (a proxy may name a date)."""
    value = answer.headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER_SECONDS) if value.isascii() and value.isdigit() else 1.0


def _detail(answer: httpx.Response) -> str:
    """What the problem document (RFC 9457) explains, with the fields that it names; otherwise the raw text."""
    try:
        problem = answer.json()
        text = str(problem.get("detail") or problem["title"])
        errors = [f"{error['field']}: {error['message']}" for error in problem.get("errors", [])]
    except (ValueError, TypeError, KeyError, AttributeError):
        return answer.text[:500] or answer.reason_phrase
    return "; ".join([text, *errors])
