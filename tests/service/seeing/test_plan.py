"""Plan before apply: what a job would get, by the same plan that the next round makes."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.api.api_harness import Api, job_spec, problem
from tests.service.api.test_views import job
from tests.service.loop.loop_world import World, loss_at
from tests.service.loop.test_task_exits import crash
from tests.service.seeing.previews import preview_of

from optimus_contract import answers
from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_scheduler.ahead.deadlines import Answer, DeadlineAnswer
from optimus_scheduler.ahead.queue import Hindrances
from optimus_scheduler.model import NOTHING, Allocation, Interval, JobState, Role
from optimus_scheduler.model.format import time_words
from optimus_scheduler.what_if import Advice
from optimus_service.api.jobs.plan import Shown, effect_bodies, plan_body
from optimus_service.insight.format import span
from optimus_service.insight.jobs.reasons import gives_more
from optimus_service.insight.predictions import dry_run
from optimus_service.insight.predictions.dry_run import (
    CANDIDATE,
    Effect,
    Foresight,
    Previewed,
    PutOff,
    earliest_promised,
)
from optimus_service.observe.standstills import HUNG, standstills, without_end
from optimus_service.requests import checked

SPEC: dict[str, Any] = {"workers": {"max": 4}, "servers": {"max": 4}, "convergence": {"loss_decrease": {"below": 0.05}}}


def document(**spec: Any) -> dict[str, Any]:
    return write(checked(JobSpec, {"name": "new", "task": "m:f", **SPEC, **spec}))


def body(world: World, previewed: Previewed) -> answers.Plan:
    return plan_body(previewed, {job.id: job for job in world.repository.jobs.active()}, world.clock())


def everything(world: World) -> Any:
    """All that a dry run must leave as it is."""
    repository = world.repository
    jobs = repository.jobs.active()
    return (
        jobs,
        repository.tasks.select(),
        repository.wanted.of_active_jobs(),
        repository.rounds.page().items,
        world.cluster.tasks(),
    )


def test_what_is_promised_is_what_the_next_round_gives(world: World) -> None:
    for job_id in ("one", "two"):
        world.submit(job_id)
        world.round()
        world.train(40)
    before = everything(world)
    promised = preview_of(world).of(document(), {})
    assert everything(world) == before
    world.submit("three")
    world.round()
    decided = world.repository.rounds.latest_decisions(["one", "two", "three"])
    assert decided["three"].allocation == promised.decision.allocation
    assert decided["three"].reason == promised.decision.reason.value
    changed = {effect.job_id: effect.after for effect in promised.effects}
    for job_id in changed:
        assert decided[job_id].allocation == changed[job_id]


def test_jobs_that_would_have_to_give_are_named(world: World) -> None:
    world.submit("greedy", workers={"max": 16}, servers={"max": 16})
    world.live_until("it has everything", lambda: world.repository.jobs.get("greedy").running.workers >= 4)
    previewed = preview_of(world).of(document(workers={"min": 4, "max": 4}, servers={"min": 2, "max": 2}), {})
    found = body(world, previewed)
    (effect,) = found.effects
    assert effect.job_id == "greedy"
    assert effect.after.workers + effect.after.servers < effect.before.workers + effect.before.servers
    assert effect.finish_seconds_before is not None
    assert effect.finish_seconds_after is not None
    assert effect.finish_seconds_after.mean > effect.finish_seconds_before.mean
    assert any("greedy" in sentence and "later" in sentence for sentence in found.sentences)
    waits = "Its tasks may have to wait until those of greedy (greedy) have stopped: that takes some seconds."
    assert waits in found.sentences
    assert found.expected.start_seconds is not None
    assert found.expected.start_seconds.mean > 0
    assert not any("borrow" in sentence for sentence in found.sentences)
    assert any(
        "would borrow room that other" in each for each in body(world, replace(previewed, borrows=True)).sentences
    )
    told = answers.Interval(mean=1000.0, low=900.0, high=1200.0)  # in lists and explanations
    (same,) = plan_body(previewed, {}, world.clock(), {"greedy": Shown(told, None)}).effects
    assert same.finish_seconds_before == told
    assert same.finish_seconds_after is not None
    later = effect.finish_seconds_after.mean - effect.finish_seconds_before.mean
    assert same.finish_seconds_after.mean == pytest.approx(told.mean + later)


def test_a_job_of_a_known_kind_is_told_its_end_and_its_price(world: World) -> None:
    world.submit("teacher")
    world.live_until("it has ended", lambda: world.state("teacher") is JobState.SUCCEEDED)
    world.round()  # learns from it
    took = (world.repository.jobs.get("teacher").finished_at or 0) - world.repository.jobs.get("teacher").created_at
    priced = world.settings.model_copy(update={"price_per_core_hour": 3600.0})
    found = body(world, preview_of(world, priced).of(document(workers={"max": 1}, servers={"max": 1}), {}))
    assert found.finished_runs == 1
    assert found.expected.finish_seconds is not None
    assert 0.3 * took < found.expected.finish_seconds.mean < 5 * took
    assert found.cost is not None
    # Two tasks with one core each, at one unit of money for each second of a core.
    assert found.cost.mean == pytest.approx(2 * found.expected.finish_seconds.mean, rel=0.2)
    cheap = world.settings.model_copy(update={"price_per_core_hour": 0.036})
    sentences = body(world, preview_of(world, cheap).of(document(workers={"max": 1}, servers={"max": 1}), {})).sentences
    [told] = [each for each in sentences if each.startswith("It would cost about ")]
    assert not re.search(r"\b0\.00\b", told), "a small amount is no nothing"
    assert any("1 finished job of the same task" in sentence for sentence in found.sentences)


@pytest.mark.parametrize("waits", [False, True])
def test_a_dry_run_says_that_the_budget_ends_the_job(world: World, waits: bool) -> None:
    world.submit("teacher", workers={"max": 1}, servers={"max": 1})
    world.live_until("it has ended", lambda: world.state("teacher") is JobState.SUCCEEDED)
    world.round()  # learns from it
    if waits:
        world.submit("greedy", workers={"min": 7, "max": 7}, servers={"max": 1}, priority=50)
        world.live_until("it has all", lambda: world.repository.jobs.get("greedy").running.workers == 7)
    took = (world.repository.jobs.get("teacher").finished_at or 0) - world.repository.jobs.get("teacher").created_at
    priced = world.settings.model_copy(update={"price_per_core_hour": 3600.0})

    def told(task: str, budget: float) -> answers.Plan:
        spec = document(task=task, workers={"max": 1}, servers={"max": 1})
        spec["convergence"] |= {"max_cost": budget}
        return body(world, preview_of(world, priced).of(spec, {}))

    # Two tasks with one core each, at one unit of money for each second of a core.
    seconds = 0.2 * took
    pays = f"Its budget of {2 * seconds:.2f} pays for {time_words(seconds)} with "
    pays += "its smallest size" if waits else "1 worker and 1 server"
    spent = told("m:f", 2 * seconds)
    assert f"{pays}, and ends it then." in spent.sentences
    assert spent.cost is not None
    assert spent.cost.mean == pytest.approx(2 * seconds, rel=0.05)
    assert f"{pays}: it would end then at the latest." in told("another:f", 2 * seconds).sentences
    ample = told("m:f", 100 * took)
    assert not any("budget" in each for each in ample.sentences), ample.sentences
    assert (ample.cost is None) == waits


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_end_that_only_a_limit_tells_is_told_as_that_and_not_by_ended_jobs(world: World) -> None:
    """One that a limit of steps ended tells the speed, and not how many steps a job without that makes."""
    script: dict[str, Any] = {"task": None, "command": ["python", "train.py"], "architecture": "script"}
    script |= {"servers": {"min": 0, "max": 0}, "workers": {"max": 1}}
    world.submit("teacher", **script, convergence={"max_steps": 200})
    world.live_until("it has ended", lambda: world.state("teacher") is JobState.SUCCEEDED)
    world.round()  # learns from it

    def told(**convergence: float) -> str:
        priced = world.settings.model_copy(update={"price_per_core_hour": 3600.0})
        found = body(world, preview_of(world, priced).of(document(**script, convergence=convergence), {}))
        return " ".join(found.sentences)

    unknown = ": whether something else ends it before is not known before it has run."
    for limit, what in (({"max_seconds": 20.0}, "time"), ({"max_cost": 20.0}, "money")):
        said = told(**limit)
        assert f"It would end in about 21 s (20 to 23 with 80 % probability) by its limit of {what}{unknown}" in said
        assert "finished job" not in said
        by_steps = told(**limit, max_steps=90_000)
        assert "by its limit of" not in by_steps, "that it makes no more steps is known"
        assert "It would end in about 21 s (20 to 23 with 80 % probability), from 1 finished job" in by_steps


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_of_a_kind_that_tells_no_epochs_is_told_its_end(world: World) -> None:
    world.steps_per_epoch = None
    rule = {"target_loss": loss_at(30.0)}
    world.submit("teacher", convergence=rule)
    world.live_until("it has ended", lambda: world.state("teacher") is JobState.SUCCEEDED)
    world.round()  # learns from it
    found = body(world, preview_of(world).of(document(workers={"max": 1}, servers={"max": 1}, convergence=rule), {}))
    assert found.speed_from == "similar jobs"
    assert found.expected.finish_seconds is not None
    assert any("1 finished job of the same task" in sentence for sentence in found.sentences)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_that_is_submitted_paused_is_told_what_it_gets_when_it_is_submitted(planning: Api, world: World) -> None:
    """Nothing, and nobody gives it room; its start is its owner's matter."""
    world.submit("greedy", workers={"max": 16}, servers={"max": 16})
    world.live_until("it has everything", lambda: world.repository.jobs.get("greedy").running.workers >= 4)
    paused = job_spec(paused=True, workers={"min": 4, "max": 4}, deadline_seconds=3600, convergence={"max_seconds": 60})
    found = planning.post("/v1/plan", json=paused).json()
    assert found["allocation"]["workers"] == 0
    assert (found["expected"]["start_seconds"], found["expected"]["finish_seconds"], found["cost"]) == (None,) * 3
    assert found["effects"] == []
    assert found["what_would_change_it"] == "Resume it: `optimus resume JOB`."
    due = f"{found['deadline']['at'][:19].replace('T', ' ')} UTC"
    assert found["sentences"] == [
        "Paused by its owner: it gets nothing until it is resumed.",
        "When it would end cannot be said before it starts. It would end 1 min 00 s after its start at the latest: "
        "that is its limit.",
        f"Its deadline at {due} runs on: whether it can be promised is answered when it is resumed.",
        "No job that runs would change its size.",
    ]
    submitted = planning.post("/v1/jobs", json=paused)
    assert submitted.status_code == 201, submitted.text
    world.round()
    decided = world.repository.rounds.latest_decisions([submitted.json()["id"]])
    assert [(each.message, each.reason) for each in decided.values()] == [(found["sentences"][0], found["reason"])]


