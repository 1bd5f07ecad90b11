"""The table of rights, cell by cell against a running service: each call as each kind of caller."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.service.api.api_harness import Api, job_spec, membership, on_sqlite, problem, telemetry
from tests.service.api.people import ADMINISTRATOR, add_token, add_user

from optimus_contract.people import ProjectRole, Role, Scope
from optimus_scheduler.model import Quota
from optimus_service.api.access.auth import is_job_path, is_open_path
from optimus_service.api.access.callers import Need
from optimus_service.api.access.rights import TABLE, Call, calls_at, table
from optimus_service.store.errors import UserNotFound

Serve = Callable[..., AbstractContextManager[Api]]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "rights.md"

CALLERS: dict[str, tuple[Role | None, dict[str, ProjectRole], Scope, list[str] | None]] = {
    # role, projects, scope of the token, projects that it is limited to. The job is owner's, of vision.
    "administrator": ("administrator", {}, "operate", None),
    "administrator-submit": ("administrator", {}, "submit", None),
    "administrator-speech": ("administrator", {}, "operate", ["speech"]),
    "administrator-vision": ("administrator", {}, "operate", ["vision"]),
    "operator": ("operator", {}, "operate", None),
    "operator-read": ("operator", {}, "read", None),
    "owner": (None, {"vision": "member"}, "operate", None),
    "owner-submit": (None, {"vision": "member"}, "submit", None),
    "owner-read": (None, {"vision": "member"}, "read", None),
    "owner-elsewhere": (None, {"vision": "member", "speech": "member"}, "operate", ["speech"]),
    "member": (None, {"vision": "member"}, "operate", None),
    "viewer": (None, {"vision": "viewer"}, "operate", None),
    "outsider": (None, {"speech": "member"}, "operate", None),
    "nobody-yet": (None, {}, "operate", None),
}
_numbers = count()
EVERYBODY = {*CALLERS, "bootstrap"}
OVERSEERS = {"bootstrap", "administrator", "administrator-submit", "operator", "operator-read"}
IN_VISION = OVERSEERS | {"administrator-vision", "owner", "owner-submit", "owner-read", "member", "viewer"}
SUBMITTERS = IN_VISION - {"operator-read", "owner-read", "viewer"}
ALLOWED = {
    # written out, not asked of the code that decides
    Need.NOTHING: EVERYBODY | {"no token"},
    Need.OWN_TASKS: set[str](),
    Need.READ: EVERYBODY,
    Need.READ_JOB: IN_VISION,
    Need.SUBMIT: SUBMITTERS,
    Need.CHANGE_JOB: {"bootstrap", "administrator", "administrator-vision", "operator", "owner", "owner-submit"},
    Need.OWN_TOKENS: {"bootstrap", "administrator", "operator", "owner", "member", "viewer", "outsider", "nobody-yet"},
    Need.OVERSEE: OVERSEERS,
    Need.OPERATE: {"bootstrap", "administrator", "operator"},
    Need.ADMINISTER: {"bootstrap", "administrator"},
}
BODIES: dict[str, Any] = {
    "POST /v1/jobs": job_spec(project="vision"),
    "POST /v1/jobs:batch": {"jobs": [job_spec(project="vision")]},
    "POST /v1/jobs:cancel": {"labels": {"sweep": "a"}, "project": "vision"},
    "POST /v1/plan": job_spec(project="vision"),
    "PATCH /v1/jobs/{job_id}": {"priority": 2.0},
    "POST /v1/jobs/{job_id}/plan": {"priority": 2.0},
    "PUT /v1/projects/{name}": {"share": 0.5},
    "POST /v1/projects/{name}/plan": {"share": 0.5},
    "PUT /v1/users/{name}": {"projects": {"vision": "viewer"}},
    "POST /v1/users/{name}": {},
    "POST /v1/tokens": {"scope": "read"},
    "POST /v1/sso/device/token": {"device_code": "unknown"},
    "POST /v1/jobs/{job_id}/telemetry": telemetry(),
    "POST /v1/track/{name}": {"trainerStatus": {}},
    "POST /v1/track/{name}/{run}": {"trainerStatus": {}},
    "POST /api/2.0/mlflow/{subject}/{call}": {"tags": [{"key": "optimus.project", "value": "vision"}]},
}


FOR_BROWSERS = {("GET", "/v1/sso/start"), ("GET", "/v1/sso/callback")}
"""They lead to other pages (303), and are no part of the API."""


@pytest.fixture
def tokens(serving: Serve) -> Any:
    with serving(token=ADMINISTRATOR) as api:
        found = {"no token": "", "bootstrap": ADMINISTRATOR}
        for name, (role, projects, scope, within) in CALLERS.items():
            add_user(api, name, projects, role)
            found[name] = add_token(api, name, scope, within)
        api.services.long_polls.close()  # streams and long polls end at once
        yield api, found


def prepared(api: Api, caller: str) -> dict[str, str]:
    """What calls are about, made anew: a job of this owner, a quota, a user, a token of the caller's own."""
    repository, now = api.repository, api.surroundings.clock()
    owner = caller if caller.startswith("owner") else "owner"
    spec = job_spec(project="vision")
    job_id = f"job-{next(_numbers)}"
    repository.jobs.create(job_id, {**spec, "labels": {}}, "nonce", None, "hash", now, None, owner)
    repository.projects.put(Quota("vision", 0.25, None, None, {}, True), now)
    with suppress(UserNotFound):
        repository.people.remove_user("subject")
    add_user(api, "subject")
    own = caller if caller in CALLERS else "subject"
    token = add_token(api, own, "read")
    found = {"job_id": job_id, "name": "vision", "token_id": token.split("-")[2], "own_token": token}
    return {**found, "run": "a", "subject": "runs"}


