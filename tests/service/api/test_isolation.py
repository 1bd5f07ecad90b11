"""Users of two projects drive the same service, and see nothing of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.api.api_harness import Api, job_spec, on_sqlite
from tests.service.api.people import ADMINISTRATOR, add_token, add_user
from tests.service.store.store_builders import a_decision, a_forecast, a_round

from optimus_scheduler.model import NOTHING, Decision, Quota, Reason, Resources, Role, TaskKey
from optimus_service.api.access import auth
from optimus_service.api.access.callers import Caller, caller_of
from optimus_service.api.cluster import stream
from optimus_service.api.cluster.stream import Feeds, as_events
from optimus_service.api.jobs import seen
from optimus_service.clusters.base import TaskLaunch
from optimus_service.insight.jobs.bodies import decision_body
from optimus_service.insight.predictions.dry_run import Effect, Previewed, as_record
from optimus_service.push import feed
from optimus_service.push.stream_state import read_stream_state

Serve = Callable[..., AbstractContextManager[Api]]
SIDES = ("alpha", "bravo")

JOB_READS = [
    "",
    "/events",
    "/decisions",
    "/explanation",
    "/predictions",
    "/allocations",
    "/evaluations",
    "/curves",
    "/tasks",
    "/logs",
]
JOB_WRITES = ["cancel", "pause", "resume", "retry", "token"]
LISTS = [
    "/v1/jobs", "/v1/cluster", "/v1/cluster/history", "/v1/nodes", "/v1/projects", "/v1/projects/alpha",
    "/v1/projects/bravo", "/v1/trace", "/v1/whoami", "/v1/tokens", "/v1/jobs?project=alpha", "/v1/jobs?project=bravo",
    "/v1/jobs?owner=user-alpha", "/v1/jobs?owner=user-bravo", "/v1/rounds", "/v1/promises", "/metrics", "/v1/audit",
    "/v1/users",
]  # fmt: skip
CALLS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(SIDES), st.booleans()),
    st.tuples(st.just("list"), st.sampled_from(LISTS), st.booleans()),
    st.tuples(st.just("read"), st.sampled_from(JOB_READS), st.booleans()),
    st.tuples(st.just("write"), st.sampled_from(JOB_WRITES), st.booleans()),
    st.tuples(st.just("change"), st.sampled_from(["PATCH", "DELETE"]), st.booleans()),
)
"""What is called, with what, and whether for a job of the caller's own side."""
STORY = st.lists(st.tuples(st.sampled_from(SIDES), CALLS, st.integers(0, 5)), min_size=20, max_size=50)


@pytest.fixture
def shared(serving: Serve) -> Iterator[Api]:
    with serving(token=ADMINISTRATOR) as api:
        api.token = ADMINISTRATOR
        yield api


