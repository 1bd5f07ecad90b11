"""From a job's command to the processes that one worker starts. Pure.

A launcher of distributed training (torchrun, deepspeed) starts processes, gives them their variables and watches them.
The agent does that itself, so that there is one supervisor: it starts what the launcher would have started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class UnknownOption(ValueError):
    """The command has an option of its launcher that the agent cannot do."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What one worker starts."""

    argv: tuple[str, ...]
    """The words of each process."""
    n_processes: int = 1
    is_distributed: bool = False
    """The processes get the variables of distributed training."""
    max_restarts: int | None = None
    """What the launcher was told; None: nothing."""


@dataclass(frozen=True, slots=True)
class _Launcher:
    """The options of a launcher: those that take a value, and those that take none."""

    processes: frozenset[str]
    """Each takes the number of processes on a node."""
    values: frozenset[str]
    flags: frozenset[str]


_TORCHRUN = _Launcher(
    processes=frozenset({"nproc-per-node"}),
    values=frozenset(
        [
            "nnodes",
            "rdzv-backend",
            "rdzv-endpoint",
            "rdzv-id",
            "rdzv-conf",
            "max-restarts",
            "monitor-interval",
            "start-method",
            "event-log-handler",
            "role",
            "log-dir",
            "redirects",
            "r",
            "tee",
            "t",
            "local-ranks-filter",
            "duplicate-stdout-filters",
            "duplicate-stderr-filters",
            "node-rank",
            "master-addr",
            "master-port",
            "local-addr",
            "logs-specs",
            "numa-binding",
            "signals-to-handle",
            "shutdown-timeout",
        ]
    ),
    flags=frozenset({"standalone", "module", "m", "no-python"}),
)
_DEEPSPEED = _Launcher(
    processes=frozenset({"num-gpus"}),
    values=frozenset(
        ["num-nodes", "hostfile", "include", "exclude", "master-port", "master-addr", "launcher", "node-rank"]
    ),
    flags=frozenset({"module", "no-python", "no-ssh", "no-local-rank"}),
)
_ACCELERATE_OURS = frozenset(
    [
        "num-processes",
        "num-machines",
        "machine-rank",
        "main-process-ip",
        "main-process-port",
        "rdzv-backend",
        "rdzv-conf",
    ]
)
"""Options of `accelerate launch` with a value that say what the agent decides."""
_ACCELERATE_FLAGS = frozenset({"multi-gpu", "same-network"})
_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def launch(command: Sequence[str], *, gpus: int = 0, workers: int = 1) -> Launch:
    """What a worker with `gpus` GPUs starts for `command`, in a job that may have up to `workers` workers.

    Raises:
        UnknownOption: the launcher has an option that is not understood; the message names it.
    """
    words = list(command)
    program = words[0].rpartition("/")[2]
    python = words[0] if program.startswith("python") else "python"
    if program.startswith("python") and len(words) > 2 and words[1] == "-m" and words[2] in _TORCH_MODULES:
        return _launched(_TORCHRUN, "torchrun", words[3:], python, gpus)
    if program == "torchrun":
        return _launched(_TORCHRUN, program, words[1:], python, gpus)
    if program == "deepspeed":
        return _launched(_DEEPSPEED, program, words[1:], python, gpus)
    if program == "accelerate" and words[1:2] == ["launch"]:
        return Launch(_accelerated(words), max(1, gpus), is_distributed=True)
    return Launch(tuple(words), max(1, gpus) if workers > 1 else 1, is_distributed=workers > 1)


