"""What exits of tasks do to their job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.loop.loop_world import World
from tests.service.store.store_builders import add_samples

from optimus_contract.telemetry import Sample
from optimus_scheduler.lifecycle import CancelRequested, Outcome, PauseRequested, ResultReported
from optimus_scheduler.model import JobState, Resources, Role, Task, TaskKey, TaskPhase, Trouble
from optimus_service.clusters.stop_all import stop_all_tasks
from optimus_service.loop.exits import COORDINATOR_UNREACHABLE, WORKER_HUNG, is_failure
from optimus_service.observe.snapshot import merge_tasks
from optimus_service.store.records import TaskRecord

WORKER = TaskKey("job-1", Role.WORKER, 0)
SERVER = TaskKey("job-1", Role.SERVER, 0)


@pytest.mark.parametrize(
    ("code", "unwanted", "expected"),
    [
        (0, False, True),  # nobody had told it to leave
        (0, True, False),
        (None, False, False),  # lost with its node
        (4, False, False),  # follows from the death of the coordinator
        (1, False, True),
        (1, True, True),
        (3, False, True),
        (137, False, True),
        (137, True, False),  # it was stopped because it was not wanted
        (143, False, True),
        (143, True, False),
        (5, False, True),
        (5, True, False),  # it hung while its owner paused the job
    ],
)
def test_which_exits_speak_against_a_job(code: int | None, unwanted: bool, expected: bool) -> None:
    assert is_failure(code, 5.0 if unwanted else None) is expected


def newest(world: World, role: Role) -> TaskKey:
    return max(key for key in world.running("job-1", role) if key.rank == 0)


def crash(world: World, role: Role, code: int = 1) -> None:
    world.clock.now += 1.0
    world.cluster.exit(newest(world, role), code)
    world.round("task exited")


def test_error_in_the_users_code_fails_the_job_at_once(world: World) -> None:
    world.submit()
    world.round()
    world.cluster.print_line(WORKER, "Traceback: no data at /data/cats")
    crash(world, Role.WORKER, code=3)
    job = world.repository.jobs.get("job-1")
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert "own code failed in job-1-worker-0-0" in job.failure
    assert "no data at /data/cats" in job.failure


def test_a_worker_that_cannot_reach_its_coordinator_again_and_again_is_told_of(world: World) -> None:
    world.submit()
    world.round()
    address = world.repository.jobs.get("job-1").coordinator_address
    crash(world, Role.WORKER, code=4)
    assert not world.events("job-1", COORDINATOR_UNREACHABLE), "once, it may be the death of the coordinator"
    crash(world, Role.WORKER, code=4)
    assert world.events("job-1", COORDINATOR_UNREACHABLE) == [{"task": "job-1-worker-0-1", "times": 2}]
    (message,) = (e.message for e in world.repository.events.page("job-1").items if e.type == COORDINATOR_UNREACHABLE)
    assert message.startswith("job-1-worker-0-1 ended as it could not reach the job's coordinator")
    assert f"at {address}: 2 times in a row worker 0 did" in message
    assert world.state() is JobState.QUEUED


def test_crashing_without_progress_fails_the_job(world: World) -> None:
    world.submit()
    world.round()
    for _ in range(world.settings.max_task_failures - 1):
        crash(world, Role.WORKER)
        assert world.state() is JobState.QUEUED
    crash(world, Role.WORKER)
    job = world.repository.jobs.get("job-1")
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert job.failure.startswith("worker 0 failed 6 times in a row, and the job came no further in between; the last ")


@pytest.mark.parametrize("role", [Role.WORKER, Role.COORDINATOR])
def test_exit_with_0_by_surprise_counts(world: World, role: Role) -> None:
    """The user's code called `os._exit(0)`: it would be started again without end."""
    world.submit()
    world.round()
    for _ in range(world.settings.max_task_failures):
        crash(world, role, code=0)
        assert world.state() is JobState.QUEUED, "a task may have been let go with the result on its way"
    crash(world, role, code=0)
    job = world.repository.jobs.get("job-1")
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert f"{role.value} 0 ended 7 times with exit code 0 without being told to" in job.failure
    assert "sys.exit() or os._exit()" in job.failure


