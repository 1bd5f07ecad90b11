"""The inputs and outputs of the coordinator's state machine: what happens to it, and what it does about it."""

from __future__ import annotations

from dataclasses import dataclass

from optimus_contract.membership import WantedMembership
from optimus_contract.telemetry import Note
from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.coordinator.journal import Ended, Formed, JournalRecord
from optimus_workers.wire.messages import FromTask, Hello, ToTask
from optimus_workers.wire.values import TaskProfile

# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskArrived:
    """A task connected and proved that it knows the job token."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class TaskLost:
    """A task's control connection ended, or the task was silent for too long."""

    task: str


@dataclass(frozen=True, slots=True)
class TaskSilent:
    """A task sent nothing for this many seconds, although it was pinged; its `TaskLost` follows."""

    task: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A connected task sent a message. In the table of transitions, the message's class stands for this event."""

    task: str
    message: FromTask


@dataclass(frozen=True, slots=True)
class WantedArrived:
    """The service sent the wanted membership."""

    wanted: WantedMembership


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """Answer to `ReadCheckpoint`: the newest undamaged checkpoint; None: there is none."""

    epoch: int
    manifest: Manifest | None
    path: str = ""
    error: str | None = None
    """Why the checkpoints could not be read."""
    is_origin: bool = False
    """The checkpoint belongs to the job that this one starts from; this job has none yet."""


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """Answer to `WriteManifest`. `error` says why it could not be written."""

    version: int
    path: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MembershipRefused:
    """The service refused the report of a membership for good, so it would count none of the membership's samples."""

    reason: str
    """In the service's words."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    TaskArrived
    | TaskLost
    | TaskSilent
    | MessageArrived
    | WantedArrived
    | CheckpointRead
    | ManifestWritten
    | MembershipRefused
    | Ticked
)

# --- effects, to be carried out in order -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a task; nothing happens if the task has disconnected."""

    task: str
    message: ToTask


@dataclass(frozen=True, slots=True)
class Append:
    """Write to the journal before carrying out what follows."""

    record: JournalRecord


@dataclass(frozen=True, slots=True)
class ReportProfile:
    """Report to the service what the tasks know about the job."""

    profile: TaskProfile


@dataclass(frozen=True, slots=True)
class ReportMembership:
    """Report a membership epoch to the service."""

    formed: Formed


@dataclass(frozen=True, slots=True)
class ReportResult:
    """Report to the service how the job ended."""

    ended: Ended


@dataclass(frozen=True, slots=True)
class AskWanted:
    """Ask the service now what it wants; answered by `WantedArrived`, changed or not."""


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Find the newest undamaged checkpoint; answered by `CheckpointRead` with the same epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Make a checkpoint valid whose files are all written; answered by `ManifestWritten`."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ReportCheckpoints:
    """Tell the job's owner that checkpoints cannot be written, or can be again."""

    news: str


@dataclass(frozen=True, slots=True)
class ReportSilence:
    """Tell the job's owner that a task does not answer, or answers again."""

    news: str


@dataclass(frozen=True, slots=True)
class ReportNote:
    """Tell the job's owner what they should know of their script."""

    note: Note


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log."""

    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Send the service what it does not know yet, then exit with this code."""

    code: int


Effect = (
    Send
    | Append
    | ReportProfile
    | ReportMembership
    | ReportResult
    | ReportCheckpoints
    | ReportSilence
    | ReportNote
    | AskWanted
    | ReadCheckpoint
    | WriteManifest
    | Log
    | Stop
)
Effects = list[Effect]
