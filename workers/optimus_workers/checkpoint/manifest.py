"""The manifest of a checkpoint: which files make up which version. A checkpoint exists once its manifest does.

    JOB_DIRECTORY/checkpoints/
        manifest-000000000240.json            {"version": 240, "files": [{"name": ..., "sha256": ...}, ...], ...}
        v240-e3-0-131072.safetensors          range [0, 131072): parameters and the optimizer's state
        v240-e3-131072-262144.safetensors

Manifests are replaced atomically; the last two checkpoints are kept, and the older one is used when the newer one
turns out to be damaged. Needs neither torch nor numpy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from optimus_workers.wire.codec import decode_line, encode_line
from optimus_workers.wire.errors import WireError
from optimus_workers.wire.messages import ShardFile, Source, TaskProfile

KEPT_CHECKPOINTS = 2
"""The newest, and one more in case that one is damaged."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One complete checkpoint."""

    version: int
    epoch: int
    """The membership epoch that wrote it."""
    profile: TaskProfile
    files: tuple[ShardFile, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(Source(file.first, file.end, self.version, file=file.name) for file in self.files)

    @property
    def is_whole(self) -> bool:
        """Whether the files cover the whole vector without a gap."""
        ends = [0, *(file.end for file in self.files)]
        return [file.first for file in self.files] == ends[:-1] and ends[-1] == self.profile.total_floats


def checkpoint_directory(job_directory: Path) -> Path:
    return job_directory / "checkpoints"


def manifest_path(directory: Path, version: int) -> Path:
    # Zero-padded, so that the order of names is the order of versions.
    return directory / f"manifest-{version:012d}.json"


def write_manifest(directory: Path, manifest: Manifest) -> Path:
    """Make the checkpoint exist, then remove all but the last two. Raises `OSError`."""
    assert manifest.is_whole, "a manifest is written when all files are there"
    path = manifest_path(directory, manifest.version)
    write_atomically(path, encode_line(manifest))
    _prune(directory)
    return path


def newest_manifest(directory: Path) -> tuple[Manifest | None, list[str]]:
    """The newest undamaged checkpoint, and what was wrong with those that were passed over."""
    complaints: list[str] = []
    for path in sorted(directory.glob("manifest-*.json"), reverse=True):
        try:
            manifest = decode_line(path.read_bytes(), {"Manifest": Manifest})
            _verify(directory, manifest)
        except (OSError, WireError) as error:
            complaints.append(f"{path.name}: {error}")
        else:
            return manifest, complaints
    return None, complaints


def _verify(directory: Path, manifest: Manifest) -> None:
    if not manifest.is_whole:
        raise WireError("its files do not cover the whole vector")
    for file in manifest.files:
        path = directory / Path(file.name).name
        if path.stat().st_size != file.n_bytes or sha256_of(path) != file.sha256:
            raise WireError(f"{file.name} is damaged")


def _prune(directory: Path) -> None:
    """Remove old manifests first, then the files that no manifest of those kept names."""
    paths = sorted(directory.glob("manifest-*.json"), reverse=True)
    for path in paths[KEPT_CHECKPOINTS:]:
        path.unlink(missing_ok=True)
    kept = list(_readable(paths[:KEPT_CHECKPOINTS]))
    oldest = min((manifest.version for manifest in kept), default=0)
    named = {file.name for manifest in kept for file in manifest.files}
    for path in directory.glob("v*.safetensors"):
        # Newer files that no manifest names yet are being written.
        if path.name not in named and _version_of(path) < oldest:
            path.unlink(missing_ok=True)


def _readable(paths: list[Path]) -> Iterator[Manifest]:
    for path in paths:
        try:
            yield decode_line(path.read_bytes(), {"Manifest": Manifest})
        except (OSError, WireError):
            continue  # a damaged one protects no files


def _version_of(path: Path) -> int:
    digits = path.name[1:].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file in one step that survives a power cut. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
