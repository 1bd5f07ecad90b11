"""Event files as TensorBoard's own writers make them, and files that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.script.channels.tensorboard import Scalar, TensorBoardFiles, log_folders, scalars


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
    path = tmp_path / "runs" / "one" / "events.out.tfevents.1.host"
    path.parent.mkdir(parents=True)
    first = record(event(1e10, 5, simple("train/loss", 0.5), simple("eval/accuracy", 0.75), simple("train/epoch", 1.5)))
    second = record(event(1e10 + 1, 6, tensor("train/loss", 0.25)))
    path.write_bytes(first + second[:-3])
    files = TensorBoardFiles(tmp_path, since=0.0)
    (reading,) = files.read()
    assert (reading.step, reading.loss, reading.epoch, reading.at) == (5, 0.5, 1.5, 1e10)
    assert dict(reading.metrics) == {"eval/accuracy": 0.75}
    assert files.read() == []
    path.write_bytes(first + second)
    (reading,) = files.read()
    assert (reading.step, reading.loss) == (6, 0.25)


def test_what_was_logged_before_is_of_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(record(event(100.0, 5, simple("loss", 0.5))) + record(event(2e9, 6, simple("loss", 0.4))))
    assert [reading.step for reading in TensorBoardFiles(tmp_path, since=1000.0).read()] == [6]


def test_the_writer_of_tensorboard_is_understood(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        for step in (1, 2, 3):
            writer.add_scalar("Loss/train", 1.0 / step, step)
            writer.add_scalar("Loss/val", 2.0 / step, step)
        writer.add_scalar("lr", 0.1, 3, new_style=True)
    found = TensorBoardFiles(tmp_path, since=0.0).read()
    assert [(each.step, each.loss) for each in found] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert found[-1].learning_rate == pytest.approx(0.1)


def test_folders_are_those_that_a_command_names() -> None:
    command = ["python", "train.py", "--output_dir", "out", "--log-dir=logs", "--lr", "1"]
    assert log_folders(command, {"TENSORBOARD_LOGGING_DIR": "/tb"}) == (
        *("runs", "lightning_logs", "/tb", "out/runs", "logs", "logs/runs"),
    )
    assert log_folders(["python", "train.py", "--output-dir"], {}) == ("runs", "lightning_logs")


def test_a_folder_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert TensorBoardFiles(tmp_path / "nowhere", since=0.0).read() == []


@given(st.binary(max_size=400))
def test_any_bytes_are_read(content: bytes) -> None:
    found, n_bytes = scalars(content)
    assert 0 <= n_bytes <= len(content)
    assert all(isinstance(each, Scalar) for each in found)


@given(st.binary(max_size=120))
def test_any_event_is_read(content: bytes) -> None:
    _, n_bytes = scalars(record(content))
    assert n_bytes == len(record(content))
