"""Whether a process is writing a checkpoint: real processes that write, log and wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optimus_workers.script.saving import LOG_SECONDS, QUIET_SECONDS, Writes

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


def test_a_group_that_has_ended_is_quiet() -> None:
    writes = Writes(0.0)
    assert writes.are_quiet([2**22 - 7], 1.0)
