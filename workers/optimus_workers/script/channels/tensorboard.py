"""New scalars in TensorBoard's event files, read without TensorBoard.

An event file is a sequence of records: the length (8 bytes, little-endian), its checksum (4), the event, its checksum.
An event is a protocol buffer (tensorflow/core/util/event.proto): wall_time = 1 (double), step = 2 (varint), and
summary = 5; a summary has values = 1; a value: tag = 1, simple_value = 2 (float), tensor = 8; a tensor: dtype = 1,
tensor_content = 4, float_val = 5, double_val = 6. Checksums are not looked at: what is no event is skipped.
"""

from __future__ import annotations

import math
import re
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.protobuf import fields
from optimus_contract.readings.reading import Channel, Reading
from optimus_workers.script.checkpoints import open_files, with_children
from optimus_workers.script.folders import LOG_OPTIONS, named_folders

PATTERN = "events.out.tfevents.*"
MAX_FILES = 200
"""The newest that are read of a folder."""
MAX_RECORD_BYTES = 1_000_000
"""Larger ones are images and graphs."""
MAX_READ_BYTES = 8_000_000
"""Of one file by one call."""
_HEAD, _CHECKSUM_BYTES = struct.Struct("<Q4x"), 4
_LOSS = frozenset({"loss", "train loss", "training loss"})
_EVALUATED = ("eval", "val", "test")
_FLOAT_TYPE, _DOUBLE_TYPE = 1, 2


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value of one step."""

    tag: str
    step: int
    value: float
    at: float
    """POSIX seconds."""


def log_folders(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Where a command is likely to write event files: the usual folders, and those that it names."""
    found = ["runs", "lightning_logs", environment.get("TENSORBOARD_LOGGING_DIR", "")]
    for name, named in named_folders(command):
        found += [named, f"{named}/runs"] if name in LOG_OPTIONS else [f"{named}/runs"]
    return tuple(dict.fromkeys(each for each in found if each.strip("/")))


class Writers:
    """The processes of a run: which event files are theirs. Other jobs may log below the same folder at the same time.

    The writers of TensorBoard, torch and TensorFlow name a file by host and process, and need not keep it open;
    tensorboardX names no process, and keeps it open.
    """

    def __init__(self, processes: Callable[[], Iterable[int]], is_of_run: Callable[[int], bool]) -> None:
        """`processes`: those that the run was started as; `is_of_run`: whether another process, which none of them need
        have started, belongs to it."""
        self._processes, self._is_of_run = processes, is_of_run
        self._process = re.compile(rf"\.\d+\.{re.escape(socket.gethostname())}\.(\d+)\.\d+")

    def wrote(self, paths: Sequence[Path]) -> dict[Path, bool]:
        """Whether these event files are theirs; without those of which that is not known, or not yet."""
        if not paths:
            return {}
        own = with_children(self._processes())
        named = {path: int(found[1]) for path in paths if (found := self._process.search(path.name))}
        answers = {path: process in own or self._is_of_run(process) for path, process in named.items()}
        others = [path for path in paths if path not in named]
        opened = {key for process in own for key in open_files(process)} if others else set()
        for path in others:
            with suppress(OSError):
                status = path.stat()
                if (status.st_dev, status.st_ino) in opened:
                    answers[path] = True
        return answers