def test_of_an_unknown_kind_no_end_is_made_up(world: World) -> None:
    found = body(world, preview_of(world).of(document(), {}))
    assert (found.expected.finish_seconds, found.cost, found.speed_from, found.effects) == (None, None, None, [])
    why = (
        "its rule goes by its loss, of which nothing is known yet, and no finished job like it tells how long it takes"
    )
    assert f"When it would end cannot be said: {why}, and its speed is not known." in found.sentences


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("rule", [{"loss_decrease": {"below": 0.01}}, {"target_loss": 0.1}, {}])
def test_a_dry_run_of_a_script_says_that_its_rule_needs_epochs(world: World, rule: dict[str, Any]) -> None:
    script = {
        "task": None,
        "command": ["python", "train.py"],
        "architecture": "script",
        "servers": {"min": 0, "max": 0},
    }
    asked = document(**script, convergence={**rule, "command_ends": True})
    found = body(world, preview_of(world).of(asked, {})).sentences
    assert any("counts epochs" in each for each in found) == ("loss_decrease" in rule)
    assert any("no finished job like it tells how many steps" in each for each in found) == (not rule)
    assert any("goes by its loss" in each for each in found) == bool(rule)


def test_a_job_that_starts_with_all_that_it_may_have_is_not_told_of_the_next_round(world: World) -> None:
    """That would start it: it is what the dry run tells of. Once it has its tasks, the same is told."""
    alone: dict[str, Any] = {"workers": {"max": 1}, "servers": {"max": 1}}
    found = body(world, preview_of(world).of(document(**alone), {}))
    assert found.allocation.workers == 1
    assert "next round" not in found.what_would_change_it
    world.submit("new", **alone)
    world.round()
    advice = preview_of(world).what_gives_more("new", dict)
    assert advice is not None
    assert found.what_would_change_it == gives_more(advice.changes, waits=False)


