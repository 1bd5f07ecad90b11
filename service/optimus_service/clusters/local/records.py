"""What is on disk about one task, so that a restarted service finds its tasks again.

::

    tasks/NAME/            mode 0700
        intent.json        which task on which node: written before anything is started
        process            the supervisor's own line of /proc/PID/stat: written by the supervisor, once
        stopped            it was stopped with all tasks: written before it was asked to leave
        exit_code          written by the supervisor when the task has ended
    logs/NAME.log          what the task printed; stays when the rest is forgotten

Nothing secret is written: the task's environment lives in the memory of its process only.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from optimus_scheduler.model import Resources, Role, TaskKey
from optimus_service.process.identity import Process, parse_stat


@dataclass(frozen=True, slots=True)
class Intent:
    """The task that is to be started."""

    key: TaskKey
    node: str
    boot_id: str
    devices: tuple[int, ...] = ()
    """Indices of the GPUs that are its own."""
    resources: Resources | None = None
    """What it asked for; None: written by a release that did not note it."""
    coordinator_address: str | None = None
    """Where its job's coordinator listens, or it does itself; None as above."""
    written_at: str | None = None
    """The directory of its record; None as above."""


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """The directory of one task."""

    path: Path

    def write_intent(self, intent: Intent) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = intent.key
        fields = {
            "name": key.name,
            "job_id": key.job_id,
            "role": key.role.value,
            "rank": key.rank,
            "incarnation": key.incarnation,
            "node": intent.node,
            "boot_id": intent.boot_id,
            "devices": list(intent.devices),
            "resources": None if intent.resources is None else _document(intent.resources),
            "coordinator_address": intent.coordinator_address,
            "written_at": str(self.path),
        }
        _write_atomically(self.path / "intent.json", json.dumps(fields, indent=1) + "\n")

    def intent(self) -> Intent | None:
        """None when there is no such task."""
        try:
            fields = json.loads((self.path / "intent.json").read_text())
        except (FileNotFoundError, ValueError):  # ValueError: cut short by a power failure, which no task survived
            return None
        key = TaskKey(fields["job_id"], Role(fields["role"]), fields["rank"], fields["incarnation"])
        resources = fields.get("resources")
        known = None if resources is None else Resources(**resources)
        devices, address = tuple(fields.get("devices", ())), fields.get("coordinator_address")
        return Intent(key, fields["node"], fields["boot_id"], devices, known, address, fields.get("written_at"))

    def is_copy(self, intent: Intent) -> bool:
        """Whether the record was copied, with the data directory, and the first one is still there: the process is of
        the service that has that one."""
        if intent.written_at is None or intent.written_at == str(self.path):
            return False
        try:
            return not self.path.samefile(intent.written_at)
        except OSError:
            return False  # moved

    def process(self) -> Process | None:
        """The supervisor, which leads the task's process group; None until it has started."""
        try:
            parsed = parse_stat((self.path / "process").read_text())
        except FileNotFoundError:
            return None
        return parsed[0] if parsed else None

    def exit_code(self) -> int | None:
        """None while the task runs, or when its supervisor died with it."""
        try:
            return int((self.path / "exit_code").read_text())
        except (FileNotFoundError, ValueError):  # ValueError: as in `intent`
            return None

    def write_exit_code(self, code: int) -> None:
        _write_atomically(self.path / "exit_code", f"{code}\n")

    def note_stopped(self) -> None:
        """It is about to be stopped with all tasks, and has not ended yet."""
        (self.path / "stopped").touch(mode=0o600)

    def was_stopped(self) -> bool:
        """Whether it was stopped with all tasks: then its exit code is not its own doing."""
        return (self.path / "stopped").exists()

    def age_seconds(self, now: float) -> float:
        """Time since the intent was written; infinite when it is gone."""
        try:
            return now - (self.path / "intent.json").stat().st_mtime
        except FileNotFoundError:
            return float("inf")

    def remove(self) -> None:
        # The intent goes first: without it the rest is no task, wherever a crash interrupts the removal.
        (self.path / "intent.json").unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def _document(resources: Resources) -> dict[str, object]:
    return {"cpu": resources.cpu, "memory_bytes": resources.memory_bytes, "gpus": dict(resources.gpus)}


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
