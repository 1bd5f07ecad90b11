"""What an owner sees of jobs: lists, details, cancelling."""

from __future__ import annotations

import math
import shutil
from typing import Any, get_args

import pytest
from tests.service.api.api_harness import NOW, Api, faults, job_spec, on_sqlite, problem, sample, telemetry
from tests.service.store.store_builders import a_membership, put_task, set_wanted

from optimus_contract import answers
from optimus_scheduler.lifecycle import AllTasksGone, MembershipFormed, ResumeRequested, TooManyFailures
from optimus_scheduler.model import Allocation, Directive, Node, PlacedTask, Resources, Role, TaskKey
from optimus_scheduler.what_if import Advice
from optimus_service.api.jobs import explanation
from optimus_service.api.jobs.submission import OBJECT_GONE
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.fake import FakeCluster
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.loop.exits import WORKER_HUNG
from optimus_service.store.records import DecisionRecord, RoundRecord
from optimus_service.store.rounds.forecasts import from_json

UNKNOWN = "/v1/jobs/no-such-job"


def decide(api: Api, job_id: str, at: float = NOW, **changes: Any) -> None:
    """A round that believes the job needs 100 steps in total, of which 90 are left at 5 steps/s."""
    forecast = {
        "job_id": job_id,
        "total_steps": {"mean": 100.0, "low": 80.0, "high": math.inf},
        "remaining_steps": {"mean": 90.0, "low": 70.0, "high": math.inf},
        "confidence": 0.75,
        "rule": "loss_decrease",
        "loss_curve": {"beta0": 0.1, "beta1": 0.5, "beta2": 0.2},
        "speed_model": {"theta0": math.nan},
        "steps_per_second": 5.0,
        "seconds_per_step": {"mean": 0.2, "low": 0.18, "high": 0.22},
        "remaining_seconds": {"mean": 18.0, "low": 14.0, "high": math.inf},
        "converged": False,
    }
    decision = DecisionRecord(
        job_id=job_id,
        at=at,
        allocation=Allocation(2, 1),
        previous=Allocation(1, 1),
        reason="GrantedMore",
        message="One more worker saves 40 s.",
        gain=0.5,
        next_gain=math.inf,
        forecast=from_json(job_id, forecast),
    )
    values: dict[str, Any] = {"trigger": "period", "seconds": 0.1, "phase_seconds": {"forecast": 0.05}}
    record = RoundRecord(at=at, n_jobs=1, n_actions=2, **values | changes)
    api.repository.rounds.add(record, [decision])


