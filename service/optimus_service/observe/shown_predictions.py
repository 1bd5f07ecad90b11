"""The predictions that users were shown, and how they turned out.

Kept is what a round predicted when a job was submitted, when it had made its first step, and when it had done a
tenth, a quarter, a half and three quarters of what was predicted: the steps and the seconds that were left at its
size. Times are rows of their own: what the queue simulated forward said at submission and at these parts of the job's
life since then, waiting included; the start of a waiting job likewise, at parts of its wait. The table is called
`promises`: it is apart from decisions, which are many and are deleted some day. The end of the job judges its
predictions; jobs that failed or were cancelled judge nothing, as nobody knows when they would have ended. When its
owner pauses a job or changes its rule, what was predicted before is forgotten: nobody could know that. What users are
not shown is not kept, such as the time left of a job that stands still: that is asked of what shows it
(`optimus_service.insight.predictions.told`). A prediction binds nobody; what binds the scheduler is a promised deadline
(`optimus_scheduler.ahead.deadlines`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from optimus_models.calibration import UNCALIBRATED, Errors, Experience, Judged, Predicted, Widening
from optimus_scheduler.ahead.corrected_times import ANY_TASK, CorrectedTimes, life_part
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Forecast, Interval, Job, Plan
from optimus_service.store.records import EndedPrediction, PredictionRecord
from optimus_service.store.rounds.forecasts import known

Kind = Literal["steps", "seconds", "time", "start"]
KINDS: tuple[Kind, ...] = ("steps", "seconds", "time", "start")
PARTS = ("submitted", "first step", "10 %", "25 %", "50 %", "75 %")
"""Of a job's life, as far as it was known then."""
_FROM = (0.1, 0.25, 0.5, 0.75)
"""Where the last four begin."""
_OF_TIME = "time "
"""Begins the stored names of the parts at which times were predicted."""
TIME_PARTS = tuple(f"{_OF_TIME}{part}" for part in PARTS if part != "first step")
_OF_START = "start "
"""... and those at which starts were: parts of the wait."""
START_PARTS = tuple(f"{_OF_START}{part}" for part in PARTS if part != "first step")
_LEAST_SECONDS = 1.0
"""Less is no prediction any more: rounds and ends come seconds apart."""
_ROUNDED = 1e-6
"""What arithmetic may lose of steps and of POSIX seconds."""
MAX_PREDICTIONS = 2000
"""Judged predictions that anything is made of, the newest: of some 200 jobs."""
_OVERLAP_SECONDS = 600.0
"""Jobs that ended so long before the newest known one are asked for again: replicas' clocks differ."""


class PredictedParts:
    """Which predictions have been made, in the memory of the leader."""

    def __init__(self, *orders: Sequence[str]) -> None:
        """`orders`: the parts of a life, as they follow each other, for each sort of prediction."""
        self._until = {part: frozenset(order[: i + 1]) for order in orders for i, part in enumerate(order)}
        self._parts: dict[str, frozenset[str]] = {}
        self._alike: dict[frozenset[str], frozenset[str]] = {}
        """The few that thousands of jobs have, each once."""
        self._found_at: dict[str, float] = {}

    def unknown(self, job_ids: Iterable[str]) -> set[str]:
        """Those of these jobs of which it is not known yet: after the service has started."""
        return set(job_ids) - self._parts.keys()

    def know(self, parts: Mapping[str, set[str]], steps: Mapping[str, float]) -> None:
        """Take over what is stored of these jobs; `steps`: that they are at, as far as is known, by id."""
        self._parts |= {job_id: self._of(parts.get(job_id, ())) for job_id in steps}
        self._found_at |= steps

    def new(self, predictions: Iterable[PredictionRecord]) -> list[PredictionRecord]:
        """Those that are made for the first time. None of a job that was training before this process knew it, until it
        is heard of: where it is by now is not known."""
        return [
            each
            for each in predictions
            if each.part not in self._parts.get(each.job_id, ())
            and not (each.step and each.step == self._found_at.get(each.job_id))
        ]

    def stored(self, predictions: Iterable[PredictionRecord], active: Iterable[str]) -> None:
        """These are stored now, and only these jobs can make further ones."""
        for each in predictions:
            # A part that was passed between two rounds is over: what is said later is no prediction of then.
            self._parts[each.job_id] = self._of(self._parts.get(each.job_id, frozenset()) | self._until[each.part])
        kept = set(active)
        self._parts = {job_id: parts for job_id, parts in self._parts.items() if job_id in kept}
        self._found_at = {job_id: step for job_id, step in self._found_at.items() if job_id in kept}

    def _of(self, parts: Iterable[str]) -> frozenset[str]:
        found = frozenset(parts)
        return self._alike.setdefault(found, found)


