"""Checkpoints: whole or not there, two of them, readable in other pieces than they were written in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optimus_workers.checkpoint.manifest import Manifest, newest_manifest, write_manifest
from optimus_workers.checkpoint.shards import read_shard, write_shard
from optimus_workers.ranges import server_ranges
from optimus_workers.wire.messages import TaskProfile, UpdateRule

N_FLOATS = 160
PROFILE = TaskProfile(150, N_FLOATS, N_FLOATS, 100, 10, 4, UpdateRule("sgd", 0.9, False, 0.0, (0.9, 0.999), 1e-8))


def sections(version: int) -> list[torch.Tensor]:
    return [torch.arange(N_FLOATS) + 1000.0 * version, -torch.arange(N_FLOATS).float()]


def save(directory: Path, version: int, n_servers: int) -> Manifest:
    files = [
        write_shard(directory, 1, version, first, [section[first:end] for section in sections(version)])
        for first, end in server_ranges(N_FLOATS, n_servers)
    ]
    manifest = Manifest(version, 1, PROFILE, tuple(files))
    write_manifest(directory, manifest)
    return manifest


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    manifests = [save(tmp_path, version, n_servers) for version, n_servers in ((1, 2), (20, 3), (300, 1))]
    assert newest_manifest(tmp_path) == (manifests[-1], [])
    names = {path.name for path in tmp_path.glob("*.safetensors")}
    assert names == {file.name for manifest in manifests[1:] for file in manifest.files}


@pytest.mark.parametrize("n_readers", [1, 2, 5])
def test_any_number_of_servers_can_read_it(tmp_path: Path, n_readers: int) -> None:
    manifest = save(tmp_path, 7, 3)
    for first, end in server_ranges(N_FLOATS, n_readers):
        parts = []
        for file in manifest.files:
            start, stop = max(first, file.first), min(end, file.end)
            if start < stop:
                parts.append(read_shard(tmp_path, file.name, file.first, start, stop, 2))
        whole = [torch.cat(section) for section in zip(*parts, strict=True)]
        assert all(torch.equal(read, written[first:end]) for read, written in zip(whole, sections(7), strict=True))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_one_is_passed_over_for_the_one_before(tmp_path: Path, damage: str) -> None:
    before, newest = save(tmp_path, 1, 2), save(tmp_path, 2, 2)
    path = tmp_path / newest.files[1].name
    content = path.read_bytes()
    match damage:
        case "flip":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "truncate":
            path.write_bytes(content[:-8])
        case "remove":
            path.unlink()
        case "manifest":
            manifest = max(tmp_path.glob("manifest-*.json"))
            manifest.write_bytes(manifest.read_bytes()[:40])
    found, complaints = newest_manifest(tmp_path)
    assert found == before
    assert len(complaints) == 1
    save(tmp_path, 3, 1)
    assert newest_manifest(tmp_path)[0] is not None


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert newest_manifest(tmp_path / "nowhere") == (None, [])


def test_a_manifest_that_does_not_cover_the_vector_is_none(tmp_path: Path) -> None:
    manifest = save(tmp_path, 1, 2)
    gap = Manifest(2, 1, PROFILE, manifest.files[:1])
    assert not gap.is_whole
    with pytest.raises(AssertionError):
        write_manifest(tmp_path, gap)


def test_files_that_cannot_be_written_or_read_are_system_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        write_shard(tmp_path / "file", 1, 1, 0, sections(1))
    with pytest.raises(OSError):
        read_shard(tmp_path, "missing.safetensors", 0, 0, 16, 1)
    (tmp_path / "bad.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(OSError, match="cannot read"):
        read_shard(tmp_path, "bad.safetensors", 0, 0, 16, 1)
