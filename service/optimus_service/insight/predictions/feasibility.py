"""Whether a cluster could ever hold what a job asks for at least. Pure: a specification and nodes in, objections out.

This finds what no amount of waiting can cure. That a job fits the empty cluster in fact (how its tasks pack, which GPUs
go together) is the scheduler's to find out; it says `NoFeasibleNode` then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from optimus_contract import answers
from optimus_contract.job import JobSpec, TaskDemand, TaskResources
from optimus_scheduler.allocate.allocate_with_quotas import guarantees
from optimus_scheduler.forecast.prices import has_prices
from optimus_scheduler.model import Node, Quota, Resources
from optimus_scheduler.settings import Settings
from optimus_service.insight.format import counted

_EPSILON = 1e-9
"""Cores are compared to within this, as in `Resources.fits_in`."""

Amounts = tuple[float, int, int]
"""CPU cores, memory in bytes, GPUs of whatever type."""
_NAMES = ("cpu", "memory_bytes", "gpus")
_NAMING_GPUS = (
    "a service on one machine is told its GPUs by `optimus serve --local-gpus TYPE=COUNT`, one on Kubernetes by "
    "OPTIMUS_KUBERNETES__GPU_TYPES"
)


def objections(spec: JobSpec, nodes: Sequence[Node]) -> list[answers.ProblemError]:
    """What the job asks for beyond what there is, by field; empty when nothing speaks against it.

    Nodes that take no tasks at present count as well. Nothing is said of what nodes lack when no node is known.
    """
    if spec.gpu_types and not spec.workers.resources.gpus:
        message = "the workers ask for no GPU, so that no type counts: workers.resources.gpus (--worker-gpus) is 0"
        return [answers.ProblemError(field="gpu_types", message=message)]
    if not nodes:
        return []
    unknown = list(_unknown_types(spec, nodes))
    if unknown:
        return unknown
    capacities = [_amounts_of_node(node.capacity, spec.gpu_types) for node in nodes]
    found = [error for role, demand in _roles(spec) for error in _too_large_tasks(role, demand, capacities)]
    return found or list(_too_many_tasks(spec, capacities))


def over_quota(spec: JobSpec, quotas: Sequence[Quota], nodes: Sequence[Node]) -> list[answers.ProblemError]:
    """That the job's least size is more than its project may ever have: it would wait until the quota is changed."""
    own = next((quota for quota in quotas if quota.project == spec.project), None)
    if own is None or own.may_borrow or not nodes:
        return []
    capacity = sum((node.capacity for node in nodes), Resources())
    may_have = _amounts_of_node(guarantees([own], capacity)[own.project], spec.gpu_types)
    worker, server = (_amounts_of_task(demand.resources) for _, demand in _roles(spec))
    least = [
        spec.workers.min * of_worker + spec.servers.min * of_server
        for of_worker, of_server in zip(worker, server, strict=True)
    ]
    too_much = next((index for index, amount in enumerate(least) if amount > may_have[index] + _EPSILON), None)
    if too_much is None:
        return []
    need, has = _said(too_much, least[too_much]), _said(too_much, may_have[too_much])
    message = f"the least size needs {need}; project {spec.project} may have {has}, and may not borrow"
    return [answers.ProblemError(field="project", message=message)]


def may_have_workers(spec: JobSpec, n_workers: int, quotas: Sequence[Quota], nodes: Sequence[Node]) -> bool:
    """Whether the job would be accepted if it asked for so many workers."""
    asked = replace(spec, workers=replace(spec.workers, min=n_workers, max=n_workers))
    return not (objections(asked, nodes) or over_quota(asked, quotas, nodes))


def unpriced(spec: JobSpec, settings: Settings) -> list[answers.ProblemError]:
    """A budget where nothing has a price: it would never be used up."""
    if spec.convergence.max_cost is None or has_prices(settings):
        return []
    message = "the service has no prices: its operator sets OPTIMUS_PRICE_PER_GPU_HOUR or OPTIMUS_PRICE_PER_CORE_HOUR"
    return [answers.ProblemError(field="convergence.max_cost", message=message)]


