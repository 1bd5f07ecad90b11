"""The coordinator's state as one value, nested by subject. Only the handlers of `transitions` change it. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from optimus_contract.membership import Cause, Directive, WantedMembership
from optimus_workers.checkpoint.manifest import Manifest
from optimus_workers.coordinator.attempt import Attempt
from optimus_workers.coordinator.barrier import AsyncBarrier, Barrier, ReportedSteps, SyncBarrier
from optimus_workers.coordinator.job_settings import JobSettings, batch_at, steps_per_epoch
from optimus_workers.coordinator.journal import Ended, Formed, Past
from optimus_workers.coordinator.membership import ConnectedTask, Members, Partition
from optimus_workers.errors import LET_GO
from optimus_workers.wire.messages import CommandIdle
from optimus_workers.wire.values import GlobalBatch, ShardFile, TaskProfile

MAX_LOSS_STEPS = 200
"""The mean loss is over the steps of one epoch, but over no more than this."""
STORY_LENGTH = 20
"""Transitions kept for error messages: enough to understand a wrong turn."""


class Phase(StrEnum):
    """What the coordinator is waiting for."""

    GATHERING = "gathering"
    """Tasks to train with."""
    HALTING = "halting"
    """The report of every server about what it holds."""
    RESTORING = "restoring"
    """The newest checkpoint."""
    ASSUMING = "assuming"
    """Every server of the new membership to have its range."""
    JOINING = "joining"
    """Every worker of the new membership to have the parameters."""
    TRAINING = "training"
    """The workers' steps."""
    SAVING = "saving"
    """A checkpoint: its snapshots, or all of it before something final."""
    EVALUATING = "evaluating"
    """One worker's evaluation of the final parameters."""
    CLOSING = "closing"
    """The tasks to disconnect."""
    OVER = "over"
    """Nothing: the process is about to exit."""


class LossWindow:
    """The job's recent training loss: the mean over the examples of the last steps."""

    def __init__(self, n_steps: float) -> None:
        self._recent: deque[tuple[float, int]] = deque(maxlen=max(1, min(MAX_LOSS_STEPS, math.ceil(n_steps))))
        self._open: tuple[float, int] = (0.0, 0)

    def add(self, loss: float, n_examples: int) -> None:
        """Add one worker's share of a step."""
        if n_examples:
            total, n = self._open
            self._open = (total + loss * n_examples, n + n_examples)

    def close_step(self) -> None:
        """All shares of a step have been added."""
        if self._open[1]:
            self._recent.append(self._open)
        self._open = (0.0, 0)

    def drop_step(self) -> None:
        """The present step will be repeated."""
        self._open = (0.0, 0)

    @property
    def mean(self) -> float | None:
        """None when there is none yet or it is not finite."""
        n_examples = sum(n for _, n in self._recent)
        mean = sum(total for total, _ in self._recent) / n_examples if n_examples else math.nan
        return mean if math.isfinite(mean) else None


@dataclass(slots=True)
class MembershipChange:
    """What the next membership follows from, and what it waits for. Times are in seconds since the Unix epoch."""

    cause: Cause
    """For the report of the next membership."""
    since: float
    """When the gathering began."""
    not_before: float
    """No attempt begins before this time."""
    is_takeover: bool = False
    """This coordinator replaced another one whose tasks still have the job's state in memory."""
    expected: set[str] = field(default_factory=set)
    """The tasks with the job's state that this coordinator waits for after a takeover."""
    at_once: bool = False
    """Do not wait for more tasks to arrive."""
    message: str | None = None
    n_attempts: int = 0
    """Attempts in a row without a membership."""
    attempt: Attempt | None = None
    """The newest one; from HALTING on it is that of the present membership."""

    @property
    def present(self) -> Attempt:
        """The newest attempt, in a phase that comes after its beginning."""
        assert self.attempt is not None, "from HALTING on there is an attempt"
        return self.attempt


@dataclass(slots=True)
class CommandEnds:
    """How the processes of a script's workers ended in one membership."""

    done: set[str] = field(default_factory=set)
    """Workers whose processes ended well."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the evaluations of these reported."""
    error: str | None = None
    """Of the worker whose process failed first ..."""
    failed_at: float = 0.0
    """... at this time, in seconds since the Unix epoch."""
    is_permanent: bool = False
    """Another attempt would fail likewise."""
    counts: bool = True
    """False: the processes went on from the wrong step. They have ended, and the job waits for another membership."""


