"""From what is stored of a job's specification to what decisions depend on.

A stored document is not a request: an older or newer release may have written it, by other rules than those for new
jobs (`optimus_service.requests`). So what it does not say has its default, fields that are not known here are left
alone, and only what nothing can be decided by is refused.
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from optimus_contract import job as contract
from optimus_contract.codec import read
from optimus_contract.command import is_distributed, work_of
from optimus_models.convergence import Rule
from optimus_models.speed.goodput import ElasticBatch
from optimus_scheduler.forecast.end import step_limit
from optimus_scheduler.forecast.gpu_types import ANY_GPU
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    Directive,
    JobSpec,
    JobState,
    MetricTarget,
    Mode,
    Resources,
    TaskDemand,
)
from optimus_service.store.database.sealing import SEALED
from optimus_service.store.records import JobRecord

NAME_LABEL, RUN_LABEL = "optimus/track", "optimus/run"
"""Labels of runs that stock libraries tell of by themselves: where they post to, and which run of that name it is."""
_DECISIVE = (
    "task",
    "task_args",
    "command",
    "image",
    "working_directory",
    "tracked",
    "resumes",
    "project",
    "mode",
    "architecture",
    "global_batch_size",
    "gpu_types",
    "convergence",
    "workers",
    "servers",
    "priority",
    "deadline",
    "deadline_seconds",
    "elastic_batch",
)
"""What decisions depend on; everything else may be as it likes."""


class UnreadableSpecification(Exception):
    """Nothing can be decided about a job by what is stored of its specification."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"the stored specification of job {job_id} cannot be read: {why}")
        self.job_id = job_id
        self.why = why


def spec_of(job: JobRecord) -> JobSpec:
    """The job's specification; the batch size is the reported one where the owner left it to the task.

    Raises:
        UnreadableSpecification: the message names the field.
    """
    found: JobSpec | None = job.derived.get("spec")
    if found is not None:
        return found
    try:
        found = job.derived["spec"] = _spec(job.spec, job)
        return found
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableSpecification(job.id, str(error)) from error


def readable_spec(job: JobRecord) -> JobSpec | None:
    """The same for who shows many jobs: None where it cannot be read."""
    try:
        return spec_of(job)
    except UnreadableSpecification:
        return None


def _spec(document: object, job: JobRecord) -> JobSpec:
    if SEALED in job.spec:
        raise ValueError("its variables are encrypted with a key that OPTIMUS_ENCRYPTION_KEYS does not have")
    text, name = _decisive(document, job.name)
    said, reported = _read_decisive(text, name), job.profile or {}
    total = reported.get("total_steps")
    return _made(
        text,
        name,
        resumes=bool(reported.get("resumes") if said.resumes is None else said.resumes),
        fixed_workers=reported.get("fixed_workers"),
        wanted_workers=job.wanted.workers if said.architecture == "script" else None,
        announced_steps=total or None,
        has_passed_these=bool(total and total <= next_step(job)),
        batch=reported.get("global_batch_size"),
        created_at=None if said.deadline_seconds is None else job.created_at,
        passed=passed_limits(job),
    )


