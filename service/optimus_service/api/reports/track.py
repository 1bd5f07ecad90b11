"""The address of a run: what Kubeflow's progress protocol and OpenTelemetry's exporters post there makes a tracked job.

Neither protocol names runs, so the address does: `/v1/track/NAME`, or `/v1/track/NAME/RUN` where several of one name
run at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query

from optimus_contract.limits import MAX_SAMPLES_PER_POST, MAX_TASKS
from optimus_contract.readings import kubeflow, otlp
from optimus_contract.readings.kubeflow import Kubeflow
from optimus_contract.readings.otlp import Otlp, Point
from optimus_contract.readings.reading import Reading
from optimus_scheduler.model import Directive, JobState
from optimus_service.api.access.callers import Caller
from optimus_service.api.http import examples
from optimus_service.api.http.body import ForeignBody, ForeignBodyDep, ForeignRoute
from optimus_service.api.http.problems import documented, invalid_field
from optimus_service.api.jobs.submission import refuse_project
from optimus_service.api.reports.watching import Memory, Tell, Watching, WatchingDep, project_of, spec_of
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep
from optimus_service.observe.silence import is_complete
from optimus_service.observe.spec import NAME_LABEL, RUN_LABEL
from optimus_service.store.records import JobRecord

PROTOBUF = "application/x-protobuf"
AGAIN_STEPS = 10
"""A run that has made so many steps and tells less than half of them has begun anew."""
ANOTHER = (
    "Another run of this name began; this one never said that it has ended, and its end is told as of when it was "
    "heard of last."
)
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_RUN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"

RunName = Annotated[str, Path(min_length=1, max_length=63, pattern=_NAME, description="of the job")]
RunId = Annotated[str, Path(min_length=1, max_length=63, pattern=_RUN, description="what tells runs of one name apart")]
Project = Annotated[
    str | None, Query(min_length=1, max_length=63, pattern=_NAME, description="default: `default`, or the only one")
]
Workers = Annotated[int | None, Query(ge=1, le=MAX_TASKS, description="processes that train together; default 1")]
Gpus = Annotated[int | None, Query(ge=0, le=64, description="of each of them; default 0")]
GpuType = Annotated[str | None, Query(min_length=1, max_length=63, pattern=_RUN, description="of these GPUs")]

router = APIRouter(route_class=ForeignRoute, tags=["trainings that run elsewhere"])


@dataclass(frozen=True, slots=True)
class RunQuery:
    """What the address of a run says of it beside its name."""

    project: Project = None
    workers: Workers = None
    gpus: Gpus = None
    gpu_type: GpuType = None


RunQueryDep = Annotated[RunQuery, Depends()]


@dataclass(frozen=True, slots=True)
class Report:
    """What one post says."""

    tell: Tell
    at: float
    """POSIX seconds, by the clock of who posted."""
    step: int | None
    begins: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Address:
    """Where it was posted."""

    project: str
    name: str
    run: str
    """Empty: none was named."""

    @property
    def labels(self) -> dict[str, str]:
        return {NAME_LABEL: self.name, RUN_LABEL: self.run}


@router.post("/v1/track/{name}", responses=documented(409, 429), openapi_extra=examples.TRACKED_BODY)
def track(
    name: RunName,
    body: ForeignBodyDep,
    services: ServicesDep,
    watching: WatchingDep,
    caller: CallerDep,
    audit: AuditDep,
    query: RunQueryDep,
) -> dict[str, Any]:
    """Tell how far a training is that runs elsewhere: a status of Kubeflow's progress protocol, or OTLP metrics.

    The first post makes a tracked job. A status that begins a training, or one with less than half of the steps that
    were told before, begins another one under the same name.
    """
    return _track(services, watching, caller, audit, (name, ""), query, body)


@router.post("/v1/track/{name}/{run}", responses=documented(409, 429), openapi_extra=examples.TRACKED_BODY)
def track_run(
    name: RunName,
    run: RunId,
    body: ForeignBodyDep,
    services: ServicesDep,
    watching: WatchingDep,
    caller: CallerDep,
    audit: AuditDep,
    query: RunQueryDep,
) -> dict[str, Any]:
    """The same for one of several runs of a name, such as `$SLURM_JOB_ID`: it stays one job when it is restarted."""
    return _track(services, watching, caller, audit, (name, run), query, body)


def _track(
    services: Services,
    watching: Watching,
    caller: Caller,
    audit: AuditDep,
    where: tuple[str, str],
    query: RunQuery,
    body: ForeignBody,
) -> dict[str, Any]:
    name, run = where
    address = Address(project_of(caller, query.project, "project"), name, run)
    refuse_project(caller, address.project)
    spec = spec_of(name, address.project, address.labels, asdict(query), "")
    report = _report_of(body, services.clock())
    job = _newest(services, caller, address)
    audit.is_due = False
    if job is None or _is_another(job, report, address, watching):
        before = job
        # The key names the run before: whoever else sees this one begin makes the same job.
        key = f"track:{address.project}/{name}/{run}:{'' if job is None else job.id}"
        job = watching.make(services, spec, key, caller, audit, report.at)
        if before is not None and not before.state.is_final:
            watching.end(before.id, None if is_complete(before) else ANOTHER, is_told=False)
    watching.note(job.id, report.tell)
    if report.ends:
        watching.end(job.id, None)
    return {}


# --- which run ------------------------------------------------------------------------------------------------------


def _newest(services: Services, caller: Caller, address: Address) -> JobRecord | None:
    page = services.repository.jobs.page(
        project=address.project, labels=dict(address.labels), owner=caller.name, limit=1
    )
    return next((job for job in page.items if caller.owns(job)), None)


def _is_another(job: JobRecord, report: Report, address: Address, watching: Watching) -> bool:
    """Whether a post is of another run than this one, the newest. A late repetition is not."""
    steps_back = report.step is not None and job.step >= AGAIN_STEPS and report.step < job.step / 2
    if (
        job.state is JobState.CANCELLED or job.directive is Directive.CANCEL
    ):  # the owner does not want to watch that training, which goes on
        begins = report.begins
    elif job.state is JobState.FAILED:  # it was not heard of for long, and is again
        begins = report.begins or report.step not in (None, job.step)
    elif job.state.is_final:
        begins = report.begins or steps_back
    else:
        begins = not address.run and ((report.begins and job.step > 0) or steps_back)
    return begins and report.at > watching.newest_at(job)


# --- what was posted -------------------------------------------------------------------------------------------------


def _report_of(body: ForeignBody, now: float) -> Report:
    """What a body says. Raises `Problem` (4xx): it is neither a status nor metrics."""
    if body.media_type == PROTOBUF:
        return _otlp_report(_points(body), now)
    document = body.json()
    if "resourceMetrics" in document:
        if not isinstance(document["resourceMetrics"], list):
            raise invalid_field("resourceMetrics", "must be a list (OTLP metrics)")
        return _otlp_report(_points(body), now)
    wrong = kubeflow.objection(document)
    if wrong is not None:
        raise invalid_field(*wrong)
    return _kubeflow_report(document, now)


def _points(body: ForeignBody) -> list[Point]:
    try:
        found = otlp.points_of(body.content, body.media_type)
    except (ValueError, RecursionError) as error:
        raise invalid_field("body", f"is no export of OTLP metrics: {error}") from error
    if len({step for _, _, step, _ in found}) > MAX_SAMPLES_PER_POST:
        raise invalid_field("body", f"may have metrics of {MAX_SAMPLES_PER_POST} steps at most")
    return found


def _otlp_report(points: Sequence[Point], now: float) -> Report:
    probe = Otlp().readings(points, now)
    steps = [each.step for each in probe if each.step is not None]
    at = max((each.at for each in probe), default=now)
    return Report(lambda memory: memory.otlp.readings(points, now), at, max(steps, default=None))


def _kubeflow_report(document: Mapping[str, Any], now: float) -> Report:
    probe = Kubeflow().reading(document, now)
    if probe is None:
        return Report(lambda _: (), now, None)

    ends = probe.progress == 1.0

    def tell(memory: Memory) -> Sequence[Reading]:
        found = memory.kubeflow.reading(document, now)
        if found is None:
            return ()
        if ends and found.step is None:
            progress = memory.progress
            found = replace(found, step=memory.kubeflow.last_step(document, progress.total_steps, progress.step))
        return (found,)

    return Report(tell, probe.at, probe.step, begins=probe.progress == 0.0 and not probe.step, ends=ends)