def test_a_larger_limit_that_a_script_with_a_launcher_grows_with_is_advised(world: World) -> None:
    """Before its speed is measured as well as after that, and it comes true."""
    script = {"task": None, "command": ["torchrun", "t.py"], "working_directory": "/w", "architecture": "script"}
    limits = {"workers": {"max": 1}, "servers": {"min": 0, "max": 0}, "convergence": {"max_steps": 5000}}
    world.submit("new", **script, **limits, resumes=True)
    told = []
    for _ in range(10):
        world.round()
        world.train(5.0)
        advice = preview_of(world).what_gives_more("new", dict)
        assert advice is not None
        told.append(advice.changes[:1])
    limit = "`workers.max` of 2 (now 1)"
    assert set(told) - {()} == {
        (limit,),
        (f"{limit}, once its speed at this size is measured, if that is as predicted",),
    }
    assert told[-1] == (limit,)
    spec = world.repository.jobs.get("new").spec
    more = {**spec, "workers": {**spec["workers"], "max": 2}}
    assert world.repository.jobs.set_spec("new", spec, more, {}, world.clock())
    world.round()
    assert world.repository.jobs.get("new").wanted.workers == 2


# --- over HTTP -------------------------------------------------------------------------------------------------------


def test_who_waits_and_would_start_clearly_later_is_named(world: World) -> None:
    wide = {"workers": {"min": 6, "max": 6}, "servers": {"max": 1}, "convergence": {"max_steps": 400}}
    world.submit("teacher", **wide)
    world.live_until("it has ended", lambda: world.state("teacher").is_final)
    world.submit("runs", **wide, priority=200.0)
    world.live_until("its end is near", lambda: world.repository.jobs.get("runs").step > 350)
    world.submit("waits", **wide)
    world.round()

    def told(priority: float) -> list[str]:
        found = body(world, preview_of(world).of(document(**wide, priority=priority), {}))
        return [each for each in found.sentences if "which waits" in each]

    assert told(0.01) == [], "it goes after that one"
    (sentence,) = told(100.0)
    assert re.fullmatch(r"waits \(waits\), which waits, would start in about .* instead of about .*\.", sentence)
    previewed = preview_of(world).of(document(**wide), {})
    active = {"waits": world.repository.jobs.get("waits")}
    shown = {"waits": Shown(None, answers.Interval(mean=80.0, low=46.0, high=212.0))}  # in lists and explanations
    later = PutOff("waits", Interval(38.0, 30.0, 64.0), Interval(98.0, 70.0, 120.0))
    said = plan_body(replace(previewed, put_off=(later,)), active, world.clock(), shown).sentences
    at = "about 2.3 min (1.4 to 4.5 with 80 % probability) instead of about 80 s (46 to 212 with 80 % probability)"
    assert f"waits (waits), which waits, would start in {at}." in said
    unknown = PutOff("waits", Interval(10.0, 8.0, 12.0), None)
    previewed = replace(previewed, put_off=(unknown,))
    lost = "When waits (waits), which waits, would start could not be said any more; as things are, in about 10 s"
    assert any(each.startswith(lost) for each in body(world, previewed).sentences)


