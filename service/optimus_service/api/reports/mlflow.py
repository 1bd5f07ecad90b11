"""MLflow's tracking API, as far as its stock client needs it to log a run: each run is a tracked job.

The id of a run is that of its job, so that any replica knows it, and a service that was restarted does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from optimus_contract.readings import mlflow
from optimus_contract.readings.mlflow import Json, Metric, NewRun, Unknown
from optimus_scheduler.model import JobState
from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import Caller
from optimus_service.api.http import examples
from optimus_service.api.http.body import ForeignBodyDep, ForeignRoute
from optimus_service.api.http.problems import Problem, documented, invalid_field
from optimus_service.api.jobs.submission import refuse_project
from optimus_service.api.reports.watching import Watching, WatchingDep, project_of, spec_of
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep
from optimus_service.observe.silence import is_watched
from optimus_service.observe.spec import NAME_LABEL, RUN_LABEL
from optimus_service.store.errors import JobNotFound
from optimus_service.store.records import JobRecord

TAG = "optimus."
"""Before `project`, `workers`, `gpus` and `gpu_type` in the names of tags that say these of a run."""
_STATUS = {JobState.SUCCEEDED: "FINISHED", JobState.FAILED: "FAILED", JobState.CANCELLED: "KILLED"}
_ENDS = {
    "FINISHED": None,
    "FAILED": "its MLflow client says that it failed",
    "KILLED": "its MLflow client says that it was killed",
}
"""Status of a run that ends it → why it failed."""

router = APIRouter(route_class=ForeignRoute, tags=["trainings that run elsewhere"])
Part = Annotated[str, Path(max_length=100)]


@router.get("/api/2.0/mlflow/{subject}/{call}")
def ask(
    subject: Part, call: Part, request: Request, services: ServicesDep, watching: WatchingDep, caller: CallerDep
) -> dict[str, Any]:
    """What MLflow's client asks: `experiments/get-by-name`, `experiments/get`, `experiments/search`, `runs/get`,
    `metrics/get-history`. 404 for any other call."""
    if not (call.startswith(("get", "search"))):
        raise Problem(404, f"there is no call GET {subject}/{call}")
    runs = JobRuns(services, watching, caller, None)
    return _answer(f"{subject}/{call}", dict(request.query_params), runs)


@router.post("/api/2.0/mlflow/{subject}/{call}", responses=documented(409, 429), openapi_extra=examples.MLFLOW_BODY)
def tell(
    subject: Part,
    call: Part,
    body: ForeignBodyDep,
    services: ServicesDep,
    watching: WatchingDep,
    caller: CallerDep,
    audit: AuditDep,
) -> dict[str, Any]:
    """What MLflow's client tells: `runs/create` makes a tracked job, `runs/log-metric`, `runs/log-batch` and
    `runs/log-parameter` report of it, `runs/update` ends it. 404 for a call that is not known."""
    audit.is_due = False
    return _answer(f"{subject}/{call}", body.json(), JobRuns(services, watching, caller, audit))


def _answer(path: str, body: Mapping[str, Any], runs: JobRuns) -> Json:
    try:
        return mlflow.call(path, body, runs)
    except Unknown as error:
        raise Problem(404, str(error)) from error
    except ValueError as error:
        field, _, message = str(error).partition(" ")
        raise invalid_field(field.rstrip(":"), message) from error


class JobRuns:
    """The runs of MLflow (`mlflow.Runs`) as tracked jobs of the caller."""

    def __init__(self, services: Services, watching: Watching, caller: Caller, audit: Audit | None) -> None:
        """`audit`: None where nothing is changed."""
        self._services, self._watching, self._caller, self._audit = services, watching, caller, audit

    def create(self, new: NewRun) -> Json:
        """See `Runs`."""
        project = project_of(self._caller, new.tags.get(TAG + "project"), f"tags.{TAG}project")
        refuse_project(self._caller, project)
        name = _name(new)
        labels = {NAME_LABEL: name, RUN_LABEL: re.sub(r"[^A-Za-z0-9]+", "-", new.name)[:60].strip("-")}
        numbers = {each: self._tag(new, each) for each in ("workers", "gpus")}
        size = {**numbers, "gpu_type": new.tags.get(TAG + "gpu_type")}
        spec = spec_of(name, project, labels, size, f"tags.{TAG}")
        key = None if new.started_at is None else f"mlflow:{new.digest}"
        assert self._audit is not None, "whoever only asks makes no run"
        now = self._services.clock()
        job = self._watching.make(self._services, spec, key, self._caller, self._audit, now)
        return _body(job, new)

    def get(self, run_id: str) -> Json:
        """See `Runs`."""
        return _body(self._job(run_id))

    def update(self, run_id: str, changes: Mapping[str, Any]) -> Json:
        """See `Runs`."""
        self._own(run_id)
        status = changes.get("status")
        if status in _ENDS:
            self._watching.end(run_id, _ENDS[status])
        info: Json = {**_body(self._job(run_id))["info"], **changes}
        return info

    def log(self, run_id: str, metrics: Sequence[Metric], parameters: Mapping[str, str]) -> None:
        """See `Runs`."""
        self._own(run_id)
        now = self._services.clock()
        self._watching.note(run_id, lambda memory: memory.mlflow.readings(metrics, parameters, now))

    def _tag(self, new: NewRun, name: str) -> int | None:
        text = new.tags.get(TAG + name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) <= 6):
            raise invalid_field(f"tags.{TAG}{name}", "must be a whole number")
        return int(text)

    def _job(self, run_id: str) -> JobRecord:
        try:
            job = self._services.repository.jobs.get(run_id)
        except JobNotFound as error:
            raise Unknown(f"there is no run {run_id[:100]}") from error
        if not (self._caller.reads(job.project) and is_watched(job)):
            raise Unknown(f"there is no run {run_id[:100]}")
        return job

    def _own(self, run_id: str) -> None:
        if not self._caller.changes(self._job(run_id)):
            raise Problem(403, f"{self._caller.name} may not log to the run {run_id}: it is somebody else's")


def _name(new: NewRun) -> str:
    """A job's name for a run: its experiment's, else its script's, else its own."""
    source = new.tags.get("mlflow.source.name", "")
    script = source.rpartition("/")[2].removesuffix(".py") if source.endswith(".py") else ""
    chosen = new.experiment if new.experiment_id != mlflow.DEFAULT_ID else script or new.name
    return re.sub(r"[^a-z0-9]+", "-", chosen.lower())[:60].strip("-") or "run"


def _body(job: JobRecord, new: NewRun | None = None) -> Json:
    """A job as a run. Artifacts stay where the training is: the client stores them in the folder `mlruns` there."""
    if new is None:
        run = job.asked.labels.get(RUN_LABEL) or job.name
        number = mlflow.experiment_id(job.name)
        new = NewRun(
            experiment=job.name,
            experiment_id=number,
            name=run,
            user=job.owner or "",
            started_at=int(job.created_at * 1000),
            tags={},
            digest="",
        )
    at = job.heard_at or job.created_at
    metrics = [] if job.loss is None else [mlflow.metric_body(Metric("loss", job.loss, job.step, None), at)]
    status = _STATUS.get(job.state, "RUNNING")
    return mlflow.run_body(job.id, new, status=status, artifacts=f"mlruns/{job.id}", metrics=metrics)