def test_task_that_leaves_before_the_result_is_told_is_no_failure(world: World) -> None:
    world.clock.now += 60.0  # its lease is over
    strict = World(world.repository, world.directory, world.cluster, world.clock, max_task_failures=1)
    strict.submit()
    strict.round()
    strict.train(2)
    crash(strict, Role.WORKER, code=0)
    assert strict.state() is JobState.RUNNING


def test_each_task_has_failures_of_its_own(world: World) -> None:
    """One incident that takes all tasks of a large job is not six failures."""
    world.submit()
    world.round()
    for _ in range(world.settings.max_task_failures - 1):
        crash(world, Role.WORKER)
        crash(world, Role.SERVER)
    assert world.state() is JobState.QUEUED


def test_progress_forgives_earlier_failures(world: World) -> None:
    world.submit()
    world.round()
    for _ in range(2 * world.settings.max_task_failures):
        crash(world, Role.WORKER)
        world.train(2)
    assert world.state() is JobState.RUNNING


@pytest.mark.parametrize("code", [0, 3, 5, 137, 143])
def test_tasks_that_are_stopped_with_the_service_are_no_failures_of_their_job(world: World, code: int) -> None:
    """However they end: no step was made between the stops."""
    world.submit()
    world.round()
    for _ in range(3 * world.settings.max_task_failures):
        for key in world.cluster.running():
            world.cluster.stubborn.add(key.name)
            world.cluster.stop(key, with_all=True)
            world.cluster.exit(key, code)
        world = world.restarted()
        world.round()
        assert world.running("job-1", Role.WORKER), "it is started again at once"
        world.clock.now += 1.0
    job = world.repository.jobs.get("job-1")
    assert (job.state.is_final, job.retries, job.attempt) == (False, 0, 0)
    assert world.events("job-1", WORKER_HUNG) == []
    told = next(e.message for e in world.repository.events.page("job-1").items if e.type == "TaskExited")
    assert "stopped with all tasks, as `optimus stop --tasks` does" in told


def test_a_task_that_ends_with_143_again_and_again_fails_its_job(world: World) -> None:
    """Also between stops of the service and its tasks, which neither count nor make good."""
    world.submit()
    world.round()
    for number in range(world.settings.max_task_failures):
        assert not world.state().is_final
        if number:
            stop_all_tasks(world.cluster)
            world = world.restarted()
            world.round()
        crash(world, Role.WORKER, code=143)
    job = world.repository.jobs.get("job-1")
    assert job.state is JobState.FAILED
    assert f"failed {world.settings.max_task_failures} times in a row" in (job.failure or "")


def test_lost_node_is_not_the_jobs_fault(world: World) -> None:
    world.submit()
    world.round()
    world.train(5)
    node = next(task.node for task in world.cluster.tasks())
    world.cluster.lose_node(node)
    world.round("node lost")
    moved = [*world.running("job-1", Role.WORKER), *world.running("job-1", Role.SERVER)]
    assert len(moved) == 2
    assert node not in {task.node for task in world.cluster.tasks() if task.key in moved}
    assert [event["exit_code"] for event in world.events("job-1", "TaskExited")] == [None] * 3
    world.live_until("the job has ended", lambda: world.state().is_final)
    assert world.state() is JobState.SUCCEEDED


def test_a_worker_that_its_job_gives_back_was_let_go(world: World) -> None:
    world.submit()
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 0)
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=True), world.clock())
    world.live_until("its tasks have left", lambda: len(world.events("job-1", "TaskExited")) >= 2)
    told = [each.message for each in world.repository.events.page("job-1").items if each.type == "TaskExited"]
    assert any(each.endswith("exited with 0: it was let go.") for each in told), told
    assert not any("by itself" in each for each in told), told


def test_the_code_of_a_scripts_worker_is_not_told_as_that_of_its_command(world: World) -> None:
    """The worker ends with 0 after a command that ended with 1."""
    servers = {"min": 0, "max": 0}
    world.submit("job-1", task=None, architecture="script", command=["python", "a.py"], servers=servers)
    world.round()
    crash(world, Role.WORKER, code=0)
    (told,) = (each.message for each in world.repository.events.page("job-1").items if each.type == "TaskExited")
    assert told.endswith("exited with 0: it was let go, whatever the code of its command.")


