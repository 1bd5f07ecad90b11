"""What a coordinator must not forget: an append-only file of JSON lines, each on disk before it is acted upon.

A crash may tear the last line; it is then as if that record had not been written, which is what the protocol expects
of a coordinator that died before acting.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from optimus_workers.global_batch import GlobalBatch, followed
from optimus_workers.wire.codec import decode_line, encode_line
from optimus_workers.wire.errors import WireError
from optimus_workers.wire.messages import TaskProfile

JOURNAL_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Profiled:
    """What the first worker told of the user's task."""

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
    cause: str
    pause_seconds: float | None = None
    lost_steps: int = 0
    """In steps of the base batch."""
    message: str | None = None
    batch: GlobalBatch | None = None
    """Of its steps (sync)."""

    @property
    def told_step(self) -> int:
        """`step` in steps of the base batch."""
        return self.step if self.batch is None else self.batch.told_step(self.step)


@dataclass(frozen=True, slots=True)
class Reported:
    """The service knows of that epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How the job ended (fields of `JobResultBody`)."""

    outcome: str
    step: int
    final_loss: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    checkpoint: str | None = None
    error: str | None = None
    model: str | None = None


JournalRecord = Profiled | Forming | Formed | Reported | Ended
_KINDS: dict[str, type[JournalRecord]] = {kind.__name__: kind for kind in (Profiled, Forming, Formed, Reported, Ended)}


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

    @property
    def is_paused(self) -> bool:
        return self.formed is not None and self.formed.cause == "pause"


def replay(records: Iterable[JournalRecord]) -> Past:
    """The records, oldest first, as one state."""
    epoch, profile, ended = 0, None, None
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
                if record.batch is not None and record.workers:
                    batches = followed(batches, record.batch)
            case Reported():
                reported.add(record.epoch)
            case Ended():
                ended = record
    unreported = tuple(formed[number] for number in sorted(formed.keys() - reported))
    return Past(epoch, profile, formed[max(formed)] if formed else None, unreported, batches, ended)


class Journal:
    """The journal of one job directory. One writer at a time."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / JOURNAL_NAME
        self._file = self._path.open("a+b")

    def read(self) -> list[JournalRecord]:
        """All whole records; what a crash left of a torn last one is cut off the file."""
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self._file.truncate(len(whole))
        return [_record(line, number) for number, line in enumerate(whole.splitlines(), start=1)]

    def append(self, record: JournalRecord) -> None:
        """Write one record; on return it is on disk."""
        self._file.write(encode_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _record(line: bytes, number: int) -> JournalRecord:
    try:
        return decode_line(line, _KINDS)
    except WireError as error:
        raise WireError(f"journal, line {number}: {error}") from error