def test_what_lists_show_of_the_start_of_a_job_a_dry_run_says_it_is_put_off_from(
    planning: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dry run looks at the queue anew. That look is by some seconds another one than that of lists."""
    wide: dict[str, Any] = {"workers": {"min": 6, "max": 6}, "servers": {"max": 1}, "convergence": {"max_steps": 400}}
    world.looks_ahead = True
    world.submit("teacher", **wide)
    world.live_until("it has ended", lambda: world.state("teacher").is_final)
    world.submit("runs", **wide, priority=200.0)
    world.live_until("its end is near", lambda: world.repository.jobs.get("runs").step > 350)
    world.submit("waits", **wide)
    world.round()
    world.train(5.0)
    later = PutOff("waits", Interval(500.0, 400.0, 600.0), Interval(900.0, 800.0, 1000.0))
    looked = preview_of(world).of(document(), {})
    preview = planning.services.preview
    monkeypatch.setattr(preview, "of", lambda *_args, **_named: replace(looked, put_off=(later,)))
    start = planning.job("waits")["expected"]["start_seconds"]
    said = planning.post("/v1/plan", json=job_spec()).json()["sentences"]
    (sentence,) = [each for each in said if "which waits" in each]
    assert sentence.endswith(f" instead of {span(answers.Interval(**start))}.")


def test_the_api_answers_and_stores_nothing(planning: Api) -> None:
    found = planning.post("/v1/plan", json=job_spec()).json()
    assert found["allocation"]["workers"] == 1
    assert found["expected"]["start_seconds"]["mean"] == 0
    assert found["what_would_change_it"]
    assert planning.get("/v1/jobs").json()["jobs"] == []
    assert CANDIDATE not in planning.get("/metrics").text


def test_a_job_that_would_have_to_wait_is_told_for_how_long(planning: Api, world: World) -> None:
    world.submit("first", workers={"min": 6, "max": 6}, servers={"max": 1})
    world.live_until("its end is predicted", lambda: planning.job("first")["remaining_seconds"] is not None)
    found = planning.post("/v1/plan", json=job_spec(workers={"min": 6, "max": 6})).json()
    assert found["reason"] == "WaitingForResources"
    assert found["expected"]["start_seconds"]["mean"] == pytest.approx(
        planning.job("first")["remaining_seconds"]["mean"], rel=0.5
    )


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_start_that_is_told_is_that_of_the_first_tasks_also_where_there_is_room(world: World) -> None:
    one = {"workers": {"max": 1}, "servers": {"max": 1}}
    assert preview_of(world).of(document(**one), {}).waiting == Interval(0.0, 0.0, 0.0), "none has started yet"
    for name in ("first", "second"):
        world.submit(name, **one)
        world.round()
        world.clock.now += 7.0
        world.train(5)
        world.round()
    waiting = preview_of(world).of(document(**one), {}).waiting
    assert waiting is not None
    assert waiting.mean == pytest.approx(7.0, rel=0.01)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_dry_run_waits_for_no_job_that_the_queue_waits_for_no_end_of(world: World) -> None:
    """It says the start that the job is told when it is submitted, not one with an end that may never come."""
    rest = {"min": 2, "max": 2}
    for name, steps in (("hangs", 120), ("ends", 400)):
        world.submit(name, workers=rest, servers=rest, convergence={"max_steps": steps})
    for _ in range(4):
        world.round()
        world.train(5)
    dry = {
        stalled: preview_of(world, stalled=stalled).of(document(workers=rest, servers=rest), {}).waiting
        for stalled in ((), ("hangs",))
    }
    world.ahead._hindrances = lambda: Hindrances({"hangs": None})
    world.looks_ahead = True
    world.submit("new", workers=rest, servers=rest)
    world.round()
    times = world.repository.rounds.latest_decisions(["new"])["new"].expected
    assert times is not None
    assert times.start is not None
    soon, as_told = dry[()], dry[("hangs",)]
    assert soon is not None
    assert as_told is not None
    assert as_told.mean == pytest.approx(times.start.mean - world.clock(), rel=0.1)
    assert soon.mean < 0.5 * as_told.mean


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_would_be_done_to_a_job_whose_end_cannot_be_said_tells_none(planning: Api, world: World) -> None:
    """Of a job that had hung three times at a step, and was told no end anywhere else, a dry run told 34 s."""
    wide: dict[str, Any] = {"workers": {"min": 6, "max": 6}, "servers": {"max": 1}, "convergence": {"max_steps": 4000}}
    world.submit("job-1", **wide)
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 60)
    world.round()
    assert planning.call("PUT", "/v1/projects/guaranteed", json={"share": 0.9}).status_code == 201
    calls = (
        ("/v1/plan", job_spec(name="new", project="guaranteed", **wide)),
        ("/v1/jobs/job-1/plan", {"workers": {"min": 2, "max": 2}}),
        ("/v1/projects/default/plan", {"share": 0.05, "may_borrow": False}),
    )

    def told() -> list[Any]:
        found = []
        for path, asked in calls:
            answer = planning.post(path, json=asked)
            assert answer.status_code == 200, answer.text
            (effect,) = answer.json()["effects"]
            assert effect["after"]["workers"] < 6
            found += [effect["finish_seconds_before"], effect["finish_seconds_after"]]
        return [*found, planning.get("/v1/jobs/job-1").json()["remaining_seconds"]]

    assert None not in told()[::2], "before the change"
    crash(world, Role.WORKER, code=HUNG)
    assert told() == [None] * 7


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_look_ahead_of_a_dry_run_ends_a_job_of_which_nothing_tells_that_it_goes_on(world: World) -> None:
    world.submit(convergence={"max_steps": 4000})
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 60)
    world.round()
    begins = world.clock() + 1.0
    unheard = standstills(world.repository, world.repository.jobs.active(), {}, begins + 3.0, begins)
    assert unheard["job-1"].is_unheard
    assert without_end(unheard) == {}, "what is told for minutes counts it as going on"
    for stalled in ((), ("job-1",), without_end(unheard, with_unheard=True)):
        found = preview_of(world, stalled=stalled).of_change(lambda as_it_is: as_it_is)
        assert ("job-1" in found.left) == (not stalled)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_change_of_a_job_that_was_not_heard_of_yet_tells_no_end_of_it(planning: Api, world: World) -> None:
    """In the first seconds after a restart all other views say that it cannot be said yet."""
    world.submit(convergence={"max_steps": 4000})
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 60)
    world.round()
    later = world.clock() + 3000.0
    due = (datetime.fromtimestamp(later, UTC)).isoformat()
    for begins, tells in ((0.0, True), (world.clock() + 1.0, False)):
        object.__setattr__(planning.services, "listens_since", begins)
        world.clock.now = max(world.clock(), begins)
        asked = {"convergence": {"max_steps": 5000}, "deadline": due}
        said = " ".join(planning.post("/v1/jobs/job-1/plan", json=asked).json()["sentences"])
        assert ("It would end in " in said, "By this it " in said) == (tells, tells), said
        assert ("When it would end cannot be said." in said) != tells


@pytest.mark.parametrize("is_without_end", [False, True])
def test_a_change_tells_an_end_only_of_jobs_of_which_one_is_shown(is_without_end: bool) -> None:
    left = Interval(34.0, 30.0, 40.0)
    effect = Effect("job-1", Allocation(2, 2), NOTHING, left, left)
    (told,) = effect_bodies([effect], {}, {"job-1": Shown(None, None, is_without_end=is_without_end)})
    assert [each is None for each in (told.finish_seconds_before, told.finish_seconds_after)] == [is_without_end] * 2


@pytest.mark.parametrize(
    ("changed", "loses"),
    [({}, True), ({"resumes": False}, False), ({"command": None, "resumes": None, "task": "m:f"}, False)],
)
def test_a_script_with_checkpoints_of_its_own_may_lose_what_it_made_since(changed: dict[str, Any], loses: bool) -> None:
    """One of which "would lose —" was told lost 160 steps."""
    asked = {"name": "a", "command": ["python", "a.py"], "resumes": True} | changed
    spec = write(checked(JobSpec, {name: value for name, value in asked.items() if value is not None}))
    script = job(spec=spec, step=60, running=Allocation(1, 0))
    effect = Effect(script.id, Allocation(1, 0), Allocation(2, 0), None, None)
    (told,) = effect_bodies([effect], {script.id: script}, {})
    assert told.loses_since_checkpoint == loses


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ((1192.0, 600.0, 2700.0), (52.0, 28.0, 149.0)),
        ((1202.0, 610.0, 2690.0), (62.0, 38.0, 139.0)),
        ((300.0, 60.0, 900.0), (52.0, 28.0, 149.0)),
    ],
)
def test_a_wait_that_a_change_ends_takes_its_doubt_with_it(
    shown: tuple[float, float, float], told: tuple[float, float, float]
) -> None:
    """A job that would start at once was told to end in "about 52 s (0 s to 24.9 min)", though it takes 27 s at least:
    it was as wide as before the change, when it waited."""
    effect = Effect("job-1", NOTHING, Allocation(1, 1), Interval(1192.0, 600.0, 2700.0), Interval(52.0, 28.0, 149.0))
    left = answers.Interval(mean=shown[0], low=shown[1], high=shown[2])
    (found,) = effect_bodies([effect], {}, {"job-1": Shown(left, None)})
    assert found.finish_seconds_after == answers.Interval(mean=told[0], low=told[1], high=told[2])


def test_a_job_that_is_given_the_places_of_others_is_told_whose(planning: Api, world: World) -> None:
    world.submit("greedy", workers={"max": 16}, servers={"max": 16})
    world.live_until("it has everything", lambda: world.repository.jobs.get("greedy").running.workers >= 4)
    world.submit("needy", workers={"min": 4, "max": 4}, servers={"min": 2, "max": 2})
    world.round()
    told = "Its tasks may have to wait until those of greedy (greedy) have stopped: that takes some seconds."
    assert told in planning.get("/v1/jobs/needy/explanation").json()["sentences"]
    world.live_until("it has started", lambda: world.repository.jobs.get("needy").state is JobState.RUNNING)
    assert told not in planning.get("/v1/jobs/needy/explanation").json()["sentences"]


def test_a_quota_that_others_shrink_is_told_with_what_it_comes_to(planning: Api) -> None:
    cores = planning.get("/v1/cluster").json()["capacity"]["cpu"]
    assert planning.call("PUT", "/v1/projects/vis", json={"cpu": 2.0, "may_borrow": False}).status_code == 201
    assert planning.call("PUT", "/v1/projects/alpha", json={"cpu": 2.0 * cores}).status_code == 201
    found = planning.post("/v1/plan", json=job_spec(project="vis", servers={"min": 1, "max": 1})).json()
    assert found["reason"] == "WaitingForQuota"
    assert "its quota of 2 cores comes to 0." in found["message"]
    never = "It would not start before a quota, a limit, its specification or the cluster is changed."
    assert never in found["sentences"]
    assert "alpha" not in found["message"], "it is stored, and members of the project read it"
    assert f"The quotas of all projects are: alpha {2 * cores:g} cores; vis 2 cores." in found["sentences"]


def test_what_would_be_refused_is_refused(planning: Api) -> None:
    problem(planning.post("/v1/plan", json=job_spec(workers={"min": 99, "max": 99})), 422)


def test_an_elastic_batch_is_promised_with_the_size(planning: Api) -> None:
    elastic = {"minimum": 32, "maximum": 512, "per_pass": 64}
    answer = planning.post("/v1/plan", json=job_spec(architecture="allreduce", elastic_batch=elastic))
    assert answer.status_code == 200, answer.text
    assert "batches of 32 examples" in answer.json()["message"]


def test_without_a_scheduler_nobody_can_tell(api: Api) -> None:
    assert "scheduler" in problem(api.post("/v1/plan", json=job_spec()), 503)["detail"]


@pytest.fixture
def taught(world: World) -> World:
    """A job of the kind has ended, another one trains."""
    world.submit("teacher")
    world.live_until("it has ended", lambda: world.state("teacher").is_final, rounds=40)
    world.submit("other", convergence={"max_epochs": 50})
    world.round()
    world.train(40)
    return world


def answer(world: World, **due: Any) -> tuple[answers.DeadlineAnswer, str]:
    found = body(world, preview_of(world).of(document(convergence={"max_epochs": 20}, **due), {}))
    assert found.deadline is not None
    return found.deadline, " ".join(found.sentences)


def test_a_dry_run_answers_the_deadline_with_one_that_it_would_promise(taught: World) -> None:
    hopeless, words = answer(taught, deadline_seconds=1.0)
    assert hopeless.answer == "declined"
    assert hopeless.earliest is not None
    assert "By this it will probably miss its deadline." in words
    offered = f"A deadline at {hopeless.earliest:%Y-%m-%d %H:%M:%S} UTC could be promised"
    assert f"{offered}, if it is submitted within 30 s." in words
    for later in (0.0, 25.0):
        taught.clock.now += later
        kept, words = answer(taught, deadline=hopeless.earliest.isoformat())
        assert kept.answer == "promised"
    assert "Its deadline can be promised" in words


def test_a_dry_run_says_one_thing_of_a_deadline(taught: World) -> None:
    end = Interval(50.0, 30.0, 80.0)
    previewed = replace(preview_of(taught).of(document(deadline_seconds=60.0), {}), left=end)
    assert any("may meet or miss" in each for each in body(taught, previewed).sentences)
    hardly = "Its deadline can hardly be met: by runs like it, it takes 9 min or more."
    declined = replace(previewed, decision=previewed.decision._replace(message=hardly))
    assert not any("By this it" in each for each in body(taught, declined).sentences)


def test_a_dry_run_promises_nothing_of_an_unknown_kind(world: World) -> None:
    found, words = answer(world, deadline_seconds=3600.0)
    assert (found.answer, found.earliest) == ("open", None)
    assert "No deadline can be promised before it has run: too little is known of its end." in words
    hardly = "Its deadline can hardly be met: by runs like it, it takes 9 min or more."
    previewed = preview_of(world).of(document(deadline_seconds=3600.0), {})
    missed = replace(previewed, decision=previewed.decision._replace(message=hardly))
    assert "No deadline can be promised before it has run." in body(world, missed).sentences
    assert body(world, preview_of(world).of(document(), {})).deadline is None


def test_planning_what_gives_more_ends_after_so_many_plans(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was tried till then is told; where nothing of it helps, that not all was tried."""
    world.submit("greedy", workers={"min": 64, "max": 64})
    world.submit("other", workers={"min": 1, "max": 4}, servers={"min": 1, "max": 4})
    world.round()
    preview, everything_tried = preview_of(world), preview_of(world).what_gives_more("greedy", dict)
    assert everything_tried is not None
    assert everything_tried.changes
    planned: list[int] = []
    foresee = preview._foresee

    def counted() -> Foresight:
        foresight = foresee()
        plan = foresight.plan

        def counting(*arguments: Any) -> Any:
            planned.append(1)
            return plan(*arguments)

        foresight.plan = counting
        return foresight

    preview._foresee = counted

    def kinds(advice: Advice) -> set[str]:
        return {re.sub("[0-9]+", "", words) for words in advice.changes}

    told = set[Advice | None]()
    for most in range(1, 30):
        planned.clear()
        monkeypatch.setattr(dry_run, "_MOST_PLANNED", 2 * most)
        found = preview.what_gives_more("greedy", dict)
        assert len(planned) <= most
        # One that helps is told though no plan is left to find the smallest that does.
        assert found is None or kinds(found) <= kinds(everything_tried)
        told.add(found)
    assert told >= {None, everything_tried}


@given(refused=st.floats(0.0, 1e4), wait=st.floats(1.0, 1e4), first=st.floats(1.0, 2e4))
def test_the_earliest_deadline_is_one_that_was_tried_and_near_the_first_that_is_promised(
    refused: float, wait: float, first: float
) -> None:
    """Deadlines from `refused + wait` on are promised; the plan of each other names one that is."""
    least, promised = refused + wait, set[float]()

    def answer(due: float) -> DeadlineAnswer:
        if due < least:
            return DeadlineAnswer(Answer.OPEN, least + 1.0)
        promised.add(due)
        return DeadlineAnswer(Answer.PROMISED, due)

    found = earliest_promised(answer, refused, refused + first)
    assert found is not None
    assert found in promised
    assert found == min(promised)
    assert found - least <= max(first, wait + 1.0) / 2**3 + 1e-6
    assert earliest_promised(lambda _: DeadlineAnswer(Answer.OPEN), refused, refused + first) is None
