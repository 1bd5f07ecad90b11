"""Jobs that run outside the cluster: registered, reported, ended; and what makes no sense for them."""

from __future__ import annotations

import pytest
from tests.service.api.api_harness import Api, faults, membership, problem, sample, telemetry

from optimus_service.insight.jobs.reasons import NO_STEP, PRINTS_NOTHING

TRACKED = {"task": None, "tracked": True, "command": ["torchrun", "train.py"], "workers": {"min": 64, "max": 64}}


def register(api: Api) -> tuple[str, str]:
    """A tracked job, larger than the cluster, and the token of its tracker."""
    job_id = api.submit(**TRACKED)
    answer = api.post(f"/v1/jobs/{job_id}/token")
    assert answer.status_code == 200, answer.text
    return job_id, answer.json()["token"]


def test_a_run_is_registered_reported_and_ended(api: Api) -> None:
    job_id, token = register(api)
    report = membership(job_id, workers=2, servers=0)
    for _ in range(2):  # it is repeated while the run goes on
        assert api.post(f"/v1/jobs/{job_id}/membership", json=report, token=token).status_code == 204
    samples = telemetry(sample(servers=0))
    assert api.post(f"/v1/jobs/{job_id}/telemetry", json=samples, token=token).json()["accepted"] == 1
    job = api.job(job_id)
    assert (job["state"], job["step"], job["running"]["workers"]) == ("running", 10, 2)
    result = {"outcome": "succeeded", "step": 10}
    assert api.post(f"/v1/jobs/{job_id}/result", json=result, token=token).status_code == 204
    assert api.job(job_id)["state"] == "succeeded"
    problem(api.post(f"/v1/jobs/{job_id}/membership", json=report, token=token), 409)


@pytest.mark.parametrize("ends", ["cancel", "result"])
def test_steps_that_are_told_after_the_watching_has_ended_are_not_counted(api: Api, ends: str) -> None:
    """The training goes on, and its tracker may hear of it half a minute later."""
    job_id, token = register(api)
    report = membership(job_id, workers=2, servers=0)
    assert api.post(f"/v1/jobs/{job_id}/membership", json=report, token=token).status_code == 204
    post = f"/v1/jobs/{job_id}/telemetry"
    assert api.post(post, json=telemetry(sample(servers=0)), token=token).json()["accepted"] == 1
    if ends == "cancel":
        assert api.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    else:
        result = {"outcome": "failed", "step": 10, "permanent": True}
        assert api.post(f"/v1/jobs/{job_id}/result", json=result, token=token).status_code == 204
    late = telemetry(*(sample(servers=0, sequence=1 + n, step=20 + 10 * n, loss=0.5) for n in range(2)))
    answer = api.post(post, json=late, token=token).json()
    assert answer == {"accepted": 0, "ignored": [{"index": n, "why": "old_membership"} for n in range(2)]}
    job = api.job(job_id)
    assert (job["step"], job["loss"]) == (10, 2.5)
    assert len(api.repository.samples.newest(job_id, 10)) == 1


def test_what_is_told_of_a_cancelled_run_changes_nothing(api: Api) -> None:
    job_id, token = register(api)
    api.post(f"/v1/jobs/{job_id}/membership", json=membership(job_id, workers=2, servers=0), token=token)
    before = api.post(f"/v1/jobs/{job_id}/cancel").json()
    later = membership(job_id, epoch=2, workers=3, servers=0)
    result = {"outcome": "succeeded", "step": 99, "final_loss": 3.0}
    for path, told in (("membership", later), ("result", result)):
        assert api.post(f"/v1/jobs/{job_id}/{path}", json=told, token=token).status_code == 204
    after = api.job(job_id)
    names = ("state", "directive", "step", "running", "membership_epoch", "finished_at")
    assert [after[name] for name in names if name in after] == [before[name] for name in names if name in after]
    assert "JobSucceeded" not in {event["type"] for event in api.get(f"/v1/jobs/{job_id}/events").json()["events"]}


def test_a_run_that_failed_waits_for_no_retry(api: Api) -> None:
    job_id, token = register(api)
    result = {"outcome": "failed", "step": 7, "error": "out of memory"}
    assert api.post(f"/v1/jobs/{job_id}/result", json=result, token=token).status_code == 204
    assert (api.job(job_id)["state"], api.job(job_id)["failure"]) == ("failed", "out of memory")


def test_only_trackers_are_given_a_token(api: Api) -> None:
    scheduled = api.submit()
    assert "only its own tasks" in problem(api.post(f"/v1/jobs/{scheduled}/token"), 409)["detail"]
    problem(api.post("/v1/jobs/nobody-bcdfg/token"), 404)
    job_id, token = register(api)
    problem(api.post(f"/v1/jobs/{job_id}/token", token=token), 403)
    problem(api.post(f"/v1/jobs/{scheduled}/telemetry", json=telemetry(), token=token), 403)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task": "package.module:task", "command": None, "architecture": "ps"}, "tracked"),
        ({"task": "package.module:task"}, "task"),
        ({"servers": {"min": 1, "max": 1}}, "servers"),
    ],
)
def test_what_makes_no_sense_is_refused(api: Api, changes: dict[str, object], field: str) -> None:
    answer = api.post("/v1/jobs", json={"name": "run", **TRACKED, **changes})
    assert field in faults(answer)


