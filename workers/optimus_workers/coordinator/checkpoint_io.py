"""Reads and writes a job's checkpoints for the state machine. The outcome is an event; nothing is raised."""

from __future__ import annotations

import asyncio
import logging
import time

from optimus_workers.checkpoint.manifest import Manifest, manifest_name, newest_manifest, write_manifest
from optimus_workers.checkpoint.storage import Storage, StorageAway, StorageUnusable
from optimus_workers.coordinator.events import CheckpointRead, ManifestWritten

log = logging.getLogger(__name__)

STORAGE_SECONDS = 300.0
"""How long a job waits for an object store that has its checkpoints before it fails."""
STORAGE_RETRY_SECONDS = 5.0


async def read_checkpoint(storage: Storage, origin: Storage | None, epoch: int) -> CheckpointRead:
    """The newest undamaged checkpoint, for the membership epoch that is being formed; without one, that of `origin`,
    where the job is to start from."""
    try:
        manifest = await _newest_undamaged(storage)
        if manifest is not None or origin is None:
            path = storage.location(manifest_name(manifest.version)) if manifest else ""
            return CheckpointRead(epoch, manifest, path)
        manifest = await _newest_undamaged(origin)
    except OSError as error:
        return CheckpointRead(epoch, None, error=str(error))
    if manifest is None:
        return CheckpointRead(epoch, None, error="the job that it starts from has no undamaged checkpoint (any more)")
    return CheckpointRead(epoch, manifest, origin.location(manifest_name(manifest.version)), is_origin=True)


async def _newest_undamaged(storage: Storage) -> Manifest | None:
    manifest, complaints = await _newest(storage)
    for complaint in complaints:
        log.error("damaged checkpoint: %s", complaint)
    return manifest


async def _newest(storage: Storage) -> tuple[Manifest | None, list[str]]:
    """Raises `OSError` when the storage stays away: to begin anew instead would lose what was trained."""
    give_up_at = time.monotonic() + STORAGE_SECONDS
    while True:
        try:
            return await asyncio.to_thread(newest_manifest, storage)
        except StorageUnusable:
            raise
        except StorageAway as error:
            if time.monotonic() > give_up_at:
                raise
            log.warning("the checkpoints cannot be read now: %s", error)
        await asyncio.sleep(STORAGE_RETRY_SECONDS)


async def put_manifest(storage: Storage, manifest: Manifest, turns: asyncio.Lock) -> ManifestWritten:
    """Make the checkpoint exist whose files are there.

    One after the other: an older one that came late would name files that the newer one has removed as nobody's.
    """
    try:
        async with turns:
            path = await asyncio.to_thread(write_manifest, storage, manifest)
    except OSError as error:
        return ManifestWritten(manifest.version, "", str(error))
    return ManifestWritten(manifest.version, path)