@lru_cache(maxsize=20_000, typed=True)
def _made(
    text: str,
    name: str,
    *,
    resumes: bool,
    fixed_workers: int | None,
    wanted_workers: int | None,
    announced_steps: int | None,
    has_passed_these: bool,
    batch: int | None,
    created_at: float | None,
    passed: tuple[str, ...] = (),
) -> JobSpec:
    """Kept like `_read_decisive`: jobs for which it says the same share it, so that most comparisons are of one object.

    `wanted_workers` and `created_at`: None where nothing depends on them.
    """
    said = _read_decisive(text, name)
    elastic = None if said.elastic_batch is None else _elastic(said.elastic_batch)
    gpu_type = said.gpu_types[0] if said.gpu_types else ANY_GPU
    worker = _demand("workers", said.workers, gpu_type, least=1)
    size_stays = False
    may_grow = said.architecture != "script" or worker.maximum > 1 or is_distributed(said.command or ())
    if said.architecture == "script" and not said.tracked and (fixed_workers or not resumes):
        # A change of size would make it begin anew, or go on from the wrong step.
        size = min(max(fixed_workers or wanted_workers or worker.minimum, worker.minimum), worker.maximum)
        size_stays, may_grow = worker.minimum < worker.maximum, False
        worker = replace(worker, minimum=size, maximum=size)
    return JobSpec(
        worker=worker,
        server=_demand("servers", said.servers, gpu_type, least=0),
        convergence=_rule(_without(said.convergence, passed), None if has_passed_these else announced_steps),
        mode=Mode(said.mode),
        architecture=Architecture(said.architecture),
        global_batch_size=said.global_batch_size or (elastic and elastic.minimum) or batch,
        priority=_above_zero("priority", said.priority),
        family=family_of(said),
        arguments=_arguments_of(said),
        project=said.project,
        gpu_types=tuple(said.gpu_types),
        deadline_at=None if created_at is None and said.deadline is None else deadline_of(said, created_at or 0.0),
        elastic_batch=elastic,
        tracked=said.tracked,
        size_stays=size_stays,
        may_grow=may_grow,
        announced_steps=announced_steps if has_passed_these else None,
    )


def begins_anew(job: JobRecord) -> bool:
    """Whether a stop costs a job all its steps, as far as is known: a script that keeps no checkpoint."""
    asked = job.asked
    resumes = (job.profile or {}).get("resumes") if asked.resumes is None else asked.resumes
    return asked.command is not None and not asked.tracked and not resumes


def began_at(job: JobRecord) -> int:
    """The step that a script's first tasks began from, and all that begin anew: above 0 with a checkpoint from before
    the job."""
    return (job.profile or {}).get("began_at_step") or 0


def is_beginning_open(job: JobRecord) -> bool:
    """Whether a script has told too few steps to know whether its first tasks began from step 0 or further on."""
    return job.asked.command is not None and (job.profile or {}).get("began_at_step", 0) is None


def goes_on_from_checkpoints(job: JobRecord) -> bool:
    """Whether it is a script with tasks that keeps checkpoints of its own: nobody else knows whether a stop loses what
    it made since the newest one."""
    asked = job.asked
    is_script = asked.command is not None and not asked.tracked
    return is_script and not begins_anew(job) and not job.running.is_empty and job.step > 0


def next_step(job: JobRecord) -> int:
    """The step that a job goes on from, as far as is known: where it began, of an active one that does not run and
    begins anew."""
    is_stopped = not job.state.is_final and job.step > 0 and (job.is_without_tasks or job.running.is_empty)
    return began_at(job) if is_stopped and begins_anew(job) else job.step


def limit_made(job: JobRecord) -> str | None:
    """The field of its limit of steps or epochs, with which it ends if it has made all of them; None: it has not."""
    limits, step = job.asked.convergence, next_step(job)
    if job.is_tracked:
        return None  # it ends where it runs
    if limits.max_steps is not None and step >= limits.max_steps:
        return "max_steps"
    return "max_epochs" if limits.max_epochs is not None and step and (job.epoch or 0) >= limits.max_epochs else None


def is_after_last_step(job: JobRecord) -> bool:
    """Whether a job with tasks goes on and has no step left to make: no step says when it ends. It has made all that
    its command announced, or it is ended, by its rule or a limit."""
    has_tasks = job.state is JobState.RUNNING and not job.is_without_tasks
    announced = (job.profile or {}).get("total_steps") or math.inf
    return has_tasks and (announced <= next_step(job) or is_ended(job))


def is_ended(job: JobRecord) -> bool:
    """Whether its rule holds, or a limit does: with the step that it is at, it is told to end."""
    return job.directive is Directive.FINISH or limit_made(job) is not None


def is_finishing(job: JobRecord) -> bool:
    """Whether it makes none more: it saves or evaluates and ends. A command may go on after those that it announced."""
    return is_after_last_step(job) and (is_ended(job) or job.step == (job.profile or {}).get("total_steps"))


