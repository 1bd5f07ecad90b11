"""What is predicted of a job, and what became of predictions."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from optimus_service.contract.basics import Body
from optimus_service.contract.jobs import IntervalBody


class SpeedPointBody(Body):
    """Predicted speed and time left for one (workers, servers)."""

    workers: int
    servers: int
    steps_per_second: float | None
    remaining_seconds: IntervalBody | None
    measured: float | None = Field(description="steps per second measured with this size")
    cost: IntervalBody | None = Field(description="to finish with this size; null without prices")


class CurvePointBody(Body):
    step: float
    loss: float | None


class FittedPointBody(CurvePointBody):
    low: float | None = Field(description="with `high`: the interval that holds the loss with 80 % probability")
    high: float | None


class MetricPointBody(Body):
    step: float
    value: float


class MetricBody(Body):
    """The figure that the convergence rule is about, as it was evaluated."""

    name: str
    target: float
    values: list[MetricPointBody]
    fitted: list[MetricPointBody] = Field(description="its fitted curve, on to the predicted end")


class LearnedBody(Body):
    """What predictions rest on beside the job's own telemetry."""

    finished_runs: int = Field(description="ended jobs of the same task that the loss curve is judged by")
    share: float = Field(description="how much they count beside the job's own losses, 0 to 1")
    speeds_from: Literal["measured", "similar jobs", "analysis"] | None = Field(
        description="what predicted speeds rest on; null: nothing is known"
    )


class ChoiceBody(Body):
    """A size, and what finishing with it would take."""

    workers: int
    servers: int
    remaining_seconds: IntervalBody
    cost: IntervalBody
    keeps_limit: bool = Field(default=True, description="false: no size does, and this one comes nearest")


class CostBody(Body):
    """Money, at the prices that the service is set to."""

    so_far: float
    to_finish: IntervalBody | None = Field(description="with the present size; null without one")
    cheapest_before_deadline: ChoiceBody | None = Field(description="among the sizes asked for")
    fastest_under_budget: ChoiceBody | None
    worth_considering: list[ChoiceBody] = Field(description="sizes that no other beats in time and cost, fastest first")


class ReviewPointBody(Body):
    """One prediction of a job that has ended, beside what came."""

    at: datetime
    step: int
    part: float = Field(description="of all its steps that were done then, 0 to 1")
    total_steps: IntervalBody
    error_percent: float = Field(description="predicted over true total steps, minus 1")
    held: bool = Field(description="whether the interval holds the truth")
    remaining_seconds: IntervalBody | None
    true_remaining_seconds: float


class OutcomeBody(Body):
    """What became of a job that has ended, and of what was predicted."""

    steps: int
    seconds: float | None = Field(description="from the start of training to the end")
    final_loss: float | None
    metrics: dict[str, float | None]
    cost: float | None
    review: list[ReviewPointBody] = Field(description="predictions from its beginning to its end")


class PredictionsBody(Body):
    """What Optimus believes of a job now (`GET /v1/jobs/{id}/predictions`)."""

    at: datetime | None
    total_steps: IntervalBody | None
    remaining_steps: IntervalBody | None
    remaining_seconds: IntervalBody | None
    confidence: float
    rule: str | None
    loss_curve: dict[str, float | None]
    speed_model: dict[str, float | None]
    speeds: list[SpeedPointBody]
    losses: list[CurvePointBody] = Field(description="down-sampled loss history")
    fitted: list[FittedPointBody] = Field(description="the fitted curve at the same steps and on to the predicted end")
    history: list[PredictionPointBody] = Field(description="earlier predictions, one per round")
    learned: LearnedBody
    metric: MetricBody | None = Field(description="with a `target_metric`")
    cost: CostBody | None = Field(description="null when the service has no prices")
    outcome: OutcomeBody | None = Field(description="of a job that has ended")


class PredictionPointBody(Body):
    at: datetime
    step: int
    total_steps: IntervalBody | None
