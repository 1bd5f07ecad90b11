"""Batches made by another process are the same batches."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optimus_workers.data.prefetching import Prefetcher
from optimus_workers.errors import TaskError
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.worker.compute import Batches, compute_micro_batches, sync_micro_batches
from optimus_workers.worker.flat_model import make_flat

CPU = torch.device("cpu")


class Examples:
    """Each example says which process read it; one of them may not be readable."""

    def __init__(self, damaged: int | None = None) -> None:
        self.damaged = damaged

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.damaged:
            raise ValueError(f"example {index} is damaged")
        return torch.full((3,), float(index)), os.getpid()


def with_noise(examples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    inputs = torch.stack([example for example, _ in examples])
    return inputs + torch.randn(inputs.shape), torch.tensor([process for _, process in examples])


def make_task(**changes: Any) -> TrainingTask:
    parts: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)),
        "loss": lambda model, batch: model(batch[0]).square().mean(),
        "dataset": Examples(),
        "optimizer": OptimizerSpec(),
        "global_batch_size": 8,
        "micro_batches": 4,
        "collate": with_noise,
    }
    return TrainingTask(**parts | changes)


@pytest.fixture
def prefetcher() -> Iterator[Prefetcher]:
    made = Prefetcher(make_task().batch, 3)
    yield made
    made.close()


def test_training_computes_the_same_with_and_without(prefetcher: Prefetcher) -> None:
    torch.set_num_threads(1)
    pushes = []
    for batches in (Batches(make_task(), CPU), Batches(make_task(), CPU, prefetcher)):
        task = make_task()
        flat, _ = make_flat(task, task.build_model(0))
        for step in range(3):
            slots = sync_micro_batches(task, 1, step, 0, 4)
            batches.expect(slots + sync_micro_batches(task, 1, step + 1, 0, 4))
            compute_micro_batches(task, flat, slots, lambda: None, batches=batches)
            pushes.append(flat.push.clone())
    assert all(torch.equal(plain, ahead) for plain, ahead in zip(pushes[:3], pushes[3:], strict=True))


def test_they_come_from_another_process_and_what_is_not_wanted_any_more_is_passed_over(prefetcher: Prefetcher) -> None:
    task = make_task()
    first, second, third, *_ = slots = sync_micro_batches(task, 1, 0, 0, 4)
    prefetcher.expect(slots)
    made = prefetcher.take(second)  # the first is not wanted any more
    assert made is not None
    assert set(made.batch[1].tolist()).isdisjoint({os.getpid()})
    assert prefetcher.take(first) is None
    again = sync_micro_batches(task, 1, 7, 0, 2)  # a new membership goes on from elsewhere
    prefetcher.expect(again)
    later = prefetcher.take(again[1])
    assert later is not None
    torch.manual_seed(again[1].seed)
    assert torch.equal(later.batch[0], task.batch(again[1].indices)[0])
    assert prefetcher.take(third) is None, "it was dropped with the rest"


def test_an_error_in_the_users_code_comes_with_its_traceback() -> None:
    (slot, *_) = slots = sync_micro_batches(make_task(), 1, 0, 0, 4)
    damaged = int(slot.indices[1])
    prefetcher = Prefetcher(make_task(dataset=Examples(damaged)).batch, 3)
    try:
        prefetcher.expect(slots)
        with pytest.raises(TaskError, match=rf"prefetching process:\n(.*\n)*ValueError: example {damaged} is damaged"):
            prefetcher.take(slot)
    finally:
        prefetcher.close()


def test_training_goes_on_without_the_process(prefetcher: Prefetcher) -> None:
    task = make_task()
    slots = sync_micro_batches(task, 1, 0, 0, 4)
    batches = Batches(task, CPU, prefetcher)
    batches.expect(slots)
    assert prefetcher._process.pid is not None
    os.kill(prefetcher._process.pid, signal.SIGKILL)
    prefetcher._process.join()
    processes = {process for slot in slots for process in batches.take(slot)[1].tolist()}
    assert os.getpid() in processes, "at least what had not been sent is made here"
    batches.expect(sync_micro_batches(task, 1, 1, 0, 4))


def test_the_depth_is_checked() -> None:
    for depth in (-1, 1.5, True):
        with pytest.raises(TaskError, match="prefetch must be a whole number"):
            make_task(prefetch=depth)
