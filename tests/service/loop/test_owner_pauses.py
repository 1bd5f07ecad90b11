"""A job that its owner pauses: a checkpoint, its room for others, nothing more until it is resumed."""

from __future__ import annotations

from typing import Any

from tests.service.loop.loop_world import World
from tests.service.store.store_builders import set_wanted

from optimus_contract import answers
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.lifecycle import PauseRequested, ResumeRequested, TooManyFailures
from optimus_scheduler.model import Allocation, Directive, JobState, PlacedTask, Reason, Role, TaskKey
from optimus_scheduler.model.format import lasted
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.insight.jobs.bodies import job_body
from optimus_service.insight.jobs.progress import progress_of
from optimus_service.insight.predictions.predictions import HistoryCache
from optimus_service.observe.histories import Histories
from optimus_service.observe.snapshot import ClusterState, Observer
from optimus_service.store.records import JobRecord

ALL = {"workers": {"min": 4, "max": 4}, "servers": {"min": 4, "max": 4}}


def job_of(world: World, job_id: str = "job-1") -> JobRecord:
    return world.repository.jobs.get(job_id)


def pause(world: World, job_id: str = "job-1") -> None:
    has_tasks = bool(world.repository.tasks.select(job_id=job_id))
    world.repository.jobs.advance(job_id, PauseRequested(has_tasks=has_tasks), world.clock())


def resume(world: World, job_id: str = "job-1") -> None:
    world.repository.jobs.advance(job_id, ResumeRequested(), world.clock())


def trained(world: World, **spec: Any) -> int:
    """A job that has made steps; how many."""
    world.submit(**spec)
    world.round()
    world.train(20)
    world.round()
    assert job_of(world).step > 0
    return job_of(world).step


def test_a_paused_job_gives_its_room_away_and_goes_on_when_it_is_resumed(world: World) -> None:
    step = trained(world, **ALL)
    world.submit("job-2", **ALL)
    world.round()
    assert not world.running("job-2")
    pause(world)
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    assert job_of(world).spec["paused"] is True
    world.live_until("the other runs", lambda: bool(world.running("job-2")))
    decision = world.repository.rounds.latest_decisions(["job-1"])["job-1"]
    assert (decision.reason, decision.allocation.is_empty) == (Reason.PAUSED_BY_OWNER, True)
    world.live_until("the other has ended", lambda: world.state("job-2").is_final)
    for _ in range(3):
        world.clock.now += 60.0
        world.round()
    assert not world.running("job-1"), "it gets nothing, however much room there is"
    decision = world.repository.rounds.latest_decisions(["job-1"])["job-1"]
    assert decision.message == "Paused by its owner: it gets nothing until it is resumed."
    resume(world)
    assert job_of(world).spec["paused"] is False
    world.live_until("it has ended", lambda: world.state().is_final)
    assert world.state() is JobState.SUCCEEDED
    assert job_of(world).step > step


def test_a_plan_made_before_the_pause_gives_it_nothing(world: World) -> None:
    world.submit()
    pause(world)
    wanted = world.repository.wanted.get("job-1")
    tasks = [PlacedTask(TaskKey("job-1", Role.WORKER, 0), "node-1")]
    from_before = set_wanted(world.repository, "job-1", Allocation(1, 0), Directive.RUN, tasks, world.clock())
    assert from_before == wanted.generation
    assert job_of(world).wanted.is_empty


def test_a_job_that_is_submitted_paused_waits_in_no_queue(world: World) -> None:
    world.submit(paused=True)
    world.round()
    job = job_of(world)
    assert (job.state, job.owner_paused_at) == (JobState.PAUSED, world.clock())
    assert not world.running("job-1")
    resume(world)
    assert job_of(world).state is JobState.QUEUED
    world.live_until("it trains", lambda: world.state() is JobState.RUNNING)
    assert job_of(world).started_at is not None


