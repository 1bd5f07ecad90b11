"""The service from Python: `Client` on the standard library, `AsyncClient` on httpx (the extra `async`).

with optimus_client.Client() as client:
    job = client.submit({"name": "digits", "task": "mine:task", "workers": {"max": 4}})
    for update in client.watch(job.id):
        print(update)
"""

from __future__ import annotations

import asyncio
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from . import calls
from .answers import Explanation, Job, Log, Plan, Predictions, Table, Update
from .calls import ApiError, Call, Lines, Unreachable
from .configuration import place

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 30.0
STREAM_SECONDS = 45.0
"""The service sends something every 15 seconds; a stream that is silent for so long is broken."""
RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 5.0
SUBMIT_ATTEMPTS = 3
"""A submission carries an idempotency key, so one whose answer was lost is repeated."""

T = TypeVar("T")


class _Base:
    """What both clients have."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        ca_file: str | None = None,
    ) -> None:
        """`url`, `token`: else OPTIMUS_URL and OPTIMUS_TOKEN, else what `optimus login` stored; an empty token is none.
        `timeout`: seconds of one request. `ca_file`: certificates (PEM) to trust besides the usual ones;
        else OPTIMUS_CA_CERT.

        Raises `ValueError`: the address, the token or the file of certificates cannot be used.
        """
        found = place(url, token)
        self.url = calls.checked_url(found.url)
        if found.token is not None and not found.token.isascii():
            raise ValueError("the token (OPTIMUS_TOKEN) has characters that are not ASCII")
        self._token, self._timeout = found.token, timeout
        self._context = _trusted(ca_file) if self.url.startswith("https:") else None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _headers(self, call: Call[Any]) -> dict[str, str]:
        own = {"Accept": "application/json", **call.headers}
        if call.body is not None:
            own["Content-Type"] = "application/json"
        if self._token and "Authorization" not in own:
            own["Authorization"] = f"Bearer {self._token}"
        return own

    def _unreachable(self, error: object) -> Unreachable:
        reason = error if isinstance(error, BaseException) else None
        return Unreachable(f"no service answers at {self.url} ({error})", reason)


def _trusted(ca_file: str | None) -> ssl.SSLContext:
    """The system's authorities, or those of SSL_CERT_FILE as with other programs; and of `ca_file`."""
    context = ssl.create_default_context()
    _add(context, "SSL_CERT_FILE", os.environ.get("SSL_CERT_FILE"))
    _add(context, "ca_file", ca_file or os.environ.get("OPTIMUS_CA_CERT"))
    return context


def _add(context: ssl.SSLContext, source: str, file: str | None) -> None:
    try:
        if file:
            context.load_verify_locations(file)
    except OSError as error:
        raise ValueError(f"{source}: {file} is no readable file of certificates (PEM): {error}") from error


_STREAM: Call[Any] = Call("GET", "/v1/stream", dict, headers={"Accept": "text/event-stream"})


class _Watch:
    """What a job's watcher knows already."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self._last: Mapping[str, Any] | None = None

    def update(self, body: Mapping[str, Any]) -> Update | None:
        """The update that a line or a job makes, unless it says what was said already."""
        found = Update.of({**body, **body.get("running", {})})
        if found.body == self._last or (self._last is not None and found == Update.of(self._last)):
            return None
        self._last = found.body
        return found

    def line(self, event: tuple[str, Any] | None) -> Mapping[str, Any] | None:
        """This job's line in an event."""
        if event is None or event[0] != "jobs":
            return None
        return next((line for line in event[1] if line["id"] == self.job_id), None)

    def is_gone(self, event: tuple[str, Any] | None) -> bool:
        """Whether the stream shows the job no more."""
        return event is not None and event[0] == "gone" and self.job_id in event[1]


