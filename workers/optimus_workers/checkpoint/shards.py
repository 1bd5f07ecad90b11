"""The files of a checkpoint: one server's range of the parameters and of the optimizer's state, as safetensors."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from optimus_workers.checkpoint.storage import Storage
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.values import ShardFile

FLOAT_BYTES = 4
LENGTH = struct.Struct("<Q")
"""A safetensors file begins with the length of its header (JSON), its numbers follow that."""
MAX_HEADER_BYTES = 1_048_576


def section_name(section: int) -> str:
    """Section 0 is the parameters, the others are the optimizer's."""
    return "parameters" if section == 0 else f"state_{section}"


def write_shard(storage: Storage, epoch: int, version: int, first: int, sections: list[Floats]) -> ShardFile:
    """Write the range that begins at float `first`; on return it is there to stay. Raises `OSError`."""
    end = first + len(sections[0])
    name = f"v{version}-e{epoch}-{first}-{end}.safetensors"
    written: dict[str, Any] = {}

    def write_to(path: Path) -> None:
        try:
            save_file({section_name(index): section for index, section in enumerate(sections)}, path)
        except SafetensorError as error:  # its own name for what the system refused
            raise OSError(f"cannot write {name}: {error}") from error
        with path.open("rb") as file:
            written.update(sha256=hashlib.file_digest(file, "sha256").hexdigest(), n_bytes=path.stat().st_size)

    storage.write(name, write_to)
    return ShardFile(first, end, name, written["n_bytes"], written["sha256"])


def read_shard(storage: Storage, name: str, file_first: int, first: int, end: int, n_sections: int) -> list[Floats]:
    """[first, end) of each section of a file whose range begins at `file_first`, and no more. Raises `OSError`."""
    header, begin = _read_header(storage, name)
    return [_read_section(storage, name, header, begin, file_first, (first, end), index) for index in range(n_sections)]


def _read_header(storage: Storage, name: str) -> tuple[dict[str, Any], int]:
    """The header of a file, and where the numbers begin."""
    prefix = storage.read(name, 0, LENGTH.size)
    (length,) = LENGTH.unpack(prefix) if len(prefix) == LENGTH.size else (0,)
    if not 0 < length <= MAX_HEADER_BYTES:
        raise OSError(f"cannot read {name}: not a safetensors file")
    begin = LENGTH.size + length
    try:
        header = json.loads(storage.read(name, LENGTH.size, begin))
    except ValueError as error:
        raise OSError(f"cannot read {name}: {error}") from error
    if not isinstance(header, dict):
        raise OSError(f"cannot read {name}: its header is no object")
    return header, begin


def _read_section(
    storage: Storage, name: str, header: dict[str, Any], begin: int, file_first: int, part: tuple[int, int], index: int
) -> Floats:
    match header.get(section_name(index)):
        case {"dtype": "F32", "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise OSError(f"cannot read {name}: it has no {section_name(index)} in float32")
    first, end = (begin + start + FLOAT_BYTES * (bound - file_first) for bound in part)
    data = storage.read(name, first, end) if begin + start <= first <= end <= begin + stop else b""
    if len(data) != FLOAT_BYTES * (part[1] - part[0]):
        raise OSError(f"cannot read {name}: floats {part[0]} to {part[1]} are not in it")
    return np.frombuffer(data, np.float32)
