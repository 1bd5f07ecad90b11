"""Keeps objects and jobs in step. Level-triggered: each pass compares all objects with all jobs.

::

    object of another one       ──▶ nothing (installations in one namespace share the objects, see the end of this file)
    object without a job        ──▶ submit it (idempotent by the object's uid)
    object changed              ──▶ the job's limits, priority, convergence rule (`api/editing.py`)
    job changed by REST         ──▶ the object that shows it
    object deleted              ──▶ cancel its job
    job moved on                ──▶ the object's status
    job without an object       ──▶ an object that shows it (`mirroring.py`)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog
from pydantic import ValidationError

from optimus_scheduler.model import Directive
from optimus_service.api.http.problems import Problem
from optimus_service.api.jobs.changes import apply, new_objections
from optimus_service.api.jobs.editing import edit_of
from optimus_service.api.jobs.submission import OBJECT_GONE, submit
from optimus_service.api.services import Services
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.kubernetes.gateway import ApiRefused, Gateway
from optimus_service.clusters.kubernetes.mirror import Mirror
from optimus_service.clusters.kubernetes.names import installation
from optimus_service.clusters.kubernetes.watcher import Watcher
from optimus_service.crd.definition import GROUP, PLURAL, VERSION
from optimus_service.crd.mirroring import Mirroring, cancel
from optimus_service.crd.translate import (
    NOT_CHANGED,
    TrainingJob,
    body_of,
    differs,
    invalid_status,
    is_ours,
    refused_status,
    status_of,
    training_job,
)
from optimus_service.insight.jobs.speeds_here import speeds_here
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.records import DecisionRecord, JobRecord

_PERIOD_SECONDS = 2.0

_log = structlog.get_logger(__name__)


class TrainingJobController:
    """A thread that works while this process leads."""

    def __init__(self, gateway: Gateway, settings: KubernetesSettings, services: Services) -> None:
        self._gateway = gateway
        self._settings = settings
        self._services = services
        self._checks = TaskChecks(services.cluster.check_task, services.cluster.try_task)
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{settings.namespace}/{PLURAL}"
        self.claims = Claims(gateway, settings, self._path)
        self._mirroring = Mirroring(gateway, settings, services, self._path)
        self._objects: Mirror[TrainingJob] = Mirror(training_job)
        self._watcher = Watcher(gateway, self._path, {}, self._objects, settings.watch_seconds)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training-jobs", daemon=True)

    def start(self) -> None:
        self._watcher.start()
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._watcher.close()
        self._thread.join(_PERIOD_SECONDS + 5.0)

    @property
    def problem(self) -> str | None:
        """Why objects cannot be seen now."""
        return self._watcher.problem

    def _run(self) -> None:
        while not self._stopping.wait(_PERIOD_SECONDS):
            if not self._services.leads():
                continue
            try:
                if self._watcher.problem is None:
                    self.sync()
                else:
                    self._mirroring.look_after_definition()
            except (ClusterUnavailable, DatabaseNotAvailable) as error:
                _log.warning("training jobs could not be brought up to date", error=str(error))
            except Exception:  # noqa: BLE001 - the next pass tries again: a thread that died would be missed by nobody
                self._services.metrics.count_unexpected_error("training jobs")
                _log.exception("training jobs could not be brought up to date")

    # --- one pass ---------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Bring objects and jobs in step, once."""
        objects = self._objects.values()
        users = [each for each in objects if each.mirrors is None]
        own = [claimed for each in users if (claimed := self.claims.of(each)) is not None]
        made = [each for each in objects if each.mirrors is not None and is_ours(each, self._settings)]
        jobs = self._services.repository.jobs.of_objects([each.uid for each in own])
        undecided = {each.uid for each in users if belongs_to(each) is None}
        self._cancel_without_object({each.uid for each in own} | undecided, jobs)
        shown = self._mirroring.sync(made, jobs)
        pairs = [(each, jobs.get(each.uid)) for each in own]
        pairs += [(each, shown[each.uid]) for each in made if each.uid in shown]
        ids = [job.id for _, job in pairs if job is not None]
        decisions = self._services.repository.rounds.latest_decisions(ids)
        for each, job in pairs:
            status = self._handled(each, job, decisions)
            if status is not None and differs(each.status, status) and not self._write_status(each, status):
                self._mirroring.reopen(each.uid)

    def _handled(
        self, found: TrainingJob, job: JobRecord | None, decisions: Mapping[str, DecisionRecord]
    ) -> dict[str, object] | None:
        """The object's status; None when a job that runs is to keep the one it has."""
        try:
            return self._reconciled(found, job, decisions)
        except (ClusterUnavailable, DatabaseNotAvailable):
            raise
        except Exception as error:  # noqa: BLE001 - one odd object must not close the door for all others
            _log.exception("an object could not be handled", object=found.name)
            message = f"it could not be handled ({type(error).__name__}); the service's log says more"
            return refused_status(message, found.generation) if job is None else None

    def _reconciled(
        self, found: TrainingJob, job: JobRecord | None, decisions: Mapping[str, DecisionRecord]
    ) -> dict[str, object]:
        """The object's status, after its job was made or changed if that was to be done."""
        now = self._services.clock()
        try:
            body = body_of(found, job)
            if job is None:
                job, _ = submit(self._services, self._checks, body, None, object_uid=found.uid)
                self._services.trigger_round("submit")
                _log.info("job submitted by an object", job=job.id, object=found.name)
        except ValidationError as error:
            message = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            return self._invalid(found, job, decisions, message)
        except Problem as problem:
            return refused_status(_words(problem), found.generation)
        if job.state.is_final:
            return status_of(job, decisions.get(job.id), found.generation, now)
        edit = edit_of(job.spec, body)
        if edit.changed and self._mirroring.is_as_made(found):
            found = self._mirroring.renewed(found, edit)  # the job was changed by REST
        elif edit.changed:
            impossible = new_objections(self._services, job, edit)
            if impossible:
                words = "; ".join(f"{each.field}: {each.message}" for each in impossible)
                return self._invalid(found, job, decisions, words)
            apply(
                self._services, job, edit, "its TrainingJob"
            )  # where it was changed meanwhile, the next pass sees how
            job = self._services.repository.jobs.get(job.id)
        if edit.fixed:
            self._show(found, job, status_of(job, None, found.generation, now, edit.fixed))
        decision, still = decisions.get(job.id), self._services.still_now()
        speed = speeds_here(self._services.repository, [job], decisions, now).get(job.id)
        return status_of(job, decision, found.generation, now, edit.fixed, still, speed)

    def _show(self, found: TrainingJob, job: JobRecord, status: Mapping[str, object]) -> None:
        """The job's owner, once for each change of the object, that something of it cannot be done."""
        if found.status.get("observedGeneration") == found.generation and found.status.get("reason") == NOT_CHANGED:
            return
        message, data = f"Its object {found.name}: {status['message']}.", {"generation": found.generation}
        # The objects seen may be older than the status that the last pass wrote.
        told = self._services.repository.events.of_type(NOT_CHANGED, [job.id])
        if any(event.data == data for event in told):
            return
        self._services.repository.events.add(job.id, NOT_CHANGED, message, data, self._services.clock())

    def _invalid(
        self, found: TrainingJob, job: JobRecord | None, decisions: Mapping[str, DecisionRecord], message: str
    ) -> dict[str, object]:
        if job is None:
            return refused_status(message, found.generation)
        now, still = self._services.clock(), self._services.still_now()
        return invalid_status(job, decisions.get(job.id), message, found.generation, now, still)

    def _cancel_without_object(self, uids: set[str], jobs: Mapping[str, JobRecord]) -> None:
        """Of jobs whose object was deleted, or belongs to another installation by now."""
        for uid, job in jobs.items():
            if uid not in uids and not job.state.is_final:
                if job.directive is not Directive.CANCEL:
                    message = "Its TrainingJob was deleted, or moved to another installation: that cancels the job."
                    self._services.repository.events.add(job.id, OBJECT_GONE, message, {}, self._services.clock())
                cancel(self._services, job)

    def _write_status(self, found: TrainingJob, status: dict[str, object]) -> bool:
        """Whether it is there now."""
        try:
            self._gateway.patch(f"{self._path}/{found.name}/status", {"metadata": {"uid": found.uid}, "status": status})
        except ApiRefused as error:
            if not (error.is_missing or error.is_conflict):  # it is gone meanwhile, or another one of its name
                _log.warning("a status could not be written", object=found.name, error=str(error))
            return False
        return True