def made(api: Api, call: Call, caller: str, token: str) -> Any:
    values = prepared(api, caller)
    if call.path.startswith("/v1/users/"):
        values["name"] = f"new-{values['job_id']}" if call.method == "POST" else "subject"
    if call.path.startswith("/v1/nodes/"):
        values["name"] = "node-1"
    body = BODIES.get(f"{call.method} {call.path}")
    if call.path.endswith("/membership"):
        body = membership(values["job_id"]) if call.method == "POST" else None
    if call.path == "/v1/tokens" and caller == "bootstrap":
        body = {"user": "subject"}
    if call.path == "/v1/session" and caller in CALLERS:
        token = values["own_token"]  # it is revoked by this
    options: dict[str, Any] = {} if body is None else {"json": body}
    if call.path.startswith("/v1/track/"):
        options["params"] = {"project": "vision"}
    values["call"] = "create" if call.method == "POST" else "search"
    return api.call(call.method, call.path.format(**values), token=token, **options)


@on_sqlite
def test_every_call_is_answered_to_those_who_have_the_right_and_to_nobody_else(
    tokens: tuple[Api, dict[str, str]],
) -> None:
    api, secrets = tokens
    wrong = []
    for caller, secret in secrets.items():
        for call in TABLE:
            status = made(api, call, caller, secret).status_code
            refusal = expected_refusal(call, caller)
            # Beyond the rights some are refused for other reasons: there is no scheduler here, the job is active.
            if status != refusal if refusal else status not in (200, 201, 204, 409, 503):
                wrong.append((caller, call.method, call.path, status, refusal))
    assert wrong == []


def expected_refusal(call: Call, caller: str) -> int | None:
    """What the caller is answered who has not the right; None: the caller has it."""
    if call.path == "/v1/projects/{name}" and call.method == "GET" and caller not in IN_VISION | {"no token"}:
        return 404  # a project that one may not read is not there either
    if call.path.startswith("/v1/sso/"):
        return 404  # to everybody: this service has no OpenID provider
    if caller in ALLOWED[call.need]:
        return None
    if caller == "no token":
        return 401
    return 404 if call.need.is_about_a_job and caller not in IN_VISION else 403


@on_sqlite
def test_the_table_names_what_the_service_answers(api: Api) -> None:
    document = api.get("/openapi.json").json()
    served = {(method.upper(), path) for path, calls in document["paths"].items() for method in calls}
    outside = {("GET", "/openapi.json"), ("GET", "/metrics"), *FOR_BROWSERS}
    assert {(call.method, call.path) for call in TABLE} - outside == served - outside
    for call in TABLE:
        assert is_open_path(call.path) is (call.need is Need.NOTHING)
        assert is_job_path(call.path) is (call.need is Need.OWN_TASKS)


@on_sqlite
@pytest.mark.parametrize(
    "path", ["/v1/secrets", "/v1/jobs/", "/v1/jobs/x/unknown", "/v1", "/metrics/", "/v1/users/a/b"]
)
def test_what_the_table_does_not_name_is_refused(api: Api, path: str) -> None:
    problem(api.get(path), 404)


@on_sqlite
def test_every_route_of_the_program_is_in_the_table(api: Api) -> None:
    """Also those that the OpenAPI document leaves out, but for the files of the page."""
    routes = api.client._transport.app.routes  # type: ignore[attr-defined]
    named = {(call.method, call.path) for call in TABLE}
    found = {
        (method, route.path)
        for route in routes
        for method in (getattr(route, "methods", None) or ())
        if method != "HEAD" and not is_open_path(route.path)
    }
    assert found == {(method, path) for method, path in named if not is_open_path(path)}


def test_everything_that_changes_something_is_recorded() -> None:
    changing = {call for call in TABLE if call.method != "GET" and call.need is not Need.OWN_TASKS}
    unrecorded = {(call.method, call.path) for call in changing if call.action is None}
    plans = {("POST", each) for each in ("/v1/plan", "/v1/jobs/{job_id}/plan", "/v1/projects/{name}/plan")}
    assert unrecorded == {*plans, ("POST", "/v1/sso/device")}
    reading = [call for call in TABLE if call.method == "GET" and (call.method, call.path) not in FOR_BROWSERS]
    assert all(call.action is None for call in reading)


def test_the_docs_print_the_table() -> None:
    assert table() in PAGE.read_text("utf-8")


def test_the_page_asks_for_nothing_that_its_viewers_may_not_read() -> None:
    """A refused request is an error in the browser's console, and a part of the page that stays empty.

    The view of users is shown to administrators only (test_page_roles.py).
    """
    sources = [each for each in (PAGE.parents[1] / "web" / "src").glob("*.ts*") if each.name != "users.tsx"]
    written = {path for each in sources for path in re.findall(r'[`"](/v1/[^`"?]*)', each.read_text())}
    asked = {re.sub(r"\$\{[^}]*\}", "x", path) for path in written}
    needs = {path: rows["GET"][0].need for path in asked if "GET" in (rows := calls_at(path))}
    assert {"/v1/promises", "/v1/stream", "/v1/jobs/x", "/v1/nodes", "/v1/projects"} <= needs.keys()
    assert set(needs.values()) <= {Need.NOTHING, Need.READ, Need.READ_JOB}, needs
