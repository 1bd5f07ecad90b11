"""What interruptions cost a job: steps that are rolled back, and of a script without checkpoints its time. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from optimus_scheduler.model.format import lasted
from optimus_service.insight.format import counted
from optimus_service.observe.spec import began_at, begins_anew, is_beginning_open
from optimus_service.observe.unsaved_work import LastStep, newest_made_at, since_its_beginning, worked_seconds
from optimus_service.store.records import JobRecord, MembershipRecord, SampleRecord

_STOPPED_NOTHING = frozenset({"resume", "batch", "coordinator_restart"})
"""Causes of memberships before which nothing was stopped that trained, or an error ended it: then its last step tells
when."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a change of the membership lost of the work before it, as far as is known."""

    steps: int = 0
    seconds: float | None = None
    """Training time; None: nothing, or not known."""
    is_about: bool = False
    """The script tells only some of its steps ..."""
    is_least: bool = False
    """... and those that it made after the last of them are not counted: nobody knows until when."""
    is_most: bool = False
    """It is not known yet whether the job began with step 0, or further on with a checkpoint from before it."""

    @property
    def words(self) -> str:
        """`69 steps (2 min 18 s of work)`, `2 min 18 s of work`; empty: nothing is known to be lost."""
        about = "at least " if self.is_least else "about " * self.is_about or "at most " * self.is_most
        steps = f"{about}{counted(self.steps, 'step')}" if self.steps else ""
        work = f"{lasted(self.seconds)} of work" if self.seconds is not None and self.seconds >= 1 else ""
        return f"{steps} ({work})" if steps and work else steps or work


def losses(
    job: JobRecord,
    memberships: Sequence[MembershipRecord],
    began: Mapping[str, float],
    last_steps: Mapping[int, LastStep] = MappingProxyType({}),
) -> list[Loss]:
    """Of each membership, oldest first. What a pause loses is told at the pause, also while nobody has gone on.

    `began`: when workers were started, by name; without that a silent script's first minute is not counted.
    `last_steps`: membership epoch → the last of its steps, of those in which any came: time in which none came is no
    work, but as long as the next one could still come. Empty: its steps are not known.
    """
    found = [_loss(job, memberships, began, last_steps, number) for number in range(len(memberships))]
    is_open = is_beginning_open(job)
    # What a pause has lost is told by the membership after it.
    later = [*memberships[1:], None][: len(memberships)]
    return [
        replace(
            each,
            is_about=not its.lost_at_least
            and (each.is_about or its.tells_some or (not its.workers and after is not None and after.tells_some)),
            is_least=its.lost_at_least,
            is_most=is_open and each.steps > 0 and not (its.workers and its.step),
        )
        for each, its, after in zip(found, memberships, later, strict=True)
    ]


def total(found: Sequence[Loss]) -> Loss:
    """All of them together: no time, where that of some steps is not known."""
    is_known = all(each.seconds is not None for each in found if each.steps)
    seconds = [each.seconds for each in found if each.seconds is not None] if is_known else []
    is_about = any(each.steps and each.is_about for each in found)
    is_least = not is_about and any(each.steps and each.is_least for each in found)
    is_most = any(each.is_most for each in found)
    return Loss(sum(each.steps for each in found), sum(seconds) if seconds else None, is_about, is_least, is_most)


def lost_by_a_stop(
    job: JobRecord,
    step: int,
    memberships: Sequence[MembershipRecord],
    began: float | None,
    now: float,
    report_seconds: float = 0.0,
    newest: Sequence[SampleRecord] = (),
) -> Loss:
    """What a stop would lose now; nothing, where the job is known to go on from a checkpoint, or has no tasks.

    `report_seconds`: between two reports of its steps: for so long it makes others that it has not told yet.

    `step`: that it is at. The time of its steps ends with the newest, as after the stop (`losses`): while none comes,
    it does not grow. `newest`: samples, which tell when that was made; none: as it came.
    `memberships`: oldest first, read only where it has made steps. `began`: when the newest of its workers was started,
    read only of a script that has never told a step: all of its time may be work.
    """
    if job.state.is_final or not begins_anew(job):
        return Loss()
    made = max(step - began_at(job), 0)
    if not made or job.running.is_empty:
        return Loss() if began is None or job.first_step is not None else Loss(0, max(now - began, 0.0))
    run = since_its_beginning(memberships, began_at(job))
    is_most = is_beginning_open(job)
    if not run or job.step_at is None:
        return Loss(made, is_most=is_most)
    newest_at = newest_made_at(newest)
    last = LastStep(job.step_at if newest_at is None else newest_at, report_seconds)
    lost = _of_a_run(run, made, last, now)
    return replace(lost, is_about=lost.is_about or run[-1].tells_some, is_most=is_most)


def _of_a_run(run: Sequence[MembershipRecord], step: int, last: LastStep, until: float) -> Loss:
    """All that a run has made, with the steps that it has not told yet. `run`: its memberships; `step`: that it has
    made and told; `until`: its stop."""
    worked, untold = worked_seconds(run, min(last.at, until)), last.untold_seconds(until)
    made = int(step * untold / worked) if worked > 0 else 0
    return Loss(step + made, worked + untold, is_about=made > 0)


def _loss(
    job: JobRecord,
    memberships: Sequence[MembershipRecord],
    began: Mapping[str, float],
    last_steps: Mapping[int, LastStep],
    number: int,
) -> Loss:
    each = memberships[number]
    before = memberships[number - 1] if number else None
    after = memberships[number + 1] if number + 1 < len(memberships) else None
    steps, is_lost, first_step = each.lost_steps, begins_anew(job), began_at(job)
    if each.cause == "resume" and before is not None and not before.workers:
        steps = 0
    if not each.workers:
        steps += _rolled_back(after) if after is not None else max(job.step - first_step, 0) * is_lost
    if before is None or not before.workers or not is_lost:
        return Loss(steps)
    has_failed = each.cause == "resume" and steps and before.epoch in last_steps
    if each.cause in _STOPPED_NOTHING and not has_failed:
        return Loss(steps)
    next_run = each if each.workers else after
    if next_run is not None and next_run.step > before.step:
        return Loss(steps)  # it went on from there, whatever was known of it
    if not steps and last_steps:
        return Loss()  # it tells its steps, and had told none
    until = each.at - (each.pause_seconds or 0.0)
    if not each.workers and steps and before.epoch in last_steps:
        is_whole = after is None or not after.workers or after.step <= first_step
        run = since_its_beginning(memberships[:number], first_step) if is_whole else [before]
        lost = _of_a_run(run, steps, last_steps[before.epoch], until)
        return lost if after is None else replace(lost, steps=steps)  # the next one tells them all
    since = before.at
    if not steps:  # that of a script which reports no steps is formed late: after a silent minute, or at its stop
        new = set(before.workers) - set(memberships[number - 2].workers if number > 1 else ())
        since = min(since, max((began[name] for name in new if name in began), default=math.inf))
    if steps and before.epoch in last_steps:
        until = min(until, last_steps[before.epoch].at)  # since then it hung
    return Loss(steps, max(until - since, 0.0))


def _rolled_back(after: MembershipRecord) -> int:
    return after.lost_steps if after.cause == "resume" else 0
