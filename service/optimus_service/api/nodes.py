"""What operators do with nodes: close them for new tasks, empty them, open them again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from optimus_contract import answers
from optimus_service.api.body import StrictRoute
from optimus_service.api.callers import Caller
from optimus_service.api.cluster import node_bodies
from optimus_service.api.problems import Problem, documented
from optimus_service.api.services import CallerDep, Services, ServicesDep

router = APIRouter(route_class=StrictRoute, tags=["cluster"])

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
    services.repository.open_node(name)
    services.trigger_round("nodes changed")
    return body(name, services, caller)


def _closed(name: str, services: Services, caller: Caller, *, emptied: bool) -> answers.Node:
    body(name, services, caller)
    services.repository.close_node(name, emptied=emptied)
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
