"""The Kubernetes backend at scale: `python -m benchmarks.kubernetes_scale --json`.

A real API server, controller manager and scheduler; nodes without machines (`tests/.../fake_kubelet.py`, in a process
of its own), or with `--hollow` real kubelets on fake containers (kubemark; root). Measured on the service's side:
starting all tasks of one decision, all pods bound and running, what one look at the cluster costs, how many calls a
steady minute makes, memory. Needs KUBEBUILDER_ASSETS; `--hollow` needs OPTIMUS_TEST_KUBE_NODES, too: see "Tests" in
docs/studies/kubernetes.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import structlog
from kubernetes import client, config
from tests.service.clusters.kubernetes.control_plane import Binaries, ControlPlane
from tests.service.clusters.kubernetes.fake_kubelet import FakeKubelet
from tests.service.clusters.kubernetes.kubernetes_harness import gateway_of

from optimus_scheduler.model import Resources, Role, TaskKey, TaskPhase
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.kubernetes.cluster import KubernetesCluster
from optimus_service.clusters.kubernetes.gateway import Gateway
from optimus_service.loop.launch import Starter
from optimus_service.settings.kubernetes import KubernetesSettings

TASKS_PER_JOB = 25
STEADY_SECONDS = 60.0
GIVE_UP_SECONDS = 1800.0


class CountingGateway(Gateway):
    """Counts calls by method and kind of object."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: Counter[str] = Counter()

    def _open(self, method: str, path: str, query: Any = None, *rest: Any, **more: Any) -> Any:
        verb = "WATCH" if "watch" in (query or {}) else method
        self.calls[f"{verb} {path.partition('?')[0].rstrip('/').rpartition('/')[2] if verb != 'DELETE' else ''}"] += 1
        return super()._open(method, path, query, *rest, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--at-once", type=int, default=16, help="pods asked for at the same time")
    parser.add_argument("--hollow", type=int, default=0, help="so many hollow nodes instead")
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--kubelet-of", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=quiet, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if given.kubelet_of is not None:
        run_kubelet(given.kubelet_of, given.nodes)
        return
    with nodes(given) as kubeconfig:
        n_nodes = given.hollow or given.nodes
        print(
            json.dumps(
                measure(kubeconfig, n_nodes, given.pods, given.at_once, runs=not given.hollow),
                indent=None if given.json else 1,
            )
        )


# --- the cluster -----------------------------------------------------------------------------------------------------


@contextmanager
def nodes(given: argparse.Namespace) -> Iterator[Path]:
    """A cluster with its nodes; the configuration to reach it."""
    if given.hollow:
        with hollow_nodes(given.hollow) as kubeconfig:
            yield kubeconfig
        return
    plane = ControlPlane(Binaries.find())
    command = [sys.executable, "-m", "benchmarks.kubernetes_scale", "--kubelet-of", str(plane.kubeconfig)]
    kubelet = subprocess.Popen([*command, "--nodes", str(given.nodes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert kubelet.stdout is not None
        assert kubelet.stdout.readline() == b"ready\n"
        yield plane.kubeconfig
    finally:
        kubelet.kill()
        kubelet.wait()
        plane.close()


def run_kubelet(kubeconfig: Path, n_nodes: int) -> None:
    """The fake kubelet's own process, until its parent is gone."""
    fake = FakeKubelet(gateway_of(kubeconfig, 60.0), Path(tempfile.mkdtemp()))
    for number in range(n_nodes):
        fake.add_node(f"node-{number:04d}", cpu="16", memory="64Gi")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


@contextmanager
def hollow_nodes(count: int) -> Iterator[Path]:
    scripts, binaries = Path(os.environ["OPTIMUS_TEST_KUBE_NODES"]), os.environ["KUBEBUILDER_ASSETS"]
    directory = Path(tempfile.mkdtemp(prefix="optimus-hollow-"))
    environment = {**os.environ, "BIN": binaries, "ADDR": "10.240.0.1"}
    try:
        for script, *arguments in (
            ["start-control-plane.sh", str(directory)],
            ["start-hollow.sh", str(directory), str(count), "0"],
        ):
            command = [str(scripts / script), *arguments]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        yield directory / "admin.kubeconfig"
    finally:
        for stop in (directory / "hollow" / "stop", directory / "stop"):
            if stop.exists():
                subprocess.run([str(stop)], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(directory, ignore_errors=True)


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(kubeconfig: Path, n_nodes: int, n_pods: int, at_once: int, *, runs: bool) -> dict[str, Any]:
    """`runs`: whether pods come to run. Hollow nodes cannot mount a part of a volume, as every task does."""
    configuration = client.Configuration()
    config.load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    gateway = CountingGateway(configuration, 60.0)
    empty = memory_bytes()
    settings = KubernetesSettings(namespace="default", coordinator_memory_bytes=0)
    cluster = KubernetesCluster(settings, gateway)
    assert cluster.wait_until_listed(120.0)
    wait("every node is ready", lambda: sum(each.schedulable for each in cluster.nodes()) >= n_nodes)
    names = [each.name for each in cluster.nodes() if each.schedulable]
    launches = [launch(number, names[number % len(names)]) for number in range(n_pods)]
    started_at, cpu_before = time.monotonic(), time.process_time()
    failures = [error for error in Starter(cluster, at_once).start(launches) if error is not None]
    assert not failures, failures[0]
    asked = time.monotonic() - started_at
    wait("every pod is bound", lambda: sum(pod.is_bound for pod in cluster._pods.known()) >= n_pods)
    bound = time.monotonic() - started_at
    running = None
    if runs:
        wait("every pod runs", lambda: sum(task.phase is TaskPhase.RUNNING for task in cluster.tasks()) >= n_pods)
        running = round(time.monotonic() - started_at, 1)
    starting_calls, cpu_seconds = dict(gateway.calls), time.process_time() - cpu_before
    look = look_seconds(cluster)
    gateway.calls.clear()
    Event().wait(STEADY_SECONDS)
    found = {
        "nodes": n_nodes,
        "pods": n_pods,
        "starts_at_once": at_once,
        "seconds_until_all_asked_for": round(asked, 1),
        "seconds_until_all_bound": round(bound, 1),
        "seconds_until_all_running": running,
        "service_cpu_seconds": round(cpu_seconds, 1),
        "calls_for_the_decision": starting_calls,
        "calls_in_a_steady_minute": dict(gateway.calls),
        "cpu_seconds_of_one_look": round(look, 4),
        "memory_bytes_of_the_mirrors": memory_bytes() - empty,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "load_average": os.getloadavg()[0],
    }
    cluster.close()
    return found


def launch(number: int, node: str) -> TaskLaunch:
    key = TaskKey(f"job-{number // TASKS_PER_JOB}", Role.WORKER, number % TASKS_PER_JOB)
    variables = {"OPTIMUS_TASK_NAME": key.name, "OPTIMUS_JOB_TOKEN": "secret"}
    return TaskLaunch(key, node, Resources(0.04, 2**27), variables)


def look_seconds(cluster: KubernetesCluster) -> float:
    """CPU time of `nodes()` and `tasks()`, which every round and every second ask for: the best of five."""
    found = []
    for _ in range(5):
        before = time.process_time()
        cluster.nodes()
        cluster.tasks()
        found.append(time.process_time() - before)
    return min(found)


def memory_bytes() -> int:
    """Of this process now."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def wait(what: str, condition: Callable[[], bool]) -> None:
    pause, give_up_at = Event(), time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, f"not in time: {what}"
        pause.wait(0.25)


if __name__ == "__main__":
    main()
