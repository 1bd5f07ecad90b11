"""The journal: what was appended is there after a crash, at whatever byte it came."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_workers.coordinator.journal import (
    JOURNAL_NAME,
    Ended,
    Formed,
    Forming,
    Journal,
    JournalRecord,
    Past,
    Reported,
    Superseded,
    replay,
)
from optimus_workers.errors import WireError

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


@pytest.mark.parametrize(("word", "damaged"), [(b'"Formed"', b'"Farmed"'), (b'"start"', b'"stark"')])
def test_damage_elsewhere_is_not_passed_over(tmp_path: Path, word: bytes, damaged: bytes) -> None:
    content = write(tmp_path, RECORDS)
    (tmp_path / JOURNAL_NAME).write_bytes(content.replace(word, damaged, 1))
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


def test_a_new_attempt_begins_from_the_last_checkpoint_whatever_ended_before(tmp_path: Path) -> None:
    first = Journal(tmp_path, 0)
    first.take_over()
    for record in (*RECORDS, Ended("failed", 50, error="OSError")):
        first.append(record)
    assert replay(first.read()).ended is not None
    second = Journal(tmp_path, 1)
    past = replay(second.take_over(attempt=1))
    assert (past.ended, past.attempt, past.is_paused, past.epoch) == (None, 1, True, 4)
    again = Journal(tmp_path, 2)  # the coordinator was replaced before it had formed anything
    past = replay(again.take_over(attempt=1))
    assert (past.ended, past.attempt, past.is_paused) == (None, 1, True)
    again.append(Formed(5, 3, 30.0, 40, ("w",), ("s",), "resume"))
    assert not replay(again.read()).is_paused
    again.append(Ended("succeeded", 60))
    assert replay(again.take_over(attempt=1)).ended is not None, "this attempt's own end counts"
    past = replay(again.take_over(attempt=0))  # of a service whose database is an older backup
    assert (past.ended is not None, past.attempt) == (True, 1)
    for journal in (first, second, again):
        journal.close()


def test_a_superseded_coordinator_writes_nothing_more(tmp_path: Path) -> None:
    old, new = Journal(tmp_path, 0), Journal(tmp_path, 1)
    assert old.take_over() == []
    old.append(Forming(1))
    assert new.take_over() == [Forming(1)]
    for write_more in (old.check, lambda: old.append(Forming(2))):
        with pytest.raises(Superseded, match="coordinator 1 of this job has begun, and this is 0"):
            write_more()
    new.append(Forming(3))
    assert new.read() == old.read() == [Forming(1), Forming(3)]
    old.close()
    new.close()


def test_a_coordinator_goes_on_with_a_journal_that_was_restored_from_a_backup(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_NAME
    journal = Journal(tmp_path, 0)
    journal.append(Reported(1))
    backup = path.read_bytes()
    for epoch in range(2, 20):
        journal.append(Reported(epoch))
    path.write_bytes(backup)  # in place, as `cp` does
    for epoch in range(20, 60):
        journal.append(Reported(epoch))
    assert journal.read() == [Reported(1), *map(Reported, range(20, 60))]
    later = Journal(tmp_path, 1)
    later.take_over()
    with pytest.raises(Superseded):
        journal.append(Reported(60))
    journal.close()
    later.close()


def test_a_coordinator_that_comes_late_does_not_begin(tmp_path: Path) -> None:
    new, old = Journal(tmp_path, 7), Journal(tmp_path, 6)
    new.take_over()
    with pytest.raises(Superseded):
        old.take_over()
    assert new.take_over() == []
    new.close()
    old.close()


def test_a_journal_of_before_is_taken_over(tmp_path: Path) -> None:
    content = write(tmp_path, RECORDS)
    (tmp_path / JOURNAL_NAME).write_bytes(content.replace(b'"by":0,', b""))
    journal = Journal(tmp_path, 0)
    assert journal.take_over() == RECORDS
    journal.close()


@settings(deadline=None, max_examples=40)  # every record is waited for until it is on disk
@given(st.lists(st.integers(0, 3), max_size=15))
def test_what_counts_is_what_the_newest_wrote(tmp_path_factory: pytest.TempPathFactory, writers: list[int]) -> None:
    """Whoever writes when, with or without having looked: from each beginning on, only that coordinator counts."""
    directory = tmp_path_factory.mktemp("journal")
    journals = [Journal(directory, number) for number in range(4)]
    counted: list[JournalRecord] = []
    began: set[int] = set()
    for epoch, writer in enumerate(writers):
        journal = journals[writer]
        if writer not in began and writer >= max(began, default=0):
            assert journal.take_over() == counted
            began.add(writer)
        journal.check = lambda: None  # type: ignore[method-assign]  # as if it had looked just before the other began
        journal.append(Forming(epoch))
        if writer == max(began):
            counted.append(Forming(epoch))
    assert journals[0].read() == counted
    for journal in journals:
        journal.close()
