"""What happens to a submitted job before it is stored: can tasks load its code, could the cluster ever hold it?

And whether a job that has ended can go on.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.people import ProjectLimits
from optimus_contract.result import JobProfile
from optimus_scheduler.model import JobState, Node, Quota
from optimus_service.api.access import limits
from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import Caller
from optimus_service.api.http.problems import Problem, invalid, invalid_field
from optimus_service.api.services import Services
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters import origins
from optimus_service.clusters.base import ClusterUnavailable, TaskObjection
from optimus_service.clusters.origins import may_have_checkpoint
from optimus_service.insight.predictions.feasibility import objections, over_quota, unpriced
from optimus_service.observe.spec import begins_anew, deadline_of
from optimus_service.settings import Settings
from optimus_service.store.errors import IdempotencyConflict, JobIdTaken, JobNotFound
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import Repository

_ID_ALPHABET = "bcdfghjkmnpqrstvwxz2456789"
"""No vowels (no words), no look-alikes (0 and o, 1 and l, 3 and 8 in some fonts)."""
_ID_SUFFIX_LENGTH = 5
_LONGEST_ID_NAME = 34
"""With suffix 40 characters: task names made from ids stay valid Kubernetes names and labels (63)."""
_ID_ATTEMPTS = 10
"""With 26^5 suffixes, ten in a row are taken only when a name has millions of jobs."""


def submit(
    services: Services,
    task_checks: TaskChecks,
    spec: JobSpec,
    idempotency_key: str | None,
    *,
    object_uid: str | None = None,
    caller: Caller | None = None,
    owner: str | None = None,
    audit: Audit | None = None,
) -> tuple[JobRecord, bool]:
    """Check and store a job; `object_uid`: the Kubernetes object that is its origin, if one is.

    `caller`: who submits it, None for such an object. `owner`: whose it is, if not the caller's. `audit`: the record
    of the request, which is told the job.

    Returns:
        The job, and whether this call made it (False: a repetition of a request that made it).

    Raises:
        Problem: it asks for more than the cluster has or for too little to train, or its task cannot train (422).
        IdempotencyConflict: the key was used for another request.
    """
    if caller is not None:
        refuse_project(caller, spec.project)
    with named_to(services, caller):
        return _submitted(services, task_checks, spec, idempotency_key, object_uid, caller, owner, audit)


def _submitted(
    services: Services,
    task_checks: TaskChecks,
    spec: JobSpec,
    idempotency_key: str | None,
    object_uid: str | None,
    caller: Caller | None,
    owner: str | None,
    audit: Audit | None,
) -> tuple[JobRecord, bool]:
    key = idempotency_key if caller is None or idempotency_key is None else own_key(caller, idempotency_key)
    document, request_hash = write(spec), hash_of(spec)
    if key is not None:
        # A repetition gets the answer of the first time, even if the job would not be accepted any more.
        made_before = services.repository.jobs.find_submission(key, request_hash)
        if made_before is not None:
            _note(audit, made_before, is_new=False)
            return made_before, False
    check(services, task_checks, spec, caller)
    profile = profile_of(task_checks, spec)
    owner = owner or (None if caller is None else caller.name)
    for _ in range(_ID_ATTEMPTS):
        job_id = new_job_id(spec.name)
        try:
            with with_origin(services, spec, job_id) as keep:
                with services.repository.write() as tx:
                    if caller is not None:
                        limits.refuse_waiting(tx, caller, spec.project, services.settings)
                    nonce, now = services.job_tokens.new_nonce(), services.clock()
                    job, is_new = tx.jobs.create(
                        job_id, document, nonce, key, request_hash, now, object_uid, owner, profile
                    )
                    _note(audit, job, is_new=is_new)
                keep(is_new)
        except JobIdTaken:
            continue
        return job, is_new
    raise JobIdTaken(spec.name)


def _note(audit: Audit | None, job: JobRecord, *, is_new: bool) -> None:
    if audit is not None:
        audit.made(job.id)
        audit.project, audit.data["new"] = job.project, is_new


def hash_of(spec: JobSpec) -> str:
    """What tells requests with the same idempotency key apart."""
    return hashlib.sha256(json.dumps(write(spec), sort_keys=True).encode()).hexdigest()


def refuse_project(caller: Caller, project: str) -> None:
    """Raise `Problem` (403) unless the caller may submit to this project, whether or not there is one."""
    if caller.submits(project):
        return
    mine = ", ".join(sorted(caller.submits_to or ())) or "none"
    is_member = caller.role is not None or caller.memberships.get(project) == "member"
    why = (
        f"is a member of the project {project}, and this token is not good for submitting to it"
        if is_member
        else f"is no member of the project {project}"
    )
    raise Problem(403, f"{caller.name} {why}; may submit to: {mine}")


def own_key(caller: Caller, key: str) -> str:
    """The idempotency key as it is stored: two users may choose the same one. A blank is in no key that is sent."""
    return key if caller.token_id is None else f"{caller.name} {key}"


@contextmanager
def named_to(services: Services, caller: Caller | None) -> Iterator[None]:
    """An `IdempotencyConflict` names the job that the key made only if the caller may read it: the token may be good
    for fewer projects than the one that the key was used with, or the user have fewer by now."""
    try:
        yield
    except IdempotencyConflict as conflict:
        try:
            made = None if conflict.job_id is None else services.repository.jobs.get(conflict.job_id)
        except JobNotFound:
            made = None
        if caller is None or (made is not None and caller.reads(made.project)):
            raise
        raise IdempotencyConflict(conflict.key, None) from conflict


@contextmanager
def with_origin(services: Services, spec: JobSpec, job_id: str) -> Iterator[Callable[[bool], None]]:
    """A copy of the checkpoint that the job starts from, if it needs one; removed unless the job was made."""
    if spec.from_job is None or not origins.is_copied(spec, services.settings):
        yield lambda _is_new: None
        return
    jobs = services.settings.data_directory / "jobs"
    try:
        origins.copy_checkpoint(jobs, spec.from_job, job_id)
    except origins.NoCheckpoint as error:
        raise invalid_field("from_job", str(error)) from error
    except FileExistsError as error:
        raise JobIdTaken(job_id) from error
    except OSError as error:
        raise Problem(503, f"the checkpoint of job {spec.from_job} could not be copied: {error}") from error
    made: list[bool] = []
    try:
        yield made.append
    except (JobIdTaken, IdempotencyConflict, Problem):
        made.append(False)
        raise
    finally:
        # Kept when the database did not answer: it may have the job nevertheless.
        if made == [False]:
            origins.remove_copy(jobs, job_id)


def new_job_id(name: str) -> str:
    """A name that nobody has, most likely: the job's own with a random end."""
    suffix = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_SUFFIX_LENGTH))
    return f"{name[:_LONGEST_ID_NAME].rstrip('-')}-{suffix}"


