"""A batch that grows with the workers: the right examples, the right learning rate, the right count of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, server, worker
from tests.workers.protocol.replay import Replay, final_sections, history

from optimus_workers.coordinator.job_settings import JobSettings, next_batch
from optimus_workers.coordinator.journal import Formed, replay
from optimus_workers.data.sampler import micro_batch_indices
from optimus_workers.wire.ranges import worker_micro_batches
from optimus_workers.wire.values import GlobalBatch, TaskProfile, UpdateRule, followed

RULE = UpdateRule("sgd", 0.0, False, 0.0, (0.9, 0.999), 1e-8)


def profile(n_examples: int = 1000, batch: int = 10, micro_batches: int = 4) -> TaskProfile:
    return TaskProfile(16, 16, 16, n_examples, batch, micro_batches, RULE)


Part = tuple[int, int, int]
"""Workers of a membership, its steps, and how many of the last steps are then lost to a rollback."""


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(3, 60), st.integers(1, 20), st.integers(1, 5), st.booleans(),
)  # fmt: skip
def test_each_example_once_per_epoch_whatever_the_history(
    parts: list[Part], n_examples: int, batch_size: int, micro_batches: int, is_weak: bool
) -> None:
    settings, told = JobSettings(is_weak=is_weak), profile(n_examples, batch_size, micro_batches)
    step, batches, trained = 0, tuple[GlobalBatch, ...](), list[list[int]]()
    for n_workers, n_steps, n_lost in parts:
        batch = next_batch(settings, told, n_workers, step, batches)
        batches = followed(batches, batch)
        for taken in range(step, step + n_steps):
            trained.append(_examples_of(batch, taken, n_workers, n_examples))
        step = max(0, step + n_steps - n_lost)
        del trained[step:]
    stream = [example for examples in trained for example in examples]
    for start in range(0, len(stream), n_examples):
        epoch = Counter(stream[start : start + n_examples])
        assert max(epoch.values()) == 1
    position = next_batch(settings, told, 1, step, batches).position(step)
    assert position == len(stream), "the count of examples is right as well"


def _examples_of(batch: GlobalBatch, step: int, n_workers: int, n_examples: int) -> list[int]:
    found: list[int] = []
    for rank in range(n_workers):
        for slot in range(*worker_micro_batches(batch.slots, rank, n_workers)):
            position = batch.position(step)
            found += micro_batch_indices(3, position, slot, batch.slots, batch.size, n_examples).tolist()
    return found


def test_the_learning_rate_grows_with_the_workers_and_falls_with_them() -> None:
    settings, told = JobSettings(is_weak=True, warmup_epochs=2.0), profile(n_examples=1000, batch=10)
    first = next_batch(settings, told, 4, 0, ())
    assert (first.size, first.slots, first.base_size) == (40, 16, 10)
    assert [first.learning_rate_factor(step) for step in (0, 25, 50, 90)] == [1.0, 2.5, 4.0, 4.0], "2,000 examples"

    larger = next_batch(settings, told, 6, 25, (first,))  # in the middle of the warm-up
    assert larger.first_example == 1000
    assert larger.learning_rate_factor(25) == 2.5, "it goes on from where it was"
    assert larger.learning_rate_factor(25 + 17) == pytest.approx(2.5 + 3.5 * 17 * 60 / 2000)
    assert larger.learning_rate_factor(25 + 34) == 6.0

    smaller = next_batch(settings, told, 2, 59, (first, larger))
    assert smaller.learning_rate_factor(59) == 2.0, "a smaller batch needs the smaller rate at once"
    assert smaller.position(59) == 1000 + 34 * 60

    again = next_batch(settings, told, 4, 10, (first, larger, smaller))  # a rollback to step 10
    assert (again.first_example, again.learning_rate_factor(10)) == (400, first.learning_rate_factor(10))
    assert next_batch(JobSettings(is_weak=True, warmup_epochs=0.0), told, 4, 0, ()).learning_rate_factor(0) == 4.0
    assert next_batch(JobSettings(), told, 4, 7, ()).learning_rate_factor(7) == 1.0


def test_the_end_is_counted_in_examples() -> None:
    told = profile(n_examples=1000, batch=10)
    settings = JobSettings(is_weak=True, max_epochs=3.0)
    first = next_batch(settings, told, 1, 0, ())
    assert settings.last_step(told, first) == settings.last_step(told) == 300
    assert settings.last_step(told, next_batch(settings, told, 4, 100, (first,))) == 100 + 50
    limited = JobSettings(is_weak=True, max_steps=201)
    assert limited.last_step(told, next_batch(settings, told, 4, 100, (first,))) == 100 + 26


def test_a_coordinator_knows_the_batches_again_from_its_journal() -> None:
    settings, told = JobSettings(is_weak=True), profile()
    first = next_batch(settings, told, 2, 0, ())
    lost = next_batch(settings, told, 3, 40, (first,))
    after = next_batch(settings, told, 1, 30, (first, lost))
    formed = [
        Formed(epoch, 1, 0.0, batch.first_step, ("w",), ("s",), "rescale", batch=batch)
        for epoch, batch in enumerate((first, lost, after), start=1)
    ]
    past = replay([*formed, Formed(4, 1, 0.0, 35, (), (), "pause", batch=after)])
    assert past.batches == (first, after)
    assert formed[2].reported_step == 60, "30 steps of two workers"


def test_a_weak_job_trains_and_tells_what_it_should(make_job: Callable[..., Job]) -> None:
    convergence = {"max_epochs": 40.0}
    job = make_job(
        {"step_seconds": 0.005, "prefetch": 3},
        scaling="weak",
        warmup_epochs=10.0,
        convergence=convergence,
        gradient_statistics=True,
    )
    job.scale(worker(0), server(0))
    job.wait_for_step(10)
    job.scale(worker(0), worker(1), server(0), server(1))
    large = job.wait_for_size(2, 2)
    result = job.wait_for_result()

    (first, second) = history(job.directory)
    assert (first.batch, second.batch) != (None, None)
    assert second.batch is not None
    assert second.batch.size == 2 * tiny_training.BATCH_SIZE
    assert large["step"] == second.step, "until then a step had one batch"
    # 400 batches are 40 epochs; the last step may go beyond by one batch.
    assert result["step"] in (400, 401)
    version, (parameters, momentum) = final_sections(job.directory, 2)
    assert second.batch.reported_step(version) == result["step"]
    assert version < result["step"], "steps of two workers count twice"

    samples = job.service.samples
    assert max(sample["step"] for sample in samples) == result["step"]
    assert sum(sample["n_steps"] for sample in samples if sample["rank"] == 0) == result["step"]
    assert sum(sample["n_examples"] for sample in samples) == result["step"] * tiny_training.BATCH_SIZE
    assert max(sample["data_epoch"] for sample in samples) == pytest.approx(result["step"] / 10)
    assert job.service.profile is not None
    assert job.service.profile["steps_per_epoch"] == 10.0

    assert all(sample["usage"]["memory_bytes"] > 10_000_000 for sample in samples)
    measured = [sample["gradients"] for sample in samples if sample.get("gradients")]
    assert measured, "rank 0 measures now and then"
    assert all(figures["variance"] > 0 for figures in measured[-3:])

    anew = Replay(tiny_training.make(), seed=5)
    anew.follow([first, second], version)
    assert torch.equal(parameters, anew.vector)
    assert torch.equal(momentum, anew.state("momentum_buffer"))


def test_so_does_a_weak_all_reduce_job_with_all_options(make_job: Callable[..., Job]) -> None:
    options: dict[str, Any] = {"grouped": True, "max_gradient_norm": 0.3, "dropout": False}
    job = make_job(
        {**options, "step_seconds": 0.003, "prefetch": 3},
        architecture="allreduce",
        scaling="weak",
        warmup_epochs=5.0,
        gradient_statistics=True,
    )
    job.scale(worker(0))
    job.wait_for_step(10)
    job.scale(worker(0), worker(1))
    job.wait_for_size(2, 0)
    result = job.finish()

    memberships = history(job.directory)
    version, (parameters, _) = final_sections(job.directory, 2)
    assert memberships[-1].batch is not None
    assert memberships[-1].batch.size == 2 * tiny_training.BATCH_SIZE
    assert memberships[-1].batch.reported_step(version) == result["step"]
    anew = Replay(tiny_training.make(**options), seed=5)
    anew.follow(memberships, version)
    distance = torch.linalg.norm(parameters - anew.vector) / torch.linalg.norm(anew.vector)
    assert distance < 1e-6, "measuring changes nothing"
    told = [sample for sample in job.service.samples if sample.get("gradients")]
    assert {sample["workers"] for sample in told} == {1, 2}, "alone, and from local and summed gradients"
    assert {sample["rank"] for sample in told} == {0}
    assert told[-1]["gradients"]["variance"] > 0
