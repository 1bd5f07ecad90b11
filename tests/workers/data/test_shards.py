"""Examples from shards that can only be read forward."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from optimus_workers.coordinator.job_settings import JobSettings, next_batch
from optimus_workers.data.shards import ShardedExamples, read_lines
from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.wire.ranges import worker_micro_batches
from optimus_workers.wire.values import GlobalBatch, TaskProfile, UpdateRule, followed
from optimus_workers.worker.compute import sync_micro_batches

SIZES = [7, 0, 12, 5, 30, 1]


class Shards:
    """Examples are (shard, number). Counts how often a shard is begun and what is read."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.n_begun = 0
        self.n_read = 0

    def read(self, shard: str, start: int) -> Iterator[tuple[int, int]]:
        self.n_begun += 1
        for number in range(start, self.sizes[int(shard)]):
            self.n_read += 1
            yield int(shard), number

    def examples(self, block: int = 4, mixed: int = 2) -> ShardedExamples:
        return ShardedExamples(
            [str(n) for n in range(len(self.sizes))], self.read, self.sizes, block=block, mixed=mixed
        )


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(1, 12), st.integers(1, 4), st.integers(0, 9))
def test_an_epoch_is_a_permutation_and_reads_forward(sizes: list[int], block: int, mixed: int, epoch: int) -> None:
    shards = Shards(sizes)
    examples = shards.examples(block, mixed)
    order = examples.epoch_order(3, epoch)
    assert sorted(order) == list(range(sum(sizes)))
    assert np.array_equal(order, shards.examples(block, mixed).epoch_order(3, epoch)), "the same for every worker"
    read = [examples[int(index)] for index in order]
    assert sorted(read) == [(shard, number) for shard, size in enumerate(sizes) for number in range(size)]
    assert shards.n_begun <= len(sizes), "each shard is read once, from its beginning to its end"
    assert shards.n_read == sum(sizes)


def test_orders_differ_by_epoch_and_seed() -> None:
    examples = Shards(SIZES).examples()
    orders = {tuple(examples.epoch_order(seed, epoch).tolist()) for seed in (1, 2) for epoch in (0, 1, 2)}
    assert len(orders) == 6


def task_of(examples: ShardedExamples) -> TrainingTask:
    return TrainingTask(
        model=lambda: nn.Linear(1, 1),
        loss=lambda model, batch: model(batch),
        dataset=examples,
        optimizer=OptimizerSpec(),
        global_batch_size=6,
        micro_batches=4,
        collate=list,
    )


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=5), st.booleans()
)
@settings(deadline=None)
def test_each_example_once_per_epoch_whatever_the_history(parts: list[tuple[int, int, int]], is_weak: bool) -> None:
    """Parts: workers, steps, steps that are then lost. Each worker has readers of its own; new ones begin anywhere."""
    n_examples = sum(SIZES)
    profile = TaskProfile(16, 16, 16, n_examples, 6, 4, UpdateRule("sgd", 0.0, False, 0.0, (0.9, 0.99), 1e-8))
    settings, step = JobSettings(is_weak=is_weak), 0
    batches, trained = tuple[GlobalBatch, ...](), list[list[tuple[int, int]]]()
    workers = [task_of(Shards(SIZES).examples()) for _ in range(5)]
    for n_workers, n_steps, n_lost in parts:
        batch = next_batch(settings, profile, n_workers, step, batches)
        batches = followed(batches, batch)
        for taken in range(step, step + n_steps):
            found: list[tuple[int, int]] = []
            for rank, task in enumerate(workers[:n_workers]):
                for slot in sync_micro_batches(
                    task, 1, taken, *worker_micro_batches(batch.slots, rank, n_workers), batch
                ):
                    found += task.batch(slot.indices)
            trained.append(found)
        step = max(0, step + n_steps - n_lost)
        del trained[step:]
    stream = [example for found in trained for example in found]
    for start in range(0, len(stream), n_examples):
        epoch = stream[start : start + n_examples]
        assert len(set(epoch)) == len(epoch)


def test_going_back_reads_a_shard_again_from_there() -> None:
    shards = Shards([30])
    examples = shards.examples(block=5, mixed=1)
    assert [examples[index] for index in (29, 3, 12)] == [(0, 29), (0, 3), (0, 12)]
    assert shards.n_begun == 2, "the end; then back to the beginning, and forward"


def test_lines_of_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo\nthree")
    (tmp_path / "b").write_bytes(b"four\n")
    examples = ShardedExamples([str(tmp_path / "a"), str(tmp_path / "b")], read_lines)
    assert [examples[index] for index in range(len(examples))] == [b"one", b"two", b"three", b"four"]
    with pytest.raises(IndexError):
        examples[4]
    with pytest.raises(FileNotFoundError, match="missing"):
        len(ShardedExamples([str(tmp_path / "missing")], read_lines))


def test_says_what_is_wrong(tmp_path: Path) -> None:
    read = Shards([3]).read
    with pytest.raises(TaskError, match="there are none"):
        ShardedExamples([], read)
    with pytest.raises(TaskError, match="named twice"):
        ShardedExamples(["0", "0"], read)
    with pytest.raises(TaskError, match="one number for each shard"):
        ShardedExamples(["0"], read, [1, 2])
    with pytest.raises(TaskError, match="block and mixed"):
        ShardedExamples(["0"], read, [1], block=0)
    with pytest.raises(TaskError, match="0 has 3 examples, not 5 as it should"):
        ShardedExamples(["0"], read, [5])[4]
