"""What a job's own tasks call: telemetry, membership, profile, result."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from benchmarks.round_statements import counted
from tests.service.api.api_harness import NOW, Api, faults, membership, on_sqlite, problem, sample, telemetry, until
from tests.service.clusters.cluster_harness import wait_until
from tests.service.store.store_builders import samples_of, set_wanted

from optimus_scheduler.model import Allocation, Directive, JobState, PlacedTask, Role, TaskKey
from optimus_service.push.long_poll import MAX_WAITERS_OF_JOB
from optimus_service.store.records import PostedSamples
from optimus_service.store.samples.sample_queue import QueueIsFull, SampleQueue

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def job_id(api: Api) -> str:
    """A job with a first membership of two workers and one server."""
    job_id = api.submit()
    api.start(job_id)
    return job_id


def post_samples(api: Api, job_id: str, *samples: dict[str, Any]) -> Any:
    answer = api.as_task("POST", job_id, "telemetry", json=telemetry(*samples))
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- telemetry -------------------------------------------------------------------------------------------------------


def test_samples_are_counted_once(api: Api, job_id: str) -> None:
    samples = [sample(), sample(sequence=1, step=20)]
    assert post_samples(api, job_id, *samples) == {"accepted": 2, "ignored": []}
    again = post_samples(api, job_id, *samples, sample(sequence=2, step=30))
    assert again == {"accepted": 1, "ignored": [{"index": n, "why": "duplicate"} for n in (0, 1)]}
    assert api.job(job_id)["step"] == 30


def test_samples_of_old_and_unknown_memberships_are_not_counted(api: Api, job_id: str) -> None:
    api.start(job_id, epoch=2, at=NOW + 60, step=100, cause="worker_lost", lost_steps=5)
    answer = post_samples(
        api,
        job_id,
        sample(step=104),  # rolled back
        sample(step=100, sequence=1),
        sample(membership_epoch=9, step=110),
        sample(membership_epoch=2, rank=2, workers=3, step=110),  # no such rank in this membership
    )
    assert answer["accepted"] == 1
    assert {each["index"]: each["why"] for each in answer["ignored"]} == {
        0: "old_membership",
        2: "unknown_membership",
        3: "old_membership",
    }


@pytest.mark.parametrize("loss", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("quoted", [True, False])
def test_losses_that_are_not_finite_are_legal_as_words_and_as_literals(
    api: Api, job_id: str, loss: str, quoted: bool
) -> None:
    body = json.dumps(telemetry(sample(loss=loss)))
    body = body if quoted else body.replace(f'"{loss}"', loss)
    answer = api.as_task("POST", job_id, "telemetry", content=body, headers=JSON)
    assert answer.json() == {"accepted": 1, "ignored": []}
    assert api.job(job_id)["loss"] is None
    assert api.repository.jobs.get(job_id).loss == pytest.approx(float(loss), nan_ok=True)
    assert api.get(f"/v1/jobs/{job_id}/predictions").json()["losses"] == [{"step": 6.0, "loss": None}]


MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    ({"rank": 2}, "samples.1", "rank (2) must be below workers (2)"),
    ({"rank": -1}, "samples.1.rank", "greater than or equal to 0"),
    ({"membership_epoch": 0}, "samples.1.membership_epoch", "greater than or equal to 1"),
    ({"membership_epoch": 10**30}, "samples.1.membership_epoch", "less than or equal to"),
    ({"step": -1}, "samples.1.step", "greater than or equal to 0"),
    ({"step": 2**53 + 1}, "samples.1.step", "less than or equal to 9007199254740992"),
    ({"sequence": 1.5}, "samples.1.sequence", "integer"),
    ({"loss": "low"}, "samples.1.loss", "number"),
    ({"seconds": float("nan")}, "samples.1.seconds", "finite"),
    ({"seconds": float("inf")}, "samples.1.seconds", "finite"),
    ({"at": 1e300}, "samples.1.at", "less than or equal to"),
    ({"data_epoch": float("-inf")}, "samples.1.data_epoch", "finite"),
    ({"sent_bytes": 10**20}, "samples.1.sent_bytes", "less than or equal to"),
    ({"staleness": float("nan")}, "samples.1.staleness", "finite"),
    ({"workers": 0}, "samples.1.workers", "greater than or equal to 1"),
    ({"speed": 3}, "samples.1.speed", "allowed here: membership_epoch, rank"),
]


@on_sqlite
@pytest.mark.parametrize(("change", "field", "message"), MALFORMED, ids=lambda value: str(value)[:40])
def test_malformed_samples_are_refused_as_a_whole(api: Api, job_id: str, change: Any, field: str, message: str) -> None:
    body = json.dumps(telemetry(sample(), sample(sequence=1) | change))
    answer = api.as_task("POST", job_id, "telemetry", content=body, headers=JSON)
    assert message in faults(answer)[field]
    assert samples_of(api.repository, job_id) == []


@on_sqlite
def test_a_post_without_samples_or_with_too_many_is_refused(api: Api, job_id: str) -> None:
    for samples in ([], [sample()] * 1001):
        assert "samples" in faults(api.as_task("POST", job_id, "telemetry", json={"samples": samples}))


def test_missing_fields_of_a_sample_are_named(api: Api, job_id: str) -> None:
    body = {"samples": [{name: value for name, value in sample().items() if name != "seconds"}]}
    assert faults(api.as_task("POST", job_id, "telemetry", json=body)) == {"samples.0.seconds": "is required"}


def columns(*samples: dict[str, Any]) -> dict[str, Any]:
    """A post of the other form: the values of each field together."""
    return {"columns": {name: [each[name] for each in samples] for name in samples[0]}}


def test_columns_say_the_same_as_samples(api: Api, job_id: str) -> None:
    samples = [sample(loss="NaN"), sample(sequence=1, step=20, membership_epoch=9), sample(sequence=2, step=30)]
    answer = api.as_task("POST", job_id, "telemetry", json=columns(*samples)).json()
    assert answer == {"accepted": 2, "ignored": [{"index": 1, "why": "unknown_membership"}]}
    assert post_samples(api, job_id, samples[2])["ignored"] == [{"index": 0, "why": "duplicate"}]
    assert [(each.sequence, each.step) for each in samples_of(api.repository, job_id)] == [(0, 10), (2, 30)]
    assert api.job(job_id)["step"] == 30


@on_sqlite
@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"loss": [1.0]}, "columns.loss", "has 1 values; membership_epoch has 2"),
        ({"rank": [0, 5]}, "columns.rank.1", "(5) must be below workers"),
        ({"updates": [None, 3]}, "columns.updates.1", "updates and global_batch go together"),
        ({"step": [1, -1]}, "columns.step.1", "greater than or equal to 0"),
        ({"step": []}, "columns.step", "at least 1 item"),
        ({"seconds": [0.1, float("inf")]}, "columns.seconds.1", "finite"),
        ({"speed": [1, 2]}, "columns.speed", "allowed here: membership_epoch, rank"),
    ],
)
def test_malformed_columns_are_refused_as_a_whole(api: Api, job_id: str, change: Any, field: str, message: str) -> None:
    body = columns(sample(), sample(sequence=1))
    body["columns"] |= change
    answer = api.as_task("POST", job_id, "telemetry", content=json.dumps(body), headers=JSON)
    assert message in faults(answer)[field]
    assert samples_of(api.repository, job_id) == []


@on_sqlite
def test_both_forms_in_one_post_are_refused(api: Api, job_id: str) -> None:
    answer = api.as_task("POST", job_id, "telemetry", json=telemetry() | columns(sample()))
    assert "samples or columns, not both" in faults(answer)["body"]


@on_sqlite
def test_more_than_can_be_stored_is_asked_to_come_later(api: Api, job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_queue: SampleQueue, _post: PostedSamples) -> None:
        raise QueueIsFull

    monkeypatch.setattr(SampleQueue, "put", full)
    answer = api.as_task("POST", job_id, "telemetry", json=telemetry())
    assert "telemetry" in problem(answer, 429)["detail"]
    assert answer.headers["Retry-After"] == "2"


# --- membership, reported --------------------------------------------------------------------------------------------


def test_the_first_membership_starts_the_job(api: Api) -> None:
    job_id = api.submit()
    api.surroundings.clock.now += 3
    api.start(job_id)
    job = api.job(job_id)
    assert (job["state"], job["membership_epoch"], job["running"]["workers"]) == ("running", 1, 2)
    assert job["started_at"] is not None


def test_a_pause_and_a_resumption_are_seen(api: Api, job_id: str) -> None:
    api.start(job_id, epoch=2, workers=0, servers=0, cause="pause", step=40)
    assert api.job(job_id)["state"] == "paused"
    api.start(job_id, epoch=3, cause="resume", step=40)
    assert api.job(job_id)["state"] == "running"


def test_steps_that_a_paused_script_had_not_told_are_recorded_as_lost_when_it_begins_anew(api: Api) -> None:
    """It tells a step each 20 s, and is paused 10 s after the last of them."""
    job_id = api.submit(task=None, command=["python", "train.py"])
    api.start(job_id, workers=1, servers=0)
    for number in (1, 2, 3):
        api.surroundings.clock.now = NOW + 20.0 * number
        told = sample(sequence=number, workers=1, servers=0, at=NOW + 20.0 * number, step=200 * number, n_steps=200)
        api.as_task("POST", job_id, "telemetry", json=telemetry(told))
    api.surroundings.clock.now = NOW + 100.0
    api.start(job_id, at=NOW + 70.0, epoch=2, workers=0, servers=0, cause="pause", step=600)

    def lost() -> list[tuple[int, float | None]]:
        points = api.get(f"/v1/jobs/{job_id}/allocations").json()["allocations"]
        return [(each["lost_steps"], each["lost_seconds"]) for each in points]

    assert lost() == [(0, None), (700, 70.0)]
    api.start(job_id, at=NOW + 90.0, epoch=3, workers=1, servers=0, cause="resume")
    assert lost() == [(0, None), (700, 70.0), (0, None)]
    events = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    assert any("(resume): 700 steps are lost" in each["message"] for each in events)


def test_a_late_repetition_of_a_report_does_not_undo_a_newer_one(api: Api, job_id: str) -> None:
    pause: dict[str, Any] = {"epoch": 2, "workers": 0, "servers": 0, "cause": "pause", "step": 40}
    api.start(job_id, **pause)
    api.start(job_id, epoch=3, cause="resume", step=40)
    api.start(job_id, **pause)
    job = api.job(job_id)
    assert (job["state"], job["membership_epoch"]) == ("running", 3)


def test_a_report_for_an_ended_job_is_a_conflict(api: Api) -> None:
    job_id = api.submit()
    api.post(f"/v1/jobs/{job_id}/cancel")
    answer = api.as_task("POST", job_id, "membership", json=membership(job_id))
    assert "cancelled already" in problem(answer, 409)["detail"]


@on_sqlite
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"epoch": 0}, "epoch"),
        ({"cause": "boredom"}, "cause"),
        ({"workers": [""]}, "workers.0"),
        ({"workers": ["w"] * 1025}, "workers"),
        ({"pause_seconds": -1}, "pause_seconds"),
        ({"message": "x" * 2001}, "message"),
        ({"at": -1}, "at"),
    ],
)
def test_malformed_reports_are_refused(api: Api, job_id: str, change: Any, field: str) -> None:
    answer = api.as_task("POST", job_id, "membership", json=membership(job_id) | change)
    assert field in faults(answer)


# --- membership, asked for (long poll) -------------------------------------------------------------------------------


def want(api: Api, job_id: str, workers: int) -> int:
    tasks = [PlacedTask(TaskKey(job_id, Role.WORKER, rank), "node-1") for rank in range(workers)]
    return set_wanted(api.repository, job_id, Allocation(workers, 1), Directive.RUN, tasks, NOW)


def ask(api: Api, job_id: str, **params: Any) -> Any:
    answer = api.as_task("GET", job_id, "membership", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_is_wanted_already_is_answered_at_once(api: Api, job_id: str) -> None:
    generation = want(api, job_id, 2)
    found = ask(api, job_id, after=generation - 1, timeout_seconds=60)
    assert found["generation"] == generation
    assert found["directive"] == "run"
    assert found["tasks"][1] == {"name": f"{job_id}-worker-1-0", "role": "worker", "rank": 1}


def test_nothing_new_is_answered_unchanged_at_the_timeout(api: Api, job_id: str) -> None:
    generation = want(api, job_id, 2)
    assert ask(api, job_id, after=generation, timeout_seconds=0.05)["generation"] == generation


@on_sqlite
def test_a_coordinator_that_is_ahead_of_a_restored_database_hears_of_it(api: Api, job_id: str) -> None:
    generation = want(api, job_id, 2)
    found = ask(api, job_id, after=generation + 5, timeout_seconds=0.05)
    assert (found["generation"], len(found["tasks"])) == (generation + 6, 2)
    assert ask(api, job_id, after=generation + 6, timeout_seconds=0.05)["generation"] == generation + 6


@pytest.mark.parametrize("through", ["notify", "database"])
def test_a_change_ends_the_wait(api: Api, job_id: str, through: str) -> None:
    """By this replica's own round (notify), or seen in the database after another replica's."""
    before = want(api, job_id, 2)

    async def wait_and_change() -> Any:
        call = api.call_async(
            "GET",
            f"/v1/jobs/{job_id}/membership",
            token=token,
            params={"after": before, "timeout_seconds": 60},
        )
        waiting = asyncio.create_task(call())
        await until(lambda: api.services.long_polls.n_waiters > 0)
        generation = await asyncio.to_thread(want, api, job_id, 3)
        if through == "notify":
            api.services.long_polls.notify(job_id, generation)
        return (await waiting).json(), generation

    token = api.job_token(job_id)
    started = time.monotonic()
    answer, generation = api.portal.call(wait_and_change)
    assert answer["generation"] == generation
    assert len(answer["tasks"]) == 3
    assert time.monotonic() - started < 30
    assert api.services.long_polls.n_waiters == 0


def test_cancelling_ends_the_wait_with_the_directive(api: Api, job_id: str) -> None:
    before = want(api, job_id, 2)
    token = api.job_token(job_id)
    asking = api.call_async(
        "GET", f"/v1/jobs/{job_id}/membership", token=token, params={"after": before, "timeout_seconds": 60}
    )
    waiting = api.portal.start_task_soon(asking)
    assert api.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert waiting.result(timeout=30).json()["directive"] == "cancel"


def test_many_waiters_need_neither_threads_nor_connections(api: Api, job_id: str) -> None:
    """More long polls than there are threads (40) or connections, and the API still answers others."""
    job_ids = [job_id, *(api.submit() for _ in range(9))]
    waiting = []
    for each_id in job_ids:
        params = {"after": want(api, each_id, 2), "timeout_seconds": 60}
        asking = api.call_async("GET", f"/v1/jobs/{each_id}/membership", token=api.job_token(each_id), params=params)
        waiting += [api.portal.start_task_soon(asking) for _ in range(MAX_WAITERS_OF_JOB)]
    deadline = time.monotonic() + 50  # before the first of them answers by itself
    while api.services.long_polls.n_waiters < len(waiting):
        assert time.monotonic() < deadline
        assert api.get("/healthz").status_code == 200
    assert api.job(job_id)["state"] == "running"
    for each_id in job_ids:
        want(api, each_id, 3)
    assert {len(each.result(timeout=30).json()["tasks"]) for each in waiting} == {3}


@on_sqlite
def test_of_one_jobs_long_polls_the_oldest_makes_way(api: Api, job_id: str) -> None:
    params = {"after": want(api, job_id, 2), "timeout_seconds": 60}
    asking = api.call_async("GET", f"/v1/jobs/{job_id}/membership", token=api.job_token(job_id), params=params)
    waiting = [api.portal.start_task_soon(asking) for _ in range(MAX_WAITERS_OF_JOB)]
    wait_until("all wait", lambda: api.services.long_polls.n_waiters == MAX_WAITERS_OF_JOB)
    waiting.append(api.portal.start_task_soon(asking))
    wait_until("one is answered", lambda: any(each.done() for each in waiting))
    [unchanged] = [each for each in waiting if each.done()]
    assert unchanged.result().json()["generation"] == params["after"]
    want(api, job_id, 3)
    assert {each.result(timeout=30).status_code for each in waiting} == {200}


@on_sqlite
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("timeout_seconds=61", "timeout_seconds"),
        ("timeout_seconds=nan", "timeout_seconds"),
        ("timeout_seconds=-1", "timeout_seconds"),
        ("after=-2", "after"),
        ("after=1e3", "after"),
        ("generation=1", "generation"),
    ],
)
def test_wrong_questions_are_refused(api: Api, job_id: str, query: str, field: str) -> None:
    assert field in faults(api.as_task("GET", job_id, f"membership?{query}"))


# --- profile and result ----------------------------------------------------------------------------------------------

PROFILE = {"n_parameters": 1000, "n_examples": 600, "global_batch_size": 60, "steps_per_epoch": 10.0}


def test_a_task_that_does_not_answer_is_an_event_and_explained(api: Api, job_id: str) -> None:
    for news in ("worker-0 has not answered for 30 s.", "worker-0 answers again."):
        assert api.as_task("POST", job_id, "telemetry", json={"silence": news}).status_code == 200
        event = api.get(f"/v1/jobs/{job_id}/events").json()["events"][0]
        assert (event["type"], event["message"]) == ("WorkerSilent", news)
        told = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
        until = " If it does not answer within 10 min 00 s, it is ended, and another takes its place."
        is_awaited = "has not" in news
        assert f"{news}{until if is_awaited else ''}" in told
        (listed,) = api.get("/v1/jobs").json()["jobs"]
        assert api.job(job_id)["awaited"] == listed["awaited"] == (f"{news}{until}" if is_awaited else None)


def test_a_task_is_told_to_be_awaited_as_long_as_it_is(api: Api) -> None:
    """However long its code may hang."""
    job_id = api.submit(hang_seconds=3600)
    api.start(job_id)
    api.as_task("POST", job_id, "telemetry", json={"silence": "worker-0 has not answered for 30 s."})
    for seconds, left in ((60.0, "within 59 min 00 s"), (1800.0, "within 30 min 00 s"), (3599.5, "within 1 s")):
        api.surroundings.clock.now = NOW + seconds
        awaited = api.job(job_id)["awaited"]
        assert f"If it does not answer {left}, it is ended" in awaited
        assert awaited in api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]


def test_a_job_that_stands_still_is_told_until_when_a_step_is_waited_for(api: Api, job_id: str) -> None:
    steps = telemetry(*(sample(sequence=number, step=10 * number, at=NOW + number) for number in range(1, 4)))
    assert api.as_task("POST", job_id, "telemetry", json=steps).json()["accepted"] == 3
    assert api.job(job_id)["awaited"] is None
    api.surroundings.clock.now = NOW + 60.0
    awaited = api.job(job_id)["awaited"]
    assert awaited.startswith("If its code hangs, the worker is replaced after 60 s or more")
    assert awaited in api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, False),
        ({"at": NOW}, True),
        ({"workers": ["job-worker-1-0"]}, True),
        ({"workers": ["job-worker-0-1"], "servers": []}, False),
        ({"workers": [], "servers": [], "cause": "pause"}, False),
    ],
    ids=["it takes part", "before", "without it", "another has its place", "paused"],
)
def test_that_a_task_does_not_answer_is_told_until_it_or_another_takes_part(
    api: Api, job_id: str, changes: dict[str, Any], told: bool
) -> None:
    names = {"workers": ["job-worker-0-0"], "servers": ["job-server-0-0"]}
    news = "job-worker-0-0 answers again, and takes part from the next change of the membership on."
    assert api.as_task("POST", job_id, "telemetry", json={"silence": news}).status_code == 200
    body = membership(job_id) | {"epoch": 2, "at": NOW + 1.0} | names | changes
    assert api.as_task("POST", job_id, "membership", json=body).status_code == 204
    assert (news in api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]) == told


def test_what_the_owner_of_a_script_should_know_is_an_event(api: Api, job_id: str) -> None:
    kinds = ("ProcessesEnded", "PrintsTooMuch", "PatternTooSlow")
    notes = [{"kind": kind, "message": f"{kind} of it."} for kind in kinds]
    assert api.as_task("POST", job_id, "telemetry", json={"notes": notes}).status_code == 200
    events = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    told = {event["type"]: event["message"] for event in events}
    assert told.items() >= {note["kind"]: note["message"] for note in notes}.items()
    sentences = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
    assert {"PrintsTooMuch of it.", "PatternTooSlow of it."} <= set(sentences)
    for wrong in ([], [{"kind": "Other", "message": "a"}], [{"kind": "PrintsTooMuch", "message": ""}]):
        problem(api.as_task("POST", job_id, "telemetry", json={"notes": wrong}), 422)


def test_a_profile_is_shown(api: Api, job_id: str) -> None:
    for _ in range(2):
        assert api.as_task("PUT", job_id, "profile", json=PROFILE).status_code == 204
    assert {name: value for name, value in api.job(job_id)["profile"].items() if value is not None} == PROFILE


def test_how_a_script_writes_checkpoints_becomes_advice(api: Api, job_id: str) -> None:
    assert api.get(f"/v1/jobs/{job_id}/predictions").json()["checkpoints"] is None
    times = {"checkpoint_every_seconds": 30.0, "checkpoint_write_seconds": 3.0}
    assert api.as_task("PUT", job_id, "profile", json={**PROFILE, **times}).status_code == 204
    advice = api.get(f"/v1/jobs/{job_id}/predictions").json()["checkpoints"]
    assert (advice["every_seconds"], advice["write_seconds"]) == (30.0, 3.0)
    assert "instead of every 30 s" in advice["message"]


def test_an_end_that_is_put_right_is_predicted_anew_at_once(api: Api, job_id: str) -> None:
    for total, triggers in ((400_000, 0), (400_000, 0), (2000, 1)):
        api.surroundings.triggers.clear()
        assert api.as_task("PUT", job_id, "profile", json={**PROFILE, "total_steps": total}).status_code == 204
        assert api.surroundings.triggers == ["profile"] * triggers


@pytest.mark.parametrize("lost", [0, 14])
def test_a_job_that_lost_its_steps_is_looked_at_at_once(api: Api, job_id: str, lost: int) -> None:
    """It has nothing to lose any more: another may be worth more now."""
    again = membership(job_id, epoch=2, cause="worker_lost", lost_steps=lost)
    for _ in range(2):
        assert api.as_task("POST", job_id, "membership", json=again).status_code == 204
    assert api.surroundings.triggers.count("steps lost") == bool(lost)


def test_the_step_from_which_a_script_began_is_told_once(api: Api, job_id: str) -> None:
    api.as_task("POST", job_id, "membership", json=membership(job_id))
    for _ in range(2):
        assert api.as_task("PUT", job_id, "profile", json={**PROFILE, "began_at_step": 20}).status_code == 204
    events = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    began = [event["message"] for event in events if event["type"] == "BeganFurtherOn"]
    assert began == ["Membership epoch 1 began at step 20, with a checkpoint from before the job, as its steps tell."]
    [point] = api.get(f"/v1/jobs/{job_id}/allocations").json()["allocations"]
    assert (point["step"], point["lost_steps"]) == (20, 0)


def test_the_only_size_of_a_script_is_told_once(api: Api, job_id: str) -> None:
    for _ in range(2):
        assert api.as_task("PUT", job_id, "profile", json={**PROFILE, "fixed_workers": 2}).status_code == 204
    events = api.get(f"/v1/jobs/{job_id}/events").json()["events"]
    fixed = [event for event in events if event["type"] == "SizeFixed"]
    assert [event["data"] for event in fixed] == [{"workers": 2}]
    assert "Number of workers from now on: 2" in fixed[0]["message"]


@on_sqlite
@pytest.mark.parametrize(
    ("change", "field"),
    [({"steps_per_epoch": 0}, "steps_per_epoch"), ({"n_examples": -1}, "n_examples"), ({"layers": 3}, "layers")],
)
def test_malformed_profiles_are_refused(api: Api, job_id: str, change: Any, field: str) -> None:
    assert field in faults(api.as_task("PUT", job_id, "profile", json=PROFILE | change))


@pytest.mark.parametrize("wanted", ["fail", "warn"])
def test_a_loss_that_is_not_finite_is_looked_at_at_once(api: Api, wanted: str) -> None:
    """A job that is to train on is told of once, and again when its losses were finite in between."""
    job_id = api.submit(on_nonfinite=wanted)
    api.start(job_id)
    triggers = api.surroundings.triggers
    looks = []
    for sequence, loss in enumerate((0.5, "NaN", "Infinity", 0.5, "NaN"), 1):
        triggers.clear()
        post_samples(api, job_id, sample(sequence=sequence, step=10 * sequence, loss=loss))
        looks.append("loss" in triggers)
    assert looks == [False, True, wanted == "fail", False, True]


def test_a_result_ends_the_job_and_may_be_repeated(api: Api, job_id: str) -> None:
    result = {"outcome": "succeeded", "step": 100, "final_loss": 0.5, "checkpoint": "/jobs/mine/manifest.json"}
    for _ in range(2):
        assert api.as_task("POST", job_id, "result", json=result).status_code == 204
    job = api.job(job_id)
    assert (job["state"], job["step"], job["result"]["final_loss"]) == ("succeeded", 100, 0.5)
    assert job["result"]["checkpoint"] == result["checkpoint"]
    assert "result" in api.surroundings.triggers


@pytest.mark.parametrize(
    ("outcome", "seconds_ago", "took"),
    [("succeeded", 20.0, 40.0), ("succeeded", 1e6, 0.0), ("failed", 20.0, 40.0)],
    ids=["as told", "not before its start", "failed for good"],
)
def test_a_job_ended_when_it_says_so(api: Api, job_id: str, outcome: str, seconds_ago: float, took: float) -> None:
    api.as_task("POST", job_id, "membership", json=membership(job_id))
    started = api.repository.jobs.get(job_id).started_at
    assert started is not None
    api.surroundings.clock.now = started + 60.0
    result = {"outcome": outcome, "step": 9, "seconds_ago": seconds_ago, "permanent": outcome == "failed"}
    assert api.as_task("POST", job_id, "result", json=result).status_code == 204
    assert api.repository.jobs.get(job_id).finished_at == pytest.approx(started + took)


def test_the_final_loss_of_a_script_is_that_of_its_last_sample(api: Api) -> None:
    job_id = api.submit(task=None, command=["python", "loop.py"])
    api.as_task("POST", job_id, "membership", json=membership(job_id))
    api.as_task("POST", job_id, "telemetry", json=telemetry(sample(step=10, loss=0.111)))
    api.as_task("POST", job_id, "result", json={"outcome": "succeeded", "step": 10, "final_loss": 0.112})
    assert api.job(job_id)["result"]["final_loss"] == 0.111


def test_a_script_whose_last_loss_was_no_number_is_not_told_the_number_before(api: Api) -> None:
    """It tells each fifth step, and has made one more at its end: the coordinator's loss is the last that was one."""
    job_id = api.submit(task=None, command=["python", "loop.py"], on_nonfinite="warn")
    api.as_task("POST", job_id, "membership", json=membership(job_id))
    api.as_task(
        "POST",
        job_id,
        "telemetry",
        json=telemetry(sample(step=55, loss=0.166), sample(step=300, loss="NaN", sequence=1)),
    )
    api.as_task("POST", job_id, "result", json={"outcome": "succeeded", "step": 301, "final_loss": 0.166})
    job = api.job(job_id)
    assert (job["step"], job["loss"], job["result"]["final_loss"]) == (301, None, None)
    assert "its loss was NaN or infinite at the end" in api.get(f"/v1/jobs/{job_id}/explanation").json()["message"]


