"""Clipping, parameter groups and rules: workers' slots and servers' ranges in one process, against plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.workers.protocol import tiny_training
from tests.workers.protocol.replay import Replay, train_in_large_batches
from torch import Tensor

from optimus_workers.coordinator.journal import Formed
from optimus_workers.server.range_state import RangeState
from optimus_workers.server.service import make_shard
from optimus_workers.server.shard import Norms, Ready, Shard
from optimus_workers.server.update import n_state_sections
from optimus_workers.task import TrainingTask
from optimus_workers.wire.frames import FLOAT_BYTES, FrameType, Header
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.norms import block_squares, clip_coefficient
from optimus_workers.wire.ranges import block_floats, server_ranges, worker_micro_batches
from optimus_workers.wire.values import TaskProfile
from optimus_workers.worker.compute import compute_micro_batches, sync_micro_batches
from optimus_workers.worker.flat_model import FlatModel, clip, make_flat, square_on_device, task_profile

Size = tuple[int, int]
"""Workers and servers."""
SEED = 5


def options(kind: str = "momentum", **changes: Any) -> TrainingTask:
    rules: dict[str, dict[str, Any]] = {
        "sgd": {"momentum": 0.0},
        "momentum": {"momentum": 0.9},
        "nesterov": {"momentum": 0.9, "nesterov": True},
        "adamw": {"kind": "adamw", "momentum": 0.0, "learning_rate": 0.002},
    }
    arguments: dict[str, Any] = {"dropout": False, "max_gradient_norm": 0.3, "grouped": True} | rules[kind] | changes
    return tiny_training.make(**arguments)


def train(task: TrainingTask, history: Sequence[tuple[Size, int]]) -> tuple[Tensor, Tensor]:
    """Train through memberships of (size, steps): the whole flat vector, and the parameters in model order."""
    torch.set_num_threads(1)
    flat, groups = make_flat(task, task.build_model(SEED))
    profile = task_profile(task, flat, groups)
    n_sections = 1 + n_state_sections(profile.update)
    whole = [flat.values.numpy().copy(), *(np.zeros_like(flat.values) for _ in range(n_sections - 1))]
    step = 0
    for (n_workers, n_servers), n_steps in history:
        shards = [
            _shard(profile, n_workers, step, first, end, whole)
            for first, end in server_ranges(profile.total_floats, n_servers)
        ]
        for _ in range(n_steps):
            _take_step(task, flat, shards, n_workers, step)
            step += 1
        held = [next(state for state in shard.states() if state.version == step) for shard in shards]
        whole = [np.concatenate(sections) for sections in zip(*(state.sections for state in held), strict=True)]
    flat.values.copy_(torch.from_numpy(whole[0]))
    plain = torch.cat([parameter.detach().reshape(-1) for parameter in flat.model.parameters()])
    return torch.from_numpy(whole[0])[: flat.parameter_floats], plain


def _shard(profile: TaskProfile, n_workers: int, version: int, first: int, end: int, whole: list[Floats]) -> Shard:
    state = RangeState.zeros(version, first, end, len(whole))
    for section, values in zip(state.sections, whole, strict=True):
        section[:] = values[first:end]
    return make_shard(Assume(1, version, first, end, profile, n_workers, False, ()), state)


def _take_step(task: TrainingTask, flat: FlatModel, shards: list[Shard], n_workers: int, step: int) -> None:
    told: dict[int, bytes] = {}
    for rank in range(n_workers):
        slots = sync_micro_batches(task, SEED, step, *worker_micro_batches(task.micro_batches, rank, n_workers))
        compute_micro_batches(task, flat, slots, lambda: None)
        for shard in shards:
            for ready in _push(shard, rank, step, task, flat.push):
                if isinstance(ready, Norms):
                    told[shard.first] = ready.squares
    limit = task.optimizer.max_gradient_norm
    if limit is not None:
        squares = np.frombuffer(b"".join(told[first] for first in sorted(told)))
        coefficient = clip_coefficient(squares.tolist(), limit)
        for shard in shards:
            header = Header(FrameType.CLIP, epoch=1, step=step)
            assert list(shard.clip_received(header, coefficient)), "the new parameters can be sent"
    for shard in shards:
        flat.values[shard.first : shard.end] = torch.from_numpy(shard.locate((shard.first, shard.end))[0])


def _push(shard: Shard, rank: int, step: int, task: TrainingTask, push: Tensor) -> list[Ready]:
    ready: list[Ready] = []
    for first, end in shard.chunks:
        header = Header(
            FrameType.PUSH, epoch=1, source=rank, step=step, offset=first, length=FLOAT_BYTES * (end - first),
            version=step, learning_rate=task.learning_rate(step),
        )  # fmt: skip
        shard.place(header)[:] = push[first:end].numpy()
        ready += shard.push_received(header)
    return ready


def distance(found: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))


SIZES = [(1, 1), (1, 2), (2, 3), (3, 2), (4, 1), (4, 3)]
CASES = [*(("momentum", size) for size in SIZES), ("sgd", (3, 3)), ("nesterov", (2, 2)), ("adamw", (4, 3))]


@cache
def expected(kind: str, n_steps: int) -> Tensor:
    return train_in_large_batches(options(kind), SEED, n_steps)


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_any_size_equals_one_process_of_plain_torch(kind: str, size: Size) -> None:
    assert distance(train(options(kind), [(size, 100)])[1], expected(kind, 100)) < 1e-6


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_so_does_a_job_that_changes_its_size_and_it_is_a_replay_bit_for_bit(kind: str) -> None:
    task = options(kind, batch_norm=True)
    history: list[tuple[Size, int]] = [((2, 1), 20), ((4, 3), 30), ((3, 2), 20)]
    flat, plain = train(task, history)

    replay = Replay(task, SEED)
    replay.follow(memberships([(2, 0), (4, 20), (3, 50)]), 70)
    assert torch.equal(flat, replay.vector)
    assert torch.equal(plain, replay.plain())
    assert distance(train(options(kind), history)[1], expected(kind, 70)) < 1e-6


def memberships(starts: Sequence[tuple[int, int]]) -> list[Formed]:
    return [
        Formed(epoch, 1, 0.0, step, tuple(f"w{rank}" for rank in range(workers)), ("s0",), "rescale")
        for epoch, (workers, step) in enumerate(starts, start=1)
    ]


def test_each_option_matters() -> None:
    """The comparisons above would mean nothing if the options did nothing at this size."""
    base = expected("momentum", 70)
    for changes in ({"max_gradient_norm": None}, {"grouped": False}):
        assert distance(train_in_large_batches(options(**changes), SEED, 70), base) > 1e-3


@given(st.integers(1, 30_000), st.integers(1, 7), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_norm_does_not_depend_on_the_cut(n_units: int, n_servers: int, seed: int) -> None:
    gradient = torch.randn(16 * n_units, generator=torch.Generator().manual_seed(seed))
    length = block_floats(len(gradient))
    whole = block_squares(gradient.numpy(), length)
    ranges = server_ranges(len(gradient), n_servers)
    parts = [block_squares(gradient.numpy()[first:end], length) for first, end in ranges if first < end]
    assert np.array_equal(np.concatenate(parts), whole), "bit for bit"
    assert len(whole) <= 2 * 4096
    norm = float(torch.linalg.vector_norm(gradient.double()))
    assert square_on_device(gradient) == pytest.approx(float(whole.sum()), rel=1e-9), "as GPUs compute it"
    clipped = gradient.clone()
    clip(clipped, 1.0, length)
    assert float(torch.linalg.vector_norm(clipped.double())) == pytest.approx(min(1.0, norm), rel=1e-5)


def test_a_gradient_that_is_not_finite_is_not_hidden() -> None:
    gradient = torch.ones(32)
    gradient[3] = torch.nan
    clip(gradient, 1.0, 16)
    assert torch.isnan(gradient).all(), "as torch does"
    assert clip_coefficient([4.0, 5.0], 6.0) == 1.0, "smaller gradients stay as they are"
