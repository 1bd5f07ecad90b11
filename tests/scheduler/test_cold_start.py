"""Speeds before the first step, by arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scheduler.builders import a_spec

from optimus_models.analytic import CPU_CORE, ColdStart, count
from optimus_models.analytic.networks import NETWORKS
from optimus_scheduler.forecast.cold_start import Platform, calculated_speeds, device_name, measured_percent_of_peak
from optimus_scheduler.model import JobSpec, Mode, Resources, TaskDemand

VGG = count(NETWORKS["vgg-19"]())
FAST = Platform(percent_of_peak=0.4, bytes_per_second=1e9)


def on_gpu(kind: str, **changes: object) -> JobSpec:
    worker = TaskDemand(Resources(gpus={kind: 1}), 1, 16)
    return replace(a_spec(), worker=worker, global_batch_size=64, **changes)  # type: ignore[arg-type]


def test_speeds_are_those_of_the_arithmetic() -> None:
    speeds = {(each.workers, each.servers): each.steps_per_second for each in calculated_speeds(VGG, a_spec(), FAST)}
    model = ColdStart(VGG, CPU_CORE, bytes_per_second=1e9, percent_of_peak=0.4)
    assert speeds[4, 2] == pytest.approx(1.0 / model.step_seconds(4, 2, batch_size=64))
    assert speeds[1, 1] < speeds[2, 2] < speeds[8, 8]


def test_a_faster_gpu_is_faster_and_an_unknown_one_says_nothing() -> None:
    slow, fast = (calculated_speeds(VGG, on_gpu(kind), FAST)[0].steps_per_second for kind in ("K80", "v100"))
    assert fast > 2 * slow
    assert calculated_speeds(VGG, on_gpu("imaginary"), FAST) == ()
    assert device_name(on_gpu("V100")) == "V100"
    assert device_name(a_spec()) == CPU_CORE.name


def test_without_a_batch_size_nothing_can_be_said() -> None:
    assert calculated_speeds(VGG, replace(a_spec(), global_batch_size=None), FAST) == ()


def test_asynchronous_workers_add_up() -> None:
    one, two = calculated_speeds(VGG, replace(a_spec(), mode=Mode.ASYNC), FAST)[:2]
    assert (one.workers, two.workers) == (1, 2)
    assert 1.0 < two.steps_per_second / one.steps_per_second <= 2.0


def test_sizes_are_within_what_the_owner_allows() -> None:
    small = calculated_speeds(VGG, a_spec(maximum=(2, 1)), FAST)
    assert {(each.workers, each.servers) for each in small} == {(1, 1), (2, 1)}


def test_what_was_measured_gives_the_percent_of_peak_back() -> None:
    model = ColdStart(VGG, CPU_CORE, bytes_per_second=1.0, percent_of_peak=0.3)
    assert measured_percent_of_peak(VGG, a_spec(), model.compute_seconds(16.0), 16.0) == pytest.approx(0.3)


@pytest.mark.parametrize(("seconds", "examples"), [(0.0, 16.0), (1.0, 0.0), (1e-12, 16.0), (1e12, 16.0)])
def test_nonsense_gives_none(seconds: float, examples: float) -> None:
    assert measured_percent_of_peak(VGG, a_spec(), seconds, examples) is None
