"""Checkpoints in a store that speaks S3. What holds for any storage is tested there too, in `test_checkpoints`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, server, worker
from tests.workers.protocol.object_store import ObjectStore
from tests.workers.protocol.replay import Replay, final_sections, history
from tests.workers.protocol.test_checkpoints import overwrite, save

from optimus_workers.checkpoint.manifest import manifest_name, newest_manifest, write_manifest
from optimus_workers.checkpoint.storage import StorageAway, UrlStorage

ARGUMENTS: dict[str, Any] = {"kind": "sgd", "momentum": 0.9, "step_seconds": 0.005}
PART_BYTES = 5 * 2**20
"""The least that S3 takes as a part of an upload."""


def test_a_job_goes_on_from_the_checkpoint_before_the_damaged_one_on_another_size(
    make_job: Callable[..., Job], object_store: ObjectStore, tmp_path: Path
) -> None:
    url = f"{object_store.new_bucket()}/runs"
    storage = UrlStorage(f"{url}/job", tmp_path / "scratch")
    job = make_job(ARGUMENTS, checkpoint_url=url, checkpoint_seconds=1.0)
    job.scale(worker(0), server(0), server(1))
    first = job.wait_for("a checkpoint while it trains", lambda: newest_manifest(storage)[0])
    job.wait_for_step(first.version + 20)
    job.service.want([], "pause")
    assert {job.exit_code(name) for name in list(job.processes)} == {0}
    newest, complaints = newest_manifest(storage)
    assert newest is not None
    assert newest.version > first.version
    assert not complaints

    damaged = newest.files[1].name
    content = storage.read(damaged)
    overwrite(storage, damaged, content[:-1] + bytes([content[-1] ^ 1]))
    before, (complaint,) = newest_manifest(storage)
    assert before is not None
    assert damaged in complaint

    n_told = len(job.service.memberships)
    job.start_coordinator()
    job.scale(worker(0, 1), worker(1, 1), server(0, 1), server(1, 1), server(2, 1))
    job.wait_for_size(2, 3)
    resumed = job.service.memberships[n_told]  # without those who come later than others
    assert resumed["step"] == before.version
    assert resumed["lost_steps"] == newest.version - before.version
    assert "damaged checkpoint" in job.logs()
    result = job.finish()
    assert result["checkpoint"].startswith(f"{url}/job/manifest-")

    version, (parameters, momentum) = final_sections(job.directory, 2, storage)
    replay = Replay(tiny_training.make(**{**ARGUMENTS, "step_seconds": 0.0}), seed=5)
    replay.follow(history(job.directory), version)
    assert torch.equal(parameters, replay.vector)
    assert torch.equal(momentum, replay.state("momentum_buffer"))
    assert len([name for name in storage.names() if name.startswith("manifest-")]) == 2


def test_what_is_not_uploaded_whole_is_not_there(
    object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = object_store.storage(tmp_path / "scratch")
    manifest = save(storage, 1, 2)
    files = storage._files
    large = bytes(3 * PART_BYTES)
    put_file, call = type(files).put_file, type(files)._call_s3

    def in_parts(self: Any, local: str, path: str, **options: Any) -> None:
        put_file(self, local, path, chunksize=PART_BYTES, **options)

    async def fails_at_the_last(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        if method == "put_object" or options.get("PartNumber") == 3:
            raise ConnectionResetError("cut off")
        return await call(self, method, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(files), "put_file", in_parts)
        storage.write("large", lambda path: _fill(path, large))
        assert storage.size("large") == len(large)
        patch.setattr(type(files), "_call_s3", fails_at_the_last)
        for name in ("large", "other", manifest_name(2)):
            with pytest.raises(StorageAway, match="cut off"):
                storage.write(name, lambda path: _fill(path, large[1:]))
        with pytest.raises(StorageAway, match="cut off"):
            write_manifest(storage, manifest)
    assert storage.size("large") == len(large), "what was there stays as it was"
    assert set(storage.names()) == {"large", manifest_name(1), *(file.name for file in manifest.files)}
    assert newest_manifest(storage) == (manifest, [])
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_bucket_that_is_not_there_is_neither_empty_nor_made(object_store: ObjectStore, tmp_path: Path) -> None:
    storage = UrlStorage("s3://mistyped/runs/job", tmp_path)
    with pytest.raises(StorageAway, match="there is no bucket mistyped"):
        newest_manifest(storage)
    with pytest.raises(OSError, match="bucket does not exist"):
        save(storage, 1, 1)
    with pytest.raises(StorageAway):
        storage.names()


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
