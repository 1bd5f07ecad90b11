"""The coordinator's state machine: events in, instructions out, no input or output of its own.

    GATHERING ─▶ HALTING ─▶ (RESTORING) ─▶ ASSUMING ─▶ JOINING ─▶ TRAINING ◀──▶ SAVING ─▶ EVALUATING ─▶ CLOSING
        ▲           │            │             │           │          │            │          │
        └───────────┴────────────┴─────────────┴───────────┴──────────┴────────────┴──────────┘   a member is lost

Every change of the membership, planned or not, takes the same way: everybody halts, the servers say what they hold,
the newest version that they have together is dealt out anew, the workers fetch it, training goes on. Events change
facts (who is there, who has answered); after each one the present phase looks at the facts and may hand over to the
next phase. What happens in a phase is the method named after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optimus_workers.coordinator.attempt import Attempt
from optimus_workers.coordinator.events import (
    CheckpointRead,
    Directive,
    Event,
    ManifestWritten,
    MessageArrived,
    TaskArrived,
    TaskLost,
    Ticked,
    Wanted,
    WantedArrived,
)
from optimus_workers.coordinator.gate import Gate, make_gate
from optimus_workers.coordinator.instructions import (
    Append,
    Instruction,
    Note,
    ReadCheckpoint,
    Send,
    Stop,
    TellMembership,
    TellProfile,
    TellResult,
    WriteManifest,
)
from optimus_workers.coordinator.journal import Ended, Formed, Forming, Past, Profiled
from optimus_workers.coordinator.losses import LossWindow
from optimus_workers.coordinator.membership import ConnectedTask, Cover, Members, choose_members
from optimus_workers.coordinator.phases import (
    ARRIVAL_SECONDS,
    CLOSING_SECONDS,
    DATA_LOST_SECONDS,
    LINGER_SECONDS,
    MAX_ARRIVAL_SECONDS,
    MAX_ATTEMPTS,
    MAX_SAVE_ATTEMPTS,
    REGROUP_SECONDS,
    RETRY_SECONDS,
    STOPPING_SECONDS,
    UNWANTED_SECONDS,
    Phase,
)
from optimus_workers.coordinator.plan import JobPlan, steps_per_epoch
from optimus_workers.coordinator.results import failure, success
from optimus_workers.coordinator.saving import Saving, Then
from optimus_workers.exits import LET_GO, USER_CODE_FAILED
from optimus_workers.wire.messages import (
    Assumed,
    AssumeFailed,
    DataLost,
    Done,
    Evaluate,
    Evaluated,
    Exit,
    Failed,
    FromTask,
    Go,
    Halted,
    Joined,
    Leave,
    Pong,
    Save,
    Saved,
    SaveFailed,
    SnapshotTaken,
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest complete checkpoint of the history that is being trained."""

    version: int
    path: str