def test_what_ended_while_the_service_was_away_is_told_as_that(world: World) -> None:
    world.submit()
    world.round()
    world.cluster.exit(WORKER, 137)
    world = world.restarted()
    world.round()
    world.cluster.exit(newest(world, Role.SERVER), 137)
    world.round()
    server, worker = (each for each in world.repository.events.page("job-1").items if each.type == "TaskExited")
    why = "it was stopped or killed, and not by Optimus"
    assert worker.message == f"{WORKER.name} exited with 137 while the service was away: {why}."
    assert server.message == f"{SERVER.name} exited with 137: it was killed."


@pytest.mark.parametrize("has_round_come", [True, False])
def test_a_task_that_a_cancelled_job_had_stopped_unseen_is_not_told_as_killed_by_others(
    world: World, has_round_come: bool
) -> None:
    world.submit()
    world.round()
    world.repository.jobs.advance("job-1", CancelRequested(has_tasks=True), world.clock())
    if has_round_come:
        world.round("cancel")
    world.cluster.exit(WORKER, 143)
    world = world.restarted()
    world.round()
    (told,) = (
        each.message
        for each in world.repository.events.page("job-1").items
        if each.type == "TaskExited" and WORKER.name in each.message
    )
    assert told == f"{WORKER.name} exited with 143 while the service was away: it was stopped."


@pytest.mark.parametrize("has_ended", [True, False])
def test_the_result_of_a_job_that_ended_unseen_is_awaited(world: World, has_ended: bool) -> None:
    """Its coordinator let the server go, and reports the result when the service listens again."""
    world.submit()
    world.round()
    world.train(10)
    world.cluster.exit(SERVER, 0)
    world = world.restarted()
    decided = world.repository.rounds.latest_decisions(["job-1"])
    record = world.round()
    assert record.n_actions == 0
    assert world.running("job-1", Role.SERVER) == []
    assert world.repository.rounds.latest_decisions(["job-1"]) == decided, "nothing is said of a job that may be over"
    (told,) = (each.message for each in world.repository.events.page("job-1").items if each.type == "TaskExited")
    assert told == f"{SERVER.name} exited with 0 while the service was away: it was let go, or ended by itself."
    world.clock.now += 2.0
    if has_ended:
        result = ResultReported(Outcome.SUCCEEDED, 10)
        world.repository.jobs.advance("job-1", result, world.clock())
        world.round()
        assert world.state() is JobState.SUCCEEDED
        assert world.running("job-1", Role.SERVER) == []
    else:
        assert world.round().n_actions == 0
        world.clock.now += 6.0
        world.round()
        assert world.running("job-1", Role.SERVER), "it had ended without being told to"


def test_task_that_was_never_seen_is_started_again(world: World) -> None:
    """The service died after it had recorded the task, before the cluster knew of it."""
    world.submit()
    world.cluster.refuses_to_start = {WORKER.name}
    world.round()
    assert WORKER in {record.key for record in world.repository.tasks.select()}
    world.cluster.refuses_to_start = set()
    world.round()
    assert WORKER in world.running("job-1")
    assert world.events("job-1", "TaskExited") == []


def test_tasks_that_nobody_recorded_are_left_alone(world: World) -> None:
    world.submit()
    world.round()
    stranger = TaskKey("somebody-else", Role.WORKER, 0)
    launch = world.cluster.launches[0]
    world.cluster.start(type(launch)(stranger, launch.node, launch.resources, {}))
    world.round()
    assert stranger in world.cluster.running()
    assert world.cluster.stopped == []


def test_exit_is_not_judged_by_old_progress(world: World) -> None:
    """After a restart the samples of a long job are read in several rounds; until then its progress looks old."""
    world.submit()
    world.round()
    world.train(2)
    most = world.settings.max_task_failures
    for _ in range(most - 1):
        crash(world, Role.WORKER)
    state = world.coordinators["job-1"]
    told = [
        Sample(
            membership_epoch=state.epoch,
            rank=0,
            sequence=state.sequence + number,
            workers=state.workers,
            servers=state.servers,
            at=world.clock.now,
            step=state.step if number < 2999 else state.step + 1,
            n_steps=1,
            data_epoch=1.0,
            loss=0.5,
            n_examples=32,
            seconds=1.0,
        )
        for number in range(3000)
    ]
    world.clock.now += 1.0
    for first in (0, 1000, 2000):  # the last one is progress
        added = add_samples(world.repository, "job-1", told[first : first + 1000], world.clock.now)
        assert added.accepted == 1000
    restarted = World(world.repository, world.directory, world.cluster, world.clock, samples_per_round=1000)
    for _ in range(2):
        crash(restarted, Role.WORKER)
        assert restarted.state() is JobState.RUNNING
    for _ in range(3):
        restarted.round()  # reads the rest
    for _ in range(most - 3):
        crash(restarted, Role.WORKER)
        assert restarted.state() is JobState.RUNNING
    crash(restarted, Role.WORKER)
    assert restarted.state() is JobState.FAILED, "failures while it was read count later"


