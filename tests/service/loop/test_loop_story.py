"""Whole lives of jobs, with the real scheduler and database: what the loop makes of what jobs and clusters do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.loop.loop_world import World

from optimus_scheduler.lifecycle import CancelRequested
from optimus_scheduler.model import Allocation, Directive, JobState, Node, Resources, Role, TaskKey, TaskPhase
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.fake import FakeCluster
from optimus_service.store.errors import StaleLeader
from optimus_service.store.repository import Repository

COORDINATOR = TaskKey("job-1", Role.COORDINATOR, 0)
SERVER = TaskKey("job-1", Role.SERVER, 0)
WORKER = TaskKey("job-1", Role.WORKER, 0)
LARGEST = Allocation(2, 2)
once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For long stories in which the databases play no part of their own: their shorter sisters run on both."""


def test_job_lives_from_submission_to_result(world: World) -> None:
    world.submit()
    world.round("submit")
    # One worker, one server and the coordinator are there, and the coordinator can learn what is wanted.
    assert world.running("job-1") == [COORDINATOR, SERVER, WORKER]
    assert world.repository.jobs.get("job-1").wanted == Allocation(1, 1)
    assert world.heard.generations[-1] == ("job-1", world.repository.jobs.get("job-1").generation)
    assert world.state() is JobState.QUEUED

    world.train(5)
    assert world.state() is JobState.RUNNING
    world.live_until("the job has grown", lambda: world.repository.jobs.get("job-1").running.workers > 1)
    world.live_until("the job has ended", lambda: world.state().is_final)

    job = world.repository.jobs.get("job-1")
    assert (job.state, job.directive) == (JobState.SUCCEEDED, Directive.FINISH)
    assert job.rescales >= 1
    assert [event["exit_code"] for event in world.events("job-1", "TaskExited") if event["exit_code"]] == []
    steps = [membership.step for membership in world.repository.memberships.of_job("job-1")]
    assert steps == sorted(steps)
    world.round()
    world.round()
    assert world.cluster.tasks() == (), "the tasks of an ended job are forgotten"
    assert world.repository.tasks.select() == []


def test_each_round_is_recorded_with_its_decisions(world: World) -> None:
    world.submit()
    record = world.round("submit")
    (stored,) = world.repository.rounds.page().items
    assert (stored.trigger, stored.n_jobs, stored.n_actions, stored.error) == ("submit", 1, record.n_actions, None)
    assert {"observe", "forecast", "allocate", "place", "reconcile", "apply"} <= set(stored.phase_seconds)
    decision = world.repository.rounds.latest_decisions(["job-1"]).get("job-1")
    assert decision is not None
    assert (decision.allocation, decision.round_id) == (Allocation(1, 1), stored.id)
    assert decision.message
    assert (decision.forecast.job_id, decision.forecast.confidence) == ("job-1", 0.0), "nothing is known yet"


def test_rounds_on_an_unchanged_world_do_nothing(world: World) -> None:
    world.submit()
    world.round()
    world.train(0)
    before = world.repository.jobs.get("job-1").generation
    for _ in range(3):
        assert world.round().n_actions == 0
    assert world.repository.jobs.get("job-1").generation == before
    assert len(world.cluster.launches) == 3


@pytest.mark.parametrize("victim", [COORDINATOR, SERVER, WORKER])
def test_crashed_task_is_replaced_by_the_next_incarnation(world: World, victim: TaskKey) -> None:
    world.submit()
    world.round()
    world.train(5)
    world.cluster.exit(victim, 137)
    world.round("task exited")
    replacement = TaskKey(victim.job_id, victim.role, victim.rank, 1)
    assert replacement in world.running("job-1")
    assert victim not in world.running("job-1")
    (event,) = world.events("job-1", "TaskExited")
    assert (event["task"], event["exit_code"], event["wanted"]) == (victim.name, 137, True)
    world.round()
    assert len(world.events("job-1", "TaskExited")) == 1, "an exit is told once"
    world.live_until("the job has ended", lambda: world.state().is_final)
    assert world.state() is JobState.SUCCEEDED


def test_failed_start_is_repaired_by_the_next_round(world: World) -> None:
    world.submit()
    world.cluster.refuses_to_start = {WORKER.name}
    record = world.round()
    assert record.error is not None
    assert WORKER.name in record.error
    assert len(world.events("job-1", "ActionFailed")) == 1
    assert world.running("job-1") == [COORDINATOR, SERVER], "one failure does not stop the other actions"
    world.cluster.refuses_to_start = set()
    assert world.round().error is None
    assert world.running("job-1") == [COORDINATOR, SERVER, WORKER]


def test_failure_that_goes_on_is_told_every_ten_minutes(world: World) -> None:
    """Not in every round: events are kept for as long as the job."""
    world.submit()
    world.cluster.refuses_to_start = {WORKER.name}
    for _ in range(121):
        assert world.round().error is not None
        world.clock.now += 10.0
    assert len(world.events("job-1", "ActionFailed")) == 3


def test_restarted_service_goes_on_where_the_other_was(world: World) -> None:
    world.submit(workers={"max": 2}, servers={"max": 2})
    world.live_until("the job is as large as it may be", lambda: world.repository.jobs.get("job-1").running == LARGEST)
    world.live_until("nothing more is to be done", lambda: world.round().n_actions == 0)
    launches, generation = len(world.cluster.launches), world.repository.jobs.get("job-1").generation
    tasks = world.running("job-1")
    before = world.repository.rounds.latest_decisions(["job-1"]).get("job-1")

    after = world.restarted()
    after.round("start")

    assert len(world.cluster.launches) == launches, "nothing was started again"
    assert world.cluster.stopped == []
    assert world.running("job-1") == tasks
    assert world.repository.jobs.get("job-1").generation == generation
    decision = world.repository.rounds.latest_decisions(["job-1"]).get("job-1")
    assert before is not None
    assert decision is not None
    assert decision.forecast.loss_curve, "the history was read again"
    assert decision.forecast.speed_model["n_points"] >= before.forecast.speed_model["n_points"]
    after.live_until("the job has ended", lambda: after.state().is_final)
    assert after.state() is JobState.SUCCEEDED


