"""Whether a process is writing a checkpoint: real processes that write, log and wait."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.script.checkpoints import (
    HALF_SECONDS,
    LOG_SECONDS,
    QUIET_SECONDS,
    CheckpointWatch,
    Known,
    Loads,
    Spells,
    Write,
    Writes,
)

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts Python code in a group of its own; it takes a line for each thing that it does, and answers with one."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
            start_new_session=True,
        )
        started.append(process)
        say(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[bytes]) -> None:
    """Let the process do the next thing, and wait until it has."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"done\n"


def test_a_process_that_writes_nothing_is_quiet_after_a_while(start: Start) -> None:
    process = start("input(); print('done'); input()")
    writes = Writes(0.0)
    assert not writes.are_quiet([process.pid], 0.1)
    assert writes.are_quiet([process.pid], QUIET_SECONDS)


def test_an_open_file_is_a_save_until_it_is_a_log(start: Start) -> None:
    process = start("input(); f = open('checkpoint', 'w'); print('done'); input(); f.close(); print('done'); input()")
    writes = Writes(0.0)
    assert not writes.are_quiet([process.pid], 0.5)
    assert not writes.are_quiet([process.pid], 1.0)
    assert not writes.are_quiet([process.pid], LOG_SECONDS + 0.4)
    assert writes.are_quiet([process.pid], LOG_SECONDS + 1.0)
    say(process)
    assert writes.are_quiet([process.pid], LOG_SECONDS + 1.1)


def test_a_file_that_was_closed_counts_as_a_save_for_a_while(start: Start) -> None:
    process = start("input(); f = open('checkpoint', 'w'); print('done'); input(); f.close(); print('done'); input()")
    writes = Writes(0.0)
    assert not writes.are_quiet([process.pid], 1.0)
    say(process)
    assert not writes.are_quiet([process.pid], 1.1), "the next file of the checkpoint may come"
    assert writes.are_quiet([process.pid], 1.2 + QUIET_SECONDS)


def test_what_is_only_read_is_no_save(start: Start) -> None:
    process = start(f"input(); f = open({__file__!r}); print('done'); input()")
    writes = Writes(0.0)
    assert writes.are_quiet([process.pid], QUIET_SECONDS)


