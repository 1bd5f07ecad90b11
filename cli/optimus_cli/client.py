"""The service from the command line: `optimus_client` with the API's bodies, and errors that say what to do."""

from __future__ import annotations

import http.client
import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote, urlsplit

import optimus_client
from optimus_cli.bodies import (
    AllocationPoint,
    AuditEntry,
    BatchOutcome,
    ChangePlan,
    Cluster,
    Decision,
    DeviceProgress,
    DeviceSignIn,
    Event,
    Explanation,
    Job,
    Log,
    MadeToken,
    Node,
    Plan,
    Predictions,
    Project,
    QueuedJob,
    Scorecard,
    Task,
    Token,
    Usage,
    User,
    WhoAmI,
)
from optimus_cli.errors import BadInput, FieldError, Refused, Unreachable
from optimus_client.answers import ENDED
from optimus_client.configuration import DEFAULT_URL

__all__ = ["DEFAULT_URL", "PAGE_SIZE", "Client", "is_final", "is_here"]

TIMEOUT_SECONDS = 30.0
"""A round in progress may hold an answer back for a moment; half a minute of silence is a failure."""
PAGE_SIZE = 100
SUBMIT_ATTEMPTS = 3
"""A submission carries an idempotency key, so one whose answer was lost on the way is repeated."""
RETRY_SECONDS = 0.5
START_POLL_SECONDS = 0.2

Params = Mapping[str, str | int | Sequence[str]]


