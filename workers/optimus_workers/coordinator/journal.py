"""What a coordinator must not forget: an append-only file of JSON lines, each on disk before it is acted upon.

A crash may tear the last line; it is then as if that record had not been written, which is what the protocol expects
of a coordinator that died before acting.

Two coordinators may live for a while where nodes are cut off: the older does not know that it was replaced. Each begins
by writing which incarnation it is, and looks before each record whether a later one has begun; if so, it is superseded
and stops. What it still wrote before the other's beginning counts; what it writes after that does not: every record
names its writer, and those of a superseded coordinator are skipped when the journal is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from optimus_contract.membership import Cause
from optimus_contract.result import JobResult
from optimus_workers.errors import WireError
from optimus_workers.wire.codec import decode_line, encode_line
from optimus_workers.wire.values import GlobalBatch, PauseParts, TaskProfile, followed

JOURNAL_NAME = "journal.jsonl"
_WRITER = "by"
"""The incarnation that wrote a record; in records of before there was such a thing, 0."""


class Superseded(Exception):
    """A later coordinator of this job has begun: this one has no say any more."""


@dataclass(frozen=True, slots=True)
class Began:
    """A coordinator took over; from here on, those of lower incarnations count for nothing."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Profiled:
    """The profile of the user's task, from the first worker."""

    profile: TaskProfile


@dataclass(frozen=True, slots=True)
class Forming:
    """An attempt at a membership epoch: its number is used up, whether or not it succeeds."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Formed:
    """A membership epoch that trained (or, with cause "pause", the end of one)."""

    epoch: int
    generation: int
    at: float
    step: int
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    cause: Cause
    pause_seconds: float | None = None
    pause_parts: PauseParts | None = None
    """Of a script."""
    lost_steps: int = 0
    """In steps of the base batch."""
    message: str | None = None
    batch: GlobalBatch | None = None
    """Of its steps (sync)."""

    @property
    def reported_step(self) -> int:
        """`step` in steps of the base batch."""
        return self.step if self.batch is None else self.batch.reported_step(self.step)


@dataclass(frozen=True, slots=True)
class Recounted:
    """From the first step of `batch` on, steps of the membership count as it says."""

    batch: GlobalBatch


@dataclass(frozen=True, slots=True)
class Reported:
    """The service knows of that epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """Training begins anew from the last checkpoint, after a failure or because the owner asked: what the job came to
    before does not count any more, and no task has its state in memory."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How the job ended (fields of `JobResult`)."""

    outcome: Literal["succeeded", "failed"]
    step: int
    final_loss: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    checkpoint: str | None = None
    error: str | None = None
    model: str | None = None
    permanent: bool = False
    """With `error`: another attempt would fail likewise."""
    at: float | None = None
    """POSIX seconds; None in journals of earlier releases."""

    def as_result(self, attempt: int, now: float) -> JobResult:
        """What the service is told at this time (POSIX seconds); it may have been away since the end."""
        fields = asdict(self)
        at = fields.pop("at")
        seconds_ago = 0.0 if at is None else max(0.0, now - at)
        return JobResult(**fields, seconds_ago=seconds_ago, attempt=attempt)


JournalRecord = Profiled | Forming | Formed | Recounted | Reported | Restarted | Ended
_KINDS: dict[str, type[JournalRecord | Began]] = {
    kind.__name__: kind for kind in (Began, Profiled, Forming, Formed, Recounted, Reported, Restarted, Ended)
}


@dataclass(frozen=True, slots=True)
class Past:
    """What the journal says about the coordinators before this one."""

    epoch: int = 0
    """The highest epoch number ever used."""
    profile: TaskProfile | None = None
    formed: Formed | None = None
    """The last membership."""
    unreported: tuple[Formed, ...] = ()
    batches: tuple[GlobalBatch, ...] = ()
    """Of the memberships that led to the last one."""
    ended: Ended | None = None
    attempt: int = 0
    """The newest one."""
    is_restarted: bool = False
    """Whether that has not formed a membership yet."""

    @property
    def is_paused(self) -> bool:
        """Whether no task has the state of the last membership in memory."""
        return self.formed is not None and (self.formed.cause == "pause" or self.is_restarted)