def test_what_nothing_would_come_of_is_not_changed(api: Api) -> None:
    job_id = api.submit(**TRACKED)
    changes = {"priority": 4, "workers": {"min": 1}, "deadline_seconds": 60, "retries": 0}
    found = faults(api.call("PATCH", f"/v1/jobs/{job_id}", json={**changes, "name": "other"}))
    assert found.keys() == {"priority", "workers.min", "deadline_seconds", "retries"}
    assert all("runs outside the cluster and is only watched" in message for message in found.values())
    useful = {"name": "other", "labels": {"team": "a"}, "convergence": {"max_steps": 9}, "priority": 1.0}
    assert api.call("PATCH", f"/v1/jobs/{job_id}", json=useful).status_code == 200
    assert api.job(job_id)["name"] == "other"


def test_after_its_end_nothing_is_advised_that_would_be_refused(api: Api) -> None:
    job_id, token = register(api)
    result = {"outcome": "succeeded", "step": 9, "final_loss": 0.1}
    assert api.post(f"/v1/jobs/{job_id}/result", json=result, token=token).status_code == 204
    for answer in (
        api.call("PATCH", f"/v1/jobs/{job_id}", json={"name": "other"}),
        api.post(f"/v1/jobs/{job_id}/retry"),
    ):
        detail = problem(answer, 409)["detail"]
        assert "start it again where it ran" in detail
        assert "optimus retry" not in detail
    assert "optimus retry" not in api.get(f"/v1/jobs/{job_id}/explanation").json()["what_would_change_it"]


def test_nothing_is_planned_or_resumed_for_it(api: Api) -> None:
    assert "tracked" in faults(api.post("/v1/plan", json={"name": "run", **TRACKED}))
    job_id, token = register(api)
    assert api.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "cancelled"
    assert "start it again where it ran" in problem(api.post(f"/v1/jobs/{job_id}/resume"), 409)["detail"]
    problem(api.post(f"/v1/jobs/{job_id}/membership", json=membership(job_id), token=token), 409)


@pytest.mark.parametrize(("step", "said"), [(740, True), (2048, False), (1900, False)])
def test_a_command_that_ends_long_before_it_said_is_told(api: Api, step: int, said: bool) -> None:
    job_id, token = register(api)
    api.post(f"/v1/jobs/{job_id}/membership", json=membership(job_id, workers=2, servers=0), token=token)
    api.call("PUT", f"/v1/jobs/{job_id}/profile", json={"total_steps": 2048}, token=token)
    result = {"outcome": "succeeded", "step": step}
    for _ in range(2):
        assert api.post(f"/v1/jobs/{job_id}/result", json=result, token=token).status_code == 204
    events = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    early = [event["message"] for event in events if event["type"] == "EndedEarly"]
    assert len(early) == said
    assert all("step 740 of 2048" in message for message in early)


SILENT = (
    "It printed nothing, so that no step is known. One line in the script, "
    "optimus_client.report(step=step, loss=loss), shows its progress (docs/scripts.md)."
)


@pytest.mark.parametrize(("step", "line", "told"), [(0, None, NO_STEP), (0, PRINTS_NOTHING, SILENT), (12, None, None)])
def test_a_command_that_told_no_step_is_noted(api: Api, step: int, line: str | None, told: str | None) -> None:
    job_id, token = register(api)
    api.post(f"/v1/jobs/{job_id}/membership", json=membership(job_id, workers=2, servers=0), token=token)
    if line is not None:
        api.call("PUT", f"/v1/jobs/{job_id}/profile", json={"unread_line": line}, token=token)
    api.post(f"/v1/jobs/{job_id}/result", json={"outcome": "succeeded", "step": step}, token=token)
    events = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    said = [event["message"] for event in events if event["type"] == "NothingLearned"]
    assert said[:1] == ([] if told is None else [told])
    sentences = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
    assert [each for each in sentences if each in (NO_STEP, SILENT)] == ([] if told is None else [told])


def test_while_no_loss_is_told_it_is_said_that_the_end_is_not_known(api: Api) -> None:
    job_id, token = register(api)
    api.post(f"/v1/jobs/{job_id}/membership", json=membership(job_id, workers=1, servers=0), token=token)
    steps = [{**sample(step=10, workers=1, servers=0), "loss": None}]
    assert api.post(f"/v1/jobs/{job_id}/telemetry", json={"samples": steps}, token=token).status_code == 200
    sentences = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
    assert "When it ends cannot be said yet: too little of its loss or speed is known." in sentences


def test_lines_that_are_not_understood_are_told_once_and_withdrawn_when_a_step_is(api: Api) -> None:
    job_id, token = register(api)
    api.post(f"/v1/jobs/{job_id}/membership", json=membership(job_id, workers=2, servers=0), token=token)
    unread = {"unread_line": "it 12: J=3.25", "suggested_pattern": "it (?P<step>\\d+): J=(?P<loss>\\S+)"}
    for _ in range(2):
        api.call("PUT", f"/v1/jobs/{job_id}/profile", json=unread, token=token)
    events = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    told = [event["message"] for event in events if event["type"] == "NothingLearned"]
    assert len(told) == 1
    assert "It prints: `it 12: J=3.25`." in told[0]
    assert "optimus_client.report(step=step, loss=loss)" in told[0]
    assert f"--progress-pattern '{unread['suggested_pattern']}'" in told[0]
    sentences = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
    assert told[0] in sentences
    api.call("PUT", f"/v1/jobs/{job_id}/profile", json={"learned_from": "client"}, token=token)
    assert told[0] not in api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
