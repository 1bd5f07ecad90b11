"""Many jobs in one request: each as if it had come alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.service.api.api_harness import Api, faults, job_spec, on_sqlite, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user

from optimus_contract.limits import MAX_BATCH_JOBS
from optimus_service.clusters.base import TaskObjection, TaskSizes
from optimus_service.clusters.fake import FakeCluster

Serve = Callable[..., AbstractContextManager[Api]]
PATH = "/v1/jobs:batch"


def specs(n: int, **fields: Any) -> list[dict[str, Any]]:
    return [job_spec(name=f"job-{index}", **fields) for index in range(n)]


def batch(api: Api, jobs: list[Any], key: str | None = None, *, expect: int = 201, **fields: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = api.post(PATH, json={"jobs": jobs, **fields}, headers=headers)
    assert answer.status_code == expect, answer.text
    return answer.json()


def n_jobs(api: Api) -> int:
    return len(api.get("/v1/jobs?limit=200").json()["jobs"])


def test_many_jobs_are_made_at_once(api: Api) -> None:
    api.surroundings.triggers.clear()
    outcome = batch(api, [*specs(3, labels={"sweep": "a"}), job_spec(name="paused", paused=True)])
    assert (outcome["done"], outcome["refused"]) == (4, 0)
    assert [item["index"] for item in outcome["jobs"]] == [0, 1, 2, 3]
    assert all(item["new"] and item["problem"] is None for item in outcome["jobs"])
    jobs = [api.job(item["id"]) for item in outcome["jobs"]]
    assert [(job["name"], job["state"]) for job in jobs] == [
        *((f"job-{n}", "queued") for n in range(3)),
        ("paused", "paused"),
    ]
    assert len(api.get("/v1/jobs?label=sweep=a").json()["jobs"]) == 3
    events = api.get(f"/v1/jobs/{jobs[3]['id']}/events").json()["events"]
    assert [(event["type"], "paused until" in event["message"]) for event in events] == [("JobSubmitted", True)]
    assert api.surroundings.triggers == ["submit"]


def test_the_most_jobs_of_one_request(api: Api) -> None:
    outcome = batch(api, [job_spec(name="same") for _ in range(MAX_BATCH_JOBS)], "most")
    assert len({item["id"] for item in outcome["jobs"]}) == MAX_BATCH_JOBS
    faults_of = faults(api.post(PATH, json={"jobs": [{}] * (MAX_BATCH_JOBS + 1)}), 422)
    assert set(faults_of) == {"jobs"}


@pytest.mark.parametrize("atomic", [True, False])
def test_repeating_a_request_makes_nothing_new(api: Api, atomic: bool) -> None:
    first = batch(api, specs(3), "key", atomic=atomic)
    again = batch(api, specs(3), "key", atomic=atomic, expect=200)
    assert [item["id"] for item in again["jobs"]] == [item["id"] for item in first["jobs"]]
    assert not any(item["new"] for item in again["jobs"])
    other = api.post(PATH, json={"jobs": specs(2)}, headers={"Idempotency-Key": "key"})
    assert problem(other, 409)["type"].endswith("idempotency-conflict")
    assert n_jobs(api) == 3


@on_sqlite
def test_what_was_refused_is_made_by_a_later_repetition(api: Api) -> None:
    api.surroundings.cluster.broken_tasks["nowhere:task"] = "there is no module nowhere"
    jobs = [*specs(1), job_spec(name="broken", task="nowhere:task")]
    first = batch(api, jobs, "key", atomic=False)
    assert [item["new"] for item in first["jobs"]] == [True, False]
    del api.surroundings.cluster.broken_tasks["nowhere:task"]
    second = batch(api, jobs, "key", atomic=False)
    assert [item["new"] for item in second["jobs"]] == [False, True]
    assert second["jobs"][0]["id"] == first["jobs"][0]["id"]


WRONG = [
    job_spec(name="good"),
    job_spec(name="large", workers={"min": 900, "max": 900}),
    {"name": "No Name", "task": "a:b"},
    job_spec(name="good-too"),
]


@on_sqlite
def test_all_or_nothing_names_every_fault(api: Api) -> None:
    found = faults(api.post(PATH, json={"jobs": WRONG}), 422)
    assert "jobs.2.name" in found
    assert any(field.startswith("jobs.1.workers") for field in found)
    assert not any(field.startswith(("jobs.0", "jobs.3")) for field in found)
    assert n_jobs(api) == 0


@on_sqlite
def test_each_on_its_own_says_which_were_refused(api: Api) -> None:
    outcome = batch(api, WRONG, atomic=False)
    assert (outcome["done"], outcome["refused"]) == (2, 2)
    refused = {item["index"]: item["problem"] for item in outcome["jobs"] if item["problem"] is not None}
    assert set(refused) == {1, 2}
    assert all(each["status"] == 422 for each in refused.values())
    assert refused[2]["errors"][0]["field"] == "jobs.2.name"
    assert all(item["id"] is None for item in outcome["jobs"] if item["problem"])
    assert n_jobs(api) == 2


@on_sqlite
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "jobs"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [3]}, "jobs.0"),
        ({"jobs": [{}], "atomic": 1}, "atomic"),
        ({"jobs": [{}], "every": True}, "every"),
        ({"jobs": [{}]}, "jobs.0.name"),
    ],
    ids=["nothing", "empty", "no object", "no boolean", "unknown", "empty job"],
)
def test_bad_requests_name_the_field(api: Api, body: Any, field: str) -> None:
    assert field in faults(api.post(PATH, json=body), 422)


@on_sqlite
def test_a_task_is_tried_once_for_all_values_of_its_arguments(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(FakeCluster, "try_task", lambda _cluster, job: tried.append(job))
    with serving() as api:
        batch(api, [job_spec(name="a", task_args={"rate": index / 10}) for index in range(1, 6)])
        assert len(tried) == 1
        batch(api, [job_spec(name="b", task=f"module_{index}:task") for index in range(9)])
        assert len(tried) == 1 + 4


@on_sqlite
def test_values_with_which_a_task_cannot_train_say_nothing_of_others(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []

    def try_task(_cluster: FakeCluster, job: Any) -> TaskObjection | None:
        tried.append(job["task_args"]["slope"])
        fits = isinstance(tried[-1], int)
        return None if fits else TaskObjection("task_args", f"slope={tried[-1]!r} is not of type float")

    monkeypatch.setattr(FakeCluster, "try_task", try_task)

    def refused(*slopes: Any) -> dict[int, str]:
        tried.clear()
        jobs = [job_spec(name="a", task_args={"slope": slope}) for slope in slopes]
        outcome = batch(api, jobs, atomic=False)
        return {each["index"]: str(each["problem"]) for each in outcome["jobs"] if each["problem"] is not None}

    with serving() as api:
        found = refused("x", 2, "x", 3)
        assert {*found} == {0, 2}
        assert all("slope='x'" in words for words in found.values())
        assert tried == ["x", 2]
        found = refused("x", "y", "z", "u", "v", 5)
        assert {*found} == {0, 1, 2, 3}, "others say it themselves"
        assert all(f"slope='{name}'" in found[index] for index, name in enumerate("xyzu"))


@on_sqlite
def test_what_is_wrong_with_a_task_whatever_its_values_are_refuses_all(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []

    def try_task(_cluster: FakeCluster, job: Any) -> TaskObjection:
        tried.append(job)
        return TaskObjection("task", "its data is not there")

    monkeypatch.setattr(FakeCluster, "try_task", try_task)
    with serving() as api:
        jobs = [job_spec(name="a", task_args={"slope": slope}) for slope in range(9)]
        outcome = batch(api, jobs, expect=200, atomic=False)
        assert outcome["refused"] == 9
        assert len(tried) == 2


@on_sqlite
def test_a_batch_that_is_larger_than_the_data_is_found_in_a_sweep_of_batches(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def try_task(_cluster: FakeCluster, job: Any) -> TaskObjection | None:
        size = job["global_batch_size"]
        return None if size <= 1024 else TaskObjection("global_batch_size", f"is {size} and the data has 1024 examples")

    monkeypatch.setattr(FakeCluster, "try_task", try_task)
    with serving() as api:
        jobs = [job_spec(name="a", global_batch_size=size) for size in (64, 5000, 6000)]
        outcome = batch(api, jobs, atomic=False)
        found = {each["index"]: str(each["problem"]) for each in outcome["jobs"] if each["problem"] is not None}
        assert {*found} == {1, 2}
        assert "is 5000" in found[1]
        assert "is 6000" in found[2]


@on_sqlite
def test_what_a_trial_finds_is_known_before_the_job_starts(serving: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the very job that was tried, and of no other: its data and batch may depend on the arguments."""
    monkeypatch.setattr(FakeCluster, "try_task", lambda _cluster, _job: TaskSizes(1200, 120))
    with serving() as api:
        assert api.job(api.submit())["profile"]["steps_per_epoch"] == 10.0
        made = batch(api, [job_spec(name="a", task_args={"rate": rate}) for rate in (1, 2)])
        profiles = [api.job(each["id"])["profile"] for each in made["jobs"]]
        assert [each and each["n_examples"] for each in profiles] == [1200, None]