class Coordinator:
    """All that a coordinator knows and decides. `handle` is the only door.

    `now` is in seconds since the Unix epoch and never goes back.
    """

    def __init__(self, plan: JobPlan, past: Past, now: float) -> None:
        self.plan = plan
        self.phase = Phase.GATHERING
        self.epoch = past.epoch
        """The newest number used; messages of other epochs are ignored."""
        self.members = Members()
        """Who takes part, or is about to."""
        self.version = past.formed.step if past.formed else 0
        """Steps completed, as far as known."""
        self.profile = past.profile
        self.tasks: dict[str, ConnectedTask] = {}
        self.wanted: Wanted | None = None
        self.checkpoint: Checkpoint | None = None
        self._now = now
        self._out: list[Instruction] = []
        # Gathering: what the next membership follows on, and how long to wait for whom.
        self._formed = past.formed
        self._cause = _first_cause(past)
        self._message: str | None = None
        self._took_over = past.formed is not None and not past.is_paused
        self._expected = set(past.formed.servers) if past.formed and self._took_over else set[str]()
        self._gathering_since = now
        self._form_at_once = False
        self._form_from = now
        # Forming and training.
        self._attempt: Attempt | None = None
        self._n_attempts = 0
        self._gate: Gate = make_gate(plan, (), self.version, None)
        self._losses = LossWindow(steps_per_epoch(past.profile) if past.profile else 1.0)
        self._stopped_at: float | None = None
        self._data_lost_at: float | None = None
        # Saving and what comes after.
        self._saving: Saving | None = None
        self._save_at = now
        self._n_save_attempts = 0
        self._save_again: Then | None = None
        self._evaluator: str | None = None
        self._deadline = now
        self._linger_until = now
        self._exit_code = LET_GO
        self._ended: Ended | None = None
        self._resend(past)

    def _resend(self, past: Past) -> None:
        """Tell the service again what the coordinator before this one may not have told it."""
        if past.profile is not None:
            self._do(TellProfile(past.profile))
        for formed in past.unreported:
            self._do(TellMembership(formed))
        if past.ended is not None:
            self._ended = past.ended
            self._close("the job has ended", USER_CODE_FAILED if past.ended.outcome == "failed" else LET_GO)
            self._linger_until = self._now + LINGER_SECONDS

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event; what is to be done about it, in order."""
        self._now = now
        if self.phase is not Phase.OVER:
            self._take_in(event)
            while _PHASES[self.phase](self):
                pass
        out, self._out = self._out, []
        return out

    # --- events: they change facts -----------------------------------------------------------------------------------

    def _take_in(self, event: Event) -> None:
        match event:
            case TaskArrived():
                self._task_arrived(event)
            case TaskLost():
                self._task_lost(event.task)
            case MessageArrived():
                self._message_arrived(event.task, event.message)
            case WantedArrived():
                self._wanted_arrived(event.wanted)
            case CheckpointRead():
                self._checkpoint_read(event)
            case ManifestWritten():
                self._manifest_written(event)
            case Ticked():
                self._check_data_lost()

    def _task_arrived(self, event: TaskArrived) -> None:
        hello = event.hello
        if self.phase is Phase.CLOSING:
            self._do(Send(hello.task, Exit("the job is closing")))
        self.tasks[hello.task] = ConnectedTask(hello, self._now)
        if self._cause == "coordinator_restart":
            self.version = max(self.version, hello.version)
        if hello.profile is None:
            return
        if self.profile is None:
            self.profile = hello.profile
            self._losses = LossWindow(steps_per_epoch(hello.profile))
            self._do(Append(Profiled(hello.profile)), TellProfile(hello.profile))
        elif hello.profile != self.profile:
            self._fail(f"{hello.task} loaded a different task than before: {hello.profile} instead of {self.profile}")

    def _task_lost(self, name: str) -> None:
        task = self.tasks.pop(name, None)
        if task is None or self.phase in (Phase.GATHERING, Phase.CLOSING):
            return
        if self.phase is Phase.EVALUATING:
            if name == self._evaluator:
                self._begin_evaluating()  # the checkpoint is complete: any other worker will do
        elif name in self.members:
            self._regroup("server_lost" if task.is_server else "worker_lost", f"{name} was lost")
        elif self.phase is Phase.HALTING:
            self._answered(Phase.HALTING, name)

    def _wanted_arrived(self, wanted: Wanted) -> None:
        if self.wanted is not None and wanted.generation < self.wanted.generation:
            return
        self.wanted = wanted
        if wanted.directive is Directive.CANCEL and self.phase is not Phase.CLOSING:
            self._close("the job was cancelled", LET_GO)

    def _message_arrived(self, name: str, message: FromTask) -> None:
        if name not in self.tasks or getattr(message, "epoch", self.epoch) != self.epoch:
            return
        match message:
            case Pong():
                pass
            case Halted():
                if self.phase is Phase.HALTING and self._attempt is not None:
                    self._attempt.halted(name, message.holdings)
            case Assumed():
                self._answered(Phase.ASSUMING, name)
            case AssumeFailed():
                self._form_from = self._now + RETRY_SECONDS
                self._regroup(self._cause, f"{name} could not get its range: {message.reason}")
            case Joined():
                self._answered(Phase.JOINING, name)
            case Done():
                self._done(name, message)
            case DataLost():
                self._data_lost_at = self._now
                self._do(Note(f"{name} lost a data connection: {message.reason}"))
            case SnapshotTaken() | Saved() | SaveFailed():
                self._save_progress(name, message)
            case Evaluated():
                if self.phase is Phase.EVALUATING and name == self._evaluator:
                    self._finish(message.metrics, message.model)
            case Leave():
                self._wants_to_leave(self.tasks[name])
            case Failed():
                self._fail(message.traceback)

    def _answered(self, phase: Phase, name: str) -> None:
        if self.phase is phase and self._attempt is not None:
            self._attempt.awaiting.discard(name)

    def _wants_to_leave(self, task: ConnectedTask) -> None:
        task.wants_to_leave = True
        if self.phase is Phase.GATHERING and not task.is_server:
            self._dismiss(task)  # a worker holds nothing that is needed

    def _done(self, name: str, message: Done) -> None:
        if self.phase is not Phase.TRAINING:
            return
        self._losses.add(message.loss, message.n_examples)
        if self._gate.done(name, message.step):
            self._losses.close_step()
            self.version = self._gate.version
            self._stopped_at = self._now

    def _check_data_lost(self) -> None:
        """A data connection broke although all tasks live: form the membership anew, with new connections."""
        if self._data_lost_at is None or self._now < self._data_lost_at + DATA_LOST_SECONDS:
            return
        self._data_lost_at = None
        if self.phase in (Phase.JOINING, Phase.TRAINING):
            self._regroup("worker_lost", "a data connection was lost")

    # --- phases: they look at the facts; True: another phase has begun -----------------------------------------------

    def _gathering(self) -> bool:
        if self.wanted is None and not self._took_over:
            return False
        members = self._desired()
        if self._still_waits(members):
            return False
        if members.can_train or (self._directive is Directive.PAUSE and members.servers):
            return self._begin_attempt(members)
        if self._directive is Directive.RUN or self._now < self._gathering_since + STOPPING_SECONDS:
            return False
        # Told to stop, and nobody is left to stop: what there is, is the last checkpoint.
        if self._directive is Directive.PAUSE:
            self._pause()
        else:
            self._finish({})
        return True

    def _begin_attempt(self, members: Members) -> bool:
        if self.profile is None:
            return False  # servers are there to be paused before any worker was
        if self._n_attempts == MAX_ATTEMPTS:
            self._fail(f"no membership could be formed in {MAX_ATTEMPTS} attempts; the last one: {self._message}")
            return True
        self._n_attempts += 1
        self.epoch += 1
        self.members = members
        self._form_at_once = False
        self._expected = set()
        self._data_lost_at = None
        self._saving = None
        self._losses.drop_step()
        self._attempt = Attempt(self.epoch, members, self.profile, is_async=self.plan.is_async)
        self._do(Append(Forming(self.epoch)), *self._attempt.halts(self.tasks.values()))
        self.phase = Phase.HALTING
        return True

    def _halting(self) -> bool:
        attempt = self._open_attempt
        if attempt.awaiting:
            return False
        cover = attempt.cover(self.tasks, oldest_epoch=self._formed.epoch if self._formed else 0)
        if cover is not None:
            return self._begin_assuming(cover)
        self._do(ReadCheckpoint(self.epoch))
        self.phase = Phase.RESTORING
        return True

    def _checkpoint_read(self, event: CheckpointRead) -> None:
        if self.phase is not Phase.RESTORING or event.epoch != self.epoch:
            return
        if event.manifest is None and not self.members.workers:
            self._pause()  # before anything was trained
        elif event.manifest is None:
            self.checkpoint = None
            self._begin_assuming(Cover(0, ()))
        elif event.manifest.profile != self.profile:
            self._fail(f"the checkpoint is of a different task: {event.manifest.profile} instead of {self.profile}")
        else:
            self.checkpoint = Checkpoint(event.manifest.version, event.path)
            self._begin_assuming(Cover(event.manifest.version, event.manifest.sources))

    def _begin_assuming(self, cover: Cover) -> bool:
        self._do(*self._open_attempt.assumes(cover))
        self.phase = Phase.ASSUMING
        return True

    def _assuming(self) -> bool:
        if self._open_attempt.awaiting:
            return False
        self._do(*self._open_attempt.joins(self.tasks))
        self._let_leavers_go()
        self.phase = Phase.JOINING
        return True

    def _joining(self) -> bool:
        attempt = self._open_attempt
        if attempt.awaiting:
            return False
        assert self.profile is not None
        if attempt.members.workers:
            self._record_membership(attempt)
        self.version = attempt.version
        last_step = self.plan.last_step(self.profile)
        self._gate = make_gate(self.plan, attempt.members.workers, attempt.version, last_step)
        if self.checkpoint is None:
            self._save_at = self._now
        self._n_attempts = 0
        self.phase = Phase.TRAINING
        return True

    def _record_membership(self, attempt: Attempt) -> None:
        self._formed = Formed(
            epoch=attempt.epoch,
            generation=self._generation,
            at=self._now,
            step=attempt.version,
            workers=attempt.members.workers,
            servers=attempt.members.servers,
            cause=self._cause,
            pause_seconds=None if self._stopped_at is None else max(0.0, self._now - self._stopped_at),
            lost_steps=max(0, self.version - attempt.version),
            message=self._message,
        )
        self._do(Append(self._formed), TellMembership(self._formed))
        self._cause, self._message = "rescale", None

    def _training(self) -> bool:
        self._dismiss_unwanted()
        stop = self._reason_to_stop()
        if stop is None:
            self._do(*(Send(worker, Go(self.epoch, step)) for worker, step in self._gate.tickets()))
            return False
        return self._gate.is_quiet and stop()

    def _reason_to_stop(self) -> Callable[[], bool] | None:
        """What to do at the next step boundary other than the next step; None: nothing."""
        if self._gate.is_exhausted or self._directive is Directive.FINISH:
            return lambda: self._begin_saving(Then.FINISH)
        if self._directive is Directive.PAUSE:
            return lambda: self._begin_saving(Then.PAUSE)
        members = self._desired()
        if not members.can_train:
            return lambda: self._begin_saving(Then.EVACUATE)
        if members != self.members and (self.members.names - members.names or not self._still_waits(members)):
            return lambda: self._begin_attempt(members)
        if self._now >= self._save_at and self._saving is None:
            return lambda: self._begin_saving(Then.TRAIN)
        return None

    def _waiting(self) -> bool:
        """Of phases that end by an event."""
        return False

    def _closing(self) -> bool:
        if self._now < (self._deadline if self.tasks else self._linger_until):
            return False
        if self._ended is not None:
            self._do(TellResult(self._ended))
        self._do(Stop(self._exit_code))
        self.phase = Phase.OVER
        return True

    # --- checkpoints -------------------------------------------------------------------------------------------------

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

    # --- ends --------------------------------------------------------------------------------------------------------

    def _begin_evaluating(self) -> None:
        self._evaluator = next((name for name in self.members.workers if name in self.tasks), None)
        if self._evaluator is None:
            self._regroup(self._cause, "nobody is left to evaluate")
        else:
            self._do(Send(self._evaluator, Evaluate(self.epoch)))
            self.phase = Phase.EVALUATING

    def _finish(self, metrics: dict[str, float], model: str | None = None) -> None:
        self._end(success(self.version, self._losses.mean, metrics, self._checkpoint_path, model))
        self._close("the job is done", LET_GO)

    def _fail(self, error: str) -> None:
        if self.phase is not Phase.CLOSING:
            self._end(failure(self.version, self._losses.mean, error, self._checkpoint_path))
            self._close("the job has failed", USER_CODE_FAILED)

    def _end(self, ended: Ended) -> None:
        """Remember how the job ended. The service is told once the tasks have gone, after their last samples."""
        self._do(Append(ended))
        self._ended = ended

    def _pause(self) -> None:
        """The last word of this coordinator: an epoch without tasks."""
        self.epoch += 1
        formed = Formed(self.epoch, self._generation, self._now, self.version, (), (), "pause")
        self._do(Append(formed), TellMembership(formed))
        self._close("the job is paused", LET_GO)

    def _close(self, reason: str, code: int) -> None:
        self._do(*(Send(name, Exit(reason)) for name in sorted(self.tasks)))
        self._exit_code = code
        self._deadline = self._now + CLOSING_SECONDS
        self.phase = Phase.CLOSING

    # --- parts -------------------------------------------------------------------------------------------------------

    def _do(self, *instructions: Instruction) -> None:
        self._out.extend(instructions)

    @property
    def _open_attempt(self) -> Attempt:
        assert self._attempt is not None, "from HALTING on there is an attempt"
        return self._attempt

    @property
    def _directive(self) -> Directive:
        return self.wanted.directive if self.wanted else Directive.RUN

    @property
    def _generation(self) -> int:
        return self.wanted.generation if self.wanted else 0

    @property
    def _checkpoint_path(self) -> str | None:
        return self.checkpoint.path if self.checkpoint else None

    def _desired(self) -> Members:
        """Who should take part. Without a word from the service: who is there; when stopping: likewise."""
        running = self.wanted is not None and self.wanted.directive is Directive.RUN
        wanted = self.wanted.tasks if self.wanted is not None and running else None
        return choose_members(self.tasks, wanted, self.members)

    def _still_waits(self, members: Members) -> bool:
        """Whether more tasks should be waited for before forming a membership of `members`."""
        if self._now < self._form_from:
            return True
        if self._expected - self.tasks.keys() and self._now < self._gathering_since + REGROUP_SECONDS:
            return True
        wanted = self.wanted.tasks if self.wanted is not None else self._expected
        if self._form_at_once or wanted <= self.tasks.keys() or self._directive is not Directive.RUN:
            return False
        arrivals = [self.tasks[name].arrived_at for name in members.names - self.members.names]
        if not arrivals:
            return False
        return self._now < min(max(arrivals) + ARRIVAL_SECONDS, min(arrivals) + MAX_ARRIVAL_SECONDS)

    def _regroup(self, cause: str, message: str) -> None:
        """The membership no longer holds: form a new one with who is there, at once."""
        self._do(Note(f"forming a new membership: {message}"))
        self._message = message
        # A membership that never trained cannot have lost anybody; the loss of a server is the graver news.
        if self._formed is not None and self._cause != "server_lost":
            self._cause = cause
        self._form_at_once = True
        self._saving = None
        self._save_again = None
        self._gathering_since = self._now
        self.phase = Phase.GATHERING

    def _let_leavers_go(self) -> None:
        """Let those go that asked to leave, or take no part and are not wanted."""
        for name, task in sorted(self.tasks.items()):
            unwanted = self.wanted is not None and name not in self.wanted.tasks and name not in self.members
            if task.wants_to_leave or unwanted:
                self._dismiss(task)

    def _dismiss_unwanted(self) -> None:
        """Let tasks go that arrived although nobody wants them (any more)."""
        if self.wanted is None or self.wanted.directive is not Directive.RUN:
            return
        for name, task in self.tasks.items():
            overdue = name not in self.wanted.tasks and self._now >= task.arrived_at + UNWANTED_SECONDS
            if name not in self.members and (overdue or task.wants_to_leave):
                self._dismiss(task)

    def _dismiss(self, task: ConnectedTask) -> None:
        if not task.is_dismissed:
            task.is_dismissed = True
            self._do(Send(task.name, Exit("no longer wanted")))


def _first_cause(past: Past) -> str:
    if past.formed is None:
        return "start"
    return "resume" if past.is_paused else "coordinator_restart"


_PHASES: dict[Phase, Callable[[Coordinator], bool]] = {
    Phase.GATHERING: Coordinator._gathering,
    Phase.HALTING: Coordinator._halting,
    Phase.RESTORING: Coordinator._waiting,
    Phase.ASSUMING: Coordinator._assuming,
    Phase.JOINING: Coordinator._joining,
    Phase.TRAINING: Coordinator._training,
    Phase.SAVING: Coordinator._saving_phase,
    Phase.EVALUATING: Coordinator._waiting,
    Phase.CLOSING: Coordinator._closing,
    Phase.OVER: Coordinator._waiting,
}
