"""Taking checkpoints. Pure handlers.

Training goes on once all ranges are set aside; a checkpoint exists once all its files and then its manifest are there.
"""

from __future__ import annotations

from optimus_workers.coordinator.events import Effects, Log, ManifestWritten, ReportCheckpoints, Send, WriteManifest
from optimus_workers.coordinator.handlers.ending import begin_evaluating, pause
from optimus_workers.coordinator.handlers.tasks import dismiss_leavers
from optimus_workers.coordinator.membership import Members
from optimus_workers.coordinator.state import Checkpoint, CheckpointProgress, Checkpoints, Phase, SaveFor, State
from optimus_workers.wire.messages import Save, Saved, SaveFailed, SnapshotTaken

RETRY_SECONDS = 1.0
"""Between a failed checkpoint before something final and the next attempt."""
MAX_SAVE_ATTEMPTS = 5
"""After this many failures of the last checkpoint (disk full?) the job ends without it."""


def begin_saving(state: State, purpose: SaveFor) -> Effects:
    """Save the present version, unless the newest checkpoint has it. The barrier is quiet."""
    checkpoints = state.checkpoints
    checkpoints.due_at = state.now + state.settings.checkpoint_seconds
    checkpoints.n_failures = 0
    checkpoints.retry = None
    state.phase = Phase.SAVING
    if checkpoints.newest is None or checkpoints.newest.version != state.version:
        return _send_saves(state, purpose)
    checkpoints.progress = None
    return _after_saving(state, purpose)


def _send_saves(state: State, purpose: SaveFor) -> Effects:
    writers = state.change.present.serving
    state.checkpoints.progress = CheckpointProgress(state.epoch, state.version, writers, purpose)
    return [Send(name, Save(state.epoch, state.version)) for name in writers]


def go_on_saving(state: State) -> Effects:
    """SAVING: repeat what failed when its time has come; go on training once all ranges are set aside."""
    checkpoints, effects = state.checkpoints, Effects()
    if checkpoints.retry is not None and state.now >= checkpoints.retry_at:
        purpose, checkpoints.retry = checkpoints.retry, None
        effects = _send_saves(state, purpose)
    progress = checkpoints.progress
    if progress is not None and progress.purpose is SaveFor.TRAIN and progress.has_snapshots:
        state.phase = Phase.TRAINING
    return effects


def snapshot_taken(state: State, name: str, message: SnapshotTaken) -> Effects:
    progress = state.checkpoints.progress
    if progress is not None and message.version == progress.version:
        progress.snapshot_taken(name)
    return []


def saved(state: State, name: str, message: Saved) -> Effects:
    progress = state.checkpoints.progress
    if progress is None or message.version != progress.version or not progress.saved(name, message.file):
        return []
    return [WriteManifest(progress.manifest(state.known_profile))]


def save_failed(state: State, name: str, message: SaveFailed) -> Effects:
    progress = state.checkpoints.progress
    if progress is None or message.version != progress.version:
        return []
    return _failed(state, progress, f"{name}: {message.reason}")


def manifest_written(state: State, event: ManifestWritten) -> Effects:
    """The checkpoint exists, or its manifest could not be written.

    One of an epoch that is over exists as well and may be used; this epoch's own comes sooner or later.
    """
    progress = state.checkpoints.progress
    if progress is None or progress.version != event.version:
        return []
    if event.error is not None:
        return _failed(state, progress, event.error)
    effects: Effects = []
    if state.checkpoints.n_missed:
        effects = [ReportCheckpoints(f"Checkpoints are written again, as of step {event.version}.")]
    state.checkpoints.newest = Checkpoint(event.version, event.path)
    state.checkpoints.progress, state.checkpoints.n_missed = None, 0
    return [*effects, *(_after_saving(state, progress.purpose) if state.phase is Phase.SAVING else [])]


def _failed(state: State, progress: CheckpointProgress, why: str) -> Effects:
    """A periodic checkpoint is given up; one before something final is repeated a few times."""
    checkpoints = state.checkpoints
    checkpoints.progress = None
    checkpoints.n_failures += 1
    checkpoints.n_missed += 1
    effects: Effects = [Log(f"checkpoint of step {progress.version} failed: {why}")]
    if checkpoints.n_missed & (checkpoints.n_missed - 1) == 0:  # 1, 2, 4, 8 ...: told now and then, not each time
        effects.append(ReportCheckpoints(_trouble(checkpoints, progress.version, why)))
    if progress.purpose is not SaveFor.TRAIN and checkpoints.n_failures < MAX_SAVE_ATTEMPTS:
        checkpoints.retry = progress.purpose
        checkpoints.retry_at = state.now + RETRY_SECONDS
    elif state.phase is Phase.SAVING:
        effects += _after_saving(state, progress.purpose)
    return effects


def _trouble(checkpoints: Checkpoints, version: int, why: str) -> str:
    times = "" if checkpoints.n_missed == 1 else f" ({checkpoints.n_missed} times in a row)"
    newest = checkpoints.newest
    last = "there is none yet" if newest is None else f"the newest is of step {newest.version}"
    return (
        f"The checkpoint of step {version} could not be written{times}: {why}. "
        f"Training goes on and tries again; {last}, from where the job goes on if it loses its tasks."
    )


def _after_saving(state: State, purpose: SaveFor) -> Effects:
    match purpose:
        case SaveFor.TRAIN:
            state.phase = Phase.TRAINING
            return []
        case SaveFor.PAUSE:
            return pause(state)
        case SaveFor.FINISH if state.training.barrier.is_exhausted or state.may_finish:
            return begin_evaluating(state)
        case SaveFor.FINISH:  # its owner has given it more steps meanwhile
            state.phase = Phase.TRAINING
            return []
        case SaveFor.EVACUATE:
            state.change.since = state.now
            state.phase = Phase.GATHERING
            return dismiss_leavers(state, but=Members())