class TensorBoardFiles:
    """The event files below a folder that a run writes, each read on from where the last call ended. Never raises for
    what is in them."""

    def __init__(self, directory: Path, since: float, writers: Writers) -> None:
        """`since`: POSIX seconds; what was logged before is of other processes."""
        self._directory = directory
        self._since = since
        self._writers = writers
        self._is_own: dict[Path, bool] = {}
        """File → whether the run writes it, once that is known."""
        self._read: dict[Path, int] = {}
        """File → bytes read."""

    def read(self) -> list[Reading]:
        """What has been logged since the last call, by step."""
        by_step: dict[int, list[Scalar]] = {}
        for scalar in self._scalars():
            if scalar.at >= self._since and 0 <= scalar.step <= MAX_COUNT:
                by_step.setdefault(scalar.step, []).append(scalar)
        return [_reading(step, scalars) for step, scalars in sorted(by_step.items())]

    def _scalars(self) -> Iterator[Scalar]:
        try:
            files = sorted(self._directory.rglob(PATTERN), key=lambda path: path.stat().st_mtime)[-MAX_FILES:]
            new = [each for each in files if each not in self._is_own and each.stat().st_mtime >= self._since]
        except OSError:
            return
        self._is_own |= self._writers.wrote(new)
        for path in files:
            if not self._is_own.get(path, False):
                continue
            try:
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    content = file.read(MAX_READ_BYTES)
            except OSError:
                continue
            found, n_bytes = scalars(content)
            self._read[path] = self._read.get(path, 0) + n_bytes
            yield from found


def scalars(content: bytes) -> tuple[list[Scalar], int]:
    """The scalars of the whole records in `content`, and how many bytes these have: a torn last record waits."""
    found: list[Scalar] = []
    place = 0
    while place + _HEAD.size <= len(content):
        (length,) = _HEAD.unpack_from(content, place)
        end = place + _HEAD.size + length + _CHECKSUM_BYTES
        if end > len(content):
            if length > MAX_READ_BYTES:
                return found, len(content)  # no record: what follows cannot be found
            break
        if length <= MAX_RECORD_BYTES:
            with suppress(ValueError, struct.error):
                found += _event(content[place + _HEAD.size : end - _CHECKSUM_BYTES])
        place = end
    return found, place


def _reading(step: int, scalars: list[Scalar]) -> Reading:
    values = {scalar.tag: scalar.value for scalar in scalars}
    named = {_name(tag): value for tag, value in values.items()}
    return Reading(
        channel=Channel.TENSORBOARD,
        at=max(scalar.at for scalar in scalars),
        step=step,
        loss=next((value for name, value in named.items() if name in _LOSS), None),
        epoch=named.get("epoch"),
        learning_rate=next((named[name] for name in ("learning rate", "lr") if name in named), None),
        gradient_norm=named.get("grad norm"),
        metrics={
            tag: value
            for tag, value in values.items()
            if math.isfinite(value) and tag.replace("/", "_").lower().startswith(_EVALUATED)
        },
    )


def _name(tag: str) -> str:
    """`train/loss`, `Loss/train` and `train_loss` are one thing; an evaluation's figures keep their whole name."""
    words = tag.lower().replace("/", " ").replace("_", " ").split()
    if words and words[0] in _EVALUATED:
        return tag
    kept = [word for word in words if word not in ("train", "training")]
    return " ".join(kept)


# --- events ----------------------------------------------------------------------------------------------------------


def _event(message: bytes) -> list[Scalar]:
    at, step, summaries = 0.0, 0, list[bytes]()
    for number, value in fields(message):
        if number == 1 and isinstance(value, bytes):
            (at,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    if not math.isfinite(at):
        return []
    values = [value for each in summaries for number, value in fields(each) if number == 1]
    read = [_value(value) for value in values if isinstance(value, bytes)]
    return [Scalar(tag, step, number, at) for tag, number in read if tag and number is not None]


def _value(message: bytes) -> tuple[str, float | None]:
    tag, number = "", None
    for field, value in fields(message):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = value.decode(errors="replace")[:200]
        elif field == 2 and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif field == 8:
            number = _tensor(value)
    return tag, number


def _tensor(message: bytes) -> float | None:
    """The number of a tensor that has one."""
    kind, content, found = 0, b"", None
    for field, value in fields(message):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 4 and isinstance(value, bytes):
            content = value
        elif field in (5, 6) and isinstance(value, bytes):
            width = 4 if field == 5 else 8
            if len(value) == width:
                (found,) = struct.unpack("<f" if field == 5 else "<d", value)
    if found is None and kind == _FLOAT_TYPE and len(content) == 4:
        (found,) = struct.unpack("<f", content)
    if found is None and kind == _DOUBLE_TYPE and len(content) == 8:
        (found,) = struct.unpack("<d", content)
    return found
