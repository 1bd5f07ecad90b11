"""The batch that this process is to use, so that the global batch stays what the job asks for at every size."""

from __future__ import annotations

import logging
import os

__all__ = ["accumulation_steps", "batch_factor", "batch_part", "worker_batch_size"]

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


def batch_factor() -> int | None:
    """How many times the batch of one worker the global batch is (`scaling: weak`); None: it is the same at every
    size. The learning rate is to be multiplied with it, and a step counts as so many steps of one worker."""
    return int(os.environ.get("OPTIMUS_BATCH_FACTOR") or 0) or None


def warmup_epochs() -> float:
    """Epochs in which the learning rate grows to a larger batch's; 5 unless the job names them (Goyal et al. 2017)."""
    return float(os.environ.get("OPTIMUS_WARMUP_EPOCHS") or 5.0)


def refuse_weak_scaling(framework: str) -> None:
    """Raise `RuntimeError` if the job has `scaling: weak`."""
    if batch_factor() is not None:
        raise RuntimeError(
            f"scaling: weak is for optimus_client.elastic and loops of your own: {framework} finds its place in the "
            "data by the number of steps, which have another size after each change; leave scaling out"
        )


def warn_if_uneven(step_examples: int) -> None:
    """Log it if a step of a framework that computes equally much in each process is not the job's global batch."""
    given = global_batch_size()
    if given is not None and step_examples != given:
        log.warning(
            "a step has %d examples and not %d (global_batch_size): the processes cannot compute equal parts of that",
            step_examples,
            given,
        )
