"""What can happen to a coordinator: the inputs of its state machine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.wire.messages import FromTask, Hello


class Directive(StrEnum):
    """What the service wants of the job as a whole."""

    RUN = "run"
    PAUSE = "pause"
    FINISH = "finish"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The task set that the service wants (`WantedMembership`)."""

    generation: int
    directive: Directive
    tasks: frozenset[str]
    global_batch: int | None = None
    """Examples of a step with all of them, if the job's batch is elastic."""
    known_epoch: int = 0
    """The highest membership epoch that the service has been told."""


@dataclass(frozen=True, slots=True)
class TaskArrived:
    """A task said hello and proved that it knows the token."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class TaskLost:
    """A task's control connection ended, or nothing was heard of it for too long."""

    task: str


@dataclass(frozen=True, slots=True)
class MessageArrived:
    task: str
    message: FromTask


@dataclass(frozen=True, slots=True)
class WantedArrived:
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class CheckpointRead:
    """Answer to `ReadCheckpoint`: the newest undamaged checkpoint, or that there is none."""

    epoch: int
    manifest: Manifest | None
    path: str = ""
    error: str | None = None
    """Why nobody can tell."""
    is_origin: bool = False
    """It is the checkpoint of the job that this one starts from: this one has none."""


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """Answer to `WriteManifest`. `error` says why it could not be written."""

    version: int
    path: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MembershipRefused:
    """The service will never take the report of a membership: none of its samples would count."""

    reason: str
    """In the service's words."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = (
    TaskArrived
    | TaskLost
    | MessageArrived
    | WantedArrived
    | CheckpointRead
    | ManifestWritten
    | MembershipRefused
    | Ticked
)
