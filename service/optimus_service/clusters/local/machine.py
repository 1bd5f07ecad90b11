"""What this machine has (cores, memory, GPUs), and how it is cut into nodes of slots that behave like cores.

The operator says how many GPUs of which type there are, in the order of their indices (that of `nvidia-smi`).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from optimus_scheduler.model import NO_GPUS, Node, Resources

_CGROUP = Path("/sys/fs/cgroup")


def cores() -> float:
    """CPU cores that this process may use: its CPU set, less if the container's quota is smaller."""
    available = float(len(os.sched_getaffinity(0)))
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return min(available, int(quota) / int(period))
    return available


def memory_bytes() -> int:
    """Memory of the machine, or of the container if that has less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read(_CGROUP / "memory.max")
    return min(physical, int(limit)) if limit.isdigit() else physical


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # no cgroup v2 here: nothing limits us beyond the machine


# --- GPUs ------------------------------------------------------------------------------------------------------------


VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Names the GPUs that a process may use. CUDA counts only these, from 0 on; empty: none."""


class Device(NamedTuple):
    """One GPU."""

    number: int
    gpu_type: str


def devices_of_nodes(gpus: Mapping[str, int], n_nodes: int) -> list[tuple[Device, ...]]:
    """The GPUs of each node: neighbours stay together, as evenly as whole GPUs allow."""
    types = [gpu_type for gpu_type, count in gpus.items() for _ in range(count)]
    devices = [Device(index, gpu_type) for index, gpu_type in enumerate(types)]
    ends = [round(len(devices) * (number + 1) / n_nodes) for number in range(n_nodes)]
    return [tuple(devices[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def counted(devices: Iterable[Device]) -> dict[str, int]:
    """GPUs by type."""
    return dict(sorted(Counter(device.gpu_type for device in devices).items()))


def choose_gpus(devices: Sequence[Device], taken: Collection[int], need: Mapping[str, int]) -> tuple[int, ...] | None:
    """Indices of free GPUs for a task, the lowest of each type; None when there are too few."""
    chosen: list[int] = []
    for gpu_type, count in need.items():
        free = [device.number for device in devices if device.gpu_type == gpu_type and device.number not in taken]
        if len(free) < count:
            return None
        chosen += free[:count]
    return tuple(sorted(chosen))


def visible(indices: Iterable[int]) -> str:
    """The value of `VISIBLE`."""
    return ",".join(map(str, indices))


# --- slots -----------------------------------------------------------------------------------------------------------


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
