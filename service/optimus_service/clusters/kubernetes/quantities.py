"""Amounts of resources as Kubernetes writes them, and what a pod takes of its node."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from kubernetes.utils.quantity import parse_quantity

Amounts = dict[str, Decimal]
"""By resource name: cores, bytes, pieces."""


@lru_cache(maxsize=4096)
def amount(text: str) -> Decimal:
    """`250m`, `2Gi`, `4` as a number; 0 if it is no quantity (nothing is counted that cannot be read)."""
    try:
        return Decimal(parse_quantity(text))  # type: ignore[no-untyped-call]
    except ValueError:
        return Decimal(0)


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    return {name: amount(str(value)) for name, value in (quantities or {}).items()}


def total(parts: Iterable[Amounts]) -> Amounts:
    found: Amounts = {}
    for part in parts:
        for name, value in part.items():
            found[name] = found.get(name, Decimal(0)) + value
    return found


def largest(parts: Iterable[Amounts]) -> Amounts:
    found: Amounts = {}
    for part in parts:
        for name, value in part.items():
            found[name] = max(found.get(name, Decimal(0)), value)
    return found


def pod_requests(spec: Mapping[str, Any]) -> Amounts:
    """What the scheduler counts for a pod: containers and sidecars together, or the largest init step, and overhead."""
    sidecars: list[Amounts] = []
    steps: list[Amounts] = []
    for container in spec.get("initContainers") or []:
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars.append(requests)
        steps.append(total([*sidecars, *([] if container.get("restartPolicy") == "Always" else [requests])]))
    running = total([*(_requests(container) for container in spec.get("containers") or []), *sidecars])
    return total([largest([running, *steps]), amounts(spec.get("overhead"))])


def _requests(container: Mapping[str, Any]) -> Amounts:
    resources = container.get("resources") or {}
    # A limit without a request is a request.
    return {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}


def cpu_text(cores: float) -> str:
    """Rounded up to thousandths: never less than was asked for."""
    return f"{math.ceil(round(cores * 1000, 6))}m"
