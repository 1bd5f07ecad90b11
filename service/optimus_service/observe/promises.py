"""What was predicted of jobs on the way, and how it turned out.

A promise is what a round predicted when a job was submitted, when it had made its first step, and when it had done a
tenth, a quarter, a half and three quarters of what was predicted: of the steps and of the seconds that were left. It is
kept by itself, as decisions are many and are deleted some day. The end of the job judges it; jobs that failed or were
cancelled judge nothing, as nobody knows when they would have ended. When its owner pauses a job, what was predicted
before is forgotten: nobody could know that.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from optimus_models.calibration import AS_PREDICTED, UNCALIBRATED, Calibration, Judged, Widening, widening
from optimus_scheduler.model import Forecast, Interval, Job, Plan
from optimus_service.store.forecasts import known
from optimus_service.store.records import KeptPromise, PromiseRecord

Kind = Literal["steps", "seconds"]
KINDS: tuple[Kind, ...] = ("steps", "seconds")
PARTS = ("submitted", "first step", "10 %", "25 %", "50 %", "75 %")
"""Of a job's life, as far as it was known then."""
_FROM = (0.1, 0.25, 0.5, 0.75)
"""Where the last four begin."""
MAX_PROMISES = 1000
"""Judged promises that anything is made of, the newest: of some 200 jobs."""
_OVERLAP_SECONDS = 600.0
"""Jobs that ended so long before the newest known one are asked for again: replicas' clocks differ."""


class Promised:
    """Which promises have been made, in the memory of the leader."""

    def __init__(self) -> None:
        self._parts: dict[str, set[str]] = {}

    def unknown(self, plan: Plan) -> set[str]:
        """Jobs of which it is not known yet: after the service has started."""
        return {decision.job_id for decision in plan.decisions} - self._parts.keys()

    def know(self, parts: Mapping[str, set[str]], job_ids: Iterable[str]) -> None:
        """Take over what is stored of these jobs."""
        self._parts |= {job_id: set(parts.get(job_id, ())) for job_id in job_ids}

    def new(self, jobs: Iterable[Job], plan: Plan, now: float) -> list[PromiseRecord]:
        """The promises that a plan makes for the first time."""
        known = {job.id: job for job in jobs}
        found = []
        for decision in plan.decisions:
            job, forecast = known.get(decision.job_id), decision.forecast
            part = None if job is None else part_of(job, forecast)
            if job is not None and part is not None and part not in self._parts.get(job.id, ()):
                found.append(_promise(job, part, forecast, now))
        return found

    def stored(self, promises: Iterable[PromiseRecord], active: Iterable[str]) -> None:
        """These are stored now, and only these jobs can make further ones."""
        for each in promises:
            # A part that was passed between two rounds is over: what is said later is no promise of then.
            self._parts.setdefault(each.job_id, set()).update(PARTS[: PARTS.index(each.part) + 1])
        kept = set(active)
        self._parts = {job_id: parts for job_id, parts in self._parts.items() if job_id in kept}


def part_of(job: Job, forecast: Forecast) -> str | None:
    """Which part of its life the job is in; None when nothing is predicted."""
    total, left = forecast.total_steps, forecast.remaining_steps
    if total is None or left is None or forecast.converged or not 0 < left.mean < math.inf or job.owner_paused:
        return None
    if job.step == 0:
        return PARTS[0]
    done = job.step / total.mean
    return PARTS[1 + sum(done >= begins for begins in _FROM)]


def _promise(job: Job, part: str, forecast: Forecast, now: float) -> PromiseRecord:
    return PromiseRecord(
        job_id=job.id,
        part=part,
        task=job.spec.family,
        at=now,
        steps=forecast.remaining_steps,
        seconds=forecast.remaining_seconds,
        total_steps=forecast.total_steps,
        calibration=forecast.calibration,
    )


class Verdict(NamedTuple):
    """A promise, what came, and whether its interval held it."""

    job_id: str
    task: str
    kind: Kind
    part: str
    predicted: Interval
    true: float
    held: bool
    judged: Judged
    """In half-widths as they were before any widening."""


def verdicts(kept: Iterable[KeptPromise]) -> Iterator[Verdict]:
    """Of each promise up to two; what was certain (a limit of steps) is no prediction and is not judged."""
    for each in kept:
        for kind in KINDS:
            verdict = _verdict(each, kind)
            if verdict is not None:
                yield verdict


def _verdict(kept: KeptPromise, kind: Kind) -> Verdict | None:
    promise = kept.promise
    predicted, total, left = known(getattr(promise, kind)), known(promise.total_steps), known(promise.steps)
    if predicted is None or total is None or left is None or predicted.low >= predicted.high:
        return None
    done = total.mean - left.mean
    true = kept.total_steps - done if kind == "steps" else kept.finished_at - promise.at
    by: Widening = getattr(promise.calibration, kind)
    judged = Judged.of(true, predicted.mean, predicted.low, predicted.high, by)
    if judged is None:
        return None
    one = 1.0 if kind == "steps" else 0.0  # steps are counted in whole ones
    held = predicted.low - one <= true <= predicted.high + one
    return Verdict(promise.job_id, promise.task, kind, promise.part, predicted, true, held, judged)


class Scores:
    """How the promises of each task turned out, and what that says about the next ones. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], KeptPromise] = OrderedDict()
        self._known: dict[str, Calibration] = {}

    @property
    def since(self) -> float:
        """From when on ends are to be asked for."""
        newest = max((each.finished_at for each in self._kept.values()), default=0.0)
        return max(newest - _OVERLAP_SECONDS, 0.0)

    def add(self, kept: Iterable[KeptPromise]) -> None:
        """In the order in which the jobs ended; those that are known already change nothing."""
        new = [each for each in kept if (each.promise.job_id, each.promise.part) not in self._kept]
        if not new:
            return
        self._kept |= {(each.promise.job_id, each.promise.part): each for each in new}
        while len(self._kept) > MAX_PROMISES:
            self._kept.popitem(last=False)
        self._known = _calibrations(list(verdicts(self._kept.values())))

    def calibration_of(self, task: str) -> Calibration:
        """What the intervals of a job of this task are to be multiplied by."""
        return self._known.get(task) or self._known.get(_ALL, UNCALIBRATED)


_ALL = ""
"""Stands for all tasks: none has this import path."""


def _calibrations(found: list[Verdict]) -> dict[str, Calibration]:
    """By task; of little that is known of one, the other tasks together are believed."""
    by_task = {_ALL: Calibration(*(_widening(found, kind, AS_PREDICTED) for kind in KINDS))}
    for task in {verdict.task for verdict in found}:
        own, others = ([each for each in found if (each.task == task) is its_own] for its_own in (True, False))
        by_task[task] = Calibration(*(_widening(own, kind, _widening(others, kind, AS_PREDICTED)) for kind in KINDS))
    return by_task


def _widening(found: Iterable[Verdict], kind: Kind, prior: Widening) -> Widening:
    those = [verdict for verdict in found if verdict.kind == kind]
    of_job = Counter(verdict.job_id for verdict in those)
    return widening([each.judged for each in those], prior, [1.0 / of_job[each.job_id] for each in those])