def test_a_diverged_result_is_legal_and_shown_as_null(api: Api, job_id: str) -> None:
    result = {"outcome": "succeeded", "step": 9, "final_loss": "Infinity", "metrics": {"test_loss": "NaN", "x": None}}
    assert api.as_task("POST", job_id, "result", json=result).status_code == 204
    shown = api.job(job_id)["result"]
    assert (shown["final_loss"], shown["metrics"]) == (None, {"test_loss": None, "x": None})


@pytest.mark.parametrize(("ended_after", "seconds_ago"), [(80.0, 0.0), (80.0, 60.0), (60.0, 80.0)])
def test_an_error_that_no_retry_comes_in_time_after_says_so(api: Api, ended_after: float, seconds_ago: float) -> None:
    """Also where one would have, but the service was away then."""
    job_id = api.submit(convergence={"max_seconds": 100.0})
    api.as_task("POST", job_id, "membership", json=membership(job_id))
    api.as_task("POST", job_id, "telemetry", json=telemetry(sample()))
    started = api.repository.jobs.get(job_id).started_at
    assert started is not None
    api.surroundings.clock.now = started + ended_after + seconds_ago
    result = {"outcome": "failed", "step": 10, "error": "ValueError: no images", "seconds_ago": seconds_ago}
    api.as_task("POST", job_id, "result", json=result)
    job = api.repository.jobs.get(job_id)
    assert job.state is JobState.FAILED
    assert (job.finished_at or 0.0) - started == pytest.approx(ended_after)
    sentences = api.get(f"/v1/jobs/{job_id}/explanation").json()["sentences"]
    assert any("It is not tried again: its limit of time" in each for each in sentences), sentences


