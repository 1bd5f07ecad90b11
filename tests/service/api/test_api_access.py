"""Who may call what."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from tests.service.api.api_harness import Api, membership, on_sqlite, problem, telemetry

TOKEN = "a token of sixteen or more"
Serve = Callable[..., AbstractContextManager[Api]]

USER_CALLS = [
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs/x"),
    ("POST", "/v1/jobs/x/cancel"),
    ("POST", "/v1/jobs/x/resume"),
    ("GET", "/v1/jobs/x/events"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/rounds"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/v1/jobs/x/telemetry/"),
    ("GET", "/no/such/path"),
]
JOB_CALLS = [
    ("POST", "telemetry"),
    ("GET", "membership"),
    ("POST", "membership"),
    ("PUT", "profile"),
    ("POST", "result"),
]


# --- with a user's token ---------------------------------------------------------------------------------------------


@on_sqlite
def test_with_a_token_set_everything_but_health_needs_it(serving: Serve) -> None:
    with serving(token=TOKEN) as api:
        for method, path in USER_CALLS:
            answer = api.call(method, path)
            problem(answer, 401)
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert api.get("/healthz").status_code == 200
        assert api.get("/readyz").status_code == 200


@on_sqlite
@pytest.mark.parametrize("header", [f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}é"])
def test_another_token_is_refused(serving: Serve, header: str) -> None:
    with serving(token=TOKEN) as api:
        problem(api.get("/v1/jobs", headers={"Authorization": header.encode()}), 401)


@on_sqlite
def test_the_token_opens_everything_from_anywhere(serving: Serve) -> None:
    with serving(token=TOKEN, host="0.0.0.0") as api:
        api.token = TOKEN
        elsewhere = {"Host": "optimus.example:8080", "Origin": "https://dashboard.example"}
        for path in ("/v1/jobs", "/metrics", "/openapi.json"):
            assert api.get(path, headers=elsewhere).status_code == 200
        assert api.get("/v1/jobs", headers={"Authorization": f"bearer {TOKEN}"}, token="").status_code == 200


# --- without one, on loopback ----------------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost:1234", "[::1]:8080", "LOCALHOST", "127.9.9.9"]
)
def test_without_a_token_loopback_names_are_answered(api: Api, host: str) -> None:
    assert api.get("/v1/jobs", headers={"Host": host}).status_code == 200


@on_sqlite
@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", "Bearer optimus-user-", "Bearer é", f"Basic {TOKEN}", TOKEN])
def test_without_a_token_set_one_that_is_sent_makes_no_administrator(api: Api, header: str) -> None:
    problem(api.get("/v1/jobs", headers={"Authorization": header.encode()}), 401)
    assert api.get("/v1/jobs", headers={"Authorization": "Bearer "}).status_code == 200
    reported = api.post("/v1/track/bert", headers={"Authorization": f"Bearer {TOKEN}"}, json={})
    assert reported.status_code != 401, "clients of other programs cannot send none"


@on_sqlite
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost@evil", "[::2]", "[::1"],
)
def test_without_a_token_other_names_are_refused(api: Api, host: str) -> None:
    """DNS rebinding: a page's own name may lead to 127.0.0.1, but the browser sends that name."""
    problem(api.get("/v1/jobs", headers={"Host": host}), 403)
    job_id = api.submit()
    problem(api.as_task("GET", job_id, "membership", headers={"Host": host}), 403)


@on_sqlite
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8080"])
def test_without_a_token_pages_of_other_origins_are_refused(api: Api, origin: str) -> None:
    """CSRF: a browser says where a request comes from."""
    headers = {"Host": "127.0.0.1:8080", "Origin": origin}
    problem(api.post("/v1/jobs", json={}, headers=headers), 403)
    assert api.get("/v1/jobs", headers={**headers, "Origin": "http://127.0.0.1:8080"}).status_code == 200


# --- jobs' tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user_token", [None, TOKEN])
def test_calls_of_tasks_need_the_jobs_own_token(serving: Serve, user_token: str | None) -> None:
    with serving(token=user_token) as api:
        api.token = user_token
        job_id, other_id = api.submit(), api.submit()
        wrong = [api.job_token(other_id), TOKEN, api.job_token(job_id) + "0", api.job_token(job_id).upper(), "ä"]
        for method, what in JOB_CALLS:
            path = f"/v1/jobs/{job_id}/{what}"
            missing = api.call(method, path, token="")
            assert "OPTIMUS_JOB_TOKEN" in problem(missing, 401)["detail"]
            assert missing.headers["www-authenticate"].startswith("Bearer")
            for token in wrong:
                answer = api.call(method, path, token="", headers={"Authorization": f"Bearer {token}".encode()})
                assert "token of this job" in problem(answer, 403)["detail"]


def test_the_jobs_own_token_is_good_for_its_calls(api: Api) -> None:
    job_id = api.submit()
    assert api.as_task("POST", job_id, "membership", json=membership(job_id)).status_code == 204
    assert api.as_task("POST", job_id, "telemetry", json=telemetry()).status_code == 200
    assert api.as_task("GET", job_id, "membership", params={"timeout_seconds": 0}).status_code == 200


@pytest.mark.parametrize("user_token", [None, TOKEN])
def test_a_jobs_token_is_refused_where_users_are_expected(serving: Serve, user_token: str | None) -> None:
    with serving(token=user_token) as api:
        api.token = user_token
        job_id = api.submit()
        token = api.job_token(job_id)
        for method, path in [*USER_CALLS, ("GET", f"/v1/jobs/{job_id}"), ("POST", f"/v1/jobs/{job_id}/cancel")]:
            problem(api.call(method, path, token=token), 403)


@on_sqlite
def test_an_unknown_job_has_no_good_token(api: Api) -> None:
    token = api.services.job_tokens.issue("no-such-job", "")
    problem(api.call("POST", "/v1/jobs/no-such-job/telemetry", token=token, json=telemetry()), 403)
    problem(api.call("POST", "/v1/jobs/%00/telemetry", token=token, json=telemetry()), 403)


@on_sqlite
def test_a_refused_request_has_its_body_left_unread(api: Api) -> None:
    job_id = api.submit()
    answer = api.call("POST", f"/v1/jobs/{job_id}/telemetry", token="", content=b"not json")
    problem(answer, 401)


def test_the_previous_token_is_good_until_it_is_left_out(serving: Serve) -> None:
    new, old = "the new token of the service", "the old token of the service"
    with serving(token=new, previous_token=old) as api:
        assert [api.get("/v1/whoami", token=each).json()["name"] for each in (new, old)] == ["bootstrap"] * 2
        problem(api.get("/v1/whoami", token="another token of the service"), 401)
    with serving(token=new) as api:
        problem(api.get("/v1/whoami", token=old), 401)
