"""What each project is guaranteed of the cluster, and how that is kept.

* A project's **guarantee** is a fraction of everything, or amounts of single resources. Resources that are not named
  follow the largest fraction that is; GPU types that are not named are not guaranteed. Guarantees that the cluster
  cannot hold (a node is gone) shrink in proportion.
* **Borrowing**: what a project leaves idle goes to the jobs that the policy chooses.
* **Reclaim**: a project is *short* when it has less, by dominant share, than the policy would give its jobs on its
  guarantee alone. Then every project's jobs first get what the policy gives them on their project's guarantee, and only
  the rest is shared out. Borrowers shrink to their minima; where those do not fit either, the job that started last,
  of the lowest priority, is paused first (see `precedence`).
* A project that **may not borrow** never holds more than its guarantee.
* Projects without a quota have no guarantee and may borrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from optimus_scheduler.model import Quota, Resources

CPU, MEMORY = "cpu", "memory"
Amounts = dict[str, float]
"""By resource: `cpu`, `memory`, and GPU types."""


def guarantees(quotas: Sequence[Quota], capacity: Resources) -> dict[str, Resources]:
    """What each project is guaranteed; together they fit in `capacity`. GPUs and bytes are rounded down."""
    total = _amounts(capacity)
    named = {quota.project: _named(quota, total) for quota in quotas}
    explicit = _scaled(named, total)
    rest = {kind: total[kind] - sum(amounts.get(kind, 0.0) for amounts in explicit.values()) for kind in total}
    implied = _scaled({project: _implied(amounts, total) for project, amounts in named.items()}, rest)
    return {project: _resources({**implied[project], **explicit[project]}, capacity) for project in named}


def _amounts(resources: Resources) -> Amounts:
    return {CPU: resources.cpu, MEMORY: float(resources.memory_bytes)} | {
        kind: float(count) for kind, count in resources.gpus.items()
    }


def _named(quota: Quota, total: Mapping[str, float]) -> Amounts:
    """What the quota says itself, as far as the cluster has it."""
    amounts = {} if quota.share is None else {kind: quota.share * amount for kind, amount in total.items()}
    if quota.cpu is not None:
        amounts[CPU] = quota.cpu
    if quota.memory_bytes is not None:
        amounts[MEMORY] = float(quota.memory_bytes)
    amounts |= {kind: float(count) for kind, count in quota.gpus.items()}
    return {kind: amount for kind, amount in amounts.items() if kind in total}


def _implied(named: Amounts, total: Mapping[str, float]) -> Amounts:
    """Cores and memory that were not named: as large a part as the largest that was."""
    part = max((amount / total[kind] for kind, amount in named.items() if total[kind] > 0), default=0.0)
    return {kind: min(part, 1.0) * total[kind] for kind in (CPU, MEMORY) if kind not in named}


def _scaled(by_project: Mapping[str, Amounts], available: Mapping[str, float]) -> dict[str, Amounts]:
    """The amounts, each resource shrunk in proportion as far as the room asks for it."""
    asked: Amounts = {}
    for amounts in by_project.values():
        for kind, amount in amounts.items():
            asked[kind] = asked.get(kind, 0.0) + amount
    factors = {
        kind: min(1.0, max(available[kind], 0.0) / amount) if amount > 0 else 1.0 for kind, amount in asked.items()
    }
    return {
        project: {kind: amount * factors[kind] for kind, amount in amounts.items()}
        for project, amounts in by_project.items()
    }


def _resources(amounts: Mapping[str, float], capacity: Resources) -> Resources:
    # A hair is added before rounding down: a third of three GPUs is one.
    gpus = {kind: math.floor(amounts.get(kind, 0.0) + 1e-6) for kind in capacity.gpus}
    return Resources(amounts.get(CPU, 0.0), math.floor(amounts.get(MEMORY, 0.0) + 1e-6), gpus)


def may_not_borrow(quotas: Iterable[Quota]) -> frozenset[str]:
    """Projects that never hold more than their guarantee."""
    return frozenset(quota.project for quota in quotas if not quota.may_borrow)
