"""Arithmetic of slots, nodes and CPU limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_service.clusters.local.machine import cpu_limit, cut_into_nodes


@given(st.integers(1, 256), st.integers(1, 4096), st.integers(0, 2**45))
def test_nodes_share_the_machine_without_remainder(n_nodes: int, n_slots: int, memory_bytes: int) -> None:
    nodes = cut_into_nodes(n_nodes, n_slots, memory_bytes)
    slots = [node.capacity.cpu for node in nodes]
    assert len(nodes) == min(n_nodes, n_slots)
    assert sum(slots) == n_slots
    assert max(slots) - min(slots) <= 1
    assert sum(node.capacity.memory_bytes for node in nodes) <= memory_bytes
    assert [node.name for node in nodes] == sorted({node.name for node in nodes})


@given(st.integers(1, 4096), st.floats(0.5, 512), st.lists(st.floats(0.1, 16), min_size=1, max_size=20))
def test_limits_of_a_full_cluster_fit_in_the_machine(n_slots: int, n_cores: float, requests: list[float]) -> None:
    limits = [cpu_limit(cpu, n_slots, n_cores) for cpu in requests]
    if n_slots <= n_cores:
        assert limits == [None] * len(requests)
        return
    for cpu, limit in zip(requests, limits, strict=True):
        assert limit is not None
        assert 0.01 <= limit <= max(0.01, cpu * n_cores / n_slots + 1e-9)


@pytest.mark.parametrize(
    ("cpu", "n_slots", "n_cores", "limit"),
    [(1, 8, 2, 0.25), (2, 8, 2, 0.5), (1, 7, 2, 0.28), (1, 2, 2, None), (1, 4, 8, None), (0, 8, 2, 0.01)],
)
def test_slot_behaves_like_a_core(cpu: float, n_slots: int, n_cores: float, limit: float | None) -> None:
    assert cpu_limit(cpu, n_slots, n_cores) == limit
