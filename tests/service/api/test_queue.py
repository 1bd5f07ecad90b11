"""The queue: who waits, in which order, and who may see it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from tests.service.api.api_harness import Api, on_sqlite, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user
from tests.service.store.store_builders import a_decision, a_round, set_wanted

from optimus_scheduler.explain import GOES_FIRST
from optimus_scheduler.lifecycle import CancelRequested, PauseRequested
from optimus_scheduler.model import NOTHING, Allocation, Directive, Interval
from optimus_service.store.records import ExpectedTimesRecord

Serve = Callable[..., AbstractContextManager[Api]]


def submitted(api: Api, job_id: str, at: float, project: str = "vision", **said: Any) -> str:
    spec = {"name": job_id, "project": project, "task": "m:f", **said}
    now = api.surroundings.clock() - 1000.0 + at
    api.repository.jobs.create(job_id, spec, "nonce", None, "hash", now, None, f"owner-of-{project}")
    return job_id


def starts(api: Api, seconds: dict[str, float]) -> None:
    """The queue was simulated forward: these jobs start in so many seconds."""
    now = api.surroundings.clock()
    api.repository.rounds.put_expected_times(
        [
            ExpectedTimesRecord(
                job_id=job_id,
                at=now,
                valid_until=now + 60.0,
                start=Interval(now + each, now + each, now + each),
                end=None,
                steps_left=None,
            )
            for job_id, each in seconds.items()
        ]
    )


def order(api: Api, **options: Any) -> list[str]:
    return [job["id"] for job in api.get("/v1/queue", **options).json()["jobs"]]


@on_sqlite
def test_jobs_that_start_first_are_first_and_then_those_of_priority_and_age(api: Api) -> None:
    for at, job_id in enumerate(("late", "soon", "old", "young")):
        submitted(api, job_id, at)
    submitted(api, "urgent", 9, priority=4.0)
    starts(api, {"late": 500.0, "soon": 20.0})
    api.repository.rounds.add(a_round(), [a_decision(each, reason="WaitingForResources") for each in ("late", "soon")])
    assert order(api) == ["soon", "late", "urgent", "old", "young"]
    first, *_, last = api.get("/v1/queue").json()["jobs"]
    assert first["expected"]["start_seconds"]["mean"] == 20.0
    assert (first["position"], first["reason"]) == (1, "WaitingForResources")
    assert first["why"] == "not even its minimum fits beside jobs that train or go first"
    assert (last["owner"], last["reason"], last["why"]) == (
        "owner-of-vision",
        None,
        "no round has looked at it since it began to wait",
    )
    api.surroundings.clock.now += 61.0
    assert order(api) == ["urgent", "late", "soon", "old", "young"], "what was expected is too old"


@on_sqlite
def test_the_explanation_tells_the_number_of_the_queue(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        for at, (job_id, project) in enumerate((("late", "vision"), ("soon", "speech"), ("last", "vision"))):
            submitted(api, job_id, at, project)
        api.repository.rounds.add(
            a_round(), [a_decision(each, reason="WaitingForResources") for each in ("late", "soon")]
        )
        starts(api, {"late": 500.0, "soon": 20.0})
        add_user(api, "ada", {"vision": "viewer"})
        token = add_token(api, "ada")
        told = {
            each: " ".join(api.get(f"/v1/jobs/{each}/explanation", token=ADMINISTRATOR).json()["sentences"])
            for each in order(api, token=ADMINISTRATOR)
        }
        assert list(told) == ["soon", "late", "last"]
        assert "number 1 of 3." in told["soon"]
        assert "number 2 of 3, behind soon (soon)." in told["late"]
        unknown = "where those whose start cannot be said stand last, by priority and age"
        assert f"number 3 of 3, {unknown}, behind soon (soon), late (late)." in told["last"]
        hers = api.get("/v1/jobs/last/explanation", token=token)
        assert f"number 3 of 3, {unknown}, behind late (late) and 1 more." in hers.text
        assert "(soon)" not in hers.text
        late = api.get("/v1/jobs/late/explanation", token=token)
        assert "number 2 of 3." in late.text


@on_sqlite
def test_of_those_whose_start_cannot_be_said_one_that_goes_first_stands_before_the_others(api: Api) -> None:
    ids = [submitted(api, job_id, at) for at, job_id in enumerate(("old", "waited", "young"))]
    decisions = {each: a_decision(each, reason="WaitingForResources", allocation=NOTHING) for each in ids}
    decisions["waited"] = replace(decisions["waited"], message=f"Waits. {GOES_FIRST}")
    api.repository.rounds.add(a_round(), list(decisions.values()))
    assert order(api) == ["waited", "old", "young"]


@on_sqlite
@pytest.mark.parametrize(
    ("policy", "by"), [("optimus", "priority and age"), ("fifo", "age"), ("edf", "deadline and age")]
)
def test_the_queue_says_by_what_those_with_the_same_start_stand(serving: Serve, policy: str, by: str) -> None:
    with serving(policy=policy) as api:
        assert api.get("/v1/queue").json()["same_start_by"] == by


@on_sqlite
def test_only_jobs_that_wait_for_tasks_are_in_the_queue(api: Api) -> None:
    for job_id in ("waits", "runs", "paused", "cancelled"):
        submitted(api, job_id, 0)
    submitted(api, "tracked", 0, tracked=True)
    now = api.surroundings.clock()
    set_wanted(api.repository, "runs", Allocation(1, 0), Directive.RUN, [], now)
    api.repository.jobs.advance("paused", PauseRequested(), now)
    api.repository.jobs.advance("cancelled", CancelRequested(has_tasks=True), now)
    assert order(api) == ["waits"]


@on_sqlite
def test_a_page_goes_on_where_the_one_before_ended(api: Api) -> None:
    ids = [submitted(api, f"job-{number}", number) for number in range(5)]
    page = api.get("/v1/queue?limit=2").json()
    found = [job["id"] for job in page["jobs"]]
    while page["next_cursor"]:
        page = api.get("/v1/queue", params={"limit": 2, "cursor": page["next_cursor"]}).json()
        found += [job["id"] for job in page["jobs"]]
    assert found == ids
    problem(api.get("/v1/queue?cursor=nothing"), 422)


@on_sqlite
def test_positions_count_all_and_only_readable_jobs_are_shown(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        for at, project in enumerate(("vision", "speech", "vision", "speech")):
            submitted(api, f"job-{at}", at, project)
        add_user(api, "ada", {"speech": "viewer"})
        answer = api.get("/v1/queue", token=add_token(api, "ada"))
        body = answer.json()
        assert [(job["position"], job["id"]) for job in body["jobs"]] == [(2, "job-1"), (4, "job-3")]
        assert (body["waiting"], "vision" in answer.text) == (4, False)
        add_user(api, "eve")
        assert api.get("/v1/queue", token=add_token(api, "eve")).json()["jobs"] == []


@on_sqlite
def test_list_queue_and_explanation_tell_the_same_start_and_end_at_one_moment(api: Api) -> None:
    """Also while the end that it waits for comes closer than was foreseen."""
    submitted(api, "waits", 1)
    submitted(api, "runs", 0)
    set_wanted(api.repository, "runs", Allocation(1, 1), Directive.RUN, (), api.surroundings.clock())
    now = api.surroundings.clock()
    api.repository.rounds.add(a_round(), [a_decision("waits", reason="WaitingForResources", allocation=NOTHING)])
    api.repository.rounds.add(a_round(), [a_decision("runs")])
    valid = now + 600.0
    start, end = Interval(now + 118.0, now + 80.0, now + 200.0), Interval(now + 300.0, now + 250.0, now + 400.0)
    waits = ExpectedTimesRecord(job_id="waits", at=now, valid_until=valid, start=start, end=end, awaited={"runs": 0.8})
    runs = ExpectedTimesRecord(job_id="runs", at=now, valid_until=valid, start=None, end=start)
    api.repository.rounds.put_expected_times([waits, runs])
    for seconds in (0.0, 40.0):
        api.surroundings.clock.now = now + seconds
        (queued,) = api.get("/v1/queue").json()["jobs"]
        listed = next(each for each in api.get("/v1/jobs").json()["jobs"] if each["id"] == "waits")
        shown, told = api.get("/v1/jobs/waits").json(), api.get("/v1/jobs/waits/explanation").json()["expected"]
        times = [told["start_seconds"], told["finish_seconds"], told["computed_at"]]
        assert told["start_seconds"] is not None
        for expected in (queued["expected"], listed["expected"], shown["expected"]):
            assert [expected[each] for each in ("start_seconds", "end_seconds", "computed_at")] == times
