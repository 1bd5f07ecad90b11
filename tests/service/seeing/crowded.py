"""A live service whose data is as awkward as real data gets: for tests that the page holds its shape.

Forty jobs, names as long as the API allows, tracebacks of many lines, twelve GPU types, a job of one measured point,
one without any, one whose loss became NaN, and one in each state. `python -m tests.service.seeing.crowded` shows it.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.service.seeing.live import LiveService, LiveWorld, live_service
from tests.service.store.store_builders import add_samples

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Sample
from optimus_scheduler.lifecycle import (
    CancelRequested,
    MembershipFormed,
    Outcome,
    Paused,
    ResultReported,
    TooManyFailures,
)
from optimus_scheduler.model import Node, Resources
from optimus_service.requests import checked
from optimus_service.store.records import MembershipRecord

LONG_NAME = "a-fine-tuning-run-with-every-hyperparameter-in-its-name-lr3e-4x"
"""63 characters, the most that the API allows."""
LONG_PROJECT = "language-understanding-and-retrieval-of-the-whole-organisation"
LAST_LINE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
)
TRACEBACK = "\n".join(
    [
        "worker 0 failed: Traceback (most recent call last):",
        *(
            f'  File "/home/somebody/projects/very/deep/folder_{depth}/module.py", line {depth * 37}, in forward\n'
            f"    return self.layer_{depth}(x.reshape(self.batch, self.heads, -1, self.width // self.heads))"
            for depth in range(40)
        ),
        LAST_LINE,
        "",
    ]
)
GPU_TYPES = tuple(f"NVIDIA-A100-SXM4-80GB-MIG-{size}g.{10 * size}gb-{half}" for size in range(1, 7) for half in "ab")
NODES = [Node(f"gpu-{index:02d}", Resources(16.0, 2**37, {kind: 4})) for index, kind in enumerate(GPU_TYPES)]
AGE_SECONDS = 600.0
"""How long ago the first job was submitted."""
N_SWEEP = 30


@contextmanager
def crowded_service(directory: Path, *, port: int = 0) -> Iterator[LiveService]:
    """A live service with ten minutes of history and a job of every sort. No round follows, so that all stays so."""
    with live_service(directory, history_seconds=0, kinds=(), nodes=NODES, port=port) as service:
        service.loop.stop(10.0)
        world = service.world
        world.fence = world.take_lease()
        for index in range(N_SWEEP):
            losses = [3.0 / (1.0 + 0.2 * step) + 0.3 for step in range(20)]
            name, age = f"sweep-{index:02d}-of-thirty", AGE_SECONDS - 10 * index
            add_training(world, f"sweep-{index:02d}", name, losses, age=age, gpu_type=GPU_TYPES[index % len(GPU_TYPES)])
        _submitted(world, LONG_NAME, LONG_NAME, workers={"min": 90, "max": 90})
        add_training(world, "retried", "waits-for-a-retry", [3.0, 2.5])
        world.repository.jobs.advance("retried", TooManyFailures(TRACEBACK, TRACEBACK), world.clock())
        world.round()
        add_one_of_each(world)
        yield service


def add_one_of_each(world: LiveWorld) -> None:
    """A job in each state that a round does not make, written as its coordinator would."""
    add_ended(world, "failed-early", "b" * 63, Outcome.FAILED, error=TRACEBACK)
    add_ended(
        world, "failed-late", LONG_NAME, Outcome.FAILED, error="worker 1 failed: ValueError: bad", losses=[2.0, 1.5]
    )
    add_ended(world, "one-point", "one-point", Outcome.SUCCEEDED, losses=[0.7])
    add_ended(world, "no-data", "no-data", Outcome.SUCCEEDED)
    add_ended(world, "became-nan", "became-nan", Outcome.SUCCEEDED, losses=[1.0, float("nan"), float("inf")])
    add_training(world, "just-started", "just-started", [3.0])
    add_training(world, "no-telemetry", "no-telemetry", [])
    add_training(world, "paused", "paused", [3.0, 2.0])
    world.repository.jobs.advance("paused", Paused(), world.clock())
    _submitted(world, "cancelled", "cancelled")
    world.repository.jobs.advance("cancelled", CancelRequested(), world.clock())


def _submitted(world: LiveWorld, job_id: str, name: str, age: float = 120.0, **changes: Any) -> None:
    """Store a job that was submitted `age` seconds ago."""
    fields = {"name": name, "project": LONG_PROJECT, "task": "my_company.training:task", **changes}
    document = write(checked(JobSpec, fields))
    world.repository.jobs.create(job_id, document, "nonce", None, "hash", world.clock() - age)


def add_training(
    world: LiveWorld,
    job_id: str,
    name: str,
    losses: Sequence[float],
    age: float = 120.0,
    gpu_type: str | None = None,
    **changes: Any,
) -> None:
    """Store a job that formed a membership 20 seconds after it was submitted and then made one step a second."""
    workers = {"resources": {"gpus": 1}} if gpu_type else {}
    _submitted(world, job_id, name, age, workers=workers, **changes)
    begun = world.clock() - age + 20.0
    members: dict[str, Any] = {"workers": (f"{job_id}-worker-0-0",), "servers": (f"{job_id}-server-0-0",)}
    membership = MembershipRecord(
        job_id=job_id, epoch=1, generation=1, at=begun, step=0, cause="start", gpu_type=gpu_type, **members
    )
    world.repository.memberships.report(job_id, membership)
    world.repository.jobs.advance(job_id, MembershipFormed(1), begun)
    samples = [
        Sample(
            membership_epoch=1, rank=0, sequence=index, workers=1, servers=1, at=begun + index, step=index + 1,
            n_steps=1, data_epoch=0.1 * index, loss=loss, n_examples=32, seconds=1.0,
        )
        for index, loss in enumerate(losses)
    ]  # fmt: skip
    if samples:
        add_samples(world.repository, job_id, samples, world.clock())


def add_ended(
    world: LiveWorld, job_id: str, name: str, outcome: Outcome, error: str | None = None, losses: Sequence[float] = ()
) -> None:
    """Store a job that trained and reported its end."""
    add_training(world, job_id, name, losses)
    final = losses[-1] if losses else None
    result = ResultReported(outcome, len(losses), final, {"test_accuracy": 0.5}, error=error)
    world.repository.jobs.advance(job_id, result, world.clock())


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8091)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, crowded_service(Path(folder), port=options.port) as service:
        print(service.url, flush=True)  # noqa: T201
        threading.Event().wait()


if __name__ == "__main__":
    main()
