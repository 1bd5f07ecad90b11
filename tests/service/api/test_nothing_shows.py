"""Two projects' users call everything that there is, at random, and nothing that is the other's shows in any answer.

Whatever one side has, in whatever field of text, has that side's word in it, which the other side never sends.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.service.api.api_harness import Api, job_spec, membership, sample, telemetry
from tests.service.api.people import ADMINISTRATOR, add_token, add_user
from tests.service.store.store_builders import a_decision, a_round, set_wanted

from optimus_scheduler.lifecycle import TooManyFailures
from optimus_scheduler.model import Allocation, Directive, Quota, Resources, Role, TaskKey
from optimus_service.api.access.callers import Need
from optimus_service.api.access.rights import TABLE, Call
from optimus_service.clusters.base import TaskLaunch

Serve = Callable[..., AbstractContextManager[Api]]
SIDES = ("zebrawood", "quicksilver")
"""The words."""
CALLS = {"sqlite": 1000, "postgresql": 200}
OFTEN = ("/v1/jobs/{job_id}", "/v1/jobs", "/v1/queue", "/v1/usage", "/v1/plan")
"""These come three times as often as others."""


@pytest.fixture
def shared(serving: Serve) -> Iterator[Api]:
    with serving(token=ADMINISTRATOR, member_requests_per_second=1e6) as api:
        api.token = ADMINISTRATOR
        api.services.long_polls.close()  # streams and long polls end at once
        yield api


class Side:
    """A user of one project with all kinds of things in it."""

    def __init__(self, api: Api, word: str) -> None:
        self.api, self.word = api, word
        self.user, self.project = f"user-{word}", f"project-{word}"
        self.jobs: list[str] = []
        add_user(api, self.user, {self.project: "member"})
        self.token = add_token(api, self.user)
        self.token_id = self.token.split("-")[2]
        api.repository.projects.put(Quota(self.project, 0.25, None, None, {}, True), api.surroundings.clock())
        for number in range(4):
            self.add_job(number)

    def spec(self, **said: Any) -> dict[str, Any]:
        word = self.word
        texts: dict[str, Any] = {
            "labels": {f"label-{word}": f"value-{word}"},
            "task_args": {f"argument_{word}": f"value-{word}"},
            "environment": {f"VARIABLE_{word}": f"secret-{word}"},
        }
        return job_spec(name=f"job-{word}", project=self.project, **texts, **said)

    def add_job(self, number: int) -> None:
        """A job that waits, runs, has failed, or has ended; with tasks, events, decisions, telemetry, logs."""
        api, word, now = self.api, self.word, self.api.surroundings.clock()
        answer = api.post("/v1/jobs", json=self.spec(), token=self.token)
        assert answer.status_code == 201, answer.text
        job_id: str = answer.json()["id"]
        self.jobs.append(job_id)
        api.repository.events.add(job_id, f"Event{word}", f"message {word}", {"data": word}, now)
        decision = a_decision(job_id, message=f"decided {word}", allocation=Allocation(1, 1, f"gpu-{word}"))
        api.repository.rounds.add(a_round(), [decision])
        if number % 2:
            size = Allocation(1, 1, f"gpu-{word}")
            set_wanted(api.repository, job_id, size, Directive.RUN, [], now)
            key = TaskKey(job_id, Role.WORKER, 0, 0)
            api.surroundings.cluster.start(
                TaskLaunch(key=key, node="node-1", environment={}, resources=Resources(1.0, 0), working_directory=None)
            )
            api.repository.tasks.put([(key, "node-1", f"gpu-{word}")], {}, now)
            api.start(job_id, message=f"began {word}")
            told = sample(workers=2, servers=1, metrics={f"metric_{word}": 0.5})
            assert api.as_task("POST", job_id, "telemetry", json=telemetry(told)).status_code == 200
        if number == 3:
            api.repository.jobs.advance(job_id, TooManyFailures(f"ValueError: {word}"), now)


class Calls:
    """Random calls of one side, some of them about what the other side has."""

    def __init__(self, api: Api, sides: tuple[Side, Side], seed: int) -> None:
        self.api, self.sides = api, sides
        self._random = random.Random(seed)
        self._choices = [call for call in TABLE for _ in range(3 if call.path in OFTEN else 1)]

    def make(self) -> tuple[Call, bool, int]:
        """One call, whether it was about the other side, and its status; after the answer was searched."""
        mine, theirs = self._random.sample(self.sides, 2)
        call = self._random.choice(self._choices)
        about = theirs if self._random.random() < 0.5 else mine
        path, options = self._request(call, mine, about)
        token = add_token(self.api, mine.user) if call.path == "/v1/session" else mine.token  # it is revoked by this
        answer = self.api.call(call.method, path, token=token, **options)
        text = "\n".join([answer.text, *(f"{name}: {value}" for name, value in answer.headers.items())])
        asked = sorted({*_words(path), *_words(options)}, key=len, reverse=True)
        for said in (each for each in asked if theirs.word in each):
            text = text.replace(said, "")  # an error may repeat what the caller said
        assert theirs.word not in text, (call.method, path, options, answer.status_code, answer.text[:2000])
        assert answer.status_code < 500 or answer.status_code == 503, (call.method, path, answer.text)
        if answer.status_code == 201 and call.path in ("/v1/jobs", "/v1/jobs:batch"):
            made = [answer.json()] if call.path == "/v1/jobs" else answer.json()["jobs"]
            mine.jobs += [job["id"] for job in made if job.get("id")]
        return call, about is theirs, answer.status_code

    def _request(self, call: Call, mine: Side, about: Side) -> tuple[str, dict[str, Any]]:
        draw = self._random
        job_id = draw.choice(about.jobs)
        names = {"/v1/projects/": about.project, "/v1/users/": about.user, "/v1/track/": f"run-{about.word}"}
        name = next((name for prefix, name in names.items() if call.path.startswith(prefix)), "node-1")
        token_id = about.token_id if about is not mine else add_token(self.api, mine.user).split("-")[2]
        values = {"job_id": job_id, "name": name, "run": "a", "token_id": token_id, "subject": "runs"}
        path = call.path.format(**values, call=draw.choice(["search", "get", "create", "log-metric"]))
        options: dict[str, Any] = {}
        if call.method in ("POST", "PUT", "PATCH"):
            options["json"] = self._body(call, mine, about, job_id)
        elif draw.random() < 0.5:
            options["params"] = self._query(call, about)
        return path, options

    def _query(self, call: Call, about: Side) -> dict[str, Any]:
        if call.path == "/v1/jobs":
            filters = {"project": about.project, "owner": about.user, "name": "job", "label": "team"}
            return dict([self._random.choice(sorted(filters.items()))])
        if call.path == "/v1/trace":
            return {"project": about.project}
        if call.path == "/v1/tokens":
            return {"user": about.user}
        return {"month": "2025-10"} if call.path == "/v1/usage" else {}

    def _body(self, call: Call, mine: Side, about: Side, job_id: str) -> Any:
        if call.path in ("/v1/jobs", "/v1/plan"):
            said = {"from_job": job_id} if self._random.random() < 0.3 else {}
            return {**mine.spec(**said), "project": about.project}
        if call.path == "/v1/jobs:batch":
            return {
                "jobs": [mine.spec(), {**mine.spec(), "project": about.project}],
                "atomic": self._random.random() < 0.5,
            }
        if call.path == "/v1/jobs:cancel":
            return {"labels": {f"label-{about.word}": None}}
        if call.path.endswith("/membership"):
            return membership(job_id)
        if call.path.endswith("/telemetry"):
            return telemetry()
        bodies: dict[str, Any] = {
            "/v1/jobs/{job_id}": {"priority": 2.0},
            "/v1/projects/{name}": {"share": 0.1},
            "/v1/users/{name}": {"projects": {about.project: "member"}},
            "/v1/tokens": {"user": about.user, "scope": "read"},
            "/v1/sso/device/token": {"device_code": "unknown"},
        }
        return bodies.get(call.path, {})


def _words(sent: object) -> Iterator[str]:
    """All strings in what was sent."""
    if isinstance(sent, dict):
        for name, value in sent.items():
            yield from (name, *_words(value))
    elif isinstance(sent, list):
        for value in sent:
            yield from _words(value)
    elif isinstance(sent, str):
        yield from (sent, *sent.split("/"))


@pytest.mark.parametrize("seed", [19])
def test_nothing_of_the_other_project_shows_in_any_answer(shared: Api, database_url: str, seed: int) -> None:
    sides = Side(shared, SIDES[0]), Side(shared, SIDES[1])
    calls = Calls(shared, sides, seed)
    statuses: Counter[tuple[Need, bool, int]] = Counter()
    called, n = set[Call](), CALLS[database_url.partition(":")[0].partition("+")[0]]
    for _ in range(n):
        call, about_others, status = calls.make()
        called.add(call)
        statuses[call.need, about_others, status] += 1
    assert len(called) > (0.95 if n >= 1000 else 0.7) * len(TABLE), "nearly every call was made"
    of_others = {status for (need, others, status) in statuses if need.is_about_a_job and others}
    assert of_others == {404}
    assert sum(times for (_, others, status), times in statuses.items() if not others and status < 300) > n / 10