def _words(problem: Problem) -> str:
    errors = getattr(problem, "errors", None) or ()
    return "; ".join(f"{each.field}: {each.message}" for each in errors) or str(problem.detail)


# --- Which of several installations in a namespace an object belongs to ----------------------------------------------
# ::
#
#     label optimus.dev/installation    the owner's or operator's word: this installation and no other
#     status.installation               the claim of the installation that took the object
#     neither                           the first that writes its claim has it
#
# A claim is in the status, which the service alone may write: no `kubectl apply` or `kubectl replace` of an owner loses
# it. It is written on condition that the object is still as it was seen (its resource version), so of several
# installations that try at once the API server lets one succeed. A label that names another installation moves the
# object: that is how the objects of an installation that is gone are handed over.


def belongs_to(found: TrainingJob) -> str | None:
    """The installation that is to have the object; None: whichever claims it first."""
    return found.installation or found.claimed_by


class Claims:
    """Claims objects for one installation."""

    def __init__(self, gateway: Gateway, settings: KubernetesSettings, path: str) -> None:
        """`path`: of the objects in the API."""
        self._gateway = gateway
        self._path = path
        self.identity = installation(settings.namespace, settings.instance)

    def of(self, found: TrainingJob) -> TrainingJob | None:
        """The object as claimed by this installation, now or before; None when it is another one's.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        if belongs_to(found) not in (None, self.identity):
            return None
        return found if found.claimed_by == self.identity else self._claim(found)

    def _claim(self, found: TrainingJob) -> TrainingJob | None:
        body = {
            "metadata": {"uid": found.uid, "resourceVersion": found.resource_version},
            "status": {"installation": self.identity},
        }
        try:
            claimed = training_job(self._gateway.patch(f"{self._path}/{found.name}/status", body))
        except ApiRefused as error:
            if not (error.is_conflict or error.is_missing):
                _log.warning("an object could not be claimed", object=found.name, error=str(error))
            return None  # it has changed since, or is gone: the next pass sees how
        if claimed is not None and claimed.claimed_by != self.identity:
            _log.error(
                "the definition of TrainingJob is older than this service: bring it up to date", object=found.name
            )
            return None
        return claimed
