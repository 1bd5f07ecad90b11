"""Where and how a worker computes (device, precision, compiled, repeatable), and what it takes of its machine."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Usage
from optimus_workers.errors import TaskError
from optimus_workers.telemetry.usage import ProcessMeter

WORKSPACE = ":4096:8"
"""What cuBLAS needs to compute the same numbers each time (its documentation, "Results reproducibility"): 8 buffers of
4 MiB for each stream."""


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """What a job asks for."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where one is visible."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: the forward pass under autocast; parameters, gradients and sums stay float32."""
    compile: bool = False
    """Whether torch.compile translates the model."""
    deterministic: bool = False
    """Only algorithms that compute the same numbers each time; PyTorch raises where there is none."""
    overlap: bool = True
    """Push gradients while the backward pass goes on."""

    @classmethod
    def from_spec(cls, spec: JobSpec) -> Self:
        """The options in a job's specification."""
        return cls(**{name: getattr(spec, name) for name in cls.__slots__})

    def prepare_process(self) -> None:
        """Before anything is computed in this process."""
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)  # read when CUDA is first used
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.deterministic = True
            torch.backends.cudnn.benchmark = False

    def choose_device(self, rank: int) -> torch.device:
        """The device of the worker of this rank: with several GPUs in sight, workers take turns; with fewer GPUs than
        workers, they share.

        Raises `TaskError` when there is no GPU and the job wants one.
        """
        n_gpus = 0 if self.device == "cpu" else torch.cuda.device_count()
        if n_gpus and torch.cuda.is_available():
            return torch.device("cuda", rank % n_gpus)
        if self.device == "cuda":
            raise TaskError("device is cuda, but this worker sees no CUDA device")
        return torch.device("cpu")

    def prepare_model(self, model: nn.Module) -> None:
        """Have the model compiled at its first call, in place."""
        if self.compile:
            model.compile()

    def forward(self, device: torch.device) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.precision == "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all tensors in it on the device; lists, tuples and dicts of any depth, and what has a `to` of its
    own. Copies to a GPU are queued, not waited for."""
    if isinstance(batch, Tensor):
        if batch.device.type == "cpu" and device.type == "cuda":
            batch = batch.pin_memory()
        return batch.to(device, non_blocking=device.type == "cuda")
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(item, device) for item in batch)
    if callable(move := getattr(batch, "to", None)):
        return move(device)
    if isinstance(batch, MutableMapping):
        moved = copy.copy(batch)
        for key, item in batch.items():
            moved[key] = to_device(item, device)
        return moved
    return batch


@contextmanager
def called_from_anywhere(model: nn.Module) -> Iterator[None]:
    """In this context the model takes tensors of any device, and what it gives is where its first tensor came from.

    So that a user's `evaluate` that knows nothing of devices works with a model on a GPU, and one that does as well.
    """
    device = next(model.parameters()).device
    origins: list[torch.device] = []

    def before(_: nn.Module, positional: Any, named: Any) -> tuple[Any, Any]:
        origins.append(_first_device((positional, named)) or device)
        return to_device(positional, device), to_device(named, device)

    def after(_: nn.Module, __: Any, given: Any) -> Any:
        return to_device(given, origins.pop())

    if device.type == "cpu":
        yield
        return
    hooks = [model.register_forward_pre_hook(before, with_kwargs=True), model.register_forward_hook(after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _first_device(value: Any) -> torch.device | None:
    if isinstance(value, Tensor):
        return value.device
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return next((found for item in items if (found := _first_device(item)) is not None), None)


# --- what a worker takes of its machine ------------------------------------------------------------------------------

GPU_SECONDS = 1.0
"""How old a GPU's utilisation may be: asking for it takes milliseconds, and it is a mean over up to a second anyway."""


class UsageMeter:
    """Usage since the last reading. Each of several processes that share a GPU reports the whole of it."""

    def __init__(
        self,
        device: torch.device | None = None,
        cpu_clock: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`device`: what the task computes on."""
        self._device = device if device is not None and device.type == "cuda" else None
        self._process = ProcessMeter(cpu_clock, clock)
        self._clock = clock
        self._gpu_at = float("-inf")
        self._gpu: float | None = None

    def read(self) -> Usage:
        """The process's usage; on a GPU the process's GPU memory too, and the GPU's utilization where NVML is there."""
        usage = self._process.read()
        if self._device is None:
            return usage
        n_bytes = int(torch.cuda.memory_reserved(self._device))
        return replace(usage, gpu_memory_bytes=n_bytes, gpu_utilization=self._gpu_utilization(self._clock()))

    def _gpu_utilization(self, now: float) -> float | None:
        if now >= self._gpu_at + GPU_SECONDS:
            self._gpu_at, self._gpu = now, _ask_nvml(lambda: torch.cuda.utilization(self._device))
        return self._gpu


def _ask_nvml(utilization: Callable[[], Any]) -> float | None:
    """None where its Python package is missing or the driver does not say."""
    with suppress(ImportError, RuntimeError, OSError):
        return float(utilization()) / 100
    return None
