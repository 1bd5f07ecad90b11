"""A batch that the service sets: the right examples, counts and learning rates, changed while the job trains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workers.coordinator.group_world import GroupWorld, group_world
from tests.workers.coordinator.harness import wanted
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, worker
from tests.workers.protocol.replay import Replay, final_sections, history

from optimus_contract.codec import read
from optimus_contract.job import ElasticBatch
from optimus_contract.membership import WantedMembership
from optimus_models.speed import goodput as scheduler
from optimus_models.speed.goodput import gain as gain_of_the_scheduler
from optimus_workers.coordinator.events import WantedArrived
from optimus_workers.coordinator.handlers.membership_change import REGROUP_SECONDS
from optimus_workers.coordinator.job_settings import JobSettings, elastic_micro_batches, gain, next_batch, recounted
from optimus_workers.coordinator.journal import Journal, Past, Recounted, replay
from optimus_workers.data.sampler import micro_batch_indices
from optimus_workers.wire.messages import Done, FromTask, Recount, ToTask
from optimus_workers.wire.ranges import worker_micro_batches
from optimus_workers.wire.values import GlobalBatch, TaskProfile, UpdateRule, followed

RULE = UpdateRule("sgd", 0.0, False, 0.0, (0.9, 0.999), 1e-8)
BOUNDS = ElasticBatch(minimum=10, maximum=10**6, per_pass=16, warmup_epochs=1.0)


def profile(n_examples: int = 1000, batch: int = 10) -> TaskProfile:
    return TaskProfile(16, 16, 16, n_examples, batch, 4, RULE)


# --- arithmetic ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 300), st.integers(1, 64), st.integers(0, 3000))
def test_a_batch_is_cut_and_weighed_as_the_scheduler_assumes(
    workers: int, minimum: int, per_pass: int, up: int
) -> None:
    size = minimum + up
    limits = scheduler.ElasticBatch(minimum, size, per_pass, most_passes=10**6)
    bounds = ElasticBatch(minimum=minimum, maximum=size, per_pass=per_pass)
    assert elastic_micro_batches(bounds, workers, size) == workers * int(
        scheduler.cut(limits, [workers], [size]).passes[0]
    )
    for noise in (0.0, 17.0, 1e5):
        assert gain(size, minimum, noise) == pytest.approx(float(gain_of_the_scheduler([size], minimum, noise)[0]))


Part = tuple[int, int, int, int, float | None]
"""Workers, batch wanted, steps, how many of the last are then lost, and a reading of the noise scale half way."""


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(5, 60), st.integers(0, 8), st.integers(0, 5),
                  st.none() | st.floats(0.0, 1e4)),
        min_size=1, max_size=6,
    ),
    st.integers(3, 80),
)  # fmt: skip
def test_each_example_once_per_epoch_whatever_the_batches(parts: list[Part], n_examples: int) -> None:
    plan, told = JobSettings(elastic=ElasticBatch(minimum=5, maximum=10**6, per_pass=7)), profile(n_examples, 5)
    step, batches, trained, counts = 0, tuple[GlobalBatch, ...](), list[list[int]](), list[float]()
    for n_workers, size, n_steps, n_lost, noise in parts:
        batch = next_batch(plan, told, n_workers, step, batches, size, None)
        batches = followed(batches, batch)
        assert batch.counted_at(step) == pytest.approx(sum(counts)), "what was counted stays counted"
        for taken in range(step, step + n_steps):
            anew = recounted(batch, taken, noise) if noise is not None and taken - step == n_steps // 2 else None
            if anew is not None:
                batch, batches = anew, followed(batches, anew)
            trained.append(_examples_of(batch, taken, n_workers, n_examples))
            counts.append(batch.gain)
            assert 1.0 <= batch.gain <= size / 5 + 1e-9
        step = max(0, step + n_steps - n_lost)
        del trained[step:], counts[step:]
    stream = [example for examples in trained for example in examples]
    for start in range(0, len(stream), n_examples):
        assert max(Counter(stream[start : start + n_examples]).values()) == 1
    after = next_batch(plan, told, 1, step, batches, 5, None)
    assert after.position(step) == len(stream), "the count of examples is right as well"
    assert after.reported_step(step) == pytest.approx(sum(counts), abs=1.0)


def _examples_of(batch: GlobalBatch, step: int, n_workers: int, n_examples: int) -> list[int]:
    found: list[int] = []
    for rank in range(n_workers):
        for slot in range(*worker_micro_batches(batch.slots, rank, n_workers)):
            indices = micro_batch_indices(3, batch.position(step), slot, batch.slots, batch.size, n_examples).tolist()
            assert len(indices) <= 7, "more do not fit into a worker"
            found += indices
    assert len(found) == batch.size
    return found


def test_the_learning_rate_grows_with_the_batch_and_falls_with_it() -> None:
    plan, told = JobSettings(elastic=BOUNDS), profile()
    first = next_batch(plan, told, 1, 0, ())
    assert (first.size, first.slots, first.learning_rate_factor(7)) == (10, 1, 1.0)
    larger = next_batch(plan, told, 2, 50, (first,), 40, 90.0)
    assert [larger.learning_rate_factor(50 + step) for step in (0, 5, 25, 90)] == [1.0, 1.6, 4.0, 4.0], "1,000 examples"
    assert larger.gain == pytest.approx(10.0 / (1.0 + 90.0 / 40.0))

    anew = recounted(larger, 55, 1e9)
    assert anew is not None
    assert anew.gain == pytest.approx(4.0, rel=1e-6), "all noise: as much as its examples say"
    for step in (55, 60, 75, 90):
        assert anew.learning_rate_factor(step) == pytest.approx(larger.learning_rate_factor(step))
        assert anew.position(step) == larger.position(step)
    assert recounted(anew, 60, 1e6) is None, "nearly the same gain"

    smaller = next_batch(plan, told, 2, 60, (first, larger, anew), 20)
    assert smaller.learning_rate_factor(60) == 2.0, "a smaller batch needs the smaller rate at once"
    assert smaller.noise_scale == 1e9, "no newer reading"
    kept = next_batch(plan, told, 3, 70, (first, larger, anew, smaller))
    assert (kept.size, kept.slots) == (20, 3), "nobody wants another one"


def test_limits_are_in_steps_with_the_smallest_batch() -> None:
    told = profile()
    first = next_batch(JobSettings(elastic=BOUNDS), told, 1, 0, ())
    larger = next_batch(JobSettings(elastic=BOUNDS), told, 2, 50, (first,), 40, 90.0)  # each step is worth 40/13
    for plan in (JobSettings(elastic=BOUNDS, max_steps=100), JobSettings(elastic=BOUNDS, max_epochs=1.0)):
        assert plan.last_step(told, first) == 100
        last = plan.last_step(told, larger)
        assert last == 50 + 17
        assert larger.reported_step(last) >= 100 > larger.reported_step(last - 1)
    assert larger.reported_examples(67) == pytest.approx(10 * larger.counted_at(67), abs=1)


def test_the_wanted_batch_is_read() -> None:
    body = {"generation": 3, "directive": "run", "tasks": [{"name": "a", "role": "worker", "rank": 0}]}
    assert read(WantedMembership, body).global_batch is None
    assert read(WantedMembership, {**body, "global_batch": None}).global_batch is None
    assert read(WantedMembership, {**body, "global_batch": 64}).global_batch == 64
    assert read(WantedMembership, body).membership_epoch == 0
    assert read(WantedMembership, {**body, "membership_epoch": 13}).membership_epoch == 13


# --- the coordinator -------------------------------------------------------------------------------------------------


def wants(world: GroupWorld, batch: int, *names: str) -> None:
    generation = world.state.wanted.generation + 1 if world.state.wanted else 1
    world.happens(WantedArrived(wanted(generation, *names, directive=world.state.directive, global_batch=batch)))


def tells_noise(world: GroupWorld, noise: float) -> None:
    """Everybody ends the step; rank 0 tells what it measured."""
    names = sorted(world.going)
    world.applies(names)
    for name in names:
        go = world.going.pop(name)
        world.says(name, Done(go.epoch, go.step, 1.0, 5, noise if name == "worker-0" else None))


def test_a_batch_alone_is_a_membership_of_the_same_tasks() -> None:
    world = group_world(2, elastic=BOUNDS)
    assert world.last.batch is not None
    assert (world.last.batch.size, world.last.batch.slots, world.last.cause) == (10, 2, "start")
    world.steps(4)
    wants(world, 40, "worker-0", "worker-1")
    world.steps()
    assert (world.last.cause, world.last.batch.size, world.last.batch.slots) == ("batch", 40, 4)
    assert (world.last.step, world.last.lost_steps, world.last.workers) == (5, 0, ("worker-0", "worker-1"))
    join = world.joins["worker-1"]
    assert (join.first_slot, join.end_slot, join.batch) == (2, 4, world.last.batch)
    n_reports = len(world.reports)
    wants(world, 40, "worker-0", "worker-1")
    world.steps(3)
    assert len(world.reports) == n_reports, "it has that already"


def test_a_batch_waits_for_the_tasks_that_it_is_meant_for() -> None:
    world = group_world(1, elastic=BOUNDS)
    world.steps(2)
    wants(world, 80, "worker-0", "worker-1")
    world.steps(2)
    assert len(world.reports) == 1, "the other one is on its way"
    world.arrives("worker-1")
    world.steps()
    assert world.last.batch is not None
    assert (world.last.cause, len(world.last.workers), world.last.batch.size) == ("rescale", 2, 80)
    world.is_lost("worker-1")
    assert (world.last.cause, len(world.last.workers), world.last.batch.size) == ("worker_lost", 1, 80)
    assert world.last.batch.slots == 5, "more passes of fewer workers"


def test_steps_are_counted_anew_when_the_noise_changes() -> None:
    world = group_world(2, elastic=BOUNDS, max_steps=300)
    wants(world, 40, "worker-0", "worker-1")
    world.steps(2)  # the first step had the smallest batch
    assert world.last.batch is not None
    assert world.last.batch.reported_step(2) == 2, "nothing is known of the noise: a step is a step"
    tells_noise(world, 90.0)
    sent = [message for _, message in world.sent if isinstance(message, Recount)]
    assert [message.batch.gain for message in sent] == [pytest.approx(40 / 13)] * 2
    assert {message.epoch for message in sent} == {world.state.epoch}
    tells_noise(world, 91.0)
    assert len([message for _, message in world.sent if isinstance(message, Recount)]) == 2, "nearly the same"
    world.steps(10)
    told = world.state.reported_version
    assert told == int(3 + 11 * 40 / 13)

    past = replay(world.journal)
    assert any(isinstance(record, Recounted) for record in world.journal)
    assert past.batches == world.state.training.batches
    again = GroupWorld.of(world.state.settings, past, world.now)
    again.states, again.manifests = world.states, world.manifests
    again.wants("worker-0", "worker-1")
    again.arrives("worker-0", "worker-1")
    assert again.last.batch is not None
    assert (again.last.reported_step, again.last.batch.size) == (told, 40), "the next coordinator counts on"
    while again.going:
        again.steps()
    assert again.result is None or again.result.step >= 300
    assert 300 <= again.state.reported_version < 300 + 40 / 13


@dataclass
class Trained(GroupWorld):
    """Remembers what each step that counts was trained on, as its workers were told."""

    steps_taken: dict[int, tuple[int, int, float, float]] = field(default_factory=dict)
    """Step → where its batch begins, its size, what was counted before it, what it is worth."""

    def applies(self, names: Collection[str]) -> None:
        for name in names:
            step, batch = self.going[name].step, self.joins[name].batch
            assert batch is not None
            self.steps_taken[step] = batch.position(step), batch.size, batch.counted_at(step), batch.gain
        super().applies(names)

    def _work(self, name: str, message: ToTask) -> list[FromTask]:
        if isinstance(message, Recount):
            self.joins[name] = replace(self.joins[name], batch=message.batch)
        return super()._work(name, message)

    def restarted(self) -> Trained:
        """Another coordinator in the place of this one; the tasks are the same."""
        past = replay(self.journal)
        after = Trained.of(self.state.settings, past, self.now, steps_taken=self.steps_taken)
        after.states, after.manifests, after.journal = self.states, self.manifests, self.journal
        assert self.state.wanted is not None
        after.happens(WantedArrived(self.state.wanted))
        after.arrives(*sorted(self.connected))
        after.passes(REGROUP_SECONDS)
        return after


NAMES = tuple(f"worker-{rank}" for rank in range(3))
EVENTS = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("noise"), st.floats(1.0, 1e5)),
    st.tuples(st.just("want"), st.tuples(st.sets(st.sampled_from(NAMES), min_size=1), st.integers(10, 90))),
    st.tuples(st.just("kill"), st.tuples(st.sampled_from(NAMES), st.booleans())),
    st.tuples(st.just("restart"), st.none()),
)


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=20))
def test_every_history_of_a_coordinator_is_one_stream_of_examples(events: list[tuple[str, Any]]) -> None:
    world = Trained.of(JobSettings(is_allreduce=True, checkpoint_seconds=1e9, elastic=BOUNDS), Past(), 1000.0)
    wants(world, 10, *NAMES[:2])
    world.arrives(*NAMES[:2])
    for kind, value in events:
        match kind:
            case "step":
                world.steps(value)
            case "noise" if world.going:
                tells_noise(world, value)
            case "want":
                names, batch = value
                wants(world, batch, *names)
                world.arrives(*(name for name in sorted(names) if name not in world.connected))
            case "kill":
                _kill(world, *value)
            case "restart":
                world = world.restarted()
    taken = [world.steps_taken[step] for step in range(world.state.version)]
    for before, after in pairwise(taken):
        assert after[0] == before[0] + before[1], "no example is left out or taken twice"
        assert after[2] == pytest.approx(before[2] + before[3]), "what was counted stays counted"
        assert 1.0 <= after[3] <= after[1] / BOUNDS.minimum + 1e-9
    told = [report.reported_step for report in world.reports if report.workers]
    assert told == sorted(told) or any(report.lost_steps for report in world.reports)


def _kill(world: GroupWorld, name: str, has_applied: bool) -> None:
    """One dies; another one may have completed the step at hand already."""
    others = sorted(other for other in world.going if other != name)
    if has_applied and others and name in world.going:
        world.applies(others[:1])
    if name in world.connected:
        world.is_lost(name)


# --- whole jobs ------------------------------------------------------------------------------------------------------

LIMITS = {"minimum": tiny_training.BATCH_SIZE, "maximum": 96, "per_pass": 24, "warmup_epochs": 2.0}


def test_the_batch_changes_while_a_job_trains(make_job: Callable[..., Job]) -> None:
    options: dict[str, Any] = {"dropout": False, "learning_rate": 0.02}
    job = make_job({**options, "step_seconds": 0.003, "prefetch": 2}, architecture="allreduce", elastic_batch=LIMITS)
    job.scale(worker(0))
    job.wait_for_step(60)
    job.service.want([worker(0)], global_batch=48)
    alone = job.wait_for("its batch", lambda: _report_with(job, 48, 1))
    job.wait_for_step(alone["step"] + 40)
    job.service.want([worker(0), worker(1)], global_batch=96)
    job.start(worker(1))
    large = job.wait_for("the batch of two", lambda: _report_with(job, 96, 2))
    job.wait_for_step(large["step"] + 60)
    job.service.want([worker(0), worker(1)], global_batch=24)
    job.wait_for("the smallest again", lambda: _report_with(job, 24, 2))
    result = job.finish()

    reports = job.service.memberships
    assert [report["cause"] for report in reports] == ["start", "batch", "rescale", "batch"]
    assert all(report["lost_steps"] == 0 for report in reports)
    assert [report["step"] for report in reports] == sorted(report["step"] for report in reports)
    assert job.service.profile is not None
    assert job.service.profile["steps_per_epoch"] == tiny_training.N_EXAMPLES / tiny_training.BATCH_SIZE

    memberships = history(job.directory)
    version, (parameters, _) = final_sections(job.directory, 2)
    samples = job.service.samples
    assert result["step"] == max(sample["step"] for sample in samples)
    assert version < result["step"], "larger batches count more"
    first = [sample for sample in samples if sample["rank"] == 0]
    assert sum(sample["updates"] for sample in first) == version, "each step is told once"
    assert sum(sample["n_steps"] for sample in first) == result["step"]
    examples = sum(sample["n_examples"] for sample in samples)
    assert examples == sum(sample["updates"] * sample["global_batch"] for sample in first)
    assert {sample["global_batch"] for sample in first} == {24, 48, 96}
    measured = [sample["gradients"] for sample in first if sample.get("gradients")]
    assert measured[-1]["variance"] > 0
    assert not any(sample.get("gradients") for sample in samples if sample["rank"] == 1)

    segments = _segments(job)
    assert examples == segments[-1].position(version), "the data is passed over without gaps"
    assert all(1.0 <= batch.gain <= batch.size / 24 for batch in segments)
    assert any(batch.gain > 1.05 for batch in segments), "noise was measured, so larger batches count more"
    assert result["metrics"]["accuracy"] > 0.8
    anew = Replay(tiny_training.make(**options), seed=5)
    anew.follow_batches(memberships, segments, version)
    assert float(torch.linalg.norm(parameters - anew.vector) / torch.linalg.norm(anew.vector)) < 1e-5


def _report_with(job: Job, batch: int, workers: int) -> dict[str, Any] | None:
    found = (r for r in job.service.memberships if r["global_batch"] == batch and len(r["workers"]) == workers)
    return next(found, None)


def _segments(job: Job) -> tuple[GlobalBatch, ...]:
    journal = Journal(job.directory)
    try:
        return replay(journal.read()).batches
    finally:
        journal.close()
