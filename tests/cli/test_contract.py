"""The bodies that the command line reads are those that the service answers with."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from tests.cli import builders
from tests.cli.conftest import Answer, Optimus, ScriptedService

from optimus_cli import bodies
from optimus_service import contract as schemas

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


FLAGS = """
    --task a:b --name n --set x=1 --project p --batch-size 8 --mode sync --architecture ps --scaling weak
    --warmup-epochs 2 --max-gradient-norm 1 --compression topk --compression-keep 0.1 --gradient-statistics --seed 3
    --device cpu --precision bf16 --compile --deterministic --no-overlap --hang-seconds 90
    --loss-decrease 0.01 --relative-to maximum --patience-epochs 2 --target-loss 0.5 --max-epochs 9 --max-steps 90
    --max-seconds 900 --target-metric accuracy>=0.9 --max-cost 3 --evaluate-epochs 2
    --workers-min 1 --workers-max 2 --worker-cpu 1 --worker-memory 1Gi --worker-gpus 1 --gpu-types a100
    --servers-min 1 --servers-max 2 --server-cpu 1 --server-memory 1Gi
    --priority 2 --deadline-seconds 900 --retries 1 --checkpoint-seconds 60 --checkpoint-url s3://bucket/here
    --working-directory / --env A=1 --from job-1
"""
ELASTIC = "--task a:b --architecture allreduce --elastic-batch 32:512:64"
INSTEAD = {
    "deadline": "--deadline, the same as a date",
    "elastic_batch.minimum": "--elastic-batch, which goes with other flags",
    "elastic_batch.maximum": "the same flag",
    "elastic_batch.per_pass": "the same flag",
    "elastic_batch.most_passes": "files only",
    "elastic_batch.warmup_epochs": "files only",
    "convergence.target_metric.at_most": "--target-metric with <=",
    "convergence.target_metric.best": "files only",
    "servers.resources.gpus": "files only: servers use none",
}


def test_every_field_of_a_specification_has_a_flag(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/jobs/job-1", Answer(200, builders.job(id="job-1")))
    scripted.on("POST", "/v1/jobs", Answer(201, builders.job()))
    done = optimus("submit", *shlex.split(FLAGS), "--url", scripted.url)
    assert done.exit_code == 0, done.stderr
    sent = scripted.requests[-1].body
    schemas.JobSpecBody.model_validate(sent)
    assert set(_given(sent)) == set(_fields(schemas.JobSpecBody)) - INSTEAD.keys()
    booleans = {name for name, field in schemas.JobSpecBody.model_fields.items() if field.annotation is bool}
    assert {name for name in booleans if sent[name]} == booleans - {"overlap"}


def test_an_elastic_batch_is_one_flag(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("POST", "/v1/jobs", Answer(201, builders.job()))
    done = optimus("submit", *shlex.split(ELASTIC), "--url", scripted.url)
    assert done.exit_code == 0, done.stderr
    spec = schemas.JobSpecBody.model_validate(scripted.requests[-1].body)
    assert spec.elastic_batch == schemas.ElasticBatchBody(minimum=32, maximum=512, per_pass=64)


def _given(sent: Mapping[str, Any]) -> Iterator[str]:
    """Dotted names of what a document sets, down to what is no body of fields."""
    for name, value in sent.items():
        if isinstance(value, dict) and name not in ("task_args", "environment"):
            yield from (f"{name}.{inner}" for inner in _given(value))
        else:
            yield name


def _fields(body: type[BaseModel]) -> Iterator[str]:
    for name, field in body.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        inner = next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
        if inner is None:
            yield name
        else:
            yield from (f"{name}.{each}" for each in _fields(inner))


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
