"""What the coordinator tells its tasks. What the fields have in common is in `messages`.

What tasks tell their coordinator. What the fields have in common is in `messages`.

The control messages: one frozen dataclass each, one line of JSON each.

Epochs are membership epochs; a message of an epoch that is over is ignored. Versions count updates of the parameters:
version t is what step t (counted from 0) starts from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from optimus_workers.wire.values import (
    Address,
    GlobalBatch,
    Group,
    Holding,
    ServerRange,
    ShardFile,
    Source,
    TaskProfile,
    TaskRole,
)

# --- the coordinator to its tasks ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Challenge:
    """Coordinator → task, first line."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """Coordinator → task: I know the token as well."""

    proof: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Say something, so that I know that you are there."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop what you are at; from now on only epoch `epoch` counts. Servers answer `Halted`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Assume:
    """Server: get the range [first, end) at `version` from `sources` (none: worker 0 will bring it)."""

    epoch: int
    version: int
    first: int
    end: int
    profile: TaskProfile
    n_workers: int
    is_async: bool
    sources: tuple[Source, ...]
    n_servers: int = 1


@dataclass(frozen=True, slots=True)
class Release:
    """Server: every server has what it needs; drop what is not of this epoch and serve."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Join:
    """Worker: connect to the servers, get `version`; you are worker `rank` of `n_workers`."""

    epoch: int
    version: int
    rank: int
    n_workers: int
    first_slot: int
    end_slot: int
    servers: tuple[ServerRange, ...]
    is_async: bool
    brings_parameters: bool
    """Push the initial parameters first."""
    batch: GlobalBatch | None = None
    """Of the steps of this membership; None: the task's own (async: of each worker)."""
    group: Group | None = None
    """All-reduce jobs: the process group, instead of servers."""


@dataclass(frozen=True, slots=True)
class Go:
    """Worker: do step `step` (sync: everybody the same; async: a ticket of your own)."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Recount:
    """Worker: from its first step on, count steps as this batch says; it is the membership's but for that."""

    epoch: int
    batch: GlobalBatch


@dataclass(frozen=True, slots=True)
class Save:
    """Server: write your range at `version` to the job directory."""

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Worker: evaluate the model with the parameters that you have."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Published:
    """All-reduce worker: a member of your group says this about itself (see `Publish`)."""

    epoch: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Exit:
    """You are let go."""

    reason: str


# --- a task to its coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Task → coordinator: who I am and what I have."""

    task: str
    role: TaskRole
    rank: int
    nonce: str
    proof: str
    address: Address | None = None
    """Servers: where their data connections are accepted."""
    profile: TaskProfile | None = None
    """Workers; None only when loading failed and a `Failed` follows."""
    version: int = 0
    """Workers: the newest version that they had in full."""
    local: str | None = None
    """Servers: their name for tasks on their own machine."""


@dataclass(frozen=True, slots=True)
class Pong:
    """I am there. Servers tell what they took of their machine since the last ping; workers tell the service."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Halted:
    """Server: I have stopped, this is what I have."""

    epoch: int
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Assumed:
    """Server: I have my range."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AssumeFailed:
    """Server: a source did not give what it should."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Worker: I have the parameters."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Done:
    """Worker: step `step` is applied everywhere and I have the result."""

    epoch: int
    step: int
    loss: float
    n_examples: int
    noise_scale: float | None = None
    """Of the gradients, in examples, as far as this worker has measured it."""


@dataclass(frozen=True, slots=True)
class DataLost:
    """Worker: a data connection broke, or could not be made."""

    epoch: int
    reason: str
    server: Address | None = None
    """To the server at this address; None: not known."""


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """Server: the range at that version is set aside, training may go on while it is written."""

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Saved:
    """Server: the file is on disk."""

    epoch: int
    version: int
    file: ShardFile


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """Server: the file could not be written."""

    epoch: int
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Worker: figures of the final parameters."""

    epoch: int
    metrics: dict[str, float] = field(default_factory=dict)
    model: str | None = None
    """Path of the file that has the trained model's `state_dict`; None: it could not be written."""


@dataclass(frozen=True, slots=True)
class Publish:
    """All-reduce worker: tell the other members of my group, so that they find me (values are hexadecimal)."""

    epoch: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Leave:
    """I was asked to end (SIGTERM): let me go at the next step boundary."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code raised."""

    traceback: str


# --- both directions -------------------------------------------------------------------------------------------------

__all__ = [
    "Assume",
    "AssumeFailed",
    "Assumed",
    "Challenge",
    "DataLost",
    "Done",
    "Evaluate",
    "Evaluated",
    "Exit",
    "Failed",
    "FromTask",
    "Go",
    "Halt",
    "Halted",
    "Hello",
    "Join",
    "Joined",
    "Kinds",
    "Leave",
    "Ping",
    "Pong",
    "Publish",
    "Published",
    "Recount",
    "Release",
    "Save",
    "SaveFailed",
    "Saved",
    "SnapshotTaken",
    "ToTask",
    "Welcome",
]

ToTask = (
    Challenge | Welcome | Ping | Halt | Assume | Release | Join | Go | Recount | Save | Evaluate | Published | Exit
)  # fmt: skip
FromTask = (
    Hello | Pong | Halted | Assumed | AssumeFailed | Joined | Done | DataLost | SnapshotTaken | Saved | SaveFailed
    | Evaluated | Publish | Leave | Failed
)  # fmt: skip


class Kinds:
    """Class name → class, for each direction."""

    to_task: ClassVar[dict[str, type[ToTask]]] = {
        kind.__name__: kind
        for kind in (
            Challenge,
            Welcome,
            Ping,
            Halt,
            Assume,
            Release,
            Join,
            Go,
            Recount,
            Save,
            Evaluate,
            Published,
            Exit,
        )
    }
    from_task: ClassVar[dict[str, type[FromTask]]] = {
        kind.__name__: kind
        for kind in (
            Hello, Pong, Halted, Assumed, AssumeFailed, Joined, Done, DataLost, SnapshotTaken, Saved, SaveFailed,
            Evaluated, Publish, Leave, Failed,
        )
    }  # fmt: skip
