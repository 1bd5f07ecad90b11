"""Which connected tasks should take part, which are dismissed, and what the loss of one means. Pure handlers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from optimus_contract.membership import Cause
from optimus_workers.coordinator.events import Effects, Log, ReportSilence, Send, TaskLost, TaskSilent
from optimus_workers.coordinator.membership import ConnectedTask, Members, choose_group, choose_members
from optimus_workers.coordinator.state import Phase, State
from optimus_workers.wire.messages import DataLost, Exit, Leave


def desired_members(state: State) -> Members:
    """The tasks that should take part: those wanted, or all connected ones if nothing is known or the job stops."""
    wanted = state.wanted_tasks if state.wanted is not None and state.wanted.directive == "run" else None
    if state.settings.is_script:
        members = choose_members(state.tasks, wanted, state.members)
        return Members(members.workers, (), is_group=True)
    if state.settings.is_allreduce:
        holders = state.formed.workers if state.formed else ()
        return choose_group(state.tasks, wanted, state.members, holders)
    return choose_members(state.tasks, wanted, state.members)


def regroup(state: State, cause: Cause, message: str) -> Effects:
    """The membership no longer holds: form a new one of the connected tasks, at once."""
    change = state.change
    change.message = message
    # A membership that never trained cannot have lost a task; the loss of a server is the graver news.
    if state.formed is not None and change.cause != "server_lost":
        change.cause = cause
    change.at_once = True
    change.since = state.now
    state.checkpoints.progress = None
    state.checkpoints.retry = None
    state.phase = Phase.GATHERING
    return [Log(f"forming a new membership: {message}")]


# --- losses ----------------------------------------------------------------------------------------------------------


def silent(state: State, event: TaskSilent) -> Effects:
    """The task is stopped or cannot be reached: its owner gets a note, because its process may run on for long."""
    if event.task not in state.tasks:
        return []
    state.silent.add(event.task)
    go_on = (
        "The others go on without it"
        if state.suffices(_without(state.members, event.task))
        else "Training stands still"
    )
    computes = "; what it computes meanwhile does not count."
    if state.settings.is_script:
        computes = ". The processes of its script end soon after its last sign of life; what they have saved counts."
    return [
        ReportSilence(
            f"{event.task} has not answered for {event.seconds:.0f} s: its process is stopped, or its machine stands "
            f"still or cannot be reached. {go_on}, until it answers or another takes its place{computes}"
        )
    ]


def _without(members: Members, task: str) -> Members:
    workers, servers = (tuple(name for name in names if name != task) for names in (members.workers, members.servers))
    return replace(members, workers=workers, servers=servers)


def answers_again(state: State, name: str) -> Effects:
    """A task connects: one that was silent is news."""
    if name not in state.silent:
        return []
    state.silent.discard(name)
    return [ReportSilence(f"{name} answers again, and takes part from the next change of the membership on.")]


def forget_lost(state: State, event: TaskLost) -> Effects:
    """GATHERING, CLOSING: no membership holds that the task could break."""
    state.tasks.pop(event.task, None)
    return []


def lost(state: State, event: TaskLost) -> Effects:
    """A lost member ends the membership; any other task is not missed."""
    task = state.tasks.pop(event.task, None)
    if task is None or event.task not in state.members:
        return []
    return regroup(state, "server_lost" if task.is_server else "worker_lost", f"{event.task} {_why_lost(state, event)}")


def _why_lost(state: State, event: TaskLost) -> str:
    return "did not answer" if event.task in state.silent else "was lost"


def lost_while_halting(state: State, event: TaskLost) -> Effects:
    """What the task held is gone, so its answer is no longer waited for."""
    state.change.present.awaiting.discard(event.task)
    return lost(state, event)


def data_lost(state: State, name: str, message: DataLost) -> Effects:
    """A data connection broke. If the other task died, its own loss follows; otherwise see `reconnect`."""
    state.partition.data_lost(state.now)
    for task in state.tasks.values():
        if message.server is not None and task.hello.address == message.server and task.name != name:
            state.partition.add(name, task.name)
    return [Log(f"{name} lost a data connection: {message.reason}")]


def reconnect(state: State, _event: object) -> Effects:
    """JOINING, TRAINING: a data connection broke although all tasks live: a new membership makes new connections.

    If the same pair of tasks failed before, every membership with both would end like this: one of them is asked to
    leave. It hands over what it holds, exits, and the service starts another task in its place.
    """
    if not state.partition.take_overdue(state.now):
        return []
    name = state.partition.cut_off(state.members)
    if name is None:
        return regroup(state, "worker_lost", "a data connection was lost")
    state.partition.clear()
    state.tasks[name].wants_to_leave = True
    return regroup(state, "worker_lost", f"{name} is cut off from another task")


def forget_data_lost(state: State, _event: object) -> Effects:
    """Other phases: the next membership makes new connections anyway, or none are needed."""
    state.partition.take_overdue(state.now)
    return []


# --- leaving ---------------------------------------------------------------------------------------------------------


def wants_to_leave(state: State, name: str, _message: Leave) -> Effects:
    """The task leaves with the next change of the membership."""
    state.tasks[name].wants_to_leave = True
    return []


def wants_to_leave_while_gathering(state: State, name: str, _message: Leave) -> Effects:
    """A worker of a job with servers holds nothing that is needed, so it is dismissed at once."""
    task = state.tasks[name]
    task.wants_to_leave = True
    return _dismiss(task) if state.settings.has_servers and not task.is_server else []


def dismiss_leavers(state: State, but: Members) -> Effects:
    """Dismiss the tasks that asked to leave, or that neither take part nor are wanted, except those in `but`."""
    effects: Effects = []
    for name, task in sorted(state.tasks.items()):
        if name in but:
            continue
        if task.wants_to_leave or (name not in state.members and _is_unwanted(state, task)):
            effects += _dismiss(task)
    return effects


def dismiss_unwanted(state: State, but: Collection[str] = ()) -> Effects:
    """Dismiss tasks that arrived although they are not, or no longer, wanted, except those in `but`."""
    if state.wanted is None or state.wanted.directive != "run":
        return []
    effects: Effects = []
    for name, task in state.tasks.items():
        takes_part = name in state.members or name in but
        if not takes_part and (task.wants_to_leave or _is_unwanted(state, task)):
            effects += _dismiss(task)
    return effects


def _is_unwanted(state: State, task: ConnectedTask) -> bool:
    """Whether the service has left the task out since it arrived.

    It says that it wants a task before it starts it. What it said earlier tells nothing: a coordinator that does not
    reach the service for minutes would dismiss each task that is started, until these exits fail the job.
    """
    return state.wanted is not None and task.name not in state.wanted_tasks and state.heard_at >= task.arrived_at


def _dismiss(task: ConnectedTask) -> Effects:
    if task.is_dismissed:
        return []
    task.is_dismissed = True
    return [Send(task.name, Exit("no longer wanted"))]
