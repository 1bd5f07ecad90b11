"""What owners do with submitted jobs: change, pause, run again, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from tests.service.api.api_harness import NOW, Api, faults, job_spec, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user
from tests.service.api.test_api_jobs import UNKNOWN, ended_job
from tests.service.store.store_builders import set_wanted

from optimus_scheduler.lifecycle import CancelRequested, MembershipFormed
from optimus_scheduler.model import Allocation, Directive
from optimus_service.store.errors import JobNotFound


def change(api: Api, job_id: str, **changes: Any) -> Any:
    return api.call("PATCH", f"/v1/jobs/{job_id}", json=changes)


def changed(api: Api, job_id: str, **changes: Any) -> dict[str, Any]:
    answer = change(api, job_id, **changes)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def fault(api: Api, job_id: str, **changes: Any) -> tuple[str, str]:
    (error,) = problem(change(api, job_id, **changes), 422)["errors"]
    return error["field"], error["message"]


def types(api: Api, job_id: str) -> list[str]:
    return [event["type"] for event in api.get(f"/v1/jobs/{job_id}/events").json()["events"]]


# --- changing --------------------------------------------------------------------------------------------------------


def test_what_is_changed_is_told_with_old_and_new_value(api: Api) -> None:
    job_id = api.submit(workers={"max": 4}, convergence={"max_epochs": 100})
    before = api.job(job_id)["spec"]
    api.surroundings.triggers.clear()
    spec = changed(api, job_id, workers={"max": 3}, priority=2, convergence={"max_steps": 9}, name="other")["spec"]
    assert spec == {
        **before,
        "workers": {**before["workers"], "max": 3},
        "priority": 2.0,
        "convergence": {**before["convergence"], "max_steps": 9},
        "name": "other",
    }
    assert "changed" in api.surroundings.triggers
    event = api.get(f"/v1/jobs/{job_id}/events").json()["events"][0]
    assert event["type"] == "JobChanged"
    assert event["message"] == (
        "Its owner changed convergence.max_steps: none → 9; name: digits → other; "
        "priority: 1.0 → 2.0; workers.max: 4 → 3."
    )
    assert event["data"]["workers.max"] == {"from": 4, "to": 3}
    assert [job["id"] for job in api.get("/v1/jobs", params={"name": "other"}).json()["jobs"]] == [job_id]


@pytest.mark.parametrize(("limit", "larger", "less"), [("max_steps", 300, 50), ("max_epochs", 2.5, 0.5)])
def test_the_coordinator_hears_of_another_limit_at_once(api: Api, limit: str, larger: float, less: float) -> None:
    job_id = api.submit(convergence={"max_steps": 200, "max_epochs": 2.0})
    set_wanted(api.repository, job_id, Allocation(1, 1), Directive.RUN, (), NOW)
    token = api.job_token(job_id)

    def told() -> dict[str, Any]:
        found: dict[str, Any] = api.get(f"/v1/jobs/{job_id}/membership", token=token).json()
        return found

    first = told()
    assert first["limits"] == {"max_steps": 200, "max_epochs": 2.0}
    changed(api, job_id, convergence={limit: larger})
    second = told()
    assert (second["generation"], second["limits"]) == (first["generation"] + 1, {**first["limits"], limit: larger})
    changed(api, job_id, convergence={limit: less})
    assert told()["limits"] == {**first["limits"], limit: less}
    changed(api, job_id, unset=[f"convergence.{limit}"])
    assert told()["limits"] == {**first["limits"], limit: None}
    generation = told()["generation"]
    changed(api, job_id, convergence={"target_loss": 0.1})
    assert told()["generation"] == generation, "its coordinator does not judge that"


def test_fields_of_a_newer_release_stay(api: Api) -> None:
    job_id = api.submit()
    stored = api.repository.jobs.get(job_id).spec
    assert api.repository.jobs.set_spec(job_id, stored, {**stored, "telepathy": True}, {}, NOW)
    changed(api, job_id, priority=2)
    spec = api.repository.jobs.get(job_id).spec
    assert (spec["telepathy"], spec["priority"]) == (True, 2.0)


def test_a_script_is_changed_of_which_an_earlier_release_took_what_no_script_reads(api: Api) -> None:
    job_id = api.submit(task=None, command=["python", "train.py"])
    stored = api.repository.jobs.get(job_id).spec
    assert api.repository.jobs.set_spec(job_id, stored, {**stored, "seed": 7, "overlap": False}, {}, NOW)
    changed(api, job_id, priority=2)
    assert api.repository.jobs.get(job_id).spec == {**stored, "priority": 2.0}
    event = api.get(f"/v1/jobs/{job_id}/events").json()["events"][0]
    assert event["message"] == "Its owner changed priority: 1.0 → 2.0."


def test_a_change_that_changes_nothing_is_no_event(api: Api) -> None:
    job_id = api.submit(workers={"max": 4})
    changed(api, job_id, workers={"max": 4})
    changed(api, job_id)
    assert types(api, job_id) == ["JobSubmitted"]


def test_labels_come_and_go_and_jobs_are_found_by_them(api: Api) -> None:
    first = api.submit(labels={"team": "vision", "try": ""})
    second = api.submit(labels={"team": "speech"})

    def listed(*labels: str) -> list[str]:
        return sorted(job["id"] for job in api.get("/v1/jobs", params={"label": list(labels)}).json()["jobs"])

    assert listed("team=vision") == [first]
    assert listed("team") == sorted([first, second])
    assert listed("team", "try=") == [first]
    assert listed("team=vision", "try=2") == []
    assert changed(api, first, labels={"team": "speech", "try": None})["spec"]["labels"] == {"team": "speech"}
    assert listed("team=speech") == sorted([first, second])
    assert listed("try") == []
    assert "no label" in problem(api.get("/v1/jobs", params={"label": "a b"}), 422)["detail"]
    assert fault(api, first, labels={"-": "x"})[0] == "labels"


def test_a_deadline_is_moved_and_taken_away(api: Api) -> None:
    job_id = api.submit(deadline_seconds=60)
    spec = changed(api, job_id, deadline="2095-01-01T00:00:00Z")["spec"]
    assert (spec["deadline"], spec["deadline_seconds"]) == ("2095-01-01T00:00:00Z", None)
    spec = changed(api, job_id, deadline_seconds=90)["spec"]
    assert (spec["deadline"], spec["deadline_seconds"]) == (None, 90.0)
    assert changed(api, job_id, unset=["deadline"])["spec"]["deadline_seconds"] is None
    assert fault(api, job_id, deadline="1995-01-01T00:00:00Z") == ("deadline", "is in the past")
    api.surroundings.clock.now = NOW + 100
    why = "is in the past: the seconds count from the submission, which was 1 min 40 s ago"
    assert fault(api, job_id, deadline_seconds=90) == ("deadline_seconds", why)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"workers": {"min": 9, "max": 8}}, "workers", "min (9) must not be above max (8)"),
        ({"workers": {"min": 900, "max": 900}}, "workers.min", "at least 900"),
        ({"priority": 0}, "priority", "must be greater than or equal to 0.01"),
        ({"prioriti": 1}, "prioriti", "did you mean priority?"),
        ({"task": "other:task"}, "task", "unknown field"),
        ({"convergence": {"max_cost": 5}}, "convergence.max_cost", "no prices"),
        ({"servers": {"min": 0}}, "body", "without servers"),
        ({"unset": ["convergence.max_epochs", "convergence.loss_decrease"]}, "convergence", "give at least one of"),
    ],
)
def test_a_change_is_checked_like_a_submission(api: Api, changes: dict[str, Any], field: str, words: str) -> None:
    job_id = api.submit()
    body = problem(change(api, job_id, **changes), 422)
    assert words in {error["field"]: error["message"] for error in body["errors"]}[field]
    assert types(api, job_id) == ["JobSubmitted"]


def test_an_ended_job_is_not_changed(api: Api) -> None:
    job_id = ended_job(api)
    detail = problem(change(api, job_id, priority=2), 409)["detail"]
    assert "has ended (cancelled)" in detail
    assert f"optimus retry {job_id}" in detail
    problem(change(api, "no-such-job", priority=2), 404)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": None}, "priority"),
        ({"name": None}, "name"),
        ({"deadline": None}, "deadline"),
        ({"workers": {"max": None}}, "workers.max"),
        ({"convergence": {"max_epochs": None}}, "convergence.max_epochs"),
        ({"convergence": {"loss_decrease": None}}, "convergence.loss_decrease"),
        ({"labels": None}, "labels"),
        ({"unset": None}, "unset"),
        ({"workers": None}, "workers"),
    ],
)
def test_null_is_not_ignored(api: Api, changes: dict[str, Any], field: str) -> None:
    job_id = api.submit()
    assert fault(api, job_id, **changes)[0] == field
    assert "`unset`" in fault(api, job_id, deadline=None)[1]


def test_a_wrong_name_is_said_as_at_submission(api: Api) -> None:
    submitted = faults(api.post("/v1/jobs", json=job_spec(name="Not_A_Name")))["name"]
    assert submitted == "must have the form: lower-case letters, digits and -, 63 at most"
    assert fault(api, api.submit(), name="Not_A_Name") == ("name", submitted)
    assert faults(api.post("/v1/jobs", json=job_spec(project="A b")))["project"] == submitted
    assert (
        "letters, digits, -, _ and ." in faults(api.post("/v1/jobs", json=job_spec(gpu_types=["a b"])))["gpu_types.0"]
    )


def test_changes_at_the_same_time_take_turns(api: Api) -> None:
    job_id = api.submit()
    calls = [
        api.call_async("PATCH", f"/v1/jobs/{job_id}", json={"labels": {f"n{number}": ""}, "priority": number + 1})
        for number in range(30)
    ]

    async def together() -> list[Any]:
        return list(await asyncio.gather(*(call() for call in calls)))

    assert {answer.status_code for answer in api.portal.call(together)} == {200}
    assert api.job(job_id)["spec"]["labels"] == {f"n{number}": "" for number in range(30)}, "none is lost"
    assert types(api, job_id).count("JobChanged") == 30


# --- pausing ---------------------------------------------------------------------------------------------------------


def test_who_paused_a_job_is_told_everywhere(serving: Callable[..., AbstractContextManager[Api]]) -> None:
    with serving(token=ADMINISTRATOR) as api:
        add_user(api, "ada", {"vision": "member"})
        add_user(api, "eve", role="operator")
        ada, eve = add_token(api, "ada"), add_token(api, "eve")
        job_id = api.post("/v1/jobs", json=job_spec(project="vision"), token=ada).json()["id"]
        for token, by in ((ada, "its owner ada"), (eve, "the operator eve"), (ADMINISTRATOR, "the administrator with")):
            body = api.post(f"/v1/jobs/{job_id}/pause", token=token).json()
            assert body["message"].startswith(f"Paused by {by}")
            told = api.get(f"/v1/jobs/{job_id}/explanation", token=ada).json()
            assert f"Paused by {by}" in str(told["sentences"])
            events = api.get(f"/v1/jobs/{job_id}/events", token=ada).json()["events"]
            assert events[0]["message"].lower().startswith(f"{by} ".lower()[: len(by)])
            api.post(f"/v1/jobs/{job_id}/resume", token=token)


def test_a_queued_job_is_paused_and_resumed(api: Api) -> None:
    job_id = api.submit()
    for _ in range(2):
        body = api.post(f"/v1/jobs/{job_id}/pause").json()
        assert (body["state"], body["spec"]["paused"], body["reason"]) == ("paused", True, "PausedByOwner")
        assert body["message"].startswith("Paused by its owner since ")
    assert "pause" in api.surroundings.triggers
    body = api.post(f"/v1/jobs/{job_id}/resume").json()
    assert (body["state"], body["spec"]["paused"]) == ("queued", False)
    assert types(api, job_id) == ["ResumedByOwner", "PausedByOwner", "JobSubmitted"]


def test_pausing_says_why_it_cannot_be(api: Api) -> None:
    problem(api.post(UNKNOWN + "/pause"), 404)
    assert "is cancelled already" in problem(api.post(f"/v1/jobs/{ended_job(api)}/pause"), 409)["detail"]
    ending = api.submit()
    api.repository.jobs.advance(ending, MembershipFormed(1), NOW)
    api.repository.jobs.advance(ending, CancelRequested(has_tasks=True), NOW)
    assert "is being cancelled already" in problem(api.post(f"/v1/jobs/{ending}/pause"), 409)["detail"]
    tracked = api.submit(task=None, tracked=True)
    assert "outside the cluster" in problem(api.post(f"/v1/jobs/{tracked}/pause"), 409)["detail"]


# --- running again ---------------------------------------------------------------------------------------------------


def test_an_ended_job_runs_again_as_another_one(api: Api) -> None:
    ended = ended_job(api)
    key = {"Idempotency-Key": "again"}
    answer = api.post(f"/v1/jobs/{ended}/retry", headers=key)
    assert answer.status_code == 201
    again = answer.json()
    assert again["id"] != ended
    assert (again["spec"], again["state"], again["step"]) == (api.job(ended)["spec"], "queued", 0)
    repeated = api.post(f"/v1/jobs/{ended}/retry", headers=key)
    assert (repeated.status_code, repeated.json()["id"]) == (200, again["id"])
    told = api.get(f"/v1/jobs/{ended}/events").json()["events"][0]
    assert (told["type"], told["message"]) == ("Retried", f"Job {again['id']} runs it again.")
    assert types(api, again["id"]) == ["Retried", "JobSubmitted"]
    assert "has not ended: cancel it first" in problem(api.post(f"/v1/jobs/{again['id']}/retry"), 409)["detail"]
    # Who repeats the request by name means the new job by now.
    by_name = api.get("/v1/jobs", params={"name": again["name"], "match": "one"}).json()["jobs"]
    assert [job["id"] for job in by_name] == [again["id"]]
    repeated = api.post(f"/v1/jobs/{again['id']}/retry", headers=key)
    assert (repeated.status_code, repeated.json()["id"]) == (200, again["id"])


@pytest.mark.parametrize("call", ["pause", "resume", "retry", "cancel", "token"])
def test_calls_that_take_no_fields_refuse_them(api: Api, call: str) -> None:
    job_id = api.submit()
    path = f"/v1/jobs/{job_id}/{call}"
    assert faults(api.post(path, json={"gracefully": True})) == {"gracefully": "unknown field: this call takes none"}
    assert "takes no fields" in faults(api.post(path, json=[1]))["body"]
    assert problem(api.post(path, content="{", headers={"Content-Type": "application/json"}), 400)["errors"]
    assert api.job(job_id)["state"] == "queued"
    assert api.post(path, json={}).status_code in (200, 409), "an empty object says nothing"


def test_a_field_that_is_given_twice_is_refused(api: Api) -> None:
    job_id = api.submit()
    headers = {"Content-Type": "application/json"}
    body = '{"labels": {"a": "1", "a": "2"}, "priority": 2}'
    answer = api.call("PATCH", f"/v1/jobs/{job_id}", content=body, headers=headers)
    assert faults(answer) == {"a": "is given twice in one object"}
    answer = api.call("PATCH", f"/v1/jobs/{job_id}", content='{"priority": 2, "priority": 3}', headers=headers)
    assert faults(answer) == {"priority": "is given twice in one object"}
    assert types(api, job_id) == ["JobSubmitted"]


# --- deleting --------------------------------------------------------------------------------------------------------


def test_an_ended_job_is_deleted_with_all_that_is_kept(api: Api) -> None:
    job_id = ended_job(api)
    directory = api.services.settings.data_directory / "jobs" / job_id
    assert api.call("DELETE", f"/v1/jobs/{job_id}").status_code == 204
    problem(api.get(f"/v1/jobs/{job_id}"), 404)
    assert api.get("/v1/jobs").json()["jobs"] == []
    assert not api.repository.events.page(job_id).items
    assert directory.is_dir(), "its checkpoints stay unless they are to go"
    problem(api.call("DELETE", f"/v1/jobs/{job_id}"), 404)


def test_its_checkpoints_go_when_that_is_wanted(api: Api) -> None:
    job_id = ended_job(api)
    directory = api.services.settings.data_directory / "jobs" / job_id
    assert api.call("DELETE", f"/v1/jobs/{job_id}", params={"checkpoints": "true"}).status_code == 204
    assert not directory.exists()


def test_checkpoints_in_a_store_go_first_and_the_job_stays_where_they_cannot(api: Api) -> None:
    job_id, url = ended_job(api), "s3://bucket/checkpoints"
    before = api.repository.jobs.get(job_id).spec
    assert api.repository.jobs.set_spec(job_id, before, {**before, "checkpoint_url": url}, {}, NOW)
    cluster = api.surroundings.cluster
    cluster.store_away = "there is no bucket bucket"
    detail = problem(api.call("DELETE", f"/v1/jobs/{job_id}", params={"checkpoints": "true"}), 409)["detail"]
    assert detail == f"its checkpoints at {url} could not be deleted, so the job stays: there is no bucket bucket"
    assert api.job(job_id)["id"] == job_id
    cluster.store_away = None
    assert api.call("DELETE", f"/v1/jobs/{job_id}", params={"checkpoints": "true"}).status_code == 204
    assert cluster.removed == [f"{url}/{job_id}"]
    problem(api.get(f"/v1/jobs/{job_id}"), 404)


def test_deleting_says_why_it_cannot_be(api: Api) -> None:
    active = api.submit()
    assert (
        f"cancel it first (`optimus cancel {active}`)"
        in problem(api.call("DELETE", f"/v1/jobs/{active}"), 409)["detail"]
    )
    assert api.job(active)["state"] == "queued"
    origin = ended_job(api)
    manifest = api.services.settings.data_directory / "jobs" / origin / "checkpoints" / "manifest-000000000010.json"
    manifest.write_text('{"files": []}')
    waits = api.submit(from_job=origin)
    detail = problem(api.call("DELETE", f"/v1/jobs/{origin}", params={"checkpoints": "true"}), 409)["detail"]
    assert f"job {waits} starts from its checkpoint" in detail
    with pytest.raises(JobNotFound):
        api.repository.retention.delete_job("no-such-job")


def test_reports_about_an_ended_job_change_nothing_of_it(api: Api) -> None:
    job_id = ended_job(api)
    before = api.job(job_id)["profile"]
    for path, body in {
        "profile": {"n_parameters": 1, "n_examples": 2, "global_batch_size": 1, "steps_per_epoch": 2.0},
        "learning-rates": {"steps": [0, 1], "rates": [0.1, 0.2]},
        "network": {
            "format": "optimus-network/1",
            "name": "one",
            "layers": [{"name": "x", "kind": "input", "shape": [4]}],
        },
    }.items():
        detail = problem(api.as_task("PUT", job_id, path, json=body), 409)["detail"]
        assert detail == "the job has ended (cancelled)"
    assert api.job(job_id)["profile"] == before
