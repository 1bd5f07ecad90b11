"""GPU types, quotas, deadlines and budgets in the service: from the API's words to what tasks are started with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.service.loop.loop_world import VirtualClock, World

from optimus_scheduler.lifecycle import AllTasksGone, CancelRequested
from optimus_scheduler.model import Allocation, JobState, Node, Quota, Resources, Role, WorkerLimit
from optimus_service.clusters.fake import FakeCluster
from optimus_service.store.records import UserRecord
from optimus_service.store.repository import Repository

GIB = 2**30
TWO_TYPES = [
    Node("fast", Resources(8.0, 16 * GIB, {"v100": 4})),
    Node("slow", Resources(8.0, 16 * GIB, {"k80": 4})),
]
ONE_GPU: dict[str, Any] = {"max": 4, "resources": {"cpu": 0.5, "gpus": 1}}
FEW: dict[str, Any] = {"max": 2, "resources": {"cpu": 0.5}}
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def typed(repository: Repository, tmp_path: Path) -> World:
    return World(repository, tmp_path, FakeCluster(TWO_TYPES))


def reasons(world: World, job_id: str) -> list[str]:
    return [decision.reason for decision in world.repository.rounds.decisions(job_id, limit=1000).items]


# --- GPU types -------------------------------------------------------------------------------------------------------


def test_workers_are_started_on_one_type_and_told_which(typed: World) -> None:
    typed.submit("a", workers=ONE_GPU, servers=FEW, gpu_types=["k80"])
    typed.submit("b", workers=ONE_GPU, servers=FEW)
    typed.round()
    for job_id, kind, node in (("a", "k80", "slow"), ("b", "v100", "fast")):
        assert typed.repository.jobs.get(job_id).wanted == Allocation(1, 1, kind)
        launches = {one.key.role: one for one in typed.cluster.launches if one.key.job_id == job_id}
        worker = launches[Role.WORKER]
        assert (worker.node, worker.resources.gpus) == (node, {kind: 1})
        assert (worker.environment["OPTIMUS_GPU_TYPE"], worker.environment["OPTIMUS_GPUS"]) == (kind, "1")
        assert "OPTIMUS_GPU_TYPE" not in launches[Role.SERVER].environment


def test_what_is_measured_knows_its_type(typed: World) -> None:
    typed.submit("a", workers=ONE_GPU, servers=FEW)
    for _ in range(4):
        typed.round()
        typed.train(20.0)
    job = typed.repository.jobs.get("a")
    assert job.running.gpu_type == "v100"
    memberships = typed.repository.memberships.of_job("a")
    assert {one.gpu_type for one in memberships} == {"v100"}
    seen = typed.rounds._observer.look(_cluster_state(typed), typed.clock())
    assert {sample.gpu_type for sample in seen.jobs[0].speed_samples} == {"v100"}
    assert {task.gpu_type for task in seen.tasks if task.key.role is Role.WORKER} == {"v100"}


def _cluster_state(world: World) -> Any:
    from optimus_service.observe.snapshot import ClusterState

    return ClusterState.of(world.cluster)


def test_a_job_moves_when_its_type_is_gone(typed: World) -> None:
    typed.submit("a", workers=ONE_GPU, servers=FEW)
    typed.live_until("it runs", lambda: typed.state("a") is JobState.RUNNING)
    typed.cluster.lose_node("fast")
    typed.live_until("it runs on the other type", lambda: typed.repository.jobs.get("a").running.gpu_type == "k80")
    typed.live_until("it ends", lambda: typed.state("a") is JobState.SUCCEEDED)
    assert {one.gpu_type for one in typed.repository.memberships.of_job("a") if one.workers} == {"v100", "k80"}


# --- quotas ----------------------------------------------------------------------------------------------------------


def test_a_quota_is_borrowed_and_given_back(world: World) -> None:
    limits = {"workers": {"min": 2, "max": 2}, "servers": {"min": 2, "max": 2}}
    for name in ("b1", "b2"):
        world.submit(name, project="b", **limits)
    world.live_until("borrowers run", lambda: all(world.state(name) is JobState.RUNNING for name in ("b1", "b2")))
    world.repository.projects.put(Quota("a", share=0.5), world.clock())
    world.submit("a1", project="a", **limits)
    world.live_until("the owner runs", lambda: world.state("a1") is JobState.RUNNING)
    paused = [name for name in ("b1", "b2") if world.state(name) is not JobState.RUNNING]
    assert len(paused) == 1
    assert "WaitingForQuota" in reasons(world, paused[0])
    everybody = ("a1", "b1", "b2")
    world.live_until("all end", lambda: all(world.state(name) is JobState.SUCCEEDED for name in everybody))


def test_a_project_that_may_not_borrow_stays_within(world: World) -> None:
    world.repository.projects.put(Quota("a", cpu=4.0, may_borrow=False), world.clock())
    for name in ("a1", "a2", "a3"):
        world.submit(name, project="a")
    for _ in range(10):
        world.round()
        world.train(5.0)
        wanted = [world.repository.jobs.get(name).wanted for name in ("a1", "a2", "a3")]
        assert sum(size.workers + size.servers for size in wanted) <= 4
    assert any("WaitingForQuota" in reasons(world, name) for name in ("a1", "a2", "a3"))


# --- workers that jobs hold together ---------------------------------------------------------------------------------


def test_jobs_of_a_user_hold_no_more_workers_together_than_they_may(world: World) -> None:
    limits = {"workers_together": 3}
    now, spec = world.clock(), {"workers": {"min": 1, "max": 4}, "servers": {"min": 1, "max": 1}}
    ada = UserRecord(name="ada", kind="person", role=None, projects={}, created_at=now, created_by="t", limits=limits)
    world.repository.people.create_user(ada)
    for name in ("a1", "a2", "a3", "a4"):
        world.submit(name, owner="ada", **spec)
    world.submit("e1", owner="eve", **spec)
    for _ in range(8):
        world.round()
        world.train(20.0)
        wanted = [world.repository.jobs.get(name).wanted.workers for name in ("a1", "a2", "a3", "a4")]
        assert sum(wanted) <= 3
    assert sum(wanted) == 3
    assert not world.repository.jobs.get("e1").wanted.is_empty
    assert "WaitingForWorkerLimit" in reasons(world, "a4")
    world.repository.people.change_user("ada", "person", None, {}, {})
    world.live_until("the fourth starts, too", lambda: not world.repository.jobs.get("a4").wanted.is_empty)


def test_a_project_with_this_limit_alone_is_guaranteed_nothing(world: World) -> None:
    world.repository.projects.put(Quota("a"), world.clock(), {"workers_together": 2})
    seen = world.rounds._observer.look(_cluster_state(world), world.clock())
    assert (seen.quotas, seen.worker_limits) == ((), (WorkerLimit(2, project="a"),))


# --- deadlines and budgets -------------------------------------------------------------------------------------------


def test_a_deadline_is_met_beside_other_jobs(world: World) -> None:
    for name in ("other-1", "other-2", "other-3", "other-4"):
        world.submit(name, convergence={"max_steps": 3000})
    submitted_at = world.clock()
    world.submit("urgent", convergence={"max_steps": 600}, deadline_seconds=230)
    world.live_until("it ends", lambda: world.state("urgent") is JobState.SUCCEEDED or _at(world, "urgent") >= 600)
    assert world.clock() - submitted_at <= 240
    assert {"MeetingDeadline", "LearningSpeed"} & set(reasons(world, "urgent"))
    latest = world.repository.rounds.latest_decisions(["urgent"]).get("urgent")
    assert latest is not None
    assert "deadline" in latest.message


def _at(world: World, job_id: str) -> int:
    return world.repository.jobs.get(job_id).step


def test_a_deadline_that_cannot_be_met_is_told(world: World) -> None:
    world.submit("late", convergence={"max_steps": 100_000}, deadline_seconds=400)
    world.live_until("it is told", lambda: "DeadlineCannotBeMet" in reasons(world, "late"), rounds=30, seconds=10.0)
    latest = world.repository.rounds.latest_decisions(["late"]).get("late")
    assert latest is not None
    assert "cannot be met: it needs about" in latest.message


def test_a_round_comes_when_a_deadline_passes(world: World) -> None:
    """What was said of it before it passed is not what is true afterwards."""
    world.submit("late", convergence={"max_steps": 100_000}, deadline_seconds=400)
    world.submit("later", convergence={"max_steps": 100_000}, deadline_seconds=500)
    world.round()
    assert world.rounds.wakes_at == world.repository.jobs.get("late").created_at + 400.0
    world.clock.now = world.rounds.wakes_at
    world.round()
    assert "passed at" in world.repository.rounds.latest_decisions(["late"])["late"].message
    assert world.rounds.wakes_at == world.repository.jobs.get("later").created_at + 500.0


def test_a_budget_keeps_a_job_small(repository: Repository, tmp_path: Path) -> None:
    sizes = {}
    for name, budget, start in (("rich", 1000.0, 1e6), ("poor", 14.0, 2e6)):
        clock = VirtualClock(start)
        world = World(repository, tmp_path, clock=clock, price_per_core_hour=36.0)  # a cent for a second of a core
        world.submit(name, convergence={"max_steps": 1500, "max_cost": budget})
        for _ in range(12):
            world.round()
            world.train(10.0)
        job = world.repository.jobs.get(name)
        sizes[name] = job.wanted.workers + job.wanted.servers
        world.repository.jobs.advance(name, CancelRequested(has_tasks=False), world.clock())
        world.repository.jobs.advance(name, AllTasksGone(), world.clock())
    assert 0 < sizes["poor"] < sizes["rich"]
    assert any("Of its budget" in one.message for one in repository.rounds.decisions("poor", limit=1000).items)


def test_the_specification_that_tasks_get_has_it_all(typed: World) -> None:
    typed.submit("a", workers=ONE_GPU, servers=FEW, gpu_types=["v100"], deadline="2030-01-01T00:00:00Z")
    typed.round()
    launch = next(one for one in typed.cluster.launches if one.key.role is Role.WORKER)
    spec = json.loads(launch.environment["OPTIMUS_JOB_SPEC"])
    assert (spec["gpu_types"], spec["deadline"]) == (["v100"], "2030-01-01T00:00:00Z")