def test_a_job_that_was_resumed_before_it_began_has_no_tasks_once_it_is_paused_again(world: World) -> None:
    world.submit(paused=True)
    world.round()
    resume(world)
    world.live_until("it trains", lambda: world.state() is JobState.RUNNING and job_of(world).step > 0)
    pause(world)
    world.live_until("it is paused", lambda: not world.running("job-1") and world.state() is JobState.PAUSED)
    assert job_of(world).running.is_empty


def test_what_was_predicted_before_a_pause_is_forgotten(world: World) -> None:
    trained(world)
    assert world.repository.shown_predictions.parts_of(["job-1"])
    pause(world)
    assert not world.repository.shown_predictions.parts_of(["job-1"])
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    world.round()
    assert not world.repository.shown_predictions.parts_of(["job-1"]), "a job that has nothing predicts nothing"


def test_what_was_predicted_under_another_rule_is_forgotten(world: World) -> None:
    """It was judged by the end under the new one."""
    trained(world)
    job = job_of(world)
    renamed = {**job.spec, "name": "other"}
    assert world.repository.jobs.set_spec("job-1", job.spec, renamed, {"name": ("job-1", "other")}, world.clock())
    assert world.repository.shown_predictions.parts_of(["job-1"]), "this changes no end"
    changed = {**renamed, "convergence": {**renamed["convergence"], "max_epochs": 5}}
    assert world.repository.jobs.set_spec(
        "job-1", renamed, changed, {"convergence.max_epochs": (None, 5)}, world.clock()
    )
    assert not world.repository.shown_predictions.parts_of(["job-1"])


def test_the_explanation_says_since_when_and_what_ends_it(world: World) -> None:
    trained(world)
    pause(world)
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    job, decision = job_of(world), world.repository.rounds.latest_decisions(["job-1"])["job-1"]
    told = explanation_of(Case(job=job, decision=decision, now=world.clock()))
    assert told.reason == Reason.PAUSED_BY_OWNER
    assert told.message.startswith("Paused by its owner since 1970-01-12 13:")
    assert told.what_would_change_it == "`optimus resume job-1` lets it go on."
    assert told.expected.start_seconds is told.expected.finish_seconds is None
    assert progress_of(job, decision, world.clock()).remaining_seconds is None


def told_now(world: World) -> tuple[answers.Job, answers.Explanation]:
    job, decision = job_of(world), world.repository.rounds.latest_decisions(["job-1"])["job-1"]
    members = world.repository.memberships.of_job("job-1")
    case = Case(job=job, decision=decision, now=world.clock(), memberships=members)
    return job_body(job, decision, None, world.clock()), explanation_of(case)


def test_a_limit_of_time_runs_on_in_a_pause_and_ends_the_job_when_it_is_resumed(world: World) -> None:
    """As everybody says while it is paused, and when it has ended."""
    step = trained(world, convergence={"max_seconds": 60.0})
    pause(world)
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    body, explained = told_now(world)
    assert body.limit_reached is None
    assert (
        "Its limit of 60 s runs on: resumed after 1970-01-12 13:47:40 UTC, it ends as soon as it goes on."
        in explained.message
    )
    assert explained.what_would_change_it == "`optimus resume job-1` lets it go on."
    world.clock.now += 60.0
    for _ in range(2):  # before and after a round that sees it
        body, explained = told_now(world)
        assert body.limit_reached == "the time of its limit is over"
        assert (body.progress, body.remaining_steps) == (None, None), "not 99 %, with no step left"
        assert explained.message == body.message
        assert explained.message.endswith("The time of its limit is over: it ends as soon as it goes on.")
        assert "`optimus resume job-1` only ends it" in explained.what_would_change_it
        assert "optimus set job-1 --max-seconds" in explained.what_would_change_it
        world.round()
    resume(world)
    body, explained = told_now(world)
    assert body.limit_reached == "the time of its limit is over"
    assert "It ends as soon as it goes on: the time of its limit is over." in explained.sentences
    world.live_until("it has ended", lambda: world.state().is_final, seconds=1.0)
    assert job_of(world).step == step
    _, explained = told_now(world)
    assert explained.message == "The job succeeded: the time of its limit was over."
    assert "it was without tasks once, for 1 min" in explained.sentences[-1]
    assert "by changes of size, lost or hung tasks, pauses or errors" in explained.sentences[-1]


