"""The way of every change of the membership, from the tasks that are there to the tasks that train. Pure handlers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from optimus_contract.membership import Limits
from optimus_workers.checkpoint.manifest import parameter_mismatch
from optimus_workers.coordinator.attempt import Attempt, GroupAttempt, ScriptAttempt
from optimus_workers.coordinator.events import (
    Append,
    AskWanted,
    CheckpointRead,
    Effects,
    Log,
    ReadCheckpoint,
    ReportMembership,
    ReportProfile,
    Send,
    TaskArrived,
    WantedArrived,
)
from optimus_workers.coordinator.handlers.ending import close, fail, finish, pause
from optimus_workers.coordinator.handlers.script import all_stopped, end_of_command, new_attempt, recount_script
from optimus_workers.coordinator.handlers.tasks import (
    answers_again,
    desired_members,
    dismiss_leavers,
    dismiss_unwanted,
    regroup,
)
from optimus_workers.coordinator.job_settings import next_batch, steps_per_epoch
from optimus_workers.coordinator.journal import Formed, Forming, Profiled
from optimus_workers.coordinator.membership import ConnectedTask, Members, VersionSources
from optimus_workers.coordinator.state import Checkpoint, LossWindow, Phase, State
from optimus_workers.errors import LET_GO
from optimus_workers.wire.messages import Assumed, AssumeFailed, Exit, Halted, Hello, Joined, Limit
from optimus_workers.wire.values import PauseParts, followed

ARRIVAL_SECONDS = 1.5
"""Tasks that arrive within this time of each other come in together: one change instead of several."""
MAX_ARRIVAL_SECONDS = 5.0
"""No task that is ready waits longer than this for others to arrive."""
WORKER_START_SECONDS = 15.0
"""Servers start in half a second; workers have torch to import and the user's task to load. Servers that arrive first
wait for them this long, while training goes on as it is: one change instead of two."""
REGROUP_SECONDS = 15.0
"""How long a coordinator that took over waits for the tasks with the job's state before it gives that state up and
restores the last checkpoint, where the service does not say that they run. Tasks connect again within a second."""
REGROUP_RUNNING_SECONDS = 60.0
"""The same of servers that run as the service says: a machine may be so busy that they come much later, and what they
have in memory, which nobody else has, may be the work of many minutes."""
RETRY_SECONDS = 1.0
"""Between an attempt at a membership that failed for no visible reason and the next one."""
MAX_ATTEMPTS = 30
"""Attempts in a row without a membership after which the job fails: something is wrong that does not go away."""
_HAVE_EPOCH: Final = (Phase.HALTING, Phase.RESTORING, Phase.ASSUMING, Phase.JOINING, Phase.TRAINING, Phase.SAVING)
"""Phases in which a membership has a number, or is about to, that nothing must have had before."""
_STARTS: Final = ("start", "resume", "coordinator_restart")
"""Causes of a first membership: tasks that were on their way to it by then may come later."""
STOPPING_SECONDS = 60.0
"""A job that is to pause or finish without tasks waits this long for replacements before the last checkpoint counts."""

# --- arrivals and wishes ---------------------------------------------------------------------------------------------


def task_arrived(state: State, event: TaskArrived) -> Effects:
    """A task may take part from the next change on; the first worker brings the profile of the job's task."""
    hello = event.hello
    effects = [*_told_of_later(state, hello), *_connected(state, hello), *_told_limit(state, hello.task)]
    if state.wanted is not None and hello.task not in state.wanted_tasks:
        effects.append(AskWanted())  # it may have been left out while it was starting: what is known is from before
    if hello.profile is None or hello.profile == state.profile:
        return effects
    error = f"{hello.task} loaded a different task than before: {hello.profile} instead of {state.profile}"
    return fail(state, error, permanent=True)


def task_arrived_while_closing(state: State, event: TaskArrived) -> Effects:
    """The task is dismissed, but remembered: the process waits until it has disconnected."""
    return [Send(event.hello.task, Exit("the job is closing", job_is_over=True)), *_connected(state, event.hello)]


def _told_of_later(state: State, hello: Hello) -> Effects:
    """A task that knows a later membership epoch than the journal, of which an older backup was restored: the task is
    part of a training that goes on, which a coordinator takes over."""
    epoch = max(hello.epoch, hello.running_epoch or 0)
    if epoch <= max(state.epoch, state.known_epoch):
        return []
    state.known_epoch = epoch
    if state.phase is Phase.GATHERING and state.change.n_attempts == 0:
        state.change.cause = "coordinator_restart"
    return [Log(f"the journal is an older one: membership epochs go on after {epoch}, which {hello.task} knows")]


