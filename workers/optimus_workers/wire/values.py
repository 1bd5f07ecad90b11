"""What control messages are about: tasks, ranges of the flat vector and where they are to be had, the update rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Address = tuple[str, int]
"""Host and port."""


class TaskRole(StrEnum):
    """The roles that dial the coordinator."""

    WORKER = "worker"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """A range of the parameters that is updated with values of its own."""

    first: int
    end: int
    learning_rate_scale: float
    """Times the step's learning rate."""
    weight_decay: float


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """The optimizer as the servers need it (fields as in `task.OptimizerSpec`, without the learning rate)."""

    kind: str
    momentum: float
    nesterov: bool
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    groups: tuple[UpdateGroup, ...] = ()
    """They cover all parameters; none: all are updated alike."""
    max_gradient_norm: float | None = None


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """What a worker knows once it has loaded the user's task."""

    n_parameters: int
    parameter_floats: int
    """Where the parameters end in the flat vector and the buffers begin; a multiple of 16."""
    total_floats: int
    """Length of the flat vector; a multiple of 16."""
    n_examples: int
    global_batch_size: int
    micro_batches: int
    update: UpdateRule
    gradient_period: int = 0
    """Servers tell worker 0 the squares of the summed gradient at every so many steps; 0: never."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A range of the flat vector that a server has at a version. `epoch`: the membership epoch it was made in."""

    epoch: int
    version: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One file of a checkpoint: the range [first, end) of the parameters and of the optimizer's state."""

    first: int
    end: int
    name: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where the range [first, end) is to be had: from a server's memory, or from a file of the job directory."""

    first: int
    end: int
    version: int
    task: str | None = None
    address: Address | None = None
    file: str | None = None
    local: str | None = None
    """The server's name for tasks on its own machine."""
    is_origin: bool = False
    """With `file`: it is of the job that this one starts from, and only its parameters count."""


@dataclass(frozen=True, slots=True)
class ServerRange:
    """A server of a membership and the range that it serves."""

    address: Address
    first: int
    end: int
    local: str | None = None
    """Its name for tasks on its own machine."""


@dataclass(frozen=True, slots=True)
class Group:
    """The process group of an all-reduce job's membership: everybody holds everything."""

    root: int
    """The rank that has the state, or makes it."""
    shares_state: bool
    """Somebody does not have it: the root broadcasts it."""
    sources: tuple[Source, ...] = ()
    """The files that the root reads it from; none: it has it in memory (or brings the initial one)."""
