"""Event files as TensorBoard's own writers make them, and files that are none."""

from __future__ import annotations

import math
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.script.channels.listener import Channels
from optimus_workers.script.channels.tensorboard import Scalar, TensorBoardFiles, Writers, log_folders, scalars

NAME = f"events.out.tfevents.1.{socket.gethostname()}.{os.getpid()}.0"
"""Of a file that these tests write."""


def files_in(directory: Path, since: float) -> TensorBoardFiles:
    """Those that the process of these tests writes."""
    return TensorBoardFiles(directory, since, Writers(lambda: [os.getpid()], lambda _: False))


def record(event: bytes) -> bytes:
    return struct.pack("<Q4x", len(event)) + event + b"\0\0\0\0"


def field(number: int, payload: bytes) -> bytes:
    assert len(payload) < 128
    return bytes([number << 3 | 2, len(payload)]) + payload


def event(at: float, step: int, *values: bytes) -> bytes:
    summary = b"".join(field(1, value) for value in values)
    return b"\x09" + struct.pack("<d", at) + b"\x10" + bytes([step]) + field(5, summary)


def simple(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + field(8, b"\x08\x01" + field(4, struct.pack("<f", value)))


def test_scalars_of_both_forms_are_read_and_a_torn_record_waits(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "one" / NAME
    path.parent.mkdir(parents=True)
    first = record(event(1e10, 5, simple("train/loss", 0.5), simple("eval/accuracy", 0.75), simple("train/epoch", 1.5)))
    second = record(event(1e10 + 1, 6, tensor("train/loss", 0.25)))
    path.write_bytes(first + second[:-3])
    files = files_in(tmp_path, since=0.0)
    (reading,) = files.read()
    assert (reading.step, reading.loss, reading.epoch, reading.at) == (5, 0.5, 1.5, 1e10)
    assert dict(reading.metrics) == {"eval/accuracy": 0.75}
    assert files.read() == []
    path.write_bytes(first + second)
    (reading,) = files.read()
    assert (reading.step, reading.loss) == (6, 0.25)


def test_what_was_logged_before_is_of_other_processes(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(record(event(100.0, 5, simple("loss", 0.5))) + record(event(2e9, 6, simple("loss", 0.4))))
    assert [reading.step for reading in files_in(tmp_path, since=1000.0).read()] == [6]


def test_the_writer_of_tensorboard_is_understood(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in (1, 2, 3):
            writer.add_scalar("Loss/train", 1.0 / step, step)
            writer.add_scalar("Loss/val", 2.0 / step, step)
        writer.add_scalar("lr", 0.1, 3, new_style=True)
    found = files_in(tmp_path, since=0.0).read()
    assert [(each.step, each.loss) for each in found] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert found[-1].learning_rate == pytest.approx(0.1)


WAITS = "import sys; print(flush=True); sys.stdin.read()"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that end with the test, each once it has done the first lines of its code."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(code: str, **variables: str) -> subprocess.Popen[bytes]:
        whole, pipe = [sys.executable, "-c", f"{code}\n{WAITS}"], subprocess.PIPE
        process = subprocess.Popen(whole, env={**os.environ, **variables}, stdin=pipe, stdout=pipe)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.communicate()


TORCH_NAMES = f"path = f'{{folder}}/events.out.tfevents.1.{socket.gethostname()}.{{os.getpid()}}.0'"
TENSORBOARDX_NAMES = f"path = f'{{folder}}/events.out.tfevents.1.{socket.gethostname()}'"


def writing(folder: Path, *, names: str, content: bytes) -> str:
    """Code that makes an event file, and has it open only if its name does not tell the process."""
    folder.mkdir(parents=True)
    keeps = names == TENSORBOARDX_NAMES
    code = f"import os; folder = {str(folder)!r}; {names}; file = open(path, 'wb', 0); file.write({content!r})"
    return code if keeps else f"{code}; file.close()"


@pytest.mark.parametrize("names", [TORCH_NAMES, TENSORBOARDX_NAMES], ids=["torch", "tensorboardX"])
def test_what_another_job_logs_in_the_same_folder_is_not_of_this_one(tmp_path: Path, start: Start, names: str) -> None:
    """Two jobs of one directory, and the other one's loss is no number."""
    mine = record(event(1e10, 5, simple("loss", 0.5)))
    other = record(event(1e10, 90, simple("loss", math.nan)))
    own = start(writing(tmp_path / "a", names=names, content=mine))
    start(writing(tmp_path / "b", names=names, content=other))
    files = TensorBoardFiles(tmp_path, 0.0, Writers(lambda: [own.pid], lambda _: False))
    assert [(each.step, each.loss) for each in files.read()] == [(5, 0.5)]
    own.communicate()
    (path,) = (tmp_path / "a").iterdir()
    path.write_bytes(mine + record(event(1e10, 6, simple("loss", 0.25))))
    assert [(each.step, each.loss) for each in files.read()] == [(6, 0.25)], "what it logged last"


def test_what_the_processes_of_a_run_start_logs_for_it(tmp_path: Path, start: Start) -> None:
    """A shell's child; one that a launcher had another process start is known by its variables."""
    content = [record(event(1e10, step, simple("loss", 0.5))) for step in (1, 2, 3)]
    child = writing(tmp_path / "a", names=TORCH_NAMES, content=content[0]) + "\n" + WAITS
    code = "import subprocess, sys; own = subprocess.Popen([sys.executable, '-c', {!r}], stdout=subprocess.PIPE)"
    shell = start(f"{code.format(child)}; own.stdout.readline()")
    channels = Channels(lambda _: None, tmp_path)
    try:
        variables = channels.variables({})
        start(writing(tmp_path / "b", names=TORCH_NAMES, content=content[1]), **variables)
        start(writing(tmp_path / "c", names=TORCH_NAMES, content=content[2]))
        files = TensorBoardFiles(tmp_path, 0.0, Writers(lambda: [shell.pid], channels.are_told_to))
        assert [each.step for each in files.read()] == [1, 2]
    finally:
        channels.close()


def test_folders_are_those_that_a_command_names() -> None:
    command = ["python", "train.py", "--output_dir", "out", "--log-dir=logs", "--lr", "1"]
    assert log_folders(command, {"TENSORBOARD_LOGGING_DIR": "/tb"}) == (
        *("runs", "lightning_logs", "/tb", "out/runs", "logs", "logs/runs"),
    )
    assert log_folders(["python", "train.py", "--output-dir"], {}) == ("runs", "lightning_logs")


def test_a_folder_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert files_in(tmp_path / "nowhere", since=0.0).read() == []


@given(st.binary(max_size=400))
def test_any_bytes_are_read(content: bytes) -> None:
    found, n_bytes = scalars(content)
    assert 0 <= n_bytes <= len(content)
    assert all(isinstance(each, Scalar) for each in found)


@given(st.binary(max_size=120))
def test_any_event_is_read(content: bytes) -> None:
    _, n_bytes = scalars(record(content))
    assert n_bytes == len(record(content))
