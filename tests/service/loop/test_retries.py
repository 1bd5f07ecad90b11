"""Second chances: an error of a job's own code, the wait, and training that goes on from the last checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.service.loop.loop_world import World
from tests.service.store.store_builders import a_membership, set_wanted

from optimus_scheduler.lifecycle import (
    CONVERGED,
    LIMIT_REACHED,
    CancelRequested,
    Outcome,
    PauseRequested,
    ResultReported,
    ResumeRequested,
)
from optimus_scheduler.model import NOTHING, Directive, JobState, Reason, Resources, Role
from optimus_scheduler.settings import Settings
from optimus_service.insight.jobs.progress import progress_of
from optimus_service.loop.exits import CODE_OF_THE_USER
from optimus_service.observe.snapshot import attained_share_seconds, spent
from optimus_service.observe.spec import goes_back, spec_of
from optimus_service.observe.standstills import NewestStandstills, Standstill, standstills
from optimus_service.store.records import DecisionRecord, JobRecord

ERROR = "Traceback (most recent call last):\n  File 'data.py', line 3\nOSError: stale file handle"


def job_of(world: World) -> JobRecord:
    return world.repository.jobs.get("job-1")


def trained(world: World, **spec: Any) -> None:
    """A job that has made steps."""
    world.submit(**spec)
    world.round()
    world.train(20)
    world.round()
    assert job_of(world).step > 0


def fail(world: World) -> None:
    """Its code raises in a worker: the coordinator lets all tasks go and reports it; exits follow."""
    attempt = job_of(world).attempt
    worker = min(world.running("job-1", Role.WORKER))
    world.cluster.print_line(worker, ERROR)
    world.cluster.exit(worker, CODE_OF_THE_USER)
    coordinator = world.coordinators["job-1"]
    coordinator.members = ()
    for key in world.running("job-1"):
        world.cluster.exit(key, CODE_OF_THE_USER if key.role is Role.COORDINATOR else 0)
    result = ResultReported(Outcome.FAILED, coordinator.step, error=ERROR, attempt=attempt)
    world.repository.jobs.advance("job-1", result, world.clock())


def test_whoever_resumes_a_job_ends_its_wait_after_an_error(world: World) -> None:
    trained(world)
    fail(world)
    world.round("task exited")
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=False), world.clock())
    assert job_of(world).retry_at is not None
    world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    world.round("resume")
    assert world.running("job-1", Role.WORKER) != [], "its owner asked for it now, not after the wait"


@pytest.mark.parametrize("resumed_before", [False, True])
def test_the_wait_after_an_error_ends_when_its_owner_resumes_the_job(world: World, resumed_before: bool) -> None:
    if resumed_before:
        failed_once(world, then="cancelled")
        world.train(10)
    else:
        trained(world)
    fail(world)
    world.round("task exited")
    assert world.running("job-1") == []
    resumed = world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    assert (resumed.retry_at, resumed.waits_since) == (world.clock(), world.clock())
    assert "Its owner ended the wait after an error: the job may have tasks again." in [
        event.message for event in world.repository.events.page("job-1").items
    ]
    world.round("resume")
    assert world.running("job-1", Role.WORKER) != []


def test_a_limit_that_a_job_without_tasks_has_reached_ends_it_as_soon_as_it_goes_on(world: World) -> None:
    """Its retry is due, but another job took its room: nothing is being finished, and its owner may pause it."""
    most = {"workers": {"min": 6, "max": 6}, "servers": {"max": 1}}
    trained(world, convergence={"max_seconds": 62}, **most)
    world.submit("other", convergence={"max_steps": 100_000}, **most)
    fail(world)
    for _ in range(8):
        world.round("task exited")
        world.train(12)
    assert world.clock() > (job_of(world).started_at or 0.0) + 62
    assert job_of(world).directive is not Directive.FINISH
    assert world.events("job-1", LIMIT_REACHED) == []
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=False), world.clock())
    world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    world.repository.jobs.advance("other", CancelRequested(has_tasks=True), world.clock())
    step = job_of(world).step
    world.live_until("the job has ended", lambda: world.state().is_final)
    assert world.state() is JobState.SUCCEEDED
    assert job_of(world).step == step
    assert len(world.events("job-1", LIMIT_REACHED)) == 1


def test_an_error_after_training_began_is_retried_after_a_wait(world: World) -> None:
    trained(world)
    fail(world)
    failed_at = world.clock()
    job = job_of(world)
    assert (job.state, job.retries, job.retry_at) == (JobState.PAUSED, 1, failed_at + 30.0)
    assert job.last_error == "OSError: stale file handle"
    assert goes_back(job)
    assert world.events("job-1", "RetryScheduled") == [
        {"retry": 1, "of": 2, "retry_at": failed_at + 30.0, "error": "OSError: stale file handle"}
    ]
    world.round("task exited")
    world.clock.now = failed_at + 29.0
    world.round()
    assert world.running("job-1") == []
    decision = world.repository.rounds.latest_decisions(["job-1"])["job-1"]
    assert decision.reason == Reason.WAITING_FOR_RETRY
    assert "retry 1 of 2" in decision.message
    assert "OSError: stale file handle" in decision.message
    assert world.rounds.wakes_at == failed_at + 30.0
    world.clock.now = failed_at + 30.0
    world.round()
    assert world.running("job-1", Role.COORDINATOR)
    world.train(2)
    assert not goes_back(job_of(world))
    assert job_of(world).retry_at is None, "paused later, it does not wait for this try"
    world.live_until("the job has ended", lambda: world.state().is_final)
    assert world.state() is JobState.SUCCEEDED
    assert len(world.events("job-1", "RetryScheduled")) == 1


def failed_once(world: World, *, then: str = "waits") -> tuple[int, DecisionRecord]:
    """The step by which job-1 has failed, and the decision after that. `then`: `failed` for good, or `cancelled` by its
    owner, who has resumed it."""
    trained(world, **({"retries": 0} if then == "failed" else {}))
    at = job_of(world).step
    fail(world)
    if then != "waits":
        if then == "cancelled":
            world.repository.jobs.advance("job-1", CancelRequested(has_tasks=False), world.clock())
        assert world.state() == then
        world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
        assert job_of(world).last_error == "OSError: stale file handle"
    world.round("task exited")
    return at, world.repository.rounds.latest_decisions(["job-1"])["job-1"]


@pytest.mark.parametrize("then", ["waits", "failed", "cancelled"])
def test_no_end_is_told_of_a_job_that_failed_before_it_has_passed_that_step(world: World, then: str) -> None:
    """A script that raised at step 50 and had 100 to make was told to end in 17 s: it raised there again."""
    at, decision = failed_once(world, then=then)
    waits = replace(job_of(world), retry_at=None)  # it is over, and its tasks are not there yet
    assert progress_of(waits, decision, world.clock()).remaining_seconds is None
    world.coordinators["job-1"].step = 0
    world.clock.now += 30.0
    world.round()
    world.train(0)
    epoch = job_of(world).membership_epoch + 1
    again = a_membership(epoch=epoch, at=world.clock(), step=0, workers=("w",), cause="resume", lost_steps=at)
    world.repository.memberships.report("job-1", again)

    def found(step: int) -> Standstill | None:
        jobs = [replace(each, step=step) for each in world.repository.jobs.active()]
        return standstills(world.repository, jobs, {}, world.clock(), 0.0).get("job-1")

    before = found(at)
    assert before is not None
    assert (before.failed_at, before.is_without_end, before.is_stalled) == (at, True, False)
    assert progress_of(job_of(world), decision, world.clock(), None, {"job-1": before}).remaining_seconds is None
    beyond = found(at + 1)
    assert beyond is None or not beyond.is_without_end


def test_a_job_paused_before_it_has_passed_its_error_is_told_no_end_either(world: World) -> None:
    at, decision = failed_once(world)
    epoch = job_of(world).membership_epoch + 1
    again = a_membership(epoch=epoch, at=world.clock(), step=0, workers=("w",), cause="resume", lost_steps=at)
    world.repository.memberships.report("job-1", again)
    paused = replace(job_of(world), state=JobState.PAUSED, formed_at=world.clock(), retry_at=None, wanted=NOTHING)
    for step, may_fail in ((at, True), (at + 1, False)):
        job = replace(paused, step=step)
        still = standstills(world.repository, [job], {}, world.clock(), 0.0)
        assert (job.id in still) == may_fail
        told = progress_of(job, decision, world.clock(), None, still)
        assert (told.remaining_steps is None) == may_fail
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=False), world.clock())
    of_all = NewestStandstills().at(world.repository, world.clock(), 0.0)
    assert of_all["job-1"].failed_at == at, "also in what tells of all jobs: the page and the metrics"


def test_a_rule_is_not_judged_on_steps_that_an_error_has_thrown_away(world: World) -> None:
    """The loss had reached its target, but the job goes on from step 0, with parameters that have learned nothing."""
    trained(world, convergence={"target_loss": world.loss_at(80), "max_steps": 10_000})
    world.train(60)
    assert job_of(world).step > 120
    fail(world)
    world.round("task exited")
    assert job_of(world).directive is Directive.PAUSE
    world.coordinators["job-1"].step = 0
    world.clock.now += 30.0
    world.round()
    world.train(2)
    world.round()
    assert (world.state(), job_of(world).directive) == (JobState.RUNNING, Directive.RUN)
    assert world.events("job-1", CONVERGED) == []


@pytest.mark.parametrize(("seconds", "is_retried"), [(1000.0, True), (25.0, False)])
def test_no_retry_is_waited_for_that_comes_after_the_limit_of_time(
    world: World, seconds: float, is_retried: bool
) -> None:
    trained(world, convergence={"max_steps": 10_000, "max_seconds": seconds})
    fail(world)
    job = job_of(world)
    assert (job.state, job.retry_at is None) == ((JobState.PAUSED, False) if is_retried else (JobState.FAILED, True))
    assert (world.events("job-1", "NotRetried") == []) == is_retried


def test_a_coordinator_whose_job_is_tried_again_is_told_to_have_ended_the_try(world: World) -> None:
    trained(world, retries=1)
    for incarnation, what in enumerate(("this try", "the job")):
        fail(world)
        world.round("task exited")
        why = f"it ended {what}, as the job's own code failed in a worker"
        assert f"job-1-coordinator-0-{incarnation} exited with 3: {why}." in [
            event.message for event in world.repository.events.page("job-1").items
        ]
        world.clock.now += 60.0
        world.round()
        world.train(10)
    assert job_of(world).state is JobState.FAILED


def test_the_room_of_a_waiting_job_is_free(world: World) -> None:
    trained(world, workers={"min": 4, "max": 4}, servers={"min": 4, "max": 4})
    world.submit("job-2", workers={"min": 4, "max": 4}, servers={"min": 4, "max": 4})
    world.round()
    assert world.running("job-2") == []
    fail(world)
    world.round("task exited")
    assert world.running("job-2")


def test_a_job_fails_when_its_retries_are_used_up(world: World) -> None:
    trained(world, retries=1)
    fail(world)
    world.clock.now += 30.0
    world.live_until("it trains again", lambda: world.state() is JobState.RUNNING)
    fail(world)
    world.round("task exited")
    job = job_of(world)
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert "OSError: stale file handle" in job.failure


def test_an_error_before_the_first_step_fails_the_job_at_once(world: World) -> None:
    world.submit()
    world.round()
    fail_at_start = min(world.running("job-1", Role.WORKER))
    world.cluster.exit(fail_at_start, CODE_OF_THE_USER)
    world.round("task exited")
    assert world.state() is JobState.FAILED


def test_an_exit_alone_is_retried_too_and_its_result_comes_late(world: World) -> None:
    """The coordinator's node is cut off from the service, but not the worker's."""
    trained(world)
    attempt, step = job_of(world).attempt, world.coordinators["job-1"].step
    worker = min(world.running("job-1", Role.WORKER))
    world.cluster.print_line(worker, ERROR)
    world.cluster.exit(worker, CODE_OF_THE_USER)
    world.round("task exited")
    assert (world.state(), job_of(world).retries) == (JobState.PAUSED, 1)
    result = ResultReported(Outcome.FAILED, step, error=ERROR, attempt=attempt)
    world.repository.jobs.advance("job-1", result, world.clock())
    assert job_of(world).retries == 1


def test_a_kill_of_the_service_between_failure_and_retry_changes_nothing(world: World) -> None:
    """At each moment: before the exits are seen, while the job waits, and when it has been given tasks again."""
    trained(world)
    fail(world)
    world = world.restarted()  # 60 virtual seconds: the wait is over
    world.round("start")
    assert job_of(world).retries == 1
    assert world.running("job-1", Role.COORDINATOR)
    world = world.restarted()
    world.live_until("the job has ended", lambda: world.state().is_final)
    assert (world.state(), job_of(world).retries) == (JobState.SUCCEEDED, 1)
    assert len(world.events("job-1", "RetryScheduled")) == 1


def test_a_round_that_began_before_the_failure_starts_nothing(world: World) -> None:
    """Its snapshot is older than the failure: it would start tasks before the wait is over."""
    trained(world)
    wanted = world.repository.wanted.get("job-1")
    fail(world)
    set_wanted(world.repository, "job-1", wanted.allocation, wanted.directive, wanted.tasks, world.clock())
    assert world.repository.wanted.get("job-1").allocation.is_empty


def test_steps_after_the_checkpoint_are_lost_and_told(world: World) -> None:
    trained(world)
    fail(world)
    reached = job_of(world).step
    world.coordinators["job-1"].step = reached - 5  # where the checkpoint is
    world.clock.now += 30.0
    world.round()
    world.train(1)
    assert world.events("job-1", "MembershipChanged")[-1]["lost_steps"] == 5


def test_a_cancelled_wait_is_over(world: World) -> None:
    trained(world)
    fail(world)
    world.round("task exited")
    world.repository.jobs.advance("job-1", CancelRequested(), world.clock())
    world.clock.now += 3600.0
    world.round()
    assert world.state() is JobState.CANCELLED
    assert world.running("job-1") == []


@pytest.mark.parametrize("resumed", [False, True], ids=["retried", "resumed"])
def test_nothing_is_spent_while_a_job_has_no_tasks_after_an_error(world: World, resumed: bool) -> None:
    trained(world, **({"retries": 0} if resumed else {}))
    fail(world)
    settings = Settings(price_per_core_hour=3600.0)
    spec = spec_of(job_of(world))
    capacity = Resources(cpu=100.0)

    def used() -> tuple[float, float]:
        memberships, now = world.repository.memberships.of_job("job-1"), world.clock()
        return spent(memberships, spec, None, settings, now), attained_share_seconds(memberships, spec, capacity, now)

    at_the_error = used()
    assert min(at_the_error) > 0
    world.round("task exited")
    world.clock.now += 10 * 3600.0 if resumed else 30.0
    assert used() == at_the_error
    if resumed:
        world.repository.jobs.advance("job-1", ResumeRequested(), world.clock())
    world.round()
    world.train(5)
    newest = world.repository.memberships.of_job("job-1")[-1]
    cost = len(newest.workers) * spec.worker.resources.cpu + len(newest.servers) * spec.server.resources.cpu
    assert used()[0] == pytest.approx(at_the_error[0] + cost * (world.clock() - newest.at))
