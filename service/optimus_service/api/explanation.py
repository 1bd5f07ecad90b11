"""Why a job has what it has."""

from __future__ import annotations

from fastapi import APIRouter

from optimus_scheduler.types import Resources
from optimus_service.api.body import StrictRoute
from optimus_service.api.problems import documented
from optimus_service.api.schemas import ExplanationBody
from optimus_service.api.services import HistoriesDep, Services, ServicesDep
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.explaining import Case, explanation_of

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.get("/v1/jobs/{job_id}/explanation", responses=documented(404))
def explain_job(job_id: str, services: ServicesDep, histories: HistoriesDep) -> ExplanationBody:
    """Why the job has the tasks that it has, what would have to happen for it to get more, when it starts and ends."""
    repository = services.repository
    job = repository.get_job(job_id)
    memberships = repository.memberships(job_id)
    others = {} if job.state.is_final else {each.id: each for each in repository.active_jobs()}
    decisions = repository.latest_decisions([job_id, *others])
    return explanation_of(
        Case(
            job=job,
            decision=decisions.get(job_id),
            now=services.clock(),
            memberships=memberships,
            speeds=histories.job(job, memberships, services.clock()).speed_samples,
            others=others,
            decisions=decisions,
            capacity=_capacity(services),
            policy=services.settings.policy,
        )
    )


def _capacity(services: Services) -> Resources | None:
    try:
        nodes = services.cluster.nodes()
    except ClusterUnavailable:
        return None
    return sum((node.capacity for node in nodes if node.schedulable), Resources())
