"""What telemetry costs a worker and its servers: `python -m benchmarks.telemetry_cost`.

Processor time, best of many: reading the usage of the machine (once a sample, at most four times a second), taking a
step's record in, and measuring the noise of gradients (once in 20 steps: a square of the whole gradient on worker 0,
those of all blocks on the servers, all servers together). Once, at the start: planning the learning rates of 100,000
steps, of a task and of torch's schedulers: one that can be asked for any step, and one whose twin takes 20,000 steps.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable

import torch
from torch.optim import lr_scheduler

from optimus_client.schedules import MOST_CALLS, planned_rates
from optimus_contract.telemetry import Sample
from optimus_workers.telemetry.gradients import PERIOD
from optimus_workers.telemetry.planned_rates import planned, sampled_steps
from optimus_workers.telemetry.sender import SAMPLE_SECONDS, Aggregator
from optimus_workers.wire.norms import block_squares
from optimus_workers.wire.ranges import block_floats, chunks
from optimus_workers.worker.device import UsageMeter


def cpu_seconds(call: Callable[[], object], n_rounds: int, n_calls: int = 1) -> float:
    """Of one call, in the best round."""
    best = float("inf")
    for _ in range(n_rounds):
        started_at = time.process_time()
        for _ in range(n_calls):
            call()
        best = min(best, time.process_time() - started_at)
    return best / n_calls


def step() -> Sample:
    return Sample(
        membership_epoch=1, rank=0, sequence=0, workers=1, servers=1, at=0.0, step=1, data_epoch=0.1, loss=1.0,
        learning_rate=0.1, n_examples=8, seconds=0.01,
    )  # fmt: skip


PLANNED_STEPS = 100_000


def plan_of_task() -> object:
    """What worker 0 does once, with a schedule of its task."""
    return planned([(step, math.cos(step / PLANNED_STEPS)) for step in sampled_steps(0, PLANNED_STEPS)])


def plan_of(scheduler: lr_scheduler.LRScheduler, total_steps: int) -> float:
    """Seconds that a script waits for the plan of its scheduler, once."""
    return cpu_seconds(lambda: planned_rates(scheduler, step=0, total_steps=total_steps), 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gradient = torch.randn(options.parameters // 16 * 16)
    summed = gradient.numpy()
    length, parts = block_floats(len(gradient)), chunks(0, len(gradient), len(gradient))
    aggregator = Aggregator(usage=None)
    usage = cpu_seconds(UsageMeter().read, 20, 100)
    told = cpu_seconds(lambda: aggregator.add(step()), 20, 100)
    square = cpu_seconds(lambda: torch.dot(gradient, gradient), 10)
    squares = cpu_seconds(lambda: [block_squares(summed[first:end], length) for first, end in parts], 10)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, PLANNED_STEPS)
    restarts = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 1000)
    print(
        json.dumps(
            {
                "usage_seconds": usage,
                "usage_part_of_time": usage / SAMPLE_SECONDS,
                "record_seconds": told,
                "parameters": len(gradient),
                "gradient_square_seconds": square,
                "block_squares_seconds": squares,
                "noise_seconds_per_step": (square + squares) / PERIOD,
                "task_plan_seconds": cpu_seconds(plan_of_task, 5),
                "scheduler_plan_seconds": plan_of(cosine, PLANNED_STEPS),
                "stepped_scheduler_plan_seconds": plan_of(restarts, MOST_CALLS),
            }
        )
    )


if __name__ == "__main__":
    main()
