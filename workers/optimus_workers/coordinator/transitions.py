"""The coordinator's state machine: events come in, effects go out; it does no input or output of its own.

    GATHERING ─▶ HALTING ─▶ (RESTORING) ─▶ ASSUMING ─▶ JOINING ─▶ TRAINING ◀──▶ SAVING ─▶ EVALUATING ─▶ CLOSING ─▶ OVER
        ▲           │            │             │           │          │            │          │
        └───────────┴────────────┴─────────────┴───────────┴──────────┴────────────┴──────────┘   a member is lost

Every change of the membership, planned or not, takes the same way: all tasks halt, the servers report what they hold,
the newest version that they have together is dealt out anew, the workers fetch it, training goes on.

`handle` looks up the handler of the present phase and the event's class, which changes the state and returns effects;
then it lets each phase go on, as far as it can, to the next. An event without a row in the table is an
`InvalidTransition`. Events that are leftovers of a race have a row that ignores them and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, get_args

from optimus_workers.coordinator.events import (
    CheckpointRead,
    Effects,
    Event,
    ManifestWritten,
    MembershipRefused,
    MessageArrived,
    ReportMembership,
    TaskArrived,
    TaskLost,
    TaskSilent,
    Ticked,
    WantedArrived,
)
from optimus_workers.coordinator.handlers import checkpoint, ending, membership_change, script, tasks, training
from optimus_workers.coordinator.job_settings import JobSettings
from optimus_workers.coordinator.journal import Past
from optimus_workers.coordinator.state import Phase, State, initial_state
from optimus_workers.errors import LET_GO, USER_CODE_FAILED
from optimus_workers.wire.messages import (
    Assumed,
    AssumeFailed,
    CommandEnded,
    CommandIdle,
    CommandQuiet,
    CommandStarted,
    CommandStopped,
    DataLost,
    Done,
    Evaluated,
    Failed,
    FromTask,
    Halted,
    Hello,
    Joined,
    Leave,
    Pong,
    Publish,
    Saved,
    SaveFailed,
    SnapshotTaken,
)

LINGER_SECONDS = 3.0
"""How long a coordinator of a job that has ended stays to dismiss the tasks that connect again."""

Kind = type[Event] | type[FromTask]
"""The class of an event; for `MessageArrived` the class of its message."""


class InvalidTransition(Exception):
    """An event arrived that has no rule in the present phase; the state is unchanged. The text says what led there."""

    def __init__(self, state: State, event: Event) -> None:
        self.phase = state.phase
        self.event = event
        story = "; ".join(f"{kind}: {' → '.join(phases)}" for kind, phases in state.story) or "nothing known"
        what = f"{type(event.message).__name__} of {event.task}" if isinstance(event, MessageArrived) else f"{event}"
        super().__init__(
            f"{what} has no rule in the phase {state.phase} (epoch {state.epoch}, step {state.version}); "
            f"what happened before: {story}"
        )


def begin(settings: JobSettings, past: Past, now: float) -> tuple[State, Effects]:
    """A coordinator's state at its start, and what it does first.

    It reports again what the coordinators of `past` may not have reported.
    """
    state = initial_state(settings, past, now)
    effects = membership_change.report_profile(state)
    effects += [ReportMembership(formed) for formed in past.unreported]
    if past.ended is not None:
        state.ending.ended = past.ended
        state.ending.linger_until = now + LINGER_SECONDS
        code = USER_CODE_FAILED if past.ended.outcome == "failed" else LET_GO
        effects += ending.close(state, "the job has ended", code)
    return state, effects


def handle(state: State, event: Event, now: float) -> Effects:
    """Take in one event: change the state, and return what to do about it, in order.

    A message of a task that has disconnected, and whatever belongs to another membership epoch, is late: it changes
    nothing in any phase.

    Raises:
        InvalidTransition: the event has no rule in the present phase.
    """
    state.now = now
    path = [state.phase]
    if isinstance(event, MessageArrived):
        kind: Kind = type(event.message)
        is_late = event.task not in state.tasks or getattr(event.message, "epoch", state.epoch) != state.epoch
    else:
        kind = type(event)
        is_late = isinstance(event, CheckpointRead) and event.epoch != state.epoch
    effects: Effects = []
    if not is_late:
        handler = TRANSITIONS.get((state.phase, kind))
        if handler is None:
            raise InvalidTransition(state, event)
        if isinstance(event, MessageArrived):
            effects += handler(state, event.task, event.message)
        else:
            effects += handler(state, event)
    while True:
        phase = state.phase
        if phase is not path[-1]:
            path.append(phase)
        effects += _PROCEED[phase](state)
        if state.phase is phase:
            break
    if len(path) > 1:
        state.story.append((kind.__name__, tuple(path)))
    return effects


# --- the table -------------------------------------------------------------------------------------------------------

Handler = Callable[..., Effects]
"""Called with the state and the event; for a message with the state, the task's name and the message."""


