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

from optimus_workers.coordinator.elastic import recounted
from optimus_workers.coordinator.events import (
    CheckpointRead,
    Directive,
    Event,
    ManifestWritten,
    MembershipRefused,
    MessageArrived,
    TaskArrived,
    TaskLost,
    Ticked,
    Wanted,
    WantedArrived,
)
from optimus_workers.coordinator.forming import MembershipForming
from optimus_workers.coordinator.gate import make_gate
from optimus_workers.coordinator.instructions import (
    Append,
    Instruction,
    Note,
    Send,
    TellMembership,
    TellProfile,
)
from optimus_workers.coordinator.journal import Past, Profiled, Recounted
from optimus_workers.coordinator.losses import LossWindow
from optimus_workers.coordinator.membership import ConnectedTask, Members
from optimus_workers.coordinator.phases import (
    DATA_LOST_SECONDS,
    LINGER_SECONDS,
    RETRY_SECONDS,
    Phase,
)
from optimus_workers.coordinator.plan import JobPlan, steps_per_epoch
from optimus_workers.coordinator.saving import Then
from optimus_workers.errors import LET_GO, USER_CODE_FAILED
from optimus_workers.wire.messages import (
    Assumed,
    AssumeFailed,
    DataLost,
    Done,
    Evaluated,
    Exit,
    Failed,
    FromTask,
    Go,
    Halted,
    Joined,
    Leave,
    Pong,
    Publish,
    Published,
    Recount,
    Saved,
    SaveFailed,
    SnapshotTaken,
)
from optimus_workers.wire.values import followed


class Coordinator(MembershipForming):
    """All that a coordinator knows and decides. `handle` is the only door.

    `now` is in seconds since the Unix epoch and never goes back.
    """

    def __init__(self, plan: JobPlan, past: Past, now: float) -> None:
        super().__init__(plan, past, now)
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

    @property
    def is_settled(self) -> bool:
        """Whether nobody waits to be let go and nothing is under way: a good moment for another to take over."""
        waits = any(task.wants_to_leave for task in self.tasks.values())
        return self.phase in (Phase.GATHERING, Phase.TRAINING, Phase.OVER) and not waits

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
            case MembershipRefused():
                self._fail(f"the service refused a membership of the job: {event.reason}", permanent=True)
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
            self._fail(
                f"{hello.task} loaded a different task than before: {hello.profile} instead of {self.profile}",
                permanent=True,
            )

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
        if wanted.known_epoch > self.epoch:
            # Only a journal that is gone knows fewer: the service takes a number that it knows for a repetition.
            self.epoch = wanted.known_epoch
            self._do(Note(f"the journal was lost: membership epochs go on after {self.epoch}, which the service knows"))
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
                self._data_lost(name, message)
            case SnapshotTaken() | Saved() | SaveFailed():
                self._save_progress(name, message)
            case Evaluated():
                if self.phase is Phase.EVALUATING and name == self._evaluator:
                    self._finish(message.metrics, message.model)
            case Publish():
                self._pass_on(name, message)
            case Leave():
                self._wants_to_leave(self.tasks[name])
            case Failed():
                self._fail(message.traceback)

    def _answered(self, phase: Phase, name: str) -> None:
        if self.phase is phase and self._attempt is not None:
            self._attempt.awaiting.discard(name)

    def _pass_on(self, name: str, message: Publish) -> None:
        """What a member of a process group says to the others."""
        others = (worker for worker in self.members.workers if worker != name)
        self._do(*(Send(other, Published(message.epoch, message.key, message.value)) for other in others))

    def _wants_to_leave(self, task: ConnectedTask) -> None:
        task.wants_to_leave = True
        if self.phase is Phase.GATHERING and not task.is_server and not self.plan.is_allreduce:
            self._dismiss(task)  # a worker holds nothing that is needed

    def _done(self, name: str, message: Done) -> None:
        if self.phase is not Phase.TRAINING:
            return
        self._losses.add(message.loss, message.n_examples)
        self._noise_scale = message.noise_scale or self._noise_scale
        if self._gate.done(name, message.step):
            self._losses.close_step()
            self._complaints.clear()
            self.version = self._gate.version
            self._stopped_at = self._now

    def _data_lost(self, name: str, message: DataLost) -> None:
        self._data_lost_at = self._now
        self._do(Note(f"{name} lost a data connection: {message.reason}"))
        for task in self.tasks.values():
            if message.server is not None and task.hello.address == message.server and task.name != name:
                self._complaints.add(name, task.name)

    def _check_data_lost(self) -> None:
        """A data connection broke although all tasks live: form the membership anew, with new connections."""
        if self._data_lost_at is None or self._now < self._data_lost_at + DATA_LOST_SECONDS:
            return
        self._data_lost_at = None
        if self.phase in (Phase.JOINING, Phase.TRAINING):
            self._regroup("worker_lost", self._let_cut_off_go() or "a data connection was lost")

    def _let_cut_off_go(self) -> str | None:
        """Two tasks that cannot reach each other would be the end of every membership that has both: one has to go.

        It hands over what it holds, exits, and the service starts another one in its place.
        """
        name = self._complaints.cut_off(self.members)
        if name is None:
            return None
        self._complaints.clear()
        self._wants_to_leave(self.tasks[name])
        return f"{name} is cut off from another task"

    # --- phases of training: they look at the facts; True: another phase has begun ------------------------------------

    def _training(self) -> bool:
        self._dismiss_unwanted()
        stop = self._reason_to_stop()
        if stop is None:
            self._recount()
            self._do(*(Send(worker, Go(self.epoch, step)) for worker, step in self._gate.tickets()))
            return False
        return self._gate.is_quiet and stop()

    def _recount(self) -> None:
        """At a step boundary: if the gradients' noise is another by now, so is the worth of an elastic batch."""
        if self.plan.elastic is None or self._noise_scale is None or not self._gate.is_quiet or not self._batches:
            return
        batch = recounted(self._batches[-1], self.version, self._noise_scale)
        if batch is None:
            return
        assert self.profile is not None, "somebody trains"
        self._batches = followed(self._batches, batch)
        self._do(Append(Recounted(batch)))
        self._do(*(Send(worker, Recount(self.epoch, batch)) for worker in self.members.workers))
        last_step = self.plan.last_step(self.profile, batch)
        self._gate = make_gate(self.plan, self.members.workers, self.version, last_step)

    def _begin_batch(self, members: Members) -> bool:
        self._cause = "batch"
        return self._begin_attempt(members)

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
        batch = self._wanted_batch(members) if members == self.members else None
        if batch is not None and batch != self._batches[-1].size:
            return lambda: self._begin_batch(members)
        if self._now >= self._save_at and self._saving is None:
            return lambda: self._begin_saving(Then.TRAIN)
        return None

    def _waiting(self) -> bool:
        """Of phases that end by an event."""
        return False


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
