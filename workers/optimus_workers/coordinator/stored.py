"""Reading and writing a job's checkpoints on behalf of its machine; what came of it, as an event. Raises nothing."""

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


async def read_checkpoint(storage: Storage, epoch: int) -> CheckpointRead:
    """The newest undamaged checkpoint, for the membership epoch that is being formed."""
    try:
        manifest, complaints = await _newest(storage)
    except OSError as error:
        return CheckpointRead(epoch, None, error=str(error))
    for complaint in complaints:
        log.error("damaged checkpoint: %s", complaint)
    return CheckpointRead(epoch, manifest, storage.location(manifest_name(manifest.version)) if manifest else "")


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


async def put_manifest(storage: Storage, manifest: Manifest) -> ManifestWritten:
    """Make the checkpoint exist whose files are there."""
    try:
        path = await asyncio.to_thread(write_manifest, storage, manifest)
    except OSError as error:
        return ManifestWritten(manifest.version, "", str(error))
    return ManifestWritten(manifest.version, path)
