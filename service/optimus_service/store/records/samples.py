"""Telemetry as it comes and as it is kept, and what ended jobs taught."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optimus_contract.telemetry import DEFAULTS, Sample, SampleColumns
from optimus_service.store.records.basics import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord(Sample):
    """A sample that was counted. The samples of a job are numbered from 1 on, in the order of commit."""

    id: int
    received_at: float


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Counted samples of one job that follow each other and came together, the values of each field together."""

    first_id: int
    """The others count on from there."""
    received_at: float
    columns: Mapping[str, Sequence[Any]]
    """By the names of `Sample`'s fields, all equally long, `step` among them; what is left out has its default."""

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def last_id(self) -> int:
        """Of the newest."""
        return self.first_id + len(self) - 1

    def after(self, id_: int) -> SampleBatch:
        """Those with ids above this one."""
        if id_ < self.first_id:
            return self
        columns = {name: values[id_ + 1 - self.first_id :] for name, values in self.columns.items()}
        return SampleBatch(id_ + 1, self.received_at, columns)

    def column(self, name: str) -> Sequence[Any]:
        """The values of a field."""
        column = self.columns.get(name)
        return [DEFAULTS[name]] * len(self) if column is None else column

    def records(self) -> Iterator[SampleRecord]:
        """The same samples, one by one."""
        for id_, values in enumerate(zip(*self.columns.values(), strict=True), self.first_id):
            yield SampleRecord(id=id_, received_at=self.received_at, **dict(zip(self.columns, values, strict=True)))


@dataclass(frozen=True, slots=True)
class KeptHistory:
    """What is known of a job by its samples."""

    last_id: int
    """Of the newest of them."""
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRunRecord:
    """What an ended job taught (`optimus_service.observe.finished_runs`)."""

    id: int
    job_id: str
    document: Document


IgnoredWhy = Literal["duplicate", "old_membership", "unknown_membership"]


@dataclass(frozen=True, slots=True)
class PostedSamples:
    """Samples of one job that were sent together: one at least."""

    job_id: str
    columns: SampleColumns
    received_at: float


@dataclass(frozen=True, slots=True)
class IgnoredSample:
    """A posted sample that was not counted."""

    index: int
    """Where it stood in the post."""
    why: IgnoredWhy


@dataclass(frozen=True, slots=True)
class AddedSamples:
    """What became of a post of samples."""

    accepted: int
    ignored: tuple[IgnoredSample, ...]
    """Sorted by index."""