def test_deposed_leader_changes_nothing(world: World) -> None:
    world.submit()
    new_leader = world.restarted()
    with pytest.raises(StaleLeader):
        world.round()
    assert world.cluster.launches == []
    assert world.repository.jobs.get("job-1").wanted.is_empty
    new_leader.round()
    assert world.running("job-1") == [COORDINATOR, SERVER, WORKER]


def test_leader_deposed_in_the_middle_of_a_round_neither_starts_nor_stops(world: World) -> None:
    """As when the process was stopped (SIGSTOP) for longer than its lease: what it does next is fenced."""
    world.submit()
    world.round()
    world.cluster.exit(WORKER, 137)
    world.submit("job-2")
    world.cluster.refuses_to_start = {"job-2-worker-0-0", "job-1-worker-0-1"}
    world.round()
    world.cluster.refuses_to_start = set()
    launches, newer = len(world.cluster.launches), world.restarted()
    with pytest.raises(StaleLeader):
        world.round()  # nothing but starts is left to do
    world.repository.jobs.advance("job-1", CancelRequested(has_tasks=True), world.clock())
    with pytest.raises(StaleLeader):
        world.round()
    assert (len(world.cluster.launches), world.cluster.stopped) == (launches, [])
    newer.round()
    assert len(world.cluster.launches) > launches


def test_cancelled_job_ends_when_its_tasks_are_gone(world: World) -> None:
    world.submit()
    world.round()
    world.train(5)
    world.cluster.stubborn = {WORKER.name}
    world.repository.jobs.advance("job-1", CancelRequested(has_tasks=True), world.clock())
    world.round("cancel")
    assert world.running("job-1") == [WORKER]
    assert world.state() is JobState.RUNNING
    world.clock.now += 60
    world.round()
    assert (WORKER, True) in world.cluster.stopped
    world.round("task exited")
    assert world.state() is JobState.CANCELLED
    assert [event["wanted"] for event in world.events("job-1", "TaskExited")] == [False] * 3
    world.round()
    assert world.cluster.tasks() == ()


@once
@pytest.mark.parametrize("lost_role", [Role.SERVER, Role.WORKER])
def test_job_without_room_is_paused_and_goes_on_later(repository: Repository, tmp_path: Path, lost_role: Role) -> None:
    """One slot per node: when a node is lost, there is no room for even the smallest job."""
    nodes = [Node(f"node-{number}", Resources(1.0, 2**34)) for number in range(2)]
    world = World(repository, tmp_path, FakeCluster(nodes))
    world.submit()
    world.round()
    world.train(5)
    step = world.coordinators["job-1"].step
    lost = next(task.node for task in world.cluster.tasks() if task.key.role is lost_role)

    world.cluster.lose_node(lost)
    world.live_until("the job is paused", lambda: world.state() is JobState.PAUSED)
    assert world.repository.jobs.get("job-1").wanted.is_empty
    world.clock.now += 60
    for _ in range(3):
        world.round()
    assert world.running("job-1") == [], "nothing of a paused job is left, the coordinator included"

    world.cluster.return_node(lost)
    world.live_until("the job trains again", lambda: world.coordinators["job-1"].step > step)
    assert world.state() is JobState.RUNNING
    world.live_until("the job has ended", lambda: world.state().is_final)
    assert world.state() is JobState.SUCCEEDED


def test_unavailable_cluster_changes_nothing(world: World) -> None:
    world.submit()
    world.cluster.available = False
    with pytest.raises(ClusterUnavailable):
        world.round()
    assert world.repository.jobs.get("job-1").wanted.is_empty
    world.cluster.available = True
    world.round()
    assert len(world.running("job-1")) == 3


@once
def test_two_jobs_share_the_cluster(world: World) -> None:
    world.submit("job-1")
    world.live_until("the first has most of it", lambda: len(world.running("job-1")) >= 5)
    world.submit("job-2")
    world.live_until("the second trains", lambda: world.repository.jobs.get("job-2").running.workers > 0)
    for task in world.cluster.tasks():
        assert task.phase in (TaskPhase.RUNNING, TaskPhase.EXITED)
    used = [key for key in world.cluster.running() if key.role is not Role.COORDINATOR]
    assert len(used) <= 8
    world.live_until("both have ended", lambda: world.state("job-1").is_final and world.state("job-2").is_final)
    assert {world.state("job-1"), world.state("job-2")} == {JobState.SUCCEEDED}


def test_task_is_started_with_what_the_protocol_says(world: World) -> None:
    world.submit(environment={"MINE": "1"}, working_directory="/srv/code")
    world.round()
    job = world.repository.jobs.get("job-1")
    environment = world.cluster.environment(WORKER)
    assert environment["OPTIMUS_TASK_NAME"] == WORKER.name
    assert environment["OPTIMUS_TASK_RANK"] == "0"
    assert environment["OPTIMUS_COORDINATOR_ADDRESS"] == job.coordinator_address
    assert environment["OPTIMUS_JOB_DIRECTORY"] == str(world.directory / "jobs" / "job-1")
    assert environment["MINE"] == "1"
    assert {launch.environment["OPTIMUS_COORDINATOR_ADDRESS"] for launch in world.cluster.launches} == {
        job.coordinator_address
    }
    assert {launch.working_directory for launch in world.cluster.launches} == {"/srv/code"}
