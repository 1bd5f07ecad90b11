"""What workers tell of a job's figures is what the service takes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError
from tests.workers.protocol import tiny_training
from tests.workers.telemetry_steps import record

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.limits import MAX_BODY_BYTES, MAX_METRICS
from optimus_contract.result import JobResult
from optimus_contract.telemetry import Sample
from optimus_service.requests import checked
from optimus_workers.worker.evaluation import MAX_NAME_CHARACTERS, MAX_RESULT_METRICS, Evaluations
from optimus_workers.worker.flat_model import FlatModel


def test_a_result_holds_as_many_figures_as_workers_tell_and_no_more() -> None:
    largest = {f"{number:03}" + "\u1234" * (MAX_NAME_CHARACTERS - 3): 0.5 for number in range(MAX_RESULT_METRICS)}
    body = {"outcome": "succeeded", "step": 1, "metrics": largest}
    checked(JobResult, body)
    assert len(json.dumps(body)) < MAX_BODY_BYTES
    with pytest.raises(ValidationError):
        checked(JobResult, {**body, "metrics": largest | {"one more": 0.5}})


def test_a_sample_holds_as_many_figures_as_workers_tell() -> None:
    many = {f"figure{number}": 0.5 for number in range(2 * MAX_METRICS)}
    evaluations = Evaluations(JobSpec(name="job", task="tiny_training:make"))
    task = replace(tiny_training.make(), evaluate=lambda _: many)
    told = evaluations.metrics(task, FlatModel(task.build_model(0)))
    checked(Sample, write(record(metrics=told)))
    with pytest.raises(ValidationError):
        checked(Sample, write(record(metrics=told | {"one more": 0.5})))
