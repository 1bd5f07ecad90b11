"""What a job is asked for with: its specification, as job files, the REST API and TrainingJobs have it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Final, Literal

from optimus_contract.codec import write
from optimus_contract.command import UnknownOption, is_distributed, launch, script_of
from optimus_contract.fields import LABELS, LABELS_SCHEMA, MAX_LABELS, SIZE, GpuType, Name, zero_or
from optimus_contract.limits import (
    DEFAULT_RETRIES,
    LEAST_CORES,
    LEAST_EPOCHS,
    LEAST_HANG_SECONDS,
    LEAST_PART,
    LEAST_PRIORITY,
    LEAST_SECONDS,
    MAX_RETRIES,
    MAX_SECONDS,
    MAX_SPEC_BYTES,
    MAX_STEPS,
    MAX_TASKS,
    MOST_PRIORITY,
)
from optimus_contract.message import FINITE, About, Check, Convert, FieldError, Message

MAX_BATCH = 10**7
"""Examples in a step."""


_FIRST_DATE, _LAST_DATE = 0.0, 253_402_300_799.0
"""1970 to 9999, POSIX seconds: what is told of a date is a date, too."""


def deadline_moment(text: str) -> datetime:
    """A date and time with its UTC offset. Raises `ValueError`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a date and time like 2026-12-24T18:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("say which time it is: end with Z (UTC) or with an offset like +01:00")
    return moment


def _deadline(text: str | None) -> str | None:
    if text is not None:
        try:
            if not _FIRST_DATE <= deadline_moment(text).timestamp() <= _LAST_DATE:
                raise ValueError("must be a date from 1970 to 9999 in UTC")
        except ValueError as error:
            after = "deadline_seconds, on the command line --deadline-seconds, counts from the submission"
            raise ValueError(f"{error} ({after})") from None
    return text


def _absolute(path: str | None) -> str | None:
    if path is not None and not path.startswith("/"):
        raise ValueError("must be an absolute path")
    return path


