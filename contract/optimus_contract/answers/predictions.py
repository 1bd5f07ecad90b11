"""What is predicted of a job, and what became of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from optimus_contract.answers.jobs import ExpectedTimes, Interval, SpeedSource
from optimus_contract.message import About, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedPoint(Message):
    """Predicted speed and time left for one (workers, servers)."""

    workers: int
    servers: int
    steps_per_second: float | None
    remaining_seconds: Interval | None
    measured: Annotated[float | None, About("steps per second measured with this size")]
    cost: Annotated[Interval | None, About("to finish with this size; null without prices")]
    beyond: Annotated[
        str | None,
        About("what the size is beyond: its limits, the size that it keeps, its project's quota or the cluster"),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint(Message):
    step: float
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPoint(CurvePoint):
    low: Annotated[float | None, About("with `high`: the interval that holds the loss with 80 % probability")]
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint(Message):
    step: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSeries(Message):
    """One figure of a job's evaluations."""

    name: str
    values: Annotated[list[MetricPoint], About("by step, down-sampled; those that are not finite are left out")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationList(Message):
    """What a job's evaluations gave, figure by figure (`GET /v1/jobs/{id}/evaluations`)."""

    series: Annotated[list[EvaluationSeries], About("by name; empty before the first evaluation")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint(Message):
    """A value that a job reported; of many steps together, their mean."""

    step: float
    epoch: Annotated[float | None, About("null: the number of steps of an epoch is not known")]
    at_seconds: Annotated[
        float | None,
        About("since submission, or since the first of these if that is older; null: of samples of an older release"),
    ]
    value: Annotated[float | None, About("null: not finite")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSeries(Message):
    """One figure of a job's evaluations over steps, epochs and time."""

    name: str
    points: list[MeasuredPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves(Message):
    """What a job measured, for curves over those of other jobs (`GET /v1/jobs/{id}/curves`)."""

    loss: Annotated[list[MeasuredPoint], About("by step, down-sampled")]
    figures: Annotated[list[MeasuredSeries], About("by name; empty before the first evaluation")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint(Message):
    """The learning rate of a step, counted from 0."""

    step: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Message):
    """The figure that the convergence rule is about, as it was evaluated."""

    name: str
    target: float
    values: list[MetricPoint]
    fitted: Annotated[list[MetricPoint], About("its fitted curve, on to the predicted end")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned(Message):
    """What predictions rest on beside the job's own telemetry."""

    finished_runs: Annotated[int, About("ended jobs of the same task that the loss curve is judged by")]
    share: Annotated[float, About("how much they count beside the job's own losses, 0 to 1")]
    speeds_from: Annotated[SpeedSource | None, About("what predicted speeds rest on; null: nothing is known")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Message):
    """A size, and what finishing with it would take."""

    workers: int
    servers: int
    remaining_seconds: Interval
    cost: Interval
    keeps_limit: Annotated[bool, About("false: no size does, and this one comes nearest")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(Message):
    """Money, at the prices that the service is set to."""

    so_far: float
    to_finish: Annotated[Interval | None, About("with the present size; null without one")]
    cheapest_before_deadline: Annotated[Choice | None, About("among the sizes asked for")]
    fastest_under_budget: Choice | None
    worth_considering: Annotated[list[Choice], About("sizes that no other beats in time and cost, fastest first")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewPoint(Message):
    """One prediction of a job that has ended, beside what came."""

    at: datetime
    step: int
    part: Annotated[float, About("of all its steps that were done then, 0 to 1")]
    total_steps: Annotated[Interval | None, About("null: of its steps nothing was predicted")]
    error_percent: Annotated[float | None, About("predicted over true total steps, minus 1")]
    held: Annotated[bool | None, About("whether the interval holds the truth")]
    remaining_seconds: Interval | None
    true_remaining_seconds: float
    seconds_error_percent: Annotated[float | None, About("predicted over true time left, minus 1")] = None
    seconds_held: Annotated[bool | None, About("whether the interval of the time left holds the truth")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionScore(Message):
    """How predictions of one kind turned out that were made at one part of the lives of jobs."""

    kind: Annotated[
        Literal["steps", "seconds", "time", "start"],
        About(
            "what was left: steps, seconds at its size then, time to the end, waiting and changes of size included, "
            "or time to the first tasks"
        ),
    ]
    part: Annotated[str, About("of its life or wait, as far as it was known", examples=("first step", "25 %"))]
    promises: Annotated[int, About("how many were judged")]
    held: Annotated[float, About("part of them whose 80 % interval held what came")]
    median_error_percent: Annotated[float, About("of what was left: |predicted - true| / true")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore(Message):
    """The same of the jobs of one task."""

    task: str
    scores: list[PredictionScore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard(Message):
    """How the newest predictions turned out whose jobs have succeeded since (`GET /v1/promises`)."""

    scores: Annotated[list[PredictionScore], About("of all tasks together")]
    tasks: Annotated[list[TaskScore], About("of each task, those with most predictions first")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Message):
    """What became of a job that has ended, and of what was predicted."""

    steps: int
    seconds: Annotated[float | None, About("from the start of training to the end")]
    final_loss: float | None
    metrics: dict[str, float | None]
    cost: float | None
    review: Annotated[list[ReviewPoint], About("predictions from its beginning to its end")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionPoint(Message):
    at: datetime
    step: int
    total_steps: Interval | None
    remaining_seconds: Annotated[
        Interval | None, About("from `at` on; null: nothing told its end then, as while it hung")
    ] = None


AdviceKind = Literal["cheaper", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Message):
    """A size that may suit the job's owner better, by the fitted speed model."""

    kind: AdviceKind
    message: str
    workers: int
    servers: int
    seconds_ratio: Annotated[Interval, About("time left, as a multiple of that with the present size")]
    cost_ratio: Annotated[Interval, About("cost likewise; without prices, of task-seconds")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAdvice(Message):
    """How often a script writes its checkpoint, and how often would lose the least time (docs/script-sizes.md)."""

    every_seconds: float
    write_seconds: float
    best_every_seconds: float
    seconds_between_interruptions: Annotated[float, About("expected, from this installation's past")]
    lost_share: Annotated[float, About("part of the time that checkpoints and repeated steps cost, 0 to 1")]
    best_lost_share: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions(Message):
    """What Optimus believes of a job now (`GET /v1/jobs/{id}/predictions`)."""

    at: datetime | None
    total_steps: Interval | None
    remaining_steps: Interval | None
    remaining_seconds: Interval | None
    expected: Annotated[ExpectedTimes | None, About("as of a job")] = None
    confidence: float
    rule: str | None
    loss_curve: dict[str, float | None]
    speed_model: dict[str, float | None]
    speeds: list[SpeedPoint]
    losses: Annotated[list[CurvePoint], About("down-sampled loss history")]
    fitted: Annotated[list[FittedPoint], About("the fitted curve at the same steps and on to the predicted end")]
    history: Annotated[list[PredictionPoint], About("earlier predictions, one per round")]
    learned: Learned
    learning_rates: Annotated[list[RatePoint], About("as they were reported, down-sampled; the last one is exact")]
    planned_rates: Annotated[
        list[RatePoint], About("those that are planned for the steps to come, with straight lines between")
    ]
    metric: Annotated[Metric | None, About("with a `target_metric`")]
    cost: Annotated[Cost | None, About("null when the service has no prices")]
    advice: Annotated[list[Advice], About("sizes worth a thought; empty while too little is measured")]
    checkpoints: Annotated[CheckpointAdvice | None, About("of a script that has written three checkpoints")]
    outcome: Annotated[Outcome | None, About("of a job that has ended")]
