"""What a coordinator knows, and what its parts share: who is there, who should be, what is to be done. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from optimus_workers.coordinator.attempt import Attempt
from optimus_workers.coordinator.complaints import Complaints
from optimus_workers.coordinator.events import (
    Directive,
    Wanted,
)
from optimus_workers.coordinator.gate import Gate, make_gate
from optimus_workers.coordinator.instructions import (
    Instruction,
    Note,
    Send,
)
from optimus_workers.coordinator.journal import Ended, Past
from optimus_workers.coordinator.losses import LossWindow
from optimus_workers.coordinator.membership import ConnectedTask, Members, choose_group, choose_members
from optimus_workers.coordinator.phases import (
    ARRIVAL_SECONDS,
    MAX_ARRIVAL_SECONDS,
    REGROUP_SECONDS,
    UNWANTED_SECONDS,
    WORKER_START_SECONDS,
    Phase,
)
from optimus_workers.coordinator.plan import JobPlan, steps_per_epoch
from optimus_workers.coordinator.saving import Saving, Then
from optimus_workers.coordinator.scaling import batch_at
from optimus_workers.errors import LET_GO
from optimus_workers.wire.messages import (
    Exit,
)
from optimus_workers.wire.values import GlobalBatch

NOBODY = Members()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest complete checkpoint of the history that is being trained."""

    version: int
    path: str


class Facts:
    """All that a coordinator knows. Events change it; the phases, in the classes above this one, act on it."""

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
        self._batches = past.batches
        self._cause = _first_cause(past)
        self._message: str | None = None
        self._took_over = past.formed is not None and not past.is_paused
        self._expected = self._holders(past) if self._took_over else set[str]()
        self._gathering_since = now
        self._form_at_once = False
        self._form_from = now
        # Forming and training.
        self._attempt: Attempt | None = None
        self._n_attempts = 0
        self._gate: Gate = make_gate(plan, (), self.version, None)
        self._losses = LossWindow(steps_per_epoch(past.profile) if past.profile else 1.0)
        self._noise_scale: float | None = None
        """Of the gradients, as worker 0 told it last."""
        self._stopped_at: float | None = None
        self._data_lost_at: float | None = None
        self._complaints = Complaints()
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

    def _batch_at(self, step: int) -> GlobalBatch | None:
        """The batch of the membership that a step belonged to; None: there is none (async, or nothing known)."""
        return None if self.plan.is_async or self.profile is None else batch_at(self._batches, step, self.profile)

    def _wanted_batch(self, members: Members) -> int | None:
        """The elastic batch that the service wants of exactly these members; None: no other than there is."""
        wanted = self.wanted
        if self.plan.elastic is None or wanted is None or wanted.tasks != members.names:
            return None
        return wanted.global_batch

    @property
    def _told_version(self) -> int:
        """Steps completed, in steps of the base batch."""
        batch = self._batch_at(self.version)
        return self.version if batch is None else batch.told_step(self.version)

    def _do(self, *instructions: Instruction) -> None:
        self._out.extend(instructions)

    def _holders(self, past: Past) -> set[str]:
        """The tasks whose memory has the state."""
        if past.formed is None:
            return set()
        return set(past.formed.workers if self.plan.is_allreduce else past.formed.servers)

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
        if self.plan.is_allreduce:
            return choose_group(self.tasks, wanted, self.members, self._formed.workers if self._formed else ())
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
        arrived = [self.tasks[name] for name in members.names - self.members.names]
        if not arrived:
            return False
        times = [task.arrived_at for task in arrived]
        if all(task.is_server for task in arrived):
            return self._now < min(times) + WORKER_START_SECONDS
        return self._now < min(max(times) + ARRIVAL_SECONDS, min(times) + MAX_ARRIVAL_SECONDS)

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

    def _let_leavers_go(self, but: Members = NOBODY) -> None:
        """Let those go that asked to leave, or take no part and are not wanted; not `but` these."""
        for name, task in sorted(self.tasks.items()):
            if name in but:
                continue
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
