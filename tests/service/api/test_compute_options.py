"""Where and how workers compute: fields of a job that reach them as they are."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from optimus_contract.job import JobSpec
from optimus_service.requests import checked
from optimus_workers.worker.device import ComputeOptions

JOB: dict[str, Any] = {"name": "a", "task": "optimus_workers.zoo.digits:mlp"}


def test_defaults_are_those_of_the_worker() -> None:
    assert ComputeOptions.from_spec(checked(JobSpec, JOB)) == ComputeOptions()


def test_what_is_asked_for_reaches_the_worker() -> None:
    asked = {"device": "cuda", "precision": "bf16", "compile": True, "deterministic": True, "overlap": False}
    assert ComputeOptions.from_spec(checked(JobSpec, JOB | asked)) == ComputeOptions("cuda", "bf16", True, True, False)


@pytest.mark.parametrize("wrong", [{"device": "gpu"}, {"precision": "fp8"}, {"compile": "fast"}, {"overlap": None}])
def test_what_there_is_not_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        checked(JobSpec, JOB | wrong)
