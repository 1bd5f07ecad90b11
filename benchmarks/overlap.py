"""What it gives to push during the backward pass and to fetch data while parameters arrive: whole jobs, on and off.

    python -m benchmarks.overlap [--rounds 3] [--megabytes 40] [--realtime]

One job with `overlap` and one without run in turns: a stack of wide linear layers, workers that augment their examples,
and a network that is paced to so many megabytes a second for each process. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.parameter_server.report import machine
from benchmarks.real_job import RealJob
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from optimus_workers.task import OptimizerSpec, TrainingTask

WARM_UP_STEPS = 3
TIMEOUT_SECONDS = 600.0


def make(width: int = 1500, depth: int = 5, batch: int = 256, changes: int = 8) -> TrainingTask:
    """`depth` layers of `width` (11 million parameters unless told otherwise); `changes`: how often the examples of a
    batch are changed at random."""
    examples = torch.randn(1024, width, generator=torch.Generator().manual_seed(1))
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return TrainingTask(
        model=partial(nn.Sequential, *layers),
        loss=lambda model, inputs: (model(inputs) - inputs).square().mean(),
        dataset=TensorDataset(examples),
        collate=partial(_changed, changes),
        optimizer=OptimizerSpec(learning_rate=0.01, momentum=0.9),
        global_batch_size=batch,
        micro_batches=4,
    )


def _changed(times: int, items: list[tuple[Tensor]]) -> Tensor:
    batch = torch.stack([item for (item,) in items])
    for _ in range(times):
        batch = batch + 0.01 * torch.randn(batch.shape)
    return batch


def main() -> None:
    """Measure and print."""
    options = _options()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    before = machine()
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for _ in range(options.rounds):
        for overlap in (False, True):
            found[overlap].append(_measured(overlap, options))
    medians = {overlap: _medians(runs) for overlap, runs in found.items()}
    report = {
        "machine": before | {"load_after": os.getloadavg()},
        "options": vars(options),
        "off": medians[False],
        "on": medians[True],
        "times_off": round(medians[True]["step"] / medians[False]["step"], 3),
        "runs": {"off": found[False], "on": found[True]},
    }
    print(json.dumps(report, indent=1))


def _measured(overlap: bool, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a step and of its parts."""
    spec: dict[str, Any] = {
        "task": "overlap:make",
        "task_args": {"batch": options.batch},
        "working_directory": str(Path(__file__).parent),
        "overlap": overlap,
    }
    limits = {"OPTIMUS_TRANSPORT": options.transport}
    if options.megabytes:
        limits["OPTIMUS_NETWORK_LIMIT"] = str(options.megabytes * 1e6)
    with RealJob(spec, options.workers, options.servers, limits) as job:
        job.wait_for_step(WARM_UP_STEPS + options.steps, TIMEOUT_SECONDS)
        parts = job.seconds_per_step(WARM_UP_STEPS)
        step = 1 / job.steps_per_second(WARM_UP_STEPS)
    return {"step": round(1e3 * step, 1)} | {
        part.removesuffix("_seconds"): round(1e3 * seconds, 1) for part, seconds in parts.items()
    }


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Step time with and without overlap, side by side.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="that are measured in one run")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256, help="examples in a step")
    parser.add_argument("--megabytes", type=float, default=40.0, help="a second, for each process; 0: no limit")
    parser.add_argument("--transport", choices=["tcp", "unix", "auto"], default="tcp")
    parser.add_argument("--realtime", action="store_true", help="run before other work (needs the right)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
