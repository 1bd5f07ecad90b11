"""What scale-invariant steps are worth: real training with batches of several sizes, compared after equal counts.

    python -m benchmarks.elastic_training [--task digits:mlp] [--smallest 16] [--seeds 3] [--epochs 16] [--json]

One process trains the task with each batch, from the same initial weights and on the same stream of examples, as an
elastic job does: linear learning rate with warm-up, noise scale measured at every 10th step, steps counted by their
gain. `by_count`: the loss on all training examples once so many epochs are counted, in steps with the smallest batch;
if the count is right, it is the same for all batches. `by_examples`: the same after so many passes over the data, as
if a step were worth its examples.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from optimus_contract.job import ElasticBatch
from optimus_workers.allreduce.gradients import StepParts
from optimus_workers.coordinator.job_settings import elastic_batch, recounted
from optimus_workers.task import OptimizerSpec, TrainingTask
from optimus_workers.task.user_code import load_task
from optimus_workers.telemetry.gradients import ELASTIC_PERIOD, GradientStatistics
from optimus_workers.wire.values import GlobalBatch, constant_batch
from optimus_workers.worker.compute import sync_micro_batches

MULTIPLES = (1, 2, 4, 8)
"""Of the smallest batch."""


class Run:
    """Training with one batch."""

    def __init__(self, task: TrainingTask, seed: int, size: int, warmup_epochs: float) -> None:
        self.task, self.seed = task, seed
        self.model = task.build_model(seed)
        spec = task.optimizer
        assert isinstance(spec, OptimizerSpec)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=1.0, momentum=spec.momentum, weight_decay=spec.weight_decay
        )
        smallest = task.global_batch_size
        limits = ElasticBatch(minimum=smallest, maximum=10**9, per_pass=10**9, warmup_epochs=warmup_epochs)
        self.batch: GlobalBatch = elastic_batch(limits, 1, task.n_examples, size, 0, constant_batch(smallest, 1), None)
        self.statistics = GradientStatistics(ELASTIC_PERIOD, is_elastic=True)
        self.step = 0

    @property
    def counted_epochs(self) -> float:
        return self.batch.counted_at(self.step) * self.task.global_batch_size / self.task.n_examples

    @property
    def passes(self) -> float:
        return self.batch.position(self.step) / self.task.n_examples

    def take_step(self) -> None:
        """One update, in two parts where the noise is measured."""
        self.optimizer.zero_grad()
        measures = self.statistics.measures(self.step)
        n_slots = 2 if measures else 1
        slots = sync_micro_batches(self.task, self.seed, self.step, 0, n_slots, replace(self.batch, slots=n_slots))
        parts = StepParts(slots)
        for slot in slots:
            loss = self.task.loss(self.model, self.task.batch(slot.indices.tolist()))
            torch.autograd.backward(loss * slot.weight)
            if measures:
                parts.micro_batch_done(self._gradient())
        if measures:
            self.statistics.parts_done(*parts.sums.tolist())
            self.statistics.step_done(float(self._gradient().square().sum()), self.batch.size)
        rate = self.task.learning_rate(self.batch.reported_step(self.step), self.batch.reported_examples(self.step))
        for group in self.optimizer.param_groups:
            group["lr"] = rate * self.batch.learning_rate_factor(self.step)
        self.optimizer.step()
        self.step += 1
        noise = self.statistics.noise_scale
        anew = None if noise is None else recounted(self.batch, self.step, noise)
        self.batch = anew or self.batch

    def _gradient(self) -> torch.Tensor:
        return torch.cat([each.grad.reshape(-1) for each in self.model.parameters() if each.grad is not None])

    def loss(self) -> float:
        """On all training examples."""
        self.model.eval()
        with torch.no_grad():
            found = float(self.task.loss(self.model, self.task.batch(range(self.task.n_examples))))
        self.model.train()
        return found


def train(task: TrainingTask, seed: int, size: int, marks: list[float], warmup_epochs: float) -> dict[str, Any]:
    """The losses at the marks, by both counts, and how many updates it took to count the last one."""
    run = Run(task, seed, size, warmup_epochs)
    by_count, by_examples, updates = list[float](), list[float](), 0
    while len(by_count) < len(marks) or len(by_examples) < len(marks):
        run.take_step()
        if len(by_count) < len(marks) and run.counted_epochs >= marks[len(by_count)]:
            by_count.append(run.loss())
            updates = run.step
        if len(by_examples) < len(marks) and run.passes >= marks[len(by_examples)]:
            by_examples.append(run.loss())
    return {
        "by_count": by_count,
        "by_examples": by_examples,
        "updates": updates,
        "noise_scale": run.statistics.noise_scale,
    }


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    module, _, function = arguments.task.partition(":")
    path = f"optimus_workers.zoo.{module}:{function}"
    task = load_task(path, {"learning_rate": arguments.learning_rate}).with_global_batch_size(arguments.smallest)
    marks = [2.0**power for power in range(arguments.epochs.bit_length())]
    batches: dict[str, Any] = {}
    for multiple in MULTIPLES:
        size = multiple * arguments.smallest
        runs = [train(task, seed, size, marks, arguments.warmup_epochs) for seed in range(arguments.seeds)]
        batches[str(size)] = {
            "by_count": [fmean(column) for column in zip(*(run["by_count"] for run in runs), strict=True)],
            "by_examples": [fmean(column) for column in zip(*(run["by_examples"] for run in runs), strict=True)],
            "updates": fmean(run["updates"] for run in runs),
            "noise_scale": fmean(run["noise_scale"] or 0.0 for run in runs),
        }
        sys.stderr.write(f"{size}: {batches[str(size)]}\n")
    return {"benchmark": "elastic_training", **vars(arguments), "epochs_at": marks, "batches": batches}


def table(found: dict[str, Any]) -> str:
    """Rows of losses after equal counts, and after equal examples."""
    lines = [f"loss after epochs {found['epochs_at']}, mean of {found['seeds']} seeds"]
    for name in ("by_count", "by_examples"):
        for size, batch in found["batches"].items():
            losses = "  ".join(f"{loss:9.5f}" for loss in batch[name])
            lines.append(f"{name:12} batch {size:>5}  {losses}  {batch['updates']:8.0f} updates")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", default="digits:mlp", help="of the zoo")
    parser.add_argument("--smallest", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=0.003, help="for the smallest batch")
    parser.add_argument("--warmup-epochs", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    as_json = arguments.json
    del arguments.json
    found = measured(arguments)
    sys.stdout.write((json.dumps(found) if as_json else table(found)) + "\n")


if __name__ == "__main__":
    main()
