"""What the service refuses is told once and never repeated: what the job cannot do without fails it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.workers.protocol.conftest import Job, server, worker

from optimus_workers.coordinator.handlers.ending import failure
from optimus_workers.errors import TaskError
from optimus_workers.worker.evaluation import MAX_NAME_CHARACTERS, MAX_RESULT_METRICS, checked_metrics

FEW_STEPS = {"max_steps": 3}


def test_too_many_metrics_fail_the_job_at_the_first_evaluation(make_job: Callable[..., Job]) -> None:
    job = make_job({"n_figures": 130}, convergence={"max_steps": 100_000}, evaluate_epochs=1.0)
    job.scale(worker(0), server(0))
    result = job.wait_for_result()
    assert result["outcome"] == "failed"
    assert "evaluate must return at most 100 metrics; it returned 130: accuracy, figure_1," in result["error"]
    assert result["step"] <= 20, "the first evaluation is after ten steps"
    assert job.exit_code("job-coordinator-0-0") == 3


def test_a_refused_result_is_a_failure_in_the_services_words(make_job: Callable[..., Job]) -> None:
    job = make_job(convergence=FEW_STEPS)
    job.service.refuses = lambda _, path, body: (
        "metrics: too shiny" if path.endswith("/result") and body["outcome"] == "succeeded" else None
    )
    job.scale(worker(0), server(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("failed", 3)
    assert result["error"] == "the service refused the job's result: metrics: too shiny"
    assert job.service.n_refused["result"] == 1


def test_a_service_that_takes_no_result_at_all_learns_of_the_failure_by_the_exit_code(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(convergence=FEW_STEPS)
    job.service.refuses = lambda _, path, __: "no result, please" if path.endswith("/result") else None
    job.scale(worker(0), server(0))
    assert job.exit_code("job-coordinator-0-0") == 3
    assert job.service.n_refused["result"] == 2
    assert "no result, please" in job.logs()


def test_a_refused_membership_fails_the_job(make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.service.refuses = lambda method, path, __: (
        "workers: too many" if method == "POST" and path.endswith("/membership") else None
    )
    job.scale(worker(0), server(0))
    result = job.wait_for_result()
    assert result["outcome"] == "failed"
    assert result["error"] == "the service refused a membership of the job: workers: too many"


def test_refused_telemetry_costs_the_job_nothing_and_is_told_once(make_job: Callable[..., Job]) -> None:
    job = make_job({"step_seconds": 0.01})
    job.service.refuses = lambda _, path, __: "no samples, please" if path.endswith("/telemetry") else None
    job.scale(worker(0), server(0))
    job.wait_for("several refusals", lambda: job.service.n_refused["telemetry"] >= 4)
    job.service.want([worker(0), server(0)], "finish")
    assert job.wait_for_result()["outcome"] == "succeeded"
    assert (job.directory / f"{worker(0)}.log").read_text().count("no samples, please") == 1


def test_a_refused_question_is_asked_again_less_and_less(make_job: Callable[..., Job]) -> None:
    job = make_job()
    job.service.refuses = lambda method, path, __: "who are you?" if method == "GET" and "/membership" in path else None
    job.wait_for("three refusals", lambda: job.service.n_refused["membership"] >= 3)
    assert job.logs().count("who are you?") == 1
    job.service.refuses = lambda *_: None
    job.service.want([], "cancel")
    assert job.exit_code("job-coordinator-0-0") == 0


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([0.9], "must return a dict of numbers by name, not list"),
        ({f"figure_{number}": 1.0 for number in range(130)}, "at most 100 metrics; it returned 130: figure_0,"),
        ({3: 1.0}, "must be strings, not int"),
        ({"": 1.0}, "must have 1 to 1000 characters"),
        ({"x" * 1001: 1.0}, "must have 1 to 1000 characters"),
        ({"a\0b": 1.0}, "without NUL and surrogates"),
        ({"\udc80": 1.0}, "without NUL and surrogates"),
        ({"a": "much"}, "'a' must be a number"),
        ({"a": None}, "'a' must be a number"),
        ({"a": torch.ones(2)}, "'a' must be a number"),
    ],
)
def test_figures_that_no_result_can_hold_are_an_error_of_the_task(found: object, problem: str) -> None:
    with pytest.raises(TaskError, match=problem):
        checked_metrics(found)


def test_figures_as_large_as_they_may_be_fit_a_control_message() -> None:
    largest = {f"{number:03}" + "\u1234" * (MAX_NAME_CHARACTERS - 3): math.pi for number in range(MAX_RESULT_METRICS)}
    assert checked_metrics(largest) == largest
    assert len(json.dumps(largest)) < 2**20


def test_an_error_is_told_without_what_cannot_be_stored() -> None:
    told: Any = failure(0, None, "no file \udc80\0", None).error
    assert told == r"no file \udc80\x00"
