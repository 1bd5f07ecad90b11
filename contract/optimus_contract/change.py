"""What of a job may be changed until it has ended, and how a change is asked for (`PATCH /v1/jobs/{id}`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal

from optimus_contract.fields import LABELS, LABELS_SCHEMA, MAX_LABELS, Name
from optimus_contract.job import Convergence
from optimus_contract.limits import LEAST_PRIORITY, LEAST_SECONDS, MAX_RETRIES, MAX_SECONDS, MAX_TASKS, MOST_PRIORITY
from optimus_contract.message import FINITE, About, Message

Path = tuple[str, ...]

CHANGEABLE: Final[Mapping[Path, str]] = {
    ("workers", "min"): "the next round decides by it; refused where the cluster could never hold it",
    ("workers", "max"): "the next round decides by it; `kubectl scale` changes it, too",
    ("servers", "min"): "as of workers",
    ("servers", "max"): "as of workers",
    ("priority",): "the next round decides by it",
    ("convergence",): "the next round decides by it; a rule that holds already ends the job. Its tasks keep to another "
    "limit of steps or epochs at once",
    ("deadline",): "the next round decides by it; in the place of `deadline_seconds`",
    ("deadline_seconds",): "as `deadline`; counts from the submission",
    ("on_nonfinite",): "the next round decides by it",
    ("retries",): "the next error of its code is judged by it",
    ("labels",): "jobs are found by them",
    ("name",): "jobs are found by it; the id stays",
    ("paused",): "true: its tasks save what they can, and it gets nothing until it is false",
}
"""Fields of `JobSpec`, and what changing them does."""

Unset = Literal[
    "deadline",
    "convergence.loss_decrease",
    "convergence.target_loss",
    "convergence.target_metric",
    "convergence.max_epochs",
    "convergence.max_steps",
    "convergence.max_seconds",
    "convergence.max_cost",
]


_NO_NULL = "must not be null: what is left out stays, and what `unset` names is taken away"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChange(Message):
    """Other bounds of workers; what is left out stays."""

    NULL_IS_REFUSED: ClassVar[str] = _NO_NULL
    min: Annotated[int | None, About(ge=1, le=MAX_TASKS)] = None
    max: Annotated[int | None, About(ge=1, le=MAX_TASKS)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChange(WorkerChange):
    """The same of parameter servers, of which there may be none."""

    min: Annotated[int | None, About(ge=0, le=MAX_TASKS)] = None
    max: Annotated[int | None, About(ge=0, le=MAX_TASKS)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceChange(Convergence):
    """Other conditions; what is left out stays."""

    NULL_IS_REFUSED: ClassVar[str] = _NO_NULL

    def check(self) -> None:
        """Any condition alone is a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange(Message):
    """What is to be different about a job (`optimus set`); what is left out stays."""

    NULL_IS_REFUSED: ClassVar[str] = _NO_NULL
    name: Name | None = None
    labels: Annotated[
        dict[str, str | None],
        LABELS,
        About(
            "null takes a label away",
            max_length=MAX_LABELS,
            json_schema=LABELS_SCHEMA
            | {"additionalProperties": {"anyOf": [LABELS_SCHEMA["additionalProperties"], {"type": "null"}]}},
            examples=({"team": "vision", "try": None},),
        ),
    ] = field(default_factory=dict)
    workers: WorkerChange = WorkerChange()
    servers: ServerChange = ServerChange()
    priority: Annotated[float | None, FINITE, About(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] = None
    convergence: ConvergenceChange = ConvergenceChange()
    deadline: Annotated[
        str | None, About("date and time with UTC offset", max_length=40, examples=("2026-12-24T18:00:00Z",))
    ] = None
    deadline_seconds: Annotated[float | None, FINITE, About("after submission", ge=LEAST_SECONDS, le=MAX_SECONDS)] = (
        None
    )
    on_nonfinite: Literal["fail", "warn"] | None = None
    retries: Annotated[int | None, About(ge=0, le=MAX_RETRIES)] = None
    unset: Annotated[list[Unset], About("what the job is not to have any more", max_length=20)] = field(
        default_factory=list
    )
