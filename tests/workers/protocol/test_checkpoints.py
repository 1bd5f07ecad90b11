"""Checkpoints: whole or not there, two of them, readable in other pieces than they were written in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.workers.protocol.object_store import ObjectStore

from optimus_workers.checkpoint.manifest import Manifest, manifest_name, newest_manifest, write_manifest
from optimus_workers.checkpoint.shards import read_shard, write_shard
from optimus_workers.checkpoint.storage import (
    LocalStorage,
    Storage,
    StorageAway,
    StorageUnusable,
    UrlStorage,
    open_storage,
)
from optimus_workers.coordinator.checkpoint_io import put_manifest
from optimus_workers.wire.memory import Floats
from optimus_workers.wire.ranges import server_ranges
from optimus_workers.wire.values import TaskProfile, UpdateRule

N_FLOATS = 160
PROFILE = TaskProfile(150, N_FLOATS, N_FLOATS, 100, 10, 4, UpdateRule("sgd", 0.9, False, 0.0, (0.9, 0.999), 1e-8))


def sections(version: int) -> list[Floats]:
    numbers = np.arange(N_FLOATS, dtype=np.float32)
    return [numbers + np.float32(1000.0 * version), -numbers]


@pytest.fixture(params=["directory", "url", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "directory":
        return LocalStorage(tmp_path)
    if request.param == "s3":
        store: ObjectStore = request.getfixturevalue("object_store")
        return store.storage(tmp_path / "scratch")
    return UrlStorage(f"memory://{tmp_path.name}-{uuid4().hex}/job", tmp_path / "scratch")


def save(storage: Storage, version: int, n_servers: int, epoch: int = 1) -> Manifest:
    manifest = save_files(storage, version, n_servers, epoch)
    write_manifest(storage, manifest)
    return manifest


def save_files(storage: Storage, version: int, n_servers: int, epoch: int = 1) -> Manifest:
    files = [
        write_shard(storage, epoch, version, first, [section[first:end] for section in sections(version)])
        for first, end in server_ranges(N_FLOATS, n_servers)
    ]
    return Manifest(version, epoch, PROFILE, tuple(files))


def test_the_newest_two_are_kept(storage: Storage) -> None:
    manifests = [save(storage, version, n_servers) for version, n_servers in ((1, 2), (20, 3), (300, 1))]
    assert newest_manifest(storage) == (manifests[-1], [])
    names = {name for name in storage.names() if name.endswith(".safetensors")}
    assert names == {file.name for manifest in manifests[1:] for file in manifest.files}


@pytest.mark.parametrize("n_readers", [1, 2, 5])
def test_any_number_of_servers_can_read_it(storage: Storage, n_readers: int) -> None:
    manifest = save(storage, 7, 3)
    for first, end in server_ranges(N_FLOATS, n_readers):
        parts = []
        for file in manifest.files:
            start, stop = max(first, file.first), min(end, file.end)
            if start < stop:
                parts.append(read_shard(storage, file.name, file.first, start, stop, 2))
        whole = [np.concatenate(section) for section in zip(*parts, strict=True)]
        assert all(np.array_equal(read, written[first:end]) for read, written in zip(whole, sections(7), strict=True))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_one_is_passed_over_for_the_one_before(storage: Storage, damage: str) -> None:
    before, newest = save(storage, 1, 2), save(storage, 2, 2)
    name = newest.files[1].name
    content = storage.read(name)
    match damage:
        case "flip":
            overwrite(storage, name, content[:-1] + bytes([content[-1] ^ 1]))
        case "truncate":
            overwrite(storage, name, content[:-8])
        case "remove":
            storage.remove(name)
        case "manifest":
            manifest = max(name for name in storage.names() if name.startswith("manifest-"))
            overwrite(storage, manifest, storage.read(manifest)[:40])
    found, complaints = newest_manifest(storage)
    assert found == before
    assert len(complaints) == 1
    save(storage, 3, 1)
    assert newest_manifest(storage)[0] is not None


@pytest.mark.parametrize("damage", ["file", "manifest"])
def test_what_training_went_back_behind_is_not_the_newest_any_more(storage: Storage, damage: str) -> None:
    before, damaged = save(storage, 10, 2), save(storage, 30, 2)
    name = damaged.files[0].name if damage == "file" else manifest_name(30)
    whole = storage.read(name)
    overwrite(storage, name, whole[:-9])
    assert newest_manifest(storage)[0] == before
    after = save(storage, 20, 3, epoch=2)
    assert newest_manifest(storage) == (after, []), "the damaged one is not looked at"
    overwrite(storage, name, whole)
    names = {each for each in storage.names() if each.startswith("manifest-")}
    assert names - {name} == {manifest_name(10), manifest_name(20)}, "two that are good"


def test_who_is_late_removes_nothing_newer(storage: Storage) -> None:
    newest = save(storage, 40, 2, epoch=3)
    save(storage, 35, 2, epoch=2)
    assert newest_manifest(storage) == (newest, [])


def test_a_manifest_that_takes_long_keeps_its_files_beside_the_next(tmp_path: Path) -> None:
    class Slow(LocalStorage):
        something_is_removed = threading.Event()

        def write(self, name: str, write_to: Callable[[Path], None]) -> None:
            if name == manifest_name(0):
                self.something_is_removed.wait(0.5)
            super().write(name, write_to)

        def remove(self, name: str) -> None:
            super().remove(name)
            self.something_is_removed.set()

    storage = Slow(tmp_path)
    manifests = [save_files(storage, version, 2) for version in (0, 1)]

    async def put() -> None:
        turns = asyncio.Lock()
        await asyncio.gather(*(put_manifest(storage, each, turns) for each in manifests))

    asyncio.run(put())
    names = set(storage.names())
    assert names == {manifest_name(each.version) for each in manifests} | {
        file.name for each in manifests for file in each.files
    }


def test_nothing_is_found_where_nothing_is(storage: Storage) -> None:
    assert newest_manifest(storage) == (None, [])


def test_a_manifest_that_does_not_cover_the_vector_is_none(storage: Storage) -> None:
    manifest = save(storage, 1, 2)
    gap = Manifest(2, 1, PROFILE, manifest.files[:1])
    assert not gap.is_whole
    with pytest.raises(AssertionError):
        write_manifest(storage, gap)


def test_a_part_of_a_file_may_be_empty_or_beyond_its_end(storage: Storage) -> None:
    overwrite(storage, "file", b"0123456789")
    overwrite(storage, "nothing", b"")
    assert storage.read("file", 2, 4) == b"23"
    assert storage.read("file", 8, 20) == b"89"
    assert storage.read("file", 4, 4) == storage.read("file", 10, 20) == storage.read("file", 15, 20) == b""
    assert storage.read("nothing") == storage.read("nothing", 0, 8) == b""
    assert (storage.size("file"), storage.size("nothing")) == (10, 0)
    manifest = save(storage, 7, 1)
    assert [len(part) for part in read_shard(storage, manifest.files[0].name, 0, 16, 16, 2)] == [0, 0]


def test_files_that_cannot_be_written_or_read_are_system_errors(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        write_shard(LocalStorage(tmp_path / "file"), 1, 1, 0, sections(1))
    with pytest.raises(FileNotFoundError):
        read_shard(storage, "missing.safetensors", 0, 0, 16, 1)
    for content in (b"not safetensors at all", b"short", b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{}"):
        overwrite(storage, "bad.safetensors", content)
        with pytest.raises(OSError, match="cannot read"):
            read_shard(storage, "bad.safetensors", 0, 0, 16, 1)
    file = save(storage, 3, 1).files[0]
    with pytest.raises(OSError, match="floats 150 to 170 are not in it"):
        read_shard(storage, file.name, 0, 150, 170, 2)


def test_a_storage_that_is_away_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = UrlStorage(f"memory://away-{uuid4().hex}", tmp_path)
    save(storage, 1, 1)
    assert list(tmp_path.iterdir()) == [], "nothing is left of what was uploaded"

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("503 slow down")

    for call in ("ls", "cat_file", "size"):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, call, refuse)
            with pytest.raises(StorageAway, match="RuntimeError: 503 slow down"):
                newest_manifest(storage)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "rm_file", refuse)
        for version in (2, 3):
            save(storage, version, 1)  # what cannot be removed stays
    assert sum(name.startswith("manifest-") for name in storage.names()) == 3
    with pytest.raises(StorageUnusable, match="nonsense://bucket: Protocol not known"):
        newest_manifest(UrlStorage("nonsense://bucket", tmp_path))


def test_a_jobs_checkpoints_are_in_its_directory_or_below_its_url(tmp_path: Path) -> None:
    assert open_storage(None, "j-1", tmp_path).location("m") == str(tmp_path / "checkpoints" / "m")
    assert open_storage("s3://bucket/runs/", "j-1", tmp_path).location("../m") == "s3://bucket/runs/j-1/m"


def overwrite(storage: Storage, name: str, content: bytes) -> None:
    storage.write(name, lambda path: _write(path, content))


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