def check(services: Services, task_checks: TaskChecks, spec: JobSpec, caller: Caller | None = None) -> None:
    """Return if the job would be accepted from this caller.

    Raises:
        Problem: it asks for more than the cluster has or for too little to train, or its task cannot train (422).
    """
    check_with(Looks(services, task_checks, caller), spec)


class Looks:
    """What the checks of jobs look at, once for all jobs of one request. For one thread."""

    def __init__(self, services: Services, task_checks: TaskChecks, caller: Caller | None) -> None:
        self.services = services
        self.caller = caller
        self._checks = task_checks
        self._limits: dict[str, list[limits.InForce]] = {}
        self._of_projects: dict[str, ProjectLimits] = {}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Raises `ClusterUnavailable`."""
        return self.services.cluster.nodes()

    @cached_property
    def quotas(self) -> list[Quota]:
        return [each.quota for each in self.services.repository.projects.all()]

    def limits_of(self, project: str) -> list[limits.InForce]:
        """Those of the caller's jobs of this project."""
        if self.caller is None:
            return []
        if project not in self._limits:
            found = limits.in_force(self.caller, project, self.services.repository, self.services.settings)
            self._limits[project] = found
        return self._limits[project]

    def limits_of_project(self, project: str) -> ProjectLimits:
        """Those of the project itself, whoever asks."""
        if project not in self._of_projects:
            self._of_projects[project] = limits.of_project(self.services.repository, project)
        return self._of_projects[project]

    def why_not_loadable(self, import_path: str, working_directory: str | None) -> str | None:
        """See `TaskChecks`, which remembers the answer."""
        return self._checks.why_not_loadable(import_path, working_directory)

    def why_not_startable(self, spec: JobSpec) -> TaskObjection | None:
        """Why the command of a script could not be started."""
        return self.services.cluster.check_command(write(spec))

    def why_not_trainable(self, spec: JobSpec) -> TaskObjection | None:
        """See `TaskChecks`."""
        return self._checks.why_not_trainable(_what_to_try(spec))


