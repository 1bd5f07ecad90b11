"""Jobs that were submitted by REST are objects, too: `kubectl get tj` shows all jobs.

::

    active job, never shown            ──▶ create its object, remember that (an event of the job)
    active job, shown before, missing  ──▶ ask the API server; really gone: its owner deleted it: cancel the job
    job changed by REST                ──▶ its object, unless somebody has edited that meanwhile
    job that was resumed               ──▶ as one that was never shown: its object went after its end
    object of a job that ended         ──▶ delete it `keep_objects_seconds` later
    object of no job                   ──▶ delete it
    the definition was deleted         ──▶ remember that: the objects' end cancels nothing

What is remembered is in the database, so a deletion is noticed by whichever replica leads, at once or after a restart.
The order (object first, then the event) leaves one gap: a leader that dies in between. The next one finds the object.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from optimus_scheduler.lifecycle import CancelRequested, InvalidTransition
from optimus_scheduler.model import Directive
from optimus_service.api.jobs.editing import Edit
from optimus_service.api.services import Services
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.crd.translate import INVALID, TrainingJob, mirrored_job, object_names, object_of, training_job
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.store.records import JobRecord

SHOWN = "ObjectCreated"
"""The event of a job that has got an object."""
LOST = "ObjectLost"
"""The event of a job whose object went with the definition of all objects: nobody meant to cancel it."""
RESUMED = "ResumeRequested"
"""The event of a job that had ended (`lifecycle`): its object may be gone since, and nobody meant to cancel it."""
_PER_PASS = 200
"""Objects made in one pass: thousands of jobs must not delay what else a pass does."""
_METHOD_NOT_ALLOWED = 405
_AGAIN_SECONDS = 60.0
"""After a refusal (a quota on objects, say)."""

_log = structlog.get_logger(__name__)


class Mirroring:
    """Makes and removes objects of jobs that have none of their own. Used by one thread."""

    def __init__(self, gateway: Gateway, settings: KubernetesSettings, services: Services, path: str) -> None:
        self._gateway = gateway
        self._settings = settings
        self._services = services
        self._path = path
        self._shown: set[str] = set()
        """Active jobs that are known to have, or to have had, an object."""
        self._settled: dict[str, float] = {}
        """Objects (uid) that say how their job ended: when they are to go (POSIX seconds)."""
        self._refused: dict[str, float] = {}
        """Jobs whose object was refused: when to try again (monotonic)."""

    def sync(self, objects: Iterable[TrainingJob], with_own_object: Mapping[str, JobRecord]) -> dict[str, JobRecord]:
        """Make, remove, cancel; the jobs (by their object's uid) whose objects are to be brought up to date."""
        by_job = {each.mirrors: each for each in objects if each.mirrors is not None}
        repository = self._services.repository
        others = {job.id for job in with_own_object.values()}
        active = {job.id: job for job in repository.jobs.active() if job.id not in others}
        self._remember(active.keys(), by_job.keys())
        self._without_object([job for job in active.values() if job.id not in by_job])
        open_objects = {job_id: each for job_id, each in by_job.items() if job_id not in active}
        ended = self._ended(open_objects)
        return {by_job[job_id].uid: job for job_id, job in {**active, **ended}.items() if job_id in by_job}

    # --- active jobs ------------------------------------------------------------------------------------------------

    def _remember(self, active: Iterable[str], present: Iterable[str]) -> None:
        """Learn which jobs were shown once, and see to it that the database knows all of them."""
        active, present = set(active), set(present)
        self._shown &= active
        unknown = active - self._shown
        if not unknown:
            return
        known = self._known(unknown)
        for job_id in (unknown & present) - known:
            self._note(job_id, "An object shows this job.")
        self._shown |= known | (unknown & present)

    def _known(self, job_ids: Iterable[str]) -> set[str]:
        latest = self._services.repository.events.latest_types((SHOWN, LOST, RESUMED), set(job_ids))
        return {job_id for job_id, kind in latest.items() if kind == SHOWN}

    def _note(self, job_id: str, message: str) -> None:
        self._services.repository.events.add(job_id, SHOWN, message, {}, self._services.clock())
        self._shown.add(job_id)

    def _without_object(self, jobs: list[JobRecord]) -> None:
        wanted = [job for job in jobs if job.directive in (Directive.RUN, Directive.PAUSE)]
        for job in wanted:
            if job.id in self._shown and self._is_gone(job):
                _log.info("job cancelled: its object was deleted", job=job.id)
                cancel(self._services, job)
        new = [job for job in wanted if job.id not in self._shown and self._may_try(job.id)]
        for job in new[:_PER_PASS]:
            self._create(job)

    @staticmethod
    def is_as_made(found: TrainingJob) -> bool:
        """Whether this object shows a job, and no edit of it waits to be done or mended."""
        if found.mirrors is None or found.status.get("reason") == INVALID:
            return False
        return found.generation == (found.status.get("observedGeneration") or 1)

    def renewed(self, found: TrainingJob, edit: Edit) -> TrainingJob:
        """The object with what was changed of its job by other means: `edit` leads from there to the object's old
        specification. Unchanged where the API server refuses that; the next pass tries again."""
        spec: dict[str, Any] = {}
        for field, (present, _) in edit.changes.items():
            *parents, last = field.split(".")
            inner = spec
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = present
        body = {"metadata": {"uid": found.uid, "resourceVersion": found.resource_version}, "spec": spec}
        try:
            return training_job(self._gateway.patch(f"{self._path}/{found.name}", body)) or found
        except ApiRefused as error:
            if not (error.is_conflict or error.is_missing):
                _log.warning("an object could not be brought up to date", object=found.name, error=str(error))
            return found

    def _may_try(self, job_id: str) -> bool:
        return self._refused.get(job_id, 0.0) <= time.monotonic()

    def _create(self, job: JobRecord) -> None:
        for name in object_names(job.id):
            try:
                self._gateway.create(self._path, object_of(job, name, self._settings))
            except ApiRefused as error:
                if error.is_conflict and error.reason == "AlreadyExists":
                    if self._shows(name, job.id):
                        return  # made by a leader before, and seen soon
                    continue
                _log.warning("the object of a job was refused", job=job.id, error=str(error))
                break
            self._note(job.id, f"The job is shown as TrainingJob {name}; deleting that cancels the job.")
            return
        self._refused[job.id] = time.monotonic() + _AGAIN_SECONDS

    def _is_gone(self, job: JobRecord) -> bool:
        """Whether somebody deleted this very object, by what the API server says: what was watched may be late."""
        if any(self._shows(name, job.id) for name in object_names(job.id)):
            return False
        try:
            # While the definition is being deleted, objects are gone already and no new one is accepted.
            self._gateway.create(f"{self._path}?dryRun=All", object_of(job, object_names(job.id)[1], self._settings))
        except ApiRefused as error:
            return not (error.is_missing or error.status == _METHOD_NOT_ALLOWED)
        return True

    def look_after_definition(self) -> None:
        """Objects cannot be watched. If that is because nobody defines them any more, their end says nothing."""
        try:
            self._gateway.get(self._path, {"limit": "1"})
        except ApiRefused as error:
            if error.is_missing:
                self._lose()

    def _lose(self) -> None:
        repository = self._services.repository
        for job_id in self._known(job.id for job in repository.jobs.active()):
            repository.events.add(
                job_id, LOST, "The definition of TrainingJob was deleted.", {}, self._services.clock()
            )
        self._shown.clear()

    def _shows(self, name: str, job_id: str) -> bool:
        try:
            found = self._gateway.get(f"{self._path}/{name}")
        except ApiRefused as error:
            # An answer without a reason is about the whole resource: its definition is not there (any more).
            if error.is_missing and error.reason == "NotFound":
                return False
            _log.warning("an object could not be asked for", object=name, error=str(error))
            return True
        return mirrored_job(found["metadata"]) == job_id and not found["metadata"].get("deletionTimestamp")

    # --- ended jobs -------------------------------------------------------------------------------------------------

    def _ended(self, objects: Mapping[str, TrainingJob]) -> dict[str, JobRecord]:
        """Those whose objects do not say yet how they ended. Objects that are due are deleted."""
        now = self._services.clock()
        self._settled = {each.uid: self._settled[each.uid] for each in objects.values() if each.uid in self._settled}
        open_jobs = {job_id for job_id, each in objects.items() if each.uid not in self._settled}
        jobs = self._services.repository.jobs.by_id(open_jobs) if open_jobs else {}
        for job_id in open_jobs:
            job = jobs.get(job_id)
            ended_at = (job.finished_at or now) if job is not None else 0.0
            self._settled[objects[job_id].uid] = ended_at + self._settings.keep_objects_seconds
        for each in objects.values():
            if self._settled[each.uid] <= now or (each.mirrors in open_jobs and each.mirrors not in jobs):
                self._delete(each)
        return jobs

    def reopen(self, uid: str) -> None:
        """Its status could not be written: look at it again."""
        self._settled.pop(uid, None)

    def _delete(self, found: TrainingJob) -> None:
        try:
            self._gateway.delete(f"{self._path}/{found.name}", {"preconditions": {"uid": found.uid}})
        except ApiRefused as error:
            if not (error.is_missing or error.is_conflict):
                _log.warning("an object could not be deleted", object=found.name, error=str(error))


def cancel(services: Services, job: JobRecord) -> None:
    """Cancel it as `POST /v1/jobs/ID/cancel` does. Nothing happens to a job that is being cancelled or has ended."""
    has_tasks = bool(services.repository.tasks.select(job_id=job.id))
    try:
        cancelled = services.repository.jobs.advance(job.id, CancelRequested(has_tasks=has_tasks), services.clock())
    except InvalidTransition:
        return
    services.long_polls.notify(job.id, cancelled.generation)
    services.trigger_round("cancel")
