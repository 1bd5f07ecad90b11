"""What the service answers, as frozen dataclasses. `body` has all that it said, newer fields included.

They print as one line, show as a table in a notebook, and become pandas objects by `to_pandas()`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Callable, TypeVar

ENDED = frozenset({"succeeded", "failed", "cancelled"})
"""States that a job does not leave."""

_Self = TypeVar("_Self", bound="Answer")
_T = TypeVar("_T", bound="Answer")


@dataclass(frozen=True)
class Answer:
    """Base of them all."""

    body: Mapping[str, Any] = field(repr=False, compare=False)
    """The JSON object that this was made of."""

    @classmethod
    def of(cls: type[_Self], body: Mapping[str, Any]) -> _Self:
        """Made of the service's JSON; what an older service does not say is None."""
        names = [each.name for each in fields(cls) if each.name != "body"]
        return cls(body, **{name: _convert(name, body.get(name)) for name in names})

    def _shown(self) -> list[tuple[str, Any]]:
        """What a table shows of it."""
        return [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "body"]

    def _repr_html_(self) -> str:
        rows = [f"<tr><th>{_escaped(name)}</th><td>{_escaped(value)}</td></tr>" for name, value in self._shown()]
        return f"<table>{''.join(rows)}</table>"

    def to_pandas(self) -> Any:
        """A pandas Series of its fields; intervals become three: `remaining_seconds`, `..._low` and `..._high`."""
        import pandas

        return pandas.Series(_flat(self))


class Table(tuple[_T, ...]):
    """Several answers of one kind."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        if not self:
            return "<p>none</p>"
        head = "".join(f"<th>{_escaped(name)}</th>" for name, _ in self[0]._shown())
        rows = ["".join(f"<td>{_escaped(value)}</td>" for _, value in each._shown()) for each in self]
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each."""
        import pandas

        return pandas.DataFrame([_flat(each) for each in self])


