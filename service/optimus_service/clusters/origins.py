"""Jobs that start from another job's last checkpoint (`from_job`): may they, and a copy of it where a job needs one.

On one machine each job may run as a user of its own (`OPTIMUS_TASK_USER`), who cannot read another job's directory. So
the service copies the checkpoint when the job is submitted, as it is then, before any task of the new job can write
there. What it copies was written by tasks, which are not trusted: no link is followed, and a file counts only if it is
a regular one of the user whose directory it is in.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optimus_contract.job import JobSpec
from optimus_service.settings import Settings
from optimus_service.store.records import JobRecord

ORIGIN = "origin"
"""The copy's directory in the new job's."""
_MANIFEST = re.compile(r"manifest-\d{12,}\.json")
_SHARD = re.compile(r"v\d+-e\d+-\d+-\d+\.safetensors")
_MOST_MANIFEST_BYTES = 16 * 2**20
"""A checkpoint of 1,024 servers has a manifest of 0.2 MB."""
_ATTEMPTS = 3
"""A job that trains on may remove a checkpoint while it is being copied: there is a newer one then."""


class NoCheckpoint(Exception):
    """The job has no checkpoint that another one could start from; the message says why."""


def objection(origin: JobRecord, checkpoint_url: object, settings: Settings) -> str | None:
    """Why a job with this `checkpoint_url` cannot start from `origin`, in words; None when nothing speaks against it,
    as far as the service can see.
    """
    if origin.step == 0:
        waits = "it has not made a step yet" if not origin.state.is_final else "it never made a step"
        return f"job {origin.id} has no checkpoint: {waits}"
    its_url = origin.asked.checkpoint_url
    if its_url != checkpoint_url:
        there = "its job directory" if its_url is None else its_url
        fix = "leave checkpoint_url out" if its_url is None else f"give this job checkpoint_url: {its_url}"
        return f"the checkpoints of job {origin.id} are in {there}: {fix}"
    if not may_have_checkpoint(origin, settings):
        return f"job {origin.id} has no checkpoint (any more)"
    if its_url is None and settings.cluster == "kubernetes" and not settings.kubernetes.keeps_jobs:
        return f"the checkpoints of job {origin.id} went with its pods: this service keeps none (jobs_claim)"
    return None


def may_have_checkpoint(job: JobRecord, settings: Settings) -> bool:
    """False when none is in its directory. Those on a volume of Kubernetes or in an object store are not the service's
    to read."""
    if settings.cluster != "local" or job.asked.checkpoint_url is not None:
        return True
    return any((settings.data_directory / "jobs" / job.id / "checkpoints").glob("manifest-*.json"))


def is_copied(spec: JobSpec, settings: Settings) -> bool:
    """Whether a job with this specification gets a copy of the checkpoint that it starts from."""
    return settings.cluster == "local" and spec.from_job is not None and spec.checkpoint_url is None


def copy_checkpoint(jobs: Path, origin: str, job_id: str) -> None:
    """Copy the newest whole checkpoint of `origin` into the directory of a job that is about to be stored.

    Raises:
        NoCheckpoint: there is none.
        OSError: it cannot be copied (the disk is full, say). Nothing is left of the copy.
    """
    directory = jobs / job_id
    directory.mkdir(mode=0o700, parents=True)
    try:
        target = directory / ORIGIN
        target.mkdir(mode=0o700)
        with _opened(jobs, origin) as (source, owner):
            _copy_newest(source, owner, target, origin)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def remove_copy(jobs: Path, job_id: str) -> None:
    """Of a job that was not stored after all."""
    shutil.rmtree(jobs / job_id, ignore_errors=True)


@contextmanager
def _opened(jobs: Path, origin: str) -> Iterator[tuple[int, int]]:
    """The directory of the checkpoints of `origin`, by a handle that no later renaming leads elsewhere, and the user
    id of its tasks."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    handles: list[int] = []
    try:
        handles.append(os.open(jobs / origin, flags))
        handles.append(os.open("checkpoints", flags, dir_fd=handles[0]))
    except OSError as error:
        for handle in handles:
            os.close(handle)
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        raise NoCheckpoint(f"job {origin} has no checkpoint (any more)") from error
    try:
        # The job's directory is in one of the service's: only the service says whose it is.
        yield handles[1], os.fstat(handles[0]).st_uid
    finally:
        for handle in handles:
            os.close(handle)


def _copy_newest(source: int, owner: int, target: Path, origin: str) -> None:
    for _ in range(_ATTEMPTS):
        for manifest in sorted(filter(_MANIFEST.fullmatch, os.listdir(source)), reverse=True):
            if _copy(source, manifest, target, owner):
                return
    raise NoCheckpoint(f"job {origin} has no undamaged checkpoint (any more)")


def _copy(source: int, manifest: str, target: Path, owner: int) -> bool:
    """Whether the checkpoint is in `target` now: all its files, its manifest last."""
    try:
        with _regular_file(source, manifest, owner) as handle:
            content = os.read(handle, _MOST_MANIFEST_BYTES)
        names = [file["name"] for file in json.loads(content)["files"]]
        if not all(isinstance(name, str) and _SHARD.fullmatch(name) for name in names):
            return False
        for name in names:
            with _regular_file(source, name, owner) as handle:
                _write(target / name, handle)
    except (FileNotFoundError, _Odd, ValueError, KeyError, TypeError):
        return False  # it was removed meanwhile, or is damaged: another one may do
    (target / manifest).write_bytes(content)
    return True


class _Odd(Exception):
    """No regular file of the job's user."""


@contextmanager
def _regular_file(directory: int, name: str, owner: int) -> Iterator[int]:
    try:
        # Without waiting: a pipe would never have a writer.
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _Odd(name) from error
    try:
        found = os.fstat(handle)
        # A hard link to somebody else's file has that one's owner.
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            raise _Odd(name)
        yield handle
    finally:
        os.close(handle)


def _write(path: Path, handle: int) -> None:
    with path.open("wb") as copy, os.fdopen(handle, "rb", closefd=False) as original:
        shutil.copyfileobj(original, copy, 2**20)
        copy.flush()
        os.fsync(copy.fileno())
