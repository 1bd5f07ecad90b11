"""What a job should have computed, computed anew in this process and in plain PyTorch, from its membership history."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from optimus_workers.checkpoint.manifest import checkpoint_directory, newest_manifest
from optimus_workers.checkpoint.shards import read_shard
from optimus_workers.coordinator.journal import Formed, Journal
from optimus_workers.ranges import aligned, worker_slots
from optimus_workers.sampler import slot_indices, step_indices
from optimus_workers.task import TrainingTask
from optimus_workers.worker.compute import slot_seed


def history(directory: Path) -> list[Formed]:
    """The memberships that trained, oldest first."""
    journal = Journal(directory)
    try:
        return [record for record in journal.read() if isinstance(record, Formed) and record.workers]
    finally:
        journal.close()


def final_sections(directory: Path, n_sections: int) -> tuple[int, list[Tensor]]:
    """Version and sections (parameters, then optimizer state) of the last checkpoint, whole vectors."""
    manifest, complaints = newest_manifest(checkpoint_directory(directory))
    assert manifest is not None
    assert not complaints
    parts = [
        read_shard(checkpoint_directory(directory), file.name, file.first, file.first, file.end, n_sections)
        for file in manifest.files
    ]
    return manifest.version, [torch.cat(section) for section in zip(*parts, strict=True)]


class Replay:
    """One process that takes the same steps: per worker its slots in order, then the workers in order, one update."""

    def __init__(self, task: TrainingTask, seed: int) -> None:
        torch.set_num_threads(1)  # as workers do: with more, tiny operations on a busy machine take milliseconds
        self.task = task
        self.seed = seed
        self.model = task.build_model(seed)
        self.parameters = list(self.model.parameters())
        self.n_floats = aligned(sum(parameter.numel() for parameter in self.parameters))
        self.vector = nn.Parameter(self._flatten([parameter.detach() for parameter in self.parameters]))
        self.optimizer = self._optimizer()
        self.step = 0
        self.saved: dict[int, Any] = {}

    def _optimizer(self) -> torch.optim.Optimizer:
        spec = self.task.optimizer
        if spec.kind == "adamw":
            return torch.optim.AdamW(
                [self.vector], lr=1.0, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay, fused=True
            )
        return torch.optim.SGD(
            [self.vector], lr=1.0, momentum=spec.momentum, nesterov=spec.nesterov, weight_decay=spec.weight_decay,
            fused=True,
        )  # fmt: skip

    def follow(self, memberships: Sequence[Formed], last_step: int) -> None:
        """Train through the memberships, going back to earlier steps where they did."""
        ends = [membership.step for membership in memberships[1:]] + [last_step]
        for membership, end in zip(memberships, ends, strict=True):
            if membership.step < self.step:
                self._restore(membership.step)
            # A rollback needs the steps that were taken before it, though nobody knows how many there were: those up
            # to the step that it went back to are enough.
            while self.step < end:
                self._take_step(len(membership.workers))

    def buffers(self) -> list[Tensor]:
        return [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]

    def _take_step(self, n_workers: int) -> None:
        start = [buffer.clone() for buffer in self.buffers()]
        pushes = [self._push(rank, n_workers, start) for rank in range(n_workers)]
        gradient, new_buffers = pushes[0]
        for other, other_buffers in pushes[1:]:
            gradient = gradient + other
            new_buffers = [left + right for left, right in zip(new_buffers, other_buffers, strict=True)]
        self.vector.grad = gradient
        self.optimizer.param_groups[0]["lr"] = self.task.learning_rate(self.step)
        self.optimizer.step()
        for buffer, new in zip(self.buffers(), new_buffers, strict=True):
            buffer.copy_(new)
        self.step += 1
        self.saved[self.step] = copy.deepcopy((self.vector.data, self.buffers(), self.optimizer.state_dict()))

    def _push(self, rank: int, n_workers: int, start: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One worker's part of a step: weighted sums of gradients and of buffers over its slots."""
        task = self.task
        gradient = torch.zeros(self.n_floats)
        sums = [torch.zeros_like(buffer) for buffer in start]
        self._load_parameters()
        for slot in range(*worker_slots(task.micro_batches, rank, n_workers)):
            indices = slot_indices(
                self.seed, self.step, slot, task.micro_batches, task.global_batch_size, task.n_examples
            )
            weight = len(indices) / task.global_batch_size
            for buffer, value in zip(self.buffers(), start, strict=True):
                buffer.copy_(value)
            torch.manual_seed(slot_seed(self.seed, self.step, slot))
            loss = task.loss(self.model, task.batch(indices.tolist()))
            gradient += self._flatten(torch.autograd.grad(loss * weight, self.parameters))
            sums = [torch.add(total, buffer, alpha=weight) for total, buffer in zip(sums, self.buffers(), strict=True)]
        return gradient, sums

    def _restore(self, step: int) -> None:
        vector, buffers, state = copy.deepcopy(self.saved[step])
        self.vector.data.copy_(vector)
        for buffer, value in zip(self.buffers(), buffers, strict=True):
            buffer.copy_(value)
        self.optimizer.load_state_dict(state)
        self.step = step

    def _load_parameters(self) -> None:
        nn.utils.vector_to_parameters(self.vector.detach(), self.parameters)

    def _flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        return torch.nn.functional.pad(flat, (0, self.n_floats - len(flat)))


def train_in_large_batches(task: TrainingTask, seed: int, n_steps: int) -> Tensor:
    """The parameters after `n_steps` of ordinary single-process training on whole batches, flat."""
    model = task.build_model(seed)
    spec = task.optimizer
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1.0, momentum=spec.momentum, nesterov=spec.nesterov, weight_decay=spec.weight_decay
    )
    for step in range(n_steps):
        indices = step_indices(seed, step, task.global_batch_size, task.n_examples)
        optimizer.param_groups[0]["lr"] = task.learning_rate(step)
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(model, task.batch(indices.tolist())))
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()