def test_an_error_while_the_service_was_away_was_then_and_its_retry_waits_from_now_on(api: Api) -> None:
    job_id = api.submit()
    api.as_task("POST", job_id, "membership", json=membership(job_id))
    api.as_task("POST", job_id, "telemetry", json=telemetry(sample()))
    started = api.repository.jobs.get(job_id).started_at
    assert started is not None
    api.surroundings.clock.now = started + 200.0
    result = {"outcome": "failed", "step": 10, "error": "ValueError: no images", "seconds_ago": 170.0}
    api.as_task("POST", job_id, "result", json=result)
    job = api.repository.jobs.get(job_id)
    assert (job.state, job.retry_at) == (JobState.PAUSED, started + 230.0)
    (ended_at,) = (each.ended_at for each in api.repository.memberships.of_job(job_id))
    (scheduled,) = (each for each in api.repository.events.page(job_id).items if each.type == "RetryScheduled")
    assert ended_at == scheduled.at
    assert scheduled.at - started == pytest.approx(30.0)
    assert scheduled.data["retry_at"] == started + 230.0


def test_a_failure_says_why(api: Api, job_id: str) -> None:
    result = {"outcome": "failed", "step": 3, "error": "ValueError: no images"}
    api.as_task("POST", job_id, "result", json=result)
    job = api.job(job_id)
    assert (job["state"], job["failure"]) == ("failed", "ValueError: no images")


