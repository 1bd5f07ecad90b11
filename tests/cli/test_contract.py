"""The bodies that the command line reads are those that the service answers with."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel

from optimus_cli import bodies
from optimus_service.api import schemas

PAIRS: list[tuple[Any, type[BaseModel]]] = [
    (bodies.Interval, schemas.IntervalBody),
    (bodies.Allocation, schemas.AllocationBody),
    (bodies.JobResult, schemas.JobResultBody),
    (bodies.JobProfile, schemas.JobProfileBody),
    (bodies.Job, schemas.JobBody),
    (bodies.Event, schemas.EventBody),
    (bodies.Decision, schemas.DecisionBody),
    (bodies.Explanation, schemas.ExplanationBody),
    (bodies.Marginal, schemas.MarginalBody),
    (bodies.Expected, schemas.ExpectedBody),
    (bodies.RescaleEffect, schemas.RescaleEffectBody),
    (bodies.Effect, schemas.EffectBody),
    (bodies.Plan, schemas.PlanBody),
    (bodies.SpeedPoint, schemas.SpeedPointBody),
    (bodies.JobUsage, schemas.JobUsageBody),
    (bodies.CurvePoint, schemas.CurvePointBody),
    (bodies.FittedPoint, schemas.FittedPointBody),
    (bodies.PredictionPoint, schemas.PredictionPointBody),
    (bodies.MetricPoint, schemas.MetricPointBody),
    (bodies.MetricCurve, schemas.MetricBody),
    (bodies.Learned, schemas.LearnedBody),
    (bodies.Choice, schemas.ChoiceBody),
    (bodies.Cost, schemas.CostBody),
    (bodies.ReviewPoint, schemas.ReviewPointBody),
    (bodies.Outcome, schemas.OutcomeBody),
    (bodies.Predictions, schemas.PredictionsBody),
    (bodies.AllocationPoint, schemas.AllocationPointBody),
    (bodies.NodeResources, schemas.NodeResourcesBody),
    (bodies.Node, schemas.NodeBody),
    (bodies.Cluster, schemas.ClusterBody),
    (bodies.Quota, schemas.QuotaBody),
    (bodies.Project, schemas.ProjectBody),
    (bodies.Log, schemas.LogBody),
]


@pytest.mark.parametrize(("read", "answered"), PAIRS, ids=[answered.__name__ for _, answered in PAIRS])
def test_bodies_have_the_services_fields(read: Any, answered: type[BaseModel]) -> None:
    assert set(read.__annotations__) == set(answered.model_fields)


def test_the_command_line_needs_its_own_extra_only() -> None:
    absent = ["fastapi", "sqlalchemy", "torch", "pydantic", "uvicorn", "optimus_service", "optimus_workers", "numpy"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import optimus_cli.app"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_service_is_said_in_a_sentence() -> None:
    code = "import sys; sys.modules['optimus_service'] = None; from optimus_cli.__main__ import main; main()"
    for arguments in (["serve"], ["db", "current"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "pip install 'optimus-scheduler[service]'" in done.stderr
        assert "Traceback" not in done.stderr
