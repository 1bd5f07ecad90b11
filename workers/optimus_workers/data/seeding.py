"""The seed of torch's own random numbers."""

from __future__ import annotations

from functools import cache

import torch


def seed_torch(seed: int) -> None:
    """As `torch.manual_seed`, which keeps a traceback for each kind of accelerator that might be used later: where
    there is none, that takes longer than the forward pass of a small network."""
    if _may_have_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _may_have_accelerator() -> bool:
    """Before PyTorch 2.6 it cannot be asked for all kinds at once."""
    accelerator = getattr(torch, "accelerator", None)
    return accelerator is None or bool(accelerator.is_available())
