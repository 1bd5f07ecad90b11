"""What a worker takes of its machine: processor, memory, GPU. Cheap, and once a second NVML's word."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from optimus_workers.telemetry.usage import ProcessMeter, Usage

GPU_SECONDS = 1.0
"""How old a GPU's utilisation may be: asking for it takes milliseconds, and it is a mean over up to a second anyway."""


class UsageMeter:
    """Usage since the last reading. A GPU that several processes share is told by each of them as a whole."""

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
        """`cpu_cores` (mean), `memory_bytes` (resident); on a GPU `gpu_utilization` (0 to 1, if NVML is there) and
        `gpu_memory_bytes` (of this process)."""
        usage = self._process.read()
        if self._device is not None:
            usage["gpu_memory_bytes"] = int(torch.cuda.memory_reserved(self._device))
            if (busy := self._gpu_utilization(self._clock())) is not None:
                usage["gpu_utilization"] = busy
        return usage

    def _gpu_utilization(self, now: float) -> float | None:
        if now >= self._gpu_at + GPU_SECONDS:
            self._gpu_at, self._gpu = now, _ask_nvml(lambda: torch.cuda.utilization(self._device))
        return self._gpu


def _ask_nvml(utilization: Callable[[], Any]) -> float | None:
    """None where its Python package is missing or the driver does not tell."""
    with suppress(ImportError, RuntimeError, OSError):
        return float(utilization()) / 100
    return None
