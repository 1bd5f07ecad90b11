"""Checkpoints: training goes on once all ranges are set aside, a checkpoint exists once all files are there. Pure."""

from __future__ import annotations

from optimus_workers.coordinator.ending import Ending
from optimus_workers.coordinator.events import (
    ManifestWritten,
)
from optimus_workers.coordinator.facts import Checkpoint
from optimus_workers.coordinator.instructions import (
    Note,
    Send,
    WriteManifest,
)
from optimus_workers.coordinator.phases import (
    MAX_SAVE_ATTEMPTS,
    RETRY_SECONDS,
    Phase,
)
from optimus_workers.coordinator.saving import Saving, Then
from optimus_workers.wire.messages import (
    Save,
    Saved,
    SaveFailed,
    SnapshotTaken,
)


class Checkpointing(Ending):
    """The phase SAVING, and what comes after it."""

    def _begin_saving(self, then: Then) -> bool:
        self._save_at = self._now + self.plan.checkpoint_seconds
        self._n_save_attempts = 0
        self._save_again = None
        self.phase = Phase.SAVING
        if self.checkpoint is not None and self.checkpoint.version == self.version:
            self._saving = None
            self._after_saving(then)
        else:
            self._send_saves(then)
        return True

    def _send_saves(self, then: Then) -> None:
        servers = self._open_attempt.serving
        self._saving = Saving(self.epoch, self.version, servers, then)
        self._do(*(Send(name, Save(self.epoch, self.version)) for name in servers))

    def _saving_phase(self) -> bool:
        if self._save_again is not None and self._now >= self._deadline:
            then, self._save_again = self._save_again, None
            self._send_saves(then)
        if self._saving is None or self._saving.then is not Then.TRAIN or not self._saving.may_go_on:
            return False
        self.phase = Phase.TRAINING
        return True

    def _save_progress(self, name: str, message: SnapshotTaken | Saved | SaveFailed) -> None:
        saving = self._saving
        if saving is None or message.version != saving.version:
            return
        match message:
            case SnapshotTaken():
                saving.snapshot_taken(name)
            case Saved():
                if saving.saved(name, message.file):
                    assert self.profile is not None
                    self._do(WriteManifest(saving.manifest(self.profile)))
            case SaveFailed():
                self._save_failed(saving, f"{name}: {message.reason}")

    def _manifest_written(self, event: ManifestWritten) -> None:
        saving = self._saving
        if saving is None or saving.version != event.version:
            return  # of an epoch that is over: it exists and may be used; this epoch's own comes sooner or later
        if event.error is not None:
            self._save_failed(saving, event.error)
            return
        self.checkpoint = Checkpoint(event.version, event.path)
        self._saving = None
        if self.phase is Phase.SAVING:
            self._after_saving(saving.then)

    def _save_failed(self, saving: Saving, why: str) -> None:
        self._do(Note(f"checkpoint of step {saving.version} failed: {why}"))
        self._saving = None
        self._n_save_attempts += 1
        if saving.then is not Then.TRAIN and self._n_save_attempts < MAX_SAVE_ATTEMPTS:
            self._save_again = saving.then
            self._deadline = self._now + RETRY_SECONDS
        elif self.phase is Phase.SAVING:
            self._after_saving(saving.then)

    def _after_saving(self, then: Then) -> None:
        match then:
            case Then.TRAIN:
                self.phase = Phase.TRAINING
            case Then.PAUSE:
                self._pause()
            case Then.FINISH:
                self._begin_evaluating()
            case Then.EVACUATE:
                self._let_leavers_go()
                self._gathering_since = self._now
                self.phase = Phase.GATHERING
