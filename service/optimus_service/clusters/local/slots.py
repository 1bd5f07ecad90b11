"""Pure arithmetic of slots: nodes cut out of one machine, and the CPU limit that makes a slot behave like a core."""

from __future__ import annotations

import math
from collections.abc import Mapping

from optimus_scheduler.model import NO_GPUS, Node, Resources
from optimus_service.clusters.local.gpus import counted, devices_of_nodes

_SMALLEST_LIMIT = 0.01
"""Cores: a task that asked for no CPU at all must still get on."""


def cut_into_nodes(
    n_nodes: int, n_slots: int, memory_bytes: int, gpus: Mapping[str, int] = NO_GPUS
) -> tuple[Node, ...]:
    """`n_slots` spread over `local-0`, `local-1`, ... as evenly as whole slots allow, memory in proportion.

    There are never more nodes than slots: a node without a slot could host nothing.
    """
    count = min(n_nodes, n_slots)
    names = sorted(f"local-{index}" for index in range(count))
    shares = [n_slots // count + (index < n_slots % count) for index in range(count)]
    devices = [counted(of_node) for of_node in devices_of_nodes(gpus, count)]
    return tuple(
        Node(name, Resources(cpu=float(slots), memory_bytes=memory_bytes * slots // n_slots, gpus=on_node))
        for name, slots, on_node in zip(names, shares, devices, strict=True)
    )


def cpu_limit(cpu: float, n_slots: int, n_cores: float) -> float | None:
    """Cores that a task may use which asked for `cpu` slots; None (no limit) when every slot has a core of its own.

    Rounded down to hundredths, so that the limits of a full cluster never add up to more than the machine has.
    """
    if n_slots <= n_cores:
        return None
    return max(_SMALLEST_LIMIT, math.floor(n_cores / n_slots * cpu * 100 + 1e-9) / 100)