def _unknown_types(spec: JobSpec, nodes: Sequence[Node]) -> Iterator[answers.ProblemError]:
    """GPU types of which none is in the cluster. One that is there is enough."""
    offered = sorted({kind for node in nodes for kind, count in node.capacity.gpus.items() if count > 0})
    if spec.gpu_types and not set(spec.gpu_types) & set(offered):
        there = ", ".join(offered) or f"none ({_NAMING_GPUS})"
        yield answers.ProblemError(field="gpu_types", message=f"the cluster has no GPU of these types; it has: {there}")


def _roles(spec: JobSpec) -> tuple[tuple[str, TaskDemand], ...]:
    return ("workers", spec.workers), ("servers", spec.servers)


def _too_large_tasks(role: str, demand: TaskDemand, capacities: Sequence[Amounts]) -> Iterator[answers.ProblemError]:
    """Tasks that no single node can host."""
    need = _amounts_of_task(demand.resources)
    named = False
    for index, amount in enumerate(need):
        largest = max(capacity[index] for capacity in capacities)
        if amount > largest + _EPSILON:
            named = True
            message = f"one task asks for {_said(index, amount)}; the largest node has {_said(index, largest)}"
            if _NAMES[index] == "gpus" and not largest:
                message += f" ({_NAMING_GPUS})"
            yield answers.ProblemError(field=f"{role}.resources.{_NAMES[index]}", message=message)
    if not named and not any(_fits(need, capacity) for capacity in capacities):
        message = f"no node has all of this together for one task: {_listed(need)}"
        yield answers.ProblemError(field=f"{role}.resources", message=message)


def _too_many_tasks(spec: JobSpec, capacities: Sequence[Amounts]) -> Iterator[answers.ProblemError]:
    """A minimum of tasks that all nodes together cannot host."""
    for (role, demand), (other_role, other) in zip(_roles(spec), reversed(_roles(spec)), strict=True):
        n_fitting = sum(_how_many(_amounts_of_task(demand.resources), capacity, demand.min) for capacity in capacities)
        if demand.min > n_fitting:
            alone = f", without any {other_role}" if other.min else ""
            message = f"at least {demand.min} asked for; the whole cluster has room for {n_fitting} of this size{alone}"
            yield answers.ProblemError(field=f"{role}.min", message=message)
    worker, server = (_amounts_of_task(demand.resources) for _, demand in _roles(spec))
    for index, (each_worker, each_server) in enumerate(zip(worker, server, strict=True)):
        total = spec.workers.min * each_worker + spec.servers.min * each_server
        there_is = sum(capacity[index] for capacity in capacities)
        if total > there_is + _EPSILON:
            least = f"{counted(spec.workers.min, 'worker')} and {counted(spec.servers.min, 'server')}"
            message = f"{least} need {_said(index, total)}; the whole cluster has {_said(index, there_is)}"
            yield answers.ProblemError(field=f"workers.resources.{_NAMES[index]}", message=message)


def _how_many(need: Amounts, capacity: Amounts, enough: int) -> int:
    """How many tasks of one size `capacity` holds, counted up to `enough`."""
    counts = [(has + _EPSILON) // amount for amount, has in zip(need, capacity, strict=True) if amount > 0]
    return int(min([*counts, enough]))  # a tiny amount fits infinitely often


def _fits(need: Amounts, capacity: Amounts) -> bool:
    return all(amount <= has + _EPSILON for amount, has in zip(need, capacity, strict=True))


def _listed(need: Amounts) -> str:
    return ", ".join(_said(index, amount) for index, amount in enumerate(need) if amount)


def _said(index: int, amount: float) -> str:
    cores, memory, gpus = (
        f"{amount:g} CPU core{'s' * (amount != 1)}",
        f"{amount / 2**30:.4g} GiB of memory",
        counted(int(amount), "GPU"),
    )
    return (cores, memory, gpus)[index]


def _amounts_of_task(resources: TaskResources) -> Amounts:
    return resources.cpu, resources.memory_bytes, resources.gpus


def _amounts_of_node(resources: Resources, gpu_types: Sequence[str]) -> Amounts:
    """The GPUs of one task are of one type: what counts is how many a node has of its commonest that is accepted."""
    accepted = [count for kind, count in resources.gpus.items() if not gpu_types or kind in gpu_types]
    return resources.cpu, resources.memory_bytes, max(accepted, default=0)
