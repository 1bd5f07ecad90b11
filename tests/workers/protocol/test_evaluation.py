"""Evaluation while a job trains: when, by whom, and that it changes nothing of what is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.workers.protocol import tiny_training
from tests.workers.protocol.conftest import Job, server, worker
from tests.workers.protocol.replay import Replay, final_sections, history

from optimus_contract.job import Convergence, JobSpec, TargetMetric
from optimus_contract.limits import MAX_METRICS
from optimus_workers.errors import TaskError
from optimus_workers.task.user_code import UserCodeFailed, explained, run_user_code
from optimus_workers.worker.evaluation import Evaluations
from optimus_workers.worker.flat_model import FlatModel

JOB = JobSpec(name="job", task="tiny_training:make", convergence=Convergence())
TARGET = {"convergence": {"target_metric": {"name": "accuracy", "at_least": 0.9}}}
TARGET_JOB = replace(JOB, convergence=Convergence(target_metric=TargetMetric(name="accuracy", at_least=0.9)))


@given(st.floats(0.1, 5.0), st.lists(st.floats(0.0, 2.0), max_size=30))
def test_each_period_that_ended_is_evaluated_once(period: float, strides: list[float]) -> None:
    evaluations = Evaluations(replace(JOB, evaluate_epochs=period))
    epoch, due = 0.0, 0
    for stride in strides:
        before, epoch = epoch, epoch + stride
        is_due = evaluations.is_due(epoch)
        assert is_due == (int(epoch / period + 1e-9) > int(before / period + 1e-9))
        due += is_due
    assert due <= int(epoch / period + 1e-9)


def test_a_job_is_evaluated_each_epoch_only_if_its_rule_is_about_a_metric() -> None:
    assert not Evaluations(replace(JOB, convergence=Convergence(max_epochs=3))).is_due(1e6)
    by_default = Evaluations(TARGET_JOB)
    assert [by_default.is_due(epoch) for epoch in (0.5, 1.0, 1.5, 2.2)] == [False, True, False, True]


def test_a_worker_that_joins_late_does_not_evaluate_the_past() -> None:
    evaluations = Evaluations(TARGET_JOB)
    evaluations.begin(7.5)
    assert [evaluations.is_due(epoch) for epoch in (7.9, 8.0)] == [False, True]


def test_a_rule_about_a_figure_that_does_not_exist_is_an_error_of_the_task() -> None:
    task = tiny_training.make()
    Evaluations(TARGET_JOB).check(task)
    with pytest.raises(TaskError, match="has no evaluate function"):
        Evaluations(TARGET_JOB).check(replace(task, evaluate=None))
    other = Evaluations(replace(JOB, convergence=Convergence(target_metric=TargetMetric(name="bleu", at_least=30))))
    with pytest.raises(TaskError, match="'bleu', but evaluate gives accuracy"):
        other.metrics(task, FlatModel(task.build_model(0)))
    near = Evaluations(replace(JOB, convergence=Convergence(target_metric=TargetMetric(name="acuracy", at_least=0.9))))
    with pytest.raises(UserCodeFailed) as failed:
        run_user_code(lambda: near.metrics(task, FlatModel(task.build_model(0))))
    told = explained(failed.value)
    assert told.endswith("'acuracy', but evaluate gives accuracy; did you mean accuracy?\n")
    assert "Traceback" not in told
    assert "SpecificationError" not in told


def test_of_many_figures_that_of_the_rule_is_told() -> None:
    many = {f"figure{number:02}": 1.0 for number in range(50)} | {"accuracy": 0.5, "x" * 200: 1.0}
    task = replace(tiny_training.make(), evaluate=lambda _: many)
    told = Evaluations(TARGET_JOB).metrics(task, FlatModel(task.build_model(0)))
    assert len(told) == MAX_METRICS
    assert told["accuracy"] == 0.5


def test_one_worker_tells_the_metric_of_each_epoch_and_training_is_as_without(make_job: Callable[..., Job]) -> None:
    job = make_job({"dropout": False, "step_seconds": 0.002}, **TARGET)
    job.scale(worker(0), worker(1), server(0))
    job.wait_for("four evaluations", lambda: len(evaluated(job)) >= 4)
    result = job.finish()
    told = evaluated(job)
    assert {sample["rank"] for sample in told} == {0}
    # Ten steps an epoch; the sample ends with the step after which the model was evaluated.
    steps = [sample["step"] for sample in told]
    assert steps == [10 * (number + 1) for number in range(len(steps))]
    assert told[-1]["metrics"]["accuracy"] > told[0]["metrics"]["accuracy"]

    replay = Replay(tiny_training.make(dropout=False), seed=5)
    replay.follow(history(job.directory), result["step"])
    assert torch.equal(final_sections(job.directory, 2)[1][0], replay.vector.data)


def test_a_wrong_name_ends_the_job_with_a_reason(make_job: Callable[..., Job]) -> None:
    job = make_job(convergence={"target_metric": {"name": "bleu", "at_least": 30.0}})
    job.scale(worker(0), server(0))
    result = job.wait_for_result()
    assert result["outcome"] == "failed"
    assert "'bleu', but evaluate gives accuracy" in result["error"]


def evaluated(job: Job) -> list[dict[str, Any]]:
    return [sample for sample in job.service.samples if sample.get("metrics")]