def test_another_end_than_the_first_is_a_conflict(api: Api, job_id: str) -> None:
    api.as_task("POST", job_id, "result", json={"outcome": "succeeded", "step": 9})
    answer = api.as_task("POST", job_id, "result", json={"outcome": "failed", "step": 9})
    assert "the job has succeeded already" in problem(answer, 409)["detail"]


# --- the layers of what is trained -----------------------------------------------------------------------------------


def network(*layers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    rows = layers or ({"name": "x", "kind": "input", "shape": [8]}, {"name": "y", "kind": "linear", "parents": ["x"]})
    return {"format": "optimus-network/1", "name": "net", "layers": list(rows), **changes}


def test_layers_are_kept_apart_from_the_profile(api: Api) -> None:
    job_id = api.submit()
    assert api.as_task("PUT", job_id, "network", json=network()).status_code == 204
    assert api.repository.jobs.network_of(job_id) == network()
    assert "network" not in api.job(job_id)
    assert api.repository.jobs.network_of("nobody") is None


@on_sqlite
@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (network(format="onnx"), "format", "optimus-network/1"),
        (network(layers=[]), "layers", "at least 1"),
        (network({"name": "y", "kind": "linear", "features": 3}), "layers", "has no parents"),
        (network({"name": "y", "kind": "magic"}), "layers", "unknown kind"),
        (network({"name": "x", "kind": "input", "shape": []}, {"name": "n", "kind": "batch_norm", "parents": ["x"]}),
         "layers", "does not go with the shape"),
        (network({"name": "x", "kind": "input", "shape": [10**300]}), "layers", "shape cannot be"),
    ],
)  # fmt: skip
def test_layers_that_cannot_be_are_refused(api: Api, body: dict[str, Any], field: str, message: str) -> None:
    job_id = api.submit()
    found = faults(api.as_task("PUT", job_id, "network", json=body))
    assert message in found[field], found
    assert api.repository.jobs.network_of(job_id) is None


