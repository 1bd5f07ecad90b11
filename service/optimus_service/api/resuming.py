"""Whether an ended job can go on from its last checkpoint."""

from __future__ import annotations

from optimus_scheduler.model import JobState
from optimus_service.clusters.origins import may_have_checkpoint
from optimus_service.settings import Settings
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import Repository

OBJECT_GONE = "ObjectDeleted"
"""The event of a job whose origin, a TrainingJob, was deleted: without it the job would be cancelled again at once."""


def why_not_resumable(job: JobRecord, settings: Settings, repository: Repository) -> str | None:
    """Why an ended job cannot go on, in words; None when nothing speaks against it, as far as the service can see.

    Checkpoints on a volume of Kubernetes or in an object store are not the service's to read: of these it only knows
    whether the job ever wrote one.
    """
    if job.is_tracked:
        return "the job ran outside the cluster: start it again where it ran"
    if job.state is JobState.SUCCEEDED:
        return "the job has succeeded: its own rule would end it again at once"
    if job.step == 0:
        return "the job has no checkpoint to go on from: it never made a step; submit it again"
    if repository.latest_event_types([OBJECT_GONE], [job.id]):
        return "its TrainingJob was deleted, without which it would be cancelled again: apply it again"
    if not may_have_checkpoint(job, settings):
        directory = settings.data_directory / "jobs" / job.id / "checkpoints"
        return f"the job has no checkpoint any more: nothing is in {directory}; submit it again"
    return None
