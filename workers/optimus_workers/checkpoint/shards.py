"""The files of a checkpoint: one server's range of the parameters and of the optimizer's state, as safetensors."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from optimus_workers.checkpoint.manifest import sha256_of, sync_directory
from optimus_workers.wire.messages import ShardFile


def section_name(section: int) -> str:
    """Section 0 is the parameters, the others are the optimizer's."""
    return "parameters" if section == 0 else f"state_{section}"


def write_shard(directory: Path, epoch: int, version: int, first: int, sections: list[Tensor]) -> ShardFile:
    """Write the range that begins at float `first`; on return it is on disk. Raises `OSError`."""
    directory.mkdir(parents=True, exist_ok=True)
    end = first + len(sections[0])
    path = directory / f"v{version}-e{epoch}-{first}-{end}.safetensors"
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        save_file({section_name(index): section for index, section in enumerate(sections)}, temporary)
    except SafetensorError as error:  # its own name for what the system refused
        raise OSError(f"cannot write {path.name}: {error}") from error
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(directory)
    return ShardFile(first, end, path.name, path.stat().st_size, sha256_of(path))


def read_shard(directory: Path, name: str, file_first: int, first: int, end: int, n_sections: int) -> list[Tensor]:
    """[first, end) of each section of a file whose range begins at `file_first`. Raises `OSError`."""
    path = directory / Path(name).name
    try:
        with safe_open(path, framework="pt") as file:
            return [
                file.get_slice(section_name(index))[first - file_first : end - file_first].to(torch.float32)
                for index in range(n_sections)
            ]
    except SafetensorError as error:
        raise OSError(f"cannot read {path.name}: {error}") from error