def test_rights_limits_and_record_of_each(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        add_user(api, "ada", {"vision": "member"})
        rights = {"projects": {"vision": "member"}, "limits": {"waiting_jobs": 3}}
        assert api.call("PUT", "/v1/users/ada", token=ADMINISTRATOR, json=rights).status_code == 200
        ada = add_token(api, "ada", "submit")
        jobs = [job_spec(name="a", project=project) for project in ("vision", "speech", "vision", "vision", "vision")]
        whole = api.post(PATH, token=ada, json={"jobs": jobs})
        assert "jobs.1" in problem(whole, 403)["detail"]
        answer = api.post(PATH, token=ada, json={"jobs": jobs, "atomic": False}).json()
        status = [None if item["problem"] is None else item["problem"]["status"] for item in answer["jobs"]]
        assert status == [None, 403, None, None, 409]
        full = api.post(PATH, token=ada, json={"jobs": jobs[:1]})
        assert "waiting_jobs" in problem(full, 409)["detail"]
        made = {item["id"] for item in answer["jobs"] if item["new"]}
        entries = api.get("/v1/audit?who=ada&limit=50", token=ADMINISTRATOR).json()["entries"]
        assert {entry["target"] for entry in entries} == made
        assert {(entry["action"], entry["project"]) for entry in entries} == {("job.submit", "vision")}
        assert all(api.get(f"/v1/jobs/{job_id}", token=ada).json()["owner"] == "ada" for job_id in made)


def test_cancelling_by_label(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        add_user(api, "ada", {"vision": "member"})
        add_user(api, "bob", {"vision": "member", "speech": "member"})
        ada, bob = add_token(api, "ada", "submit"), add_token(api, "bob", "submit")
        mine = specs(3, project="vision", labels={"sweep": "a"})
        made = api.post(PATH, token=ada, json={"jobs": mine}).json()["jobs"]
        theirs = api.post("/v1/jobs", token=bob, json=job_spec(project="vision", labels={"sweep": "a"})).json()["id"]
        unseen = api.post("/v1/jobs", token=bob, json=job_spec(project="speech", labels={"sweep": "a"})).json()["id"]
        other = api.post("/v1/jobs", token=ada, json=job_spec(project="vision", labels={"sweep": "b"})).json()["id"]
        answer = api.post("/v1/jobs:cancel", token=ada, json={"labels": {"sweep": "a"}}).json()
        assert {item["id"]: item["problem"] and item["problem"]["status"] for item in answer["jobs"]} == {
            **{item["id"]: None for item in made},
            theirs: 403,
        }
        assert (answer["done"], answer["refused"]) == (3, 1)
        state = {job: api.repository.jobs.get(job).state.value for job in (theirs, unseen, other, made[0]["id"])}
        assert state == {theirs: "queued", unseen: "queued", other: "queued", made[0]["id"]: "cancelled"}
        recorded = api.get("/v1/audit?who=ada&limit=50", token=ADMINISTRATOR).json()["entries"]
        cancelled = {entry["target"] for entry in recorded if entry["action"] == "job.cancel"}
        assert cancelled == {item["id"] for item in made}
        again = api.post("/v1/jobs:cancel", token=ada, json={"labels": {"sweep": "a"}}).json()
        assert again["done"] == 0


@on_sqlite
@pytest.mark.parametrize(
    ("body", "field"),
    [({}, "labels"), ({"labels": {}}, "labels"), ({"labels": {"-": "x"}}, "labels"), ({"labels": []}, "labels")],
    ids=["nothing", "no label", "bad name", "no object"],
)
def test_cancelling_needs_a_label(api: Api, body: Any, field: str) -> None:
    assert field in faults(api.post("/v1/jobs:cancel", json=body), 422)
