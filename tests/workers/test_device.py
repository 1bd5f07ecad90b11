"""Where and how a worker computes. What needs a GPU is checked where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from optimus_workers.errors import TaskError
from optimus_workers.worker.compute import Batches, compute_micro_batches, sync_micro_batches
from optimus_workers.worker.device import ComputeOptions, UsageMeter, called_from_anywhere, to_device
from optimus_workers.worker.flat_model import FlatModel
from optimus_workers.worker.staging import stage
from optimus_workers.zoo.digits import mlp

CPU, META = torch.device("cpu"), torch.device("meta")


class Pair(NamedTuple):
    inputs: Tensor
    labels: Tensor


def test_a_gpu_is_taken_if_there_is_one_and_workers_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ComputeOptions("cpu").choose_device(0).type == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [ComputeOptions().choose_device(rank).index for rank in range(5)] == [0, 1, 0, 1, 0]
    assert ComputeOptions("cpu").choose_device(0).type == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert ComputeOptions().choose_device(0).type == "cpu"
    with pytest.raises(TaskError, match="no CUDA device"):
        ComputeOptions("cuda").choose_device(0)


def test_all_tensors_of_a_batch_go_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)  # needs a GPU
    ones = torch.ones(2)
    batch: dict[str, Any] = {"a": [ones, (ones, 3)], "b": Pair(ones, ones), "c": "text"}
    moved = to_device(batch, META)
    assert moved["a"][0].device == moved["a"][1][0].device == moved["b"].labels.device == META
    assert isinstance(moved["b"], Pair)
    assert (moved["a"][1][1], moved["c"]) == (3, "text")
    assert to_device(ones, torch.device("cpu")) is ones


def test_an_evaluation_that_knows_nothing_of_devices_gets_its_own_tensors_back() -> None:
    """On `meta`, a device without numbers, in place of a GPU."""
    model = nn.Linear(2, 3).to(META)
    with called_from_anywhere(model):
        assert model(torch.ones(1, 2, device=META)).device == META
    moved: list[torch.device] = []
    model.register_forward_hook(lambda _, inputs, output: moved.append(inputs[0].device))
    with called_from_anywhere(model), pytest.raises(NotImplementedError, match="meta tensor"):
        model(torch.ones(1, 2))  # to meta it goes; what comes has no numbers to copy back
    assert moved == [META]
    with pytest.raises(RuntimeError, match="device"):
        model(torch.ones(1, 2))


def gradients(options: ComputeOptions, device: torch.device = CPU) -> Tensor:
    task = mlp()
    flat = FlatModel(task.build_model(0), staging=partial(stage, device))
    options.prepare_model(flat.model)
    slots = sync_micro_batches(task, 1, 0, 0, 2)
    compute_micro_batches(task, flat, slots, lambda: None, batches=Batches(task, flat.device), options=options)
    assert flat.push.dtype == torch.float32
    if (wait := flat.staging.ready([(0, flat.total_floats)])) is not None:
        wait()
    return flat.push[: flat.n_parameters].clone()


def test_bf16_gradients_are_near_those_of_float32_and_are_not_them() -> None:
    exact, rounded = gradients(ComputeOptions()), gradients(ComputeOptions(precision="bf16"))
    assert not torch.equal(exact, rounded)
    assert (exact - rounded).norm() < 0.05 * exact.norm(), "bf16 has 8 bits"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_gradients_of_a_gpu_are_those_of_the_cpu(precision: Literal["float32", "bf16"]) -> None:
    options, device = ComputeOptions(precision=precision), ComputeOptions().choose_device(0)
    assert device.type == "cuda"
    expected, found = gradients(options), gradients(options, device)
    assert (found - expected).norm() < {"float32": 1e-5, "bf16": 0.05}[precision] * expected.norm()
    usage = UsageMeter(device).read()
    assert usage.gpu_memory_bytes is not None
    assert usage.gpu_memory_bytes > 0
    assert usage.gpu_utilization is None or 0 <= usage.gpu_utilization <= 1


def test_compiled_gradients_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and differentiated by the compiler, run by torch's own kernels: no C++ compiler is needed."""
    compiled: list[str] = []
    real = nn.Module.compile

    def compile_by_aot(self: nn.Module) -> None:
        compiled.append(type(self).__name__)
        real(self, backend="aot_eager")

    monkeypatch.setattr(nn.Module, "compile", compile_by_aot)
    torch.testing.assert_close(gradients(ComputeOptions(compile=True)), gradients(ComputeOptions()))
    assert compiled


@pytest.fixture
def as_before() -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(before[0])
    cudnn.deterministic, cudnn.benchmark = before[1:]


@pytest.mark.usefixtures("as_before")
def test_a_deterministic_worker_refuses_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # given back after the test
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    ComputeOptions(deterministic=True).prepare_process()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.backends.cudnn.deterministic
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(4).put_(torch.tensor([1, 1]), torch.ones(2), accumulate=False)
