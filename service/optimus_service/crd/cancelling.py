"""A job whose object was deleted is cancelled, as by `POST /v1/jobs/ID/cancel`."""

from __future__ import annotations

from optimus_scheduler.lifecycle import CancelRequested, InvalidTransition
from optimus_service.api.services import Services
from optimus_service.store.records import JobRecord


def cancel(services: Services, job: JobRecord) -> None:
    """Nothing happens to a job that is being cancelled or has ended."""
    has_tasks = bool(services.repository.tasks(job_id=job.id))
    try:
        cancelled = services.repository.advance_job(job.id, CancelRequested(has_tasks=has_tasks), services.clock())
    except InvalidTransition:
        return
    services.hub.notify(job.id, cancelled.generation)
    services.trigger_round("cancel")
