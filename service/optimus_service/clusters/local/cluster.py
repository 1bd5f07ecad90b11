"""Tasks as processes of this machine that outlive the service."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from optimus_scheduler.model import NO_GPUS, Node, Role, Task, TaskKey, TaskPhase
from optimus_service.clusters.base import STOPPED_WITH_ALL, ClusterUnavailable, TaskLaunch, TaskObjection, TaskSizes
from optimus_service.clusters.local import checking, machine
from optimus_service.clusters.local.environment import task_environment
from optimus_service.clusters.local.records import Intent, TaskRecord
from optimus_service.clusters.local.supervisor import spawn
from optimus_service.clusters.local.task_logs import TaskLogs
from optimus_service.clusters.local.task_users import TaskUsers
from optimus_service.process import identity as kernel

_log = structlog.get_logger(__name__)

_KILLED = 128 + signal.SIGKILL
"""Exit code of a task whose supervisor was killed with it and could not record one."""
_START_SECONDS = 10.0
"""A supervisor that has not reported for so long after its intent was written was never started (the service died in
between). Starting it again is safe even if that is wrong: the first supervisor wins, see `supervisor`."""


@dataclass(frozen=True, slots=True)
class LocalClusterOptions:
    """How the machine is presented as a cluster."""

    directory: Path
    """Records and logs of the tasks."""
    n_slots: int = 1
    n_nodes: int = 1
    memory_bytes: int | None = None
    """None: what the machine has."""
    task_command: tuple[str, ...] = (sys.executable, "-m", "optimus_workers", "{role}")
    """`{role}` is replaced by the task's role."""
    check_command: tuple[str, ...] = (sys.executable, "-P", "-m", "optimus_workers.check_task")
    """-P: what lies in the service's own working directory is nothing to tasks."""
    trial_command: tuple[str, ...] = (sys.executable, "-P", "-m", "optimus_workers.try_task")
    remove_command: tuple[str, ...] = (sys.executable, "-P", "-m", "optimus_workers.checkpoint.remove")
    n_cores: float | None = None
    """None: what the machine has."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs of the machine by type, in the order of their indices."""
    users: TaskUsers | None = None
    """Whom tasks run as; None: the service's own user."""

    @staticmethod
    def with_python(
        directory: Path,
        python: Path | None,
        n_slots: int,
        n_nodes: int,
        memory_bytes: int | None,
        gpus: Mapping[str, int] = NO_GPUS,
        users: TaskUsers | None = None,
    ) -> LocalClusterOptions:
        """Tasks run by this interpreter; None: the service's own."""
        interpreter = str(python or sys.executable)
        return LocalClusterOptions(
            directory=directory,
            n_slots=n_slots,
            n_nodes=n_nodes,
            memory_bytes=memory_bytes,
            task_command=(interpreter, "-m", "optimus_workers", "{role}"),
            check_command=(interpreter, "-P", "-m", "optimus_workers.check_task"),
            trial_command=(interpreter, "-P", "-m", "optimus_workers.try_task"),
            remove_command=(interpreter, "-P", "-m", "optimus_workers.checkpoint.remove"),
            gpus=gpus,
            users=users,
        )