class Client(_Base):
    """Calls the service. Methods raise `Unreachable` or an `ApiError`, which carries the service's problem body.

    It needs the standard library only, follows no redirect and uses no proxy, so that the token goes nowhere else.
    Threads may share it.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """There is nothing to close: each call has a connection of its own."""

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """Submit a job; `spec` is what a job file or `POST /v1/jobs` takes."""
        call, attempts = calls.submit(spec, idempotency_key), 1
        while True:
            try:
                return self._do(call)
            except Unreachable:
                if attempts == SUBMIT_ATTEMPTS:
                    raise
            attempts += 1
            time.sleep(RETRY_SECONDS)

    def plan(self, spec: Mapping[str, Any]) -> Plan:
        """What would happen if this job were submitted now; a dry run."""
        return self._do(calls.plan(spec))

    def list(self, *, limit: int | None = None, **filters: Any) -> Table[Job]:
        """Jobs, newest first. `filters`: `state`, `label` (one or several), `project`, `name`, `match`."""
        found: list[Job] = []
        cursor: str | None = None
        while limit is None or len(found) < limit:
            jobs, cursor = self._do(calls.page(filters, None if limit is None else limit - len(found), cursor))
            found += jobs
            if cursor is None:
                break
        return Table(found)

    def get(self, job_id: str) -> Job:
        """A job by its id."""
        return self._do(calls.get(job_id))

    def find(self, reference: str) -> Job | None:
        """The job that is meant by an id or a name: of several of that name the newest that is active, else the newest.
        None: there is none."""
        return self._do(calls.find(reference))

    def cancel(self, job_id: str) -> Job:
        """End a job."""
        return self._do(calls.cancel(job_id))

    def pause(self, job_id: str) -> Job:
        """Let a job save what it can and give back what it has, until it is resumed."""
        return self._do(calls.pause(job_id))

    def resume(self, job_id: str) -> Job:
        """Let a paused job have tasks again, or a failed or cancelled one go on from its last checkpoint."""
        return self._do(calls.resume(job_id))

    def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Run an ended job again from the beginning, as a new job."""
        return self._do(calls.retry(job_id, idempotency_key))

    def change(self, job_id: str, **changes: Any) -> Job:
        """Change an active job: `priority=4`, `workers={"max": 8}`, `unset=["deadline"]` (docs/api-rules.md)."""
        return self._do(calls.change(job_id, changes))

    def delete(self, job_id: str, *, checkpoints: bool = False) -> None:
        """Delete an ended job with all that is kept of it; `checkpoints`: and its directory."""
        self._do(calls.delete(job_id, checkpoints))

    def explain(self, job_id: str) -> Explanation:
        """Why a job has what it has."""
        return self._do(calls.explain(job_id))

    def predict(
        self,
        job_id: str,
        *,
        workers: str | None = None,
        servers: str | None = None,
        deadline_seconds: float | None = None,
        budget: float | None = None,
    ) -> Predictions:
        """What is predicted of a job; `workers` and `servers` are ranges such as `1-8`."""
        choice = {"workers": workers, "servers": servers, "deadline_seconds": deadline_seconds, "budget": budget}
        return self._do(calls.predict(job_id, choice))

    def logs(self, job_id: str, task: str | None = None) -> Table[Log]:
        """The end of what each task printed."""
        return self._do(calls.logs(job_id, task))

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Any call of the API (docs/api.md), such as `call("GET", "/v1/nodes")`: the answer's JSON."""
        return self._do(calls.any_call(method, path, query or {}, body, headers or {}))

    def lines(self, path: str, *, query: Mapping[str, Any] | None = None) -> Iterator[str]:
        """The lines of an answer as they come."""
        call = calls.any_call("GET", path, query or {}, None, {})
        try:
            with self._open(call, self._timeout) as response:
                for line in response:
                    yield line.decode().rstrip("\r\n")
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def issue_token(self, job_id: str) -> str:
        """The token with which the tracker of a tracked job reports it."""
        return self._do(calls.issue_token(job_id))

    def report_as_job(self, job_id: str, token: str, method: str, path: str, body: Mapping[str, Any]) -> None:
        """A report of a tracked job (docs/protocol.md): `path` is `telemetry`, `membership`, `profile` or `result`."""
        self._do(calls.report_as_job(job_id, token, method, path, body))

    def watch(self, job_id: str) -> Iterator[Update]:
        """The job as it is now and whenever it changes, until it has ended. Reconnects while the service is away."""
        watch, pause = _Watch(job_id), RETRY_SECONDS
        job = self.get(job_id)  # an id that does not exist is an error at once
        while True:
            if update := watch.update(job.body):
                yield update
            if job.is_ended:
                return
            try:
                with self._open(_STREAM, STREAM_SECONDS) as stream:
                    lines, pause = Lines(), RETRY_SECONDS
                    for line in stream:
                        event = lines.feed(line.decode().rstrip("\r\n"))
                        body = watch.line(event)
                        if body is not None and (update := watch.update(body)):
                            yield update
                            if update.is_ended:
                                return
                        if watch.is_gone(event):
                            break
            except (OSError, http.client.HTTPException, ValueError, Unreachable):
                pass
            except ApiError as error:
                if error.status < 500:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)
            job = self._get_again(job)

    def _get_again(self, job: Job) -> Job:
        try:
            return self.get(job.id)
        except Unreachable:
            return job
        except ApiError as error:
            if error.status < 500:
                raise
            return job

    def _do(self, call: Call[T]) -> T:
        try:
            with self._open(call, self._timeout) as response:
                return calls.answer(call, response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _open(self, call: Call[Any], timeout: float) -> Any:
        """The answer to be read; a refusal is raised."""
        request = urllib.request.Request(  # noqa: S310 - http and https only, as checked
            self.url + call.path, data=call.body, headers=self._headers(call), method=call.method
        )
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
        if self._context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._context))
        try:
            return urllib.request.build_opener(*handlers).open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                calls.answer(call, error.code, error.read())
            raise AssertionError("a refusal raises") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(getattr(error, "reason", error)) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class AsyncClient(_Base):
    """`Client` for asyncio; it needs httpx. Use it in `async with`."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        ca_file: str | None = None,
    ) -> None:
        super().__init__(url, token, timeout=timeout, ca_file=ca_file)
        try:
            import httpx
        except ImportError as error:
            raise ImportError("AsyncClient needs httpx: pip install 'optimus-client[async]'") from error
        verify = True if self._context is None else self._context
        self._http: httpx.AsyncClient = httpx.AsyncClient(timeout=timeout, trust_env=False, verify=verify)
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError,)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self._http.aclose()

    async def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> Job:
        """See `Client.submit`."""
        call, attempts = calls.submit(spec, idempotency_key), 1
        while True:
            try:
                return await self._do(call)
            except Unreachable:
                if attempts == SUBMIT_ATTEMPTS:
                    raise
            attempts += 1
            await asyncio.sleep(RETRY_SECONDS)

    async def plan(self, spec: Mapping[str, Any]) -> Plan:
        """See `Client.plan`."""
        return await self._do(calls.plan(spec))

    async def list(self, *, limit: int | None = None, **filters: Any) -> Table[Job]:
        """See `Client.list`."""
        found: list[Job] = []
        cursor: str | None = None
        while limit is None or len(found) < limit:
            jobs, cursor = await self._do(calls.page(filters, None if limit is None else limit - len(found), cursor))
            found += jobs
            if cursor is None:
                break
        return Table(found)

    async def get(self, job_id: str) -> Job:
        """See `Client.get`."""
        return await self._do(calls.get(job_id))

    async def find(self, reference: str) -> Job | None:
        """See `Client.find`."""
        return await self._do(calls.find(reference))

    async def cancel(self, job_id: str) -> Job:
        """See `Client.cancel`."""
        return await self._do(calls.cancel(job_id))

    async def pause(self, job_id: str) -> Job:
        """Let a job save what it can and give back what it has, until it is resumed."""
        return await self._do(calls.pause(job_id))

    async def resume(self, job_id: str) -> Job:
        """Let a paused job have tasks again, or a failed or cancelled one go on from its last checkpoint."""
        return await self._do(calls.resume(job_id))

    async def retry(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Run an ended job again from the beginning, as a new job."""
        return await self._do(calls.retry(job_id, idempotency_key))

    async def change(self, job_id: str, **changes: Any) -> Job:
        """Change an active job: `priority=4`, `workers={"max": 8}`, `unset=["deadline"]` (docs/api-rules.md)."""
        return await self._do(calls.change(job_id, changes))

    async def delete(self, job_id: str, *, checkpoints: bool = False) -> None:
        """Delete an ended job with all that is kept of it; `checkpoints`: and its directory."""
        await self._do(calls.delete(job_id, checkpoints))

    async def explain(self, job_id: str) -> Explanation:
        """See `Client.explain`."""
        return await self._do(calls.explain(job_id))

    async def predict(
        self,
        job_id: str,
        *,
        workers: str | None = None,
        servers: str | None = None,
        deadline_seconds: float | None = None,
        budget: float | None = None,
    ) -> Predictions:
        """See `Client.predict`."""
        choice = {"workers": workers, "servers": servers, "deadline_seconds": deadline_seconds, "budget": budget}
        return await self._do(calls.predict(job_id, choice))

    async def logs(self, job_id: str, task: str | None = None) -> Table[Log]:
        """See `Client.logs`."""
        return await self._do(calls.logs(job_id, task))

    async def watch(self, job_id: str) -> AsyncIterator[Update]:
        """See `Client.watch`."""
        import httpx

        watch, pause = _Watch(job_id), RETRY_SECONDS
        job = await self.get(job_id)
        while True:
            if update := watch.update(job.body):
                yield update
            if job.is_ended:
                return
            try:
                headers = self._headers(_STREAM)
                address = self.url + _STREAM.path
                async with self._http.stream("GET", address, headers=headers, timeout=STREAM_SECONDS) as stream:
                    if stream.status_code != 200:
                        calls.answer(_STREAM, stream.status_code, await stream.aread())
                    lines, pause = Lines(), RETRY_SECONDS
                    async for line in stream.aiter_lines():
                        event = lines.feed(line)
                        body = watch.line(event)
                        if body is not None and (update := watch.update(body)):
                            yield update
                            if update.is_ended:
                                return
                        if watch.is_gone(event):
                            break
            except (httpx.HTTPError, ValueError, Unreachable):
                pass
            except ApiError as error:
                if error.status < 500:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)
            job = await self._get_again(job)

    async def _get_again(self, job: Job) -> Job:
        try:
            return await self.get(job.id)
        except Unreachable:
            return job
        except ApiError as error:
            if error.status < 500:
                raise
            return job

    async def _do(self, call: Call[T]) -> T:
        try:
            response = await self._http.request(
                call.method, self.url + call.path, content=call.body, headers=self._headers(call)
            )
        except self._errors as error:
            raise self._unreachable(error) from error
        return calls.answer(call, response.status_code, response.content)
