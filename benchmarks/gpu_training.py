"""Images per second of whole jobs on one GPU, beside plain PyTorch in one process.

    python -m benchmarks.gpu_training [--precision bf16] [--compile] > result.json
    python -m benchmarks.gpu_training --device cpu --networks resnet-18 --batch 8 --steps 4 --workers 1 2 --servers 1
    python -m benchmarks.gpu_training --networks resnet-18 --workers --members 1 2

ResNet-18 on made-up images of CIFAR's size and ResNet-50 on such of ImageNet's, with w workers that share the GPU and p
servers on the CPU, each a process of its own, or m members of an all-reduce job, and the same global batch in each row.
`plain` trains on the whole batch at once; `plain_slots` accumulates the gradients of the same micro-batches as the
workers do. Needs the package with its extra `worker` and nothing else. Prints one JSON object; what happens meanwhile
goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import product
from typing import Any

import torch
from benchmarks.real_job import RealJob

from optimus_workers.data.sampler import micro_batch_indices
from optimus_workers.task import OptimizerSpec
from optimus_workers.worker.device import ComputeOptions, to_device
from optimus_workers.zoo.images import classification

TASK = "optimus_workers.zoo.images:classification"
SLOTS = 4
"""Micro-batches of the global batch: as many as there are workers at most."""
WARM_UP_STEPS = 5
TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A network and its images."""

    network: str
    side: int
    n_classes: int
    batch: int
    n_examples: int = 512

    def arguments(self, micro_batches: int) -> dict[str, Any]:
        """Of the zoo's task."""
        return {
            "network": self.network,
            "side": self.side,
            "n_classes": self.n_classes,
            "n_examples": max(self.n_examples, self.batch),
            "global_batch_size": self.batch,
            "micro_batches": micro_batches,
        }


SHAPES = {
    "resnet-18": Shape("resnet-18-cifar", side=32, n_classes=10, batch=512),
    "resnet-50": Shape("resnet-50", side=224, n_classes=1000, batch=128),
}


def main() -> None:
    """Measure and print."""
    options = _options()
    compute = ComputeOptions(options.device, options.precision, options.compile, options.deterministic)
    rows = []
    for name in options.networks:
        shape = SHAPES[name]
        if options.batch or options.side:
            shape = Shape(shape.network, options.side or shape.side, shape.n_classes, options.batch or shape.batch, 64)
        rows.append(_row(shape, compute, options))
    print(json.dumps({"machine": _machine(options), "compute": asdict(compute), "rows": rows}, indent=1))


def _row(shape: Shape, compute: ComputeOptions, options: argparse.Namespace) -> dict[str, Any]:
    steps = options.steps
    plain = {
        name: _told(shape, name, _in_own_process(shape, compute, slots, steps))
        for name, slots in (("plain", 1), ("plain_slots", SLOTS))
    }
    jobs = []
    for workers, servers in product(options.workers, options.servers):
        found = _job(shape, compute, workers, servers, steps)
        _told(shape, f"w = {workers}, p = {servers}", found["images_per_second"])
        jobs.append({"workers": workers, "servers": servers, **found, **_times(found, plain)})
    for members in options.members:
        found = _job(shape, compute, members, 0, steps)
        _told(shape, f"m = {members}", found["images_per_second"])
        jobs.append({"members": members, **found, **_times(found, plain)})
    return {
        "shape": asdict(shape),
        "plain_images_per_second": {name: round(speed, 1) for name, speed in plain.items()},
        "jobs": jobs,
    }


def _times(found: dict[str, Any], plain: dict[str, float]) -> dict[str, float]:
    """A job's speed as a multiple of each of the plain ones."""
    return {f"times_{name}": round(found["images_per_second"] / speed, 3) for name, speed in plain.items()}


def _told(shape: Shape, what: str, images_per_second: float) -> float:
    sys.stderr.write(f"{shape.network}, {what}: {images_per_second:.1f} images/s\n")
    return images_per_second


def _job(shape: Shape, compute: ComputeOptions, workers: int, servers: int, steps: int) -> dict[str, Any]:
    """A job of real processes, run for so many steps behind the warm-up; without servers, an all-reduce job."""
    last = WARM_UP_STEPS + steps
    spec = {
        "task": TASK,
        "task_args": shape.arguments(SLOTS),
        "architecture": "ps" if servers else "allreduce",
        "convergence": {"max_steps": last},
        **asdict(compute),
    }
    with RealJob(spec, workers, servers) as job:
        job.wait_for_result(TIMEOUT_SECONDS)
        speed = job.steps_per_second(WARM_UP_STEPS) * shape.batch
        parts = job.seconds_per_step(WARM_UP_STEPS)
    return {
        "images_per_second": round(speed, 1),
        "milliseconds": {part.removesuffix("_seconds"): round(1e3 * value, 2) for part, value in parts.items()},
    }


def _in_own_process(shape: Shape, compute: ComputeOptions, slots: int, steps: int) -> float:
    """Images per second of plain PyTorch, in a process that leaves nothing behind on the GPU."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(plain_images_per_second, (shape, compute, slots, steps))


def plain_images_per_second(shape: Shape, compute: ComputeOptions, slots: int, steps: int) -> float:
    """The usual loop: model, optimizer, batches from memory."""
    torch.set_num_threads(1)  # as workers do
    compute.prepare_process()
    device = compute.choose_device(0)
    task = classification(**shape.arguments(slots))
    model = task.build_model(0).to(device)
    compute.prepare_model(model)
    model.train()
    rule = task.optimizer
    assert isinstance(rule, OptimizerSpec)
    optimizer = torch.optim.SGD(
        model.parameters(), rule.learning_rate, rule.momentum, weight_decay=rule.weight_decay, fused=True
    )
    started_at = 0.0
    for step in range(WARM_UP_STEPS + steps):
        if step == WARM_UP_STEPS:
            _synchronize(device)
            started_at = time.perf_counter()
        optimizer.zero_grad()
        indices = micro_batch_indices(0, step * shape.batch, 0, 1, shape.batch, task.n_examples)
        for slot in range(slots):
            batch = to_device(task.batch(indices[slot::slots].tolist()), device)
            with compute.forward(device):
                loss = task.loss(model, batch)
            torch.autograd.backward(loss / slots)
        optimizer.step()
    _synchronize(device)
    return steps * shape.batch / (time.perf_counter() - started_at)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    has_gpu = options.device != "cpu" and torch.cuda.is_available()
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "cuda": torch.version.cuda if has_gpu else None,
        "torch": torch.__version__,
        "load": os.getloadavg(),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Images per second of jobs on one GPU, beside plain PyTorch.")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="cuda")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--compile", action="store_true", help="have torch.compile translate the model")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--networks", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--members", type=int, nargs="*", default=[], help="of all-reduce jobs")
    parser.add_argument("--steps", type=int, default=50, help="that are measured")
    parser.add_argument("--batch", type=int, help="images in a step, instead of the usual ones")
    parser.add_argument("--side", type=int, help="pixels of an image, instead of the usual ones")
    return parser.parse_args()


if __name__ == "__main__":
    main()