def _connected(state: State, hello: Hello) -> Effects:
    state.tasks[hello.task] = ConnectedTask(hello, state.now)
    if state.change.cause == "coordinator_restart" or (state.settings.is_script and state.phase is Phase.GATHERING):
        state.version = max(state.version, hello.version)
    effects = answers_again(state, hello.task)
    if hello.profile is None or state.profile is not None:
        return effects
    state.profile = hello.profile
    state.training.losses = LossWindow(steps_per_epoch(hello.profile))
    return [*effects, Append(Profiled(hello.profile)), *report_profile(state)]


def report_profile(state: State) -> Effects:
    """Report what the tasks know; what a script is like, its worker 0 reports by itself."""
    return [] if state.profile is None or state.settings.is_script else [ReportProfile(state.profile)]


def wanted_arrived(state: State, event: WantedArrived) -> Effects:
    """Keep what is wanted, unless it is older than what is known; a cancelled job is closed at once."""
    effects = wanted_arrived_while_closing(state, event)
    if state.wanted is event.wanted and event.wanted.directive == "cancel":
        effects += close(state, "the service has ended the job", LET_GO)
    return effects


def wanted_arrived_while_closing(state: State, event: WantedArrived) -> Effects:
    wanted = event.wanted
    if state.wanted is not None and wanted.generation < state.wanted.generation:
        return []
    before, state.wanted = state.wanted, wanted
    is_to_finish = wanted.directive == "finish"
    state.finish_step = max(state.finish_step, state.reported_version, wanted.step) if is_to_finish else 0
    state.heard_at = state.now
    state.wanted_tasks = frozenset(task.name for task in wanted.tasks)
    effects = _take_limits(state, None if before is None else before.limits, wanted.limits)
    if wanted.membership_epoch <= max(state.epoch, state.known_epoch):
        return effects
    # Only a lost journal, or an older one, explains this. The service takes an epoch that it knows for a repetition.
    state.known_epoch = wanted.membership_epoch
    lost = "the journal was lost: membership epochs go on after"
    effects.append(Log(f"{lost} {state.known_epoch}, which the service knows"))
    if state.phase in _HAVE_EPOCH:
        effects += regroup(state, state.change.cause, "the service knows a later membership epoch than the journal")
    return effects


def _take_limits(state: State, before: Limits | None, limits: Limits | None) -> Effects:
    """The job ends by these limits from now on: at once where it has come so far already."""
    if limits is None or limits == before:
        return []
    state.settings = replace(state.settings, max_steps=limits.max_steps, max_epochs=limits.max_epochs)
    if state.profile is not None:
        state.training.barrier.last_step = state.last_step
    return [each for name in sorted(state.tasks) for each in _told_limit(state, name)]


def _told_limit(state: State, agent: str) -> Effects:
    """The processes of a script may end by themselves at the very step."""
    limits = None if state.wanted is None else state.wanted.limits
    return [] if limits is None or not state.settings.is_script else [Send(agent, Limit(limits.max_steps))]


def wanted_batch(state: State, members: Members) -> int | None:
    """The elastic batch that the service wants of exactly these members, in examples; None: no other than now."""
    if state.settings.elastic is None or state.wanted is None or state.wanted_tasks != members.names:
        return None
    return state.wanted.global_batch


# --- GATHERING -------------------------------------------------------------------------------------------------------


def gather(state: State) -> Effects:
    """Begin an attempt once all tasks are there that are worth waiting for; a job that is to stop ends without any.
    Until then workers without the job's state leave as soon as they are not wanted."""
    trained = state.formed.workers if state.formed else ()
    holders = [name for name, task in state.tasks.items() if task.is_server or name in trained]
    return [*dismiss_unwanted(state, but=holders), *_gather(state)]


def _gather(state: State) -> Effects:
    if state.wanted is None and not state.change.is_takeover:
        return []
    if state.directive == "pause" and _has_never_trained(state):
        return pause(state)  # its worker may not come any more, and there is nothing to save
    members = desired_members(state)
    if still_waits(state, members):
        return []
    if state.directive == "run":
        return begin_attempt(state, members) if state.suffices(members) else []
    if members.can_train or (state.directive == "pause" and members.servers):
        return begin_attempt(state, members)
    if state.now < state.change.since + STOPPING_SECONDS:
        return []
    if state.directive == "finish" and state.wanted_tasks and _lacks_steps(state):
        return []  # tasks are on their way that make them again
    # No task is left to stop, so the last checkpoint is how far the job came.
    return pause(state) if state.directive == "pause" else finish(state, {})