# --- lists -----------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_page_by_page(api: Api) -> None:
    made = []
    for number in range(5):
        api.surroundings.clock.now += 1
        made.append(api.submit(name=f"job-{number}"))
    first = api.get("/v1/jobs", params={"limit": 3}).json()
    second = api.get("/v1/jobs", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [job["id"] for job in first["jobs"] + second["jobs"]] == made[::-1]
    assert second["next_cursor"] is None


def test_jobs_are_filtered_by_state_project_and_name(api: Api) -> None:
    cancelled = api.submit(name="alpha", project="vision")
    queued = api.submit(name="alphabet", project="speech")
    other = api.submit(name="beta", project="vision")
    api.post(f"/v1/jobs/{cancelled}/cancel")

    def listed(**filters: Any) -> set[str]:
        return {job["id"] for job in api.get("/v1/jobs", params=filters).json()["jobs"]}

    assert listed(state="cancelled") == {cancelled}
    assert listed(state="starting") == set()
    set_wanted(api.repository, other, Allocation(1, 0), Directive.RUN, (), 9.0)
    assert listed(state="starting") == listed(state=["starting", "cancelled"]) - {cancelled} == {other}
    assert {api.get("/v1/jobs", params={"state": each}).status_code for each in get_args(answers.ListedState)} == {200}
    assert listed(state=["queued", "cancelled"]) == {cancelled, queued, other}
    assert listed(project="vision") == {cancelled, other}
    assert listed(name="ALPHA") == {cancelled, queued}
    assert listed(name="ALPHA", state="queued") == {queued}
    assert listed(name="\0%_") == set()
    assert listed(name="alpha", match="exact") == {cancelled}
    assert listed(name="alph", match="exact") == set()
    assert listed(name="alph", match="start") == {cancelled, queued}
    assert listed(name=other[:-1], match="start") == {other}
    assert listed(name="lpha", match="start") == set()
    assert listed(name="al%", match="start") == set()


def test_jobs_are_found_by_a_part_of_what_they_are_known_by(api: Api) -> None:
    one = api.submit(name="alpha", project="vision", labels={"team": "search", "urgent": ""})
    other = api.submit(name="beta", project="speech")

    def listed(text: str, **filters: Any) -> set[str]:
        answer = api.get("/v1/jobs", params={"name": text, "match": "any", **filters})
        return {job["id"] for job in answer.json()["jobs"]}

    for text in ("LPH", one, one[3:].upper(), "isio", "team=sea", "EARCH", "urgent"):
        assert listed(text) == {one}, text
    assert listed("a") == {one, other}
    assert listed("a", project="speech") == listed("a", state="queued", project="speech") == {other}
    for text in ("urgent=", "te_m", "\0", "x" * 200):
        assert listed(text) == set(), text
    assert listed("eta", label="team") == set()
    assert listed("search", label="team=search") == {one}


WRONG_QUERIES = [
    ("/v1/jobs?limit=0", "limit", "greater than or equal to 1"),
    ("/v1/jobs?limit=201", "limit", "less than or equal to 200"),
    ("/v1/jobs?limit=many", "limit", "integer"),
    ("/v1/jobs?limit=1&limit=2", "limit", "must be given once"),
    ("/v1/jobs?limit=1_0", "limit", "in digits, such as 20, not '1_0'"),
    ("/v1/jobs?limit=%2B5", "limit", "in digits"),
    ("/v1/jobs?limit=+5", "limit", "in digits"),
    ("/v1/jobs?limit=5%0A", "limit", "in digits"),
    ("/v1/jobs?limit=%D9%A5", "limit", "in digits"),
    ("/v1/jobs?cursor=rubbish", "cursor", "next_cursor of an earlier answer"),
    # ["jobs", NaN, "a\u0000\ud800"]
    ("/v1/jobs?cursor=WyJqb2JzIiwgTmFOLCAiYVx1MDAwMFx1ZDgwMCJd", "cursor", "next_cursor of an earlier answer"),
    ("/v1/jobs?state=happy", "state.0", "'queued', 'running'"),
    (f"/v1/jobs?{'&'.join(f'label=a{n}' for n in range(17))}", "label", "must have at most 16 items, not 17"),
    ("/v1/jobs?sort=name", "sort", "allowed here: cursor, label, limit, match, name, owner, project, state"),
    ("/v1/rounds?state=queued", "state", "allowed here: cursor, limit"),
    ("/v1/cluster?verbose", "verbose", "none are allowed here"),
]


@on_sqlite
@pytest.mark.parametrize(("path", "field", "message"), WRONG_QUERIES)
def test_wrong_queries_are_named_with_what_is_allowed(api: Api, path: str, field: str, message: str) -> None:
    assert message in faults(api.get(path))[field]


# --- one job ---------------------------------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    "what",
    ["", "/events", "/decisions", "/explanation", "/predictions", "/evaluations", "/curves", "/allocations", "/logs"],
)
def test_an_unknown_job_is_not_found(api: Api, what: str) -> None:
    assert "no-such-job" in problem(api.get(UNKNOWN + what), 404)["detail"]


def test_cancelling_an_unknown_job_is_not_found(api: Api) -> None:
    problem(api.post(UNKNOWN + "/cancel"), 404)


@on_sqlite
def test_ids_that_no_database_could_hold_are_not_found(api: Api) -> None:
    problem(api.get("/v1/jobs/%00"), 404)
    problem(api.get("/v1/jobs/%ff"), 404)
    problem(api.get("/v1/jobs/" + "x" * 5000), 404)


def test_a_running_job_shows_its_progress_and_what_is_left(api: Api) -> None:
    job_id = api.submit()
    decide(api, job_id)
    set_wanted(api.repository, job_id, Allocation(2, 1), Directive.RUN, [], NOW)
    api.start(job_id)
    samples = [sample(sequence=n, step=10 * (n + 1), at=NOW + 2 * n, loss=3.0 - n) for n in range(3)]
    api.as_task("POST", job_id, "telemetry", json=telemetry(*samples))
    job = api.job(job_id)
    assert job["state"] == "running"
    assert (job["step"], job["first_step"], job["loss"]) == (30, 1, 1.0)
    assert job["running"] == {"workers": 2, "servers": 1, "gpu_type": None}
    assert job["steps_per_second"] == pytest.approx(5.0)
    assert job["progress"] == pytest.approx(0.3, rel=0.01)
    left, seconds = job["remaining_steps"], job["remaining_seconds"]
    assert (left["mean"], left["low"], left["high"]) == (pytest.approx(70, rel=0.01), pytest.approx(50, rel=0.02), None)
    assert seconds["mean"] == pytest.approx(left["mean"] / 5.0)
    assert (seconds["low"] < left["low"] / 5.0, seconds["high"]) == (True, None)
    assert (job["reason"], job["message"]) == ("GrantedMore", "One more worker saves 40 s.")