def plan_predictions(jobs: Iterable[Job], plan: Plan, now: float) -> list[PredictionRecord]:
    """What a plan predicts of each job, where it predicts anything."""
    known = {job.id: job for job in jobs}
    found = []
    for decision in plan.decisions:
        job, forecast = known.get(decision.job_id), decision.forecast
        part = None if job is None else part_of(job, forecast)
        if job is not None and part is not None:
            found.append(_prediction(job, part, forecast, now))
    return found


def part_of(job: Job, forecast: Forecast) -> str | None:
    """Which part of its life the job is in; None when nothing is predicted, or what is supposed is not told."""
    total, left = forecast.total_steps, forecast.remaining_steps
    if total is None or left is None or not _is_shown(job, forecast) or not 0 < left.mean < math.inf:
        return None
    if job.step == 0:
        return PARTS[0]
    done = job.step / total.mean
    return PARTS[1 + sum(done >= begins for begins in _FROM)]


def _is_shown(job: Job, forecast: Forecast) -> bool:
    """Whether users are told of the job's end: not while it is being finished, its owner has paused it, or where
    nothing says how many steps it makes."""
    is_guessed = forecast.remaining_steps is not None and forecast.rule is None
    return not (forecast.converged or job.owner_paused or is_guessed)


def _prediction(job: Job, part: str, forecast: Forecast, now: float) -> PredictionRecord:
    return PredictionRecord(
        job_id=job.id,
        part=part,
        task=job.spec.family,
        at=now,
        step=job.step,
        steps=forecast.remaining_steps,
        seconds=forecast.remaining_seconds,
        total_steps=forecast.total_steps,
        calibration=forecast.calibration,
    )


def time_prediction(outlook: Outlook, foreseen: CorrectedTimes, now: float) -> PredictionRecord | None:
    """What is said of a job's end; None where nothing is, or it is there."""
    job, shown = outlook.job, foreseen.shown
    left = shown.left(now)
    if left is None or not _LEAST_SECONDS <= left.mean < math.inf or outlook.forecast.converged or job.owner_paused:
        return None
    if job.retry is not None or (job.allocation.is_empty and shown.start is None):
        return None
    life = life_part(now - job.submitted_at, left)
    part = TIME_PARTS[sum(life >= begins for begins in _FROM)]
    by = UNCALIBRATED._replace(time=foreseen.by)
    return PredictionRecord(
        job_id=job.id,
        part=part,
        task=job.spec.family,
        at=now,
        step=job.step,
        total_steps=outlook.forecast.total_steps if _is_shown(job, outlook.forecast) else None,
        time=left,
        calibration=by,
    )


def start_prediction(outlook: Outlook, foreseen: CorrectedTimes, now: float) -> PredictionRecord | None:
    """What is said of the first start of a job that waits; None where nothing is, or it is there."""
    job = outlook.job
    wait = foreseen.shown.waiting(now)
    if wait is None or job.started_at is not None or not 0 < wait.mean < math.inf:
        return None
    life = life_part(now - job.submitted_at, wait)
    part = START_PARTS[sum(life >= begins for begins in _FROM)]
    by = UNCALIBRATED._replace(start=foreseen.start_by)
    return PredictionRecord(job_id=job.id, part=part, task=job.spec.family, at=now, start=wait, calibration=by)


