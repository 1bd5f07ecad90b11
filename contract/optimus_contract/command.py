"""What the command of a script says: what it runs, in how many processes. Pure.

A launcher of distributed training (torchrun, deepspeed) starts processes, gives them their variables and watches them.
The agent of a worker does that itself, so that there is one supervisor: it starts what the launcher would have started.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from optimus_contract.job_name import OTHER_LANGUAGES, told_name
from optimus_contract.shell_text import commands_of

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Programs that start the processes of a distributed training."""
REPLACED = ("torchrun", "deepspeed")
"""Those that the agent does the work of; they need not be installed."""


class Work(NamedTuple):
    """What a command does, and to what."""

    name: str
    """A Python file or module, a file that another interpreter runs, a program, or of code that stands in the command
    itself what runs it and a short hash: `python -c 3f9a01ab`."""
    arguments: tuple[str, ...]
    """The words after it."""
    reads_code: bool = False
    """The code comes through the standard input of an interpreter: by its command nobody can tell which."""


def work_of(command: Sequence[str]) -> Work:
    """The code that stands in the command, or the file that an interpreter is given; else the first word that names a
    Python file or module; else its program.

    `command`: at least one word.
    """
    found = _work_of(command)
    return found if found.name else Work(command[0], tuple(command[1:]))  # a file without a name is none


def _work_of(command: Sequence[str]) -> Work:
    own = _interpreted(command)
    if own is not None:
        return own
    file = next((index for index, word in enumerate(command) if word.endswith(".py")), None)
    module = next((index + 1 for index, word in enumerate(command[:-1]) if word == "-m"), None)
    if file is None and module is not None and command[module] not in _LAUNCHER_MODULES:
        file = module
    place = file or 0
    return Work(command[place], tuple(command[place + 1 :]))


def script_of(command: Sequence[str]) -> str:
    """What a command runs, without its arguments: see `Work.name`."""
    return work_of(command).name


def script_file_of(command: Sequence[str]) -> str | None:
    """The file that a command runs, by its name from the directory where the command begins: `python x.py`,
    `bash x.sh`, `env A=b perl x.pl`. None: it runs no file, or one whose name or place nothing tells for certain."""
    name = script_of(command)
    if name.endswith(".py"):
        return name
    if not _SCRIPT_FILE.fullmatch(name) or name not in command[1:]:
        return None
    before = command[: command.index(name, 1)]
    stays = _interpreter(before[:1]) is not None or before[0].rpartition("/")[2] in _LIMITING
    return name if stays and not any(word.startswith(_TO_ANOTHER_DIRECTORY) for word in before) else None


_SCRIPT_FILE = re.compile(rf".*[^/]\.(?:{OTHER_LANGUAGES})", re.DOTALL)
_TO_ANOTHER_DIRECTORY = ("-C", "--chdir", "-D")
"""Options of programs that run others."""


def title_of(command: Sequence[str]) -> str:
    """What a person would call it: `script_of`, but of text that a shell runs what the text runs. That is what the last
    launcher of distributed training in it starts, else its last script or module, else its last program, else nothing
    that tells more than the shell. A file that no job can be named after gives way to what runs it.

    `command`: at least one word.
    """
    return _title(command).text


class _Title(NamedTuple):
    text: str
    tells: int
    """How much: 2 of what a launcher of distributed training starts, 1 of another script or module, 0 of a program."""


def _title(command: Sequence[str]) -> _Title:
    found, work = _interpreter(command), work_of(command)
    if found is not None and found[0] in _SHELLS:
        options = _shell_options(found[1])
        if options.has_code and options.left:
            return _title_of_text(options.left[0]) or _Title(work.name, 0)
    program = command[0] if found is None else found[0]
    is_known = told_name(work.name) is not None
    is_script = is_known and work.name != command[0] and not work.name.startswith(f"{program} -")
    return _Title(work.name if is_known else program, 2 if is_distributed(command) else int(is_script))


def _title_of_text(text: str) -> _Title | None:
    """What the commands of a text of a shell are there for; None: nothing tells."""
    titles = [each for command in commands_of(text) if (each := _title_within(command)) is not None]
    return max(reversed(titles), key=lambda title: title.tells, default=None)


