"""What pods and nodes say, and what becomes of it: each row of the failure table that needs no API server."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.model import Resources, Role, TaskKey, TaskPhase
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.kubernetes import capacity, manifests
from optimus_service.clusters.kubernetes.observed import ObservedNode, OtherPod, node, other_pod, our_pod
from optimus_service.clusters.kubernetes.quantities import amount, cpu_text, pod_requests
from optimus_service.clusters.kubernetes.verdicts import Verdicts
from optimus_service.settings.kubernetes import KubernetesSettings

KEY = TaskKey("job-1", Role.WORKER, 0)
SETTINGS = KubernetesSettings(unschedulable_seconds=60, start_seconds=300, node_lost_seconds=30)
READY = ObservedNode("n1", {"cpu": Decimal(8), "memory": Decimal(2**34)}, {}, is_ready=True, is_cordoned=False)


def seen(status: dict[str, Any], *, bound: bool = True, deleted: bool = False) -> Any:
    made = manifests.pod(TaskLaunch(KEY, "n1", Resources(1, 1), {}), SETTINGS, manifests.Owner("a", "u"))
    metadata = {**made["metadata"], "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    spec = {**made["spec"], **({"nodeName": "n1"} if bound else {})}
    found = our_pod({"metadata": metadata, "spec": spec, "status": status})
    assert found is not None
    return found


def state(phase: str, **container: Any) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"name": "task", "state": container}]}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return state("Failed", terminated={"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:00:09Z"})


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}],
}
PULLING = state("Pending", waiting={"reason": "ImagePullBackOff", "message": "no such image"})
BROKEN = state("Pending", waiting={"reason": "CreateContainerConfigError", "message": "secret not found"})
DRAINED = {
    **ended(143),
    "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "x"}],
}


@pytest.mark.parametrize(
    ("status", "phase", "code", "trouble"),
    [
        ({"phase": "Pending"}, TaskPhase.STARTING, None, None),
        (state("Pending", waiting={"reason": "ContainerCreating"}), TaskPhase.STARTING, None, None),
        (state("Running", running={}), TaskPhase.RUNNING, None, None),
        (state("Running", terminated={"exitCode": 3}), TaskPhase.EXITED, 3, None),
        (ended(0, "Completed"), TaskPhase.EXITED, 0, None),
        (ended(143), TaskPhase.EXITED, 143, None),
        (ended(137, "OOMKilled"), TaskPhase.EXITED, 137, "OutOfMemory"),
        (ended(128, "StartError"), TaskPhase.EXITED, 125, "CannotStart"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, TaskPhase.EXITED, None, "Evicted"),
        ({**ended(137), "reason": "Evicted"}, TaskPhase.EXITED, None, "Evicted"),
        ({"phase": "Failed", "reason": "OutOfcpu"}, TaskPhase.EXITED, None, "RefusedByNode"),
        ({"phase": "Failed", "reason": "NodeLost"}, TaskPhase.EXITED, None, "NodeLost"),
        ({"phase": "Failed", "reason": "Terminated"}, TaskPhase.EXITED, None, "NodeShutdown"),
        (DRAINED, TaskPhase.EXITED, None, "Drained"),
        (UNSCHEDULABLE, TaskPhase.STARTING, None, "Unschedulable"),
        (PULLING, TaskPhase.STARTING, None, "ImagePull"),
        (BROKEN, TaskPhase.STARTING, None, "CannotStart"),
    ],
)
def test_state_of_a_pod(status: dict[str, Any], phase: TaskPhase, code: int | None, trouble: str | None) -> None:
    (task,) = Verdicts(SETTINGS).judge([seen(status)], [READY], 0.0)
    assert (task.phase, task.exit_code) == (phase, code)
    assert (task.trouble.code if task.trouble else None) == trouble


@pytest.mark.parametrize(
    ("status", "bound", "patience", "code"),
    [(UNSCHEDULABLE, False, 60, None), (PULLING, True, 300, 125), (BROKEN, True, 300, 125)],
)
def test_patience_with_what_does_not_start(
    status: dict[str, Any], bound: bool, patience: float, code: int | None
) -> None:
    verdicts, pod = Verdicts(SETTINGS), seen(status, bound=bound)
    for now, phase in ((0.0, TaskPhase.STARTING), (patience - 1, TaskPhase.STARTING), (patience, TaskPhase.EXITED)):
        (task,) = verdicts.judge([pod], [READY], now)
        assert task.phase is phase
    assert task.exit_code == code
    # What was wrong and is right again starts its time anew.
    verdicts.judge([seen({"phase": "Pending"}, bound=bound)], [READY], patience + 1)
    (task,) = verdicts.judge([pod], [READY], patience + 2)
    assert task.phase is TaskPhase.STARTING


def test_tasks_of_a_silent_node_are_lost_after_a_while() -> None:
    verdicts, pod = Verdicts(SETTINGS), seen(state("Running", running={}))
    silent = ObservedNode("n1", {}, {}, is_ready=False, is_cordoned=False)
    for nodes in ([silent], []):
        verdicts.judge([pod], [READY], 0.0)
        (task,) = verdicts.judge([pod], nodes, 1.0)
        assert (task.phase, task.trouble and task.trouble.code) == (TaskPhase.RUNNING, "NodeLost")
        (task,) = verdicts.judge([pod], nodes, 31.0)
        assert (task.phase, task.exit_code) == (TaskPhase.EXITED, None)


def test_leaving_a_cordoned_node_is_a_drain() -> None:
    cordoned = ObservedNode("n1", {}, {}, is_ready=True, is_cordoned=True)
    (task,) = Verdicts(SETTINGS).judge([seen(state("Running", running={}), deleted=True)], [cordoned], 0.0)
    assert (task.phase, task.trouble and task.trouble.code) == (TaskPhase.RUNNING, "Drained")
    # Some kubelets tell no exit code then.
    for where, code in ((cordoned, "Drained"), (READY, "Deleted")):
        # Neither does being killed then speak against the job, unless it was us; nor is a code of its own hidden.
        for asked, exit_code, shown in (((), 143, None), ((), 137, None), (("u-1",), 143, 143), ((), 3, 3)):
            (task,) = Verdicts(SETTINGS).judge([seen(ended(exit_code), deleted=True)], [where], 0.0, asked)
            assert task.exit_code == shown
        (task,) = Verdicts(SETTINGS).judge([seen({"phase": "Failed"}, deleted=True)], [where], 0.0)
        assert (task.phase, task.exit_code, task.trouble and task.trouble.code) == (TaskPhase.EXITED, None, code)


# --- nodes -----------------------------------------------------------------------------------------------------------


def test_capacity_is_what_others_leave() -> None:
    others = [OtherPod("n1", {"cpu": Decimal("0.5"), "memory": Decimal(2**30), "nvidia.com/gpu": Decimal(1)})]
    offered = {"cpu": Decimal(8), "memory": Decimal(2**34), "nvidia.com/gpu": Decimal(4)}
    found = ObservedNode("n1", offered, {}, is_ready=True, is_cordoned=False)
    settings = KubernetesSettings(coordinator_memory_bytes=2**20, coordinator_cpu=0.1)
    (one,) = capacity.UsableNodes(settings).of([found], others, {"n1": 3})
    assert one.capacity == Resources(8 - 0.5 - 0.3, 2**34 - 2**30 - 3 * 2**20, {"gpu": 3})
    (one,) = capacity.UsableNodes(settings).of([found], others * 100, {})
    assert one.capacity == Resources(0.0, 0, {})


def test_gpu_types_are_told_apart_by_labels() -> None:
    types = {
        "A100": {"labels": {"nvidia.com/gpu.product": "A100"}},
        "V100": {"labels": {"nvidia.com/gpu.product": "V100"}},
        "gpu": {},
        "amd": {"resource": "amd.com/gpu"},
    }
    settings = KubernetesSettings.model_validate({"gpu_types": types})
    offered = {"nvidia.com/gpu": Decimal(4), "amd.com/gpu": Decimal(1)}
    for product, kind in (("A100", "A100"), ("V100", "V100"), ("T4", "gpu")):
        found = ObservedNode("n", offered, {"nvidia.com/gpu.product": product}, is_ready=True, is_cordoned=False)
        (one,) = capacity.UsableNodes(settings).of([found], [], {})
        assert one.capacity.gpus == {kind: 4, "amd": 1}


@pytest.mark.parametrize(
    ("change", "accepts"),
    [
        ({}, True),
        ({"spec": {"unschedulable": True}}, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False),
        ({"spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}}, True),
        ({"spec": {"taints": [{"key": "gpu", "value": "no", "effect": "NoSchedule"}]}}, False),
        ({"spec": {"taints": [{"key": "gpu", "value": "no", "effect": "PreferNoSchedule"}]}}, True),
        ({"spec": {"taints": [{"key": "spot", "effect": "NoExecute"}]}}, True),
        ({"spec": {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}}, False),
    ],
)
def test_new_tasks_go_only_where_they_may(change: dict[str, Any], accepts: bool) -> None:
    tolerations = [{"key": "gpu", "operator": "Equal", "value": "yes"}, {"key": "spot", "operator": "Exists"}]
    settings = KubernetesSettings.model_validate({"tolerations": tolerations})
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"pods": "10"}}}
    found = node({"metadata": {"name": "n"}, **ready, **change})
    (one,) = capacity.UsableNodes(settings).of([found], [], {})
    assert one.schedulable is accepts


def test_only_selected_nodes_are_offered() -> None:
    settings = KubernetesSettings(node_selector={"pool": "training"})
    nodes = [
        ObservedNode(name, {}, labels, is_ready=True, is_cordoned=False)
        for name, labels in (("b", {"pool": "training"}), ("a", {"pool": "training", "x": "y"}), ("c", {}))
    ]
    assert [each.name for each in capacity.UsableNodes(settings).of(nodes, [], {})] == ["a", "b"]


def test_nodes_that_have_not_changed_are_the_very_same() -> None:
    nodes = [ObservedNode(name, {"cpu": Decimal(8)}, {}, is_ready=True, is_cordoned=False) for name in "abcd"]
    usable, pod = capacity.UsableNodes(KubernetesSettings()), OtherPod("d", {"cpu": Decimal(1)})
    first = usable.of(nodes, [pod], {})
    cordoned = [replace(nodes[0], is_cordoned=True), nodes[1], replace(nodes[2]), nodes[3]]
    second = usable.of(cordoned, [pod], {"b": 2})
    assert [before is after for before, after in zip(first, second, strict=True)] == [False, False, True, True]
    assert second == capacity.UsableNodes(KubernetesSettings()).of(cordoned, [pod], {"b": 2})
    assert usable.of(nodes[1:], [], {}) == capacity.UsableNodes(KubernetesSettings()).of(nodes[1:], [], {})


# --- amounts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [("250m", 0.25), ("2Gi", 2**31), ("4", 4), ("1e3", 1000), ("what", 0)])
def test_amounts(text: str, value: float) -> None:
    assert float(amount(text)) == value


@given(st.floats(0, 4096))
def test_never_less_cpu_than_asked_for(cores: float) -> None:
    assert float(amount(cpu_text(cores))) >= cores - 1e-6
    assert float(amount(cpu_text(cores))) < cores + 0.0011


def test_requests_of_a_pod() -> None:
    def asks(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "initContainers": [asks("1", restartPolicy="Always"), asks("6")],
        "containers": [asks("2"), {"resources": {"limits": {"cpu": "3", "memory": "1Gi"}}}],
        "overhead": {"cpu": "100m"},
    }
    # Init step with the sidecar before it: 7; afterwards 2 + 3 + 1.
    assert pod_requests(spec) == {"cpu": Decimal("7.1"), "memory": Decimal(2**30)}


def test_finished_and_unbound_pods_take_nothing() -> None:
    spec = {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    assert other_pod({"spec": spec, "status": {"phase": "Pending"}}) is None
    bound = {**spec, "nodeName": "n1"}
    assert other_pod({"spec": bound, "status": {"phase": "Succeeded"}}) is None
    assert other_pod({"spec": bound, "status": {"phase": "Pending"}}) == OtherPod("n1", {"cpu": Decimal(1)})
