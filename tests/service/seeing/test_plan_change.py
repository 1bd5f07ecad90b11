"""What a change of a job or of a quota would do is what it does."""

from __future__ import annotations

import threading
from concurrent.futures import as_completed
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.api.api_harness import Api
from tests.service.loop.loop_world import World
from tests.service.seeing.previews import preview_of
from tests.service.seeing.test_plan import everything

from optimus_contract import answers
from optimus_contract.change import ConvergenceChange, JobChange
from optimus_scheduler.lifecycle import Outcome, PauseRequested, ResultReported
from optimus_scheduler.model import Interval, Snapshot
from optimus_scheduler.model.format import time_words
from optimus_service.api.jobs.changes import _edit
from optimus_service.api.jobs.plan import on_others, with_and_without
from optimus_service.api.jobs.plan_change import job_body
from optimus_service.observe.jobs import as_edited

SMALL: dict[str, Any] = {"task": None, "command": ["torchrun", "train.py"], "architecture": "script"}
Bounds = tuple[float, float, float]
"""Mean, low and high."""

SPEC: dict[str, Any] = {**SMALL, "servers": {"min": 0, "max": 0}, "resumes": False}


def sizes(world: World) -> dict[str, tuple[int, int]]:
    return {job.id: (job.wanted.workers, job.wanted.servers) for job in world.repository.jobs.active()}