class LocalCluster:
    """A `Cluster` of processes. Thread-safe; several instances may look at the same directory one after the other."""

    def __init__(self, options: LocalClusterOptions) -> None:
        self._options = options
        self._tasks = options.directory.resolve() / "tasks"
        self._logs = TaskLogs(options.directory.resolve() / "logs")
        for folder in (self._tasks, self._logs.directory):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._boot_id = kernel.boot_id()
        self._n_cores = options.n_cores or machine.cores()
        memory = options.memory_bytes or machine.memory_bytes()
        self._nodes = machine.cut_into_nodes(options.n_nodes, options.n_slots, memory, options.gpus)
        devices = machine.devices_of_nodes(options.gpus, len(self._nodes))
        self._devices = {node.name: of_node for node, of_node in zip(self._nodes, devices, strict=True)}
        self._children: dict[str, int] = {}
        """Supervisors that this instance spawned and has not collected yet: task name → process id."""
        self._lock = threading.Lock()

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def tasks(self) -> tuple[Task, ...]:
        self._collect_children()
        try:
            records = [TaskRecord(path) for path in self._tasks.iterdir()]
            found = [task for record in records if (task := self._observe(record)) is not None]
        except OSError as error:
            raise ClusterUnavailable(f"cannot read the records in {self._tasks}: {error}") from error
        self._logs.bound([task.key for task in found])  # here, because the loop asks every second
        return tuple(sorted(found, key=lambda task: task.key))

    def start(self, launch: TaskLaunch) -> None:
        record = self._record(launch.key)
        with self._lock:
            if record.process() is not None or self._is_starting(record):
                return
            devices = self._free_devices(launch)
            try:
                address = launch.environment.get("OPTIMUS_COORDINATOR_ADDRESS")
                record.write_intent(Intent(launch.key, launch.node, self._boot_id, devices, launch.resources, address))
                self._children[launch.key.name] = self._spawn(record, launch, devices)
            except OSError as error:
                raise ClusterUnavailable(f"cannot start {launch.key.name}: {error}") from error

    def stop(self, key: TaskKey, *, force: bool = False, with_all: bool = False) -> None:
        record = self._record(key)
        intent, process = record.intent(), record.process()
        if intent is None or process is None or not self._is_own(record, intent):
            return
        if with_all and record.exit_code() is None:
            try:
                record.note_stopped()
            except OSError as error:  # the disk is full: it counts as a task that was stopped by somebody else
                _log.warning("that a task is stopped cannot be written down", task=key.name, error=str(error))
        kernel.signal_group(process, signal.SIGKILL if force else signal.SIGTERM)

    def forget(self, keys: Iterable[TaskKey]) -> None:
        for key in keys:
            record = self._record(key)
            task = self._observe(record)
            if task is not None and task.phase is TaskPhase.EXITED:
                with suppress(OSError):  # the next round asks again
                    record.remove()

    def forget_logs(self, before: float) -> None:
        self._logs.forget(before, [task.key for task in self.tasks()])

    def log_tail(self, key: TaskKey, max_bytes: int) -> str:
        return self._logs.tail(key, max_bytes)

    def check_task(self, import_path: str, working_directory: str | None) -> str | None:
        account = None if self._options.users is None else self._options.users.for_checks
        return checking.check_task(self._options.check_command, import_path, working_directory, account)

    def try_task(self, job: Mapping[str, Any]) -> TaskObjection | TaskSizes | None:
        account = None if self._options.users is None else self._options.users.for_checks
        return checking.try_task(self._options.trial_command, job, account)

    def remove_checkpoints(self, job: Mapping[str, Any], job_id: str) -> str | None:
        account = None if self._options.users is None else self._options.users.for_checks
        return checking.remove_checkpoints(self._options.remove_command, job, job_id, account)

    def check_command(self, job: Mapping[str, Any]) -> TaskObjection | None:
        return checking.check_command(job, os.environ)

    def coordinator_address(self, job_id: str) -> str | None:
        """Of the one that runs; None: any free port of this machine."""
        for path in self._tasks.glob(f"{job_id}-{Role.COORDINATOR.value}-*"):
            intent = TaskRecord(path).intent()
            if intent is None or intent.key.job_id != job_id or intent.coordinator_address is None:
                continue
            task = self._observe(TaskRecord(path))
            if task is not None and task.phase is not TaskPhase.EXITED:
                return intent.coordinator_address
        return None

    def retain(self, job_ids: Collection[str]) -> None:
        """Nothing is held of a job but the records of its tasks, which `forget` removes."""

    def close(self) -> None:
        """Tasks go on; whoever opens the directory next finds them."""
        self._collect_children()

    # --- one task ---------------------------------------------------------------------------------------------------

    def _record(self, key: TaskKey) -> TaskRecord:
        return TaskRecord(self._tasks / key.name)

    def _observe(self, record: TaskRecord) -> Task | None:
        """The task as it is now; None if there is none (any more), or if it was intended and never started."""
        intent = record.intent()
        if intent is None:
            return None
        process = record.process()
        if process is None:
            starting = self._is_starting(record)
            return Task(intent.key, intent.node, TaskPhase.STARTING, resources=intent.resources) if starting else None
        # Asked in this order: a supervisor that is gone has recorded the exit code before.
        running = self._is_own(record, intent) and kernel.is_running(process)
        code = record.exit_code()
        if code is None and running:
            return Task(intent.key, intent.node, TaskPhase.RUNNING, resources=intent.resources)
        if code is None:
            code = self._bury(record, intent, process)
        if record.was_stopped():
            return Task(intent.key, intent.node, TaskPhase.EXITED, trouble=STOPPED_WITH_ALL)
        return Task(intent.key, intent.node, TaskPhase.EXITED, exit_code=code)

    def _is_own(self, record: TaskRecord, intent: Intent) -> bool:
        """Whether the process of the record is this machine's, since its last start, and of this data directory."""
        return intent.boot_id == self._boot_id and not record.is_copy(intent)

    def _bury(self, record: TaskRecord, intent: Intent, process: kernel.Process) -> int:
        """The supervisor was killed: end what it watched over (else it would train on unseen), and write that down.

        What cannot be written now (the disk is full) is tried again at the next look.
        """
        if self._is_own(record, intent):
            kernel.kill_orphans(process)
        if record.path.exists():
            try:
                record.write_exit_code(_KILLED)
            except OSError as error:
                _log.warning("the end of a task cannot be written down", task=intent.key.name, error=str(error))
        return _KILLED

    def _is_starting(self, record: TaskRecord) -> bool:
        """Whether a supervisor is on its way that has not reported yet."""
        # Files have the machine's clock. One from its future was written before that was set back.
        return record.path.name in self._children or 0 <= record.age_seconds(time.time()) < _START_SECONDS

    def _free_devices(self, launch: TaskLaunch) -> tuple[int, ...]:
        """GPUs for the task that no living task has."""
        need = launch.resources.gpus
        if not need:
            return ()
        living = {task.key.name for task in self._living()}
        intents = [TaskRecord(path).intent() for path in self._tasks.iterdir() if path.name in living]
        taken = {index for intent in intents if intent is not None for index in intent.devices}
        devices = machine.choose_gpus(self._devices.get(launch.node, ()), taken, need)
        if devices is None:
            raise ClusterUnavailable(f"{launch.node} has no {dict(need)} free yet")
        return devices

    def _living(self) -> Iterator[Task]:
        for path in self._tasks.iterdir():
            task = self._observe(TaskRecord(path))
            if task is not None and task.phase is not TaskPhase.EXITED:
                yield task

    def _spawn(self, record: TaskRecord, launch: TaskLaunch, devices: tuple[int, ...]) -> int:
        role = launch.key.role
        # A coordinator holds no slot: it waits for messages nearly all the time.
        limit = (
            None
            if role is Role.COORDINATOR
            else machine.cpu_limit(launch.resources.cpu, self._options.n_slots, self._n_cores)
        )
        environment = task_environment(os.environ, launch.environment, limit)
        if self._options.gpus:  # who has none must not use those of others
            environment[machine.VISIBLE] = machine.visible(devices)
        directory = launch.working_directory or launch.environment.get("OPTIMUS_JOB_DIRECTORY") or str(record.path)
        command = [part.replace("{role}", role.value) for part in self._options.task_command]
        if self._options.users is not None:
            home = launch.environment["OPTIMUS_JOB_DIRECTORY"]
            account = self._options.users.claim(Path(home))
            environment |= account.environment(home)
            # The supervisor, which is root, goes nowhere that a user names.
            command, directory = account.command(directory, command), "/"
        return spawn(record.path, self._logs.path(launch.key), directory, command, environment)

    def _collect_children(self) -> None:
        """Ask for the exit status of ended supervisors, so that none of them stays a zombie. Never waits."""
        with self._lock:
            for name, pid in list(self._children.items()):
                try:
                    collected, _ = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    collected = pid
                if collected:
                    del self._children[name]