def test_a_paused_job_goes_on_with_a_larger_limit_of_time(world: World) -> None:
    step = trained(world, convergence={"max_seconds": 60.0})
    pause(world)
    world.live_until("it is paused", lambda: world.state() is JobState.PAUSED)
    world.clock.now += 60.0
    world.round()
    larger = {**job_of(world).spec, "convergence": {"max_seconds": 600.0}}
    assert world.repository.jobs.set_spec("job-1", job_of(world).spec, larger, {}, world.clock())
    world.round()
    body, explained = told_now(world)
    assert body.limit_reached is None
    assert explained.what_would_change_it == "`optimus resume job-1` lets it go on."
    resume(world)
    world.live_until("it trains on", lambda: job_of(world).step > step)


def test_a_paused_job_stays_paused_over_a_restart_of_the_service(world: World) -> None:
    trained(world)
    pause(world)
    again = world.restarted()
    again.live_until("it is paused", lambda: again.state() is JobState.PAUSED)
    again.clock.now += 600.0
    again.round()
    assert not again.running("job-1")


def waits_alike(world: World, seconds: float, job_id: str = "job-1") -> None:
    """That the job waits for so long is what the explanation says, and what its patience is counted by."""
    decision = world.repository.rounds.latest_decisions([job_id])[job_id]
    told = explanation_of(Case(job=job_of(world, job_id), decision=decision, now=world.clock()))
    assert any(each.startswith(f"It has waited for {lasted(seconds)}") for each in told.sentences)
    constants = world.settings.scheduling
    observer = Observer(world.repository, Histories(world.repository), constants)
    seen = observer.look(ClusterState.of(world.cluster), world.clock()).jobs
    (job,) = [each for each in seen if each.id == job_id]
    assert forecast(job, world.clock(), constants).waited_seconds == seconds
    asked = HistoryCache(world.repository, None, constants).job(job_of(world, job_id), [], world.clock())
    assert asked.waits_since == job.waits_since, "its turn is told by what the rounds go by"


def test_a_resumed_job_has_waited_since_then(world: World) -> None:
    """Whether its owner paused it before its first step or later, or it had failed."""
    for job_id in ("paused", "failed"):
        world.submit(job_id, **ALL)
        world.live_until("it trains", lambda job_id=job_id: job_of(world, job_id).step > 0)  # type: ignore[misc]
        if job_id == "failed":
            world.repository.jobs.advance(job_id, TooManyFailures("broken"), world.clock())
        else:
            pause(world, job_id)
        world.live_until("it has nothing", lambda job_id=job_id: not world.running(job_id))  # type: ignore[misc]
    world.submit("unstarted", paused=True, **ALL)
    world.round()
    world.submit("holds", priority=1000, **ALL)
    world.live_until("the cluster is full", lambda: job_of(world, "holds").step > 0)
    world.clock.now += 600.0
    for job_id in ("paused", "failed", "unstarted"):
        resume(world, job_id)
    world.clock.now += 7.0
    world.round()
    for job_id in ("paused", "failed", "unstarted"):
        assert job_of(world, job_id).waits
        waits_alike(world, 7.0, job_id)


def test_a_job_that_waits_for_room_after_its_retry_was_due_has_waited_since_then(world: World) -> None:
    trained(world, **ALL)
    world.repository.jobs.advance("job-1", TooManyFailures("broken", "OSError: stale file handle"), world.clock())
    world.submit("holds", priority=1000, **ALL)
    world.live_until("the cluster is full", lambda: job_of(world, "holds").step > 0)
    due = job_of(world).retry_at
    assert due is not None
    world.clock.now = due + 9.0
    world.round()
    assert job_of(world).waits
    waits_alike(world, 9.0)