def replay(records: Iterable[JournalRecord]) -> Past:
    """The records, oldest first, as one state."""
    epoch, profile, ended, attempt, is_restarted = 0, None, None, 0, False
    formed: dict[int, Formed] = {}
    batches: tuple[GlobalBatch, ...] = ()
    reported: set[int] = set()
    for record in records:
        match record:
            case Profiled():
                profile = record.profile
            case Forming():
                epoch = max(epoch, record.epoch)
            case Formed():
                epoch = max(epoch, record.epoch)
                formed[record.epoch] = record
                is_restarted = False
                if record.batch is not None and record.workers:
                    batches = followed(batches, record.batch)
            case Recounted():
                batches = followed(batches, record.batch)
            case Reported():
                reported.add(record.epoch)
            case Restarted():
                attempt, is_restarted, ended = record.attempt, True, None
            case Ended():
                ended = record
    unreported = tuple(formed[number] for number in sorted(formed.keys() - reported))
    last = formed[max(formed)] if formed else None
    return Past(epoch, profile, last, unreported, batches, ended, attempt, is_restarted)


class Journal:
    """The journal of one job directory. One writer at a time: the one of the highest incarnation."""

    def __init__(self, directory: Path, incarnation: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / JOURNAL_NAME
        self._incarnation = incarnation
        self._file = self._path.open("a+b")
        self._seen_bytes = 0
        """As far as this coordinator has looked for later ones."""

    def take_over(self, attempt: int = 0) -> list[JournalRecord]:
        """Begin as this incarnation, in the job's attempt of this number: what was written before. Raises
        `Superseded`: a later one has begun."""
        past = replay(self.read())
        self.append(Began(self._incarnation))
        if attempt > past.attempt:
            self.append(Restarted(attempt))
        return self.read()

    def read(self) -> list[JournalRecord]:
        """All whole records that count; what a crash left of a torn last one is cut off the file."""
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self._file.truncate(len(whole))
        lines = enumerate(whole.splitlines(), start=1)
        return list(_in_force(_signed_record(line, number) for number, line in lines))

    def append(self, record: JournalRecord | Began) -> None:
        """Write one record; on return it is on disk. Raises `Superseded`, and nothing is written."""
        self.check()
        self._file.write(_signed(record, self._incarnation))
        self._file.flush()
        os.fsync(self._file.fileno())

    def check(self) -> None:
        """Raises `Superseded`: a later coordinator has begun."""
        # Opened anew: network file systems look at the server's copy when a file is opened.
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._seen_bytes:
                self._seen_bytes = 0  # an older backup of it was restored
            file.seek(self._seen_bytes)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        for line in whole.splitlines():
            writer, record = _signed_record(line, None)
            if isinstance(record, Began) and writer > self._incarnation:
                raise Superseded(f"coordinator {writer} of this job has begun, and this is {self._incarnation}")
        self._seen_bytes += len(whole)

    def close(self) -> None:
        self._file.close()


def _in_force(records: Iterable[tuple[int, JournalRecord | Began]]) -> Iterator[JournalRecord]:
    """The records of the coordinator that began last."""
    newest = 0
    for writer, record in records:
        newest = max(newest, writer)
        if writer == newest and not isinstance(record, Began):
            yield record


def _signed(record: JournalRecord | Began, writer: int) -> bytes:
    return f'{{"{_WRITER}":{writer},'.encode() + encode_line(record)[1:]


def _signed_record(line: bytes, number: int | None) -> tuple[int, JournalRecord | Began]:
    where = "the journal" if number is None else f"journal, line {number}"
    try:
        fields = json.loads(line)
        writer = fields.pop(_WRITER, 0) if isinstance(fields, dict) else 0
        return int(writer), decode_line(json.dumps(fields).encode(), _KINDS)
    except (WireError, ValueError, TypeError) as error:
        raise WireError(f"{where}: {error}") from error
