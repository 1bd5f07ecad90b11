"""The model as one flat vector."""

from __future__ import annotations

import torch
from torch import nn

from optimus_workers.worker.compute import micro_batch_seed
from optimus_workers.worker.flat_model import FlatModel


class Mixed(nn.Module):
    """Tied weights, a frozen part, float and integer buffers, double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(3, 3, bias=False)
        self.decode = nn.Linear(3, 3)
        self.decode.weight = self.encode.weight
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.norm(self.decode(self.encode(self.frozen(inputs))))
        return output


def test_parameters_first_then_buffers_each_part_aligned() -> None:
    model = Mixed()
    weight = model.encode.weight.detach().clone()
    flat = FlatModel(model)
    assert flat.n_parameters == 9 + 3 + 3 + 3, "tied weights count once, frozen ones not at all"
    assert (flat.parameter_floats, flat.total_floats) == (32, 48)
    assert torch.equal(flat.values[:9].view(3, 3), weight.float())
    assert flat.values[32:38].tolist() == [0.0] * 3 + [1.0] * 3, "running mean and variance"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_gradients_and_parameters_are_views() -> None:
    model = Mixed()
    flat = FlatModel(model)
    frozen = model.frozen.weight.detach().clone()
    flat.values[:9] = 2.0
    assert set(model.decode.weight.detach().reshape(-1).tolist()) == {2.0}
    flat.begin()
    torch.autograd.backward(model(torch.randn(4, 3)).square().sum())
    once = flat.push.clone()
    assert once[: flat.n_parameters].abs().sum() > 0
    assert model.encode.weight.grad is not None
    assert model.encode.weight.grad.data_ptr() == flat.push.data_ptr()
    assert torch.equal(model.frozen.weight.detach(), frozen)


def test_every_slot_starts_from_the_same_buffers() -> None:
    flat = FlatModel(Mixed())
    flat.begin()
    with torch.no_grad():
        for weight in (0.25, 0.75):
            flat.write_buffers()
            assert flat.model.get_buffer("norm.running_mean").tolist() == [0.0] * 3
            flat.model.get_buffer("norm.running_mean").fill_(4.0)
            flat.add_buffers(weight)
    assert flat.push[32:38].tolist() == [4.0] * 3 + [1.0] * 3
    assert flat.values[32:38].tolist() == [0.0] * 3 + [1.0] * 3


def test_slot_seeds_differ_and_fit() -> None:
    seeds = {micro_batch_seed(seed, step, slot) for seed in range(3) for step in range(20) for slot in range(12)}
    assert len(seeds) == 3 * 20 * 12
    assert all(0 <= seed < 2**63 for seed in seeds)
