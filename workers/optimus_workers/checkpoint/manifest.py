"""The manifest of a checkpoint: which files make up which version. A checkpoint exists once its manifest does.

    JOB_DIRECTORY/checkpoints/
        manifest-000000000240.json            {"version": 240, "files": [{"name": ..., "sha256": ...}, ...], ...}
        v240-e3-0-131072.safetensors          range [0, 131072): parameters and the optimizer's state
        v240-e3-131072-262144.safetensors

or the same names below a URL (see `storage`). A manifest is written when all its files are there; the last two
checkpoints are kept, and the older one is used when the newer one turns out to be damaged. Needs neither torch nor
numpy.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from optimus_workers.checkpoint.storage import Storage, StorageAway
from optimus_workers.errors import WireError
from optimus_workers.wire.codec import decode_line, encode_line
from optimus_workers.wire.values import ShardFile, Source, TaskProfile

log = logging.getLogger(__name__)

MANIFEST_NAME = re.compile(r"manifest-\d{12,}\.json")
BLOCK_BYTES = 8 * 2**20
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
    def as_origin(self) -> tuple[Source, ...]:
        """For another job, which starts from the parameters as its version 0."""
        return tuple(Source(file.first, file.end, 0, file=file.name, is_origin=True) for file in self.files)

    @property
    def is_whole(self) -> bool:
        """Whether the files cover the whole vector without a gap."""
        ends = [0, *(file.end for file in self.files)]
        return [file.first for file in self.files] == ends[:-1] and ends[-1] == self.profile.total_floats


def parameter_mismatch(saved: TaskProfile, own: TaskProfile) -> str | None:
    """Why a task cannot start from parameters that another one saved, in words; None when it can.

    Number and layout are compared, not what the parameters mean: two models of the same shape look alike.
    """
    if saved.n_parameters != own.n_parameters:
        return f"its model has {saved.n_parameters} parameters, this task's has {own.n_parameters}"
    if (saved.parameter_floats, saved.total_floats) != (own.parameter_floats, own.total_floats):
        buffers = [each.total_floats - each.parameter_floats for each in (saved, own)]
        return (
            f"its model keeps {saved.parameter_floats} floats of parameters and {buffers[0]} of buffers, "
            f"this task's keeps {own.parameter_floats} and {buffers[1]}"
        )
    return None


def manifest_name(version: int) -> str:
    # Zero-padded, so that the order of names is the order of versions.
    return f"manifest-{version:012d}.json"


def write_manifest(storage: Storage, manifest: Manifest) -> str:
    """Make the checkpoint exist, then remove all but the last two; where it is. Raises `OSError`."""
    assert manifest.is_whole, "a manifest is written when all files are there"
    name = manifest_name(manifest.version)
    storage.write(name, lambda path: _write(path, encode_line(manifest)))
    try:
        _prune(storage, manifest)
    except OSError as error:
        log.warning("old checkpoints could not be removed: %s", error)  # the new one is there nevertheless
    return storage.location(name)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def newest_manifest(storage: Storage) -> tuple[Manifest | None, list[str]]:
    """The newest undamaged checkpoint, and what was wrong with those that were passed over.

    Raises `StorageAway` when that cannot be found out now.
    """
    complaints: list[str] = []
    for name in _manifests(storage):
        try:
            manifest = decode_line(storage.read(name), {"Manifest": Manifest})
            _verify(storage, manifest)
        except StorageAway:
            raise
        except (OSError, WireError) as error:
            complaints.append(f"{name}: {error}")
        else:
            return manifest, complaints
    return None, complaints


def _manifests(storage: Storage) -> list[str]:
    """Names of manifests, newest first."""
    return sorted((name for name in storage.names() if MANIFEST_NAME.fullmatch(name)), reverse=True)


def _verify(storage: Storage, manifest: Manifest) -> None:
    if not manifest.is_whole:
        raise WireError("its files do not cover the whole vector")
    for file in manifest.files:
        if storage.size(file.name) != file.n_bytes or sha256_of(storage, file.name, file.n_bytes) != file.sha256:
            raise WireError(f"{file.name} is damaged")


def _prune(storage: Storage, written: Manifest) -> None:
    """Remove abandoned and old manifests first, then the files that no manifest of those kept names."""
    manifests = _manifests(storage)
    for name in [name for name in manifests if name > manifest_name(written.version)]:
        if all(later.epoch < written.epoch for later in _readable(storage, [name])):
            # Training went back behind it, for it was damaged: it would be taken for the newest, and counted as one.
            storage.remove(name)
            manifests.remove(name)
    for name in manifests[KEPT_CHECKPOINTS:]:
        storage.remove(name)
    kept = list(_readable(storage, manifests[:KEPT_CHECKPOINTS]))
    oldest = min((manifest.version for manifest in kept), default=0)
    named = {file.name for manifest in kept for file in manifest.files}
    for name in storage.names():
        # Newer files that no manifest names yet are being written.
        if name.endswith(".safetensors") and name not in named and _version_of(name) < oldest:
            storage.remove(name)


def _readable(storage: Storage, names: list[str]) -> Iterator[Manifest]:
    for name in names:
        try:
            yield decode_line(storage.read(name), {"Manifest": Manifest})
        except StorageAway:
            raise
        except (OSError, WireError):
            continue  # a damaged one protects no files


def _version_of(name: str) -> int:
    digits = name[1:].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def sha256_of(storage: Storage, name: str, n_bytes: int) -> str:
    """The checksum of a file, block by block: the file may be larger than memory."""
    digest = hashlib.sha256()
    for first in range(0, n_bytes, BLOCK_BYTES):
        digest.update(storage.read(name, first, min(first + BLOCK_BYTES, n_bytes)))
    return digest.hexdigest()