def test_much_that_is_written_between_two_looks_is_a_save(start: Start, tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == Path("/dev/shm").stat().st_dev:
        pytest.skip("what is written to memory is not counted")
    code = "input(); print('done'); input(); open('c', 'wb').write(bytes(500_000)); print('done'); input()"
    process = start(code)
    writes = Writes(0.0)
    assert writes.are_quiet([process.pid], 1.0)
    say(process)
    assert not writes.are_quiet([process.pid], 1.1)
    assert writes.are_quiet([process.pid], 1.2 + QUIET_SECONDS)


def test_how_long_files_were_written_is_known(start: Start) -> None:
    process = start("input(); f = open('checkpoint', 'w'); print('done'); input(); f.close(); print('done'); input()")
    writes = Writes(0.0)
    writes.are_quiet([process.pid], 1.0)
    writes.are_quiet([process.pid], 1.3)
    say(process)
    writes.are_quiet([process.pid], 1.5)
    assert writes.seconds(0.0) == pytest.approx(0.3)
    assert writes.seconds(1.2) == pytest.approx(0.1)
    assert writes.seconds(1.4) == 0.0


MAKES_A_FOLDER = "import os; input(); print('done'); input(); os.mkdir('out/checkpoint-2'); print('done'); "
MAKES_A_CHECKPOINT = (
    MAKES_A_FOLDER
    + "input(); open('out/checkpoint-2/config.json', 'w').write('{}'); print('done'); "
    + "input(); open('out/checkpoint-2/model', 'wb').write(bytes(500_000)); print('done'); input()"
)


@pytest.fixture
def out(tmp_path: Path) -> str:
    """A folder in which a checkpoint has been for long."""
    folder = tmp_path / "out"
    (folder / "checkpoint-1").mkdir(parents=True)
    os.utime(folder, (1.0, 1.0))
    return str(folder)


def test_a_checkpoint_begins_with_its_folder(start: Start, out: str) -> None:
    process = start(MAKES_A_CHECKPOINT)
    writes = Writes(0.0, Known((out,)))
    assert writes.are_quiet([process.pid], 1.0)
    say(process)
    assert not writes.are_quiet([process.pid], 2.0)
    say(process)
    assert not writes.are_quiet([process.pid], 3.0), "the file is closed, small, and in a new folder"
    assert writes.are_quiet([process.pid], 3.1 + QUIET_SECONDS)


def test_a_checkpoint_that_is_smaller_than_those_before_is_waited_for_longer(
    start: Start, out: str, tmp_path: Path
) -> None:
    if tmp_path.stat().st_dev == Path("/dev/shm").stat().st_dev:
        pytest.skip("what is written to memory is not counted")
    process = start(MAKES_A_CHECKPOINT)
    writes = Writes(0.0, Known((out,), n_bytes=500_000))
    assert writes.are_quiet([process.pid], 1.0)
    say(process)
    assert not writes.are_quiet([process.pid], 2.0)
    say(process)
    assert not writes.are_quiet([process.pid], 3.0)
    assert not writes.are_quiet([process.pid], 2.9 + HALF_SECONDS), "parameters may be gathered"
    say(process)
    assert not writes.are_quiet([process.pid], 10.0)
    assert writes.are_quiet([process.pid], 10.1 + QUIET_SECONDS), "it is whole"


@pytest.mark.parametrize(("written_at", "is_quiet"), [(None, False), (-60.0, False), (0.0, True)])
def test_a_checkpoint_may_have_begun_just_before(
    start: Start, out: str, written_at: float | None, is_quiet: bool
) -> None:
    process = start(MAKES_A_FOLDER)
    say(process)
    newest = () if written_at is None else (Write(written_at, written_at, 500_000),)
    writes = Writes(0.0, Known((out,), 500_000, newest))
    assert writes.are_quiet([process.pid], QUIET_SECONDS) == is_quiet
    assert writes.are_quiet([process.pid], HALF_SECONDS), "it may be none"


def test_where_checkpoints_were_written_and_how_large_they_are_is_known(tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == Path("/dev/shm").stat().st_dev:
        pytest.skip("what is written to memory is not counted")
    (tmp_path / "out" / "checkpoint-1").mkdir(parents=True)
    own = os.getpid()
    watch = CheckpointWatch()
    watch.look([own], 1.0)
    with (tmp_path / "out" / "checkpoint-1" / "model").open("wb") as file:
        file.write(bytes(500_000))
        file.flush()
        watch.look([own], 1.5)
    watch.look([own], 2.0)
    before = Known(("/elsewhere",), n_bytes=7)
    known = watch.known(before, tmp_path)
    assert known.folders[0] == "/elsewhere"
    assert set(known.folders) >= {str(tmp_path / "out" / "checkpoint-1"), str(tmp_path / "out")}
    assert known.n_bytes >= 500_000
    assert known.newest == (Write(1.0, 1.5, known.n_bytes),)
    assert str(tmp_path / "out") not in watch.known(before, tmp_path / "out").folders, "other jobs may run there"
    assert CheckpointWatch().known(before, tmp_path) == before


@pytest.mark.parametrize(
    "opens",
    ["f = open('c')", "import mmap; o = open('c'); f = mmap.mmap(o.fileno(), 0, prot=mmap.PROT_READ); o.close()"],
)
def test_loading_is_seen_while_a_saved_file_is_open_or_mapped(start: Start, tmp_path: Path, opens: str) -> None:
    saved = tmp_path / "c"
    saved.write_bytes(b"parameters")
    status = saved.stat()
    process = start(
        f"input(); print('done'); input(); {opens}; print('done'); input(); f.close(); print('done'); input()"
    )
    loads = Loads([(status.st_dev, status.st_ino)])
    loads.look([process.pid], 1.0)
    say(process)
    loads.look([process.pid], 1.1)
    loads.look([process.pid], 1.4)
    say(process)
    loads.look([process.pid], 1.6)
    assert loads.seconds == pytest.approx(0.4)


@given(st.lists(st.booleans(), max_size=20), st.floats(0.0, 20.0))
def test_what_was_seen_is_within_the_looks(looks: list[bool], since: float) -> None:
    spells = Spells()
    for now, seen in enumerate(looks):
        spells.add(seen, float(now))
    assert 0.0 <= spells.seconds(since) <= spells.seconds() <= sum(looks)


def test_a_group_that_has_ended_is_quiet() -> None:
    writes = Writes(0.0)
    assert writes.are_quiet([2**22 - 7], 1.0)
