"""The flags of `optimus submit`: one for each field of a specification, made from the contract.

A flag is named after its field, says what the contract says of it, and takes what the field takes. `_NAMES`,
`_WORDS` and `_PARSERS` have what a command line says in another way than a file.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from optimus_cli.job.specification import Flag, parse_assignments, parse_elastic, parse_target
from optimus_contract.change import CHANGEABLE
from optimus_contract.codec import field_types
from optimus_contract.job import JobSpec
from optimus_contract.message import About, Message

FieldPath = tuple[str, ...]
"""Where a field is: the names that lead to it."""

TRAINING = "How it trains (docs/training.md)"
COMPUTING = "How workers compute"
CONVERGENCE = "Convergence (the first that holds ends the job)"
SIZE = "Size and resources"
SCRIPT = "Scripts (docs/scripts.md)"
_PANELS = {
    TRAINING: (
        "mode architecture scaling warmup_epochs elastic_batch max_gradient_norm compression compression_keep "
        "gradient_statistics seed"
    ),
    COMPUTING: "device precision compile deterministic overlap hang_seconds",
    CONVERGENCE: "convergence evaluate_epochs on_nonfinite",
    SIZE: "workers servers gpu_types",
    SCRIPT: "python image resumes preload stop_seconds max_worker_batch_size progress_patterns",
}
_PANEL_OF = {name: panel for panel, names in _PANELS.items() for name in names.split()}

_NAMES: dict[FieldPath, str] = {
    ("task_args",): "set",
    ("environment",): "env",
    ("labels",): "label",
    ("from_job",): "from",
    ("progress_patterns",): "progress-pattern",
    ("global_batch_size",): "batch-size",
    ("convergence", "loss_decrease", "below"): "loss-decrease",
    ("convergence", "loss_decrease", "relative_to"): "relative-to",
    ("convergence", "loss_decrease", "patience_epochs"): "patience-epochs",
    ("workers", "resources", "cpu"): "worker-cpu",
    ("workers", "resources", "memory_bytes"): "worker-memory",
    ("workers", "resources", "gpus"): "worker-gpus",
    ("servers", "resources", "cpu"): "server-cpu",
    ("servers", "resources", "memory_bytes"): "server-memory",
}
_WHOLE = {("elastic_batch",), ("convergence", "target_metric")}
"""Messages that one flag says as a whole."""
_FILES_ONLY = {("servers", "resources", "gpus"), ("command",), ("convergence", "command_ends")}
"""Servers use no GPUs; the command follows `--`; a script ends by itself unless something else is asked for."""
USUAL = (
    *(
        "--name",
        "--task",
        "--set",
        "--workers-max",
        "--worker-gpus",
        "--max-epochs",
        "--target-loss",
        "--priority",
        "--sweep",
    ),
    *("--deadline", "--env", "--from", "--dry-run", "--watch", "--url", "--json", "--help-all", "--help"),
)
"""What `--help` shows; `--help-all` shows everything."""

_WORDS: dict[str, tuple[str | None, str | None]] = {
    "name": (None, "Default: the task's, or its module's."),
    "task": (None, "MODULE:FUNCTION that returns a TrainingTask."),
    "set": ("KEY=VALUE", "An argument of the task; repeatable."),
    "env": ("KEY=VALUE", "A variable of the tasks, which have none of this shell's; repeatable."),
    "label": ("NAME=VALUE", "A word of your own to find the job by (optimus list --label); repeatable."),
    "paused": (None, "It gets nothing until `optimus resume`."),
    "project": (None, "Whom the job belongs to."),
    "mode": (None, "How updates are combined: of all workers at each step, or each when it comes."),
    "elastic-batch": (
        "MINIMUM:MAXIMUM:PER_PASS",
        "Let the scheduler choose the batch (all-reduce); PER_PASS: what one worker computes at once.",
    ),
    "target-metric": (
        "NAME>=VALUE",
        "A figure of the task's evaluation, such as 'test_accuracy>=0.95' or 'perplexity<=20'.",
    ),
    "gpu-types": ("TYPE,...", "GPU types that will do; default: any."),
    "deadline": ("MOMENT", "When it should be done, such as 2026-12-24T18:00:00Z."),
    "checkpoint-url": ("URL", None),
    "python": (None, "The interpreter in whose environment a script runs; default: the activated environment's."),
    "image": ("IMAGE", "Kubernetes: what a script runs in; default: the service's image of workers."),
    "resumes": (None, "The script goes on from its own checkpoint when started again, so it may be resized."),
    "preload": (None, "Keep a process ready that has imported torch, so that a restart takes less (the default)."),
    "max-worker-batch-size": (None, "What one process of a script computes at once; more of --batch-size accumulates."),
    "stop-seconds": (None, "What a script may take to save and end before it is killed."),
    "progress-pattern": ("REGEX", "How the script prints: groups named step, loss, epoch ...; repeatable."),
    "from": (
        "JOB",
        "Start with the parameters of this job's last checkpoint; without FILE and --task: with its specification, "
        "too.",
    ),
    "working-directory": (
        None,
        "Where tasks run and import from; default: here, of a task if its module is here; of a file's command, "
        "the file's folder.",
    ),
    "loss-decrease": (None, "Smallest loss decrease per epoch (0.01: 1 %)."),
    "relative-to": (None, "What --loss-decrease is a fraction of."),
    "patience-epochs": (None, "Epochs in a row for --loss-decrease."),
    "target-loss": (None, "Loss at which the job is done."),
    "max-epochs": (None, "Passes over the data at most."),
    "max-steps": (None, "Steps at most."),
    "max-seconds": (None, "Seconds since its start at most, pauses included."),
    "workers-min": (None, "Fewest workers."),
    "workers-max": (None, "Most workers."),
    "servers-min": (None, "Fewest parameter servers."),
    "servers-max": (None, "Most parameter servers."),
    "worker-cpu": (None, "Cores of one worker."),
    "worker-memory": (None, "Of one worker, such as 512Mi or 2Gi."),
    "worker-gpus": (None, "GPUs of one worker."),
    "server-cpu": (None, "Cores of one server."),
    "server-memory": (None, "Of one server, such as 512Mi or 2Gi."),
    "seed": (None, "Of every random number."),
    "overlap": (None, "Push during the backward pass (the default)."),
}
"""Placeholder and help where the contract's description is no help on a command line."""

