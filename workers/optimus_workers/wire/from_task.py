"""What tasks tell their coordinator. What the fields have in common is in `messages`."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimus_workers.wire.values import Address, Holding, ShardFile, TaskProfile, TaskRole


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
