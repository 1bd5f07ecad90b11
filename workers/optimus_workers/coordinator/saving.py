"""One checkpoint on its way: which servers still have to set their range aside, which files are still to come. Pure."""

from __future__ import annotations

from enum import StrEnum

from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.wire.values import ShardFile, TaskProfile


class Then(StrEnum):
    """What a checkpoint is taken for: what happens when it is complete."""

    TRAIN = "train"
    """Go on; training stands still only until the ranges are set aside."""
    PAUSE = "pause"
    """Let everybody go, to come back later."""
    FINISH = "finish"
    """Evaluate and end."""
    EVACUATE = "evacuate"
    """Let those go that were asked to leave, and wait for others."""


class Saving:
    """The checkpoint of one version, taken by the servers of one membership epoch."""

    def __init__(self, epoch: int, version: int, servers: tuple[str, ...], then: Then) -> None:
        self.epoch = epoch
        self.version = version
        self.servers = servers
        self.then = then
        self._no_snapshot_yet = set(servers)
        self._files: dict[str, ShardFile] = {}

    @property
    def may_go_on(self) -> bool:
        """All ranges are set aside."""
        return not self._no_snapshot_yet

    def snapshot_taken(self, server: str) -> None:
        self._no_snapshot_yet.discard(server)

    def saved(self, server: str, file: ShardFile) -> bool:
        """A file is on disk; whether it was the last one."""
        self._files[server] = file
        return self._files.keys() == set(self.servers)

    def manifest(self, profile: TaskProfile) -> Manifest:
        files = tuple(sorted(self._files.values(), key=lambda file: file.first))
        return Manifest(self.version, self.epoch, profile, files)