def passed_limits(job: JobRecord, now: float | None = None) -> tuple[str, ...]:
    """Fields of the limits that a job which runs outside the cluster has passed: nothing ends it there, so they say
    nothing of its end any more. Of all other jobs none. `now`: None: no limit of time is looked at."""
    if not job.is_tracked:
        return ()
    rule, began = job.asked.convergence, job.started_at
    each = (job.profile or {}).get("steps_per_epoch")
    epochs = job.step / each if job.epoch is None and each else job.epoch or 0.0
    over = None if now is None or began is None else now - began
    so_far = {"max_steps": job.step, "max_epochs": epochs, "max_seconds": over}
    limits = {name: getattr(rule, name) for name in so_far}
    return tuple(
        name for name, far in so_far.items() if far is not None and limits[name] is not None and far > limits[name]
    )


def limits_in_force(job: JobRecord, now: float | None = None) -> contract.Convergence:
    """The rule of the job without `passed_limits`."""
    return _without(job.asked.convergence, passed_limits(job, now))


def _without(rule: contract.Convergence, passed: tuple[str, ...]) -> contract.Convergence:
    return replace(rule, **dict.fromkeys(passed)) if passed else rule


def most_steps(job: JobRecord) -> float:
    """Steps after which it ends in any case."""
    rules = limits_in_force(job)
    steps_per_epoch = (job.profile or {}).get("steps_per_epoch")
    return step_limit(Rule(max_steps=rules.max_steps, max_epochs=rules.max_epochs), steps_per_epoch)


def silent_since(job: JobRecord) -> float | None:
    """When the newest step came, or its newest membership began after it; None before both."""
    since = max(job.step_at or 0.0, job.formed_at or 0.0)
    return since or None


def stepped_at(job: JobRecord) -> float | None:
    """When the newest step came, of a job whose tasks are those that made it and go on; None: the next one may take
    longer."""
    trains = job.state is JobState.RUNNING and job.directive is Directive.RUN and job.running == job.wanted
    if job.step_at is None or job.running.is_empty or not trains or is_after_last_step(job):
        return None
    return job.step_at if job.formed_at is None or job.step_at > job.formed_at else None


def awaits_retry(job: JobRecord) -> bool:
    """Whether it is to be tried again after an error, now or as soon as there is room."""
    waits = job.state is JobState.PAUSED and job.owner_paused_at is None
    return waits and job.retry_at is not None and bool(job.retries)


def goes_back(job: JobRecord) -> bool:
    """Whether a job is yet to go on from its last checkpoint after an error or its end: of a step up to the one it was
    at, and which one is not known."""
    return job.state is JobState.PAUSED and job.formed_at is None and job.step > 0 and not begins_anew(job)


def has_failed_before(job: JobRecord) -> bool:
    """Whether a job is yet to be tried again after an error: it may end by the same step once more."""
    return job.state is JobState.PAUSED and job.formed_at is None and job.step > 0 and job.last_error is not None


def family_of(said: contract.JobSpec) -> str:
    """What runs of the same training have in common: the task, or the script where it is."""
    if said.task is not None or said.command is None:
        return said.trains
    path = posixpath.normpath(posixpath.join(said.working_directory or "", said.trains))
    return path if said.image is None else f"{_without_tag(said.image)}:{path}"


def _arguments_of(said: contract.JobSpec) -> tuple[str, ...]:
    """What a script is given after its name, or a task by keyword: `learning_rate=0.1`."""
    if said.command:
        return work_of(said.command).arguments
    return tuple(f"{name}={json.dumps(value)}" for name, value in sorted(said.task_args.items()))


def _without_tag(image: str) -> str:
    registry, slash, name = image.rpartition("/")
    return registry + slash + name.partition("@")[0].partition(":")[0]