_CHANGING_WORDS = {"name": "What it is called from now on; its id stays."}
"""Help of a flag of `optimus set` where that of `optimus submit` tells what holds without the flag."""


def _types(text: str) -> list[str]:
    return [kind.strip() for kind in text.split(",")]


def _assigned(flag: str, typed: bool) -> Callable[[Any], Any]:
    return lambda texts: parse_assignments(flag, texts, typed=typed)


_PARSERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "set": (list[str], _assigned("--set", typed=True)),
    "env": (list[str], _assigned("--env", typed=False)),
    "label": (list[str], _assigned("--label", typed=False)),
    "elastic-batch": (str, lambda text: parse_elastic("--elastic-batch", text)),
    "target-metric": (str, lambda text: parse_target("--target-metric", text)),
    "gpu-types": (str, _types),
    "working-directory": (Path, str),
    "python": (Path, lambda path: str(path.absolute())),
    "progress-pattern": (list[str], list),
    "worker-memory": (str, str),
    "server-memory": (str, str),
}
"""What the flag takes from the command line, and the field's value made of it."""


@dataclass(frozen=True, slots=True)
class FieldFlag:
    """A flag that sets one field."""

    name: str
    field: FieldPath
    kind: Any
    """The type that the command line reads."""
    parse: Callable[[Any], Any]
    option: Any
    """typer's description of it."""

    @property
    def parameter(self) -> str:
        """The name of the function's parameter."""
        return "__".join(self.field)


def field_leaves(
    kind: type[Message], prefix: FieldPath = (), whole: Collection[FieldPath] = _WHOLE
) -> Iterator[tuple[FieldPath, Any]]:
    """The fields of a message and of the messages in it, with their annotations; of those in `whole` the message."""
    for name, annotation in field_types(kind).items():
        path = (*prefix, name)
        inner = None if path in whole else _message(annotation)
        if inner is None:
            yield path, annotation
        else:
            yield from field_leaves(inner, path, whole)


def _message(annotation: Any) -> type[Message] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Message) else None
    return next((found for part in get_args(annotation) if (found := _message(part)) is not None), None)


def _plain(annotation: Any) -> Any:
    """The type without "or null" and without metadata."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(part for part in get_args(annotation) if part is not type(None)))
    return annotation


def _description(annotation: Any) -> str:
    found = (each.description for each in getattr(annotation, "__metadata__", ()) if isinstance(each, About))
    text = next((each for each in found if each), "")
    is_a_value = ":" in text.partition(" ")[0]  # as in "weak: the batch grows"
    return f"{text[:1] if is_a_value else text[:1].upper()}{text[1:]}." if text else ""


def _flag(path: FieldPath, annotation: Any, help_words: Mapping[str, str] = MappingProxyType({})) -> FieldFlag:
    """`help_words`: in place of the usual ones, by the flag's name without dashes."""
    name = _NAMES.get(path) or "-".join(path[1:] if path[0] == "convergence" else path).replace("_", "-")
    kind, parse = _PARSERS.get(name) or (_plain(annotation), lambda value: value)
    metavar, words = _WORDS.get(name, (None, None))
    declared = f"--{name}/--no-{name}" if kind is bool else f"--{name}"
    settings: dict[str, Any] = {"metavar": metavar, "help": help_words.get(name) or words or _description(annotation)}
    if name == "working-directory":
        settings |= {"exists": True, "file_okay": False, "resolve_path": True}
    option = typer.Option(declared, rich_help_panel=_PANEL_OF.get(path[0]), **settings)
    return FieldFlag(f"--{name}", path, kind, parse, option)


_FIELDS = [(path, annotation) for path, annotation in field_leaves(JobSpec) if path not in _FILES_ONLY]
FLAGS = tuple(_flag(path, annotation) for path, annotation in _FIELDS)
CHANGING = tuple(
    _flag(path, annotation, _CHANGING_WORDS)
    for path, annotation in _FIELDS
    if (path in CHANGEABLE or path[:1] in CHANGEABLE) and path != ("paused",)
)
"""Those of `optimus set`."""


def given(values: Mapping[str, Any], flags: Sequence[FieldFlag] = FLAGS) -> list[Flag]:
    """The flags with what the command line gave, by parameter; a value of None was not given. Raises `BadInput`."""
    found = ((flag, values[flag.parameter]) for flag in flags)
    return [Flag(flag.name, flag.field, None if value in (None, []) else flag.parse(value)) for flag, value in found]


def with_flags(function: Callable[..., None], flags: Sequence[FieldFlag] = FLAGS) -> Callable[..., None]:
    """`function`, whose keyword arguments become a parameter per flag, after its own first one."""
    own = inspect.signature(function, eval_str=True).parameters
    first, *rest = (each for each in own.values() if each.kind is not inspect.Parameter.VAR_KEYWORD)
    added = [
        inspect.Parameter(
            flag.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[flag.kind | None, flag.option],
        )
        for flag in flags
    ]
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in rest]
    # typer makes its options of these two.
    function.__signature__ = inspect.Signature([first, *added, *keyword])  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in (first, *added, *keyword)}
    return function
