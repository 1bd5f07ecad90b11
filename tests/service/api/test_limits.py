"""What a member may take at most: jobs that wait, workers and priority of one, requests a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.api.api_harness import Api, Clock, faults, job_spec, on_sqlite, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user

from optimus_service.api.access.limits import Throttle

Serve = Callable[..., AbstractContextManager[Api]]


@pytest.fixture
def shared(serving: Serve) -> Iterator[Api]:
    with serving(token=ADMINISTRATOR, member_waiting_jobs=2, member_max_priority=5.0, member_max_workers=8) as api:
        api.token = ADMINISTRATOR
        yield api


@pytest.fixture
def ada(shared: Api) -> str:
    """A member of vision."""
    add_user(shared, "ada", {"vision": "member"})
    return add_token(shared, "ada")


def submit(api: Api, token: str, **spec: Any) -> Any:
    return api.post("/v1/jobs", json=job_spec(project="vision", workers={"max": 4}, **spec), token=token)


def test_one_members_jobs_stop_where_others_go_on(shared: Api, ada: str) -> None:
    add_user(shared, "bob", {"vision": "member"})
    bob = add_token(shared, "bob")
    first, _ = (submit(shared, ada).json()["id"] for _ in range(2))
    told = problem(submit(shared, ada), 409)["detail"]
    assert "2 jobs of ada wait, and 2 may (waiting_jobs)" in told
    assert "an administrator raises it: optimus user set ada --max-waiting N" in told
    assert submit(shared, bob).status_code == 201
    assert submit(shared, ADMINISTRATOR).status_code == 201, "who has a role has no limits"
    assert shared.post(f"/v1/jobs/{first}/cancel", token=ada).status_code == 200
    assert submit(shared, ada).status_code == 201


def test_a_repetition_is_no_further_job(shared: Api, ada: str) -> None:
    spec = job_spec(project="vision", workers={"max": 4})
    again = [
        shared.post("/v1/jobs", json=spec, headers={"Idempotency-Key": key}, token=ada) for key in ("a", "b", "b", "a")
    ]
    assert [each.status_code for each in again] == [201, 201, 200, 200]


def test_retries_wait_too(shared: Api, ada: str) -> None:
    ended = submit(shared, ada).json()["id"]
    shared.post(f"/v1/jobs/{ended}/cancel", token=ada)
    assert [shared.post(f"/v1/jobs/{ended}/retry", token=ada).status_code for _ in range(3)] == [201, 201, 409]


def test_many_at_once_are_not_more_than_may(shared: Api, ada: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(shared, ada).status_code, range(12)))
    assert sorted(answers) == [201, 201, *[409] * 10]


@pytest.mark.parametrize("fields", [{"priority": 5.5}, {"workers": {"max": 9}}])
def test_size_and_priority_have_bounds_in_every_call(shared: Api, ada: str, fields: dict[str, Any]) -> None:
    said = {
        "priority": "may be at most 5 for ada (max_priority)",
        "workers.max": "may be at most 8 for ada (max_workers)",
    }
    body = {**job_spec(project="vision", workers={"max": 4}), **fields}
    refusals = [shared.post(path, json=body, token=ada) for path in ("/v1/jobs", "/v1/plan")]
    refusals.append(shared.call("PATCH", f"/v1/jobs/{submit(shared, ada).json()['id']}", json=fields, token=ada))
    for refusal in refusals:
        ((field, message),) = faults(refusal).items()
        assert said[field] in message
        assert "optimus user set ada --max-" in message
    assert shared.post("/v1/jobs", json=body).status_code == 201


def test_what_an_operator_gave_a_job_its_owner_may_keep(shared: Api, ada: str) -> None:
    job_id = submit(shared, ada).json()["id"]
    assert shared.call("PATCH", f"/v1/jobs/{job_id}", json={"priority": 50.0}).status_code == 200
    assert shared.call("PATCH", f"/v1/jobs/{job_id}", json={"name": "other"}, token=ada).status_code == 200
    faults(shared.call("PATCH", f"/v1/jobs/{job_id}", json={"priority": 60.0}, token=ada))


def test_a_job_that_no_round_would_let_start_is_refused_whoever_submits_it(shared: Api) -> None:
    together = {"limits": {"workers_together": 2}}
    assert shared.call("PUT", "/v1/projects/vision", json=together).status_code == 201
    large = job_spec(project="vision", workers={"min": 3, "max": 4})
    by_administrator = faults(shared.post("/v1/jobs", json=large))
    assert "may be at most 2 for all jobs of project vision together" in by_administrator["workers.min"]
    assert "optimus project set vision --workers-together N" in by_administrator["workers.min"]
    fits = job_spec(project="vision", workers={"min": 2, "max": 4})
    assert shared.post("/v1/jobs", json=fits).status_code == 201


def test_users_and_projects_have_limits_of_their_own(shared: Api, ada: str) -> None:
    rights = {
        "projects": {"vision": "member"},
        "limits": {"waiting_jobs": 3, "max_priority": 100.0, "workers_together": 3},
    }
    assert shared.call("PUT", "/v1/users/ada", json=rights).json()["limits"]["waiting_jobs"] == 3
    assert shared.get("/v1/whoami", token=ada).json()["limits"] == {
        "waiting_jobs": 3, "max_workers": 8, "workers_together": 3, "max_priority": 100.0,
        "requests_per_second": 100.0,
    }  # fmt: skip
    assert submit(shared, ada, priority=99.0).status_code == 201
    made = shared.call("PUT", "/v1/projects/vision", json={"limits": {"max_priority": 2.0, "waiting_jobs": 1}})
    assert made.status_code == 201
    limits = made.json()["quota"]["limits"]
    assert limits == {"waiting_jobs": 1, "max_workers": None, "workers_together": None, "max_priority": 2.0}
    large = job_spec(project="vision", workers={"min": 4, "max": 4})
    never = faults(shared.post("/v1/jobs", json=large, token=ada))
    assert "may be at most 3 for ada (workers_together)" in never["workers.min"]
    refused = faults(submit(shared, ada, priority=3.0))
    assert "at most 2 for project vision (max_priority); an operator raises it" in refused["priority"]
    assert "1 job of project vision waits, and 1 may" in problem(submit(shared, ada), 409)["detail"]
    assert shared.repository.observed().projects == (), "a project without a quota is guaranteed nothing"
    recorded = shared.get("/v1/audit", params={"target": "ada"}).json()["entries"][0]
    assert recorded["data"]["limits"] == rights["limits"]


@on_sqlite
def test_limits_of_who_has_a_role_are_refused(shared: Api) -> None:
    said = faults(shared.post("/v1/users/eve", json={"role": "operator", "limits": {"waiting_jobs": 1}}))
    assert said == {"body": "an operator has no limits: leave limits out"}
    assert shared.get("/v1/whoami").json()["limits"]["waiting_jobs"] is None


@on_sqlite
def test_who_asks_too_often_is_told_when_to_ask_again(shared: Api, ada: str) -> None:
    rights = {"projects": {"vision": "member"}, "limits": {"requests_per_second": 0.1}}
    shared.call("PUT", "/v1/users/ada", json=rights)
    other = add_token(shared, "ada")
    assert shared.get("/v1/jobs", token=ada).status_code == 200
    refused = shared.get("/v1/jobs", token=other)
    assert "ada may make 0.1 requests a second (requests_per_second)" in problem(refused, 429)["detail"]
    assert 1 <= int(refused.headers["retry-after"]) <= 10
    assert [shared.get("/v1/jobs").status_code for _ in range(5)] == [200] * 5


@given(
    per_second=st.floats(0.1, 1000.0),
    pauses=st.lists(st.floats(0.0, 30.0), min_size=1, max_size=60),
)
def test_no_more_calls_than_the_rate_and_a_burst(per_second: float, pauses: list[float]) -> None:
    clock = Clock(0.0)
    throttle = Throttle(clock)
    admitted = 0
    for pause in pauses:
        clock.now += pause
        wait = throttle.seconds_to_wait("ada", per_second)
        admitted += wait == 0.0
        assert admitted <= max(1.0, 2.0 * per_second) + clock.now * per_second + 1e-6
        if wait > 0:
            clock.now += wait * (1 + 1e-9) + 1e-9
            assert throttle.seconds_to_wait("ada", per_second) == 0.0, "it may come when it was told to"
            admitted += 1
        assert throttle.seconds_to_wait(f"another {pause}{admitted}", per_second) == 0.0
