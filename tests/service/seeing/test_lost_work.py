"""What a stop costs a script that keeps no checkpoints: steps where they are known, else its time."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.service.api.test_views import job
from tests.service.loop.loop_world import World
from tests.service.seeing.previews import preview_of
from tests.service.seeing.test_plan import body, document
from tests.service.store.store_builders import a_decision, a_forecast, a_membership, a_sample, add_samples

from optimus_scheduler.model import NOTHING, Allocation, Interval, JobState, Mode, Quota
from optimus_service.api.jobs.jobs import shown
from optimus_service.api.services import Services
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.insight.jobs.lost_work import Loss, losses, lost_by_a_stop, total
from optimus_service.insight.jobs.progress import progress_of
from optimus_service.insight.predictions.predictions import HistoryCache
from optimus_service.observe.snapshot import unsaved_seconds
from optimus_service.observe.spec import next_step
from optimus_service.observe.telemetry import JobHistory
from optimus_service.observe.unsaved_work import LastStep
from optimus_service.store.records import JobRecord, MembershipRecord

SCRIPT: dict[str, Any] = {"task": None, "command": ["python", "train.py"], "architecture": "script"}
BEGAN = a_membership(at=0.0, workers=("w",))
PAUSED = a_membership(epoch=2, at=180.0, cause="pause", step=15, workers=(), servers=())
RESUMED = a_membership(epoch=3, at=300.0, cause="resume", workers=("v",), lost_steps=15)


def a_script(**changes: Any) -> JobRecord:
    spec = {"name": "job-1", **SCRIPT}
    stopped: dict[str, Any] = {"wanted": NOTHING, "running": NOTHING, "created_at": 0.0, "step": 15, "rescales": 0}
    return job(**{"id": "job-1", "spec": spec, "profile": None, **stopped, **changes})


def test_all_losses_together_have_a_time_only_where_each_has() -> None:
    assert total([Loss(6, 8.0), Loss(12), Loss(12)]) == Loss(30, None)
    assert total([Loss(6, 8.0), Loss(), Loss(0, 5.0)]) == Loss(6, 13.0)


def test_what_a_script_that_tells_some_steps_lost_is_told_as_about_and_its_stops_as_at_most() -> None:
    parts = {"stop_seconds": 0.5, "start_seconds": 1.0, "told_every": 5}
    after = a_membership(epoch=2, at=20.0, step=40, lost_steps=7, pause_seconds=1.5, pause_parts=parts)
    memberships = [BEGAN, after]
    ended = a_script(state=JobState.SUCCEEDED, step=100, finished_at=60.0)
    told = explanation_of(Case(job=ended, decision=None, now=60.0, memberships=memberships)).sentences
    assert any("stopped training for at most 1.5 s (stopping 0.5 s, starting 1.0 s)" in each for each in told)
    assert "its training stood still for at most 2 s in all" in told[-1]
    assert "Lost with its stops: about 7 steps" in told[-1]
    assert "the last step that it told was 100" in told[-1]
    killed = replace(after, cause="worker_lost", pause_parts={"start_seconds": 1.0, "told_every": 5})
    told = explanation_of(Case(job=ended, decision=None, now=60.0, memberships=[BEGAN, killed])).sentences
    assert "Lost with its stops: at least 7 steps" in told[-1], "those until it was killed are not counted"
    both = [BEGAN, killed, replace(after, epoch=3, at=40.0)]
    told = explanation_of(Case(job=ended, decision=None, now=60.0, memberships=both)).sentences
    assert "Lost with its stops: about 14 steps" in told[-1]
    exact = replace(after, pause_parts={**parts, "told_every": None})
    told = explanation_of(Case(job=ended, decision=None, now=60.0, memberships=[BEGAN, exact])).sentences
    assert not any("at most" in each or "about" in each for each in told)


@pytest.mark.parametrize(
    ("memberships", "changes", "lost"),
    [
        pytest.param([BEGAN, PAUSED], {}, [Loss(), Loss(15, 180.0)], id="paused"),
        pytest.param([BEGAN, PAUSED], {"step": 0}, [Loss(), Loss(0, 180.0)], id="paused silent"),
        pytest.param([BEGAN, PAUSED, RESUMED], {}, [Loss(), Loss(15, 180.0), Loss(0)], id="resumed"),
        pytest.param([BEGAN, PAUSED], {"profile": {"resumes": True}}, [Loss(), Loss()], id="with a checkpoint"),
        pytest.param(
            [BEGAN, a_membership(epoch=2, at=90.0, cause="worker_lost", workers=("v",), pause_seconds=20.0)],
            {"step": 0},
            [Loss(), Loss(0, 70.0)],
            id="its worker was lost",
        ),
        pytest.param(
            [BEGAN, a_membership(epoch=2, at=9.0, cause="start", workers=("w", "v"), lost_steps=2, pause_seconds=1.0)],
            {},
            [Loss(), Loss(2, 8.0)],
            id="begun anew with its second worker",
        ),
        pytest.param(
            [BEGAN, a_membership(epoch=2, at=90.0, cause="worker_lost", workers=("v",), step=8)],
            {},
            [Loss(), Loss()],
            id="it went on where it was",
        ),
        pytest.param(
            [BEGAN, a_membership(epoch=2, at=90.0, cause="resume", workers=("v",), lost_steps=4)],
            {},
            [Loss(), Loss(4)],
            id="after an error at an unknown time",
        ),
    ],
)
def test_each_stop_tells_what_it_lost(
    memberships: list[MembershipRecord], changes: dict[str, Any], lost: list[Loss]
) -> None:
    assert losses(a_script(**changes), memberships, {}) == lost
    assert total(lost).steps == sum(each.steps for each in lost)


@pytest.mark.parametrize(
    ("memberships", "changes", "last_steps", "lost"),
    [
        pytest.param([BEGAN, PAUSED], {}, {1: LastStep(20.0)}, [Loss(), Loss(15, 20.0)], id="paused"),
        pytest.param(
            [BEGAN, PAUSED, RESUMED], {}, {1: LastStep(20.0)}, [Loss(), Loss(15, 20.0), Loss()], id="resumed since"
        ),
        pytest.param(
            [BEGAN, PAUSED, RESUMED],
            {"step": 40},
            {1: LastStep(20.0), 3: LastStep(310.0)},
            [Loss(), Loss(15, 20.0), Loss()],
            id="it trains",
        ),
        pytest.param(
            [
                BEGAN,
                a_membership(epoch=2, at=68.0, cause="worker_lost", workers=("v",), lost_steps=9, pause_seconds=66.0),
                a_membership(epoch=3, at=130.0, cause="pause", workers=(), servers=(), lost_steps=0),
                a_membership(epoch=4, at=200.0, cause="resume", workers=("u",), lost_steps=9),
                a_membership(epoch=5, at=270.0, cause="pause", workers=(), servers=(), lost_steps=0),
            ],
            {"step": 0},
            {1: LastStep(2.5), 2: LastStep(70.0)},
            [Loss(), Loss(9, 2.0), Loss(9, 2.0), Loss(), Loss()],
            id="it hung each time, at last before its first step",
        ),
        pytest.param(
            [BEGAN, a_membership(epoch=2, at=90.0, cause="resume", workers=("v",), lost_steps=4)],
            {},
            {1: LastStep(8.0)},
            [Loss(), Loss(4, 8.0)],
            id="after an error",
        ),
    ],
)
def test_time_in_which_a_script_hung_is_no_work(
    memberships: list[MembershipRecord], changes: dict[str, Any], last_steps: dict[int, LastStep], lost: list[Loss]
) -> None:
    assert losses(a_script(**changes), memberships, {}, last_steps) == lost


def test_a_silent_scripts_work_counts_from_the_start_of_its_worker() -> None:
    """Its membership is formed when it has made no step for a minute, or is paused before."""
    late = replace(BEGAN, at=60.0)
    assert losses(a_script(step=0), [late, PAUSED], {"w": 2.0, "v": 170.0})[1] == Loss(0, 178.0)
    again = [late, replace(PAUSED, cause="worker_lost", workers=("w", "v")), replace(PAUSED, epoch=3, at=200.0)]
    assert losses(a_script(step=0), again, {"w": 2.0, "v": 170.0})[2] == Loss(0, 30.0), (
        "all began anew with the new one"
    )
    told = replace(BEGAN, at=15.0)
    assert losses(a_script(), [told, PAUSED], {"w": 2.0})[1] == Loss(15, 165.0), "its first step says when it began"


@pytest.mark.parametrize(
    ("step", "words"), [(15, "15 steps (3 min 00 s of work)"), (0, "3 min 00 s of work")], ids=["known", "silent"]
)
def test_the_owner_of_a_paused_script_is_told_what_is_lost(step: int, words: str) -> None:
    told = f"It is not known to have a checkpoint: without one it begins anew, and {words} are lost."
    case = Case(job=a_script(step=step), decision=None, now=200.0, memberships=[BEGAN, PAUSED])
    assert told in explanation_of(case).sentences
    ended = a_script(step=60, state=JobState.SUCCEEDED, finished_at=400.0)
    rerun = Case(job=ended, decision=None, now=500.0, memberships=[BEGAN, PAUSED, RESUMED])
    assert "Lost with its stops: 15 steps (3 min 00 s of work)." in explanation_of(rerun).sentences[-1]


@pytest.mark.parametrize(
    ("wanted", "running", "left"),
    [(NOTHING, NOTHING, 20.0), (Allocation(1, 0), NOTHING, 20.0), (Allocation(1, 0), Allocation(1, 0), 5.0)],
    ids=["paused", "starting again", "running"],
)
def test_what_is_left_of_a_stopped_script_counts_from_where_it_begins(
    wanted: Allocation, running: Allocation, left: float
) -> None:
    twenty = Interval(20.0, 20.0, 20.0)
    forecast = a_forecast()._replace(total_steps=twenty, remaining_steps=Interval(5.0, 5.0, 5.0), rule="command_ends")
    record = a_script(wanted=wanted, running=running)
    found = progress_of(record, a_decision("job-1", at=170.0, forecast=forecast), 200.0)
    assert found.remaining_steps is not None
    assert found.remaining_steps.mean == left
    assert found.progress == pytest.approx(1 - left / 20)


@pytest.mark.parametrize("began", [0, 1])
def test_a_dry_run_says_what_scripts_would_lose(world: World, began: int) -> None:
    old = {**SCRIPT, "convergence": {"max_steps": 500}, "servers": {"min": 0, "max": 0}, "workers": {"max": 1}}
    world.submit("old", **old, working_directory="/srv")
    world.live_until("it trains", lambda: world.repository.jobs.get("old").step > 0)
    profile = world.repository.jobs.get("old").profile or {}
    world.repository.jobs.put_profile("old", {**profile, "began_at_step": began})
    world.train(10)
    world.round()
    world.repository.projects.put(Quota("a", share=1.0), world.clock())
    has_all = document(project="a", workers={"min": 8, "max": 8}, servers={"min": 0, "max": 0}, **{
        **SCRIPT, "command": ["torchrun", "train.py"], "working_directory": "/srv", "resumes": True,
        "convergence": {"max_seconds": 20},
    })  # fmt: skip
    found = body(world, preview_of(world).of(has_all, {}))
    assert found.effects, found.sentences
    (effect,) = found.effects
    assert effect.lost_steps == world.repository.jobs.get("old").step - began
    assert effect.lost_seconds is not None
    assert effect.lost_seconds >= 10.0
    before, after = effect.finish_seconds_before, effect.finish_seconds_after
    assert before is not None
    assert after is not None
    assert after.mean >= before.mean + effect.lost_seconds, "what it makes again comes on top of its wait"
    assert any("and lose" in each and "not known to go on from a checkpoint" in each for each in found.sentences)


@pytest.mark.parametrize(
    ("memberships", "changes", "lost"),
    [
        pytest.param([BEGAN], {}, Loss(15, 30.0), id="of its steps"),
        pytest.param(
            [BEGAN, a_membership(epoch=2, at=20.0, step=9, cause="coordinator_restart", workers=("w",))],
            {},
            Loss(15, 30.0),
            id="its coordinator began anew",
        ),
        pytest.param(
            [replace(BEGAN, at=-90.0), replace(PAUSED, at=-40.0), replace(RESUMED, at=10.0)],
            {},
            Loss(15, 20.0),
            id="after a pause that lost all before it",
        ),
        pytest.param(
            [BEGAN, replace(PAUSED, at=10.0), replace(RESUMED, at=18.0, step=9, lost_steps=0)],
            {},
            Loss(15, 22.0),
            id="after a pause from which it went on where it was",
        ),
        pytest.param([BEGAN], {"profile": {"resumes": True}}, Loss(), id="with a checkpoint"),
        pytest.param([BEGAN], {"running": NOTHING}, Loss(), id="without tasks"),
        pytest.param([BEGAN], {"state": JobState.CANCELLED}, Loss(), id="ended"),
    ],
)
def test_what_a_stop_would_lose_does_not_grow_while_no_step_comes(
    memberships: list[MembershipRecord], changes: dict[str, Any], lost: Loss
) -> None:
    trains = {"state": JobState.RUNNING, "running": Allocation(1, 0), "first_step": 1, "step_at": 30.0, **changes}
    script, history = a_script(**trains), JobHistory(Mode.SYNC)
    history.last_steps = {memberships[-1].epoch: LastStep(30.0)}
    for now in (31.0, 45.0, 600.0):
        assert lost_by_a_stop(script, script.step, memberships, None, now) == lost
        if lost.seconds:
            decided_by = unsaved_seconds(script, memberships, history, now)
            assert decided_by == lost.seconds, "rounds and advice count the work that its owner is told"
    paused = a_script(profile=script.profile, step_at=30.0)
    if script.running != NOTHING and not script.state.is_final:  # as it is told after it
        after = losses(paused, [*memberships, replace(PAUSED, epoch=9, at=45.0)], {}, history.last_steps)[-1]
        assert after == lost


@pytest.mark.parametrize(
    ("now", "lost"), [(30.0, Loss(15, 30.0)), (40.0, Loss(20, 40.0, True)), (90.0, Loss(25, 50.0, True))]
)
def test_what_a_stop_would_lose_counts_steps_that_a_script_has_not_told_yet(now: float, lost: Loss) -> None:
    """It tells one each 20 s; later than that nobody knows whether it goes on."""
    script = a_script(state=JobState.RUNNING, running=Allocation(1, 0), first_step=1, step_at=30.0)
    assert lost_by_a_stop(script, 15, [BEGAN], None, now, 20.0) == lost
    assert lost_by_a_stop(script, 15, [BEGAN], None, now, 1.0) == Loss(15, 30.0)
    paused, stopped = a_script(step_at=30.0), replace(PAUSED, at=now)
    last_steps = {1: LastStep(30.0, 20.0)}
    assert losses(paused, [BEGAN, stopped], {}, last_steps)[-1] == lost, "as it was told before the pause"
    resumed = replace(RESUMED, lost_steps=lost.steps)
    assert losses(paused, [BEGAN, stopped, resumed], {}, last_steps)[1:] == [lost, Loss()], "and for good"


def test_steps_that_were_told_late_are_as_much_work_before_a_stop_as_after_it(world: World) -> None:
    """Two steps of 2.5 s that come 11 s after the second was made, as of a process whose telemetry is held up."""
    world.submit("job-1", **SCRIPT, servers={"min": 0, "max": 0}, workers={"max": 1}, working_directory="/srv")
    world.live_until("it runs", lambda: world.state("job-1") is JobState.RUNNING, seconds=0.0)
    (began,) = world.repository.memberships.of_job("job-1")
    world.clock.now = began.at + 16.0
    late = [
        a_sample(sequence=number, step=number, at=began.at + 2.5 * number, workers=1, servers=0, seconds=2.5)
        for number in (1, 2)
    ]
    add_samples(world.repository, "job-1", late, world.clock())
    world.clock.now += 20.0
    services = cast(Services, SimpleNamespace(repository=world.repository, clock=world.clock, listens_since=0.0))
    (told,) = shown(services, [world.repository.jobs.get("job-1")])
    histories = HistoryCache(world.repository, None, world.settings.scheduling)
    before = world.repository.jobs.get("job-1")
    last_steps = histories.last_steps(before, [began])
    stopped = replace(PAUSED, epoch=2, at=world.clock(), step=2)
    paused = replace(before, wanted=NOTHING, running=NOTHING, state=JobState.PAUSED)
    after = losses(paused, [began, stopped], {}, last_steps)[-1]
    assert told.lost_by_a_stop == after.words == "2 steps (5 s of work)"


def test_a_script_that_began_from_an_older_checkpoint_loses_what_it_has_made_since() -> None:
    """Its log says "resumed at 20", after each stop."""
    profile, began = {"began_at_step": 20}, replace(BEGAN, step=20)
    trains = a_script(
        profile=profile, state=JobState.RUNNING, running=Allocation(1, 0), step=47, first_step=21, step_at=30.0
    )
    assert lost_by_a_stop(trains, 47, [began], None, 31.0) == Loss(27, 30.0)
    assert lost_by_a_stop(trains, 20, [began], None, 31.0) == Loss(), "those in its place have made none yet"
    paused, stopped = a_script(profile=profile, step=47, step_at=30.0), replace(PAUSED, at=31.0, step=47)
    last_steps = {1: LastStep(30.0)}
    assert losses(paused, [began, stopped], {}, last_steps)[-1] == Loss(27, 30.0)
    assert next_step(paused) == 20
    resumed = replace(RESUMED, step=20, lost_steps=27)
    assert losses(paused, [began, stopped, resumed], {}, last_steps)[1:] == [Loss(27, 30.0), Loss()]
    unknown = replace(trains, profile={"began_at_step": None}, step=21)
    assert lost_by_a_stop(unknown, 21, [BEGAN], None, 31.0).words == "at most 21 steps (30 s of work)"
    failed = replace(RESUMED, epoch=2, lost_steps=21)
    assert total(losses(unknown, [BEGAN, failed], {})).words == "at most 21 steps"
    again = [began, stopped, resumed]
    told = replace(trains, step_at=310.0, step=30)
    assert lost_by_a_stop(told, 30, again, None, 311.0) == Loss(10, 10.0), "since it began anew"
    waits = replace(paused, retry_at=60.0, last_error="boom", retries=1)
    said = explanation_of(Case(job=waits, decision=None, now=32.0, memberships=[began])).sentences
    assert any("its 27 steps are made again" in each for each in said)


def test_what_a_stop_would_lose_of_a_script_that_tells_no_steps_is_its_time() -> None:
    silent = a_script(state=JobState.RUNNING, step=0, first_step=None)
    assert lost_by_a_stop(silent, 0, [], 10.0, 70.0) == Loss(0, 60.0)
    assert lost_by_a_stop(silent, 0, [], None, 70.0) == Loss(), "it has no worker"
    told = a_script(state=JobState.RUNNING, step=0, first_step=1)
    assert lost_by_a_stop(told, 0, [], 10.0, 70.0) == Loss(), "it tells its steps, and has made none since it began"
