"""How predictions turned out: of one job that has ended, and of all jobs by the part of their lives. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from optimus_contract import answers
from optimus_scheduler.model import JobState
from optimus_service.insight.format import moment
from optimus_service.insight.progress import finite, interval_body
from optimus_service.observe.promises import KINDS, PARTS, Verdict, verdicts
from optimus_service.store.records import DecisionRecord, JobRecord, KeptPromise, PromiseRecord

_MAX_POINTS = 10
"""Predictions in one review, spread evenly over the job's steps."""
_LEAST_SECONDS = 1.0
"""Less was no prediction any more: rounds and ends come seconds apart."""
_SOON_SECONDS = 5.0
"""A ratio of less time left than this says nothing: rounds and reports come seconds apart."""


def outcome_body(
    record: JobRecord, decisions: Sequence[DecisionRecord], promises: Iterable[PromiseRecord], cost: float | None
) -> answers.Outcome | None:
    """None while the job is active. `decisions`: its past ones, newest first; `promises`: what was told at the parts of
    its life."""
    if not record.state.is_final:
        return None
    result = record.result or {}
    started, finished = record.started_at, record.finished_at
    return answers.Outcome(
        steps=record.step,
        seconds=None if started is None or finished is None else finished - started,
        final_loss=finite(result.get("final_loss")),
        metrics={name: finite(value) for name, value in result.get("metrics", {}).items()},
        cost=cost,
        # Of a job that was ended by something else than its rule, nobody knows what would have come.
        review=_review(record, decisions, promises) if record.state is JobState.SUCCEEDED else [],
    )


def _review(
    record: JobRecord, decisions: Sequence[DecisionRecord], promises: Iterable[PromiseRecord]
) -> list[answers.ReviewPoint]:
    """What was told at the parts of the job's life, and the worst prediction of all.

    Without a time that was told (nobody looked ahead): the first prediction of its rounds, each that was made a tenth
    of its steps further on, and the worst.
    """
    every = list(_points(record, decisions))
    points = list(_told(record, every, promises))
    if points:
        every = [*points, *(_of_steps(point) for point in every)]
    else:
        for point in every:
            if not points or point.part >= points[-1].part + 1.0 / _MAX_POINTS:
                points.append(point)
    worst = max(every, key=_badness, default=None)
    if worst is not None and worst not in points:
        points.append(worst)
    return sorted(points, key=lambda point: point.at)


def _told(
    record: JobRecord, rounds: Sequence[answers.ReviewPoint], promises: Iterable[PromiseRecord]
) -> Iterator[answers.ReviewPoint]:
    """Each time that was told while the job trained, beside the steps that the round before it predicted."""
    for promise in sorted(promises, key=lambda each: each.at):
        before = [point for point in rounds if point.at <= moment(promise.at)]
        seconds = interval_body(promise.time)
        if seconds is None or seconds.mean < _LEAST_SECONDS or not before or record.finished_at is None:
            continue
        true = max(record.finished_at - promise.at, 0.0)
        yield replace(
            before[-1],
            at=moment(promise.at),
            remaining_seconds=seconds,
            true_remaining_seconds=true,
            seconds_error_percent=None if true <= 0 else 100.0 * (seconds.mean / true - 1.0),
            seconds_held=_holds(seconds, true),
        )


def _of_steps(point: answers.ReviewPoint) -> answers.ReviewPoint:
    """Without the time at the size that the job had: it was not told, another one was."""
    return replace(point, remaining_seconds=None, seconds_error_percent=None, seconds_held=None)


def _badness(point: answers.ReviewPoint) -> float:
    """By how much a prediction was too high or too low, whichever way: of the time left, else of the steps."""
    left = point.remaining_seconds
    if left is not None and left.mean > 0 and point.true_remaining_seconds > _SOON_SECONDS:
        return abs(math.log(left.mean / point.true_remaining_seconds))
    return abs(math.log(max(1.0 + point.error_percent / 100.0, 1e-9)))


def _points(record: JobRecord, decisions: Sequence[DecisionRecord]) -> Iterator[answers.ReviewPoint]:
    """Predictions of how many steps it would take, oldest first; none for a job that made no step."""
    for decision in reversed(decisions):
        forecast = decision.forecast
        total, left = interval_body(forecast.total_steps), interval_body(forecast.remaining_steps)
        if total is None or left is None or record.finished_at is None or record.step <= 0:
            continue
        if forecast.converged or left.mean <= 0 or forecast.rule is None:
            continue  # nothing was told: it was being finished, or nobody knew where the end is
        step = round(total.mean - left.mean)
        seconds = interval_body(forecast.remaining_seconds)
        if seconds is not None and seconds.mean < _LEAST_SECONDS:
            continue
        true = max(record.finished_at - decision.at, 0.0)
        yield answers.ReviewPoint(
            at=moment(decision.at),
            step=step,
            part=min(max(step / record.step, 0.0), 1.0),
            total_steps=total,
            error_percent=100.0 * (total.mean / record.step - 1.0),
            held=_holds(total, record.step),
            remaining_seconds=seconds,
            true_remaining_seconds=true,
            seconds_error_percent=None if seconds is None or true <= 0 else 100.0 * (seconds.mean / true - 1.0),
            seconds_held=None if seconds is None else _holds(seconds, true),
        )


def _holds(predicted: answers.Interval, truth: float) -> bool:
    """A step or a second more or less is no miss: steps are counted in whole ones, and an end is noticed."""
    low = predicted.low is None or predicted.low - 1.0 <= truth
    return low and (predicted.high is None or truth <= predicted.high + 1.0)


# --- all jobs together -----------------------------------------------------------------------------------------------

MAX_TASKS = 50
"""Tasks that are shown by themselves."""


def scorecard(kept: Iterable[KeptPromise]) -> answers.Scorecard:
    """Of promises whose jobs have succeeded."""
    found = list(verdicts(kept))
    by_task = Counter(verdict.task for verdict in found)
    return answers.Scorecard(
        scores=scores(found),
        tasks=[
            answers.TaskScore(task=task, scores=scores([each for each in found if each.task == task]))
            for task, _ in sorted(by_task.items(), key=lambda item: (-item[1], item[0]))[:MAX_TASKS]
        ],
    )


def scores(found: Sequence[Verdict]) -> list[answers.PromiseScore]:
    """One line for each kind and part of life of which there is any."""
    return [
        _score(those, part)
        for kind in KINDS
        for part in PARTS
        if (those := [each for each in found if (each.kind, each.part) == (kind, part)])
    ]


def _score(found: Sequence[Verdict], part: str) -> answers.PromiseScore:
    return answers.PromiseScore(
        kind=found[0].kind,
        part=part,
        promises=len(found),
        held=sum(each.held for each in found) / len(found),
        median_error_percent=100.0 * median(abs(each.predicted.mean / each.true - 1.0) for each in found),
    )
