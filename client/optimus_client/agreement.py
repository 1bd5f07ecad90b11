"""Agreement of all processes of a training on the step at which they stop or save. Needs torch."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from .reporting import is_at_limit, step_limit, stop_requested

CHECK_SECONDS = 0.2
"""Between two exchanges. One is the largest of four numbers each."""
MAX_CHECK_SECONDS = 2.0
"""A request to stop is not noticed later than this, even where an exchange is slow."""
COST = 0.01
"""Share of the time that exchanges may take."""


def world_size() -> int:
    """Processes that train together; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process among them."""
    return dist.get_rank() if world_size() > 1 else 0


class Agreement:
    """Asked after every step on every process, it answers the same on all of them."""

    def __init__(self) -> None:
        self._next_check = 0
        self._checked_at = time.monotonic()
        self._checked_step = 0
        self._cost = float("inf")
        """Seconds of the fastest exchange: what is beyond that is waiting for processes that are not so far yet, which
        the next step would wait for."""
        self._limit = float("inf")
        """The step that all end at, as they agreed."""

    def ask(self, step: int, *, save: bool = False) -> tuple[bool, bool]:
        """Whether all stop, and whether all save, after this step; `save`: this process would like to."""
        if world_size() == 1:
            is_last = is_at_limit(step)
            return is_last or stop_requested(), is_last or save
        is_last = step >= self._limit  # all come to this step, where their owner may have changed it
        if step < self._next_check and not is_last:
            return False, False
        begun = time.monotonic()
        n_steps = max(1, step - self._checked_step) if self._checked_step else 1
        each = max((begun - self._checked_at) / n_steps, 1e-6)
        pause = min(max(CHECK_SECONDS, min(self._cost, 1.0) / COST), MAX_CHECK_SECONDS)
        ahead = max(1, int(pause / each)) if self._checked_step else 1
        said = [float(stop_requested()), float(save), float(ahead), step_limit(newest=is_last)]
        heard = torch.tensor(said, dtype=torch.float64, device=exchange_device())
        dist.all_reduce(heard, op=dist.ReduceOp.MAX)
        stops, saves, ahead_of_all, self._limit = heard.tolist()
        is_last = step >= self._limit
        now = time.monotonic()
        self._cost = min(self._cost, now - begun)
        self._next_check, self._checked_at, self._checked_step = step + int(ahead_of_all), now, step
        return is_last or bool(stops), is_last or bool(saves)


_agreement = Agreement()


def stop_agreed(step: int) -> bool:
    """Whether the processes that train together save and end after this step: the same answer on all of them.

    For loops of one's own on several processes; called after every optimizer step, on every process, with the number of
    steps done. `stop_requested` is answered at different steps, where some processes would wait for others for ever.
    """
    return _agreement.ask(step)[0]


def exchange_device() -> torch.device:
    """Where the process group can sum: not on a GPU if that can be, so that nothing waits for its work."""
    if "gloo" in str(dist.get_backend_config()):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def all_agree(said: bool) -> bool:
    """Whether all processes say yes; waits for all."""
    if world_size() == 1:
        return said
    least = torch.tensor([float(said)], device=exchange_device())
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return bool(least.item())