def _has_never_trained(state: State) -> bool:
    """Whether no membership was ever formed, as far as the journal and the service know."""
    return state.formed is None and state.wanted is not None and state.wanted.membership_epoch == 0


def _lacks_steps(state: State) -> bool:
    """Whether the last checkpoint is of a step before the one after which it was decided that the job finishes."""
    newest = state.checkpoints.newest
    return not state.settings.is_script and state.reported(newest.version if newest else 0) < state.finish_step


def still_waits(state: State, members: Members) -> bool:
    """Whether to wait for more tasks before forming a membership of `members`."""
    change = state.change
    if state.now < change.not_before:
        return True
    if missing := change.expected - state.tasks.keys():
        are_needed = state.settings.has_servers and missing <= state.wanted_tasks
        patience = REGROUP_RUNNING_SECONDS if are_needed else REGROUP_SECONDS
        if state.now < change.since + patience:
            return True
    wanted = change.expected if state.wanted is None else state.wanted_tasks
    if change.at_once or wanted <= state.tasks.keys() or state.directive != "run":
        return False
    arrived = [state.tasks[name] for name in members.names - state.members.names]
    if not arrived:
        return False
    times = [task.arrived_at for task in arrived]
    if all(task.is_server for task in arrived):
        return state.now < min(times) + WORKER_START_SECONDS
    return state.now < min(max(times) + ARRIVAL_SECONDS, min(times) + MAX_ARRIVAL_SECONDS)


def begin_attempt(state: State, members: Members) -> Effects:
    """Use up the next epoch number and stop all tasks."""
    change = state.change
    if state.profile is None:
        return []  # servers are there to be paused before any worker was
    if change.n_attempts == MAX_ATTEMPTS:
        return fail(state, f"no membership could be formed in {MAX_ATTEMPTS} attempts; the last one: {change.message}")
    change.n_attempts += 1
    state.epoch = max(state.epoch, state.known_epoch) + 1
    state.members = members
    change.at_once = False
    change.expected = set()
    state.partition.forget_data_lost()
    state.checkpoints.progress = None
    state.training.losses.drop_step()
    if state.settings.is_script:
        change.attempt = new_attempt(state, members, state.profile)
    else:
        kind = GroupAttempt if state.settings.is_allreduce else Attempt
        change.attempt = kind(state.epoch, members, state.profile, is_async=state.settings.is_async)
    state.phase = Phase.HALTING
    return [Append(Forming(state.epoch)), *change.attempt.halts(state.tasks.values())]


# --- HALTING and RESTORING: what training goes on from ---------------------------------------------------------------


def halted(state: State, name: str, message: Halted) -> Effects:
    state.change.present.halted(name, message.holdings)
    return []


def find_newest_state(state: State) -> Effects:
    """HALTING: when all have answered, go on from what they hold together, or else look for a checkpoint."""
    attempt = state.change.present
    if attempt.awaiting:
        return []
    newest = attempt.newest_sources(state.tasks, oldest_epoch=state.formed.epoch if state.formed else 0)
    if state.settings.is_script and newest is not None and (end := all_stopped(state, newest)) is not None:
        return end
    if newest is not None:
        return _begin_assuming(state, newest)
    state.phase = Phase.RESTORING
    return [ReadCheckpoint(state.epoch)]


def checkpoint_read(state: State, event: CheckpointRead) -> Effects:
    """Go on from the checkpoint, or start at step 0: with another job's parameters, or with the task's initial ones."""
    manifest, profile = event.manifest, state.known_profile
    if event.error is not None:
        # To begin anew instead would lose what was trained.
        return fail(state, f"the checkpoints cannot be read: {event.error}")
    if manifest is None and not state.members.workers:
        return pause(state)  # before anything was trained
    if manifest is None:
        state.checkpoints.newest = None
        return _begin_assuming(state, VersionSources(0, ()))
    if event.is_origin:
        mismatch = parameter_mismatch(manifest.profile, profile)
        if mismatch is not None:
            return fail(state, f"the job cannot start from {event.path}: {mismatch}", permanent=True)
        state.checkpoints.newest = None
        return _begin_assuming(state, VersionSources(0, manifest.as_origin))
    if manifest.profile != profile:
        error = f"the checkpoint is of a different task: {manifest.profile} instead of {profile}"
        return fail(state, error, permanent=True)
    state.checkpoints.newest = Checkpoint(manifest.version, event.path)
    return _begin_assuming(state, VersionSources(manifest.version, manifest.sources))


