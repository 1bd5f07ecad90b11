"""The batch that this process is to use, so that the global batch stays what the job asks for at every size."""

from __future__ import annotations

import logging
import os

__all__ = ["accumulation_steps", "batch_part", "worker_batch_size"]

log = logging.getLogger("optimus_client")


def global_batch_size() -> int | None:
    """Examples of one step over all processes; None: the job names no global batch."""
    return int(os.environ.get("OPTIMUS_GLOBAL_BATCH_SIZE") or 0) or None


def worker_batch_size(default: int) -> int:
    """Examples that this process computes at once; `default` if the job names no global batch."""
    return int(os.environ.get("OPTIMUS_WORKER_BATCH_SIZE") or default)


def accumulation_steps(default: int = 1) -> int:
    """Batches whose gradients accumulate before an optimizer step; `default` if the job names no global batch."""
    return int(os.environ.get("OPTIMUS_ACCUMULATION_STEPS") or default)


def batch_part(default: int) -> int:
    """Examples of a step that are this process's own: over all processes they sum to the global batch, also where it
    does not divide equally; `default` if the job names no global batch."""
    return int(os.environ.get("OPTIMUS_BATCH_PART") or default)


def warn_if_uneven(step_examples: int) -> None:
    """Log it if a step of a framework that computes equally much in each process is not the job's global batch."""
    given = global_batch_size()
    if given is not None and step_examples != given:
        log.warning(
            "a step has %d examples and not %d (global_batch_size): the processes cannot compute equal parts of that",
            step_examples,
            given,
        )
