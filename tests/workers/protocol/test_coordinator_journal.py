"""The journal: what was appended is there after a crash, at whatever byte it came."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimus_workers.coordinator.journal import (
    JOURNAL_NAME,
    Ended,
    Formed,
    Forming,
    Journal,
    JournalRecord,
    Past,
    Reported,
    replay,
)
from optimus_workers.wire.errors import WireError

FIRST = Formed(1, 1, 10.0, 0, ("w",), ("s",), "start")
SECOND = Formed(3, 2, 20.0, 50, ("w", "w2"), ("s",), "rescale", 0.1)
RECORDS: list[JournalRecord] = [Forming(1), FIRST, Reported(1), Forming(2), Forming(3), SECOND, Forming(4)]


def write(directory: Path, records: list[JournalRecord]) -> bytes:
    journal = Journal(directory)
    for record in records:
        journal.append(record)
    journal.close()
    return (directory / JOURNAL_NAME).read_bytes()


def test_a_torn_last_line_is_as_if_not_written(tmp_path: Path) -> None:
    content = write(tmp_path, RECORDS)
    last = len(content.splitlines(keepends=True)[-1])
    for n_bytes in range(len(content) - last, len(content)):
        (tmp_path / JOURNAL_NAME).write_bytes(content[:n_bytes])
        journal = Journal(tmp_path)
        assert journal.read() == RECORDS[:-1]
        journal.append(Forming(9))
        assert journal.read() == [*RECORDS[:-1], Forming(9)]
        journal.close()


def test_damage_elsewhere_is_not_passed_over(tmp_path: Path) -> None:
    content = write(tmp_path, RECORDS)
    (tmp_path / JOURNAL_NAME).write_bytes(content.replace(b'"Formed"', b'"Farmed"', 1))
    journal = Journal(tmp_path)
    with pytest.raises(WireError, match="line 2"):
        journal.read()
    journal.close()


def test_the_past_is_what_the_records_add_up_to() -> None:
    assert replay([]) == Past()
    assert replay(RECORDS) == Past(epoch=4, formed=SECOND, unreported=(SECOND,))
    paused = Formed(5, 3, 30.0, 60, (), (), "pause")
    ended = Ended("succeeded", 60)
    past = replay([*RECORDS, paused, Reported(3), ended])
    assert past == Past(epoch=5, formed=paused, unreported=(paused,), ended=ended)
    assert past.is_paused
