"""Agreement of all processes of a training on the step at which they stop. Needs torch."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from optimus_client.reporting import stop_requested

CHECK_SECONDS = 0.2
"""How often the processes ask each other: a small sum, which costs far less than one percent of that."""


class StopAgreement:
    """Call `should_stop` after every step on every process: it says yes on all of them at the same step."""

    def __init__(self) -> None:
        self._next_check = 0
        self._checked_at = time.monotonic()
        self._steps_since = 0

    def should_stop(self, step: int) -> bool:
        """Whether the training stops after this step, of which all processes make the same."""
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return stop_requested()
        self._steps_since += 1
        if step < self._next_check:
            return False
        now = time.monotonic()
        each = max((now - self._checked_at) / self._steps_since, 1e-6)
        steps = max(1, min(1000, int(CHECK_SECONDS / each)))
        said = torch.tensor([float(stop_requested()), float(steps)], device=_device())
        dist.all_reduce(said, op=dist.ReduceOp.MAX)
        stops, ahead = said.tolist()
        self._next_check, self._checked_at, self._steps_since = step + int(ahead), now, 0
        return bool(stops)


def _device() -> torch.device:
    """Where the process group can sum."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
