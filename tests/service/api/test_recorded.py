"""A change and the record of who made it are one transaction: neither is there without the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session
from tests.service.api.api_harness import Api, job_spec, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user

from optimus_service.api.access.rights import TABLE
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.database.tables import Base

Serve = Callable[..., AbstractContextManager[Api]]
Call = tuple[str, str, Any]


@pytest.fixture
def shared(serving: Serve) -> Iterator[Api]:
    with serving(token=ADMINISTRATOR) as api:
        api.token = ADMINISTRATOR
        yield api


def calls(api: Api) -> dict[str, Call]:
    """One call of each kind that is recorded and can succeed at any time, by what the record calls it."""
    add_user(api, "ada", {"vision": "member"})
    secret = add_token(api, "ada")
    active, paused, ended = (api.submit(paused=index == 1) for index in range(3))
    api.post(f"/v1/jobs/{ended}/cancel")
    tracked = api.submit(tracked=True, task=None)
    api.call("PUT", "/v1/projects/speech", json={"share": 0.2})
    return {
        "job.submit": ("POST", "/v1/jobs", job_spec()),
        "job.change": ("PATCH", f"/v1/jobs/{active}", {"priority": 3.0, "name": "other"}),
        "job.cancel": ("POST", f"/v1/jobs/{active}/cancel", None),
        "job.pause": ("POST", f"/v1/jobs/{active}/pause", None),
        "job.resume": ("POST", f"/v1/jobs/{paused}/resume", None),
        "job.retry": ("POST", f"/v1/jobs/{ended}/retry", None),
        "job.delete": ("DELETE", f"/v1/jobs/{ended}", None),
        "job.token": ("POST", f"/v1/jobs/{tracked}/token", None),
        "job.track": ("POST", "/v1/track/bert", {"trainerStatus": {"progressPercentage": 0}}),
        "node.cordon": ("POST", "/v1/nodes/node-1/cordon", None),
        "node.drain": ("POST", "/v1/nodes/node-1/drain", None),
        "node.uncordon": ("POST", "/v1/nodes/node-1/uncordon", None),
        "quota.set": ("PUT", "/v1/projects/vision", {"share": 0.5}),
        "quota.delete": ("DELETE", "/v1/projects/speech", None),
        "user.create": ("POST", "/v1/users/bob", {}),
        "user.change": ("PUT", "/v1/users/ada", {"role": "operator"}),
        "user.remove": ("DELETE", "/v1/users/ada", None),
        "token.create": ("POST", "/v1/tokens", {"user": "ada"}),
        "token.revoke": ("DELETE", f"/v1/tokens/{secret.split('-')[2]}", None),
    }


def stored(url: str, *, without: str = "") -> dict[str, list[Any]]:
    """Everything in the database, by table."""
    engine = create_engine_from_url(url)
    try:
        with Session(engine) as session:
            tables = [each for each in Base.metadata.sorted_tables if each.name != without]
            return {each.name: sorted(map(repr, session.execute(select(each)).all())) for each in tables}
    finally:
        engine.dispose()


def run(url: str, statement: str) -> None:
    engine = create_engine_from_url(url)
    try:
        with engine.begin() as connection:
            connection.execute(text(statement))
    finally:
        engine.dispose()


def test_the_calls_are_those_that_the_table_records(shared: Api) -> None:
    sessions = {"user.sign-in", "user.sign-out"}  # of who comes from a provider: see test_sign_in
    assert set(calls(shared)) == {each.action for each in TABLE if each.action is not None} - sessions


def test_a_record_that_cannot_be_written_takes_its_change_with_it(shared: Api) -> None:
    url = shared.services.settings.url
    wanted = calls(shared)
    run(url, "ALTER TABLE audit RENAME TO audit_away")
    before = stored(url, without="audit")
    for action, (method, path, body) in wanted.items():
        problem(shared.call(method, path, json=body), 503)
        assert stored(url, without="audit") == before, action
    run(url, "ALTER TABLE audit_away RENAME TO audit")
    for action, (method, path, body) in wanted.items():
        if action in ("job.cancel", "job.pause", "user.remove", "token.create"):
            continue  # of what the others need
        answer = shared.call(method, path, json=body)
        assert answer.is_success, (action, answer.text)
        assert shared.get("/v1/audit").json()["entries"][0]["action"] == action


def test_a_change_that_fails_leaves_no_record(shared: Api) -> None:
    job_id = shared.submit()
    url = shared.services.settings.url
    before = stored(url)
    problem(shared.post("/v1/users/bad..name", json={}), 422)
    problem(shared.call("DELETE", f"/v1/jobs/{job_id}"), 409)
    problem(shared.call("PUT", "/v1/users/nobody", json={"role": "operator"}), 404)
    problem(shared.post("/v1/tokens", json={"user": "nobody"}), 404)
    problem(shared.post(f"/v1/jobs/{job_id}/retry"), 409)
    assert stored(url) == before


def test_a_repeated_submission_says_that_it_made_nothing(shared: Api) -> None:
    made = [shared.post("/v1/jobs", json=job_spec(), headers={"Idempotency-Key": "k"}).json()["id"] for _ in "12"]
    told = [(each["target"], each["data"]) for each in shared.get("/v1/audit").json()["entries"]]
    assert told == [(made[0], {"new": False}), (made[0], {"new": True})]
    assert made[0] == made[1]
