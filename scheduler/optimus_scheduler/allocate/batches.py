"""Which global batch a job trains with, once its size is decided."""

from __future__ import annotations

from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation
from optimus_scheduler.settings import Settings


def batch_for(outlook: Outlook, allocation: Allocation, settings: Settings) -> int | None:
    """The batch that goes with `allocation`; None for a job without an elastic batch.

    The one with the highest goodput; what the job has stays as long as it has its size and another batch would not be
    clearly better. A job without tasks keeps the batch that it had.
    """
    job = outlook.job
    if job.spec.elastic_batch is None or allocation.is_empty:
        return job.batch
    if not settings.scale_batches:
        return job.spec.global_batch_size
    best, present = outlook.speeds.batch_at(allocation.workers), job.batch
    if best is None or present is None or allocation != outlook.present:
        return best
    better = outlook.speeds.with_batch(allocation.workers, best)
    worth_it = better >= outlook.speeds.with_batch(allocation.workers, present) * (1.0 + settings.least_batch_gain)
    return best if worth_it else present