# --- ASSUMING and JOINING: ranges and parameters ---------------------------------------------------------------------


def _begin_assuming(state: State, newest: VersionSources) -> Effects:
    """Tell each server its range and where to get it; from here on the version and the batch are known."""
    attempt, training = state.change.present, state.training
    assumes = attempt.assumes(newest)
    if not state.settings.is_async and attempt.members.workers:
        attempt.batch = next_batch(
            state.settings,
            state.known_profile,
            len(attempt.members.workers),
            attempt.version,
            training.batches,
            wanted_batch(state, attempt.members),
            training.noise_scale,
        )
    state.phase = Phase.ASSUMING
    return [*assumes]


def assume_failed(state: State, name: str, message: AssumeFailed) -> Effects:
    """A source did not give what it should: try again with what is there then."""
    state.change.not_before = state.now + RETRY_SECONDS
    return regroup(state, state.change.cause, f"{name} could not get its range: {message.reason}")


def answered(state: State, name: str, _message: Assumed | Joined) -> Effects:
    state.change.present.awaiting.discard(name)
    return []


def join_workers(state: State) -> Effects:
    """ASSUMING: when all servers have their ranges, the workers get the parameters."""
    attempt = state.change.present
    if attempt.awaiting:
        return []
    state.phase = Phase.JOINING
    return [*attempt.joins(state.tasks)]


def begin_training(state: State) -> Effects:
    """JOINING: when all workers have the parameters, the membership is formed."""
    attempt = state.change.present
    if attempt.awaiting:
        return end_of_command(state) if state.settings.is_script else []
    effects = recount_script(state, attempt) if state.settings.is_script else []
    effects += _record_membership(state, attempt) if attempt.members.workers else []
    state.version = attempt.version
    state.training.barrier = state.new_barrier()
    if state.checkpoints.newest is None:
        state.checkpoints.due_at = state.now
    state.change.n_attempts = 0
    state.phase = Phase.TRAINING
    # Not earlier: processes that exit take time from those that get the parameters while all others wait.
    return [*effects, *dismiss_leavers(state, but=attempt.members)]


def _record_membership(state: State, attempt: Attempt) -> Effects:
    change, training, before = state.change, state.training, state.reported_version
    batch = None if state.settings.is_async else attempt.batch
    if batch is not None:
        training.batches = followed(training.batches, batch)
    if change.cause == "batch" and state.formed is not None and state.formed.workers != attempt.members.workers:
        change.cause = "rescale"
    if change.cause == "start" and state.formed is not None and state.formed.generation != state.generation:
        change.cause = "rescale"  # another size is wanted than the one that it began to start with
    stopped_at, began_at, untold_steps, pause = training.last_step_at, state.now, 0, None
    if isinstance(attempt, ScriptAttempt):
        if attempt.keeps_processes:
            stopped_at = state.now  # they never stopped
        began_at -= attempt.trained_seconds
        untold_steps = attempt.untold_steps
        if stopped_at is not None:
            pause = attempt.pause
        elif attempt.pause.told_every is not None:
            pause = PauseParts(told_every=attempt.pause.told_every)
    step = attempt.version if batch is None else batch.reported_step(attempt.version)
    state.formed = Formed(
        epoch=attempt.epoch,
        generation=state.generation,
        at=began_at,
        step=attempt.version,
        workers=attempt.members.workers,
        servers=attempt.members.servers,
        cause=change.cause,
        pause_seconds=None if stopped_at is None else max(0.0, began_at - stopped_at),
        pause_parts=pause,
        lost_steps=max(0, before + untold_steps - step),
        message=change.message,
        batch=batch,
    )
    if state.formed.lost_steps:
        training.losses = LossWindow(steps_per_epoch(state.profile) if state.profile else 1.0)
    # While the first tasks, or those after a pause, are on their way, those that come are no change of size.
    is_starting = change.cause in _STARTS and not state.wanted_tasks <= attempt.members.names
    change.cause, change.message = "start" if is_starting else "rescale", None
    return [Append(state.formed), ReportMembership(state.formed)]