# --- the learning rates that it is to have ---------------------------------------------------------------------------


def test_the_newest_plan_of_learning_rates_counts(api: Api) -> None:
    job_id = api.submit()
    assert api.repository.jobs.get(job_id).planned_rates_version == 0
    for rate in (0.5, 0.25):
        told = {"steps": [0, 100], "rates": [rate, 0.0]}
        assert api.as_task("PUT", job_id, "learning-rates", json=told).status_code == 204
    assert api.repository.jobs.planned_rates_of([job_id, "nobody"]) == {
        job_id: {"steps": [0, 100], "rates": [0.25, 0.0]}
    }
    assert api.repository.jobs.get(job_id).planned_rates_version == 2, "whoever has read the first reads again"


@on_sqlite
@pytest.mark.parametrize(
    ("steps", "rates", "field", "message"),
    [
        ([], [], "steps", "at least 1"),
        (list(range(257)), [0.1] * 257, "steps", "at most 256"),
        ([0, 1], [0.1], "body", "2 steps and 1 rates"),
        ([5, 5], [0.1, 0.2], "body", "increasing"),
        ([0], [-0.1], "rates.0", "greater than or equal to 0"),
        ([0], ["NaN"], "rates.0", "number"),
    ],
)
def test_plans_that_cannot_be_are_refused(
    api: Api, steps: list[int], rates: list[Any], field: str, message: str
) -> None:
    job_id = api.submit()
    found = faults(api.as_task("PUT", job_id, "learning-rates", json={"steps": steps, "rates": rates}))
    assert any(message in why for why in found.values()), found
    assert field in found, found
    assert api.repository.jobs.planned_rates_of([job_id]) == {}


