"""The machine's GPUs as those of its nodes, and which of them a task may use. Pure arithmetic of indices.

The operator says how many GPUs of which type there are, in the order of their indices (that of `nvidia-smi`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

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


def choose(devices: Sequence[Device], taken: Collection[int], need: Mapping[str, int]) -> tuple[int, ...] | None:
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
