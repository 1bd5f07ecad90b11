"""Whether a process is writing a checkpoint: real processes that write, log and wait."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.script.checkpoints import LOG_SECONDS, QUIET_SECONDS, CheckpointWatch, Loads, Spells, Writes
from optimus_workers.script.folders import HALF_SECONDS, Folders

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


MAKES_A_CHECKPOINT = (
    "import os; input(); print('done'); input(); os.mkdir('out/checkpoint-2'); print('done'); "
    "input(); open('out/checkpoint-2/config.json', 'w').write('{}'); print('done'); input()"
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with a checkpoint."""
    folder = tmp_path / "out"
    (folder / "checkpoint-1").mkdir(parents=True)
    return folder


def test_a_checkpoint_begins_with_its_folder(start: Start, out: Path) -> None:
    process = start(MAKES_A_CHECKPOINT)
    writes = Writes(0.0, (str(out),))
    assert writes.are_quiet([process.pid], 1.0)
    say(process)
    assert not writes.are_quiet([process.pid], 2.0)
    say(process)
    assert not writes.are_quiet([process.pid], 3.0), "the file is closed, small, and in a new folder"
    assert writes.are_quiet([process.pid], 3.1 + QUIET_SECONDS)


def save(out: Path, step: int, **sizes: int) -> Path:
    folder = out / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    for name, n_bytes in sizes.items():
        (folder / name).write_bytes(bytes(n_bytes))
    return folder


@pytest.mark.parametrize(
    ("made", "is_half"),
    [
        ({}, True),
        ({"config": 2}, True),
        ({"config": 2, "model": 100}, True),
        ({"config": 2, "model": 4000}, True),
        ({"config": 2, "model": 100, "state": 5}, True),
        ({"config": 2, "model": 4000, "state": 4}, False),
        ({"config": 2, "model": 5000, "state": 5, "random_1": 9}, False),
    ],
)
def test_a_checkpoint_that_lacks_what_the_one_before_has_is_half(
    out: Path, made: dict[str, int], is_half: bool
) -> None:
    before, newest = save(out, 1, config=2, model=4000, state=5), save(out, 2, **made)
    writes = Writes(0.0, (str(out),))
    assert writes.are_quiet([], 10.0) != is_half
    for seconds, folder in enumerate((newest, before)):
        os.utime(folder, (1.0, time.time() - HALF_SECONDS - seconds))
    assert writes.are_quiet([], 20.0), "it stays as it is"


def test_files_that_are_numbered_by_process_are_alike(out: Path) -> None:
    save(out, 1, model=100, random_0=1, random_1=1)
    save(out, 2, model=100, random_0=1)
    assert not Folders([str(out)]).has_half()


def test_the_first_checkpoint_and_what_is_named_otherwise_are_no_half_ones(out: Path) -> None:
    (out / "logs").mkdir()
    assert not Folders([str(out), str(out / "nothing")]).has_half()
    (out / "checkpoint-1").rmdir()
    save(out, 2)
    assert not Folders([str(out)]).has_half()


def test_the_folders_of_checkpoints_are_learned(tmp_path: Path) -> None:
    if tmp_path.stat().st_dev == Path("/dev/shm").stat().st_dev:
        pytest.skip("what is written to memory is not counted")
    folder = tmp_path / "out" / "checkpoint-1"
    folder.mkdir(parents=True)
    watch = CheckpointWatch()
    watch.look([os.getpid()], 1.0)
    with (folder / "model").open("wb") as file:
        file.write(bytes(500_000))
        file.flush()
        watch.look([os.getpid()], 1.5)
    found = watch.folders(["/elsewhere"], tmp_path)
    assert found[0] == "/elsewhere"
    assert str(tmp_path / "out") in found
    assert str(tmp_path / "out") not in watch.folders([], tmp_path / "out"), "other jobs may run there"


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
