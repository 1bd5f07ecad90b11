"""How much of the time that loading takes is hidden by prefetching: `python -m benchmarks.data_loading`.

One worker's steps without servers: batches that take a given time to load (waiting, as for a disk or a network, which
takes no processor time) and a small network. Prints one JSON object; seconds are means over steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from optimus_workers.data.prefetching import Prefetcher
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.worker.compute import Batches, compute_micro_batches, sync_micro_batches
from optimus_workers.worker.flat_model import make_flat

N_EXAMPLES, WIDTH, BATCH, SLOTS = 4096, 1024, 128, 4


class SlowExamples:
    """Whole batches that take `seconds` to come."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._inputs = torch.randn(N_EXAMPLES, WIDTH)

    def __len__(self) -> int:
        return N_EXAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return self._inputs[index]

    def __getitems__(self, indices: Sequence[int]) -> Tensor:
        time.sleep(self._seconds)
        return self._inputs[torch.tensor(indices)]


def make_task(seconds: float) -> TrainingTask:
    return TrainingTask(
        model=lambda: nn.Sequential(nn.Linear(WIDTH, 2048), nn.Tanh(), nn.Linear(2048, WIDTH)),
        loss=lambda model, batch: nn.functional.mse_loss(model(batch), batch),
        dataset=SlowExamples(seconds),
        optimizer=OptimizerSpec(),
        global_batch_size=BATCH,
        micro_batches=SLOTS,
        collate=lambda batch: batch,
    )


def measure(load_seconds: float, depth: int, n_steps: int) -> dict[str, float]:
    task = make_task(load_seconds / SLOTS)
    prefetcher = Prefetcher(task.batch, depth) if depth else None
    batches = Batches(task, torch.device("cpu"), prefetcher)
    flat, _ = make_flat(task, task.build_model(0))
    data = compute = 0.0
    started_at = time.perf_counter()
    for step in range(n_steps):
        slots = sync_micro_batches(task, 0, step, 0, SLOTS)
        batches.expect(slots + sync_micro_batches(task, 0, step + 1, 0, SLOTS))
        computed = compute_micro_batches(task, flat, slots, lambda: None, batches=batches)
        data, compute = data + computed.data_seconds, compute + computed.compute_seconds
    total = time.perf_counter() - started_at
    batches.close()
    return {name: value / n_steps for name, value in (("step", total), ("data", data), ("compute", compute))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load-seconds", type=float, default=0.02, help="of one step's batch")
    parser.add_argument("--depth", type=int, default=SLOTS)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--realtime", action="store_true", help="before everything else on the machine (seconds; root)")
    options = parser.parse_args()
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    torch.set_num_threads(1)
    results = {
        "nothing to load": measure(0.0, 0, options.steps),
        "loaded when needed": measure(options.load_seconds, 0, options.steps),
        "prefetched": measure(options.load_seconds, options.depth, options.steps),
    }
    extra = [
        results[name]["step"] - results["nothing to load"]["step"] for name in ("loaded when needed", "prefetched")
    ]
    print(json.dumps({"seconds_per_step": results, "part_hidden": 1 - extra[1] / extra[0], "depth": options.depth}))


if __name__ == "__main__":
    main()