def check_with(looks: Looks, spec: JobSpec) -> None:
    """The same for one of the jobs that `looks` is for."""
    services = looks.services
    limits.refuse_size(spec, looks.limits_of(spec.project))
    if spec.tracked:
        return  # it asks for nothing
    limits.refuse_never_let_in(spec, looks.limits_of_project(spec.project))
    _check_origin(services, spec, looks.caller)
    try:
        errors = unpriced(spec, services.settings.scheduling) or objections(spec, looks.nodes)
        errors = errors or over_quota(spec, looks.quotas, looks.nodes)
        loadable = None if errors or spec.task is None else (spec.task, spec.working_directory)
        why_not = None if loadable is None else looks.why_not_loadable(*loadable)
    except ClusterUnavailable:
        return  # that is not known now, and a job may well wait until the cluster is back
    if errors:
        raise invalid(errors)
    if spec.workers.resources.cpu == 0:
        raise invalid_field("workers.resources.cpu", "must be greater than 0: a worker that has no core cannot train")
    due = deadline_of(spec, services.clock())
    if due is not None and due <= services.clock():
        raise invalid_field("deadline", "is in the past")
    if why_not is not None:
        raise invalid_field("task", why_not)
    is_script = spec.command is not None
    objection = looks.why_not_startable(spec) if is_script else looks.why_not_trainable(spec)
    if objection is not None:
        raise invalid_field(objection.field, objection.message)


def profile_of(task_checks: TaskChecks, spec: JobSpec) -> dict[str, Any] | None:
    """What the trial of the job's task has found, as a `JobProfile`: its forecasts need not go by other jobs' data and
    batch until its tasks report it. None: it was not tried."""
    sizes = None if spec.task is None else task_checks.sizes_of(_what_to_try(spec))
    if sizes is None:
        return None
    n_examples, batch = sizes.n_examples, sizes.global_batch_size
    profile = JobProfile(n_examples=n_examples, global_batch_size=batch, steps_per_epoch=n_examples / batch)
    return write(profile)


def _what_to_try(spec: JobSpec) -> dict[str, Any]:
    """The fields that decide whether the task can train."""
    names = (
        "task", "task_args", "working_directory", "global_batch_size", "environment", "checkpoint_url", "architecture",
    )  # fmt: skip
    document = write(spec)
    found = {name: document[name] for name in names}
    if spec.elastic_batch is not None:
        found["global_batch_size"] = spec.elastic_batch.minimum
    return found


def _check_origin(services: Services, spec: JobSpec, caller: Caller | None) -> None:
    """Raise `Problem` (422) if the job could not start from the checkpoint that it names."""
    if spec.from_job is None:
        return
    try:
        origin = services.repository.jobs.get(spec.from_job)
        if caller is not None and not caller.reads(origin.project):
            raise JobNotFound(spec.from_job)
    except JobNotFound as error:
        raise invalid_field("from_job", f"there is no job {spec.from_job}") from error
    why_not = origins.objection(origin, spec.checkpoint_url, services.settings)
    if why_not is not None:
        raise invalid_field("from_job", why_not)


# --- whether an ended job can go on ----------------------------------------------------------------------------------


OBJECT_GONE = "ObjectDeleted"
"""The event of a job whose origin, a TrainingJob, was deleted: without it the job would be cancelled again at once."""


_WHY_NOT_ITS_OWN = (
    "its script is not known to go on from a checkpoint of its own: `optimus retry {}` runs its command again as a new "
    "job, which goes on from what it finds; a job that is submitted with --resumes can be resumed"
)


def why_not_resumable(job: JobRecord, settings: Settings, repository: Repository) -> str | None:
    """Why an ended job cannot go on, in words; None when nothing speaks against it, as far as the service can see.

    Checkpoints on a volume of Kubernetes or in an object store are not the service's to read: of these it only knows
    whether the job ever wrote one; and of those of a script nothing.
    """
    if job.is_tracked:
        return "the job ran outside the cluster: start it again where it ran"
    if job.state is JobState.SUCCEEDED:
        return "the job has succeeded: there is nothing left of it to do; `optimus retry` runs it again"
    # What a script did that told no step is not known.
    is_untold = job.step == 0 and job.asked.command is not None and job.started_at is not None
    if job.step == 0 and not is_untold:
        return "the job has no checkpoint to go on from: it never made a step; `optimus retry` runs it again"
    if repository.events.latest_types([OBJECT_GONE], [job.id]):
        return "its TrainingJob was deleted, without which it would be cancelled again: apply it again"
    if job.asked.command is not None and (is_untold or settings.cluster == "local"):
        return _WHY_NOT_ITS_OWN.format(job.id) if begins_anew(job) else None
    if not may_have_checkpoint(job, settings):
        directory = (settings.data_directory / "jobs" / job.id / "checkpoints").absolute()
        return f"the job has no checkpoint: nothing is in {directory}; `optimus retry {job.id}` runs it again"
    return None
