"""What would happen if a project were given another quota now."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body

from optimus_contract import answers
from optimus_contract.people import ProjectQuota
from optimus_scheduler.model import Quota, Snapshot, WorkerLimit
from optimus_service.api.access.callers import Caller
from optimus_service.api.cluster.projects import ProjectName, check_shares, quota_of
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import documented
from optimus_service.api.jobs.plan import effect_bodies, on_others, on_waiting
from optimus_service.api.jobs.plan_change import foreseen
from optimus_service.api.services import CallerDep, Services, ServicesDep

router = APIRouter(route_class=StrictRoute, tags=["projects"])


@router.post("/v1/projects/{name}/plan", responses=documented(422))
async def plan_quota(
    name: ProjectName,
    quota: Annotated[ProjectQuota, Body(openapi_examples=examples.QUOTAS)],
    services: ServicesDep,
    caller: CallerDep,
) -> answers.ChangePlan:
    """What giving a project this quota, in the place of any that it has, would do to the jobs that are there.

    Nothing is stored. Refused for the same reasons as the quota itself (`PUT /v1/projects/{name}`).
    """
    return await services.plans.in_turn(_planned, services, name, quota, caller)


def _planned(services: Services, name: str, quota: ProjectQuota, caller: Caller) -> answers.ChangePlan:
    check_shares(name, quota, services.repository.projects.all())
    given, most = quota_of(name, quota), quota.limits.workers_together

    def with_quota(world: Snapshot) -> Snapshot:
        return with_quota_of(world, given, most)

    found, active, shown = foreseen(services, caller, with_quota)
    effects = effect_bodies(found.effects, active, shown)
    return answers.ChangePlan(
        sentences=[*on_others(effects, of_some=caller.projects is not None), *on_waiting(found.put_off, active, shown)],
        effects=effects,
    )


def with_quota_of(world: Snapshot, quota: Quota, most_workers: int | None) -> Snapshot:
    """The world in which a project has this quota, and its jobs hold so many workers together at most. Pure."""
    quotas = tuple(each for each in world.quotas if each.project != quota.project)
    limits = tuple(each for each in world.worker_limits if each.project != quota.project)
    return replace(
        world,
        quotas=quotas if quota == Quota(quota.project) else (*quotas, quota),
        worker_limits=limits if most_workers is None else (*limits, WorkerLimit(most_workers, project=quota.project)),
    )