def test_a_job_that_makes_no_steps_has_no_speed(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    api.as_task("POST", job_id, "telemetry", json=telemetry())
    api.surroundings.clock.now += 31
    assert api.job(job_id)["steps_per_second"] is None


def test_an_ended_job_shows_how_it_ended(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    api.surroundings.clock.now += 100
    result = {"outcome": "succeeded", "step": 50, "final_loss": 0.1, "metrics": {"test_accuracy": 0.9}}
    assert api.as_task("POST", job_id, "result", json=result).status_code == 204
    job = api.job(job_id)
    assert (job["state"], job["jct_seconds"], job["progress"]) == ("succeeded", 100.0, 1.0)
    assert job["result"]["metrics"] == {"test_accuracy": 0.9}
    assert (job["remaining_steps"], job["remaining_seconds"]) == (None, None)


# --- cancelling ------------------------------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once(api: Api) -> None:
    job_id = api.submit()
    answer = api.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert api.surroundings.triggers == ["submit", "cancel"]


def test_a_job_with_tasks_is_told_to_stop_and_may_be_told_again(api: Api) -> None:
    job_id = api.submit()
    put_task(api.repository, TaskKey(job_id, Role.WORKER, 0), "node-1", NOW)
    for _ in range(2):
        job = api.post(f"/v1/jobs/{job_id}/cancel").json()
        assert (job["state"], job["directive"]) == ("queued", "cancel")


def test_an_ended_job_cannot_be_cancelled(api: Api) -> None:
    job_id = api.submit()
    api.post(f"/v1/jobs/{job_id}/cancel")
    assert "cancelled already" in problem(api.post(f"/v1/jobs/{job_id}/cancel"), 409)["detail"]


# --- details ---------------------------------------------------------------------------------------------------------


def test_events_are_listed_newest_first_page_by_page(api: Api) -> None:
    job_id = api.submit()
    api.repository.events.add(job_id, "TaskExited", "A worker crashed.", {"seconds": math.inf, "codes": [1]}, NOW)
    first = api.get(f"/v1/jobs/{job_id}/events", params={"limit": 1}).json()
    assert first["events"][0]["data"] == {"seconds": None, "codes": [1]}
    rest = api.get(f"/v1/jobs/{job_id}/events", params={"cursor": first["next_cursor"]}).json()
    assert [event["type"] for event in rest["events"]] == ["JobSubmitted"]


def test_decisions_say_what_was_believed_without_infinities(api: Api) -> None:
    job_id = api.submit()
    decide(api, job_id)
    (decision,) = api.get(f"/v1/jobs/{job_id}/decisions").json()["decisions"]
    assert decision["allocation"]["workers"] == 2
    assert (decision["gain"], decision["next_gain"]) == (0.5, None)
    assert decision["forecast"]["total_steps"] == {"mean": 100.0, "low": 80.0, "high": None}
    assert decision["forecast"]["speed_model"] == {"theta0": None}


def test_the_explanation_names_what_failed_lately(api: Api) -> None:
    """Also what this machine refused, which has no code of a cluster: else a job seems to wait for its speed."""
    job_id = api.submit()
    data = {"error": "[Errno 28] No space left on device", "reason": None, "task": f"{job_id}-worker-0-0"}
    message = "starting a worker failed: [Errno 28] No space left on device"
    api.repository.events.add(job_id, "ActionFailed", message, data, NOW)
    explained = api.get(f"/v1/jobs/{job_id}/explanation").json()
    assert explained["troubles"] == [message]
    assert f"The cluster says: {message}" in explained["sentences"]


def test_a_hang_is_told_until_the_count_of_hangs_begins_anew(api: Api) -> None:
    job_id = api.submit()
    message = "worker 0 hung. Hangs within 60 min: 6; at 6 the job fails."

    def is_told() -> bool:
        set_wanted(api.repository, job_id, Allocation(1, 0), Directive.RUN, [], NOW)
        return message in api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]

    api.repository.events.add(job_id, WORKER_HUNG, message, {}, NOW)
    assert is_told()
    api.repository.jobs.advance(job_id, TooManyFailures("its workers hung 6 times"), NOW)
    api.repository.jobs.advance(job_id, ResumeRequested(), NOW)
    assert not is_told()
    api.repository.events.add(job_id, WORKER_HUNG, message, {}, NOW)
    assert is_told()


def test_a_hang_is_told_with_how_long_ago_it_was(api: Api) -> None:
    job_id = api.submit()
    set_wanted(api.repository, job_id, Allocation(1, 0), Directive.RUN, [], NOW)
    message = "worker 0 hung. Hangs within 60 min: 1; at 6 the job fails."
    api.repository.events.add(job_id, WORKER_HUNG, message, {}, NOW)
    api.surroundings.clock.now += 220.0
    told = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
    assert f"3 min 40 s ago: {message}" in told
    assert message not in told


@pytest.mark.parametrize(
    ("silent", "stopping", "told"),
    [
        (46.0, 1.0, "Before it was cancelled, no step came for 46 s, where one took 0.1 s."),
        (5.0, 60.0, None),
    ],
    ids=["it hung", "its tasks stopped slowly"],
)
def test_a_cancelled_job_is_told_for_how_long_no_step_had_come(
    api: Api, silent: float, stopping: float, told: str | None
) -> None:
    job_id = api.submit()
    api.start(job_id)
    assert api.as_task("POST", job_id, "telemetry", json=telemetry(sample())).json()["accepted"] == 1
    api.surroundings.clock.now += silent
    api.post(f"/v1/jobs/{job_id}/cancel")
    api.surroundings.clock.now += stopping
    api.repository.jobs.advance(job_id, AllTasksGone(), api.surroundings.clock.now)
    last = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"][-1]
    assert "no change of size, lost task, pause or error stopped its training." in last
    assert last.partition(" Before ")[2] == (told or "").removeprefix("Before ")


def test_a_job_that_was_cancelled_while_paused_is_not_told_that_no_step_had_come(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    api.as_task("POST", job_id, "telemetry", json=telemetry(sample()))
    api.surroundings.clock.now += 5.0
    api.post(f"/v1/jobs/{job_id}/pause")
    api.repository.jobs.advance(job_id, AllTasksGone(), api.surroundings.clock.now)
    api.surroundings.clock.now += 600.0
    api.post(f"/v1/jobs/{job_id}/cancel")
    explained = api.get(f"/v1/jobs/{job_id}/explanation").json()
    assert explained["state"] == "cancelled"
    assert "no step came" not in explained["sentences"][-1]


def test_the_explanation_says_why_and_what_would_change_it(api: Api) -> None:
    job_id = api.submit()
    before = api.get(f"/v1/jobs/{job_id}/explanation").json()
    assert (before["at"], before["reason"]) == (None, None)
    assert "round" in before["message"]
    decide(api, job_id)
    after = api.get(f"/v1/jobs/{job_id}/explanation").json()
    assert (after["reason"], after["gain"], after["confidence"]) == ("GrantedMore", 0.5, 0.75)
    assert after["what_would_change_it"]
    api.post(f"/v1/jobs/{job_id}/cancel")
    assert "cancelled" in api.get(f"/v1/jobs/{job_id}/explanation").json()["message"]


@on_sqlite
def test_an_explanation_knows_how_many_losses_there_are(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first ones no advice is made."""
    job_id = api.submit(convergence={"target_metric": {"name": "accuracy", "at_least": 0.9}})
    api.start(job_id)
    api.as_task("POST", job_id, "telemetry", json=telemetry(*(sample(sequence=k, step=10 + k) for k in range(3))))
    cases: list[Case] = []

    def explained(case: Case) -> answers.Explanation:
        cases.append(case)
        return explanation_of(case)

    monkeypatch.setattr(explanation, "explanation_of", explained)
    api.get(f"/v1/jobs/{job_id}/explanation")
    assert cases[0].n_figures == {"loss": 3, "accuracy": 0}


def test_the_explanation_is_of_the_newest_round_though_advice_takes_a_while(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round may come while the advice is sought: no old decision is told over the new one."""
    job_id = api.submit()
    decide(api, job_id, at=NOW - 10.0)

    def advice(*_: object) -> Advice:
        decide(api, job_id, at=NOW)
        return Advice(())

    monkeypatch.setattr(explanation, "_gives_more", advice)
    told = api.get(f"/v1/jobs/{job_id}/explanation").json()
    newest = api.get(f"/v1/jobs/{job_id}/decisions").json()["decisions"][0]
    assert told["at"] == newest["at"]


def test_sizes_that_the_job_may_not_have_are_told_as_such(api: Api) -> None:
    job_id = api.submit(workers={"min": 1, "max": 2}, servers={"min": 1, "max": 40})
    asked = {"workers": "1-3", "servers": "1-40"}
    speeds = api.get(f"/v1/jobs/{job_id}/predictions", params=asked).json()["speeds"]
    beyond = {(each["workers"], each["servers"]): each["beyond"] for each in speeds}
    assert beyond[1, 1] is None
    assert beyond[3, 1] == "its limit of 2 workers"
    assert beyond[1, 40] == "what the cluster has"
    api.call("PUT", "/v1/projects/default", json={"cpu": 3.0, "may_borrow": False})
    speeds = api.get(f"/v1/jobs/{job_id}/predictions", params=asked).json()["speeds"]
    beyond = {(each["workers"], each["servers"]): each["beyond"] for each in speeds}
    assert (beyond[2, 1], beyond[2, 2]) == (None, "the quota of project default")


def test_another_size_of_a_script_that_keeps_its_size_is_not_told_to_be_beyond_its_limits(api: Api) -> None:
    job_id = api.submit(task=None, command=["torchrun", "loop.py"], workers={"min": 2, "max": 4})
    set_wanted(api.repository, job_id, Allocation(3, 0), Directive.RUN, [], NOW)
    api.start(job_id, workers=3, servers=0)

    def beyond() -> dict[int, str | None]:
        told = api.get(f"/v1/jobs/{job_id}/predictions", params={"workers": "1-5"}).json()
        return {each["workers"]: each["beyond"] for each in told["speeds"]}

    kept = "the 3 workers that it keeps, as it is not known to go on from checkpoints at another size"
    assert beyond() == {1: "its least of 2 workers", 2: kept, 3: None, 4: kept, 5: "its limit of 4 workers"}
    assert api.as_task("PUT", job_id, "profile", json={"total_steps": 4000, "resumes": True}).status_code == 204
    assert (beyond()[2], beyond()[4]) == (None, None)


def test_allocations_tell_the_history_of_memberships(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id, at=NOW + 5)
    api.start(job_id, epoch=2, workers=4, servers=2, at=NOW + 65, step=300, cause="rescale", pause_seconds=0.2)
    first, second = api.get(f"/v1/jobs/{job_id}/allocations").json()["allocations"]
    assert (first["at_seconds"], first["workers"], first["servers"]) == (5.0, 2, 1)
    assert (second["at_seconds"], second["workers"], second["servers"], second["step"]) == (65.0, 4, 2, 300)
    assert (second["pause_seconds"], second["cause"]) == (0.2, "rescale")
    assert api.job(job_id)["rescales"] == 1


def test_what_was_before_a_job_was_heard_of_is_at_no_negative_time(api: Api) -> None:
    """A training elsewhere may begin before its first report comes, by whichever clock: seconds between values stay."""
    job_id = api.submit()
    api.start(job_id, at=NOW - 5)
    first = sample(sequence=0, step=10, n_steps=10, loss=2.0, at=NOW - 60)
    second = sample(sequence=1, step=20, n_steps=10, loss=1.5, at=NOW + 30, metrics={"accuracy": 0.5})
    assert api.as_task("POST", job_id, "telemetry", json=telemetry(first, second)).status_code == 200
    (began,) = api.get(f"/v1/jobs/{job_id}/allocations").json()["allocations"]
    assert began["at_seconds"] == 0.0
    curves = api.get(f"/v1/jobs/{job_id}/curves").json()
    assert [each["at_seconds"] for each in curves["loss"]] == pytest.approx([0.0, 90.0])
    assert curves["figures"][0]["points"][0]["at_seconds"] == pytest.approx(90.4), "after the loss of the middle step"


def evaluated(step: int, **metrics: float | None) -> dict[str, Any]:
    return sample(sequence=step, step=step, n_steps=1, metrics=metrics)


def test_evaluations_are_told_figure_by_figure(api: Api) -> None:
    job_id = api.submit()
    assert api.get(f"/v1/jobs/{job_id}/evaluations").json() == {"series": []}
    api.start(job_id)
    told = telemetry(evaluated(1, accuracy=0.5, f1=0.25), evaluated(2), evaluated(3, accuracy=0.75))
    assert api.as_task("POST", job_id, "telemetry", json=told).status_code == 200
    series = api.get(f"/v1/jobs/{job_id}/evaluations").json()["series"]
    assert [each["name"] for each in series] == ["accuracy", "f1"]
    assert series[0]["values"] == [{"step": 1, "value": 0.5}, {"step": 3, "value": 0.75}]
    # A membership that began further back undoes what came after.
    api.start(job_id, epoch=2, step=2, cause="worker_lost", lost_steps=1)
    series = api.get(f"/v1/jobs/{job_id}/evaluations").json()["series"]
    assert series[0]["values"] == [{"step": 1, "value": 0.5}]


def test_curves_are_told_over_steps_epochs_and_time(api: Api) -> None:
    job_id = api.submit()
    assert api.get(f"/v1/jobs/{job_id}/curves").json() == {"loss": [], "figures": []}
    api.start(job_id)
    first = sample(sequence=0, step=10, n_steps=10, loss=2.0, at=NOW + 30)
    second = sample(sequence=1, step=20, n_steps=10, loss=1.5, at=NOW + 50, metrics={"accuracy": 0.5})
    assert api.as_task("POST", job_id, "telemetry", json=telemetry(first, second)).status_code == 200
    curves = api.get(f"/v1/jobs/{job_id}/curves").json()
    assert [(each["step"], each["at_seconds"], each["value"]) for each in curves["loss"]] == [
        (6, pytest.approx(29.6), 2.0),
        (16, pytest.approx(49.6), 1.5),
    ], "means over ten steps, at the middle"
    assert curves["loss"][0]["epoch"] is None  # before it has told how many steps make one
    profile = {"n_parameters": 1, "n_examples": 100, "global_batch_size": 10, "steps_per_epoch": 10.0}
    assert api.as_task("PUT", job_id, "profile", json=profile).status_code == 204
    curves = api.get(f"/v1/jobs/{job_id}/curves").json()
    assert [each["epoch"] for each in curves["loss"]] == [0.6, 1.6]
    assert curves["figures"] == [
        {"name": "accuracy", "points": [{"step": 20, "epoch": 2.0, "at_seconds": 50.0, "value": 0.5}]}
    ]


def test_evaluations_are_bounded_however_many_there_are(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    for first in range(0, 900, 300):
        steps = range(first + 1, first + 301)
        samples = [evaluated(step, **{f"figure{step % 30}": 1.0, "loss": step}) for step in steps]
        assert api.as_task("POST", job_id, "telemetry", json=telemetry(*samples)).status_code == 200
    series = api.get(f"/v1/jobs/{job_id}/evaluations").json()["series"]
    assert len(series) == 20
    assert 64 <= max(len(each["values"]) for each in series) <= 128


def test_logs_show_the_end_of_what_tasks_printed(api: Api) -> None:
    job_id = api.submit()
    keys = [TaskKey(job_id, Role.WORKER, rank) for rank in range(2)]
    for key in keys:
        put_task(api.repository, key, "node-1", NOW + key.rank)
        api.surroundings.cluster.start(TaskLaunch(key, "node-1", Resources(), {}))
        api.surroundings.cluster.print_line(key, f"hello from {key.rank}")
    logs = api.get(f"/v1/jobs/{job_id}/logs").json()["logs"]
    assert [log["task"] for log in logs] == [keys[1].name, keys[0].name]
    (one,) = api.get(f"/v1/jobs/{job_id}/logs", params={"task": keys[0].name, "tail_bytes": 3}).json()["logs"]
    assert one["text"] == " 0\n"
    assert "task" in faults(api.get(f"/v1/jobs/{job_id}/logs", params={"task": "stranger"}))


def test_logs_are_unavailable_while_the_cluster_is(api: Api) -> None:
    job_id = api.submit()
    put_task(api.repository, TaskKey(job_id, Role.WORKER, 0), "node-1", NOW)
    api.surroundings.cluster.available = False
    assert api.get(f"/v1/jobs/{job_id}/logs").headers["retry-after"]
    problem(api.get(f"/v1/jobs/{job_id}/logs"), 503)


# --- predictions -----------------------------------------------------------------------------------------------------


def test_nothing_is_predicted_of_a_job_that_has_not_run(api: Api) -> None:
    job_id = api.submit()
    found = api.get(f"/v1/jobs/{job_id}/predictions", params={"workers": "1-2", "servers": "3"}).json()
    assert [(point["workers"], point["servers"]) for point in found["speeds"]] == [(1, 3), (2, 3)]
    assert all(point["steps_per_second"] is None for point in found["speeds"])
    assert (found["at"], found["total_steps"], found["losses"], found["fitted"]) == (None, None, [], [])


def test_predictions_show_the_curve_the_speeds_and_earlier_beliefs(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    samples = [
        sample(sequence=n, step=10 * (n + 1), at=NOW + n, loss=1 / (0.05 * n + 0.5) + 0.1) for n in range(20)
    ] + [sample(sequence=20, step=210, at=NOW + 20, loss="Infinity")]
    api.as_task("POST", job_id, "telemetry", json=telemetry(*samples))
    decide(api, job_id, at=NOW + 1)
    decide(api, job_id, at=NOW + 2)
    found = api.get(f"/v1/jobs/{job_id}/predictions", params={"workers": "1-4", "servers": "1-2"}).json()
    total, left = found["total_steps"], found["remaining_steps"]
    assert total["mean"] > 210.0, "it has made more than the 100 that were predicted"
    assert all(total[each] == pytest.approx(210.0 + left[each]) for each in ("mean", "low"))
    assert (found["confidence"], found["rule"]) == (0.75, "loss_decrease")
    speeds = {(point["workers"], point["servers"]): point["steps_per_second"] for point in found["speeds"]}
    assert len(speeds) == 8
    assert speeds[2, 1] == pytest.approx(10.0, rel=0.1)  # ten steps a second were measured at this size
    assert speeds[4, 2] > speeds[2, 1] > speeds[1, 1]  # what others of its kind do, until more is measured
    assert len(found["losses"]) == 21
    assert found["losses"][-1] == {"step": 206.0, "loss": None}
    assert found["fitted"][5]["loss"] == pytest.approx(samples[5]["loss"], rel=0.2)
    assert [point["step"] for point in found["history"]] == [10, 10]
    assert found["history"][0]["at"] < found["history"][1]["at"]


def test_the_fitted_curve_goes_on_to_the_predicted_end(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id)
    samples = [sample(sequence=n, step=n + 1, n_steps=1, at=NOW + n, loss=1 / (n + 1)) for n in range(20)]
    api.as_task("POST", job_id, "telemetry", json=telemetry(*samples))
    decide(api, job_id)
    fitted = api.get(f"/v1/jobs/{job_id}/predictions").json()["fitted"]
    assert fitted[-1]["step"] == pytest.approx(100.0)
    assert [point["step"] for point in fitted] == sorted(point["step"] for point in fitted)


@on_sqlite
@pytest.mark.parametrize("sizes", ["", "0-3", "4-2", "1-9999", "a", "1-2-3", "-1"])
def test_wrong_ranges_of_sizes_are_refused(api: Api, sizes: str) -> None:
    job_id = api.submit()
    assert "servers" in faults(api.get(f"/v1/jobs/{job_id}/predictions", params={"servers": sizes}))


@on_sqlite
def test_a_table_of_too_many_sizes_is_refused(api: Api) -> None:
    job_id = api.submit()
    found = faults(api.get(f"/v1/jobs/{job_id}/predictions", params={"workers": "1-100", "servers": "1-100"}))
    assert "1024 sizes" in found["workers"]


# --- the cluster -----------------------------------------------------------------------------------------------------


def place(api: Api, job_id: str, *ranks: int) -> None:
    for rank in ranks:
        key = TaskKey(job_id, Role.WORKER, rank)
        api.surroundings.cluster.start(TaskLaunch(key, "node-1", Resources(), {}))


def test_nodes_show_what_their_tasks_use(api: Api) -> None:
    job_id = api.submit(workers={"resources": {"cpu": 1.5, "memory_bytes": 1000}})
    place(api, job_id, 0, 1)
    place(api, "a-forgotten-job", 0)
    exited = TaskKey(job_id, Role.WORKER, 1)
    api.surroundings.cluster.exit(exited, 0)
    (node,) = api.get("/v1/nodes").json()["nodes"]
    assert node["name"] == "node-1"
    assert node["used"] == {"cpu": 1.5, "memory_bytes": 1000, "gpus": {}}
    assert node["tasks"] == ["a-forgotten-job-worker-0-0", f"{job_id}-worker-0-0"]


def test_the_cluster_in_one_look(api: Api) -> None:
    api.surroundings.cluster.__dict__.update(
        FakeCluster([Node("a", Resources(4, 100, {"v100": 2})), Node("b", Resources(2, 50))]).__dict__
    )
    job_id = api.submit(
        workers={"resources": {"cpu": 1, "memory_bytes": 10}}, servers={"resources": {"memory_bytes": 1}}
    )
    decide(api, job_id)
    for name in (job_id, "lost"):
        resources = Resources(1.5, 10)
        api.surroundings.cluster.start(TaskLaunch(TaskKey(name, Role.WORKER, 0), "a", resources, {}))
    found = api.get("/v1/cluster").json()
    assert found["unknown_tasks"] == [{"task": "lost-worker-0-0", "job_id": "lost", "node": "a"}]
    assert found["used"] == {"cpu": 2.5, "memory_bytes": 20, "gpus": {}}
    assert found["capacity"] == {"cpu": 6.0, "memory_bytes": 150, "gpus": {"v100": 2}}
    assert found["jobs"]["queued"] == 1
    assert found["last_round_at"].startswith("2025-10-09T08:53:20")
    assert (found["policy"], found["version"]) == ("optimus", "1.2.3")


def test_rounds_are_listed_newest_first(api: Api) -> None:
    job_id = api.submit()
    decide(api, job_id)
    decide(api, job_id, trigger="submit", error="the cluster could not be asked")
    rounds = api.get("/v1/rounds").json()["rounds"]
    assert [each["trigger"] for each in rounds] == ["submit", "period"]
    assert rounds[0]["error"] == "the cluster could not be asked"


def test_the_cluster_that_cannot_be_asked_is_a_503(api: Api) -> None:
    api.surroundings.cluster.available = False
    assert "cluster" in problem(api.get("/v1/nodes"), 503)["detail"]


# --- paths and methods -----------------------------------------------------------------------------------------------


@on_sqlite
def test_unknown_paths_are_not_found(api: Api) -> None:
    for path in ("/assets/none.js", "/v1", "/v1/jobs/", "/v2/jobs", "/v1/jobs/a/b/c"):
        problem(api.get(path), 404)


@on_sqlite
def test_other_methods_are_not_allowed_and_those_that_are_get_named(api: Api) -> None:
    answer = api.call("DELETE", "/v1/jobs")
    assert "GET, POST" in problem(answer, 405)["detail"]
    assert answer.headers["allow"] == "GET, POST"


def test_a_wanted_job_shows_what_it_should_have(api: Api) -> None:
    job_id = api.submit()
    task = PlacedTask(TaskKey(job_id, Role.WORKER, 0), "node-1")
    set_wanted(api.repository, job_id, Allocation(1, 1), Directive.RUN, [task], NOW)
    job = api.job(job_id)
    assert job["wanted"] == {"workers": 1, "servers": 1, "gpu_type": None}
    assert job["running"]["workers"] == 0


# --- resuming --------------------------------------------------------------------------------------------------------


def ended_job(api: Api, *, trained: bool = True, step: int = 10, **spec: Any) -> str:
    """A job that was cancelled; when it `trained`, it left a checkpoint."""
    job_id = api.submit(**spec)
    if trained:
        api.services.repository.jobs.advance(job_id, MembershipFormed(1), api.services.clock())
        api.services.repository.memberships.report(job_id, a_membership(job_id=job_id, step=step))
        directory = api.services.settings.data_directory / "jobs" / job_id / "checkpoints"
        directory.mkdir(parents=True)
        (directory / "manifest-000000000010.json").write_text("{}")
    api.post(f"/v1/jobs/{job_id}/cancel")
    api.services.repository.jobs.advance(job_id, AllTasksGone(), api.services.clock())
    return job_id


def test_resuming_an_ended_job_asks_for_another_attempt_once(api: Api) -> None:
    job_id = ended_job(api)
    api.surroundings.triggers.clear()
    for _ in range(2):
        answer = api.post(f"/v1/jobs/{job_id}/resume")
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert (body["state"], body["attempt"], body["finished_at"], body["result"]) == ("paused", 1, None, None)
    assert "resume" in api.surroundings.triggers
    events = [event["type"] for event in api.get(f"/v1/jobs/{job_id}/events").json()["events"]]
    assert events.count("ResumeRequested") == 1


def test_resuming_says_why_it_cannot_be(api: Api) -> None:
    problem(api.post(UNKNOWN + "/resume"), 404)
    active = api.submit()
    assert "not paused by its owner" in problem(api.post(f"/v1/jobs/{active}/resume"), 409)["detail"]
    untrained = ended_job(api, trained=False)
    assert "never made a step" in problem(api.post(f"/v1/jobs/{untrained}/resume"), 409)["detail"]
    beginner = ended_job(api, step=0)  # a checkpoint of step 0 is no progress
    assert "never made a step" in problem(api.post(f"/v1/jobs/{beginner}/resume"), 409)["detail"]
    lost = ended_job(api)
    shutil.rmtree(api.services.settings.data_directory / "jobs" / lost)
    assert "the job has no checkpoint: nothing is in" in problem(api.post(f"/v1/jobs/{lost}/resume"), 409)["detail"]
    own = ended_job(api, task=None, command=["python", "train.py"], resumes=True)
    shutil.rmtree(api.services.settings.data_directory / "jobs" / own)
    assert api.post(f"/v1/jobs/{own}/resume").status_code == 200, "its command finds its checkpoints by itself"
    silent = ended_job(api, step=0, task=None, command=["python", "train.py"], resumes=True)
    assert api.post(f"/v1/jobs/{silent}/resume").status_code == 200, "it may have trained, and told no step"
    idle = ended_job(api, trained=False, task=None, command=["python", "train.py"], resumes=True)
    assert "never made a step" in problem(api.post(f"/v1/jobs/{idle}/resume"), 409)["detail"]
    anew = ended_job(api, step=0, task=None, command=["python", "train.py"])
    assert "its script is not known to go on from" in problem(api.post(f"/v1/jobs/{anew}/resume"), 409)["detail"]
    unknown = ended_job(api, task=None, command=["python", "train.py"])
    detail = problem(api.post(f"/v1/jobs/{unknown}/resume"), 409)["detail"]
    assert "its script is not known to go on from a checkpoint of its own" in detail
    assert f"`optimus retry {unknown}`" in detail
    assert "--resumes" in detail
    assert "nothing is in" not in detail, "where a script keeps its checkpoints is not known"
    orphan = ended_job(api)
    api.services.repository.events.add(orphan, OBJECT_GONE, "Its object was deleted.", {}, NOW)
    assert "TrainingJob was deleted" in problem(api.post(f"/v1/jobs/{orphan}/resume"), 409)["detail"]


# --- starting from another job's checkpoint --------------------------------------------------------------------------


def test_a_job_that_starts_from_another_ones_checkpoint_gets_a_copy(api: Api) -> None:
    origin = ended_job(api)
    jobs = api.services.settings.data_directory / "jobs"
    (jobs / origin / "checkpoints" / "manifest-000000000010.json").write_text('{"files": []}')
    assert api.post("/v1/jobs", json=job_spec(from_job=origin), headers={"Idempotency-Key": "k"}).status_code == 201
    again = api.post("/v1/jobs", json=job_spec(from_job=origin), headers={"Idempotency-Key": "k"})
    assert again.status_code == 200
    (copy,) = jobs.glob("*/origin")
    assert copy.parent.name == again.json()["id"]
    assert [path.name for path in copy.iterdir()] == ["manifest-000000000010.json"]


def test_starting_from_a_job_says_why_it_cannot_be(api: Api) -> None:
    def why_not(**spec: Any) -> str:
        (error,) = problem(api.post("/v1/jobs", json=job_spec(**spec)), 422)["errors"]
        assert error["field"] == "from_job"
        return str(error["message"])

    assert why_not(from_job="nobody-x7k2p") == "there is no job nobody-x7k2p"
    queued = api.submit()
    assert why_not(from_job=queued) == f"job {queued} has no checkpoint: it has not made a step yet"
    assert "it never made a step" in why_not(from_job=ended_job(api, trained=False))
    origin = ended_job(api)
    url = "s3://bucket/here"
    assert "in its job directory: leave checkpoint_url out" in why_not(from_job=origin, checkpoint_url=url)
    checkpoints = api.services.settings.data_directory / "jobs" / origin / "checkpoints"
    (checkpoints / "manifest-000000000010.json").write_text("damaged")
    assert why_not(from_job=origin) == f"job {origin} has no undamaged checkpoint (any more)"
    shutil.rmtree(checkpoints)
    assert why_not(from_job=origin) == f"job {origin} has no checkpoint (any more)"
    assert not list(checkpoints.parent.parent.glob("*/origin")), "nothing is left of a refused job"