@dataclass(slots=True)
class Training:
    """The steps of the present membership and the history that led to it."""

    barrier: Barrier
    losses: LossWindow
    batches: tuple[GlobalBatch, ...]
    """The batches of the memberships that led to the present one."""
    noise_scale: float | None = None
    """The newest reading of the gradients' noise scale, in examples."""
    last_step_at: float | None = None
    """When the newest step was completed, in seconds since the Unix epoch."""
    command: CommandEnds | None = None
    """Of a script: how the processes of the present members have ended so far, ..."""
    idle: dict[str, CommandIdle] = field(default_factory=dict)
    """... and which of those that have not stand still, by worker."""


class SaveFor(StrEnum):
    """What a checkpoint is taken for, which decides what happens once it is complete."""

    TRAIN = "train"
    """Training goes on as soon as the ranges are set aside."""
    PAUSE = "pause"
    """All tasks are dismissed; the job will be resumed later."""
    FINISH = "finish"
    """The job is evaluated and ends."""
    EVACUATE = "evacuate"
    """The tasks that asked to leave are dismissed, and replacements are waited for."""


class CheckpointProgress:
    """A checkpoint of one version that the tasks of one membership epoch are writing."""

    def __init__(self, epoch: int, version: int, writers: tuple[str, ...], purpose: SaveFor) -> None:
        self.epoch = epoch
        self.version = version
        self.purpose = purpose
        self._writers = writers
        self._no_snapshot_yet = set(writers)
        self._files: dict[str, ShardFile] = {}

    @property
    def has_snapshots(self) -> bool:
        """All ranges are set aside."""
        return not self._no_snapshot_yet

    def snapshot_taken(self, task: str) -> None:
        self._no_snapshot_yet.discard(task)

    def saved(self, task: str, file: ShardFile) -> bool:
        """A file is on disk; whether all files are."""
        self._files[task] = file
        return self._files.keys() == set(self._writers)

    def manifest(self, profile: TaskProfile) -> Manifest:
        files = tuple(sorted(self._files.values(), key=lambda file: file.first))
        return Manifest(self.version, self.epoch, profile, files)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest complete checkpoint of the history that is being trained."""

    version: int
    path: str


@dataclass(slots=True)
class Checkpoints:
    """The checkpoint that exists, the one under way, and when the next is due (seconds since the Unix epoch)."""

    due_at: float
    newest: Checkpoint | None = None
    progress: CheckpointProgress | None = None
    n_failures: int = 0
    """Failures of the checkpoint before something final."""
    n_missed: int = 0
    """Failures in a row, whatever they were for."""
    retry: SaveFor | None = None
    """What the failed checkpoint was for, when it is to be repeated."""
    retry_at: float = 0.0

    @property
    def path(self) -> str | None:
        return self.newest.path if self.newest else None


@dataclass(slots=True)
class Ending:
    """How the job and this process end. Times are in seconds since the Unix epoch."""

    evaluator: str | None = None
    """The worker that evaluates the final parameters."""
    ended: Ended | None = None
    """The job's result; None: the job goes on, or another coordinator will."""
    exit_code: int = LET_GO
    deadline: float = 0.0
    """When the process exits although tasks are still connected."""
    linger_until: float = 0.0
    """Until then the process stays although no task is connected."""