def test_failure_counts_the_task_that_it_names(world: World) -> None:
    world.submit()
    world.round()
    for _ in range(world.settings.max_task_failures):
        crash(world, Role.SERVER, code=0)
    crash(world, Role.WORKER)
    assert world.state() is JobState.QUEUED, "the worker failed once"


def test_workers_that_hang_again_and_again_fail_the_job_though_others_get_on(world: World) -> None:
    world.submit(workers={"min": 2, "max": 2})
    world.round()
    for time in range(1, world.settings.max_task_failures + 1):
        world.train(5)  # the others make steps meanwhile
        crash(world, Role.WORKER, code=5)
        assert [each["times"] for each in world.events("job-1", WORKER_HUNG)] == list(range(1, time + 1))
    job = world.repository.jobs.get("job-1")
    assert job.state is JobState.FAILED
    assert job.failure is not None
    assert job.failure.startswith("its workers hung 6 times within 60 min, the last time job-1-worker-0-")
    assert "longer than is usual for it (60 s at least; `hang_seconds` sets another time)" in job.failure


def test_a_worker_that_hangs_is_told_with_the_time_that_its_owner_allows(world: World) -> None:
    world.submit(hang_seconds=7.5)
    world.round()
    crash(world, Role.WORKER, code=5)
    (event,) = [each for each in world.repository.events.page("job-1", limit=100).items if each.type == WORKER_HUNG]
    assert "longer than the 7.5 s that `hang_seconds` allows" in event.message


def test_hangs_that_are_long_ago_do_not_count(world: World) -> None:
    world.submit(workers={"min": 2, "max": 2})
    world.round()
    for _ in range(2 * world.settings.max_task_failures):
        world.clock.now += 1000.0
        world.train(5)
        crash(world, Role.WORKER, code=5)
    assert world.state() is JobState.RUNNING


def test_a_hang_of_a_worker_that_was_to_leave_is_said_not_to_count(world: World) -> None:
    world.submit()
    world.round()
    world.train(5)
    world.round()
    key = newest(world, Role.WORKER)
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=True), world.clock())
    world.round()
    world.cluster.exit(key, 5)
    world.round("task exited")
    messages = [each.message for each in world.repository.events.page("job-1", limit=100).items]
    assert f"{key.name} exited with 5: its training code hung, after it was asked to leave: that is not counted " in (
        " ".join(messages)
    )
    assert not world.events("job-1", WORKER_HUNG)


some_tasks = st.lists(
    st.builds(
        Task,
        st.builds(TaskKey, st.just("a"), st.just(Role.WORKER), st.integers(0, 1)),
        st.sampled_from(["node-0", "node-1"]),
        st.sampled_from([TaskPhase.STARTING, TaskPhase.RUNNING]),
        trouble=st.sampled_from([None, Trouble("ImagePull", "no such image")]),
        resources=st.sampled_from([None, Resources(1.0)]),
    ),
    max_size=2,
    unique_by=lambda task: task.key,
)
some_records = st.lists(
    st.builds(
        TaskRecord,
        key=st.builds(TaskKey, st.just("a"), st.just(Role.WORKER), st.integers(0, 1)),
        node=st.just("node-0"),
        created_at=st.just(0.0),
        unwanted_since=st.sampled_from([None, 5.0]),
        exited_at=st.sampled_from([None, 9.0]),
        exit_code=st.sampled_from([None, 1]),
        gpu_type=st.sampled_from([None, "v100"]),
    ),
    max_size=2,
    unique_by=lambda record: record.key,
)


@given(some_tasks, some_records, some_tasks, some_records)
def test_tasks_that_are_as_before_are_the_very_same(
    seen: list[Task], records: list[TaskRecord], seen_before: list[Task], records_before: list[TaskRecord]
) -> None:
    before = {task.key: task for task in merge_tasks(seen_before, records_before)}
    merged = merge_tasks(seen, records, before)
    assert merged == merge_tasks(seen, records)
    assert all(task is before[task.key] for task in merged if task == before.get(task.key))