@dataclass(frozen=True)
class Interval(Answer):
    """A prediction with its 80 % interval."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.4g}"
        return f"{self.mean:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Allocation(Answer):
    """Tasks of a job."""

    workers: int
    servers: int
    gpu_type: str | None

    def __str__(self) -> str:
        return f"{self.workers} + {self.servers}" + (f" {self.gpu_type}" if self.gpu_type else "")


@dataclass(frozen=True, repr=False)
class Job(Answer):
    """A job. `running` is what it has, `wanted` what it is to have; times are aware."""

    id: str
    name: str
    project: str
    state: str
    step: int
    epoch: float | None
    loss: float | None
    steps_per_second: float | None
    progress: float | None
    remaining_seconds: Interval | None
    remaining_steps: Interval | None
    running: Allocation
    wanted: Allocation
    message: str | None
    failure: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def is_ended(self) -> bool:
        """Whether it has succeeded, failed or been cancelled."""
        return self.state in ENDED

    def __repr__(self) -> str:
        return _line("Job", self, f"{self.running} tasks" if self.state == "running" else self.failure)


@dataclass(frozen=True, repr=False)
class Update(Answer):
    """One job at one moment, as the event stream says it."""

    id: str
    name: str
    state: str
    step: int
    loss: float | None
    progress: float | None
    remaining_seconds: Interval | None
    workers: int
    servers: int
    message: str | None

    @property
    def is_ended(self) -> bool:
        """Whether it has succeeded, failed or been cancelled."""
        return self.state in ENDED

    def __repr__(self) -> str:
        return _line("Update", self, f"{self.workers} + {self.servers} tasks" if self.state == "running" else None)


@dataclass(frozen=True)
class Expected(Answer):
    """When a job is expected to start and to end, in seconds from now."""

    start_seconds: Interval | None
    finish_seconds: Interval | None
    finish_at: datetime | None


@dataclass(frozen=True, repr=False)
class Explanation(Answer):
    """Why a job has what it has. Prints as the sentences for its owner."""

    job_id: str
    state: str
    reason: str | None
    message: str
    what_would_change_it: str
    sentences: tuple[str, ...]
    allocation: Allocation
    previous: Allocation
    gain: float | None
    next_gain: float | None
    confidence: float | None
    expected: Expected
    troubles: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


@dataclass(frozen=True)
class Speed(Answer):
    """Predicted speed of a job at one size."""

    workers: int
    servers: int
    steps_per_second: float | None
    measured: float | None
    remaining_seconds: Interval | None
    cost: Interval | None


@dataclass(frozen=True)
class CurvePoint(Answer):
    """A loss at a step; `low` and `high` where it is predicted."""

    step: float
    loss: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, repr=False)
class Predictions(Answer):
    """What Optimus believes of a job now. `to_pandas()` has its speeds; `losses` and `fitted` are tables as well."""

    total_steps: Interval | None
    remaining_steps: Interval | None
    remaining_seconds: Interval | None
    confidence: float
    rule: str | None
    speeds: Table[Speed]
    losses: Table[CurvePoint]
    fitted: Table[CurvePoint]

    def _shown(self) -> list[tuple[str, Any]]:
        return [(name, len(value) if isinstance(value, Table) else value) for name, value in super()._shown()]

    def __repr__(self) -> str:
        left = "unknown" if self.remaining_seconds is None else f"{self.remaining_seconds} s"
        return f"<Predictions: {left} left, confidence {self.confidence:.0%}, speeds of {len(self.speeds)} sizes>"

    def to_pandas(self) -> Any:
        """Speed, time left and cost for each size."""
        return self.speeds.to_pandas()


@dataclass(frozen=True, repr=False)
class Plan(Answer):
    """What would happen if a job were submitted now; nothing was stored. Prints as sentences."""

    allocation: Allocation
    reason: str
    message: str
    what_would_change_it: str
    sentences: tuple[str, ...]
    expected: Expected
    cost: Interval | None
    confidence: float

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


@dataclass(frozen=True, repr=False)
class Log(Answer):
    """The end of what one task printed."""

    task: str
    text: str

    def __repr__(self) -> str:
        return f"--- {self.task}\n{self.text}"


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(str(value).replace("Z", "+00:00"))  # Python 3.9 knows no Z


def _table(kind: type[_T]) -> Callable[[Iterable[Mapping[str, Any]]], Table[_T]]:
    return lambda bodies: Table(kind.of(each) for each in bodies)


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("created_at", "started_at", "finished_at", "finish_at"), _moment),
    **dict.fromkeys(("remaining_seconds", "remaining_steps", "total_steps", "cost"), Interval.of),
    **dict.fromkeys(("start_seconds", "finish_seconds"), Interval.of),
    **dict.fromkeys(("running", "wanted", "allocation", "previous"), Allocation.of),
    **dict.fromkeys(("sentences", "troubles"), tuple),
    "expected": Expected.of,
    "speeds": _table(Speed),
    "losses": _table(CurvePoint),
    "fitted": _table(CurvePoint),
}
"""By the name of the field."""


def _convert(name: str, value: Any) -> Any:
    converter = _CONVERTERS.get(name)
    return value if value is None or converter is None else converter(value)


def _line(kind: str, job: Job | Update, more: str | None) -> str:
    parts = [f"step {job.step}"]
    if job.loss is not None:
        parts.append(f"loss {job.loss:.4g}")
    if job.progress is not None:
        parts.append(f"{job.progress:.0%}")
    if job.remaining_seconds is not None:
        parts.append(f"{job.remaining_seconds} s left")
    if more:
        parts.append(more)
    return f"<{kind} {job.id} {job.state}: {', '.join(parts)}>"


def _flat(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in [(each.name, getattr(answer, each.name)) for each in fields(answer) if each.name != "body"]:
        if isinstance(value, Interval):
            found |= {name: value.mean, f"{name}_low": value.low, f"{name}_high": value.high}
        elif isinstance(value, Answer):
            found |= {f"{name}_{inner}": each for inner, each in _flat(value).items()}
        else:
            found[name] = value
    return found


def _escaped(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return html.escape("" if value is None else str(value))