@dataclass(slots=True)
class State:
    """All that a coordinator knows. `now` is in seconds since the Unix epoch and never goes back."""

    settings: JobSettings
    now: float
    epoch: int
    """The highest membership epoch used; messages of other epochs are late."""
    known_epoch: int
    """The highest one that the journal, the service or a task knows of: the next one goes beyond it."""
    version: int
    """Steps completed, as far as known."""
    profile: TaskProfile | None
    formed: Formed | None
    """The newest membership that trained (or paused)."""
    change: MembershipChange
    training: Training
    checkpoints: Checkpoints
    ending: Ending
    phase: Phase = Phase.GATHERING
    members: Members = field(default_factory=Members)
    """The tasks of the present membership, or of the one that is being formed."""
    tasks: dict[str, ConnectedTask] = field(default_factory=dict)
    """All connected tasks by name."""
    silent: set[str] = field(default_factory=set)
    """Tasks that were lost because they did not answer, and have not come back."""
    wanted: WantedMembership | None = None
    wanted_tasks: frozenset[str] = frozenset()
    """The names of the wanted tasks."""
    finish_step: int = 0
    """Of a job that is to finish: the step that it had come to when that was decided; it finishes there or later."""
    heard_at: float = -math.inf
    """When the service last answered which membership it wants, changed or not."""
    partition: Partition = field(default_factory=Partition)
    story: deque[tuple[str, tuple[Phase, ...]]] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))
    """The last events that changed the phase, each with the phases that it led through."""

    @property
    def directive(self) -> Directive:
        return self.wanted.directive if self.wanted else "run"

    @property
    def generation(self) -> int:
        return self.wanted.generation if self.wanted else 0

    def suffices(self, members: Members) -> bool:
        """Whether the job may train with these: its owner's minima hold, unless the service wants fewer by now."""
        least_workers, least_servers = self.settings.least_workers, self.settings.least_servers
        if self.wanted is not None and self.wanted.directive == "run":
            servers = sum(task.role == "server" for task in self.wanted.tasks)
            least_workers = min(least_workers, len(self.wanted.tasks) - servers)
            least_servers = min(least_servers, servers)
        return members.can_train and len(members.workers) >= least_workers and len(members.servers) >= least_servers

    @property
    def is_settled(self) -> bool:
        """Whether no task waits to be dismissed and nothing is under way: another coordinator may take over now."""
        waits = any(task.wants_to_leave for task in self.tasks.values())
        return self.phase in (Phase.GATHERING, Phase.TRAINING, Phase.OVER) and not waits

    @property
    def known_profile(self) -> TaskProfile:
        """The profile, in a phase that no job reaches without one."""
        assert self.profile is not None, "no attempt begins without a profile"
        return self.profile

    @property
    def reported_version(self) -> int:
        """Steps completed, in steps of the base batch."""
        return self.reported(self.version)

    def reported(self, version: int) -> int:
        """A number of steps in steps of the base batch."""
        batch = self.batch_at(version)
        return version if batch is None else batch.reported_step(version)

    @property
    def may_finish(self) -> bool:
        """Whether it is to finish, and no step is lost of those after which that was decided."""
        return self.directive == "finish" and self.reported_version >= self.finish_step

    def batch_at(self, step: int) -> GlobalBatch | None:
        """The batch of the membership that a step belonged to; None: the job is async, or no task is known yet."""
        if self.settings.is_async or self.profile is None:
            return None
        return batch_at(self.training.batches, step, self.profile)

    @property
    def last_step(self) -> int | None:
        """The step at which the job is done whatever its loss, if it goes on with the present batch."""
        return self.settings.last_step(self.known_profile, self.batch_at(self.version))

    def new_barrier(self) -> Barrier:
        """The barrier of the present members from the present version on."""
        last_step = self.last_step
        if self.settings.is_script:
            return ReportedSteps(self.members.workers, self.version, last_step)
        kind = AsyncBarrier if self.settings.is_async else SyncBarrier
        return kind(self.members.workers, self.version, last_step)


def initial_state(settings: JobSettings, past: Past, now: float) -> State:
    """The state of a coordinator that starts at `now`, after the coordinators of `past`."""
    is_takeover = past.formed is not None and not past.is_paused
    cause: Cause = "start"
    if past.formed is not None:
        cause = "resume" if past.is_paused else "coordinator_restart"
    expected = set[str]()
    if past.formed is not None and is_takeover:
        expected = set(past.formed.servers if settings.has_servers else past.formed.workers)
    version = past.formed.step if past.formed else 0
    losses = LossWindow(steps_per_epoch(past.profile) if past.profile else 1.0)
    return State(
        settings=settings,
        now=now,
        epoch=past.epoch,
        known_epoch=past.epoch,
        version=version,
        profile=past.profile,
        formed=past.formed,
        change=MembershipChange(cause, since=now, not_before=now, is_takeover=is_takeover, expected=expected),
        training=Training(SyncBarrier((), version, None), losses, past.batches),
        checkpoints=Checkpoints(due_at=now),
        ending=Ending(deadline=now, linger_until=now),
    )
