"""What a coordinator does: the outputs of its state machine, to be carried out in order."""

from __future__ import annotations

from dataclasses import dataclass

from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.coordinator.journal import Ended, Formed, JournalRecord
from optimus_workers.wire.messages import ToTask
from optimus_workers.wire.values import TaskProfile


@dataclass(frozen=True, slots=True)
class Send:
    task: str
    message: ToTask


@dataclass(frozen=True, slots=True)
class Append:
    """Write to the journal before carrying out what follows."""

    record: JournalRecord


@dataclass(frozen=True, slots=True)
class TellProfile:
    profile: TaskProfile


@dataclass(frozen=True, slots=True)
class TellMembership:
    formed: Formed


@dataclass(frozen=True, slots=True)
class TellResult:
    ended: Ended


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Find the newest undamaged checkpoint; answered by `CheckpointRead` with the same epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """All files of a checkpoint are there; answered by `ManifestWritten`."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the log."""

    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the service what it does not know yet, then end with this exit code."""

    code: int


Instruction = Send | Append | TellProfile | TellMembership | TellResult | ReadCheckpoint | WriteManifest | Note | Stop
