"""The batch that this process is to use, so that the global batch stays what the job asks for at every size."""

from __future__ import annotations

import os

__all__ = ["accumulation_steps", "worker_batch_size"]


def worker_batch_size(default: int) -> int:
    """Examples that this process computes at once; `default` if the job names no global batch."""
    return int(os.environ.get("OPTIMUS_WORKER_BATCH_SIZE") or default)


def accumulation_steps(default: int = 1) -> int:
    """Batches whose gradients accumulate before an optimizer step; `default` if the job names no global batch."""
    return int(os.environ.get("OPTIMUS_ACCUMULATION_STEPS") or default)
