"""Which tasks take part in a job: what the service wants, and what the coordinator has formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from optimus_contract.fields import Count, Duration, PosixSeconds, TaskName
from optimus_contract.limits import MAX_COUNT, MAX_TASKS
from optimus_contract.message import About, Message

Directive = Literal["run", "pause", "finish", "cancel"]
Cause = Literal["start", "rescale", "batch", "worker_lost", "server_lost", "coordinator_restart", "resume", "pause"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTask(Message):
    name: str
    role: Literal["worker", "server"]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Message):
    """After what the job ends whatever its loss."""

    max_steps: Annotated[int | None, About("null: no limit")] = None
    max_epochs: Annotated[float | None, About("null: no limit")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedMembership(Message):
    """What a job's coordinator should have (`GET /v1/jobs/{id}/membership`, a long poll)."""

    generation: Annotated[int, About("grows with every change of what is wanted, and of the limits")]
    directive: Directive
    tasks: list[WantedTask]
    global_batch: Annotated[int | None, About("of a job with an elastic batch: examples of a step")] = None
    membership_epoch: Annotated[
        int, About("the highest that was reported; a coordinator without a journal goes on after it", ge=0)
    ] = 0
    step: Annotated[
        Count,
        About("the newest that the service knows of; a job that is to finish and has lost steps makes them again"),
    ] = 0
    limits: Annotated[
        Limits | None, About("from now on, as the owner may change them; none: those with which it began")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseParts(Message):
    """What a script's training stood still for, as worker 0 saw it; the rest was coordination, or a step under way."""

    save_seconds: Annotated[Duration | None, About("files were written, after the last step")] = None
    stop_seconds: Annotated[Duration | None, About("after that, until its processes had ended")] = None
    start_seconds: Annotated[Duration | None, About("new processes came up, met and made the first step")] = None
    load_seconds: Annotated[Duration | None, About("of that, not in `start_seconds`: files were loaded")] = None
    told_every: Annotated[
        int | None,
        About("the script tells only each so many steps: it stood still at most, and lost about, what is told", ge=2),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipReport(Message):
    """A membership epoch that a coordinator has formed (`POST /v1/jobs/{id}/membership`); again is harmless."""

    epoch: Annotated[int, About(ge=1, le=MAX_COUNT)]
    generation: Annotated[Count, About("the wanted generation that it answers")]
    at: PosixSeconds
    step: Annotated[Count, About("steps completed when it began")]
    workers: Annotated[list[TaskName], About("task names by rank", max_length=MAX_TASKS)]
    servers: Annotated[list[TaskName], About(max_length=MAX_TASKS)]
    cause: Cause
    global_batch: Annotated[int | None, About("elastic batch: examples of each of its steps", ge=1, le=MAX_COUNT)] = (
        None
    )
    pause_seconds: Annotated[Duration | None, About("training stood still")] = None
    pause_parts: PauseParts | None = None
    lost_steps: Annotated[Count, About("steps rolled back")] = 0
    message: Annotated[str | None, About(max_length=2000)] = None
