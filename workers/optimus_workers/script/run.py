"""The processes of one membership of a script, and how they are being stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

from optimus_contract.readings.progress import Progress
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.channels.tensorboard import TensorBoardFiles
from optimus_workers.script.checkpoints import CheckpointWatch, Loads, Writes
from optimus_workers.script.processes import Process
from optimus_workers.script.standstill import Standstill
from optimus_workers.wire.messages import CommandEnded, StartCommand
from optimus_workers.wire.values import GlobalBatch


@dataclass(slots=True)
class Run:
    """The processes of one membership."""

    order: StartCommand
    processes: list[Process]
    progress: Progress
    printed: Printed
    begun_at: float
    """`time.monotonic` when they were started."""
    standstill: Standstill
    batch: GlobalBatch
    """How the script's steps count as steps of the job."""
    is_formed: bool = False
    """The coordinator has formed the membership: samples count."""
    is_reported: bool = False
    """`CommandStarted` was sent."""
    end: CommandEnded | None = None
    """How they ended by themselves."""
    first_step: int | None = None
    files: tuple[TensorBoardFiles, ...] = ()
    """What may be written beside; only worker 0 reads it."""
    checkpoints: CheckpointWatch = field(default_factory=CheckpointWatch)
    loads: Loads = field(default_factory=lambda: Loads(()))
    load_seconds: float | None = None
    """For which they have loaded a checkpoint, and ..."""
    save_seconds: float | None = None
    """... saved one at their end, if they reported that."""
    is_flood_reported: bool = False
    """The owner knows that they print more than is read."""
    looks_at_stop_file: bool = False
    """They use `optimus_client`, by which they save and end when the stop file appears."""


@dataclass(slots=True)
class Stopping:
    """The processes are being stopped for `epoch`; times are of `time.monotonic`."""

    epoch: int
    since: float
    terminate_at: float
    kill_at: float
    writes: Writes
    waits_for_writes: bool = False
    """They are terminated as soon as no worker's processes write anything, `terminate_at` at the latest."""
    all_quiet: bool = False
    """No other worker's do, as the coordinator says."""
    reported: tuple[bool, bool] = (False, False)
    """What the coordinator knows of them: see `CommandQuiet`."""
    terminated: bool = False
    killed_after: float | None = None
    """Seconds after which they were killed."""
    is_quiet: bool = False
    looked_at: float = float("-inf")
