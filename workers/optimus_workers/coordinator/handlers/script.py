"""What is particular to a script: its processes take their steps, save and end by themselves. Pure handlers.

An agent per worker starts the processes, reports how far they are, and stops them when the membership changes:

    HALTING: every agent stops its processes ─▶ JOINING: every agent starts new ones ─▶ TRAINING: worker 0 reports steps
"""

from __future__ import annotations

from optimus_contract.telemetry import Note
from optimus_workers.coordinator.attempt import Attempt, ScriptAttempt
from optimus_workers.coordinator.events import Effects, Log, ReportNote, Send
from optimus_workers.coordinator.handlers.ending import fail, finish, pause
from optimus_workers.coordinator.handlers.tasks import dismiss_leavers
from optimus_workers.coordinator.job_settings import next_batch
from optimus_workers.coordinator.membership import Members, VersionSources
from optimus_workers.coordinator.state import CommandEnds, Phase, State
from optimus_workers.wire.messages import (
    CommandEnded,
    CommandHung,
    CommandIdle,
    CommandQuiet,
    CommandStarted,
    CommandStopped,
    Recount,
)
from optimus_workers.wire.values import TaskProfile

FAILURE_SECONDS = 5.0
"""Processes fail when one that they talk to is gone. A member that is lost itself is noticed within this time, and then
the failure was a consequence of that."""
NOT_RUNNABLE = (126, 127)
"""Exit codes of a command that cannot be started: another attempt cannot either."""

END_SECONDS = 10.0
"""So long the processes of a worker may do nothing once those of worker 0 have ended well: they wait for something that
does not come."""
COMPLETE_SECONDS = 60.0
"""The same for worker 0, which may have to save something, after its last step."""


def new_attempt(state: State, members: Members, profile: TaskProfile) -> ScriptAttempt:
    """The next attempt at a membership of `members`."""
    state.training.command, state.training.idle = None, {}
    at_once = state.change.cause == "worker_lost"
    keeps = _keeps_processes(state, members)
    return ScriptAttempt(state.epoch, members, profile, version=state.version, at_once=at_once, keeps_processes=keeps)


def _keeps_processes(state: State, members: Members) -> bool:
    """Whether a new coordinator finds the last membership as it was: nothing has to be stopped then."""
    change = state.change
    return (
        change.cause == "coordinator_restart"
        and change.n_attempts == 1
        and state.directive == "run"
        and state.settings.elastic is None
        and state.tasks.keys() == set(members.workers)
        and _is_running(state, members)
    )


def _is_running(state: State, members: Members) -> bool:
    """Whether the processes of exactly these workers, all connected, run as one membership: the last one, which may be
    later than the journal knows if that is of a backup."""
    running = {(task.hello.running_epoch, task.hello.running_workers) for task in state.tasks.values()}
    if len(running) != 1:
        return False
    formed = state.formed
    epoch, n_workers = running.pop()
    if formed is not None and epoch == formed.epoch:
        return members.workers == formed.workers
    return epoch is not None and epoch > (formed.epoch if formed else 0) and n_workers == len(members.workers)


def stopped(state: State, name: str, message: CommandStopped) -> Effects:
    """HALTING: the processes of a worker have ended."""
    effects = _attempt(state).stopped(name, message)
    if message.killed_after is not None:
        state.change.message = (
            f"the command of {name} did not end within {message.killed_after:.0f} s of being asked to "
            "(--stop-seconds), and was killed"
        )
    training = state.training
    # A new coordinator has seen no step: the agents say when the last one was.
    if message.since_step is not None and state.formed is not None:
        training.last_step_at = max(training.last_step_at or 0.0, state.now - message.since_step)
    return [*effects]


def quiet(state: State, name: str, message: CommandQuiet) -> Effects:
    """HALTING: the processes of a worker may be ended, or not any more, as far as they alone are concerned."""
    return [*_attempt(state).quiet(name, message)]


def started(state: State, name: str, message: CommandStarted) -> Effects:
    """JOINING: the processes of a worker run."""
    _attempt(state).started(name, message)
    return []


