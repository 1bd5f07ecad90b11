"""What a worker tells of its network before it trains."""

from __future__ import annotations

import json
from dataclasses import replace
from queue import SimpleQueue

import httpx
import pytest
import torch
from tests.workers.protocol import tiny_training
from torch import Tensor, nn

from optimus_models.analytic.description import cost_of_description
from optimus_workers.service_client import ServiceClient
from optimus_workers.task import TrainingTask
from optimus_workers.task import network as network_module
from optimus_workers.task.network import describe_task, report_network
from optimus_workers.worker.flat_model import FlatModel


def described(task: TrainingTask) -> tuple[dict[str, object] | None, FlatModel]:
    flat = FlatModel(task.build_model(0))
    return describe_task(task, flat.model), flat


def test_the_layers_of_a_task_are_told_and_nothing_else_happens() -> None:
    task = tiny_training.make(batch_norm=True)
    flat = FlatModel(task.build_model(0))
    before, random = flat.values.clone(), torch.get_rng_state()
    network = describe_task(task, flat.model)
    assert network is not None
    assert cost_of_description(network).parameters == flat.n_parameters
    assert torch.equal(before, flat.values)
    assert torch.equal(random, torch.get_rng_state())


class Undecided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if x.sum() > 0 else x


def test_a_network_that_cannot_be_traced_is_left_out() -> None:
    assert described(replace(tiny_training.make(), model=Undecided))[0] is None


def test_a_network_that_refuses_its_first_input_is_left_out() -> None:
    assert described(replace(tiny_training.make(), model=lambda: nn.Linear(99, 3)))[0] is None


def test_batches_without_a_tensor_first_are_left_out() -> None:
    task = tiny_training.make()
    assert described(replace(task, collate=lambda _: {"inputs": torch.zeros(1, 8)}))[0] is None


def test_the_service_is_told_and_may_be_away() -> None:
    told: SimpleQueue[tuple[str, dict[str, object]]] = SimpleQueue()

    def answer(request: httpx.Request) -> httpx.Response:
        told.put((request.url.path, json.loads(request.content)))
        return httpx.Response(503)

    client = ServiceClient("http://service", "job", "token", transport=httpx.MockTransport(answer))
    task = tiny_training.make()
    report_network(task, FlatModel(task.build_model(0)).model, client)
    path, network = told.get(timeout=30)
    assert path == "/v1/jobs/job/network"
    assert network["format"] == "optimus-network/1"


def test_huge_networks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "MAX_PARAMETERS", 10)
    assert described(tiny_training.make())[0] is None