def _title_within(command: Sequence[str]) -> _Title | None:
    """Of one command of a text; None: it only prepares others, or what it runs is not known before."""
    program = command[0].rpartition("/")[2]
    if program in _PREPARING or script_of(command) in _PREPARING_MODULES:
        return None
    title = _title(command)
    return None if told_name(title.text) is None else title


_OF_A_SHELL = """
. : [ alias autoload bg bind break caller cd compgen complete compopt continue declare dirs disown echo emulate
enable eval exit export false fc fg getopts hash help history in jobs kill let local logout mapfile popd print printf
pushd pwd read readarray readonly return set setopt shift shopt source suspend test times trap true type typeset ulimit
umask unalias unset unsetopt wait whence zmodload
"""
_OF_FILES_AND_MACHINES = """
awk cat chmod chown cp curl cut date df du find free git grep gunzip gzip head hostname id ln ls mkdir mktemp module mv
nproc nvidia-smi ps realpath rm rmdir rsync scp sed sleep sort tail tar tee touch uname unzip wc wget which
"""
_PREPARING = frozenset(f"{_OF_A_SHELL} {_OF_FILES_AND_MACHINES}".split())
"""What stands in a text beside the training."""
_PREPARING_MODULES = frozenset(("pip", "venv", "ensurepip"))


_USUAL = ("python", "python3", *LAUNCHERS, "bash", "sh")


def program_meant(program: str, is_there: Callable[[str], object]) -> str | None:
    """The usual program of trainings that is written nearly like one that is not there; None: no such one is there."""
    near = difflib.get_close_matches(program, _USUAL, n=len(_USUAL))
    return next((each for each in near if is_there(each)), None)


_LIMITING = (
    "env",
    "nohup",
    "nice",
    "ionice",
    "time",
    "timeout",
    "stdbuf",
    "numactl",
    "taskset",
    "chrt",
    "setsid",
    "sudo",
)
_ENVIRONMENTS = ("srun", "xvfb-run", "uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba")
_WRAPPERS = frozenset((*_LIMITING, *_ENVIRONMENTS))
"""Programs that run the command which follows their own options."""
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_SHELLS = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_EVALUATES = {
    "perl": (re.compile(r"-[acflnpswW0]*[eE]"), ("-I",)),
    "ruby": (re.compile(r"-[alnpw]*e"), ("-I", "-r")),
    "node": (re.compile(r"-[ep]|-pe|--eval|--print"), ("-r", "--require", "--import", "-C")),
    "php": (re.compile(r"-r"), ("-d", "-c")),
    "lua": (re.compile(r"-e"), ("-l",)),
    "luajit": (re.compile(r"-e"), ("-l",)),
    "Rscript": (re.compile(r"-e"), ()),
    "julia": (re.compile(r"-[eE]|--eval|--print"), ("-L", "-J", "-p", "-t", "-C")),
}
"""Of other interpreters: the options that code follows, and those before it that another value follows."""


def _interpreted(command: Sequence[str]) -> Work | None:
    """What an interpreter runs: code in its command, or that comes through its input, or a file; None of all others,
    and of a module that a file follows."""
    found = _interpreter(command)
    if found is None:
        return None
    program, words = found
    if program in _SHELLS:
        return _of_shell(program, words)
    return _of_evaluator(program, words) if program in _EVALUATES else _of_python(program, words)


def _interpreter(command: Sequence[str]) -> tuple[str, Sequence[str]] | None:
    """The interpreter that a command starts, and the words after it; None: none, or a file of Python stands before."""
    for place, word in enumerate(command):
        if word.endswith(".py"):
            return None
        program = word.rpartition("/")[2]
        if _PYTHON.fullmatch(program) or program in _SHELLS or program in _EVALUATES:
            return program, command[place + 1 :]
        if command[0].rpartition("/")[2] not in _WRAPPERS:
            return None
    return None


def _of_code(program: str, option: str, code: str, arguments: Sequence[str]) -> Work:
    short = hashlib.sha256(code.encode(errors="surrogateescape")).hexdigest()[:8]
    return Work(f"{program} {option} {short}", tuple(arguments))


