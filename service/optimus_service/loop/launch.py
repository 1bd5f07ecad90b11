"""What a task is started with (docs/protocol.md, section 1), where coordinators listen, and starting many at once."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimus_contract import job as contract
from optimus_scheduler.model import PlacedTask, Role
from optimus_service.clusters.base import Cluster, ClusterUnavailable, TaskLaunch
from optimus_service.clusters.origins import ORIGIN
from optimus_service.observe.spec import spec_of
from optimus_service.process.job_tokens import JobTokens
from optimus_service.store.records import JobRecord


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What all launches of one service have in common."""

    service_url: str
    """How tasks reach the service."""
    jobs_directory: Path
    """Each job has a directory of its own in it."""
    tokens: JobTokens
    local: bool = True
    """Whether tasks see this machine's files: then the job's directory is made here."""

    def launch(self, task: PlacedTask, job: JobRecord, coordinator_address: str) -> TaskLaunch:
        """Everything that the cluster needs to start `task`. Makes the job's directory if tasks see it.

        Raises:
            UnreadableSpecification: of a job that was in no snapshot.
        """
        spec, asked = spec_of(job), job.asked
        directory = self.jobs_directory / job.id
        if self.local:
            directory = directory.resolve()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = {
            "OPTIMUS_SERVICE_URL": self.service_url,
            "OPTIMUS_JOB_ID": job.id,
            "OPTIMUS_JOB_TOKEN": self.tokens.issue(job.id, job.token_nonce),
            "OPTIMUS_TASK_NAME": task.key.name,
            "OPTIMUS_TASK_RANK": str(task.key.rank),
            "OPTIMUS_COORDINATOR_ADDRESS": coordinator_address,
            "OPTIMUS_JOB_DIRECTORY": str(directory),
            "OPTIMUS_JOB_SPEC": json.dumps(job.spec),
            "OPTIMUS_ATTEMPT": str(job.attempt),
        }
        if asked.from_job is not None:
            ours["OPTIMUS_ORIGIN"] = self._origin(directory, asked.checkpoint_url, asked.from_job)
        resources = spec.on(job.wanted.gpu_type).need(task.key.role)
        for gpu_type, count in resources.gpus.items():
            ours |= {"OPTIMUS_GPU_TYPE": gpu_type, "OPTIMUS_GPUS": str(count)}
        return TaskLaunch(
            key=task.key,
            node=task.node,
            resources=resources,
            environment={**job.asked.environment, **ours},
            working_directory=asked.working_directory or str(directory),
            **_of_script(task.key.role, asked),
            from_job=asked.from_job if asked.checkpoint_url is None else None,
        )

    def _origin(self, directory: Path, url: str | None, from_job: str) -> str:
        """Where tasks read the checkpoints of the job that theirs starts from."""
        if url is not None:
            return f"{url.rstrip('/')}/{from_job}"
        return str(directory / ORIGIN if self.local else self.jobs_directory / from_job / "checkpoints")


def _of_script(role: Role, asked: contract.JobSpec) -> dict[str, Any]:
    if role is not Role.WORKER or not asked.command:
        return {}
    return {"image": asked.image, "stop_seconds": asked.stop_seconds}


# --- where a coordinator listens: a port of this machine, chosen once and kept ---------------------------------------


HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)
"""Below the ports that Linux gives to outgoing connections (32768 and up): while a coordinator is being replaced, no
client's connection can take its port."""
_TRIES = 200
"""Far more than are needed unless nearly all of the 12,000 ports are taken."""


class NoFreePort(Exception):
    """No port was found for a coordinator."""


def choose_address(taken: Collection[str]) -> str:
    """`host:port` with a port that nobody listens on now and that is not in `taken`.

    Raises:
        NoFreePort: `_TRIES` random ports were all taken.
    """
    for port in random.sample(_PORTS, _TRIES):
        address = f"{HOST}:{port}"
        if address not in taken and is_free(address):
            return address
    raise NoFreePort(f"none of {_TRIES} ports from {_PORTS.start} to {_PORTS.stop - 1} was free")


def is_free(address: str) -> bool:
    """Whether one could listen on `host:port` now."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        # As servers do: connections that are still being closed are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
        return True


# --- starting many at once where the cluster is a network away -------------------------------------------------------


StartError = ClusterUnavailable | OSError
_ONE_BY_ONE = 64
"""Tasks of one batch where each is started at once by this machine: some milliseconds each."""
_PER_THREAD = 4
"""Tasks of one batch for each thread. A batch follows one look at who leads, so it must not take long."""


class Starter:
    """Starts tasks on one cluster, `at_once` at a time (1: one after the other, in the caller's thread)."""

    def __init__(self, cluster: Cluster, at_once: int = 1) -> None:
        self._cluster = cluster
        self._at_once = at_once

    @property
    def batch_size(self) -> int:
        return _ONE_BY_ONE if self._at_once == 1 else self._at_once * _PER_THREAD

    def prepare(self, job_ids: Sequence[str]) -> None:
        """Have the cluster make at once what these jobs need before their tasks. What fails, fails again, and is
        reported, when a task of the job is started."""
        if self._at_once == 1:
            return
        with self._threads(len(job_ids)) as pool:
            list(pool.map(self._prepare, job_ids))

    def start(self, launches: Sequence[TaskLaunch]) -> Iterator[StartError | None]:
        """Start them; what went wrong with each, in their order."""
        if self._at_once == 1 or len(launches) == 1:
            yield from map(self._start, launches)
            return
        with self._threads(len(launches)) as pool:
            yield from pool.map(self._start, launches)

    def _threads(self, n_calls: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(min(self._at_once, n_calls), 1), thread_name_prefix="start")

    def _prepare(self, job_id: str) -> None:
        with suppress(ClusterUnavailable, OSError):
            self._cluster.coordinator_address(job_id)

    def _start(self, launch: TaskLaunch) -> StartError | None:
        try:
            self._cluster.start(launch)
        except (ClusterUnavailable, OSError) as error:
            return error
        return None
