"""The cluster and what the scheduler did with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Path

from optimus_contract import answers
from optimus_scheduler.model import Node, Resources, Role, Task, TaskPhase
from optimus_service.api.access.callers import Caller
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented
from optimus_service.api.jobs.jobs import CursorQuery, LimitQuery
from optimus_service.api.services import CallerDep, Services, ServicesDep
from optimus_service.insight.format import moment
from optimus_service.insight.jobs.bodies import resources_body, round_body
from optimus_service.insight.predictions.review import scorecard
from optimus_service.observe.shown_predictions import MAX_PREDICTIONS
from optimus_service.observe.spec import readable_spec
from optimus_service.observe.unknown_tasks import resources_of

router = APIRouter(route_class=StrictRoute, tags=["cluster"])


@router.get("/v1/nodes")
def list_nodes(services: ServicesDep, caller: CallerDep) -> answers.NodeList:
    """The nodes, what they have, and which tasks of jobs that the caller may read use how much of it."""
    return answers.NodeList(nodes=node_bodies(services, caller))


def node_bodies(services: Services, caller: Caller) -> list[answers.Node]:
    """The nodes as the caller may see them."""
    tasks = _readable_tasks(services, caller)
    needs = _needs(services, tasks)
    here: dict[str, list[Task]] = {}
    for task in tasks:
        here.setdefault(task.node, []).append(task)
    return [_node_body(node, here.get(node.name, ()), needs) for node in services.cluster.nodes()]


@router.get("/v1/cluster")
def show_cluster(services: ServicesDep, caller: CallerDep) -> answers.Cluster:
    """The cluster in one look: all that there is of it, and what jobs use that the caller may read."""
    tasks = _readable_tasks(services, caller)
    unknown = _unknown(services, tasks)
    last_round = next(iter(services.repository.rounds.page(limit=1).items), None)
    return answers.Cluster(
        capacity=resources_body(_sum(node.capacity for node in services.cluster.nodes())),
        used=resources_body(_used(tasks, _needs(services, tasks))),
        unknown_tasks=[answers.UnknownTask(task=t.key.name, job_id=t.key.job_id, node=t.node) for t in unknown],
        jobs={state.value: count for state, count in services.repository.jobs.count_by_state(caller.projects).items()},
        last_round_at=None if last_round is None else moment(last_round.at),
        policy=services.settings.policy,
        version=services.version,
    )


@router.get("/v1/rounds")
def list_rounds(services: ServicesDep, cursor: CursorQuery = None, limit: LimitQuery = 50) -> answers.RoundList:
    """Scheduling rounds, newest first: when, why, how long, what they did."""
    page = services.repository.rounds.page(cursor, limit)
    return answers.RoundList(rounds=[round_body(each) for each in page.items], next_cursor=page.next_cursor)


@router.get("/v1/promises")
def list_promises(services: ServicesDep, caller: CallerDep) -> answers.Scorecard:
    """How the newest predictions turned out: of steps and time left, by the part of life at which they were made.

    Of jobs that the caller may read.
    """
    return scorecard(services.repository.shown_predictions.ended(0.0, MAX_PREDICTIONS, caller.projects))


# --- who uses what ---------------------------------------------------------------------------------------------------

_Needs = Mapping[tuple[str, Role], Resources]
"""What one task of a job in a role takes; of jobs that the database does not know, each task tells it itself."""


def _live_tasks(services: Services) -> tuple[Task, ...]:
    return tuple(task for task in services.cluster.tasks() if task.phase is not TaskPhase.EXITED)


def _readable_tasks(services: Services, caller: Caller) -> tuple[Task, ...]:
    """Living tasks of jobs that the caller may read. Whose the others are nobody knows who may not read all."""
    tasks = _live_tasks(services)
    if caller.projects is None:
        return tasks
    jobs = services.repository.jobs.by_id({task.key.job_id for task in tasks})
    return tuple(task for task in tasks if task.key.job_id in jobs and caller.reads(jobs[task.key.job_id].project))


def _needs(services: Services, tasks: Iterable[Task]) -> _Needs:
    needs: dict[tuple[str, Role], Resources] = {}
    for job_id, job in services.repository.jobs.by_id({task.key.job_id for task in tasks}).items():
        spec, gpu_type = readable_spec(job), job.running.gpu_type or job.wanted.gpu_type
        if spec is not None:
            needs |= {(job_id, role): spec.on(gpu_type).need(role) for role in Role}
    return needs


def _unknown(services: Services, tasks: Iterable[Task]) -> list[Task]:
    """Those whose job the database does not know."""
    known = services.repository.jobs.by_id({task.key.job_id for task in tasks})
    return [task for task in tasks if task.key.job_id not in known]


def _used(tasks: Iterable[Task], needs: _Needs) -> Resources:
    return _sum(_taken_by(task, needs) for task in tasks)


def _taken_by(task: Task, needs: _Needs) -> Resources:
    """What a living task takes; a coordinator next to nothing."""
    return needs.get((task.key.job_id, task.key.role)) or resources_of(task)


def _sum(amounts: Iterable[Resources]) -> Resources:
    return sum(amounts, Resources())


def _node_body(node: Node, here: Sequence[Task], needs: _Needs) -> answers.Node:
    return answers.Node(
        name=node.name,
        schedulable=node.schedulable,
        drained=node.emptied,
        capacity=resources_body(node.capacity),
        used=resources_body(_used(here, needs)),
        tasks=[task.key.name for task in here],
    )


# --- What operators do with nodes: close them for new tasks, empty them, open them again -----------------------------

NodeName = Annotated[str, Path(min_length=1, max_length=253, description="as `GET /v1/nodes` has it")]


@router.post("/v1/nodes/{name}/cordon", responses=documented(404))
def cordon_node(name: NodeName, services: ServicesDep, caller: CallerDep) -> answers.Node:
    """Let nothing new be placed on a node; what runs there stays. Again is harmless."""
    return _closed(name, services, caller, emptied=False)


@router.post("/v1/nodes/{name}/drain", responses=documented(404))
def drain_node(name: NodeName, services: ServicesDep, caller: CallerDep) -> answers.Node:
    """Let nothing be placed on a node, and move the tasks that are there to others at a step boundary, as a change of
    size does; coordinators go last. Jobs that find no room elsewhere shrink, or wait with a checkpoint. The answer is
    the node as it is now: it is empty when `tasks` is. Again is harmless."""
    return _closed(name, services, caller, emptied=True)


@router.post("/v1/nodes/{name}/uncordon", responses=documented(404))
def uncordon_node(name: NodeName, services: ServicesDep, caller: CallerDep) -> answers.Node:
    """Open a node that was cordoned or drained here. One that Kubernetes itself has cordoned stays closed. Again is
    harmless."""
    body(name, services, caller)
    services.repository.nodes.reopen(name)
    services.trigger_round("nodes changed")
    return body(name, services, caller)


def _closed(name: str, services: Services, caller: Caller, *, emptied: bool) -> answers.Node:
    body(name, services, caller)
    services.repository.nodes.close(name, emptied=emptied)
    services.trigger_round("nodes changed")
    return body(name, services, caller)


def body(name: str, services: Services, caller: Caller) -> answers.Node:
    """The node, with tasks that the caller may see.

    Raises:
        Problem: there is none of this name (404).
    """
    found = next((each for each in node_bodies(services, caller) if each.name == name), None)
    if found is None:
        raise Problem(404, f"there is no node {name!r}")
    return found