class Two:
    """Two users, each a member of one project; whatever one side has is called after it."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.tokens: dict[str, str] = {}
        self.jobs: dict[str, list[str]] = {side: [] for side in SIDES}
        for side in SIDES:
            add_user(api, f"user-{side}", {side: "member"})
            self.tokens[side] = add_token(api, f"user-{side}")
            api.repository.projects.put(Quota(side, 0.25, None, None, {}, True), 0.0)
            self.submit(side, side)

    def submit(self, side: str, project: str) -> Any:
        spec = job_spec(name=f"job-{side}", project=project, labels={"of": side})
        headers = {"Idempotency-Key": f"key-{len(self.jobs[side])}"}
        answer = self.api.post("/v1/jobs", json=spec, headers=headers, token=self.tokens[side])
        if answer.status_code == 201:
            self.jobs[side].append(answer.json()["id"])
            self.run(answer.json()["id"])
        return answer

    def run(self, job_id: str) -> None:
        """A task of it runs, and a round has decided about it."""
        key = TaskKey(job_id, Role.WORKER, 0, 0)
        self.api.surroundings.cluster.start(
            TaskLaunch(key=key, node="node-1", environment={}, resources=Resources(1.0, 0), working_directory=None)
        )
        self.api.repository.rounds.add(a_round(), [a_decision(job_id)])

    def call(self, side: str, what: tuple[str, str, bool], number: int) -> Any:
        kind, how, own = what
        if kind == "submit":
            return self.submit(side, how)
        token = self.tokens[side]
        if kind == "list":
            return self.api.get(how, token=token)
        jobs = self.jobs[side if own else other(side)]
        job_id = jobs[number % len(jobs)]
        if kind == "read":
            return self.api.get(f"/v1/jobs/{job_id}{how}", token=token)
        if kind == "write":
            answer = self.api.post(f"/v1/jobs/{job_id}/{how}", token=token)
            if how == "retry" and answer.status_code == 201:
                self.jobs[side].append(answer.json()["id"])
            return answer
        body = {"json": {"priority": 2.0}} if how == "PATCH" else {}
        return self.api.call(how, f"/v1/jobs/{job_id}", token=token, **body)


def other(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


@on_sqlite
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=STORY)
def test_two_projects_see_nothing_of_each_other(shared: Api, story: list[tuple[str, Any, int]]) -> None:
    clear(shared)
    two = Two(shared)
    for side, what, number in story:
        answer = two.call(side, what, number)
        assert answer.status_code < 500, answer.text
        asked = str(answer.request.url)
        kind, _, own = what
        if kind in ("read", "write", "change") and not own:
            assert answer.status_code == 404
        text = answer.text
        for word in asked_words(what, two, side, number):
            text = text.replace(word, "")
        assert other(side) not in text, (asked, answer.text)
    for side in SIDES:
        assert_counts(two, side)


def asked_words(what: tuple[str, str, bool], two: Two, side: str, number: int) -> list[str]:
    """What an error may repeat, since the caller said it."""
    kind, how, own = what
    if kind == "submit" and how != side:
        return [f"project {how}"]
    if kind == "list" and how.startswith("/v1/projects/"):
        return [f"'{how.rpartition('/')[2]}'"]
    if kind in ("read", "write", "change") and not own:
        jobs = two.jobs[other(side)]
        return [jobs[number % len(jobs)]]
    return []


def assert_counts(two: Two, side: str) -> None:
    """Sums are of what one may read: an aggregate tells of others, too."""
    api, token = two.api, two.tokens[side]
    assert two.submit(side, side).status_code == 201, "the story may have deleted the others"
    mine = list(api.get("/v1/jobs?limit=200", token=token).json()["jobs"])
    assert {job["project"] for job in mine} == {side}
    assert sum(api.get("/v1/cluster", token=token).json()["jobs"].values()) == len(mine)
    tasks = [task for node in api.get("/v1/nodes", token=token).json()["nodes"] for task in node["tasks"]]
    assert all(f"job-{side}" in task for task in tasks)
    assert tasks
    state = read_stream_state(
        api.repository, api.surroundings.cluster, "optimus", "1", api.surroundings.clock(), {side}
    )
    assert set(state.jobs) <= {job["id"] for job in mine}
    assert other(side) not in state.cluster + "".join(state.jobs.values())


def clear(api: Api) -> None:
    """Examples share one service."""
    for user in api.repository.people.users():
        api.repository.people.remove_user(user.name)
    cluster = api.surroundings.cluster
    keys = cluster.running()
    for key in keys:
        cluster.exit(key, 0)
    cluster.forget(keys)
    for job in api.repository.jobs.active():
        api.post(f"/v1/jobs/{job.id}/cancel")
    for job in api.repository.jobs.page(limit=1000).items:
        api.call("DELETE", f"/v1/jobs/{job.id}")


@on_sqlite
def test_a_stream_shows_the_projects_of_its_watcher(shared: Api) -> None:
    two = Two(shared)
    for side in SIDES:

        async def first(side: str = side) -> str:
            feeds = Feeds(shared.services)
            with feeds.watching(frozenset({side})) as changes:
                return as_events(await anext(changes))

        told = shared.portal.call(first)
        assert two.jobs[side][0] in told
        assert other(side) not in told


@on_sqlite
def test_a_stream_ends_when_its_token_does(shared: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RIGHTS_SECONDS", 0.0)
    monkeypatch.setattr(feed, "HEARTBEAT_SECONDS", 0.1)  # nothing changes, and a token is looked at before a comment
    two = Two(shared)
    verdicts = iter([True, False])
    monkeypatch.setattr(auth.UserAccess, "is_still", lambda *_: next(verdicts))
    answer = shared.get("/v1/stream", token=two.tokens["bravo"])
    assert (answer.status_code, list(verdicts)) == (200, [])


@on_sqlite
def test_whether_a_token_is_still_good_is_asked_of_its_rights_too(shared: Api) -> None:
    two, clock = Two(shared), shared.surroundings.clock
    access = auth.UserAccess(shared.services.settings, shared.repository, clock)
    secret = two.tokens["alpha"]
    caller = caller_of(*access._good(secret))
    assert access.is_still(secret, caller)
    shared.call("PUT", "/v1/users/user-alpha", json={"projects": {"alpha": "viewer"}})
    assert not access.is_still(secret, caller)
    changed = caller_of(*access._good(secret))
    shared.call("DELETE", f"/v1/tokens/{secret.split('-')[2]}")
    assert not access.is_still(secret, changed)


LIMITED = Caller(name="ada", memberships={"alpha": "member"})
OPERATOR = Caller(name="op", role="operator")


def test_how_many_ended_jobs_a_forecast_rests_on_is_told_to_those_who_may_read_all() -> None:
    record = a_decision(forecast=a_forecast()._replace(finished_runs=3, finished_runs_share=0.5))
    body = decision_body(record)
    assert body.forecast.finished_runs == 3
    assert seen.decision(body, OPERATOR) is body
    forecast = seen.decision(body, LIMITED).forecast
    assert (forecast.finished_runs, forecast.finished_runs_share, forecast.speed_from) == (0, None, None)


def test_a_dry_run_tells_of_no_job_of_others() -> None:
    effects = tuple(Effect(name, NOTHING, NOTHING, None, None) for name in ("mine", "theirs"))
    found = Previewed(
        record=as_record({"name": "new", "project": "alpha"}, 0.0),
        decision=Decision("dry-run", NOTHING, NOTHING, Reason.WAITING_FOR_RESOURCES, "", a_forecast("dry-run")),
        forecast=a_forecast("dry-run"),
        waiting=None,
        left=None,
        n_similar=2,
        n_alike=2,
        effects=effects,
        put_off=(),
        gives_more=None,
    )
    assert seen.previewed(found, {"mine"}, OPERATOR) is found
    told = seen.previewed(found, {"mine"}, LIMITED)
    assert ([each.job_id for each in told.effects], told.n_similar) == (["mine"], 0)
