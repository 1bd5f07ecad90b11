"""The values in control messages: tasks, ranges of the flat vector and their sources, the update rule, the batch."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The groups cover all parameters; none: all are updated alike."""
    max_gradient_norm: float | None = None
    extra_sections: int = 0
    """Vectors of state that the members of an all-reduce job know by themselves how to use."""


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
    """Servers send worker 0 the squares of the summed gradient at every so many steps; 0: never."""


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
    """The process group of an all-reduce job's membership: every member holds all state."""

    root: int
    """The rank that has the state, or makes it."""
    shares_state: bool
    """A member does not have it: the root broadcasts it."""
    sources: tuple[Source, ...] = ()
    """The files that the root reads it from; none: it has it in memory (or brings the initial one)."""


# --- the global batch ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PauseParts:
    """What a script's training stood still for; see the contract's `PauseParts`. None: not known."""

    save_seconds: float | None = None
    stop_seconds: float | None = None
    start_seconds: float | None = None
    load_seconds: float | None = None
    told_every: int | None = None


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The batch of one membership epoch of sync training, or of its steps from `first_step` on."""

    size: int
    """Examples in one step."""
    slots: int
    """Micro-batches that it is cut into: `slots` on the wire and in checkpoints, as in earlier releases."""
    base_size: int
    """Examples in one step as the service counts them: the batch of the task or the job."""
    first_step: int
    """The membership's first step (counted from 0) ..."""
    first_example: int
    """... begins here in the endless stream of examples (see `sampler`)."""
    from_factor: float = 1.0
    """Factor of the learning rate at `first_example`."""
    to_factor: float = 1.0
    """Factor of the learning rate from `warmup_examples` later on; in between it grows linearly."""
    warmup_examples: float = 0.0
    counted: float | None = None
    """Elastic: steps of the base batch that everything before `first_step` was worth; None: examples are counted."""
    gain: float = 1.0
    """Elastic: what each step is worth, in steps of the base batch; 1 at least."""
    noise_scale: float = 0.0
    """Elastic: that of the gradients, in examples, which `gain` was calculated from; 0 before it is known."""

    @property
    def is_elastic(self) -> bool:
        return self.counted is not None

    def position(self, step: int) -> int:
        """Where step `step` begins in the stream; so also: examples trained on after `step` steps of the job."""
        return self.first_example + (step - self.first_step) * self.size

    def counted_at(self, step: int) -> float:
        """`step` in steps of the base batch."""
        if self.counted is None:
            return self.position(step) / self.base_size
        return self.counted + (step - self.first_step) * self.gain

    def reported_step(self, step: int) -> int:
        """The same, rounded down."""
        if self.counted is None:
            return self.position(step) // self.base_size
        return int(self.counted_at(step))

    def reported_examples(self, step: int) -> int:
        """Examples in that many steps of the base batch: what schedules of the learning rate go by."""
        return self.position(step) if self.counted is None else int(self.counted_at(step) * self.base_size)

    def learning_rate_factor(self, step: int) -> float:
        """What to multiply the learning rate of step `step` with."""
        done = self.position(step) - self.first_example
        if done >= self.warmup_examples:
            return self.to_factor
        return self.from_factor + (self.to_factor - self.from_factor) * done / self.warmup_examples


def constant_batch(size: int, slots: int) -> GlobalBatch:
    """The same batch at every step of the job."""
    return GlobalBatch(size, slots, size, 0, 0)


def followed(batches: Sequence[GlobalBatch], batch: GlobalBatch) -> tuple[GlobalBatch, ...]:
    """The batches that lead to `batch`, and itself: what was trained from its first step on before is given up."""
    return (*(before for before in batches if before.first_step < batch.first_step), batch)
