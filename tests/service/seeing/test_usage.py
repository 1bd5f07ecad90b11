"""What a job's workers take, and how noisy its gradients are."""

from __future__ import annotations

from typing import Any

from tests.service.store.store_builders import batches_of

from optimus_contract.codec import read
from optimus_scheduler.model import Mode
from optimus_service.insight.jobs.usage import JobUsage, job_usage
from optimus_service.observe.telemetry import MAX_NOISE_SCALES, JobHistory, newest_noise_scale, noise_scale
from optimus_service.store.records import SampleRecord


def a_sample(**changes: Any) -> SampleRecord:
    values: dict[str, Any] = {
        "id": 1,
        "received_at": 1.0,
        "membership_epoch": 1,
        "rank": 0,
        "sequence": 0,
        "workers": 2,
        "servers": 1,
        "at": 1.0,
        "step": 10,
        "data_epoch": 0.1,
        "loss": 1.0,
        "n_examples": 4,
        "seconds": 1.0,
    }
    return read(SampleRecord, values | changes)


def test_each_worker_counts_once_with_its_newest_sample_of_the_newest_membership() -> None:
    samples = [
        a_sample(usage={"cpu_cores": 9.0, "memory_bytes": 900}),
        a_sample(membership_epoch=2, sequence=1, usage={"cpu_cores": 0.5, "memory_bytes": 100}),
        a_sample(membership_epoch=2, sequence=0, usage={"cpu_cores": 8.0, "memory_bytes": 800}),
        a_sample(membership_epoch=2, sequence=2),
        a_sample(
            membership_epoch=2,
            rank=1,
            usage={"cpu_cores": 1.0, "memory_bytes": 200, "gpu_utilization": 0.75, "gpu_memory_bytes": 50},
        ),
    ]
    expected = JobUsage(workers=2, cpu_cores=1.5, memory_bytes=300, gpu_utilization=0.75, gpu_memory_bytes=50)
    assert job_usage(samples) == expected
    only_cpu = job_usage(samples[1:2])
    assert only_cpu is not None
    assert (only_cpu.gpu_utilization, only_cpu.gpu_memory_bytes) == (None, None)
    assert job_usage([]) is None
    assert job_usage([a_sample()]) is None


def test_a_noise_scale_is_told_only_where_noise_does_not_hide_it() -> None:
    assert noise_scale(a_sample(gradients={"square": 2.0, "variance": 44.0})) == 22.0
    for square, variance in ((-1.0, 3.0), (0.0, 3.0), (1.0, -3.0), (1e-300, 1e300)):
        assert noise_scale(a_sample(gradients={"square": square, "variance": variance})) is None
    assert noise_scale(a_sample()) is None
    newest = [
        a_sample(sequence=4, gradients={"square": 1.0, "variance": 5.0}),
        a_sample(sequence=3, gradients={"square": 1.0, "variance": 9.0}),
        a_sample(sequence=5),
    ]
    assert newest_noise_scale(newest) == 5.0
    assert newest_noise_scale(newest[2:]) is None


def test_the_scheduler_sees_the_newest_noise_scales() -> None:
    history = JobHistory(Mode.SYNC)
    samples = (
        a_sample(id=number, step=10 * number, gradients={"square": 1.0, "variance": float(number)})
        for number in range(1, MAX_NOISE_SCALES + 11)
    )
    history.add(batches_of(samples))
    assert len(history.noise) == MAX_NOISE_SCALES
    assert history.noise[-1] == (10 * (MAX_NOISE_SCALES + 10), float(MAX_NOISE_SCALES + 10))
    assert [step for step, _ in history.noise] == sorted({step for step, _ in history.noise})