class Client:
    """Calls the service at `url`. Every method raises `Unreachable` or `Refused` when it cannot answer."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        ca_file: str | None = None,
        may_start: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ca_file` has the certificates (PEM) that are trusted besides the usual ones, for https.

        `may_start` is asked while nothing listens on this machine; True when that is worth waiting for.

        Raises `BadInput` if the address, the token or the file cannot be used.
        """
        try:
            self._service = optimus_client.Client(url, token or "", timeout=timeout_seconds, ca_file=ca_file)
        except ValueError as error:
            raise BadInput(str(error).replace("ca_file:", "--ca-cert (OPTIMUS_CA_CERT):")) from error
        self.url = self._service.url
        self._may_start = may_start if is_here(self.url) else (lambda: False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to close: each call has a connection of its own."""

    # --- jobs

    def submit(self, spec: Mapping[str, Any], idempotency_key: str) -> Job:
        """Submit a job. Repeated when the connection breaks: the key makes sure that it is accepted once."""
        headers = {"Idempotency-Key": idempotency_key}
        return cast("Job", self._repeated("POST", "/v1/jobs", body=spec, headers=headers))

    def _repeated(self, method: str, path: str, **arguments: Any) -> Any:
        """A call that is safe to repeat, some times."""
        for _ in range(SUBMIT_ATTEMPTS - 1):
            try:
                return self._call(method, path, **arguments)
            except Unreachable as error:
                if _was_never_sent(error):
                    raise
                time.sleep(RETRY_SECONDS)
        return self._call(method, path, **arguments)

    def submit_many(self, specs: Sequence[Mapping[str, Any]], idempotency_key: str, *, atomic: bool) -> BatchOutcome:
        """Submit jobs together: all or none, or (not `atomic`) each on its own. Repeated as `submit`."""
        headers, body = {"Idempotency-Key": idempotency_key}, {"jobs": list(specs), "atomic": atomic}
        return cast("BatchOutcome", self._repeated("POST", "/v1/jobs:batch", body=body, headers=headers))

    def cancel_selected(self, labels: Mapping[str, str | None], project: str | None) -> BatchOutcome:
        """Cancel all active jobs with these labels (None: any value)."""
        body = {"labels": dict(labels), "project": project}
        return cast("BatchOutcome", self._call("POST", "/v1/jobs:cancel", body=body))

    def plan(self, spec: Mapping[str, Any]) -> Plan:
        """What would happen if the job were submitted now."""
        return cast("Plan", self._call("POST", "/v1/plan", body=spec))

    def jobs(self, filters: Params, limit: int | None) -> Iterator[Job]:
        """Jobs, newest first; all pages when `limit` is None."""
        return cast("Iterator[Job]", self._pages("/v1/jobs", "jobs", filters, limit))

    def queue(self, limit: int | None) -> list[QueuedJob]:
        """Jobs that wait, the one that is expected to start first at the top; all of them when `limit` is None."""
        return cast("list[QueuedJob]", list(self._pages("/v1/queue", "jobs", {}, limit)))

    def job(self, job_id: str) -> Job:
        return cast("Job", self._call("GET", _job_path(job_id)))

    def cancel(self, job_id: str) -> Job:
        return cast("Job", self._call("POST", _job_path(job_id, "cancel")))

    def pause(self, job_id: str) -> Job:
        return cast("Job", self._call("POST", _job_path(job_id, "pause")))

    def resume(self, job_id: str) -> Job:
        return cast("Job", self._call("POST", _job_path(job_id, "resume")))

    def change(self, job_id: str, changes: Mapping[str, Any]) -> Job:
        return cast("Job", self._call("PATCH", _job_path(job_id), body=changes))

    def plan_change(self, job_id: str, changes: Mapping[str, Any]) -> ChangePlan:
        """What would happen if the job were changed now."""
        return cast("ChangePlan", self._call("POST", _job_path(job_id, "plan"), body=changes))

    def retry(self, job_id: str, idempotency_key: str) -> Job:
        """A new job with the specification of an ended one."""
        headers = {"Idempotency-Key": idempotency_key}
        return cast("Job", self._call("POST", _job_path(job_id, "retry"), headers=headers))

    def delete(self, job_id: str, *, checkpoints: bool) -> None:
        self._call("DELETE", _job_path(job_id), query={"checkpoints": "true"} if checkpoints else None)

    def events(self, job_id: str, limit: int | None = None) -> list[Event]:
        """What happened, newest first."""
        return cast("list[Event]", list(self._pages(_job_path(job_id, "events"), "events", {}, limit)))

    def decisions(self, job_id: str, limit: int | None = None) -> list[Decision]:
        """What rounds decided, newest first."""
        return cast("list[Decision]", list(self._pages(_job_path(job_id, "decisions"), "decisions", {}, limit)))

    def predictions(
        self,
        job_id: str,
        workers: str | None = None,
        servers: str | None = None,
        *,
        deadline_seconds: float | None = None,
        budget: float | None = None,
    ) -> Predictions:
        """`workers` and `servers` are ranges like `1-8`: the sizes that speeds are predicted for.

        Among them the cheapest is chosen that ends in `deadline_seconds`, and the fastest that costs at most `budget`.
        """
        given = {"workers": workers, "servers": servers, "deadline_seconds": deadline_seconds, "budget": budget}
        params = {name: value for name, value in given.items() if value is not None}
        return cast("Predictions", self._call("GET", _job_path(job_id, "predictions"), query=params))

    def allocations(self, job_id: str) -> list[AllocationPoint]:
        """The job's memberships, oldest first."""
        return cast("list[AllocationPoint]", self._call("GET", _job_path(job_id, "allocations"))["allocations"])

    def tasks(self, job_id: str) -> list[Task]:
        """The job's tasks that have not ended, with what each takes of its machine."""
        return cast("list[Task]", self._call("GET", _job_path(job_id, "tasks"))["tasks"])

    def explanation(self, job_id: str) -> Explanation:
        return cast("Explanation", self._call("GET", _job_path(job_id, "explanation")))

    def logs(self, job_id: str, task: str | None = None) -> list[Log]:
        """The end of what each of the job's newest tasks printed, the oldest of these first."""
        params = {} if task is None else {"task": task}
        return cast("list[Log]", self._call("GET", _job_path(job_id, "logs"), query=params)["logs"][::-1])

    def trace(self, params: Params) -> Iterator[str]:
        """What happened, line by line as it comes."""
        try:
            yield from self._service.lines("/v1/trace", query=params)
        except optimus_client.ApiError as error:
            raise _refusal(error) from error
        except optimus_client.Unreachable as error:
            raise self._unreachable(error) from error

    # --- projects

    def projects(self) -> list[Project]:
        """Those that have a quota, by name."""
        return cast("list[Project]", self._call("GET", "/v1/projects")["projects"])

    def project(self, name: str) -> Project:
        return cast("Project", self._call("GET", _project_path(name)))

    def put_project(self, name: str, quota: Mapping[str, Any]) -> Project:
        return cast("Project", self._call("PUT", _project_path(name), body=quota))

    def plan_project(self, name: str, quota: Mapping[str, Any]) -> ChangePlan:
        """What would happen if the project were given this quota now."""
        return cast("ChangePlan", self._call("POST", f"{_project_path(name)}/plan", body=quota))

    def delete_project(self, name: str) -> None:
        self._call("DELETE", _project_path(name))

    # --- people

    def whoami(self) -> WhoAmI:
        return cast("WhoAmI", self._call("GET", "/v1/whoami"))

    def start_sign_in(self) -> DeviceSignIn:
        """Begin a sign-in with the service's OpenID provider, which is finished in a browser."""
        return cast("DeviceSignIn", self._call("POST", "/v1/sso/device"))

    def sign_in_progress(self, device_code: str) -> DeviceProgress:
        """Whether somebody has signed in: then there is a token."""
        return cast("DeviceProgress", self._call("POST", "/v1/sso/device/token", body={"device_code": device_code}))

    def sign_out(self) -> None:
        """Revoke the token that is sent."""
        self._call("DELETE", "/v1/session")

    def users(self) -> list[User]:
        """All of them, by name."""
        return cast("list[User]", self._call("GET", "/v1/users")["users"])

    def user(self, name: str) -> User:
        return cast("User", self._call("GET", _user_path(name)))

    def create_user(self, name: str, rights: Mapping[str, Any]) -> User:
        return cast("User", self._call("POST", _user_path(name), body=rights))

    def change_user(self, name: str, rights: Mapping[str, Any]) -> User:
        return cast("User", self._call("PUT", _user_path(name), body=rights))

    def remove_user(self, name: str) -> None:
        self._call("DELETE", _user_path(name))

    def tokens(self, user: str | None) -> list[Token]:
        """The caller's own, or for administrators those of a user, or of all; the newest first."""
        return cast(
            "list[Token]", self._call("GET", "/v1/tokens", query={} if user is None else {"user": user})["tokens"]
        )

    def create_token(self, token: Mapping[str, Any]) -> MadeToken:
        return cast("MadeToken", self._call("POST", "/v1/tokens", body=token))

    def revoke_token(self, token_id: str) -> None:
        self._call("DELETE", f"/v1/tokens/{quote(token_id, safe='')}")

    def audit(self, filters: Params, limit: int | None) -> list[AuditEntry]:
        """Who changed what, newest first."""
        return cast("list[AuditEntry]", list(self._pages("/v1/audit", "entries", filters, limit)))

    # --- the cluster

    def nodes(self) -> list[Node]:
        return cast("list[Node]", self._call("GET", "/v1/nodes")["nodes"])

    def change_node(self, name: str, what: str) -> Node:
        """`what`: cordon, drain or uncordon."""
        return cast("Node", self._call("POST", f"/v1/nodes/{quote(name, safe='')}/{what}"))

    def promises(self) -> Scorecard:
        """How predictions of jobs that have ended turned out."""
        return cast("Scorecard", self._call("GET", "/v1/promises"))

    def usage(self, month: str | None) -> Usage:
        """What was used in a month (None: this one) by whom."""
        return cast("Usage", self._call("GET", "/v1/usage", query={} if month is None else {"month": month}))

    def cluster(self) -> Cluster:
        return cast("Cluster", self._call("GET", "/v1/cluster"))

    def is_ready(self) -> bool:
        """Whether the service answers that it is ready; never raises."""
        try:
            self._service.call("GET", "/readyz")
        except optimus_client.OptimusError:
            return False
        return True

    # --- one call

    def _unreachable(self, error: optimus_client.Unreachable) -> Unreachable:
        if error.reason is None:
            return Unreachable(f"{self.url}: {error}.")
        if error.is_timeout:
            return Unreachable(f"The service at {self.url} did not answer in time.")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return Unreachable(
                f"The certificate of {self.url} is not trusted ({error.reason}).\n"
                "If an authority of your own signed it, name the file with its certificate (PEM):\n"
                "optimus --ca-cert FILE ..., or set OPTIMUS_CA_CERT or SSL_CERT_FILE."
            )
        return Unreachable(
            f"No service answers at {self.url} ({error.reason}).\n"
            "Start one with `optimus serve`, or name another with --url or OPTIMUS_URL."
        )

    def _pages(self, path: str, key: str, params: Params, limit: int | None) -> Iterator[Any]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = PAGE_SIZE if left is None else min(left, PAGE_SIZE)
            page_params = {**params, "limit": size, **({} if cursor is None else {"cursor": cursor})}
            page = self._call("GET", path, query=page_params)
            yield from page[key]
            cursor = page["next_cursor"]
            left = None if left is None else left - len(page[key])
            if cursor is None:
                return

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        """What comes back, after a service on this machine that is just starting listens."""
        while True:
            try:
                return self._service.call(method, path, **arguments)
            except optimus_client.ApiError as error:
                raise _refusal(error) from error
            except optimus_client.Unreachable as error:
                if not (error.was_never_sent and self._may_start()):
                    raise self._unreachable(error) from error
            time.sleep(START_POLL_SECONDS)


def is_final(job: Job) -> bool:
    """Whether nothing will change about the job any more."""
    return job["state"] in ENDED


def is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _job_path(job_id: str, *rest: str) -> str:
    return "/".join(["/v1/jobs", quote(job_id, safe=""), *rest])


def _user_path(name: str) -> str:
    return f"/v1/users/{quote(name, safe='')}"


def _project_path(name: str) -> str:
    return f"/v1/projects/{quote(name, safe='')}"


def _was_never_sent(error: Unreachable) -> bool:
    return isinstance(error.__cause__, optimus_client.Unreachable) and error.__cause__.was_never_sent


def _refusal(error: optimus_client.ApiError) -> Refused:
    """The problem document of an answer; other bodies (a proxy's page, say) only by their status."""
    problem = error.problem
    phrase = http.client.responses.get(error.status, "")
    detail = str(problem.get("detail") or problem.get("title") or f"{error.status} {phrase}".strip())
    if error.status == HTTPStatus.UNAUTHORIZED and detail.startswith("send Authorization"):
        detail = (
            "this service asks for a token: `optimus login URL` takes yours, also from a pipe, and stores it; "
            "or set OPTIMUS_TOKEN"
        )
    elif error.status == HTTPStatus.UNAUTHORIZED:
        detail += " (that of OPTIMUS_TOKEN, or of `optimus login`)"
    errors = [
        FieldError(str(each.get("field", "")), str(each.get("message", "")))
        for each in problem.get("errors") or []
        if isinstance(each, dict)
    ]
    return Refused(error.status, detail, errors)
