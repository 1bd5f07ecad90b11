"""Projects: what each is guaranteed of the cluster, and what it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import APIRouter, Body, Path, Response

from optimus_contract import answers
from optimus_contract.codec import read, write
from optimus_contract.people import ProjectLimits, ProjectQuota
from optimus_scheduler.allocate.allocate_with_quotas import guarantees
from optimus_scheduler.allocate.reservations import smaller
from optimus_scheduler.allocate.staying import with_closed
from optimus_scheduler.model import Nodes, Quota, Resources, Role, Snapshot, total_of
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.quota_words import shrunk_words
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import documented, invalid_field
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep
from optimus_service.insight.format import moment
from optimus_service.observe.spec import readable_spec
from optimus_service.store.errors import ProjectNotFound
from optimus_service.store.records import JobRecord, ProjectRecord

router = APIRouter(route_class=StrictRoute, tags=["projects"])

_SHARES_HAIR = 1e-9
"""Three thirds are the whole."""
ProjectName = Annotated[str, Path(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


@router.get("/v1/projects")
def list_projects(services: ServicesDep, caller: CallerDep) -> answers.ProjectList:
    """Projects that have a quota, by name; others have no guarantee and may borrow what is idle."""
    bodies = _bodies(services, services.repository.projects.all())
    return answers.ProjectList(projects=[body for body in bodies if caller.reads(body.name)])


@router.get("/v1/projects/{name}", responses=documented(404))
def get_project(name: ProjectName, services: ServicesDep, caller: CallerDep) -> answers.Project:
    """One project: its quota, what that comes to now, what its jobs have been given."""
    if not caller.reads(name):
        raise ProjectNotFound(name)
    return _body(services, name)


@router.put("/v1/projects/{name}", responses={201: {"description": "It had no quota before"}, **documented(422)})
def put_project(
    name: ProjectName,
    quota: Annotated[ProjectQuota, Body(openapi_examples=examples.QUOTAS)],
    services: ServicesDep,
    audit: AuditDep,
    response: Response,
) -> answers.Project:
    """Give a project a quota, in the place of any that it had. A scheduling round follows at once.

    422 when all shares together would be more than the whole cluster.
    """
    check_shares(name, quota, services.repository.projects.all())
    audit.project, audit.data["quota"] = name, write(quota)
    if services.repository.projects.put(
        quota_of(name, quota), services.clock(), write(quota.limits, without_none=True)
    ):
        response.status_code = 201
    services.trigger_round("quota")
    return _body(services, name)


@router.delete("/v1/projects/{name}", status_code=204, responses=documented(404))
def delete_project(name: ProjectName, services: ServicesDep, audit: AuditDep) -> None:
    """Take a project's quota away. Its jobs stay, without a guarantee."""
    audit.project = name
    services.repository.projects.remove(name)
    services.trigger_round("quota")


def quota_of(name: str, body: ProjectQuota) -> Quota:
    """The quota of the project `name`."""
    return Quota(name, body.share, body.cpu, body.memory_bytes, dict(body.gpus), body.may_borrow)


def check_shares(name: str, quota: ProjectQuota, projects: Iterable[ProjectRecord]) -> None:
    """Raise `Problem` (422) if all shares together would be more than the whole cluster."""
    others = sum(one.quota.share or 0.0 for one in projects if one.quota.project != name)
    if quota.share is not None and quota.share + others > 1.0 + _SHARES_HAIR:
        rest = max(1.0 - others, 0.0)
        raise invalid_field(
            "share", f"the other projects have {100 * others:g} % of the cluster: {100 * rest:g} % is left"
        )


# --- what it comes to ------------------------------------------------------------------------------------------------


def _body(services: Services, name: str) -> answers.Project:
    services.repository.projects.get(name)  # 404 when it has no quota
    bodies = _bodies(services, services.repository.projects.all())
    return next(body for body in bodies if body.name == name)


def _bodies(services: Services, projects: Sequence[ProjectRecord]) -> list[answers.Project]:
    nodes, jobs = Nodes.of(services.cluster.nodes()), services.repository.jobs.active()
    snapshot, quotas = Snapshot(services.clock(), nodes, ()), [project.quota for project in projects]
    staying, all_held = _held_on_closed(services, nodes, jobs)
    room = with_closed(snapshot, staying)
    rights = guarantees(quotas, *room)
    # What has to leave a node that is emptied is not guaranteed any more, but nobody lent it.
    own = rights if staying == all_held else guarantees(quotas, *with_closed(snapshot, all_held))
    whole = total_of(node.capacity for node in nodes)
    found = []
    for project in projects:
        quota, name = project.quota, project.quota.project
        right, of_project = rights[name], [job for job in jobs if job.project == name]
        shrunk = shrunk_words(quota, right, room.capacity, whole)
        found.append(_project_body(project, right, own[name], of_project, shrunk))
    return found


def _held_on_closed(
    services: Services, nodes: Nodes, jobs: Iterable[JobRecord]
) -> tuple[dict[str, Resources], dict[str, Resources]]:
    """What the jobs of each project hold on closed nodes where they may stay, and on all that are closed."""
    staying, everything = dict[str, Resources](), dict[str, Resources]()
    if not nodes.closed_names:
        return staying, everything
    by_id = {job.id: job for job in jobs}
    for task in services.repository.tasks.select():
        job = by_id.get(task.key.job_id)
        if job is None or task.node not in nodes.closed_names or task.unwanted_since is not None:
            continue
        spec = readable_spec(job)
        if spec is not None and task.key.role is not Role.COORDINATOR:
            need = spec.on(job.wanted.gpu_type).need(task.key.role)
            for held in (everything,) if task.node in nodes.emptied_names else (everything, staying):
                held[job.project] = held.get(job.project, Resources()) + need
    return staying, everything


def _project_body(
    project: ProjectRecord, right: Resources, own: Resources, jobs: Sequence[JobRecord], shrunk: str | None
) -> answers.Project:
    """`own`: what of its use is no other's, beside what it is guaranteed."""
    quota, used = project.quota, sum(map(_allocated_to, jobs), Resources())
    return answers.Project(
        name=quota.project,
        quota=ProjectQuota(
            share=quota.share,
            cpu=quota.cpu,
            memory_bytes=quota.memory_bytes,
            gpus=dict(quota.gpus),
            may_borrow=quota.may_borrow,
            limits=read(ProjectLimits, project.limits),
        ),
        guaranteed=_resources_body(right),
        shrunk=shrunk,
        used=_resources_body(used),
        borrowed=_resources_body(smaller(remaining(used, right), remaining(used, own))),
        jobs=dict(Counter("starting" if job.is_starting else job.state.value for job in jobs)),
        updated_at=moment(project.updated_at),
    )


def _allocated_to(job: JobRecord) -> Resources:
    """What the job has been given, coordinator aside."""
    spec, size = readable_spec(job), job.wanted
    if spec is None:
        return Resources()
    return spec.on(size.gpu_type).demand(size.workers, size.servers)


def _resources_body(resources: Resources) -> answers.NodeResources:
    gpus = {kind: count for kind, count in resources.gpus.items() if count > 0}
    return answers.NodeResources(cpu=resources.cpu, memory_bytes=resources.memory_bytes, gpus=gpus)
