"""Speed by arithmetic: limits that must hold whatever the constants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.analytic import DEVICES, ColdStart, Scheme, count, exchange_seconds
from optimus_models.analytic.networks import resnet

RESNET_50 = count(resnet(50))
GIGABIT = 125e6


@given(workers=st.integers(2, 64), megabytes=st.floats(0.1, 1000))
def test_ring_moves_less_than_one_to_all_and_never_twice_the_gradient(workers: int, megabytes: float) -> None:
    size = megabytes * 1e6
    ring = exchange_seconds(Scheme.RING, workers, size, bytes_per_second=GIGABIT)
    star = exchange_seconds(Scheme.ONE_TO_ALL, workers, size, bytes_per_second=GIGABIT)
    assert size / GIGABIT <= ring * (1 + 1e-12)
    assert ring < 2 * size / GIGABIT
    assert star >= size / GIGABIT * (workers - 1) * (1 - 1e-12)


@given(workers=st.integers(1, 64), servers=st.integers(1, 64))
def test_a_worker_pushes_the_whole_vector_however_many_servers_there_are(workers: int, servers: int) -> None:
    seconds = exchange_seconds(Scheme.PARAMETER_SERVER, workers, 1e8, bytes_per_second=GIGABIT, servers=servers)
    assert seconds == pytest.approx(1e8 / GIGABIT * max(workers / servers, 1.0))


def test_compression_halves_the_time_on_the_wire() -> None:
    plain = ColdStart(RESNET_50, DEVICES["V100"], GIGABIT, latency_seconds=0.0)
    halved = ColdStart(RESNET_50, DEVICES["V100"], GIGABIT, latency_seconds=0.0, compression=0.5)
    compute = plain.compute_seconds(32)
    saved = plain.step_seconds(1, batch_size=32) - halved.step_seconds(1, batch_size=32)
    assert saved == pytest.approx((plain.step_seconds(1, batch_size=32) - compute) / 2)


def test_a_measured_step_calibrates_the_device() -> None:
    guess = ColdStart(RESNET_50, DEVICES["V100"], GIGABIT)
    assert guess.calibrated(0.25, 64).compute_seconds(64) == pytest.approx(0.25)


def test_weak_scaling_keeps_the_compute_time() -> None:
    guess = ColdStart(RESNET_50, DEVICES["V100"], 100 * GIGABIT, Scheme.RING)
    strong = [guess.step_seconds(w, batch_size=256) for w in (1, 8)]
    weak = [guess.step_seconds(w, batch_size=256, scaling="weak") for w in (1, 8)]
    assert strong[1] < strong[0] < weak[1]