def _of_python(program: str, words: Sequence[str]) -> Work | None:
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                del left[:1]
            continue
        # Of several letters in one word, the first that takes a value takes the rest of the word, or the next word.
        letters = re.fullmatch(r"-([^cmWX]*)([cmWX]?)(.*)", word, re.DOTALL)
        option, value = (letters[2], letters[3]) if letters else ("", "")
        if option and not value:
            if not left:
                return None
            value = left.pop(0)
        if option == "c":
            return _of_code(program, "-c", value, left)
        if option == "m":
            # A launcher's module, or one that a file follows, is what `work_of` looks for.
            is_other = value in _LAUNCHER_MODULES or any(each.endswith(".py") for each in left)
            return None if is_other else Work(value, tuple(left))
    return _of_file(program, left)


def _of_file(program: str, left: Sequence[str]) -> Work:
    """`left`: the words after an interpreter's own options. Without a file its code comes through the input."""
    if left[:1] in ([], ["-"]):
        return Work(f"{program} -", tuple(left[1:]), reads_code=True)
    return Work(left[0], tuple(left[1:]))


class _ShellOptions(NamedTuple):
    """What a shell is told before the words that it runs."""

    has_code: bool
    reads: bool
    left: list[str]


def _of_shell(program: str, words: Sequence[str]) -> Work | None:
    has_code, reads, left = _shell_options(words)
    if has_code:
        return _of_code(program, "-c", left[0], left[1:]) if left else None
    return Work(f"{program} -", tuple(left), reads_code=True) if reads else _of_file(program, left)


def _shell_options(words: Sequence[str]) -> _ShellOptions:
    left, has_code, reads = list(words), False, False
    while left and left[0][:1] in ("-", "+"):
        word = left.pop(0)
        if word in ("-", "--"):
            break
        if word.startswith("--"):
            if word in ("--rcfile", "--init-file"):
                del left[:1]
            continue
        has_code |= word.startswith("-") and "c" in word
        reads |= word.startswith("-") and "s" in word
        if word[-1] in "oO":
            del left[:1]
    return _ShellOptions(has_code, reads, left)


def _of_evaluator(program: str, words: Sequence[str]) -> Work | None:
    takes_code, takes_value = _EVALUATES[program]
    left, code = list(words), list[str]()
    while left and left[0].startswith("-") and left[0] not in ("-", "--"):
        word = left.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if takes_code.fullmatch(name) and (equals or left):
            code.append(value if equals else left.pop(0))
        elif word in takes_value:
            del left[:1]
    if code:
        return _of_code(program, "-e", "\n".join(code), left)
    return _of_file(program, left[1:] if left[:1] == ["--"] else left)


_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_LAUNCHER_MODULES = (*_TORCH_MODULES, "accelerate.commands.launch")


def is_distributed(command: Sequence[str]) -> bool:
    """Whether a command starts with a launcher of distributed training. Any other one is taken for a single process:
    several copies of it would train the same thing several times."""
    program = command[0].rpartition("/")[2] if command else ""
    if program.startswith("python"):
        modules = [command[index + 1] for index, word in enumerate(command[:-1]) if word == "-m"]
        return modules[:1] != [] and modules[0] in _LAUNCHER_MODULES
    return program in LAUNCHERS


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
    """The launcher's own options; None: nothing."""
    n_nodes: int = 1
    """Likewise: it is a matter of the scheduler's, unless the launcher runs itself."""


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
    n_processes, n_nodes, max_restarts, flags = max(1, gpus), 1, None, set[str]()
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
        elif name in ("nnodes", "num-nodes") and value.isdecimal():
            n_nodes = max(1, int(value))
    if not left:
        raise UnknownOption(f"{program} is given no script to run")
    if "no-python" in flags:
        argv = left
    elif flags & {"module", "m"}:
        argv = [python, "-u", "-m", *left]
    else:
        argv = [python, "-u", *left]
    return Launch(tuple(argv), n_processes, is_distributed=True, max_restarts=max_restarts, n_nodes=n_nodes)


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