class Row(NamedTuple):
    """In these phases this handler takes in events of these kinds."""

    phases: Iterable[Phase]
    kinds: Iterable[Kind]
    handler: Handler


def _ignore(_state: State, *_event: object) -> Effects:
    return []


def _wait(_state: State) -> Effects:
    return []


_ALL = frozenset(Phase)
_ALIVE = _ALL - {Phase.CLOSING, Phase.OVER}
KINDS: frozenset[Kind] = frozenset({*get_args(Event), *get_args(FromTask)} - {MessageArrived, Hello})
"""All that can happen. The shell makes a `TaskArrived` of each `Hello`."""
_GIVEN_UP = frozenset({Phase.GATHERING, Phase.CLOSING})
"""An attempt or a membership was given up, but its epoch is still the newest."""
_WRITING = frozenset({Phase.TRAINING, Phase.SAVING, Phase.EVALUATING})
"""Members may be writing a checkpoint: training goes on meanwhile, and a failed last one is gone on without."""

_ROWS = (
    Row([Phase.OVER], KINDS, _ignore),  # the process is about to exit
    # Tasks arrive, leave and die at any time.
    Row(_ALIVE, [TaskArrived], membership_change.task_arrived),
    Row([Phase.CLOSING], [TaskArrived], membership_change.task_arrived_while_closing),
    Row(_ALIVE - {Phase.GATHERING, Phase.HALTING, Phase.EVALUATING}, [TaskLost], tasks.lost),
    Row([Phase.HALTING], [TaskLost], tasks.lost_while_halting),
    Row([Phase.EVALUATING], [TaskLost], ending.lost_while_evaluating),
    Row(_GIVEN_UP, [TaskLost], tasks.forget_lost),
    Row(_ALIVE, [TaskSilent], tasks.silent),
    Row([Phase.CLOSING], [TaskSilent], _ignore),  # no phase waits for it any more
    Row(_ALL - {Phase.GATHERING, Phase.OVER}, [Leave], tasks.wants_to_leave),
    Row([Phase.GATHERING], [Leave], tasks.wants_to_leave_while_gathering),
    Row(_ALL - {Phase.OVER}, [Pong], _ignore),  # the shell's lease is all that it is for
    Row(_ALIVE, [WantedArrived], membership_change.wanted_arrived),
    Row([Phase.CLOSING], [WantedArrived], membership_change.wanted_arrived_while_closing),
    # A data connection can break whenever there is one, and its loss may be noticed late.
    Row(_ALL - {Phase.OVER}, [DataLost], tasks.data_lost),
    Row([Phase.JOINING, Phase.TRAINING], [Ticked], tasks.reconnect),
    Row(_ALL - {Phase.JOINING, Phase.TRAINING, Phase.OVER}, [Ticked], tasks.forget_data_lost),
    # A change of the membership.
    Row([Phase.HALTING], [Halted], membership_change.halted),
    # All servers are awaited, but of an all-reduce job's workers only the members: another one may answer much later.
    Row(_ALL - {Phase.HALTING, Phase.OVER}, [Halted], _ignore),
    Row([Phase.RESTORING], [CheckpointRead], membership_change.checkpoint_read),
    Row(_GIVEN_UP, [CheckpointRead], _ignore),  # the attempt that needs it was given up
    Row([Phase.ASSUMING], [Assumed], membership_change.answered),
    # After one failure more may follow, each of which puts off the next attempt.
    Row([Phase.ASSUMING, Phase.GATHERING], [AssumeFailed], membership_change.assume_failed),
    Row([Phase.CLOSING], [AssumeFailed], _ignore),  # the sources exit as well
    Row([Phase.JOINING], [Joined], membership_change.answered),
    Row(_GIVEN_UP, [Assumed, Joined], _ignore),  # of the attempt that was given up
    Row(_ALL - {Phase.OVER}, [Publish], training.pass_on),
    # The processes of a script.
    Row([Phase.HALTING], [CommandStopped], script.stopped),
    Row([Phase.HALTING], [CommandQuiet], script.quiet),
    Row(_ALL - {Phase.HALTING, Phase.OVER}, [CommandStopped, CommandQuiet], _ignore),  # of an attempt that was given up
    Row([Phase.JOINING], [CommandStarted], script.started),
    Row(_GIVEN_UP, [CommandStarted], _ignore),  # of the attempt that was given up
    Row([Phase.JOINING, Phase.TRAINING], [CommandEnded], script.command_ended),
    Row(_ALL - {Phase.JOINING, Phase.TRAINING, Phase.OVER}, [CommandEnded], _ignore),  # they are stopped anyway
    Row([Phase.JOINING, Phase.TRAINING], [CommandIdle], script.command_idle),
    Row(_ALL - {Phase.JOINING, Phase.TRAINING, Phase.OVER}, [CommandIdle], _ignore),  # they are stopped anyway
    # Steps and checkpoints.
    Row([Phase.TRAINING], [Done], training.done),
    Row(_GIVEN_UP, [Done], _ignore),  # done before the worker got the message to halt or to exit
    Row(_WRITING | _GIVEN_UP, [SnapshotTaken], checkpoint.snapshot_taken),
    Row(_WRITING | _GIVEN_UP, [Saved], checkpoint.saved),
    Row(_WRITING | _GIVEN_UP, [SaveFailed], checkpoint.save_failed),
    Row(_ALL - {Phase.OVER}, [ManifestWritten], checkpoint.manifest_written),  # takes as long as the storage takes
    # The end.
    Row([Phase.EVALUATING], [Evaluated], ending.evaluated),
    Row(_GIVEN_UP, [Evaluated], _ignore),  # of a worker that was replaced as evaluator
    Row(_ALIVE, [Failed], ending.user_code_failed),
    Row(_ALIVE, [MembershipRefused], ending.membership_refused),
    Row([Phase.CLOSING], [Failed, MembershipRefused], _ignore),  # the job has its result, or is cancelled
)


def _table(rows: Iterable[Row]) -> dict[tuple[Phase, Kind], Handler]:
    table: dict[tuple[Phase, Kind], Handler] = {}
    for phases, kinds, handler in rows:
        for key in ((phase, kind) for phase in phases for kind in kinds):
            assert key not in table, f"two rows for {key}"
            table[key] = handler
    return table


TRANSITIONS = _table(_ROWS)

_PROCEED: dict[Phase, Callable[[State], Effects]] = {
    Phase.GATHERING: membership_change.gather,
    Phase.HALTING: membership_change.find_newest_state,
    Phase.RESTORING: _wait,
    Phase.ASSUMING: membership_change.join_workers,
    Phase.JOINING: membership_change.begin_training,
    Phase.TRAINING: training.train,
    Phase.SAVING: checkpoint.go_on_saving,
    Phase.EVALUATING: _wait,
    Phase.CLOSING: ending.exit_when_closed,
    Phase.OVER: _wait,
}
"""After each event: what the phase does by itself, which may lead to another phase."""
