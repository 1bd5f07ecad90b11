"""The copy of a checkpoint that another job starts from: whole, safe from what tasks can write, the newest."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from optimus_service.clusters import origins

ONE, TWO = "v10-e1-0-16.safetensors", "v10-e1-16-32.safetensors"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job `first` with one checkpoint of two files, and a secret beside the jobs."""
    (tmp_path / "secret.key").write_text("secret")
    save(tmp_path / "jobs", 10, ONE, TWO)
    return tmp_path / "jobs"


def save(jobs: Path, version: int, *names: str) -> Path:
    checkpoints = jobs / "first" / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    for name in names:
        (checkpoints / name).write_text(f"floats of {name}")
    document = {"version": version, "files": [{"name": name} for name in names]}
    (checkpoints / f"manifest-{version:012d}.json").write_text(json.dumps(document))
    return checkpoints


def copied(jobs: Path) -> list[str]:
    """What the copy consists of."""
    origins.copy_checkpoint(jobs, "first", "second")
    return sorted(path.name for path in (jobs / "second" / origins.ORIGIN).iterdir())


def refused(jobs: Path) -> None:
    with pytest.raises(origins.NoCheckpoint, match="job first has no"):
        origins.copy_checkpoint(jobs, "first", "second")
    assert not (jobs / "second").exists()


def test_the_newest_checkpoint_is_copied_and_nothing_else(jobs: Path) -> None:
    newer = "v20-e1-0-32.safetensors"
    checkpoints = save(jobs, 20, newer)
    (checkpoints / "notes.txt").write_text("mine")
    assert copied(jobs) == ["manifest-000000000020.json", newer]
    copy = jobs / "second" / origins.ORIGIN / newer
    assert copy.read_text() == f"floats of {newer}"
    assert copy.stat().st_nlink == 1, "the new job must not be able to change the other's file"


def test_a_checkpoint_that_is_gone_gives_way_to_an_older_one(jobs: Path) -> None:
    checkpoints = save(jobs, 20, "v20-e1-0-32.safetensors")
    (checkpoints / "v20-e1-0-32.safetensors").unlink()
    assert copied(jobs) == ["manifest-000000000010.json", ONE, TWO]


def test_a_damaged_manifest_gives_way_to_an_older_one(jobs: Path) -> None:
    (jobs / "first" / "checkpoints" / "manifest-000000000030.json").write_text('{"files": [{"na')
    assert copied(jobs) == ["manifest-000000000010.json", ONE, TWO]


@pytest.mark.parametrize("name", ["../../../secret.key", "/etc/passwd", "v1-e1-0-16.safetensors/../x", 7])
def test_names_lead_nowhere_else(jobs: Path, name: object) -> None:
    manifest = jobs / "first" / "checkpoints" / "manifest-000000000010.json"
    manifest.write_text(json.dumps({"version": 10, "files": [{"name": name}]}))
    refused(jobs)


def test_links_and_pipes_are_not_read(jobs: Path) -> None:
    file = jobs / "first" / "checkpoints" / TWO
    file.unlink()
    file.symlink_to(jobs.parent / "secret.key")
    refused(jobs)
    file.unlink()
    os.mkfifo(file)
    refused(jobs)


def test_a_linked_directory_is_not_entered(jobs: Path) -> None:
    checkpoints = jobs / "first" / "checkpoints"
    checkpoints.rename(jobs.parent / "elsewhere")
    checkpoints.symlink_to(jobs.parent / "elsewhere")
    refused(jobs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_hard_link_to_a_file_of_the_service_is_not_read(jobs: Path) -> None:
    for path in (jobs / "first", *(jobs / "first").rglob("*")):
        os.chown(path, 70001, 70001)
    file = jobs / "first" / "checkpoints" / TWO
    file.unlink()
    os.link(jobs.parent / "secret.key", file)
    refused(jobs)


def test_a_job_without_checkpoints_is_none_to_start_from(jobs: Path) -> None:
    shutil.rmtree(jobs / "first" / "checkpoints")
    refused(jobs)
    shutil.rmtree(jobs / "first")
    refused(jobs)