class Outcome(NamedTuple):
    """Something that was predicted, what came, and whether its interval held it."""

    predicted: Interval
    true: float
    held: bool

    @property
    def error_percent(self) -> float | None:
        """Predicted over true, minus 1; None where nothing was left."""
        return None if self.true <= 0 else 100.0 * (self.predicted.mean / self.true - 1.0)


def outcome_of(ended: EndedPrediction, kind: Kind) -> Outcome | None:
    """Of a prediction of this kind; None where there was none, or what came cannot be said."""
    predicted, true = known(getattr(ended.prediction, kind)), _truth(ended, kind)
    if predicted is None or true is None:
        return None
    return Outcome(predicted, true, holds(predicted, true))


def holds(told: Interval, true: float) -> bool:
    """Whether an interval that was told has what came, as both are shown: nothing is given away."""
    return told.low - _ROUNDED <= true <= told.high + _ROUNDED


class Verdict(NamedTuple):
    """A prediction that is judged."""

    job_id: str
    task: str
    kind: Kind
    part: str
    came: Outcome
    judged: Judged
    """As it was before any correction."""


def verdicts(ended: Iterable[EndedPrediction]) -> Iterator[Verdict]:
    """Of each prediction up to two; what was certain (a limit of steps) is no prediction and is not judged."""
    for each in ended:
        for kind in KINDS:
            verdict = _verdict(each, kind)
            if verdict is not None:
                yield verdict


def _verdict(ended: EndedPrediction, kind: Kind) -> Verdict | None:
    prediction, found = ended.prediction, outcome_of(ended, kind)
    if found is None or found.predicted.low >= found.predicted.high:
        return None
    part = prediction.part.removeprefix(_OF_START if kind == "start" else _OF_TIME)
    by: Widening = getattr(prediction.calibration, kind)
    said = Predicted(found.predicted.mean, found.predicted.low, found.predicted.high)
    task = ANY_TASK if kind == "start" else prediction.task
    judged = Judged.of(prediction.job_id, task, _LIFE[part], said.uncorrected(by), found.true)
    return None if judged is None else Verdict(prediction.job_id, prediction.task, kind, part, found, judged)


_LIFE = dict(zip(PARTS, (0.0, 0.0, *_FROM), strict=True))
"""Part of a job's life that was over, by its name."""


def _truth(ended: EndedPrediction, kind: Kind) -> float | None:
    """What was left when the prediction was made; None where that cannot be said."""
    if kind == "time":
        return ended.finished_at - ended.prediction.at
    if kind == "start":
        return None if ended.started_at is None else ended.started_at - ended.prediction.at
    total, left = known(ended.prediction.total_steps), known(ended.prediction.steps)
    if total is None or left is None:
        return None
    return ended.total_steps - (total.mean - left.mean) if kind == "steps" else ended.finished_at - ended.prediction.at


class Scores:
    """How predictions turned out, and what that says about the next ones. Not thread-safe."""

    def __init__(self) -> None:
        self._ended: OrderedDict[tuple[str, str], EndedPrediction] = OrderedDict()
        self._errors: dict[Kind, Errors] = {kind: Errors() for kind in KINDS}
        self._of_task: dict[str, Experience] = {}

    @property
    def since(self) -> float:
        """From when on ends are to be asked for."""
        newest = max((each.finished_at for each in self._ended.values()), default=0.0)
        return max(newest - _OVERLAP_SECONDS, 0.0)

    def add(self, ended: Iterable[EndedPrediction]) -> None:
        """In the order in which the jobs ended; those that are known already change nothing."""
        new = [each for each in ended if (each.prediction.job_id, each.prediction.part) not in self._ended]
        if not new:
            return
        self._ended |= {(each.prediction.job_id, each.prediction.part): each for each in new}
        while len(self._ended) > MAX_PREDICTIONS:
            self._ended.popitem(last=False)
        found = list(verdicts(self._ended.values()))
        self._errors = {kind: Errors([each.judged for each in found if each.kind == kind]) for kind in KINDS}
        self._of_task.clear()

    def experience_of(self, task: str) -> Experience:
        """What corrects the intervals of a job of this task."""
        if task not in self._of_task:
            self._of_task[task] = Experience(task, **self._errors)
        return self._of_task[task]
