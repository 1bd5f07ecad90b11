"""Users, tokens, owners, and the record of who did what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import structlog
from starlette.types import Message, Receive, Scope, Send
from tests.service.api.api_harness import Api, faults, job_spec, on_sqlite, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user

from optimus_service.api.access import auth
from optimus_service.process.user_tokens import hash_of

Serve = Callable[..., AbstractContextManager[Api]]


@pytest.fixture
def shared(serving: Serve) -> Iterator[Api]:
    """A service with OPTIMUS_TOKEN, called by its administrator unless another token is named."""
    with serving(token=ADMINISTRATOR) as api:
        api.token = ADMINISTRATOR
        yield api


def member(api: Api, name: str, project: str) -> str:
    add_user(api, name, {project: "member"})
    return add_token(api, name)


def submit_as(api: Api, token: str, **spec: Any) -> str:
    answer = api.post("/v1/jobs", json=job_spec(**spec), token=token)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_is_made_used_and_revoked(shared: Api) -> None:
    assert shared.post("/v1/users/ada", json={"projects": {"vision": "member"}}).status_code == 201
    made = shared.post("/v1/tokens", json={"user": "ada", "name": "laptop", "scope": "submit"})
    assert made.headers["cache-control"] == "no-store"
    secret, token_id = made.json()["secret"], made.json()["token"]["id"]
    told = shared.get("/v1/whoami", token=secret).json()
    assert told == {
        "name": "ada", "role": None, "scope": "submit", "projects": {"vision": "member"}, "token_id": token_id,
        "limits": told["limits"], "may": ["submit"], "since": told["since"],
    }  # fmt: skip
    assert shared.call("DELETE", f"/v1/tokens/{token_id}").status_code == 204
    problem(shared.get("/v1/whoami", token=secret), 401)
    (listed,) = shared.get("/v1/tokens").json()["tokens"]
    assert listed["revoked_at"] is not None
    assert secret not in shared.get("/v1/tokens").text


@on_sqlite
def test_a_user_has_so_many_good_tokens_at_most(shared: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimus_service.api.users.people.MAX_TOKENS", 2)
    shared.post("/v1/users/ada", json={})
    made = [shared.post("/v1/tokens", json={"user": "ada", "expires_seconds": 60}) for _ in range(2)]
    assert "ada has 2 tokens" in problem(shared.post("/v1/tokens", json={"user": "ada"}), 409)["detail"]
    assert len(shared.get("/v1/tokens").json()["tokens"]) == 2
    shared.call("DELETE", f"/v1/tokens/{made[0].json()['token']['id']}")
    assert shared.post("/v1/tokens", json={"user": "ada"}).status_code == 201
    shared.surroundings.clock.now += 61
    assert shared.post("/v1/tokens", json={"user": "ada"}).status_code == 201, "an expired one is not counted"


@on_sqlite
def test_a_request_with_two_tokens_is_refused(shared: Api) -> None:
    for first, second in (("Bearer nothing", f"Bearer {ADMINISTRATOR}"), (f"Bearer {ADMINISTRATOR}", "Bearer nothing")):
        headers = [("Authorization", first), ("Authorization", second)]
        answer = shared.portal.call(partial(shared.client.get, "/v1/whoami", headers=headers))
        assert "send one Authorization header, not 2" in problem(answer, 401)["detail"]


def test_only_the_hash_of_a_token_is_stored(shared: Api) -> None:
    secret = member(shared, "ada", "vision")
    (stored,) = shared.repository.people.tokens()
    assert stored.hash == hash_of(secret)
    assert secret.rpartition("-")[2] not in repr(stored)


@on_sqlite
@pytest.mark.parametrize("change", [lambda s: s[:-1] + ("0" if s[-1] != "0" else "1"), lambda s: s + "0", str.upper])
def test_another_secret_of_a_known_token_is_refused(shared: Api, change: Callable[[str], str]) -> None:
    secret = member(shared, "ada", "vision")
    assert shared.get("/v1/whoami", token=secret).status_code == 200
    problem(shared.get("/v1/whoami", token=change(secret)), 401)


@on_sqlite
def test_a_token_expires(shared: Api) -> None:
    add_user(shared, "ada")
    secret = add_token(shared, "ada", expires_at=shared.surroundings.clock() + 60)
    assert shared.get("/v1/whoami", token=secret).status_code == 200
    shared.surroundings.clock.now += 60
    problem(shared.get("/v1/whoami", token=secret), 401)


@on_sqlite
def test_the_last_use_is_written_once_a_minute_at_most(shared: Api) -> None:
    secret, clock = member(shared, "ada", "vision"), shared.surroundings.clock
    begin, seen = clock.now, []
    for seconds in (0, 59, 60, 61):
        clock.now = begin + seconds
        shared.get("/v1/whoami", token=secret)
        used_at = shared.repository.people.tokens()[0].used_at
        assert used_at is not None
        seen.append(used_at - begin)
    assert seen == [0, 0, 60, 60]


@on_sqlite
def test_no_answer_waits_until_its_tokens_use_is_written(shared: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, order = member(shared, "ada", "vision"), []
    monkeypatch.setattr("optimus_service.store.people.note_use", lambda *_: order.append("use written"))

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "answer"})

    async def receive() -> Message:
        raise AssertionError("nothing is asked of the client")

    async def send(message: Message) -> None:
        order.append(message["type"])

    services = shared.services
    access = auth.AccessMiddleware(
        answer,
        settings=services.settings,
        job_tokens=services.job_tokens,
        repository=shared.repository,
        clock=services.clock,
    )
    headers = [(b"authorization", f"Bearer {secret}".encode())]
    request = {"type": "http", "method": "GET", "path": "/v1/whoami", "headers": headers}
    shared.portal.call(access, request, receive, send)
    assert order == ["answer", "use written"]


@on_sqlite
def test_one_write_at_most_waits_to_tell_of_uses(shared: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    member(shared, "ada", "vision")
    (token,) = shared.repository.people.tokens()
    access = auth.UserAccess(shared.services.settings, shared.repository, shared.services.clock)
    written = []

    def write(*_: object) -> None:
        written.append(token.id)
        access.note_use(token)  # as another request does meanwhile

    monkeypatch.setattr("optimus_service.store.people.note_use", write)
    for _ in range(2):
        access.note_use(token)
    assert written == [token.id] * 2


@on_sqlite
def test_users_make_and_see_tokens_of_their_own_only(shared: Api) -> None:
    ada, bob = member(shared, "ada", "vision"), member(shared, "bob", "vision")
    assert shared.post("/v1/tokens", json={}, token=ada).json()["token"]["user"] == "ada"
    problem(shared.post("/v1/tokens", json={"user": "bob"}, token=ada), 403)
    assert {each["user"] for each in shared.get("/v1/tokens", token=ada).json()["tokens"]} == {"ada"}
    assert shared.get("/v1/tokens", params={"user": "bob"}, token=ada).json()["tokens"] == []
    of_bob = bob.split("-")[2]
    hidden = problem(shared.call("DELETE", f"/v1/tokens/{of_bob}", token=ada), 404)["detail"]
    unknown = problem(shared.call("DELETE", "/v1/tokens/000000000000", token=ada), 404)["detail"]
    assert hidden.replace(of_bob, "") == unknown.replace("000000000000", "")


@on_sqlite
def test_a_token_does_not_outlive_the_one_that_made_it(shared: Api) -> None:
    add_user(shared, "ada")
    secret = add_token(shared, "ada", expires_at=shared.surroundings.clock() + 100)
    for body in ({}, {"expires_seconds": 101}):
        assert "at most 100" in faults(shared.post("/v1/tokens", json=body, token=secret))["expires_seconds"]
    assert shared.post("/v1/tokens", json={"expires_seconds": 100}, token=secret).status_code == 201


@on_sqlite
def test_rights_follow_the_user_at_once(shared: Api) -> None:
    ada = member(shared, "ada", "vision")
    job_id = submit_as(shared, ada, project="vision")
    shared.call("PUT", "/v1/users/ada", json={"projects": {"vision": "viewer"}})
    problem(shared.post(f"/v1/jobs/{job_id}/cancel", token=ada), 403)
    for silent in ({}, {"kind": "person"}, {"limits": {"waiting": 3}}):
        said = faults(shared.call("PUT", "/v1/users/ada", json=silent))["body"]
        assert "projects or role" in said
        assert shared.get("/v1/users/ada").json()["projects"] == {"vision": "viewer"}, "nothing was taken away"
    shared.call("PUT", "/v1/users/ada", json={"projects": {}})
    problem(shared.get(f"/v1/jobs/{job_id}", token=ada), 404)
    shared.call("DELETE", "/v1/users/ada")
    problem(shared.get("/v1/whoami", token=ada), 401)
    assert shared.job(job_id)["owner"] == "ada"


@on_sqlite
def test_names_that_callers_without_a_user_have_are_kept_for_them(shared: Api) -> None:
    for name in ("local", "bootstrap"):
        assert "choose another" in faults(shared.post(f"/v1/users/{name}", json={}))["name"]
    assert "name one" in faults(shared.post("/v1/tokens", json={}))["user"]
    assert shared.post("/v1/users/ada", json={}).status_code == 201
    problem(shared.post("/v1/users/ada", json={"role": "administrator"}), 409)
    problem(shared.post("/v1/tokens", json={"user": "nobody"}), 404)


@on_sqlite
def test_on_loopback_the_caller_without_a_token_is_the_administrator(api: Api) -> None:
    assert api.get("/v1/whoami").json()["name"] == "local"
    assert api.job(api.submit())["owner"] == "local"
    ada = member(api, "ada", "vision")
    assert api.get("/v1/whoami", token=ada).json()["name"] == "ada"
    problem(api.get("/v1/users", token=ada), 403)


# --- owners ----------------------------------------------------------------------------------------------------------


def test_jobs_have_owners_and_are_found_by_them(shared: Api) -> None:
    ada, bob = member(shared, "ada", "vision"), member(shared, "bob", "vision")
    first, second = submit_as(shared, ada, project="vision"), submit_as(shared, bob, project="vision")
    mine = shared.get("/v1/jobs", params={"owner": "ada"}, token=bob).json()["jobs"]
    assert [job["id"] for job in mine] == [first]
    problem(shared.post(f"/v1/jobs/{first}/cancel", token=bob), 403)
    assert shared.post(f"/v1/jobs/{second}/cancel", token=bob).status_code == 200


@on_sqlite
def test_what_an_operator_runs_again_stays_its_owners(shared: Api) -> None:
    ada = member(shared, "ada", "vision")
    job_id = submit_as(shared, ada, project="vision", environment={"HF_TOKEN": "of ada"})
    shared.post(f"/v1/jobs/{job_id}/cancel")
    assert shared.post(f"/v1/jobs/{job_id}/retry").json()["owner"] == "ada"


@on_sqlite
def test_a_later_user_of_the_same_name_owns_nothing_of_the_earlier_one(shared: Api) -> None:
    ada = member(shared, "ada", "vision")
    headers = {"Idempotency-Key": "nightly"}
    spec = job_spec(project="vision")
    job_id = shared.post("/v1/jobs", json=spec, headers=headers, token=ada).json()["id"]
    shared.surroundings.clock.now += 1
    assert shared.call("DELETE", "/v1/users/ada").status_code == 204
    later = member(shared, "ada", "vision")
    problem(shared.get("/v1/whoami", token=ada), 401)
    told = problem(shared.call("PATCH", f"/v1/jobs/{job_id}", json={"priority": 2.0}, token=later), 403)["detail"]
    assert f"{job_id} belongs to an earlier user of that name" in told
    for what in ("cancel", "pause", "retry", "token"):
        problem(shared.post(f"/v1/jobs/{job_id}/{what}", token=later), 403)
    assert shared.get("/v1/jobs", params={"owner": "ada"}, token=later).json()["jobs"] == []
    problem(shared.call("DELETE", f"/v1/jobs/{job_id}", token=later), 403)
    mine = shared.post("/v1/jobs", json=spec, headers=headers, token=later)
    assert mine.status_code == 201
    assert shared.post(f"/v1/jobs/{mine.json()['id']}/cancel", token=later).status_code == 200
    shared.post(f"/v1/jobs/{job_id}/cancel")
    assert shared.post(f"/v1/jobs/{job_id}/retry").json()["owner"] == "bootstrap"


@on_sqlite
def test_a_key_names_no_job_that_the_token_may_not_read(shared: Api) -> None:
    add_user(shared, "ada", {"vision": "member", "speech": "member"})
    wide, narrow = add_token(shared, "ada"), add_token(shared, "ada", projects=["speech"])
    headers = {"Idempotency-Key": "nightly"}
    hidden = shared.post("/v1/jobs", json=job_spec(project="vision"), headers=headers, token=wide).json()["id"]
    own = submit_as(shared, narrow, project="speech")
    shared.post(f"/v1/jobs/{own}/cancel", token=narrow)
    calls = [("/v1/jobs", {"json": job_spec(project="speech")}), (f"/v1/jobs/{own}/retry", {})]
    for path, body in calls:
        assert hidden in shared.post(path, headers=headers, token=wide, **body).text
        told = shared.post(path, headers=headers, token=narrow, **body)
        assert "'nightly'" in problem(told, 409)["detail"]
        assert hidden not in told.text


def test_two_users_may_choose_the_same_idempotency_key(shared: Api) -> None:
    ada, bob = member(shared, "ada", "vision"), member(shared, "bob", "speech")
    headers = {"Idempotency-Key": "nightly"}
    ids = set()
    for token, project in ((ada, "vision"), (bob, "speech"), (ada, "vision")):
        answer = shared.post("/v1/jobs", json=job_spec(project=project), headers=headers, token=token)
        assert answer.status_code in (200, 201)
        ids.add((project, answer.json()["id"]))
    assert len(ids) == 2
    conflict = shared.post("/v1/jobs", json=job_spec(project="speech", seed=1), headers=headers, token=bob)
    assert "'nightly'" in problem(conflict, 409)["detail"]


@on_sqlite
def test_a_name_means_the_newest_job_that_one_may_read(shared: Api) -> None:
    ada, bob = member(shared, "ada", "vision"), member(shared, "bob", "speech")
    mine = submit_as(shared, ada, project="vision", name="digits")
    shared.surroundings.clock.now += 1
    theirs = submit_as(shared, bob, project="speech", name="digits")
    for name, found in (("digits", [mine]), (mine, [mine]), (theirs, [])):
        jobs = shared.get("/v1/jobs", params={"name": name, "match": "one"}, token=ada).json()["jobs"]
        assert [job["id"] for job in jobs] == found


@on_sqlite
def test_a_retry_is_repeated_by_its_own_caller(shared: Api) -> None:
    ada, bob = member(shared, "ada", "vision"), member(shared, "bob", "vision")
    job_id = submit_as(shared, ada, project="vision")
    shared.post(f"/v1/jobs/{job_id}/cancel")
    headers = {"Idempotency-Key": "again"}
    of_ada = [shared.post(f"/v1/jobs/{job_id}/retry", headers=headers, token=ada) for _ in range(2)]
    assert [answer.status_code for answer in of_ada] == [201, 200]
    assert of_ada[0].json()["id"] == of_ada[1].json()["id"]
    problem(shared.post(f"/v1/jobs/{job_id}/retry", headers=headers, token=bob), 403)
    assert shared.post(f"/v1/jobs/{job_id}/retry", headers=headers).json()["id"] != of_ada[0].json()["id"]


@on_sqlite
def test_a_project_of_others_is_refused_whether_it_exists_or_not(shared: Api) -> None:
    ada, bob = member(shared, "ada", "vision"), member(shared, "bob", "speech")
    submit_as(shared, bob, project="speech")
    for path in ("/v1/jobs", "/v1/plan"):
        told = {
            problem(shared.post(path, json=job_spec(project=name), token=ada), 403)["detail"].replace(name, "it")
            for name in ("speech", "no-such-project")
        }
        assert told == {"ada is no member of the project it; may submit to: vision"}


@on_sqlite
def test_a_job_of_others_to_start_from_is_as_if_it_were_not_there(shared: Api) -> None:
    ada, bob = member(shared, "ada", "vision"), member(shared, "bob", "speech")
    hidden = submit_as(shared, bob, project="speech")
    told = {
        faults(shared.post("/v1/jobs", json=job_spec(project="vision", from_job=name), token=ada))["from_job"].replace(
            name, "it"
        )
        for name in (hidden, "no-such-job")
    }
    assert told == {"there is no job it"}


# --- who did what ----------------------------------------------------------------------------------------------------


def test_changes_are_recorded_with_who_and_what(shared: Api) -> None:
    ada = member(shared, "ada", "vision")
    with structlog.testing.capture_logs() as lines:
        job_id = submit_as(shared, ada, project="vision")
        shared.call("PATCH", f"/v1/jobs/{job_id}", json={"priority": 4.0}, token=ada)
        shared.call("PUT", "/v1/projects/vision", json={"share": 0.5})
        shared.get(f"/v1/jobs/{job_id}", token=ada)
        problem(shared.call("PUT", "/v1/projects/vision", json={"share": 0.1}, token=ada), 403)
    entries = shared.get("/v1/audit").json()["entries"]
    told = [(each["who"], each["action"], each["target"], each["project"]) for each in reversed(entries)]
    assert told == [
        ("ada", "job.submit", job_id, "vision"),
        ("ada", "job.change", job_id, "vision"),
        ("bootstrap", "quota.set", "vision", "vision"),
    ]
    assert entries[1]["data"] == {"priority": {"from": 1.0, "to": 4.0}}
    assert entries[0]["data"]["quota"]["share"] == 0.5
    logged = [line for line in lines if line["event"] == "audit"]
    assert [(line["who"], line["action"]) for line in logged] == [each[:2] for each in told]
    assert [each["action"] for each in shared.get("/v1/audit", params={"who": "ada"}).json()["entries"]] == [
        "job.change",
        "job.submit",
    ]


@on_sqlite
def test_no_token_is_in_the_record_or_the_log(shared: Api) -> None:
    shared.post("/v1/users/ada", json={})
    with structlog.testing.capture_logs() as lines:
        secret = shared.post("/v1/tokens", json={"user": "ada"}).json()["secret"]
    assert secret not in shared.get("/v1/audit").text
    assert secret not in repr(lines)
    assert shared.get("/v1/audit").json()["entries"][0]["target"] == secret.split("-")[2]
