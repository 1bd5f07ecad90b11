"""Jobs with an elastic batch in the service: what is wanted, what is stored, what is learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.service.loop.loop_world import ELASTIC, NOISE_SCALE, World, elastic_step_seconds
from tests.service.store.store_builders import batches_of

from optimus_contract.telemetry import Gradients
from optimus_models.speed.goodput import gain
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Job, Mode, SetWanted
from optimus_service import server
from optimus_service.observe.snapshot import ClusterState
from optimus_service.observe.spec import spec_of
from optimus_service.observe.telemetry import MAX_NOISE_SCALES, JobHistory
from optimus_service.settings import Settings
from optimus_service.store.records import MembershipRecord, SampleRecord
from optimus_service.store.repository import Repository

RING: dict[str, Any] = {
    "architecture": "allreduce",
    "servers": {"min": 0, "max": 0},
    "workers": {"max": 2},
    "elastic_batch": ELASTIC,
    "convergence": {"max_steps": 10**7},
}


def observed(world: World, job_id: str) -> Job:
    """What the next round will see of the job."""
    snapshot = world.rounds._observer.look(ClusterState.of(world.cluster), world.clock())
    return next(job for job in snapshot.jobs if job.id == job_id)


def test_a_job_gets_the_batch_that_suits_it(world: World) -> None:
    world.submit("job-1", **RING)
    world.round()
    first = world.repository.wanted.get("job-1")
    assert first.batch == ELASTIC["minimum"], "nothing is known of the noise yet"
    world.train(5)
    assert observed(world, "job-1").batch == first.batch
    world.live_until("a larger batch", lambda: (world.repository.wanted.get("job-1").batch or 0) > 100)

    world.live_until("at rest", lambda: world.coordinators["job-1"].batch == world.repository.wanted.get("job-1").batch)
    wanted = world.repository.wanted.get("job-1")
    causes = [event["cause"] for event in world.events("job-1", "MembershipChanged")]
    assert causes[0] == "start"
    record = world.repository.jobs.get("job-1")
    assert record.rescales == causes.count("rescale"), "another batch is no rescale"
    told = world.repository.memberships.of_job("job-1")
    assert (told[0].global_batch, told[-1].global_batch) == (first.batch, wanted.batch)
    (decision, *_) = world.repository.rounds.decisions("job-1").items
    assert decision.batch == record.wanted_batch == wanted.batch
    assert str(wanted.batch) in decision.message

    seen = observed(world, "job-1")
    assert seen.noise_scales[-1] == pytest.approx(NOISE_SCALE)
    assert seen.step == record.step
    by_batch = {sample.batch: sample for sample in seen.speed_samples if sample.workers == wanted.allocation.workers}
    sample = by_batch[wanted.batch]
    assert wanted.batch is not None
    seconds, exchange = elastic_step_seconds(wanted.allocation.workers, wanted.batch)
    assert sample.steps_per_second == pytest.approx(1.0 / seconds), "steps as they were computed"
    assert sample.exchange_seconds == pytest.approx(exchange)
    worth = float(gain([wanted.batch], ELASTIC["minimum"], NOISE_SCALE)[0])
    assert decision.forecast.steps_per_second == pytest.approx(worth / seconds, rel=0.3), "in the smallest batch's"

    for _ in range(20):
        world.round()
        world.train(5)
    at_rest = world.repository.wanted.get("job-1")
    again = world.restarted()
    again.round()
    assert again.repository.wanted.get("job-1") == at_rest, "it comes to rest, restarts included"


def test_a_batch_alone_is_a_new_generation_of_the_same_tasks(world: World) -> None:
    world.submit("job-1", **RING)
    world.round()
    world.train(2)
    before, since = world.repository.wanted.get("job-1"), world.repository.jobs.get("job-1").wanted_at
    world.clock.now += 10.0
    action = SetWanted("job-1", before.allocation, before.directive, before.tasks, batch=128)
    world.rounds._applier._set_wanted([action], world.repository.as_leader(world.fence))
    after = world.repository.wanted.get("job-1")
    assert (after.generation, after.batch, after.tasks) == (before.generation + 1, 128, before.tasks)
    assert world.heard.generations[-1] == ("job-1", after.generation), "its coordinator is woken"
    assert world.repository.jobs.get("job-1").wanted_at == since, "its size is as old as before"
    world.rounds._applier._set_wanted([action], world.repository.as_leader(world.fence))
    assert world.repository.wanted.get("job-1").generation == after.generation


def test_the_next_job_of_the_task_knows_the_noise(world: World) -> None:
    world.submit("job-1", **{**RING, "convergence": {"loss_decrease": {"below": 0.05}, "max_steps": 10**7}})
    world.live_until("a larger batch", lambda: (world.repository.wanted.get("job-1").batch or 0) > 100)
    world.live_until("its end", lambda: world.state("job-1").is_final)
    world.round()
    world.submit("job-2", **RING)
    world.round()
    assert (world.repository.wanted.get("job-2").batch or 0) > 100, "at once"
    (ended,) = observed(world, "job-2").similar
    assert ended.noise_scales[-1] == pytest.approx(NOISE_SCALE)
    assert {sample.batch for sample in ended.speed_samples} > {ELASTIC["minimum"]}
    assert ended.global_batch_size == ELASTIC["minimum"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("given", "batch"), [(None, 32), (96, 96)])
def test_policies_that_choose_no_batches_leave_it(
    repository: Repository, tmp_path: Path, given: int | None, batch: int
) -> None:
    settings = Settings(data_directory=tmp_path)
    world = World(repository, tmp_path, planner=server.make_planner(policy_named("drf"), settings))
    job = world.submit("job-1", **RING, global_batch_size=given)
    assert spec_of(job).counted_batch == 32
    for _ in range(10):
        world.round()
        world.train(5)
    assert world.repository.wanted.get("job-1").batch == batch


# --- what a history keeps --------------------------------------------------------------------------------------------


def elastic_sample(number: int, *, epoch: int = 1, batch: int = 64, scale: float = 100.0) -> SampleRecord:
    """The `number`-th second of a job: 5 updates, each worth 2 steps."""
    return SampleRecord(
        id=number, received_at=float(number), membership_epoch=epoch, rank=0, sequence=number, workers=1, servers=0,
        at=float(number), step=10 * number, n_steps=10, updates=5, global_batch=batch, data_epoch=0.0, loss=1.0,
        n_examples=5 * batch, seconds=1.0, wait_seconds=0.2, compute_seconds=0.8,
        gradients=Gradients(square=1.0, variance=scale),
    )  # fmt: skip


def test_a_history_keeps_noise_from_the_beginning_on_in_bounded_memory() -> None:
    history = JobHistory(Mode.SYNC)
    history.add(batches_of(elastic_sample(n, scale=10.0 * 1000 ** (n / 3000)) for n in range(1, 3001)))
    assert len(history.noise) == MAX_NOISE_SCALES
    curve = history.noise_curve()
    assert len(curve) <= 128
    assert curve[0][1] == pytest.approx(10.0, rel=0.1)
    assert curve[-1][1] == pytest.approx(10_000.0, rel=0.1)
    assert [step for step, _ in curve] == sorted(step for step, _ in curve)
    lost = MembershipRecord(
        job_id="j",
        epoch=2,
        generation=1,
        at=0.0,
        step=10_000,
        workers=("w",),
        servers=(),
        cause="worker_lost",
        lost_steps=9,
    )
    history.learn_memberships([lost])
    assert history.noise_curve()[-1][0] <= 10_000 + 1000


def test_speeds_of_different_batches_are_kept_apart() -> None:
    history = JobHistory(Mode.SYNC)
    history.add(batches_of(elastic_sample(number) for number in range(1, 21)))
    history.add(batches_of(elastic_sample(number, epoch=2, batch=128) for number in range(21, 41)))
    found = {(each.workers, each.batch): each for each in history.speeds.samples()}
    assert set(found) == {(1, 64), (1, 128)}
    assert found[1, 128].steps_per_second == pytest.approx(5.0), "updates, not what they are worth"
    assert found[1, 128].exchange_seconds == pytest.approx(0.04)
    assert history.computed_steps == 5 * 40