def _launched(launcher: _Launcher, program: str, words: Sequence[str], python: str, gpus: int) -> Launch:
    n_processes, max_restarts, flags = max(1, gpus), None, set[str]()
    left = list(words)
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).lstrip("-").partition("=")
        name = option.replace("_", "-")
        if name in launcher.flags and not equals:
            flags.add(name)
            continue
        if name not in launcher.processes | launcher.values:
            raise UnknownOption(
                f"{program} option --{option} is not known; its script and arguments follow its options"
            )
        if not equals:
            if not left:
                raise UnknownOption(f"{program} option --{option} has no value")
            value = left.pop(0)
        if name in launcher.processes:
            n_processes = _processes(program, option, value, gpus)
        elif name == "max-restarts" and value.isdecimal():
            max_restarts = int(value)
    if not left:
        raise UnknownOption(f"{program} is given no script to run")
    if "no-python" in flags:
        argv = left
    elif flags & {"module", "m"}:
        argv = [python, "-u", "-m", *left]
    else:
        argv = [python, "-u", *left]
    return Launch(tuple(argv), n_processes, is_distributed=True, max_restarts=max_restarts)


def _processes(program: str, option: str, text: str, gpus: int) -> int:
    if text.isdecimal() and 0 < int(text) <= 1024:
        return int(text)
    if text in ("auto", "gpu", "cpu", "xpu"):
        return max(1, gpus)
    raise UnknownOption(f"{program} option --{option}: {text!r} is no number of processes from 1 to 1024")


def _accelerated(words: Sequence[str]) -> tuple[str, ...]:
    """`accelerate launch` as each process runs it: it sets up precision and plugins, the agent the processes."""
    kept = [words[0], "launch", "--num_processes=1", "--num_machines=1"]
    left = list(words[2:])
    while left and left[0].startswith("-"):
        word = left.pop(0)
        option, equals, _ = word.lstrip("-").partition("=")
        name = option.replace("_", "-")
        if name in _ACCELERATE_FLAGS:
            continue
        if name in _ACCELERATE_OURS:
            if not equals and left:
                left.pop(0)
            continue
        kept.append(word)
        if not equals and left and not left[0].startswith("-") and not left[0].endswith(".py"):
            kept.append(left.pop(0))
    return (*kept, *left)


# --- variables -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place in a membership."""

    rank: int
    n_workers: int
    master: tuple[str, int]
    """Where the processes meet: host and port of worker 0."""
    restarts: int = 0
    """Memberships of this job before the present one."""


def distributed_variables(started: Launch, place: Place, local_rank: int, run_id: str) -> dict[str, str]:
    """What torchrun tells a process: its rank, of how many, and where they meet."""
    n_local = started.n_processes
    rank, world = place.rank * n_local + local_rank, place.n_workers * n_local
    return {
        "MASTER_ADDR": place.master[0],
        "MASTER_PORT": str(place.master[1]),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(n_local),
        "GROUP_RANK": str(place.rank),
        "GROUP_WORLD_SIZE": str(place.n_workers),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "TORCHELASTIC_RESTART_COUNT": str(place.restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max(started.max_restarts or 0, place.restarts)),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def batch_variables(global_batch_size: int | None, world: int) -> dict[str, str]:
    """How the global batch is divided over `world` processes; none if the job does not name one.

    `OPTIMUS_WORKER_BATCH_SIZE` · `OPTIMUS_ACCUMULATION_STEPS` · world is the global batch, where that can be: what one
    process computes at once never grows when processes are taken away, they accumulate gradients instead.
    """
    if global_batch_size is None:
        return {}
    each = max(1, -(-global_batch_size // world))
    return {
        "OPTIMUS_GLOBAL_BATCH_SIZE": str(global_batch_size),
        "OPTIMUS_WORKER_BATCH_SIZE": str(each),
        "OPTIMUS_ACCUMULATION_STEPS": "1",
    }


def python_environment(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """The variables with which a command runs in the environment of this interpreter, as if that were activated."""
    found = dict(environment)
    directory = python.rpartition("/")[0]
    found["PATH"] = f"{directory}:{found['PATH']}" if found.get("PATH") else directory
    found["VIRTUAL_ENV"] = directory.rpartition("/")[0]
    found.pop("PYTHONHOME", None)
    return found
