"""What Optimus may use of each node: what it offers less what others take. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import Any

from optimus_scheduler.model import Node, Resources
from optimus_service.clusters.kubernetes.observed import ObservedNode, OtherPod
from optimus_service.clusters.kubernetes.quantities import Amounts, total
from optimus_service.settings.kubernetes import GpuType, KubernetesSettings

Toleration = Mapping[str, Any]


_MadeOf = tuple[ObservedNode, list[Amounts], int]
"""A node, what each pod of others takes of it, and how many coordinators of ours are there."""


class UsableNodes:
    """The nodes that may be used. One that has not changed is the very same value as at the look before, which is how
    rounds recognise it: of thousands few change, and to make them all anew takes longer than a round.

    Threads may share it.
    """

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._known: Mapping[str, tuple[_MadeOf, Node | None]] = {}
        """By name: what a node was made of, and the node; None for one that the operator did not give to us."""

    def of(
        self, observed: Iterable[ObservedNode], others: Iterable[OtherPod], coordinators: Mapping[str, int]
    ) -> tuple[Node, ...]:
        """By name. `coordinators` counts those of ours on each node."""
        taken: dict[str, list[Amounts]] = {}
        for pod in others:
            taken.setdefault(pod.node, []).append(pod.requests)
        before, now = self._known, dict[str, tuple[_MadeOf, Node | None]]()
        for each in sorted(observed, key=attrgetter("name")):
            made_of = each, taken.get(each.name, []), coordinators.get(each.name, 0)
            known = before.get(each.name)
            if known is None or known[0] != made_of:
                known = made_of, _node(*made_of, self._settings) if is_selected(each, self._settings) else None
            now[each.name] = known
        self._known = now
        return tuple([node for _, node in now.values() if node is not None])


def resources_of_pod(
    requests: Iterable[tuple[str, Decimal]], node: ObservedNode | None, settings: KubernetesSettings
) -> Resources:
    """What a pod of ours holds of the node that it is on; of a node that is gone, GPUs are of no type."""
    amounts = dict(requests)
    gpus = {} if node is None else _gpus(node, amounts, settings.gpu_types)
    return Resources(float(amounts.get("cpu", Decimal(0))), int(amounts.get("memory", Decimal(0))), gpus)


def is_selected(node: ObservedNode, settings: KubernetesSettings) -> bool:
    """Whether the operator gave it to us."""
    return all(node.labels.get(key) == value for key, value in settings.node_selector.items())


def accepts_tasks(node: ObservedNode, settings: KubernetesSettings) -> bool:
    """Whether new pods of ours may be bound to it."""
    tolerated = all(any(_tolerates(each, taint) for each in settings.tolerations) for taint in node.taints)
    return node.is_ready and not node.is_cordoned and tolerated


def _node(node: ObservedNode, others: Iterable[Amounts], n_coordinators: int, settings: KubernetesSettings) -> Node:
    taken = total(others)
    free = {name: max(value - taken.get(name, Decimal(0)), Decimal(0)) for name, value in node.allocatable.items()}
    # The scheduler counts a coordinator as nothing, so room for one is kept free wherever one may come.
    kept = max(n_coordinators, 1)
    cpu = float(free.get("cpu", Decimal(0))) - kept * settings.coordinator_cpu
    memory = int(free.get("memory", Decimal(0))) - kept * settings.coordinator_memory_bytes
    pods = int(free.get("pods", Decimal(110)))
    return Node(
        name=node.name,
        capacity=Resources(max(cpu, 0.0), max(memory, 0), _gpus(node, free, settings.gpu_types)),
        schedulable=accepts_tasks(node, settings) and pods > n_coordinators,
        labels=node.labels,
    )


def _gpus(node: ObservedNode, free: Amounts, types: Mapping[str, GpuType]) -> dict[str, int]:
    """GPUs by type. A node with several types of one resource offers them as the first that fits its labels."""
    found: dict[str, int] = {}
    counted: set[str] = set()
    # Types with labels come first: the others fit every node.
    for name, gpu in sorted(types.items(), key=lambda entry: (not entry[1].labels, entry[0])):
        fits = all(node.labels.get(key) == value for key, value in gpu.labels.items())
        number = int(free.get(gpu.resource, Decimal(0)))
        if fits and number > 0 and gpu.resource not in counted:
            found[name] = number
            counted.add(gpu.resource)
    return found


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    """As the Kubernetes API defines it."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
