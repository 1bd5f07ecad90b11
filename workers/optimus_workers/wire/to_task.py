"""What the coordinator tells its tasks. What the fields have in common is in `messages`."""

from __future__ import annotations

from dataclasses import dataclass

from optimus_workers.global_batch import GlobalBatch
from optimus_workers.wire.values import Group, ServerRange, Source, TaskProfile


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
