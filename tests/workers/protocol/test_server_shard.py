"""A server's range: what pushes make of it is what the optimizer makes of the whole vector in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.workers.protocol.plain_optimizer import PlainOptimizer

from optimus_workers.errors import WireError
from optimus_workers.server.range_state import RangeState
from optimus_workers.server.service import make_shard
from optimus_workers.server.shard import AsyncShard, Ready, Shard
from optimus_workers.server.update import n_state_sections
from optimus_workers.wire.frames import CHUNK_FLOATS, FrameType, Header
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.ranges import server_ranges
from optimus_workers.wire.values import TaskProfile, UpdateRule

N_PARAMETERS = CHUNK_FLOATS + 4000
N_FLOATS = N_PARAMETERS + 32
RULES: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd", "momentum": 0.0, "nesterov": False},
    "momentum": {"kind": "sgd", "momentum": 0.9, "nesterov": False},
    "momentum without decay": {"kind": "sgd", "momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
    "nesterov": {"kind": "sgd", "momentum": 0.9, "nesterov": True},
    "adamw": {"kind": "adamw", "momentum": 0.0, "nesterov": False},
}


def rule_of(name: str) -> UpdateRule:
    options: dict[str, Any] = {"weight_decay": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}
    return UpdateRule(**options | RULES[name])


def make(rule: UpdateRule, first: int, end: int, n_workers: int = 1, *, is_async: bool = False) -> Shard:
    profile = TaskProfile(N_PARAMETERS, N_PARAMETERS, N_FLOATS, 10, 1, 1, rule)
    assume = Assume(1, 0, first, end, profile, n_workers, is_async, ())
    state = RangeState.zeros(0, first, end, 1 + n_state_sections(rule))
    return make_shard(assume, state)


def push(shard: Shard, rank: int, step: int, vector: torch.Tensor, rate: float = 0.1) -> list[Ready]:
    """One worker's whole push; the chunks that became ready to be sent."""
    ready: list[Ready] = []
    for first, end in shard.chunks:
        header = Header(
            FrameType.PUSH, epoch=1, source=rank, step=step, offset=first, length=4 * (end - first),
            version=step, learning_rate=rate,
        )  # fmt: skip
        shard.place(header)[:] = vector[first:end].numpy()
        ready += list(shard.push_received(header))
    return ready


def fused(rule: UpdateRule, parameters: torch.Tensor) -> torch.optim.Optimizer:
    if rule.kind == "adamw":
        return torch.optim.AdamW(
            [parameters], betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay, fused=True
        )
    return torch.optim.SGD(
        [parameters], momentum=rule.momentum, nesterov=rule.nesterov, weight_decay=rule.weight_decay, fused=True
    )


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n_servers", [1, 3])
def test_any_cut_gives_what_one_process_computes_bit_for_bit(name: str, n_servers: int) -> None:
    rule = rule_of(name)
    shards = [make(rule, first, end, n_workers=2) for first, end in server_ranges(N_FLOATS, n_servers)]
    plain, usual = (torch.zeros(N_PARAMETERS, requires_grad=True) for _ in range(2))
    optimizers = [PlainOptimizer([{"params": [plain]}], rule), fused(rule, usual)]
    generator = torch.Generator().manual_seed(3)
    for step in range(3):
        rate = 0.1 / (step + 1)
        pushes = [torch.randn(N_FLOATS, generator=generator) for _ in range(2)]
        for shard in shards:
            assert push(shard, 1, step, pushes[1], rate=999.0) == [], "rank 0's learning rate counts"
            assert push(shard, 0, step, pushes[0], rate) == list(shard.chunks)
        for optimizer in optimizers:
            (parameters,) = optimizer.param_groups[0]["params"]
            parameters.grad = (pushes[0] + pushes[1])[:N_PARAMETERS]
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
    whole = torch.cat([torch.from_numpy(shard.locate((shard.first, shard.end))[0]) for shard in shards])
    assert torch.equal(whole[:N_PARAMETERS], plain.detach())
    torch.testing.assert_close(whole[:N_PARAMETERS], usual.detach(), rtol=1e-5, atol=1e-7)
    assert torch.equal(whole[N_PARAMETERS:], (pushes[0] + pushes[1])[N_PARAMETERS:]), "buffers are set, not updated"


def test_the_version_before_stays_whole_until_the_next_step_is_pushed() -> None:
    shard = make(rule_of("momentum"), 0, N_FLOATS)
    ones = torch.ones(N_FLOATS)
    assert versions(shard) == [0]
    push(shard, 0, 0, ones)
    assert versions(shard) == [0, 1]
    push(shard, 0, 1, ones)
    assert versions(shard) == [1, 2]
    old = next(state for state in shard.states() if state.version == 1)
    assert old.sections[0][0] == pytest.approx(-0.1)
    first, end = shard.chunks[0]
    header = Header(FrameType.PUSH, epoch=1, step=2, offset=first, length=4 * (end - first), learning_rate=0.1)
    shard.place(header)
    list(shard.push_received(header))
    assert versions(shard) == [2], "version 1 is being overwritten"


def test_async_pushes_are_applied_one_by_one_as_they_complete() -> None:
    shard = make(rule_of("sgd"), 0, N_FLOATS, n_workers=2, is_async=True)
    assert isinstance(shard, AsyncShard)
    ones = torch.ones(N_FLOATS)
    for number in range(3):
        assert push(shard, number % 2, number, ones) == list(shard.chunks)
    assert shard.version == 3
    assert versions(shard) == [3]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"offset": 16}, "no chunk"),
        ({"length": 64}, "64 bytes of FLOAT32 for 1600 floats"),
        ({"source": 1}, "no worker 1"),
        ({"step": 1}, "push of step 1"),
        ({"type": FrameType.INITIAL}, "there already"),
    ],
)
def test_a_push_that_does_not_belong_here_has_no_place(change: dict[str, Any], complaint: str) -> None:
    shard = make(rule_of("sgd"), 0, 1600)
    fields: dict[str, Any] = {"type": FrameType.PUSH, "epoch": 1, "length": 6400} | change
    with pytest.raises(WireError, match=complaint):
        shard.place(Header(**fields))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_push_that_comes_twice_has_no_place(is_async: bool) -> None:
    shard = make(rule_of("sgd"), 0, N_FLOATS, n_workers=2, is_async=is_async)
    first, end = shard.chunks[0]
    header = Header(FrameType.PUSH, epoch=1, offset=first, length=4 * (end - first))
    shard.place(header)
    list(shard.push_received(header))
    with pytest.raises(WireError):
        shard.place(header)


def test_nothing_is_held_before_the_initial_parameters_are_there() -> None:
    profile = TaskProfile(1600, 1600, 1600, 10, 1, 1, rule_of("momentum"))
    shard = make_shard(Assume(1, 0, 0, 1600, profile, 1, False, ()), None)
    assert list(shard.holdings()) == []
    header = Header(FrameType.INITIAL, epoch=1, length=6400)
    shard.place(header)[:] = np.arange(1600)
    assert shard.initial_received(header)
    assert [(held.version, held.first, held.end) for held in shard.holdings()] == [(0, 0, 1600)]
    assert np.array_equal(shard.locate((0, 1600))[0], np.arange(1600))


def versions(shard: Shard) -> list[int]:
    return sorted(state.version for state in shard.states())