def _decisive(document: object, name: str) -> tuple[str, str]:
    """What `_read_decisive` takes."""
    if not isinstance(document, Mapping):
        raise ValueError(f"{document!r:.200} is not an object")  # noqa: TRY004 - what is stored is data
    found = {name: document[name] for name in _DECISIVE if name in document}
    # The name says what a run trains that is watched by variables alone; of all others equal ones are read once.
    return json.dumps(found), "" if found.get("task") or found.get("command") else name


@lru_cache(maxsize=20_000)
def _read_decisive(text: str, name: str) -> contract.JobSpec:
    """Kept, as rounds ask for the same specifications again and again, and many jobs have equal ones."""
    said = read(contract.JobSpec, json.loads(text), strict=True, name=name)
    if not said.trains:
        raise ValueError("task is missing")
    return said


def _rule(said: contract.Convergence, total: int | None) -> ConvergenceRule:
    """`total`: after how many steps a script ends by itself, once it is known and until that shows to be wrong."""
    found = rule_of(said)
    if not total or (found.max_steps is not None and found.max_steps <= total):
        return found
    return replace(found, max_steps=total, ends_itself=True)


def rule_of(said: contract.Convergence) -> ConvergenceRule:
    """The rule that a specification asks for. Raises `ValueError` when nothing can be decided by it."""
    decrease, metric = said.loss_decrease, said.target_metric
    limits = {name: getattr(said, name) for name in ("max_steps", "max_epochs", "max_seconds", "max_cost")}
    for name, limit in limits.items():
        if limit is not None:
            _above_zero(name, limit)
    found = ConvergenceRule(target_loss=_finite("target_loss", said.target_loss), **limits)
    if decrease is not None:
        found = replace(
            found,
            loss_decrease=_above_zero("loss_decrease.below", decrease.below),
            relative=decrease.relative_to == "previous",
            patience_epochs=_above_zero("loss_decrease.patience_epochs", decrease.patience_epochs),
        )
    return found if metric is None else replace(found, target_metric=_metric(metric))


def _metric(said: contract.TargetMetric) -> MetricTarget:
    if (said.at_least is None) == (said.at_most is None):
        raise ValueError(f"target_metric: {said.name} has none or both of at_least and at_most")
    return MetricTarget(said.name, *(_finite(name, getattr(said, name)) for name in ("at_least", "at_most", "best")))


def _demand(role: str, said: contract.TaskDemand, gpu_type: str, least: int) -> TaskDemand:
    needs = said.resources
    if not 0 <= needs.cpu < math.inf or needs.memory_bytes < 0 or needs.gpus < 0:
        raise ValueError(f"{role}.resources: {needs} is no amount")
    if not 0 <= said.min <= said.max or said.max < least:
        raise ValueError(f"{role}: min is {said.min} and max is {said.max}")
    gpus = {gpu_type: needs.gpus} if needs.gpus else {}
    return TaskDemand(Resources(float(needs.cpu), needs.memory_bytes, gpus), said.min, said.max)


def _elastic(said: contract.ElasticBatch) -> ElasticBatch:
    least = min(said.minimum, said.maximum, said.per_pass, said.most_passes)
    if least < 1:
        raise ValueError(f"elastic_batch: {said} has a size below 1")
    return ElasticBatch(said.minimum, said.maximum, said.per_pass, said.most_passes)


def deadline_of(said: contract.JobSpec, created_at: float) -> float | None:
    """When a job that was submitted at `created_at` should be done, POSIX seconds. Raises `ValueError`."""
    if said.deadline is not None:
        return contract.deadline_moment(said.deadline).timestamp()
    return None if said.deadline_seconds is None else created_at + said.deadline_seconds


def promised_at(job: JobRecord) -> float | None:
    """When the job was promised to meet the deadline that it has, POSIX seconds; None: it was not."""
    if job.promised_deadline is None or job.promised_deadline != deadline_of(job.asked, job.created_at):
        return None
    return job.promised_at


_Number = TypeVar("_Number", int, float)


def _above_zero(name: str, value: _Number) -> _Number:
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: {value} is not above 0")
    return value


def _finite(name: str, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{name}: {value} is not a number")
    return value