def _attempt(state: State) -> ScriptAttempt:
    attempt = state.change.present
    assert isinstance(attempt, ScriptAttempt), "only agents of scripts send this"
    return attempt


def all_stopped(state: State, newest: VersionSources) -> Effects | None:
    """HALTING: no process runs any more. What follows instead of another membership; None: nothing."""
    attempt = _attempt(state)
    state.version = newest.version
    was = state.formed.workers if state.formed else ()
    is_done = bool(was) and attempt.finished >= set(was)
    if state.settings.max_steps is not None and state.reported_version >= state.settings.max_steps:
        is_done = True
    if is_done or state.directive == "finish":
        return finish(state, {})
    if state.directive == "pause":
        return pause(state)
    if attempt.members.can_train:
        return None
    state.change.since = state.now
    state.phase = Phase.GATHERING
    return dismiss_leavers(state, but=Members())


def recount_script(state: State, attempt: Attempt) -> Effects:
    """JOINING: the script has said from which step it goes on. With weak scaling, steps before it count as the steps of
    the memberships that made them, and those after it as many times as there are workers."""
    workers = attempt.members.workers
    if not state.settings.is_weak or not workers:
        return []
    batches = state.training.batches
    attempt.batch = next_batch(state.settings, state.known_profile, len(workers), attempt.version, batches)
    return [Send(worker, Recount(state.epoch, attempt.batch)) for worker in workers]


def command_ended(state: State, name: str, message: CommandEnded) -> Effects:
    """The processes of a worker have ended by themselves; what follows is for `end_of_command`."""
    ends = state.training.command = state.training.command or CommandEnds()
    ends.counts = ends.counts and message.counts
    if message.exit_code == 0:
        ends.done.add(name)
        ends.metrics |= message.metrics
    elif ends.error is None:
        ends.error = message.error or f"the command ended with exit code {message.exit_code}"
        ends.is_permanent = message.exit_code in NOT_RUNNABLE
        ends.failed_at = state.now
    return []


def command_idle(state: State, name: str, message: CommandIdle) -> Effects:
    """The processes of a worker do nothing; what follows is for `end_of_command`."""
    if message.seconds > 0:
        state.training.idle[name] = message
    else:
        state.training.idle.pop(name, None)
    return []


def end_of_command(state: State) -> Effects:
    """JOINING and TRAINING: end the job once the processes of all workers have ended, or one has failed by itself.
    Those that hang at the end are not waited for; if all hang before it, a worker is replaced."""
    ends = state.training.command
    if ends is not None and ends.error is not None:
        if state.now < ends.failed_at + FAILURE_SECONDS:
            return []
        return fail(state, ends.error, permanent=ends.is_permanent)
    workers = state.members.workers
    if ends is None or ends.counts:
        done, metrics = (ends.done, ends.metrics) if ends is not None else (set(), {})
        if done >= set(workers):
            return finish(state, metrics)
        if state.training.idle:
            return _end_of_idle(state, [name for name in workers if name not in done], metrics)
    return []


def _end_of_idle(state: State, running: list[str], metrics: dict[str, float]) -> Effects:
    """What follows if the processes of all these workers, at least one, do nothing."""
    idle, first = state.training.idle, state.members.workers[0]
    if not idle.keys() >= set(running):
        return []
    seconds = min(idle[name].seconds for name in running)
    if first not in running or idle[first].complete:
        # Worker 0 saves what there is to save.
        if seconds < (END_SECONDS if first not in running else COMPLETE_SECONDS):
            return []
        text = (
            f"The training is over; processes that did nothing for {seconds:.0f} s after it and did not end by "
            f"themselves were ended: those of {', '.join(running)[:1000]}."
        )
        return [ReportNote(Note(kind="ProcessesEnded", message=text)), *finish(state, metrics)]
    if seconds < idle[first].patience_seconds:
        return []
    state.training.idle = {}
    return [Log(f"no process has done anything for {seconds:.0f} s"), Send(first, CommandHung(state.epoch))]
