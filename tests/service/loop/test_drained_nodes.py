"""A node that an operator drains: its jobs train on elsewhere."""

from __future__ import annotations

from tests.service.loop.loop_world import World

from optimus_scheduler.model import JobState, Role


def nodes_of(world: World) -> set[str]:
    running = set(world.cluster.running())
    return {task.node for task in world.cluster.tasks() if task.key in running}


def test_jobs_leave_a_drained_node_and_lose_no_step(world: World) -> None:
    jobs = ["job-1", "job-2"]
    for job_id in jobs:
        world.submit(job_id, workers={"max": 2}, servers={"max": 1})
    world.live_until("both nodes are in use", lambda: nodes_of(world) == {"node-0", "node-1"})
    world.train(30.0)
    before = {job.id: job.step for job in world.repository.jobs.active()}
    world.cluster.empty_node("node-0")

    def is_empty() -> bool:
        led = [len(world.running(job_id, Role.COORDINATOR)) for job_id in jobs]
        return nodes_of(world) == {"node-1"} and led == [1, 1]

    world.live_until("it is empty", is_empty)
    for job_id in jobs:
        job = world.repository.jobs.get(job_id)
        assert (job.state, job.attempt) == (JobState.RUNNING, 0)
        assert job.step >= before[job_id]
        assert not any(each.lost_steps for each in world.repository.memberships.of_job(job_id))
    world.cluster.return_node("node-0")
    world.submit("job-3", workers={"max": 1}, servers={"max": 1})
    world.live_until("it is used again", lambda: "node-0" in nodes_of(world))


def test_a_job_without_room_elsewhere_waits(world: World) -> None:
    world.submit(workers={"min": 3, "max": 3}, servers={"max": 1})
    world.submit("job-2", workers={"min": 3, "max": 3}, servers={"max": 1})
    world.live_until("both run", lambda: nodes_of(world) == {"node-0", "node-1"})
    world.cluster.empty_node("node-1")
    world.live_until("one node is empty", lambda: nodes_of(world) == {"node-0"})
    states = sorted(job.state.value for job in world.repository.jobs.active())
    assert states == ["paused", "running"]
