"""Learning rates of scripts: from whatever tells them to samples and to a plan."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from optimus_contract.readings import mlflow
from optimus_contract.readings.kubeflow import Kubeflow
from optimus_contract.readings.otlp import Otlp, points_of
from optimus_contract.readings.progress import Advance, Learned, Progress
from optimus_contract.readings.reading import Channel, Reading
from optimus_contract.readings.samples import rate_or_none, sample_of
from optimus_workers.script.channels.listener import BadRequest, report_readings
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.samples import counted_rates
from optimus_workers.telemetry.planned_rates import planned
from optimus_workers.wire.values import GlobalBatch

START = 1_000.0


def sampled(advances: list[Advance]) -> float | None:
    (advance,) = advances
    return sample_of(advance, Learned(), membership_epoch=1, workers=1).learning_rate


def test_a_rate_goes_with_the_next_step() -> None:
    progress = Progress(START, 0)
    client: dict[str, Any] = {"channel": Channel.CLIENT, "at": START + 1}
    assert sampled(progress.add(Reading(step=1, learning_rate=0.5, **client))) == 0.5
    assert progress.add(Reading(step=1, learning_rate=0.25, **client)) == [], "as the Trainer logs"
    assert sampled(progress.add(Reading(step=2, **client))) == 0.25
    assert sampled(progress.add(Reading(step=3, **client))) is None, "told once"


@pytest.mark.parametrize("rate", [math.nan, math.inf, -0.1, 1e10])
def test_what_cannot_be_a_learning_rate_is_left_out(rate: float) -> None:
    """The service would refuse the sample, and the steps with it."""
    assert rate_or_none(rate) is None


def of_kubeflow() -> Reading | None:
    listed = [{"name": name, "value": value} for name, value in
              (("current_step", "30"), ("loss", "1.5"), ("learning_rate", "2e-4"))]  # fmt: skip
    return Kubeflow().reading({"trainerStatus": {"metrics": listed}}, START)


def of_otlp() -> Reading:
    def gauge(name: str, value: float) -> dict[str, Any]:
        return {"name": f"training.{name}", "gauge": {"dataPoints": [{"asDouble": value}]}}

    scope = {"metrics": [gauge("step", 30), gauge("loss", 1.5), gauge("learning_rate", 2e-4)]}
    body = json.dumps({"resourceMetrics": [{"scopeMetrics": [scope]}]}).encode()
    (reading,) = Otlp().readings(points_of(body, "application/json"), START)
    return reading


def printed(line: bytes) -> Reading:
    (reading,) = Printed().feed(line, START)
    return reading


@pytest.mark.parametrize(
    "reading",
    [
        of_kubeflow(),
        of_otlp(),
        mlflow.reading(30, {"loss": 1.5, "train/learning_rate": 2e-4}, START),
        printed(b"step 30/100 loss 1.5 lr 2e-4\n"),
    ],
    ids=["kubeflow", "otlp", "mlflow", "printed"],
)
def test_the_rate_that_a_channel_tells_is_in_the_sample(reading: Reading) -> None:
    assert sampled(Progress(START, 0).add(reading)) == 2e-4


def test_the_plan_of_a_client_is_in_steps_of_the_job() -> None:
    body = {"total_steps": 50, "planned_rates": [[0, 0.4], [24, 0.4], [25, 0.04], [49, 0.04]]}
    (reading,) = report_readings(body, START)
    progress = Progress(START, 0, Learned(total_steps=100))  # as the first size counted them
    progress.add(reading)
    assert progress.take_planned_rates() == [(0, 0.4), (48, 0.4), (50, 0.04), (98, 0.04)]
    assert progress.take_planned_rates() == [], "each plan once"
    of_another = report_readings({**body, "rank": 1}, START)[0]
    progress.add(of_another)
    assert progress.take_planned_rates() == [], "the first process speaks for all"


def test_a_plan_of_weak_scaling_counts_as_its_batch_does() -> None:
    batch = GlobalBatch(size=30, slots=1, base_size=10, first_step=20, first_example=200)
    points = [(10, 1.0), (20, 1.0), (21, 0.5), (30, 0.5)]
    assert counted_rates(points, batch) == [(20, 1.0), (23, 0.5), (50, 0.5)]
    plan = planned(counted_rates(points, batch))
    assert plan is not None
    assert plan.steps == [20, 23, 50]


@pytest.mark.parametrize("wrong", [3, [1], [[1]], [[1, "x"]], [[-1, 0.1]], [[0.5, 0.1]], [[1, None]], [[1, math.inf]]])
def test_plans_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(BadRequest, match="planned_rates"):
        report_readings({"planned_rates": wrong}, START)
