"""How a job is evaluated, ends, is paused, or is closed. Pure handlers."""

from __future__ import annotations

import math
from dataclasses import replace

from optimus_workers.coordinator.events import (
    Append,
    Effects,
    MembershipRefused,
    ReportMembership,
    ReportResult,
    Send,
    Stop,
    TaskLost,
)
from optimus_workers.coordinator.handlers.tasks import regroup
from optimus_workers.coordinator.journal import Ended, Formed
from optimus_workers.coordinator.state import Phase, State
from optimus_workers.errors import LET_GO, USER_CODE_FAILED
from optimus_workers.wire.messages import Evaluate, Evaluated, Exit, Failed

CLOSING_SECONDS = 10.0
"""How long dismissed tasks may take to disconnect."""
ERROR_CHARACTERS = 8_000
"""The result has the tail of a traceback: the end says what went wrong."""


def begin_evaluating(state: State) -> Effects:
    """Let a member evaluate the final parameters, which the newest checkpoint has as well."""
    evaluator = next((name for name in state.members.workers if name in state.tasks), None)
    state.ending.evaluator = evaluator
    if evaluator is None:
        return regroup(state, state.change.cause, "no worker is left to evaluate")
    state.phase = Phase.EVALUATING
    return [Send(evaluator, Evaluate(state.epoch))]


def evaluated(state: State, name: str, message: Evaluated) -> Effects:
    """The evaluation is done; that of a worker that was replaced as evaluator does not count."""
    return finish(state, message.metrics, message.model) if name == state.ending.evaluator else []


def lost_while_evaluating(state: State, event: TaskLost) -> Effects:
    """The checkpoint is complete, so any other worker can evaluate, and no other task is needed any more."""
    task = state.tasks.pop(event.task, None)
    return begin_evaluating(state) if task is not None and event.task == state.ending.evaluator else []


def user_code_failed(state: State, _name: str, message: Failed) -> Effects:
    return fail(state, message.traceback, permanent=message.permanent)


def membership_refused(state: State, event: MembershipRefused) -> Effects:
    return fail(state, f"the service refused a membership of the job: {event.reason}", permanent=True)


def finish(state: State, metrics: dict[str, float], model: str | None = None) -> Effects:
    """The job is done. Metrics that are not finite become None."""
    finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    loss = state.training.losses.mean
    ended = Ended("succeeded", state.reported_version, loss, finite, state.checkpoints.path, model=model)
    return [*_end(state, ended), *close(state, "the job is done", LET_GO)]


def fail(state: State, error: str, *, permanent: bool = False) -> Effects:
    """The job cannot go on; `permanent`: another attempt would fail likewise."""
    ended = failure(
        state.reported_version, state.training.losses.mean, error, state.checkpoints.path, permanent=permanent
    )
    return [*_end(state, ended), *close(state, "the job has failed", USER_CODE_FAILED)]


def _end(state: State, ended: Ended) -> Effects:
    """Remember how the job ended. The service gets the result once the tasks have gone, after their last samples."""
    state.ending.ended = ended = replace(ended, at=state.now)
    return [Append(ended)]


def failure(step: int, loss: float | None, error: str, checkpoint: str | None, *, permanent: bool = False) -> Ended:
    """The record of a failed job."""
    return Ended("failed", step, loss, {}, checkpoint, storable(error)[-ERROR_CHARACTERS:], permanent=permanent)


def storable(text: str) -> str:
    """The text without what no database can hold: a traceback may contain any file's name."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def pause(state: State) -> Effects:
    """End this coordinator with an epoch without tasks."""
    state.epoch += 1
    batch = state.batch_at(state.version)
    formed = Formed(state.epoch, state.generation, state.now, state.version, (), (), "pause", batch=batch)
    return [Append(formed), ReportMembership(formed), *close(state, "the job is paused", LET_GO)]


def close(state: State, reason: str, code: int) -> Effects:
    """Dismiss all tasks; once they have disconnected the process exits with `code`."""
    state.ending.exit_code = code
    state.ending.deadline = state.now + CLOSING_SECONDS
    state.phase = Phase.CLOSING
    return [Send(name, Exit(reason, job_is_over=True)) for name in sorted(state.tasks)]


def exit_when_closed(state: State) -> Effects:
    """CLOSING: exit when all tasks have disconnected, or took too long."""
    ending = state.ending
    if state.now < (ending.deadline if state.tasks else ending.linger_until):
        return []
    state.phase = Phase.OVER
    result: Effects = [] if ending.ended is None else [ReportResult(ending.ended)]
    return [*result, Stop(ending.exit_code)]
