"""The whole on real nodes: pods train, are scaled, drained and killed, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from tests.service.clusters.kubernetes.real_nodes import BRIDGE, RealCluster

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 400.0
TOKEN = "token-of-the-end-to-end-test"
NAMESPACE = "optimus"
RESNET: dict[str, Any] = {"task": "optimus_workers.zoo.digits:resnet"}


def wait_until(what: str, condition: Callable[[], Any], story: Callable[[], str] = str) -> Any:
    pause, give_up_at = Event(), time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < give_up_at, f"still not true: {what}\n{story()}"
        pause.wait(0.3)
    return found


@dataclass
class Deployment:
    """The service beside a real cluster, reached by pods over the bridge."""

    cluster: RealCluster
    directory: Path
    url: str
    process: subprocess.Popen[bytes]

    def optimus(self, *arguments: str) -> str:
        """The command line, as a user types it."""
        environment = {**os.environ, "OPTIMUS_URL": self.url, "OPTIMUS_TOKEN": TOKEN}
        command = [sys.executable, "-m", "optimus_cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def get(self, path: str) -> Any:
        # No certificates, which would be read for each question.
        headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.get(self.url + path, headers=headers, timeout=30, trust_env=False, verify=False)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/jobs/{job_id}")
        return found

    def running_workers(self, job_id: str) -> int:
        job = self.job(job_id)
        assert job["finished_at"] is None, self.story(job_id)
        return int(job["running"]["workers"])

    def story(self, job_id: str) -> str:
        """What happened to the job, what was decided about it, and why."""
        events = self.get(f"/v1/jobs/{job_id}/events?limit=100")["events"]
        happened = [f"{each['at']} {each['type']} {each['message']}" for each in reversed(events)]
        asked = ("explanation", "decisions?limit=30", "predictions")
        return "\n".join([*happened, *(json.dumps(self.get(f"/v1/jobs/{job_id}/{what}"), indent=1) for what in asked)])

    def events_of(self, job_id: str) -> set[str]:
        return {event["type"] for event in self.get(f"/v1/jobs/{job_id}/events?limit=100")["events"]}

    def wait_for_end(self, job_id: str) -> dict[str, Any]:
        job = wait_until(f"{job_id} has ended", lambda: (found := self.job(job_id))["finished_at"] and found)
        assert job["state"] == "succeeded", self.story(job_id)
        ended: dict[str, Any] = job
        return ended

    def names(self, kind: str) -> list[str]:
        found = self.cluster.kubectl("-n", NAMESPACE, "get", kind, "-l", "optimus.dev/job", "-o", "name")
        return found.split()

    def pods_on(self, node: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._running("optimus.dev/job") if pod["spec"]["nodeName"] == node]

    def pods_of(self, job_id: str) -> list[str]:
        return [pod["metadata"]["name"] for pod in self._running(f"optimus.dev/job={job_id}")]

    def _running(self, label: str) -> list[dict[str, Any]]:
        listed = json.loads(self.cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", label, "-o", "json"))
        return [pod for pod in listed["items"] if pod["status"]["phase"] == "Running"]


@pytest.fixture(scope="module")
def deployment(real_cluster: RealCluster) -> Iterator[Deployment]:
    directory = Path(tempfile.mkdtemp(prefix="optimus-service-"))
    directory.chmod(0o755)
    jobs = directory / "jobs"
    jobs.mkdir(mode=0o777)
    jobs.chmod(0o777)  # as the volume is to be: every job's directory is made with its mode
    real_cluster.kubectl("create", "namespace", NAMESPACE)
    kubernetes = {
        "namespace": NAMESPACE,
        "kubeconfig": str(real_cluster.kubeconfig),
        **real_cluster.task_settings,
        "jobs_volume": {"hostPath": {"path": str(jobs)}},
        "grace_seconds": 15,
        "keep_pods_seconds": 0,
        "orphan_seconds": 1,
    }
    settings = {
        "OPTIMUS_CLUSTER": "kubernetes",
        "OPTIMUS_KUBERNETES": json.dumps(kubernetes),
        "OPTIMUS_HOST": BRIDGE,
        "OPTIMUS_PORT": "0",
        "OPTIMUS_TOKEN": TOKEN,
        "OPTIMUS_DATA_DIRECTORY": str(directory / "data"),
        "OPTIMUS_ROUND_SECONDS": "5",
        "OPTIMUS_LEARNING_ROUND_SECONDS": "3",
        "OPTIMUS_DRAIN_SECONDS": "10",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    with (directory / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "optimus_cli", "serve"], stdout=log, stderr=log, env={**environment, **settings}
        )
    try:
        address = directory / "data" / "service.json"
        wait_until("the service listens", lambda: address.exists() or process.poll() is not None)
        assert process.poll() is None, (directory / "service.log").read_text()
        yield Deployment(real_cluster, directory, json.loads(address.read_text())["url"], process)
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(directory, ignore_errors=True)


def paced(cluster: RealCluster) -> dict[str, Any]:
    """A task that is faster with every worker, whatever else the machine does; pods see the repository."""
    directory = cluster.repository / "tests" / "tasks"
    arguments = {"seconds_per_example": 0.01}
    return {"task": "paced:mlp", "task_args": arguments, "working_directory": str(directory)}


def specification(name: str, task: dict[str, Any], epochs: int, workers: tuple[int, int]) -> dict[str, Any]:
    return {
        "name": name,
        **task,
        "convergence": {"max_epochs": epochs},
        "checkpoint_seconds": 2,
        "workers": {
            "min": workers[0],
            "max": workers[1],
            "resources": {"cpu": 0.5, "memory_bytes": "600Mi", "gpus": 1},
        },
        "servers": {"min": 1, "max": 1, "resources": {"cpu": 0.25, "memory_bytes": "500Mi"}},
    }


def submit(deployment: Deployment, specification: dict[str, Any]) -> str:
    path = deployment.directory / f"{specification['name']}.json"
    path.write_text(json.dumps(specification))
    return deployment.optimus("submit", str(path)).strip().splitlines()[-1].strip()


def test_pods_train_scale_and_survive(deployment: Deployment, record_property: Callable[[str, object], None]) -> None:
    cluster = deployment.cluster
    # Four GPUs. The second job needs three of them, so the first gives back what it got.
    first = submit(deployment, specification("first", paced(cluster), 5000, (1, 4)))
    wait_for_growth(deployment, first)
    second = submit(deployment, specification("second", RESNET, 15, (3, 3)))
    wait_until("the second job trains", lambda: deployment.job(second)["step"] > 0)
    assert deployment.running_workers(first) <= 1, deployment.story(first)

    # A server is killed without a warning.
    (server,) = (name for name in deployment.names("pods") if f"/{second}-server" in name)
    cluster.kubectl("-n", NAMESPACE, "delete", server, "--grace-period=0", "--force")
    # A drain lists its pods once: one that is on its way to the node then stays there.
    wait_until("it is replaced", lambda: any(f"/{second}-server" in name for name in deployment.names("pods")))
    # A node is emptied: its tasks leave by SIGTERM and start on the other, or wait for it.
    cluster.kubectl("drain", "n2", "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=100s")
    assert deployment.pods_on("n2") == []
    before = deployment.job(first)["step"] + deployment.job(second)["step"]
    wait_until("training goes on", lambda: deployment.job(first)["step"] + deployment.job(second)["step"] > before + 5)
    assert deployment.pods_on("n2") == []
    cluster.kubectl("uncordon", "n2")

    # The same by an operator of Optimus: tasks move at a step boundary, nothing is killed, and Kubernetes is not asked.
    wait_until("tasks are on both nodes", lambda: deployment.pods_on("n1") and deployment.pods_on("n2"))
    deployment.optimus("node", "drain", "n2")
    wait_until("the node is empty", lambda: not deployment.pods_on("n2"))
    deployment.optimus("node", "uncordon", "n2")

    ended = deployment.wait_for_end(second)
    assert ended["result"]["final_loss"] < 0.5, ended
    wait_for_growth(deployment, first)
    deployment.optimus("cancel", first)
    wait_until("the first job is cancelled", lambda: deployment.job(first)["state"] == "cancelled")
    wait_until("nothing of the jobs is left but logs", lambda: not deployment.names("secrets,services"))
    alive = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "json"))["items"]
    assert {pod["status"]["phase"] for pod in alive} <= {"Succeeded", "Failed"}
    record_property("summary", json.dumps([summary(deployment, job_id) for job_id in (first, second)], indent=1))


def script(cluster: RealCluster) -> dict[str, Any]:
    """A script whose steps wait, as a job that may be resized."""
    directory = cluster.repository / "tests" / "scripts"
    command = ["torchrun", "elastic_train.py", "--epochs", "70", "--step-seconds", "0.05", "--out", "/tmp/final.pt"]
    resources = {"cpu": 0.5, "memory_bytes": "900Mi", "gpus": 1}
    return {
        "name": "script",
        "command": command,
        "working_directory": str(directory),
        "global_batch_size": 48,
        "workers": {"min": 1, "max": 3, "resources": resources},
    }


def was_resized(deployment: Deployment, job_id: str) -> bool:
    return int(deployment.job(job_id)["rescales"]) > 0


def test_a_script_and_a_task_share_the_nodes(deployment: Deployment) -> None:
    cluster = deployment.cluster
    task = submit(deployment, specification("beside", paced(cluster), 5000, (1, 3)))
    job_id = submit(deployment, script(cluster))
    for each in (task, job_id):
        wait_until("it was resized", partial(was_resized, deployment, each), partial(deployment.story, each))
    ended = deployment.wait_for_end(job_id)
    assert ended["step"] == 1400
    assert ended["profile"]["learned_from"] == "client"
    points = deployment.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    assert sum(point["lost_steps"] for point in points if point["cause"] == "rescale") == 0, points
    deployment.optimus("cancel", task)
    wait_until("the other job is cancelled", lambda: deployment.job(task)["state"] == "cancelled")
    wait_until("nothing of the jobs is left but logs", lambda: not deployment.names("secrets,services"))


def test_a_stopped_coordinator_is_replaced_while_its_tasks_wait_for_it(deployment: Deployment) -> None:
    job_id = submit(deployment, specification("waits", RESNET, 5000, (1, 1)) | {"checkpoint_seconds": 3000})
    wait_until("the job trains", lambda: deployment.job(job_id)["step"] > 10, lambda: deployment.story(job_id))
    pods = set(deployment.pods_of(job_id))
    (stopped,) = (name for name in pods if "-coordinator" in name)
    for process in processes_of(deployment, stopped):
        os.kill(process, signal.SIGSTOP)
    wait_until("it is told", lambda: "CoordinatorSilent" in deployment.events_of(job_id))
    wait_until("another takes over", lambda: deployment.job(job_id)["membership_epoch"] > 1)
    step = deployment.job(job_id)["step"]
    wait_until("training goes on", lambda: deployment.job(job_id)["step"] > step, lambda: deployment.story(job_id))
    now = set(deployment.pods_of(job_id))
    assert stopped not in now
    assert pods - {stopped} <= now, "workers and servers wait"
    points = deployment.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    assert sum(point["lost_steps"] for point in points) == 0, points
    deployment.optimus("cancel", job_id)
    wait_until("the job is cancelled", lambda: deployment.job(job_id)["state"] == "cancelled")
    wait_until("nothing of it is left but logs", lambda: not deployment.names("secrets,services"))


def processes_of(deployment: Deployment, pod: str) -> list[int]:
    """Of a pod's containers, as this machine numbers them."""
    kubectl = deployment.cluster.kubectl
    uid = kubectl("-n", NAMESPACE, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
    groups = ((int(path.parent.name), _text_of(path)) for path in Path("/proc").glob("[0-9]*/cgroup"))
    found = [number for number, group in groups if uid in group.replace("_", "-")]
    assert found, f"no process of pod {pod} ({uid})"
    return found


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


def wait_for_growth(deployment: Deployment, job_id: str) -> None:
    def is_larger() -> bool:
        return deployment.running_workers(job_id) >= 2

    wait_until("it has more workers", is_larger, lambda: deployment.story(job_id))


def summary(deployment: Deployment, job_id: str) -> dict[str, Any]:
    """What the job had over time, and how long each change stopped it."""
    points = deployment.get(f"/v1/jobs/{job_id}/allocations")["allocations"]
    return {"job": job_id, "step": deployment.job(job_id)["step"], "allocations": points}
