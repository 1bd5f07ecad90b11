"""How predictions turned out: of one job that has ended, and of all jobs by the part of their lives. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median

from optimus_contract import answers
from optimus_scheduler.model import Interval, JobState
from optimus_service.insight.format import finite, interval_body, moment
from optimus_service.observe.shown_predictions import KINDS, PARTS, Kind, Outcome, Verdict, holds, outcome_of, verdicts
from optimus_service.store.records import EndedPrediction, JobRecord, PredictionRecord
from optimus_service.store.rounds.forecasts import known


def outcome_body(record: JobRecord, past: Iterable[PredictionRecord], cost: float | None) -> answers.Outcome | None:
    """None while the job is active. `past`: what was told at the parts of its life."""
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
        review=_review(record, past) if record.state is JobState.SUCCEEDED else [],
    )


def _review(record: JobRecord, past: Iterable[PredictionRecord]) -> list[answers.ReviewPoint]:
    """What was told at the parts of the job's life, judged as in the scorecard of all jobs.

    One point a moment, of steps and of a time as they were predicted then, not before. Where nobody looked ahead, times
    are those at the size that the job had.
    """
    if record.finished_at is None or record.step <= 0:
        return []
    in_order = sorted(past, key=lambda each: each.at)
    end, start = record.finished_at, record.started_at
    ended = [
        EndedPrediction(prediction=each, total_steps=record.step, finished_at=end, started_at=start)
        for each in in_order
    ]
    times: Kind = "time" if any(each.prediction.time is not None for each in ended) else "seconds"
    points: list[answers.ReviewPoint] = []
    last_step = 0.0
    for _, group in groupby(ended, key=lambda each: each.prediction.at):
        said = list(group)
        of_steps = next((each for each in said if each.prediction.total_steps is not None), None)
        of_time = next((each for each in said if outcome_of(each, times) is not None), None)
        last_step = next((step for each in said if (step := _step_of(each.prediction)) is not None), last_step)
        if (shown := of_time or of_steps) is not None:
            total = None if of_steps is None else known(of_steps.prediction.total_steps)
            points.append(_point(record, shown, last_step, total, outcome_of(shown, times)))
    return points


def _point(
    record: JobRecord, ended: EndedPrediction, at_step: float, total: Interval | None, time: Outcome | None
) -> answers.ReviewPoint:
    prediction = ended.prediction
    has_interval = total is not None and total.low < total.high
    return answers.ReviewPoint(
        at=moment(prediction.at),
        step=round(at_step),
        part=min(max(at_step / record.step, 0.0), 1.0),
        total_steps=interval_body(total),
        error_percent=None if total is None else 100.0 * (total.mean / record.step - 1.0),
        held=holds(total, record.step) if total is not None and has_interval else None,
        remaining_seconds=None if time is None else interval_body(time.predicted),
        true_remaining_seconds=max(ended.finished_at - prediction.at, 0.0),
        seconds_error_percent=None if time is None else time.error_percent,
        seconds_held=_held(time),
    )


def _held(what: Outcome | None) -> bool | None:
    """Whether its interval held what came; None of what was told without one, as the steps of a limit."""
    return None if what is None or what.predicted.low >= what.predicted.high else what.held


def _step_of(prediction: PredictionRecord) -> float | None:
    """The step that the job was at; of an earlier release's prediction, by what it said of the steps, if it did."""
    total, left = known(prediction.total_steps), known(prediction.steps)
    if prediction.step is not None or total is None or left is None:
        return prediction.step
    return total.mean - left.mean


# --- all jobs together -----------------------------------------------------------------------------------------------

MAX_TASKS = 50
"""Tasks that are shown by themselves."""


def scorecard(ended: Iterable[EndedPrediction]) -> answers.Scorecard:
    """Of predictions whose jobs have succeeded."""
    found = list(verdicts(ended))
    by_task = Counter(verdict.task for verdict in found)
    return answers.Scorecard(
        scores=scores(found),
        tasks=[
            answers.TaskScore(task=task, scores=scores([each for each in found if each.task == task]))
            for task, _ in sorted(by_task.items(), key=lambda item: (-item[1], item[0]))[:MAX_TASKS]
        ],
    )


def scores(found: Sequence[Verdict]) -> list[answers.PredictionScore]:
    """One line for each kind and part of life of which there is any."""
    return [
        _score(those, part)
        for kind in KINDS
        for part in PARTS
        if (those := [each for each in found if (each.kind, each.part) == (kind, part)])
    ]


def _score(found: Sequence[Verdict], part: str) -> answers.PredictionScore:
    return answers.PredictionScore(
        kind=found[0].kind,
        part=part,
        promises=len(found),
        held=sum(each.came.held for each in found) / len(found),
        median_error_percent=100.0 * median(abs(each.came.predicted.mean / each.came.true - 1.0) for each in found),
    )
