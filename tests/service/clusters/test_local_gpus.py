"""The machine's GPUs: dealt to nodes, given to tasks, each to one task at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.service.clusters.cluster_harness import key_of, wait_for_phase, wait_until

from optimus_scheduler.model import Resources, TaskKey, TaskPhase
from optimus_service.clusters.base import ClusterUnavailable, TaskLaunch
from optimus_service.clusters.local import LocalCluster, LocalClusterOptions
from optimus_service.clusters.local.machine import choose_gpus, counted, devices_of_nodes

MIXED = {"k80": 2, "v100": 2}
gpu_sets = st.dictionaries(st.sampled_from(["k80", "t4", "v100"]), st.integers(0, 5), max_size=3)


@given(gpus=gpu_sets, n_nodes=st.integers(1, 8))
def test_every_gpu_is_on_one_node(gpus: dict[str, int], n_nodes: int) -> None:
    nodes = devices_of_nodes(gpus, n_nodes)
    assert len(nodes) == n_nodes
    numbers = [device.number for of_node in nodes for device in of_node]
    assert numbers == list(range(sum(gpus.values())))
    sizes = [len(of_node) for of_node in nodes]
    assert max(sizes) - min(sizes) <= 1
    assert counted(device for of_node in nodes for device in of_node) == {k: n for k, n in sorted(gpus.items()) if n}


@given(gpus=gpu_sets, taken=st.sets(st.integers(0, 14)), need=gpu_sets)
def test_tasks_get_free_gpus_of_their_type(gpus: dict[str, int], taken: set[int], need: dict[str, int]) -> None:
    (devices,) = devices_of_nodes(gpus, 1)
    free = [device for device in devices if device.number not in taken]
    enough = all(counted(free).get(kind, 0) >= count for kind, count in need.items())
    chosen = choose_gpus(devices, taken, need)
    assert (chosen is not None) == enough
    if chosen is not None:
        assert not set(chosen) & taken
        picked = counted(device for device in devices if device.number in chosen)
        assert picked == {kind: count for kind, count in sorted(need.items()) if count}


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """Two nodes with two GPUs each, whose tasks say what they may use and wait."""
    waiting = ("/bin/sh", "-c", 'echo "may use [$CUDA_VISIBLE_DEVICES]"; exec sleep 1000')
    return LocalCluster(LocalClusterOptions(tmp_path, n_slots=8, n_nodes=2, task_command=waiting, gpus=MIXED))


def launch(cluster: LocalCluster, rank: int, node: str, **gpus: int) -> TaskKey:
    key = key_of(rank)
    cluster.start(TaskLaunch(key, node, Resources(0.1, 2**20, gpus), {}))
    wait_for_phase(cluster, key, TaskPhase.RUNNING)
    return key


def may_use(cluster: LocalCluster, key: TaskKey) -> str:
    wait_until("it has printed", lambda: "may use" in cluster.log_tail(key, 100))
    return cluster.log_tail(key, 100).strip().removeprefix("may use ")


def test_each_task_sees_its_own_gpus(cluster: LocalCluster) -> None:
    assert [dict(node.capacity.gpus) for node in cluster.nodes()] == [{"k80": 2}, {"v100": 2}]
    try:
        keys = [launch(cluster, rank, "local-1", v100=1) for rank in (0, 1)]
        keys.append(launch(cluster, 2, "local-0", k80=2))
        keys.append(launch(cluster, 3, "local-0"))
        assert [may_use(cluster, key) for key in keys] == ["[2]", "[3]", "[0,1]", "[]"]
        with pytest.raises(ClusterUnavailable, match=r"has no .*v100.* free yet"):
            cluster.start(TaskLaunch(key_of(4), "local-1", Resources(gpus={"v100": 1}), {}))
        # Who leaves gives his back, to whoever comes next: also after the service was started anew.
        cluster.stop(keys[0], force=True)
        wait_for_phase(cluster, keys[0], TaskPhase.EXITED)
        assert may_use(cluster, launch(cluster, 5, "local-1", v100=1)) == "[2]"
    finally:
        for task in cluster.tasks():
            cluster.stop(task.key, force=True)
