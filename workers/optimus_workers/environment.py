"""What a task was started with: the variables of docs/protocol.md, section 1, read once."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from optimus_contract.codec import read
from optimus_contract.job import Convergence, JobSpec
from optimus_workers.checkpoint.storage import (
    LocalStorage,
    Storage,
    UrlStorage,
    checkpoint_directory,
    open_storage,
)
from optimus_workers.errors import EnvironmentProblem


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The frozen view of a task's variables."""

    service_url: str
    job_id: str
    job_token: str = field(repr=False)
    task_name: str
    rank: int
    coordinator_address: tuple[str, int]
    """Host and port; the coordinator binds it, servers and workers dial it."""
    job_directory: Path
    spec: JobSpec
    cpu_limit: float | None = None
    """Cores that this task may use; None: no limit."""
    network_bytes_per_second: float | None = None
    """What this task may send per second; None: no limit."""
    attempt: int = 0
    """Which start of training from a checkpoint this is: a failure of an earlier one is over."""
    origin_location: str | None = None
    """The directory or URL that has the checkpoints of the job which this one starts from; None: from nothing."""
    transport: str = "auto"
    """How workers reach servers: auto, unix or tcp."""

    @property
    def incarnation(self) -> int:
        """Which start of this task this is: the end of its name, `JOB-ROLE-RANK-INCARNATION`."""
        end = self.task_name.rpartition("-")[2]
        return int(end) if end.isdecimal() else 0

    @property
    def checkpoints(self) -> Storage:
        """Where this job's checkpoints are."""
        return open_storage(self.spec.checkpoint_url, self.job_id, self.job_directory)

    @property
    def origin(self) -> Storage | None:
        """The checkpoints that this job starts from: they are only read."""
        location = self.origin_location
        if location is None:
            return None
        scratch = checkpoint_directory(self.job_directory)
        return UrlStorage(location, scratch) if "://" in location else LocalStorage(Path(location))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables from `environ` (usually `os.environ`).

        Raises `EnvironmentProblem`, whose message names the variable, when one is missing or malformed.
        """
        job_id = _required(environ, "OPTIMUS_JOB_ID")
        return cls(
            service_url=_required(environ, "OPTIMUS_SERVICE_URL").rstrip("/"),
            job_id=job_id,
            job_token=_required(environ, "OPTIMUS_JOB_TOKEN"),
            task_name=_required(environ, "OPTIMUS_TASK_NAME"),
            rank=_whole_number("OPTIMUS_TASK_RANK", _required(environ, "OPTIMUS_TASK_RANK")),
            coordinator_address=_address(environ, "OPTIMUS_COORDINATOR_ADDRESS"),
            job_directory=Path(_required(environ, "OPTIMUS_JOB_DIRECTORY")),
            spec=_spec(environ, "OPTIMUS_JOB_SPEC", job_id),
            cpu_limit=_above_zero(environ, "OPTIMUS_CPU_LIMIT", "number of cores"),
            network_bytes_per_second=_above_zero(environ, "OPTIMUS_NETWORK_LIMIT", "number of bytes per second"),
            attempt=_whole_number("OPTIMUS_ATTEMPT", environ.get("OPTIMUS_ATTEMPT") or "0"),
            origin_location=environ.get("OPTIMUS_ORIGIN") or None,
            transport=_transport(environ, "OPTIMUS_TRANSPORT"),
        )


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise EnvironmentProblem(f"{name} is not set: tasks are started by a cluster backend, see docs/protocol.md")
    return value


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise EnvironmentProblem(f"{name} must be a whole number from 0, not {text!r}")
    return int(text)


def _address(environ: Mapping[str, str], name: str) -> tuple[str, int]:
    text = _required(environ, name)
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # an IPv6 address stands in brackets
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EnvironmentProblem(f"{name} must be host:port, not {text!r}")
    return host, int(port)


def _spec(environ: Mapping[str, str], name: str, job_id: str) -> JobSpec:
    """The job's specification. It may be of an older or newer service: fields that are not known are left alone.
    A value that is not known is an error: training in another way than was asked for would be worse than not training.

    A specification without `convergence` has no limit here, and one without a name goes by the job's id.
    """
    try:
        document = json.loads(_required(environ, name))
        spec = read(JobSpec, document, strict=True, name=job_id, convergence=Convergence())
    except json.JSONDecodeError as error:
        raise EnvironmentProblem(f"{name} is not JSON: {error}") from error
    except ValueError as error:
        raise EnvironmentProblem(f"{name}: {error}") from error
    if not spec.trains:
        raise EnvironmentProblem(f"{name}: task is missing")
    return spec


def _above_zero(environ: Mapping[str, str], name: str, what: str) -> float | None:
    text = environ.get(name, "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise EnvironmentProblem(f"{name} must be a {what}, not {text!r}") from error
    if not (math.isfinite(number) and number > 0):
        raise EnvironmentProblem(f"{name} must be above 0, not {text!r}")
    return number


def _transport(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "") or "auto"
    if text not in ("auto", "unix", "tcp"):
        raise EnvironmentProblem(f"{name} must be auto, unix or tcp, not {text!r}")
    return text
