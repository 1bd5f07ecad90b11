"""The seam between the service and whatever runs tasks: local processes, Kubernetes, or a fake in tests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from optimus_scheduler.model import Node, Resources, Task, TaskKey, Trouble


@dataclass(frozen=True, slots=True)
class TaskLaunch:
    """All that a cluster needs to start one task."""

    key: TaskKey
    node: str
    resources: Resources
    environment: Mapping[str, str]
    """The task's OPTIMUS_* variables (see docs/protocol.md), job token included: never log the values."""
    working_directory: str | None = None
    image: str | None = None
    """Of a script's worker: the image that its command runs in; None: the cluster's own."""
    stop_seconds: float | None = None
    """What a script's worker may take to save and end."""
    from_job: str | None = None
    """The job whose directory has the checkpoint that the task's job starts from: the cluster lets it be read."""


@dataclass(frozen=True, slots=True)
class TaskObjection:
    """Why a job's task cannot train."""

    field: str
    """The field of the specification that is at fault."""
    message: str


@dataclass(frozen=True, slots=True)
class TaskSizes:
    """What a job's task says of itself when it is called."""

    n_examples: int
    """Of one epoch."""
    global_batch_size: int
    """What the job asks for, else the task's own."""


class ClusterUnavailable(Exception):
    """The cluster cannot be asked right now. The round is skipped, nothing is changed, the next round tries again."""


class TaskRefused(ClusterUnavailable):
    """This one task cannot be started now (a quota, a policy of the cluster); others may well be."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(f"{trouble.code}: {trouble.message}")
        self.trouble = trouble


STOPPED_WITH_ALL = Trouble(
    "Stopped", "it was stopped with all tasks, as `optimus stop --tasks` does, and a service that stops them at its end"
)
"""Of a task that `stop` ended `with_all`."""


class Cluster(Protocol):
    """Observes nodes and tasks, starts and stops tasks. Every method may be called again with the same arguments."""

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that Optimus may use, sorted by name."""

    def tasks(self) -> tuple[Task, ...]:
        """Every task of ours that exists or exited and is not forgotten yet, sorted by key.

        Tasks started before a restart of the service are among them (adoption).
        """

    def start(self, launch: TaskLaunch) -> None:
        """Start the task unless a task of the same name exists already."""

    def stop(self, key: TaskKey, *, force: bool = False, with_all: bool = False) -> None:
        """Ask the task to leave (SIGTERM); `force` ends it at once (SIGKILL). No error if it is gone.

        `with_all`: it is stopped with all tasks, wanted or not, as the service ends. Whoever looks next, also after a
        restart, finds it without an exit code: however it ends, that does not speak against its job.
        """

    def forget(self, keys: Iterable[TaskKey]) -> None:
        """Drop the records of exited tasks (their logs stay)."""

    def forget_logs(self, before: float) -> None:
        """Drop the logs of tasks that are gone and printed nothing since `before` (POSIX seconds)."""

    def log_tail(self, key: TaskKey, max_bytes: int) -> str:
        """The end of what the task printed; empty if nothing is known of it."""

    def check_task(self, import_path: str, working_directory: str | None) -> str | None:
        """Why workers of this cluster could not load `module:name`, or None when they can (or that is not known)."""

    def try_task(self, job: Mapping[str, Any]) -> TaskObjection | TaskSizes | None:
        """What stands in the way of training, else what the task is like, by calling it; None: that is not known.

        `job`: what `optimus_workers.try_task` reads, and `environment`, of a specification.
        """

    def remove_checkpoints(self, job: Mapping[str, Any], job_id: str) -> str | None:
        """Remove what an ended job keeps at its `checkpoint_url`; why that was not done, None when nothing is left.

        `job`: `checkpoint_url`, `environment` and `working_directory` of its specification.
        """

    def check_command(self, job: Mapping[str, Any]) -> TaskObjection | None:
        """Why a worker could not start the command of a script; None: it can, or that is not known.

        `job`: a specification.
        """

    def coordinator_address(self, job_id: str) -> str | None:
        """`host:port` at which this cluster lets a job's coordinator be reached, the same for as long as one runs.

        None: the cluster has no such addresses, or no coordinator of the job runs; a port of this machine is chosen.
        """

    def retain(self, job_ids: Collection[str]) -> None:
        """Remove what the cluster still holds of all jobs but these (active ones, and those whose tasks still leave).

        Logs stay as `forget_logs` says.
        """

    def close(self) -> None:
        """Let go of handles. Tasks go on."""
