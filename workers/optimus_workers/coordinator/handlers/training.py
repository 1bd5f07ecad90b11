"""The phase TRAINING: steps, and what happens at their boundaries. Pure handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from optimus_workers.coordinator.events import Append, Effects, Send
from optimus_workers.coordinator.handlers.checkpoint import begin_saving
from optimus_workers.coordinator.handlers.membership_change import begin_attempt, still_waits, wanted_batch
from optimus_workers.coordinator.handlers.script import end_of_command
from optimus_workers.coordinator.handlers.tasks import desired_members, dismiss_unwanted
from optimus_workers.coordinator.job_settings import recounted
from optimus_workers.coordinator.journal import Recounted
from optimus_workers.coordinator.membership import Members
from optimus_workers.coordinator.state import Phase, SaveFor, State
from optimus_workers.wire.messages import Done, Go, Publish, Published, Recount
from optimus_workers.wire.values import followed


def done(state: State, name: str, message: Done) -> Effects:
    """A worker has done its step."""
    training = state.training
    training.losses.add(message.loss, message.n_examples)
    training.noise_scale = message.noise_scale or training.noise_scale
    if training.barrier.done(name, message.step):
        training.losses.close_step()
        state.partition.clear()
        state.version = training.barrier.version
        training.last_step_at = state.now
    return []


def pass_on(state: State, name: str, message: Publish) -> Effects:
    """A member of a process group publishes something to the others, over their coordinator."""
    others = (worker for worker in state.members.workers if worker != name)
    return [Send(other, Published(message.epoch, message.key, message.value)) for other in others]


def train(state: State) -> Effects:
    """Issue tickets; if there is a reason to stop, issue none, and stop once no worker is at a step."""
    if state.settings.is_script and (end := end_of_command(state)):
        return end
    effects = dismiss_unwanted(state)
    stop = _reason_to_stop(state)
    if stop is None:
        effects += _recount(state)
        return effects + [Send(worker, Go(state.epoch, step)) for worker, step in state.training.barrier.tickets()]
    if state.training.barrier.is_quiet:
        effects += stop(state)
        if state.phase is Phase.TRAINING:  # the newest checkpoint was of this very version
            effects += train(state)
    return effects


def _reason_to_stop(state: State) -> Callable[[State], Effects] | None:
    """What to do at the next step boundary instead of the next step; None: nothing."""
    training, checkpoints = state.training, state.checkpoints
    if state.settings.is_script:
        return _reason_to_stop_command(state)
    if training.barrier.is_exhausted or state.may_finish:
        return partial(begin_saving, purpose=SaveFor.FINISH)
    if state.directive == "pause":
        return partial(begin_saving, purpose=SaveFor.PAUSE)
    members = desired_members(state)
    if not members.can_train:
        return partial(begin_saving, purpose=SaveFor.EVACUATE)
    if members != state.members and (state.members.names - members.names or not still_waits(state, members)):
        return partial(begin_attempt, members=members)
    batch = wanted_batch(state, members) if members == state.members else None
    if batch is not None and batch != training.batches[-1].size:
        return partial(_begin_batch, members=members)
    if state.now >= checkpoints.due_at and checkpoints.progress is None:
        return partial(begin_saving, purpose=SaveFor.TRAIN)
    return None


def _reason_to_stop_command(state: State) -> Callable[[State], Effects] | None:
    """The same for a script, whose processes save by themselves when they are stopped."""
    if state.training.barrier.is_exhausted or state.directive in ("finish", "pause"):
        return partial(begin_attempt, members=state.members)
    ends = state.training.command
    if ends is not None and ends.counts:
        return None  # about to end
    members = desired_members(state)
    if members != state.members and (state.members.names - members.names or not still_waits(state, members)):
        return partial(begin_attempt, members=members)
    return None


def _begin_batch(state: State, members: Members) -> Effects:
    state.change.cause = "batch"
    return begin_attempt(state, members)


def _recount(state: State) -> Effects:
    """At a step boundary: when the gradients' noise has changed, so has the gain of an elastic batch."""
    training = state.training
    if (
        state.settings.elastic is None
        or training.noise_scale is None
        or not training.barrier.is_quiet
        or not training.batches
    ):
        return []
    batch = recounted(training.batches[-1], state.version, training.noise_scale)
    if batch is None:
        return []
    training.batches = followed(training.batches, batch)
    training.barrier = state.new_barrier()
    return [Append(Recounted(batch)), *(Send(worker, Recount(state.epoch, batch)) for worker in state.members.workers)]
