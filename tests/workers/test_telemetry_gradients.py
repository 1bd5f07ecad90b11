"""The noise of gradients, and what a task takes of its machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.workers.protocol.test_server_shard import N_FLOATS, N_PARAMETERS, rule_of
from tests.workers.protocol.test_server_shard import push as push_to

from optimus_workers.allreduce.gradients import StepParts
from optimus_workers.server.range_state import RangeState
from optimus_workers.server.service import make_shard
from optimus_workers.server.shard import Norms
from optimus_workers.telemetry.gradients import DECAY, GradientStatistics, period_of
from optimus_workers.wire.messages import Assume
from optimus_workers.wire.norms import block_squares
from optimus_workers.wire.ranges import block_floats, server_ranges
from optimus_workers.wire.values import TaskProfile
from optimus_workers.worker.compute import MicroBatch
from optimus_workers.worker.device import UsageMeter


def test_the_estimates_are_right_on_average() -> None:
    """Gradients of single examples are drawn with |G|² = 9 and tr(Σ) = 200: the noise scale is 200/9 examples."""
    generator = torch.Generator().manual_seed(1)
    gradient = torch.zeros(50)
    gradient[0] = 3.0
    statistics = GradientStatistics(period=1)
    batch_size, n_small = 64, 8
    seen = []
    for step in range(2000):
        examples = gradient + 2.0 * torch.randn(batch_size, 50, generator=generator)
        weight = n_small / batch_size
        statistics.begin(step, n_small, weight)
        statistics.micro_batch_done(lambda e=examples, w=weight: float((w * e[:n_small].mean(0)).square().sum()))  # type: ignore[misc]
        statistics.micro_batch_done(lambda: float("nan"))  # the other slots are of no interest
        statistics.step_done(float(examples.mean(0).square().sum()), batch_size)
        seen.append(statistics.estimates)
    newest = [figures for figures in seen[100:] if figures is not None]
    square = sum(figures.square for figures in newest) / len(newest)
    variance = sum(figures.variance for figures in newest) / len(newest)
    assert square == pytest.approx(9.0, rel=0.05)
    assert variance == pytest.approx(200.0, rel=0.05)


def test_nothing_is_made_up() -> None:
    statistics = GradientStatistics(period=10)

    def step(number: int, large: float | None, n_small: int = 4) -> None:
        statistics.begin(number, n_small, n_small / 16)
        statistics.micro_batch_done(lambda: 1.0)
        statistics.step_done(large, 16)

    step(3, 1.0)  # not a step that is measured
    step(10, None)  # the servers told nothing
    step(20, 1.0, n_small=16)  # one micro-batch is the whole batch: two sizes are needed
    step(30, float("nan"))
    assert statistics.estimates is None
    step(40, 1.0)
    assert statistics.estimates is not None
    assert statistics.estimates.square == pytest.approx((16 - 4 * 16) / 12)
    assert statistics.estimates.variance == pytest.approx(15 / (1 / 4 - 1 / 16))
    profile = TaskProfile(16, 16, 16, 10, 4, 2, rule_of("sgd"), gradient_period=10)
    assert period_of(profile, rank=0) == 10
    assert period_of(profile, rank=1) == 0


def test_the_large_gradients_of_the_beginning_are_forgotten() -> None:
    """The first 20 are 30 times as long as all others, whose noise scale is 200/9 examples."""
    generator = torch.Generator().manual_seed(4)
    gradient = torch.zeros(50)
    gradient[0] = 3.0
    statistics = GradientStatistics(1, is_elastic=True)
    told = []
    for step in range(1000):
        examples = (gradient + 2.0 * torch.randn(64, 50, generator=generator)) * (30.0 if step < 20 else 1.0)
        statistics.begin(step, 8, 8 / 64)
        statistics.micro_batch_done(lambda e=examples: float((e[:8].mean(0) / 8).square().sum()))  # type: ignore[misc]
        statistics.step_done(float(examples.mean(0).square().sum()), 64)
        told.append(statistics.noise_scale or 0.0)
    assert all(10 < scale < 40 for scale in told[40:])
    assert sum(told[100:]) / len(told[100:]) == pytest.approx(200 / 9, rel=0.1)
    assert statistics.estimates is not None
    assert statistics.estimates.square == pytest.approx(9.0, rel=0.7), "in the unit of the gradients now"


@pytest.mark.parametrize("n_parts", [2, 4])
def test_one_example_with_nearly_all_of_the_gradient_is_noise_whichever_part_it_is_in(n_parts: int) -> None:
    """One example in twenty has a gradient, ten long; the others have none. |G|² = 0.25, tr(Σ) = 4.75."""
    generator = torch.Generator().manual_seed(6)
    statistics = GradientStatistics(1, is_elastic=True)
    told = []
    for step in range(2000):
        lengths = 10.0 * (torch.rand(8, generator=generator) < 0.05)
        slots = [MicroBatch(np.arange(8 // n_parts), 1 / n_parts, step * n_parts + part) for part in range(n_parts)]
        parts, total = StepParts(slots), torch.zeros(3)
        for number, slot in enumerate(slots):
            total[0] += slot.weight * lengths.reshape(n_parts, -1)[number].mean()
            parts.micro_batch_done(total)
        assert statistics.measures(step)
        statistics.parts_done(*parts.sums.tolist())
        statistics.step_done(float(total.square().sum()), 8)
        told.append(statistics.noise_scale)
    newest = [scale for scale in told[100:] if scale is not None]
    assert len(newest) == len(told[100:])
    assert min(newest) > 3
    assert 10 < sorted(newest)[len(newest) // 2] < 38, "19 examples, by 20 measurements of 8"


def test_hidden_behind_noise_it_is_told_as_large_as_can_be_measured() -> None:
    """Steps of 16 examples whose true gradient is nothing: estimates of |G|² are of both signs."""
    generator = torch.Generator().manual_seed(2)
    elastic, plain = GradientStatistics(1, is_elastic=True), GradientStatistics(1)
    told = []
    for step in range(400):
        examples = torch.randn(16, 50, generator=generator)
        small, large = (float(examples[:n].mean(0).square().sum()) for n in (4, 16))
        for statistics in (elastic, plain):
            statistics.begin(step, 4, 4 / 16)
            statistics.micro_batch_done(lambda: small / 16)  # noqa: B023 - asked at once
            statistics.step_done(large, 16)
        told.append((elastic.noise_scale, plain.noise_scale))
        assert (elastic.noise_scale is None) == (step < 4), "a few measurements first"
    limits = [scale for scale, _ in told[100:] if scale is not None]
    assert any(plain_scale is None for _, plain_scale in told[100:])
    assert all(100 < scale <= 16 / (1 - DECAY) + 1e-9 for scale in limits)
    assert max(limits) == pytest.approx(16 / (1 - DECAY))


@pytest.mark.parametrize("n_servers", [1, 3])
def test_servers_tell_the_squares_of_the_sum_when_they_are_due(n_servers: int) -> None:
    rule = rule_of("momentum")
    profile = TaskProfile(N_PARAMETERS, N_PARAMETERS, N_FLOATS, 10, 1, 1, rule, gradient_period=2)
    generator = torch.Generator().manual_seed(3)
    shards = []
    for first, end in server_ranges(N_FLOATS, n_servers):
        assume = Assume(1, 0, first, end, profile, 2, False, ())
        shards.append(make_shard(assume, RangeState.zeros(0, first, end, 2)))
    for step in range(3):
        pushes = [torch.randn(N_FLOATS, generator=generator) for _ in range(2)]
        told = b""
        for shard in shards:
            ready = [part for rank in (0, 1) for part in push_to(shard, rank, step, pushes[rank])]
            norms = [part for part in ready if isinstance(part, Norms)]
            assert [isinstance(part, Norms) for part in ready[-2:]] in ([True, False], [False, False], [False])
            told += b"".join(part.squares for part in norms)
        if step % 2:
            assert told == b""
            continue
        expected = block_squares((pushes[0] + pushes[1])[:N_PARAMETERS].numpy(), block_floats(N_FLOATS))
        assert np.array_equal(np.frombuffer(told), expected)


def test_usage_is_of_the_time_since_the_last_reading() -> None:
    times = iter([(10.0, 100.0), (10.5, 102.0), (13.5, 103.0)])
    now = next(times)

    def cpu() -> float:
        return now[0]

    def wall() -> float:
        return now[1]

    meter = UsageMeter(None, cpu, wall)
    now = next(times)
    usage = meter.read()
    assert usage.cpu_cores == 0.25
    assert usage.memory_bytes > 10_000_000, "an interpreter with torch"
    now = next(times)
    assert meter.read().cpu_cores == 3.0
