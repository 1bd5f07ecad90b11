"""Jobs that make no step, as the store's samples tell."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event
from tests.service.loop.loop_world import World
from tests.service.loop.test_task_exits import crash, newest
from tests.service.store.store_builders import a_membership, a_sample, add_samples

from optimus_contract import answers
from optimus_scheduler.lifecycle import PauseRequested, ResumeRequested
from optimus_scheduler.model import NOTHING, Allocation, Interval, JobState, Role
from optimus_scheduler.model.format import lasted
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.insight.jobs.progress import JobProgress, progress_of
from optimus_service.observe.spec import is_after_last_step, silent_since, stepped_at
from optimus_service.observe.standstills import REPLACING, NewestStandstills, Standstill, standstills
from optimus_service.store.records import DecisionRecord, ExpectedTimesRecord, JobRecord


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_usual_time_of_a_step_is_that_of_the_newest_samples_not_of_the_last(world: World) -> None:
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(40)
    repository, now = world.repository, world.clock()
    job = repository.jobs.get("job-1")
    burst = a_sample(membership_epoch=1, sequence=99, workers=1, at=now, step=job.step + 40, n_steps=40, seconds=0.01)
    add_samples(repository, "job-1", [burst], now)
    jobs = repository.jobs.active()
    assert standstills(repository, jobs, {}, now + 14.0, 0.0) == {}
    found = standstills(repository, jobs, {}, now + 60.0, 0.0)["job-1"]
    newest = repository.samples.newest("job-1", 20)
    usual = sum(each.seconds for each in newest) / sum(each.n_steps for each in newest)
    assert usual > 0.1, "of the burst alone 0.00025 s"
    assert found == Standstill(f"no step came for 1 min 00 s, where one took {usual:.2g} s", is_stalled=True)
    for listened, told in ((5.0, None), (12.0, found)):
        heard = standstills(repository, jobs, {}, now + 60.0, now + 60.0 - listened)["job-1"]
        assert heard.is_unheard == (told is None), "a service that begins to listen waits for what was made before"
        assert told in (None, heard), "and counts it all then"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_of_a_job_that_was_not_heard_of_since_the_service_was_away_no_end_is_told(world: World) -> None:
    """Four jobs were told an end that was as much too late as the service had been away; one had ended already."""
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(40)
    world.round()
    (job,) = world.repository.jobs.active()
    decision = world.repository.rounds.latest_decisions(["job-1"])["job-1"]
    begins = world.clock() + 3600.0
    newest, now = NewestStandstills(), begins + 2.0

    def told(heard: JobRecord, at: float) -> tuple[bool, bool]:
        still = standstills(world.repository, [heard], {}, at, begins)
        return "job-1" in still, progress_of(heard, decision, at, None, still).remaining_seconds is None

    assert told(job, now) == (True, True)
    assert told(replace(job, step_at=begins + 1.0), now) == (False, False), "what it made has come"
    came_since = replace(job, created_at=begins + 1.0, formed_at=None, step_at=None, step=0)
    assert not told(came_since, now)[0]
    assert standstills(world.repository, [job], {}, now, begins)["job-1"].may_not_end is False, "it is likely to go on"
    assert not standstills(world.repository, [job], {}, begins + 11.0, begins)["job-1"].is_unheard
    assert newest.at(world.repository, now, begins)["job-1"].is_unheard
    world.clock.now = begins + 2.5
    world.train(60)
    assert newest.at(world.repository, begins + 3.5, begins) == {}, "no longer than a second after it was heard of"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_that_a_job_goes_on_again_is_known_within_a_second(world: World) -> None:
    """Others are asked for each 5 s."""
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(40)
    world.clock.now += 60.0
    newest = NewestStandstills()
    assert newest.at(world.repository, world.clock(), 0.0)["job-1"].is_stalled
    at = world.clock()
    world.train(2)
    assert "job-1" in newest.at(world.repository, at + 0.9, 0.0)
    assert newest.at(world.repository, at + 2.0, 0.0) == {}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_that_has_made_all_its_steps_does_not_stand_still(world: World) -> None:
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(40)
    (job,) = world.repository.jobs.active()
    for announced, stands_still in ((job.step, False), (job.step + 1, True)):
        jobs = [replace(job, profile={"total_steps": announced})]
        assert bool(standstills(world.repository, jobs, {}, world.clock() + 60.0, 0.0)) == stands_still


_SMALL: dict[str, Any] = {"workers": {"min": 1, "max": 1}, "servers": {"min": 1, "max": 1}}
_SCRIPT: dict[str, Any] = {"task": None, "command": ["python", "train.py"], "architecture": "script"}
_SCRIPT |= {"workers": {"min": 1, "max": 1}, "servers": {"min": 0, "max": 0}}


def _train_to_its_last_step(world: World) -> None:
    for second in range(200):
        if second % 5 == 0:
            world.round()
        if is_after_last_step(world.repository.jobs.get("job-1")):
            return  # a second later it would have ended
        world.train(1)
    raise AssertionError("it goes on making steps")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("spec", "rule", "words"),
    [
        pytest.param(_SMALL, {"max_steps": 40}, "made all the steps of its limit, the last one", id="steps"),
        pytest.param(_SMALL, {"max_epochs": 2.0}, "made all the epochs of its limit, the last one", id="epochs"),
        pytest.param(_SCRIPT, {"max_steps": 40}, "made all the steps of its limit, the last one", id="script"),
        pytest.param(_SMALL, {"target_loss": 0.9}, "Its last step came", id="loss"),
        pytest.param(_SMALL, {"max_seconds": 15.0}, "Its last step came", id="seconds"),
    ],
)
def test_a_job_after_its_last_step_is_told_to_finish(
    world: World, spec: dict[str, Any], rule: dict[str, Any], words: str
) -> None:
    """It evaluates, or saves: it was told to have stalled, or to end in 0 s for as long as that took."""
    if "command" in spec:
        world.steps_per_epoch = None
    world.submit(**spec, convergence=rule)
    _train_to_its_last_step(world)
    if "command" in spec:
        world.repository.jobs.put_profile("job-1", {"total_steps": 40})
    (job,) = world.repository.jobs.active()
    decision, at = world.repository.rounds.latest_decisions(["job-1"])["job-1"], silent_since(job)
    assert at is not None
    for after in (1.0, 30.0, 60.0):
        still = standstills(world.repository, [job], {}, at + after, 0.0)
        assert still == {}
        assert stepped_at(job) is None, "the next step is not late"
        progress = progress_of(job, decision, at + after, None, still)
        assert progress.finishing
        assert progress.remaining_seconds == answers.Interval(mean=after, low=after / 9, high=after * 9)
        case = Case(job=job, decision=decision, now=at + after, still=still)
        (said,) = [each for each in explanation_of(case).sentences if "finishing" in each]
        assert f"{words} {lasted(after)} ago: it is finishing, and by that it may end in" in said


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_task_whose_worker_is_replaced_after_its_last_step_is_told_no_end(world: World) -> None:
    """It may have to make some of its steps again."""
    world.submit(**_SMALL, convergence={"max_steps": 40})
    _train_to_its_last_step(world)
    crash(world, Role.WORKER, code=137)
    (job,) = world.repository.jobs.active()
    decision, now = world.repository.rounds.latest_decisions(["job-1"])["job-1"], world.clock()
    still = standstills(world.repository, [job], {}, now, 0.0)
    assert still["job-1"].is_replaced
    progress = progress_of(job, decision, now, None, still)
    assert (progress.progress, progress.finishing, progress.remaining_seconds) == (0.99, False, None)
    case = Case(job=job, decision=decision, now=now, still=still)
    assert explanation_of(case).sentences[-1] == "When it ends cannot be said while no step comes."


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_time_without_tasks_is_no_time_without_a_step(world: World) -> None:
    """From when its tasks take part again, steps may be missed."""
    size = {"min": 1, "max": 1}
    world.submit(workers=size, servers=size)
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 20)
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=True), world.clock())
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    world.clock.now += 600.0
    world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    world.round()
    world.train(0)
    assert world.state() is JobState.RUNNING
    jobs = world.repository.jobs.active()
    formed_at, now = jobs[0].formed_at, world.clock()
    assert formed_at is not None
    assert now - formed_at < 10.0

    def still(later: float) -> list[str]:
        return [each.words for each in standstills(world.repository, jobs, {}, formed_at + later, 0.0).values()]

    assert still(10.0) == []
    (words,) = still(30.0)
    assert words.startswith("no step came for 30 s, where one took ")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_of_jobs_that_train_as_they_should_no_sample_and_no_task_is_read(world: World) -> None:
    for number in range(3):
        world.submit(f"job-{number}", workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(20)
    world.clock.now += 400.0
    world.train(40)

    def read(*still: str) -> list[str]:
        said: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            said.extend(re.findall(r"sample_batches\.document|tasks\.node|^SELECT jobs\.\w+", statement))

        engine = world.repository._engine
        event.listen(engine, "before_cursor_execute", note)
        assert tuple(NewestStandstills().at(world.repository, world.clock(), 0.0)) == still
        event.remove(engine, "before_cursor_execute", note)
        return said

    assert {each.state for each in world.repository.jobs.active()} == {JobState.RUNNING}
    assert read() == ["SELECT jobs.id"]
    crash(world, Role.WORKER)
    assert read("job-1") == ["SELECT jobs.id", "sample_batches.document", "tasks.node", "tasks.node"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_of_a_job_that_hung_no_end_is_told_before_it_has_passed_that_step(world: World) -> None:
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(40)

    def found(beyond: int = 0) -> Standstill | None:
        jobs = [replace(each, step=each.step + beyond) for each in world.repository.jobs.active()]
        return standstills(world.repository, jobs, {}, world.clock(), 0.0).get("job-1")

    def is_replaced(cause: str) -> None:
        epoch, worker = world.repository.jobs.get("job-1").membership_epoch + 1, newest(world, Role.WORKER)
        lost = a_membership(
            epoch=epoch, at=world.clock(), step=0, cause=cause, lost_steps=at, workers=(worker.name,), servers=()
        )
        world.repository.memberships.report("job-1", lost)

    at = world.repository.jobs.get("job-1").step
    for often, cause in (("once", "worker_lost"), ("2 times", "resume")):
        crash(world, Role.WORKER, code=5)
        for is_back in (False, True):
            hung = found()
            assert hung is not None, is_back
            assert (hung.hung_at, hung.is_stalled) == (at, True)
            assert f"its workers hung {often}, after step" in hung.words
            assert f" {at}" in hung.words
            if not is_back:
                is_replaced(cause)
    newest_hang = max(world.repository.tasks.with_exit_codes((5,), ["job-1"]), key=lambda task: task.key.incarnation)
    world.repository.tasks.mark_unwanted([newest_hang.key], world.clock())
    hung = found()
    assert hung is not None
    assert "its workers hung once, after step" in hung.words, "as the event of the other says: it was asked to leave"
    jobs = [replace(each, state=JobState.PAUSED) for each in world.repository.jobs.active()]
    for wanted, beyond, tells in ((NOTHING, 0, True), (Allocation(1, 1), 0, True), (Allocation(1, 1), at + 1, False)):
        given = [replace(each, wanted=wanted, step=each.step + beyond) for each in jobs]
        again = standstills(world.repository, given, {}, world.clock(), 0.0)
        assert [each.hung_at for each in again.values()] == [at] * tells, (
            "also once it has lost its tasks, and is given"
        )
    decision = world.repository.rounds.latest_decisions(["job-1"])["job-1"]
    resumed, now = replace(jobs[0], wanted=Allocation(1, 1)), world.clock()
    looked = ExpectedTimesRecord(
        job_id="job-1", at=now, valid_until=now + 60, start=None, end=Interval(now + 40, now, now)
    )
    for still, ends in (({}, True), (standstills(world.repository, [resumed], {}, now, 0.0), False)):
        told = progress_of(resumed, replace(decision, expected=looked), now, None, still)
        assert told.expected is not None
        assert (told.expected.end_seconds is not None, told.remaining_seconds is not None) == (ends, ends)
    assert found(at + 1) is None or found(at + 1) == Standstill(REPLACING, is_stalled=False, is_replaced=True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_that_hung_before_its_first_step_is_told_so_when_it_is_queued_again(world: World) -> None:
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(0)
    crash(world, Role.WORKER, code=5)
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=True), world.clock())
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    (job,) = world.repository.jobs.active()
    assert (job.state, job.waits) == (JobState.QUEUED, True)
    told = NewestStandstills().at(world.repository, world.clock(), 0.0)["job-1"]
    assert (told.words, told.hung_at) == ("its workers hung once, before a step was made", 0)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("second", [0, 3])
def test_of_a_job_that_is_killed_at_one_step_again_no_end_is_told_before_it_has_passed_that(
    world: World, second: int
) -> None:
    """A script that killed itself at step 20 was told to end in 12 s, six times. Kills at other steps say nothing."""
    world.submit(workers={"min": 1, "max": 1}, servers={"min": 1, "max": 1})
    world.round()
    world.train(40)
    at = world.repository.jobs.get("job-1").step

    def found(beyond: int = 0) -> int | None:
        jobs = [replace(each, step=each.step + beyond) for each in world.repository.jobs.active()]
        standstill = standstills(world.repository, jobs, {}, world.clock(), 0.0).get("job-1")
        assert standstill is None or standstill.is_without_end == (standstill.failed_at is not None)
        return standstill and standstill.failed_at

    for made in (at, at + second):
        assert found() is None, "once says little"
        crash(world, Role.WORKER, code=137)
        epoch, worker = world.repository.jobs.get("job-1").membership_epoch + 1, newest(world, Role.WORKER)
        lost = a_membership(
            epoch=epoch, at=world.clock(), step=0, cause="worker_lost", lost_steps=made, workers=(worker.name,)
        )
        world.repository.memberships.report("job-1", replace(lost, servers=()))
    assert found() == (None if second else at)
    assert found(at + 1) is None
    paused = [replace(each, state=JobState.PAUSED) for each in world.repository.jobs.active()]
    still = standstills(world.repository, paused, {}, world.clock(), 0.0)
    assert ("job-1" in still) == (not second), "also once it has lost its tasks"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("resumes", [False, True], ids=["begins anew", "keeps checkpoints"])
@pytest.mark.parametrize("code", [137, 5], ids=["killed", "hung"])
@pytest.mark.parametrize("left", [0, 1], ids=["after its last step", "before it"])
def test_a_script_whose_worker_is_replaced_is_not_finishing(world: World, resumes: bool, code: int, left: int) -> None:
    """It was killed, or hung, while it saved after its last step: it was told as finishing, at 100 %."""
    world.steps_per_epoch = None
    script: dict[str, Any] = {"task": None, "command": ["python", "train.py"], "architecture": "script"}
    script |= {"workers": {"min": 1, "max": 1}, "servers": {"min": 0, "max": 0}, "resumes": resumes}
    world.submit(**script, convergence={})
    world.round()
    world.train(40)
    step = world.repository.jobs.get("job-1").step
    total = step + left
    world.repository.jobs.put_profile("job-1", {"total_steps": total, "resumes": resumes})
    world.round()

    def told() -> tuple[JobProgress, DecisionRecord, str]:
        (job,) = world.repository.jobs.active()
        decision, now = world.repository.rounds.latest_decisions(["job-1"])["job-1"], world.clock()
        still = standstills(world.repository, [job], {}, now, 0.0)
        case = Case(job=job, decision=decision, now=now, still=still)
        return progress_of(job, decision, now, None, still), decision, " ".join(explanation_of(case).sentences)

    assert told()[0].finishing == (not left)
    crash(world, Role.WORKER, code=code)
    for _ in range(2):
        progress, decision, words = told()
        assert not progress.finishing
        assert progress.progress != 1.0
        assert "finishing" not in words
        world.round()
        world.clock.now += 10.0
    forecast = decision.forecast
    if not resumes:
        assert (progress.progress, progress.remaining_steps) == (
            0.0,
            answers.Interval(mean=total, low=total, high=total),
        )
        assert forecast.remaining_steps == Interval(total, total, total), "jobs behind it wait for these, too"
        assert code == 5 or f"its {step} steps are made again" in words
    elif not left:
        assert progress.remaining_seconds is None, "nobody knows how far its last checkpoint is"
        assert "When it ends cannot be said" in words
