"""The noise scale of asynchronous training, where it is known what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.workers.protocol import noisy_quadratic
from tests.workers.protocol.conftest import Job, server, worker

from optimus_workers.telemetry.gradients import PERIOD
from optimus_workers.worker.compute import async_micro_batches

N_MEASURED = 40
NEARLY_STILL = 1e-3
"""Clipped to this norm, two thousand steps go a tenth of a unit, of four to the minimum."""


def measured(job: Job) -> list[dict[str, float]]:
    return [sample["gradients"] for sample in job.service.samples if sample.get("gradients")]


def quadratic(make_job: Callable[..., Job], arguments: dict[str, Any], **spec: Any) -> Job:
    return make_job(arguments, task="noisy_quadratic:make", mode="async", gradient_statistics=True, **spec)


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_stale_workers_measure_the_noise_that_there_is(make_job: Callable[..., Job], compression: str) -> None:
    """Neither clipping nor compression nor what others push meanwhile is in the figures."""
    job = quadratic(make_job, {"max_gradient_norm": NEARLY_STILL}, compression=compression)
    job.scale(worker(0), worker(1), server(0), server(1))

    def own_steps() -> int:
        return sum(sample["n_steps"] for sample in job.service.samples if sample["rank"] == 0)

    job.wait_for("so many measurements", lambda: own_steps() > N_MEASURED * PERIOD)
    assert any(sample["staleness"] for sample in job.service.samples), "two workers overtake each other"
    assert all("gradients" not in sample for sample in job.service.samples if sample["rank"] == 1)
    newest = measured(job)[-1]
    # One measurement errs by 29 % and 17 %; 39 of them count in a moving average.
    assert newest["variance"] == pytest.approx(noisy_quadratic.variance(), rel=0.2)
    assert newest["square"] == pytest.approx(noisy_quadratic.MEAN_SQUARE, rel=0.2)


def test_one_example_at_a_time_has_no_parts_to_compare(make_job: Callable[..., Job]) -> None:
    job = quadratic(make_job, {"batch_size": 1})
    job.scale(worker(0), server(0))
    job.wait_for_step(3 * PERIOD)
    assert measured(job) == []


def test_a_batch_in_parts_is_the_same_batch() -> None:
    task = noisy_quadratic.make()
    (whole,) = async_micro_batches(task, 5, 7)
    first, second = async_micro_batches(task, 5, 7, 2)
    assert whole.weight == first.weight + second.weight == 1.0
    assert np.array_equal(whole.indices, np.concatenate([first.indices, second.indices]))
