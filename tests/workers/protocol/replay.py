"""What a job should have computed, computed anew in this process and in plain PyTorch, from its membership history."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.workers.protocol.plain_optimizer import PlainOptimizer
from tests.workers.sampling import step_indices
from torch import Tensor, nn

from optimus_workers.checkpoint.manifest import newest_manifest
from optimus_workers.checkpoint.shards import read_shard
from optimus_workers.checkpoint.storage import LocalStorage, Storage, checkpoint_directory
from optimus_workers.coordinator.journal import Formed, Journal
from optimus_workers.data.sampler import micro_batch_indices
from optimus_workers.task import OptimizerSpec, TorchOptimizer, TrainingTask
from optimus_workers.task.parameter_groups import parameter_groups
from optimus_workers.wire.norms import block_squares, clip_coefficient
from optimus_workers.wire.ranges import aligned, block_floats, worker_micro_batches
from optimus_workers.wire.values import GlobalBatch, UpdateRule, constant_batch
from optimus_workers.worker.compute import micro_batch_seed


def history(directory: Path) -> list[Formed]:
    """The memberships that trained, oldest first."""
    journal = Journal(directory)
    try:
        return [record for record in journal.read() if isinstance(record, Formed) and record.workers]
    finally:
        journal.close()


def final_sections(directory: Path, n_sections: int, storage: Storage | None = None) -> tuple[int, list[Tensor]]:
    """Version and sections (parameters, then optimizer state) of the last checkpoint, whole vectors."""
    storage = storage or LocalStorage(checkpoint_directory(directory))
    manifest, complaints = newest_manifest(storage)
    assert manifest is not None
    assert not complaints
    parts = [read_shard(storage, file.name, file.first, file.first, file.end, n_sections) for file in manifest.files]
    return manifest.version, [torch.from_numpy(np.concatenate(section)) for section in zip(*parts, strict=True)]


class Replay:
    """One process that takes the same steps: per worker its slots in order, then the workers in order, one update.

    `vector` has the parameters as the servers have them; the optimizer has a slice of it for each group.
    """

    def __init__(self, task: TrainingTask, seed: int) -> None:
        torch.set_num_threads(1)  # as workers do: with more, tiny operations on a busy machine take milliseconds
        self.task = task
        self.seed = seed
        self.model = task.build_model(seed)
        groups = parameter_groups(task, self.model)
        self.parameters = [list(group.parameters) for group in groups]
        self.vector = self._flatten([parameter.detach() for listed in self.parameters for parameter in listed])
        ends = list(accumulate(aligned(sum(parameter.numel() for parameter in listed)) for listed in self.parameters))
        self.parts = [nn.Parameter(self.vector[first:end]) for first, end in pairwise([0, *ends])]
        self.scales = [group.learning_rate_scale for group in groups]
        self.optimizer = self._optimizer([group.weight_decay for group in groups])
        self.step = 0
        self.rate = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=task.optimizer.learning_rate)
        self.plateau = None if task.plateau is None else task.plateau(self.rate)
        """Torch's own, which is given the mean loss of each epoch."""
        self.losses: list[float] = []
        self.saved: dict[int, Any] = {}

    def _optimizer(self, decays: Sequence[float]) -> torch.optim.Optimizer:
        spec = self.task.optimizer
        if isinstance(spec, TorchOptimizer):
            return spec.over([{"params": [part]} for part in self.parts])
        groups = [{"params": [part], "weight_decay": decay} for part, decay in zip(self.parts, decays, strict=True)]
        rule = UpdateRule(spec.kind, spec.momentum, spec.nesterov, spec.weight_decay, spec.betas, spec.eps)
        return PlainOptimizer(groups, rule)

    def state(self, name: str) -> Tensor:
        """The optimizer's state of that name, as the servers have it."""
        return torch.cat([self.optimizer.state[part][name] for part in self.parts])

    def follow(self, memberships: Sequence[Formed], last_step: int) -> None:
        """Train through the memberships, going back to earlier steps where they did."""
        ends = [membership.step for membership in memberships[1:]] + [last_step]
        for membership, end in zip(memberships, ends, strict=True):
            if membership.step < self.step:
                self._restore(membership.step)
            # A rollback needs the steps that were taken before it, though nobody knows how many there were: those up
            # to the step that it went back to are enough.
            while self.step < end:
                self._take_step(len(membership.workers), membership.batch)

    def follow_batches(self, memberships: Sequence[Formed], batches: Sequence[GlobalBatch], last_step: int) -> None:
        """The same for batches that may change within a membership; nothing was rolled back."""
        while self.step < last_step:
            membership = next(each for each in reversed(memberships) if each.step <= self.step)
            batch = next(each for each in reversed(batches) if each.first_step <= self.step)
            self._take_step(len(membership.workers), batch)

    def buffers(self) -> list[Tensor]:
        return [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]

    def _take_step(self, n_workers: int, batch: GlobalBatch | None) -> None:
        batch = batch or constant_batch(self.task.global_batch_size, self.task.micro_batches)
        start = [buffer.clone() for buffer in self.buffers()]
        pushes = [self._push(rank, n_workers, batch, start) for rank in range(n_workers)]
        gradient, new_buffers = pushes[0]
        for other, other_buffers in pushes[1:]:
            gradient = gradient + other
            new_buffers = [left + right for left, right in zip(new_buffers, other_buffers, strict=True)]
        self._update(gradient, batch)
        for buffer, new in zip(self.buffers(), new_buffers, strict=True):
            buffer.copy_(new)
        if self.plateau is not None:
            self._count_loss(batch)
        self.step += 1
        self.saved[self.step] = copy.deepcopy((self.vector, self.buffers(), self.optimizer.state_dict()))

    def _count_loss(self, batch: GlobalBatch) -> None:
        first, end = (batch.position(step) // self.task.n_examples for step in (self.step, self.step + 1))
        if first < end:
            assert self.plateau is not None
            self.plateau.step(sum(self.losses) / len(self.losses))
            self.losses.clear()

    def _update(self, gradient: Tensor, batch: GlobalBatch) -> None:
        rate = self.task.learning_rate(batch.reported_step(self.step), batch.reported_examples(self.step))
        rate *= batch.learning_rate_factor(self.step)
        rate *= self.rate.param_groups[0]["lr"] / self.task.optimizer.learning_rate
        limit = self.task.optimizer.max_gradient_norm
        if limit is not None:
            n_floats = len(gradient) + aligned(sum(buffer.numel() for buffer in self.buffers()))
            gradient = gradient * clip_coefficient(
                block_squares(gradient.numpy(), block_floats(n_floats)).tolist(), limit
            )
        start = 0
        for part, scale, group in zip(self.parts, self.scales, self.optimizer.param_groups, strict=True):
            part.grad = gradient[start : start + len(part)]
            group["lr"] = rate * scale
            start += len(part)
        self.optimizer.step()

    def _push(self, rank: int, n_workers: int, batch: GlobalBatch, start: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One worker's part of a step: weighted sums of gradients and of buffers over its slots."""
        task = self.task
        gradient = torch.zeros_like(self.vector)
        sums = [torch.zeros_like(buffer) for buffer in start]
        self._load_parameters()
        for slot in range(*worker_micro_batches(batch.slots, rank, n_workers)):
            position = batch.position(self.step)
            indices = micro_batch_indices(self.seed, position, slot, batch.slots, batch.size, task.n_examples)
            weight = len(indices) / batch.size
            for buffer, value in zip(self.buffers(), start, strict=True):
                buffer.copy_(value)
            torch.manual_seed(micro_batch_seed(self.seed, self.step, slot))
            loss = task.loss(self.model, task.batch(indices.tolist()))
            self.losses += [float(loss.detach())] * len(indices)
            listed = [parameter for group in self.parameters for parameter in group]
            gradient += self._flatten(torch.autograd.grad(loss * weight, listed))
            sums = [torch.add(total, buffer, alpha=weight) for total, buffer in zip(sums, self.buffers(), strict=True)]
        return gradient, sums

    def _restore(self, step: int) -> None:
        vector, buffers, state = copy.deepcopy(self.saved[step])
        self.vector.copy_(vector)
        for buffer, value in zip(self.buffers(), buffers, strict=True):
            buffer.copy_(value)
        self.optimizer.load_state_dict(state)
        self.step = step

    def _load_parameters(self) -> None:
        with torch.no_grad():
            for part, listed in zip(self.parts, self.parameters, strict=True):
                start = 0
                for parameter in listed:
                    parameter.copy_(part[start : start + parameter.numel()].view(parameter.shape))
                    start += parameter.numel()

    def _flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors in the order of all parameters, each group padded."""
        remaining = iter(tensors)
        parts = []
        for listed in self.parameters:
            flat = torch.cat([next(remaining).reshape(-1) for _ in listed])
            parts.append(nn.functional.pad(flat, (0, aligned(len(flat)) - len(flat))))
        return torch.cat(parts)

    def plain(self) -> Tensor:
        """The parameters one after the other in the order of the model."""
        self._load_parameters()
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()


def train_in_large_batches(task: TrainingTask, seed: int, n_steps: int) -> Tensor:
    """The parameters after `n_steps` of ordinary single-process training on whole batches, flat.

    Nothing here is ours but the order of the examples: the groups are those that torch is given, clipping is torch's.
    """
    model = task.build_model(seed)
    optimizer = _plain_optimizer(task, model)
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(n_steps):
        indices = step_indices(seed, step, task.global_batch_size, task.n_examples)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * task.learning_rate(step) / task.optimizer.learning_rate
        optimizer.zero_grad()
        torch.autograd.backward(task.loss(model, task.batch(indices.tolist())))
        if task.optimizer.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.optimizer.max_gradient_norm)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def _plain_optimizer(task: TrainingTask, model: nn.Module) -> torch.optim.Optimizer:
    spec = task.optimizer
    assert isinstance(spec, OptimizerSpec)
    groups = list(model.parameters()) if task.parameter_groups is None else list(task.parameter_groups(model))
    if spec.kind == "adamw":
        return torch.optim.AdamW(
            groups, lr=spec.learning_rate, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay
        )
    return torch.optim.SGD(
        groups, lr=spec.learning_rate, momentum=spec.momentum, nesterov=spec.nesterov, weight_decay=spec.weight_decay
    )
