"""The control messages: one frozen dataclass each, one line of JSON each; first the coordinator's, then the tasks'.

Epochs are membership epochs; a message of an epoch that is over is ignored. Versions count updates of the parameters:
version t is what step t (counted from 0) starts from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, get_args

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
    """Coordinator → task: proof that it knows the token as well."""

    proof: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Any task: answer with `Pong`, as a sign of life."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Any task: stop the step at hand; from now on only epoch `epoch` counts. Servers answer `Halted`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Assume:
    """Server: take over the range [first, end) at `version` from `sources` (none: worker 0 brings it)."""

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
    """Worker: connect to the servers and pull `version`, as worker `rank` of `n_workers`."""

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
    """The batch of the steps of this membership; None: the task's own (async: of each worker)."""
    group: Group | None = None
    """All-reduce jobs: the process group, instead of servers."""


@dataclass(frozen=True, slots=True)
class Go:
    """Worker: take step `step` (sync: all workers the same one; async: a step of this worker alone)."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class Recount:
    """Worker or agent: from its first step on, count steps as this batch says; it is the membership's but for that."""

    epoch: int
    batch: GlobalBatch


@dataclass(frozen=True, slots=True)
class Save:
    """Server: write the range at `version` to the job directory."""

    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Worker: evaluate the model with the present parameters."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Published:
    """All-reduce worker: an entry of another member of the group (see `Publish`)."""

    epoch: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Agent of a script: stop the processes, and answer `CommandStopped`.

    Sent again, to all, when it is known how: no worker's processes are ended while others of them save together.
    """

    epoch: int
    at_once: bool = False
    """Members are missing, so that the processes cannot reach a step boundary together."""
    is_asked: bool = False
    """Some processes look whether they should stop: all have the time to come to the step that they agree on."""
    all_quiet: bool = False
    """No process of any worker is writing: they are terminated now, all of them."""


@dataclass(frozen=True, slots=True)
class StartCommand:
    """Agent of a script: start the processes as worker `rank` of `n_workers`, and answer `CommandStarted`."""

    epoch: int
    rank: int
    n_workers: int
    step: int
    """Steps completed as far as the coordinator knows, as the script counts them ..."""
    batch: GlobalBatch
    """... and how steps from there on count. A `Recount` corrects it if the script goes on from another step."""
    keeps_processes: bool = False
    """Those that run go on, as members of this epoch: a new coordinator has taken over a membership that is whole."""


@dataclass(frozen=True, slots=True)
class CommandHung:
    """Agent of a script, on worker 0: the processes of no worker get any further; show where they are, and exit."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Limit:
    """Agent of a script: the job ends after this step from now on, at the latest. None: after no certain one."""

    max_steps: int | None


@dataclass(frozen=True, slots=True)
class Exit:
    """Any task: leave, with exit code 0."""

    reason: str
    job_is_over: bool = False
    """No other task goes on with the job: what this one has not told the service yet it should."""


# --- a task to its coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Task → coordinator: its identity and what it has."""

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
    running_epoch: int | None = None
    """Agents of scripts: the membership whose processes still run; None: none do, or they are being stopped."""
    running_workers: int | None = None
    """How many workers that membership has; None: no processes run, or the agent is of an older release."""
    epoch: int = 0
    """The newest membership epoch, formed or not, of which a coordinator has told the task; 0: of none."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to `Ping`. Servers report their usage since the last ping; workers report theirs to the service."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Halted:
    """Server: it has stopped and holds these ranges."""

    epoch: int
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Assumed:
    """Server: its range is there."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AssumeFailed:
    """Server: a source does not have what it should."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Worker: the parameters are there."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Done:
    """Worker: step `step` is applied on all servers and its result is here."""

    epoch: int
    step: int
    loss: float
    n_examples: int
    noise_scale: float | None = None
    """Noise scale of the gradients, in examples, as far as this worker has measured it."""


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
    """Worker: metrics of the final parameters."""

    epoch: int
    metrics: dict[str, float] = field(default_factory=dict)
    model: str | None = None
    """Path of the file that has the trained model's `state_dict`; None: it could not be written."""


@dataclass(frozen=True, slots=True)
class Publish:
    """All-reduce worker: an entry for the other members, by which they find this one (values are hexadecimal)."""

    epoch: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Any task: it got SIGTERM and is to be released at the next step boundary."""


@dataclass(frozen=True, slots=True)
class CommandQuiet:
    """Agent of a script, while its processes are being stopped: what has changed of them."""

    epoch: int
    quiet: bool
    """They are writing no file."""
    is_asked: bool
    """They look whether they should stop."""


@dataclass(frozen=True, slots=True)
class CommandStopped:
    """Agent of a script: none of its processes runs."""

    epoch: int
    step: int | None = None
    """The last step that they reported; None: none."""
    finished: bool = False
    """They had ended by themselves, and well."""
    since_step: float | None = None
    """Seconds since that step: they train on until they stop."""
    save_seconds: float | None = None
    """For how many of them files were written."""
    killed_after: float | None = None
    """They did not end within so many seconds, and were killed."""
    untold_steps: int = 0
    """That they made after it, by their pace, and told no more: they tell only some, and seem not to have saved since.
    The time that these took is not in `since_step`."""


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """Agent of a script: its processes run. After a change, worker 0 has heard of a step or does not expect to."""

    epoch: int
    step: int | None = None
    """Steps completed when they began; None: not known."""
    load_seconds: float | None = None
    """For which they loaded files before that step ..."""
    start_seconds: float | None = None
    """... and what else they took from their start to it."""
    trained_seconds: float = 0.0
    """For which they made steps by then, of which they tell only some: not in `start_seconds`."""
    told_every: int | None = None
    """They tell only each so many steps; None: each, or that is not known."""


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """Agent of a script: its processes have ended by themselves."""

    epoch: int
    exit_code: int
    """0: all of them did what they had to do."""
    error: str = ""
    """The end of what was printed, if one of them failed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures of the last evaluation that they reported."""
    counts: bool = True
    """False: they went on from the wrong step, and their job has not ended."""


@dataclass(frozen=True, slots=True)
class CommandIdle:
    """Agent of a script: its processes neither compute nor read, write or print; sent again while this lasts."""

    epoch: int
    seconds: float
    """For so long; 0: not any more."""
    patience_seconds: float
    """How long they may, as worker 0 knows from the steps so far."""
    complete: bool = False
    """They had reported the last of their steps."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code raised. `permanent`: the specification is wrong, so another attempt would fail likewise."""

    traceback: str
    permanent: bool = False


# --- both directions -------------------------------------------------------------------------------------------------

ToTask = (
    Challenge | Welcome | Ping | Halt | Assume | Release | Join | Go | Recount | Save | Evaluate | Published
    | StopCommand | StartCommand | CommandHung | Limit | Exit
)  # fmt: skip
FromTask = (
    Hello | Pong | Halted | Assumed | AssumeFailed | Joined | Done | DataLost | SnapshotTaken | Saved | SaveFailed
    | Evaluated | Publish | Leave | CommandQuiet | CommandStopped | CommandStarted | CommandEnded | CommandIdle
    | Failed
)  # fmt: skip


class MessageTypes:
    """Class name → class, for each direction."""

    to_task: ClassVar[dict[str, type[ToTask]]] = {kind.__name__: kind for kind in get_args(ToTask)}
    from_task: ClassVar[dict[str, type[FromTask]]] = {kind.__name__: kind for kind in get_args(FromTask)}