def planned(found: dict[str, Any], before: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The sizes that it foresees."""
    after = {each["job_id"]: (each["after"]["workers"], each["after"]["servers"]) for each in found["effects"]}
    return {**before, **after}


def trained(world: World, planning: Api) -> None:
    """Two jobs that have shared the cluster for a while, one of them a script that begins anew."""
    long = {"convergence": {"max_steps": 50_000}}
    world.submit("script", **SPEC, **long, workers={"min": 2, "max": 2})
    world.round()
    world.submit("task", **long, workers={"max": 8}, servers={"max": 8})
    world.live_until("both train", lambda: all(each.first_step for each in world.repository.jobs.active()))
    for _ in range(6):
        world.round()
        world.train(20.0)


@pytest.mark.parametrize(
    ("job", "change"),
    [
        ("task", {"workers": {"max": 1}, "servers": {"max": 1}}),
        ("task", {"workers": {"min": 5}, "priority": 50.0}),
        ("task", {"convergence": {"max_steps": 100_000}}),
        ("script", {"priority": 0.01}),
        ("script", {"name": "other"}),
    ],
)
def test_a_change_does_what_its_plan_says(planning: Api, world: World, job: str, change: dict[str, Any]) -> None:
    trained(world, planning)
    state, before = everything(world), sizes(world)
    answer = planning.post(f"/v1/jobs/{job}/plan", json=change)
    assert answer.status_code == 200, answer.text
    assert everything(world) == state, "nothing is stored"
    found = answer.json()
    changed = planning.call("PATCH", f"/v1/jobs/{job}", json=change)
    assert changed.status_code == 200, changed.text
    world.round()
    assert sizes(world) == planned(found, before)
    decided = world.repository.rounds.latest_decisions([job])[job]
    assert decided.message in found["sentences"]
    assert "No job that runs would change its size." not in found["sentences"], "it may itself"


def test_a_quota_does_what_its_plan_says(planning: Api, world: World) -> None:
    trained(world, planning)
    state, before = everything(world), sizes(world)
    quota = {"share": 0.25, "may_borrow": False}
    found = planning.post("/v1/projects/default/plan", json=quota).json()
    assert everything(world) == state
    assert found["effects"], "it takes room"
    assert planning.get("/v1/projects/default").status_code == 404
    assert planning.call("PUT", "/v1/projects/default", json=quota).status_code == 201
    world.round()
    assert sizes(world) == planned(found, before)
    pauses = [each for each in found["effects"] if each["job_id"] == "script" and not each["after"]["workers"]]
    assert all("lose" in " ".join(found["sentences"]) for _ in pauses)
    limited = planning.post("/v1/projects/default/plan", json={"limits": {"workers_together": 1}}).json()
    assert all(each["after"]["workers"] <= 1 for each in limited["effects"])


def test_what_would_be_refused_is_refused(planning: Api, world: World) -> None:
    trained(world, planning)
    refused = planning.post("/v1/jobs/task/plan", json={"workers": {"min": 1000, "max": 1000}})
    assert refused.status_code == 422
    real = planning.call("PATCH", "/v1/jobs/task", json={"workers": {"min": 1000, "max": 1000}})
    assert real.json()["errors"] == refused.json()["errors"]
    assert planning.post("/v1/jobs/nobody/plan", json={"priority": 2.0}).status_code == 404
    same = planning.post("/v1/jobs/task/plan", json={"priority": 1.0}).json()
    assert same == {"sentences": ["It has these values already: nothing would change."], "effects": []}
    assert planning.post("/v1/projects/default/plan", json={"share": 2.0}).status_code == 422


def test_questions_that_take_long_leave_room_for_all_else(
    planning: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks beyond those that wait is told to come again, and so is nobody who asks for something else."""
    trained(world, planning)
    answered, preview = threading.Event(), planning.services.preview
    assert preview is not None
    plan_of = preview.of_change

    def slow(change: Any) -> Any:
        assert answered.wait(60.0)
        return plan_of(change)

    monkeypatch.setattr(preview, "of_change", slow)
    ask = planning.call_async("POST", "/v1/jobs/task/plan", json={"priority": 2.0})
    asked = [planning.portal.start_task_soon(ask) for _ in range(60)]
    try:
        refused = [each.result() for _, each in zip(range(44), as_completed(asked, 30.0), strict=False)]
        assert {each.status_code for each in refused} == {503}
        assert "try again in a moment" in refused[0].json()["detail"]
        assert planning.get("/v1/jobs").status_code == 200
    finally:
        answered.set()
    assert sorted(each.result(60.0).status_code for each in asked) == [200] * 16 + [503] * 44


def test_a_run_that_is_only_watched_waits_for_nothing(planning: Api, world: World) -> None:
    """Not even at the moment in which it has begun."""
    trained(world, planning)
    world.submit("elsewhere", **SMALL, servers={"min": 0, "max": 0}, tracked=True)
    assert world.repository.jobs.get("elsewhere").running.is_empty
    assert planning.post("/v1/jobs/task/plan", json={"priority": 2.0}).status_code == 200
    assert planning.post("/v1/projects/default/plan", json={"share": 0.5}).status_code == 200


def test_a_reader_of_some_jobs_is_not_told_that_no_other_one_changes() -> None:
    assert on_others([]) == ["No job that runs would change its size."]
    assert on_others([], of_some=True) == ["No job that you may read would change its size."]
    assert on_others([], beside_one=True) == ["No other job that runs would change its size."]


def test_a_change_that_moves_nothing_is_told_the_same_start_as_things_are(planning: Api, world: World) -> None:
    """Though things are told by the newest look at the queue, and the change by one that is made for it."""
    world.looks_ahead = True
    whole = {"workers": {"min": 6, "max": 6}, "servers": {"min": 1, "max": 1}}
    world.submit("first", convergence={"max_steps": 2000}, **whole)
    for _ in range(4):
        world.round()
        world.train(20.0)
    world.submit("waits", convergence={"max_steps": 500}, **whole)
    world.round()
    world.train(1.5)
    found = planning.post("/v1/jobs/waits/plan", json={"priority": 1.1}).json()
    (told,) = (each for each in found["sentences"] if each.startswith("It would start in "))
    after, _, before = told.removeprefix("It would start in ").removesuffix(".").partition("; as things are, in ")
    assert after == before


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_change_of_a_limit_tells_when_it_ends_the_job_also_where_nothing_else_tells_its_end(
    planning: Api, world: World
) -> None:
    def told(job: str, **convergence: float) -> str:
        answer = planning.post(f"/v1/jobs/{job}/plan", json={"convergence": convergence})
        assert answer.status_code == 200, answer.text
        (said,) = (each for each in answer.json()["sentences"] if "would end" in each)
        assert isinstance(said, str)
        return said

    world.submit("silent", **SPEC, convergence={"command_ends": True}, workers={"max": 1})
    world.submit("waits", **SPEC, convergence={"max_seconds": 50}, workers={"min": 100, "max": 100})
    world.round()
    world.train(0.0)
    world.clock.now += 60.0
    unknown = "When it would end cannot be said."
    began = world.repository.jobs.get("silent").started_at
    assert began is not None
    left = time_words(began + 600.0 - world.clock())
    assert told("silent", max_seconds=600) == f"{unknown} It ends in {left} at the latest: its limit is 10 min 00 s."
    by_its_limit = "It ends 8 min 20 s after its start at the latest: that is its limit."
    assert told("waits", max_seconds=500) == f"{unknown} {by_its_limit}"
    assert planning.post("/v1/jobs/silent/pause").status_code == 200
    world.round()
    assert told("silent", max_seconds=30) == "It would end as soon as it goes on: the time of its limit is over."


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_change_of_a_budget_tells_how_long_it_pays(world: World, is_paused: bool) -> None:
    """With one unit of money for each second of a core, of a script that tells no step."""
    world.submit("silent", **SPEC, convergence={"command_ends": True}, workers={"max": 1})
    world.round()
    world.train(0.0)
    world.clock.now += 60.0
    if is_paused:
        world.repository.jobs.advance("silent", PauseRequested(), world.clock())
        world.round()
        world.train(0.0)
    preview = preview_of(world, world.settings.model_copy(update={"price_per_core_hour": 3600.0}))
    job = world.repository.jobs.get("silent")

    def told(budget: float) -> list[str]:
        edit = _edit(job, JobChange(convergence=ConvergenceChange(max_cost=budget)))
        changed = replace(job, spec=edit.spec)

        def with_change(snapshot: Snapshot) -> Snapshot:
            return replace(snapshot, jobs=tuple(as_edited(each, changed) for each in snapshot.jobs))

        found = preview.of_change(with_change)
        return job_body(changed, edit, found, {job.id: job}, world.clock()).sentences

    paid = "pays for 40 s with its smallest size" if is_paused else "pays for 40 s with 1 worker"
    ends = f"What is left of its budget of 100.00 {paid}: it ends then at the latest."
    assert f"When it would end cannot be said. {ends}" in told(100.0)
    if is_paused:
        assert "It would end as soon as it goes on: its budget is spent." in told(10.0)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_change_of_a_job_that_may_fail_again_tells_no_end_of_it(planning: Api, world: World) -> None:
    """Neither while it waits to be tried again nor before it has gone on: lists and explanations tell none."""
    world.looks_ahead = True
    world.submit("fails", convergence={"max_steps": 2000}, workers={"max": 4}, servers={"max": 1})
    for _ in range(3):
        world.round()
        world.train(20.0)
    limits = {"convergence": {"max_steps": 5000}, "deadline_seconds": 50_000}
    smaller = {"workers": {"max": 1}}

    def told(change: dict[str, Any]) -> tuple[str, list[Any]]:
        answer = planning.post("/v1/jobs/fails/plan", json=change)
        assert answer.status_code == 200, answer.text
        ends = [each[f"finish_seconds_{when}"] for each in answer.json()["effects"] for when in ("before", "after")]
        return " ".join(answer.json()["sentences"]), ends

    said, _ = told(limits)
    assert "It would end in " in said
    assert "By this it will" in said
    failed = ResultReported(Outcome.FAILED, world.repository.jobs.get("fails").step, 1.0, error="no more memory")
    world.repository.jobs.advance("fails", failed, world.clock())
    world.round()
    assert world.repository.jobs.get("fails").retry_at is not None
    for wait, change in ((0.0, limits), (31.0, limits), (0.0, smaller)):
        world.clock.now += wait
        world.round()
        assert planning.job("fails")["remaining_seconds"] is None
        said, ends = told(change)
        assert "When it would end cannot be said." in said, said
        assert "By this it" not in said
        assert set(ends) <= {None}
    assert ends, "it has tasks that have not gone on yet"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_change_of_a_job_that_is_being_cancelled_tells_no_start_and_no_end(planning: Api, world: World) -> None:
    world.submit("script", **SPEC, convergence={"max_steps": 4000}, workers={"max": 1})
    for _ in range(2):
        world.round()
        world.train(20.0)
    assert planning.post("/v1/jobs/script/cancel").status_code == 200
    assert world.repository.jobs.get("script").is_being_cancelled
    found = planning.post("/v1/jobs/script/plan", json={"convergence": {"max_steps": 5000}}).json()
    assert found["sentences"][:2] == [
        "It would have no task with the next round, as without the change.",
        "Cancelled: its tasks are being stopped.",
    ]
    assert not [each for each in found["sentences"] if "It would go on" in each or "It would end" in each]


@pytest.mark.parametrize(
    ("shown", "before", "after", "told"),
    [
        # Moments apart: what lists show, and as much later.
        ((60.0, 50.0, 80.0), (62.0, 51.0, 83.0), (72.0, 58.0, 95.0), ((60.0, 50.0, 80.0), (70.0, 57.0, 92.0))),
        ((608.0, 78.0, 885.0), (403.0, 158.0, 1101.0), (127.0, 73.0, 220.0), ("before", "after")),  # 333, -7, 4
        ((70.0, 20.0, 90.0), (90.0, 60.0, 100.0), (80.0, 30.0, 95.0), ("before", "after")),  # 60, -10, 85
        ((9.0, 4.0, 12.0), (10.0, 5.0, 13.0), (0.0, 0.0, 2.0), ((9.0, 4.0, 12.0), (0.0, 0.0, 1.0))),
        (None, (403.0, 158.0, 1101.0), (127.0, 73.0, 220.0), ("before", "after")),
    ],
)
def test_a_change_tells_no_start_or_end_that_neither_lists_nor_its_look_has(
    shown: Bounds | None, before: Bounds, after: Bounds, told: tuple[Bounds | str, Bounds | str]
) -> None:
    of_look: dict[Bounds | str, Bounds] = {"before": before, "after": after}
    present = None if shown is None else answers.Interval(mean=shown[0], low=shown[1], high=shown[2])
    found = with_and_without(present, Interval(*before), Interval(*after))
    assert [each and (each.mean, each.low, each.high) for each in found] == [of_look.get(each, each) for each in told]


def _intervals() -> st.SearchStrategy[Bounds]:
    bounds = st.lists(st.floats(1.0, 1e6), min_size=3, max_size=3).map(sorted)
    return bounds.map(lambda each: (each[1], each[0], each[2]))


@given(_intervals(), _intervals(), _intervals())
def test_what_a_change_tells_is_an_interval_and_the_same_where_it_moves_nothing(
    shown: Bounds, before: Bounds, after: Bounds
) -> None:
    present = answers.Interval(mean=shown[0], low=shown[1], high=shown[2])
    for each in with_and_without(present, Interval(*before), Interval(*after)):
        assert each is not None
        assert each.low is not None
        assert each.high is not None
        assert 0.0 < each.low <= each.mean <= each.high
    same = with_and_without(present, Interval(*before), Interval(*before))
    assert same[0] is not None
    assert same[1] is not None
    assert same[1].mean == pytest.approx(same[0].mean)