def _each_once(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("names a type twice")
    return names


NOT_SHOWN: Final = "(not shown)"
"""What answers have in place of the values of `environment`. No job is taken with it: an answer that is sent back as a
submission would otherwise run without the secrets."""


def _variables(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{name[:100]!r} is not a variable name")
        if name.startswith("OPTIMUS_"):
            raise ValueError(f"{name[:100]!r}: names that start with OPTIMUS_ are reserved")
    hidden = [name for name, value in variables.items() if value == NOT_SHOWN]
    if hidden:
        raise ValueError(
            f"{', '.join(hidden)[:100]}: {NOT_SHOWN!r} stands for a value that answers keep; give the value"
        )
    return variables


def _words(words: list[str] | None) -> list[str] | None:
    if words is None:
        return None
    if any("\0" in word for word in words):
        raise ValueError("no word of a command may contain a null character")
    if not words[0].strip():
        raise ValueError("the first word is the program to run: it must not be empty")
    return words


_GROUPS: Final = ("step", "total_steps", "epoch", "total_epochs", "loss", "learning_rate", "gradient_norm")
_PROGRESS: Final = frozenset({"step", "epoch", "loss"})


def checked_patterns(patterns: list[str]) -> list[str]:
    """Raise `ValueError` unless each is a regular expression with a named group, and one of them finds progress."""
    named: set[str] = set()
    for pattern in patterns:
        try:
            groups = re.compile(pattern).groupindex
        except (re.error, OverflowError, RecursionError, MemoryError) as error:
            raise ValueError(f"{pattern[:100]!r} is not a regular expression: {error}") from None
        if not groups:
            raise ValueError(
                f"{pattern[:100]!r} names no value: write groups such as (?P<step>\\d+) and (?P<loss>\\S+)"
            )
        named |= set(groups)
    if patterns and not named & _PROGRESS:
        near = (get_close_matches(name, _PROGRESS, n=1) for name in sorted(named))
        meant = next((f" (did you mean {found[0]}?)" for found in near if found), "")
        raise ValueError(
            f"no group is named step, epoch or loss, so no progress would be found: there is {', '.join(sorted(named))}"
            f"{meant}. Known names: {', '.join(_GROUPS)}; any other is a figure of an evaluation"
        )
    return patterns


def _task_argument(value: object) -> str | int | float | bool:
    """One check instead of a union's four, so that one message says what is allowed."""
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("must be a string, a finite number or a boolean")
    return value


TaskArgument = Annotated[str | int | float | bool, Convert(_task_argument)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticBatch(Message):
    """The global batch is chosen by the scheduler, with the number of workers. All sizes are examples."""

    minimum: Annotated[
        int, About("the batch it begins with; steps count as steps with this one", ge=1, le=MAX_BATCH, examples=(64,))
    ]
    maximum: Annotated[int, About(ge=1, le=MAX_BATCH, examples=(1024,))]
    per_pass: Annotated[
        int, About("what one worker computes at once; more is done in passes", ge=1, le=MAX_BATCH, examples=(128,))
    ]
    most_passes: Annotated[int, About("of one worker in one step", ge=1, le=64)] = 16
    warmup_epochs: Annotated[
        float,
        FINITE,
        zero_or(LEAST_EPOCHS),
        About("epochs in which the learning rate grows with the batch", ge=0, le=1e6),
    ] = 1.0

    def check(self) -> None:
        if self.minimum > self.maximum:
            raise ValueError(f"minimum ({self.minimum}) must not be above maximum ({self.maximum})")
        if self.minimum > self.per_pass * self.most_passes:
            most = self.per_pass * self.most_passes
            raise ValueError(f"one worker computes {most} examples in a step at most: minimum must not be above that")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResources(Message):
    """Resources of one task."""

    cpu: Annotated[float, FINITE, zero_or(LEAST_CORES), About("CPU cores", ge=0, le=4096)] = 1.0
    memory_bytes: Annotated[
        int,
        SIZE,
        About(
            "bytes, or a string like 512Mi",
            ge=0,
            le=2**50,
            examples=(536870912, "512Mi"),
        ),
    ] = 512 * 2**20
    gpus: Annotated[int, About("GPUs of one task; of which type: `gpu_types`", ge=0, le=64)] = 0


_MOST_UNASKED = 16
"""Workers, and servers, of a job that does not say how many it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDemand(Message):
    """How many workers (or servers) the job may have, and what one of them needs."""

    min: Annotated[int, About(ge=1, le=MAX_TASKS)] = 1
    max: Annotated[int, About(ge=1, le=MAX_TASKS)] = _MOST_UNASKED
    resources: TaskResources = TaskResources()

    def check(self) -> None:
        if self.min > self.max:
            default = ", the default" * (self.max == _MOST_UNASKED)
            raise ValueError(f"min ({self.min}) must not be above max ({self.max}{default})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerDemand(TaskDemand):
    """How many parameter servers the job may have, none for all-reduce, and what one of them needs."""

    min: Annotated[int, About(ge=0, le=MAX_TASKS)] = 1
    max: Annotated[int, About(ge=0, le=MAX_TASKS)] = _MOST_UNASKED


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDecrease(Message):
    """Converged when the fitted loss falls by less than `below` per epoch, for `patience_epochs` epochs in a row."""

    below: Annotated[float, FINITE, About(ge=LEAST_PART, lt=1, examples=(0.01,))]
    relative_to: Literal["previous", "maximum"] = "previous"
    patience_epochs: Annotated[int, About(ge=1, le=1000)] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMetric(Message):
    """A figure of the job's own evaluation that has to rise or fall to a value."""

    name: Annotated[str, About("as `evaluate` names it", min_length=1, max_length=100, examples=("test_accuracy",))]
    at_least: Annotated[float | None, FINITE, About(examples=(0.95,))] = None
    at_most: Annotated[float | None, FINITE] = None
    best: Annotated[
        float | None, FINITE, About("best value of a metric that rises; default: 1, for targets above 1 it is 100")
    ] = None

    def check(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give one of at_least and at_most")
        if self.best is not None and (self.at_least is None or self.best < self.at_least):
            raise ValueError("best goes with at_least and must not be below it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence(Message):
    """The job is done as soon as the first of the given conditions holds."""

    loss_decrease: LossDecrease | None = None
    target_loss: Annotated[float | None, FINITE] = None
    max_epochs: Annotated[float | None, FINITE, About(ge=LEAST_EPOCHS, le=1e9)] = None
    max_steps: Annotated[
        int | None, About("a script is asked to stop then, and ends some steps later", gt=0, le=MAX_STEPS)
    ] = None
    max_seconds: Annotated[float | None, FINITE, About(ge=LEAST_SECONDS, le=MAX_SECONDS)] = None
    target_metric: TargetMetric | None = None
    max_cost: Annotated[
        float | None, FINITE, About("money, at the prices that the service is set to", ge=LEAST_PART, le=1e12)
    ] = None
    command_ends: Annotated[bool | None, About("when the command of a script job ends by itself (its default)")] = None

    def check(self) -> None:
        names = [each.name for each in fields(self)]
        if all(getattr(self, name) is None for name in names):
            raise ValueError("give at least one of " + ", ".join(names))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Message):
    """A training job as its owner describes it (`POST /v1/jobs`, `optimus submit FILE`)."""

    name: Annotated[Name, About("lower-case letters, digits and -, 63 at most", examples=("digits-cnn",))]
    project: Name = "default"
    labels: Annotated[
        dict[str, str],
        LABELS,
        About(
            "words of your own to find jobs by; a TrainingJob's are those of its metadata",
            max_length=MAX_LABELS,
            json_schema=LABELS_SCHEMA,
            examples=({"team": "vision"},),
        ),
    ] = field(default_factory=dict)
    paused: Annotated[bool, About("gets nothing until it is resumed (`optimus resume`); its deadline runs on")] = False
    task: Annotated[
        str | None,
        About(
            "package.module:name, the import path of a function that returns a TrainingTask; a script has none",
            max_length=300,
            pattern="^[A-Za-z_][\\w]*(\\.[A-Za-z_][\\w]*)*:[A-Za-z_][\\w]*$",
            examples=("optimus_workers.zoo.digits:cnn",),
        ),
    ] = None
    command: Annotated[
        list[str] | None,
        Check(_words),
        About(
            "the command of a script (architecture: script), word by word; each worker runs it",
            min_length=1,
            max_length=1000,
            examples=(["torchrun", "train.py", "--lr", "3e-4"],),
        ),
    ] = None
    python: Annotated[
        str | None,
        Check(_absolute),
        About(
            "script: absolute path of the Python interpreter whose environment the command runs in; default: the "
            "service's, on Kubernetes the image's",
            max_length=4096,
            json_schema={"pattern": "^/[^\\x00]*$"},
        ),
    ] = None
    image: Annotated[
        str | None,
        About(
            "script on Kubernetes: the image that the command runs in; default: the service's image of workers",
            max_length=1024,
            pattern="^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$",
            examples=("registry.example.com/team/train:1.4",),
        ),
    ] = None
    resumes: Annotated[
        bool | None,
        About(
            "script: whether the command, started again, goes on from a checkpoint of its own; only then is its number "
            "of workers changed while it runs; default: learned from what it reports"
        ),
    ] = None
    preload: Annotated[
        bool, About("script: keep a process ready that has imported torch and the like, so that a restart takes less")
    ] = True
    stop_seconds: Annotated[
        float,
        FINITE,
        zero_or(LEAST_SECONDS),
        About("script: how long the command may take to end after it was asked to, before it is killed", ge=0, le=3600),
    ] = 20.0
    progress_patterns: Annotated[
        list[str],
        Check(checked_patterns),
        About(
            "script: regular expressions for printed lines, with groups named step, loss, epoch, total_steps, ...",
            max_length=20,
            examples=(["it (?P<step>\\d+): objective (?P<loss>\\S+)"],),
        ),
    ] = field(default_factory=list)
    tracked: Annotated[
        bool,
        About(
            "the job runs somewhere else, by its owner's own means: it is learned and shown, and never started, "
            "stopped or resized (`optimus track`)"
        ),
    ] = False
    task_args: Annotated[dict[str, TaskArgument], About("keyword arguments of that function", max_length=50)] = field(
        default_factory=dict
    )
    working_directory: Annotated[
        str | None,
        Check(_absolute),
        About(
            "absolute path that tasks run in and import from", max_length=4096, json_schema={"pattern": "^/[^\\x00]*$"}
        ),
    ] = None
    mode: Literal["sync", "async"] = "sync"
    architecture: Annotated[
        Literal["ps", "allreduce", "script"],
        About(
            "allreduce: no servers, the workers sum their gradients among themselves (DDP); script: the workers run "
            "`command`"
        ),
    ] = "ps"
    global_batch_size: Annotated[
        int | None, About("examples per step (sync) or per worker step (async); default: the task's", ge=1, le=10**7)
    ] = None
    max_worker_batch_size: Annotated[
        int | None,
        About(
            "script: the most examples that one process computes at once; a larger part of the global batch takes "
            "several accumulation steps; default: a process computes its part at once",
            ge=1,
            le=MAX_BATCH,
            examples=(16,),
        ),
    ] = None
    gpu_types: Annotated[
        list[GpuType],
        Check(_each_once),
        About(
            "GPU types that the workers may run on, one type at a time; empty: any that the cluster has",
            max_length=20,
            json_schema={"uniqueItems": True},
            examples=(["a100", "v100"],),
        ),
    ] = field(default_factory=list)
    convergence: Convergence = Convergence(loss_decrease=LossDecrease(below=0.01), max_epochs=100.0)
    on_nonfinite: Annotated[
        Literal["fail", "warn"],
        About("what to do when the loss is NaN or infinite for 20 steps: fail the job, or only say so"),
    ] = "fail"
    evaluate_epochs: Annotated[
        float | None,
        FINITE,
        About(
            "evaluate every so many epochs; default: every epoch with a target_metric, else only at the end",
            ge=LEAST_EPOCHS,
            le=1e9,
        ),
    ] = None
    workers: TaskDemand = TaskDemand()
    servers: ServerDemand = ServerDemand()
    priority: Annotated[
        float,
        FINITE,
        About("multiplies what the job gains by resources, beside other jobs", ge=LEAST_PRIORITY, le=MOST_PRIORITY),
    ] = 1.0
    deadline_seconds: Annotated[
        float | None, FINITE, About("after submission; see also `deadline`", ge=LEAST_SECONDS, le=MAX_SECONDS)
    ] = None
    deadline: Annotated[
        str | None,
        Check(_deadline),
        About(
            "when it should be done: a date and time with its UTC offset (RFC 3339)",
            max_length=40,
            examples=("2026-12-24T18:00:00Z",),
        ),
    ] = None
    seed: Annotated[int, About(ge=0, lt=2**63)] = 0
    checkpoint_seconds: Annotated[float, FINITE, About("checkpoint period", ge=1, le=86400)] = 30.0
    checkpoint_url: Annotated[
        str | None,
        About(
            "where checkpoints go, any URL that fsspec knows; default: the job's directory",
            max_length=1024,
            pattern="^[a-z][a-z0-9+.-]*://\\S+$",
            form="a URL, such as s3://bucket/checkpoints or file:///checkpoints",
            examples=("s3://bucket/checkpoints",),
        ),
    ] = None
    hang_seconds: Annotated[
        float | None,
        FINITE,
        About(
            "a worker whose code takes longer for one micro-batch is replaced; of a script: if all its processes "
            "do nothing for so long; default: learned, 60 at least",
            ge=LEAST_HANG_SECONDS,
            le=86400,
        ),
    ] = None
    compression: Annotated[
        Literal["none", "fp16", "bf16", "int8", "topk", "powersgd"],
        About("how gradients travel, see docs/gradients.md; int8 and topk to servers, powersgd among workers only"),
    ] = "none"
    compression_keep: Annotated[
        float | None, FINITE, About("fraction of values that topk sends; default: 0.01", ge=LEAST_PART, le=1)
    ] = None
    gradient_statistics: Annotated[
        bool, About("measure the noise scale of the gradients at every 20th step (async: of worker 0)")
    ] = False
    scaling: Annotated[
        Literal["strong", "weak"],
        About("strong: the global batch is the same for any number of workers; weak: each worker has one (sync)"),
    ] = "strong"
    warmup_epochs: Annotated[
        float | None,
        FINITE,
        zero_or(LEAST_EPOCHS),
        About("weak scaling: epochs in which the learning rate grows with the workers; default: 5", ge=0, le=1e6),
    ] = None
    elastic_batch: Annotated[
        ElasticBatch | None, About("let the scheduler choose the global batch within these bounds (all-reduce)")
    ] = None
    max_gradient_norm: Annotated[
        float | None,
        FINITE,
        About("clip each step's gradient to this norm over all parameters; default: the task's", ge=LEAST_PART),
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"], About("where workers compute; auto: on a GPU if they see one")
    ] = "auto"
    precision: Annotated[
        Literal["float32", "bf16"], About("bf16: forward passes under autocast; parameters and sums stay float32")
    ] = "float32"
    compile: Annotated[bool, About("have torch.compile translate the model")] = False
    deterministic: Annotated[bool, About("only algorithms that give the same numbers each time")] = False
    overlap: Annotated[
        bool, About("push during the backward pass, and fetch the next batch while parameters arrive")
    ] = True
    retries: Annotated[
        int,
        About(
            "times that the job goes on from its last checkpoint, after a wait, when its code raises an error "
            "after its first step; an error before that fails the job at once",
            ge=0,
            le=MAX_RETRIES,
        ),
    ] = DEFAULT_RETRIES
    from_job: Annotated[
        Name | None,
        About(
            "id of a job whose last checkpoint gives the first parameters; steps count from 0, the optimizer "
            "begins anew; the task must have the same parameters, `checkpoint_url` must be that job's",
            examples=("digits-cnn-x7k2p",),
        ),
    ] = None
    environment: Annotated[
        dict[str, str],
        Check(_variables),
        About(
            "variables for the tasks; answers have their names only",
            max_length=100,
            json_schema={"propertyNames": {"pattern": "^(?!OPTIMUS_)[A-Za-z_][A-Za-z0-9_]*$"}},
        ),
    ] = field(default_factory=dict)

    @classmethod
    def prepared(cls, value: object) -> object:
        """What follows from the architecture need not be said: jobs without servers have none; a command makes the job
        a script, which ends by itself, and which is one process unless a launcher starts it."""
        if not isinstance(value, dict):
            return value
        found = dict(value)
        command = found.get("command")
        if command is not None or found.get("tracked") is True:
            found.setdefault("architecture", "script")
        if found.get("architecture") in ("allreduce", "script") and found.get("servers") in (None, {}):
            found["servers"] = {"min": 0, "max": 0}
        if found.get("architecture") == "script":
            if found.get("convergence") in (None, {}):
                found["convergence"] = {"command_ends": True}
            if found.get("tracked") is True:
                found.setdefault("on_nonfinite", "warn")  # to end what is shown would end nothing
            workers = {} if found.get("workers") is None else found["workers"]
            words = command if isinstance(command, list) and all(isinstance(word, str) for word in command) else []
            if isinstance(workers, dict) and "max" not in workers and not is_distributed(words):
                least = workers.get("min", 1)
                found["workers"] = {**workers, "max": least}
        return found

    @property
    def trains(self) -> str:
        """What the job trains: its task, or the script that its command runs, or (a tracked job without a command) its
        name."""
        if self.task or self.command:
            return self.task or script_of(self.command or ())
        return self.name if self.tracked else ""

    def check(self) -> None:
        if self.elastic_batch is not None:
            _check_elastic(self, self.elastic_batch)
        match self.architecture:
            case "script":
                _check_script(self)
            case "allreduce":
                _check_task(self)
                _check_allreduce(self)
            case "ps":
                _check_task(self)
                if self.servers.min < 1:
                    raise ValueError("a job without servers says architecture: allreduce")
                if self.compression == "powersgd":
                    raise ValueError("compression powersgd is for architecture: allreduce")
        if self.scaling == "weak" and self.mode != "sync":
            raise ValueError("scaling weak is for mode sync: in mode async each worker has a batch of its own anyway")
        if self.scaling == "strong" and self.warmup_epochs is not None:
            raise ValueError("warmup_epochs is for scaling weak; put a warm-up of your own into learning_rate_at")
        if self.tracked and self.architecture != "script":
            raise FieldError("tracked", "a job with a task is always scheduled: leave tracked out")
        if self.deadline is not None and self.deadline_seconds is not None:
            raise ValueError("give one of deadline and deadline_seconds")
        size = len(json.dumps(write(self)))
        if size > MAX_SPEC_BYTES:
            raise ValueError(f"the whole specification may have {MAX_SPEC_BYTES} bytes as JSON, this one has {size}")


def _check_task(spec: JobSpec) -> None:
    for name in _SCRIPT_ONLY:
        if getattr(spec, name):
            otherwise = "give architecture: script, or leave that out"
            mend = "leave it out, as this job has a task" if spec.task else otherwise
            raise FieldError(name, f"{name} is for scripts: {mend}")
    if spec.task is None:
        raise FieldError("task", "give task (a function that returns a TrainingTask) or command (a training script)")
    if spec.convergence.command_ends:
        raise FieldError("convergence.command_ends", "is for scripts: a task does not end by itself")


_SCRIPT_ONLY = ("command", "python", "image", "resumes", "progress_patterns", "max_worker_batch_size")
TASK_ONLY: Final = (
    *("task", "task_args", "evaluate_epochs", "checkpoint_seconds", "checkpoint_url", "compression_keep"),
    *("gradient_statistics", "max_gradient_norm", "seed", "device", "precision", "compile", "deterministic"),
    *("overlap", "from_job"),
)
"""What our own training loops do; a script does it by its own means."""


def _check_script(spec: JobSpec) -> None:
    if spec.command is None and not spec.tracked:
        raise FieldError("command", "a script needs a command, such as [torchrun, train.py]")
    if spec.command is not None and not spec.tracked:
        try:
            launch(spec.command, gpus=spec.workers.resources.gpus)
        except UnknownOption as error:
            raise FieldError("command", str(error)) from error
    if spec.convergence.max_epochs is not None:
        raise FieldError(
            "convergence.max_epochs",
            "a script has an argument of its own for that; max_steps (--max-steps) can be given",
        )
    unsaid = JobSpec(name=spec.name)
    for name in TASK_ONLY:
        if getattr(spec, name) != getattr(unsaid, name):
            raise FieldError(name, f"{name} is for jobs with a task: a script has arguments of its own for that")
    if spec.elastic_batch is not None:
        raise FieldError(
            "elastic_batch",
            "is for jobs with a task: the scheduler chooses a batch by the noise of the gradients, which a script does "
            "not measure; give global_batch_size",
        )
    if spec.max_worker_batch_size is not None and spec.global_batch_size is None:
        raise FieldError("max_worker_batch_size", "divides the global batch: give global_batch_size as well")
    if spec.mode != "sync":
        raise FieldError("mode", "a script has no mode: leave it out")
    if spec.scaling == "weak" and spec.tracked:
        raise FieldError("scaling", "is for jobs that are scheduled: the size of a tracked job stays")
    if spec.compression != "none":
        raise FieldError("compression", "is for jobs with a task: leave it out")
    if spec.servers.max > 0:
        raise FieldError("servers", "a script has no servers: leave them out, or give min 0 and max 0")


def _check_allreduce(spec: JobSpec) -> None:
    if spec.servers.max > 0:
        raise ValueError("an all-reduce job has no servers: leave them out, or give min 0 and max 0")
    if spec.mode != "sync":
        raise ValueError("an all-reduce job is sync: its workers sum their gradients at every step")
    if spec.compression in ("int8", "topk"):
        raise ValueError(f"compression {spec.compression} is for servers; all-reduce has fp16, bf16, powersgd")


def _check_elastic(spec: JobSpec, batch: ElasticBatch) -> None:
    name = "elastic_batch"
    if spec.architecture == "ps":
        raise FieldError(name, "an elastic batch is for all-reduce jobs: say architecture: allreduce, or leave it out")
    if spec.mode == "async":
        raise FieldError(name, "an elastic batch is for mode sync: in mode async each worker has a batch of its own")
    if spec.scaling == "weak":
        raise FieldError(name, "give one of elastic_batch and scaling: weak; both set the batch")
    fixed = spec.global_batch_size
    if fixed is not None and not batch.minimum <= fixed <= batch.maximum:
        raise FieldError(
            name,
            f"global_batch_size ({fixed}) must be from {batch.minimum} to {batch.maximum}: it is what policies give "
            "that choose no batches; leave it out for the smallest",
        )