def test_samples_tell_their_learning_rate(api: Api, job_id: str) -> None:
    post_samples(api, job_id, sample(step=1, learning_rate=0.5), sample(sequence=1, step=2))
    assert [each.learning_rate for each in samples_of(api.repository, job_id, 0, 5)] == [0.5, None]


def test_learning_rates_are_shown(api: Api, job_id: str) -> None:
    post_samples(api, job_id, sample(learning_rate=0.25))
    told = {"steps": [0, 309, 310], "rates": [1.0, 1.0, 0.01]}
    assert api.as_task("PUT", job_id, "learning-rates", json=told).status_code == 204
    shown = api.get(f"/v1/jobs/{job_id}/predictions").json()
    assert shown["learning_rates"] == [{"step": 9.0, "rate": 0.25}]
    assert shown["planned_rates"] == [{"step": 309, "rate": 0.25}, {"step": 310, "rate": 0.0025}], "from where it is"
    assert api.job(job_id)["learning_rate"] == 0.25


# --- one transaction -------------------------------------------------------------------------------------------------


def test_a_membership_report_is_one_transaction(api: Api) -> None:
    job_id = api.submit()
    report = membership(job_id)
    with counted(api.repository._engine) as counts:
        assert api.as_task("POST", job_id, "membership", json=report).status_code == 204
    assert counts.transactions == 3, "the report's, and two that look up the job's token: the test's and the service's"
    assert api.job(job_id)["state"] == "running"


def test_the_membership_of_an_ended_job_is_not_kept(api: Api) -> None:
    job_id = api.submit()
    api.post(f"/v1/jobs/{job_id}/cancel")
    problem(api.as_task("POST", job_id, "membership", json=membership(job_id)), 409)
    assert api.repository.memberships.of_job(job_id) == []


@pytest.mark.parametrize(("wanted", "state"), [("fail", "failed"), ("warn", "succeeded")])
def test_a_job_whose_last_loss_is_not_finite_does_not_succeed(api: Api, wanted: str, state: str) -> None:
    job_id = api.submit(on_nonfinite=wanted)
    api.start(job_id)
    post_samples(api, job_id, sample(loss="NaN", step=9))
    result = {"outcome": "succeeded", "step": 9}
    for _ in range(2):  # again is harmless
        assert api.as_task("POST", job_id, "result", json=result).status_code == 204
    found = api.job(job_id)
    assert found["state"] == state
    assert ("NaN or infinite" in (found["failure"] or "")) is (state == "failed")
