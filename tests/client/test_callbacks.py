"""The callbacks of Hugging Face's Trainer and of Lightning in real trainings: stopped, and resized."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.agent import Agent, Script, agent, assert_same, check_rates, run, stop_after
from tests.packages import need

N_STEPS = 60
"""Two epochs of 120 examples in steps of four."""
SLOW = {"STEP_SECONDS": "0.05"}


def batch(size: int, accumulation: int = 1) -> dict[str, str]:
    sizes = {"OPTIMUS_WORKER_BATCH_SIZE": str(size), "OPTIMUS_ACCUMULATION_STEPS": str(accumulation)}
    return {"OPTIMUS_GLOBAL_BATCH_SIZE": "4", **sizes}


@pytest.mark.parametrize(
    ("name", "packages"), [("transformers", ["transformers", "accelerate"]), ("lightning", ["lightning"])]
)
def test_one_process_two_one(name: str, packages: list[str], tmp_path: Path) -> None:
    """The same optimizer steps and parameters as at one go."""
    need(*packages)
    script, whole = f"{name}_script.py", tmp_path / "whole"
    whole.mkdir()
    with agent(whole) as heard:
        Script(script, heard, 1, str(whole), variables=batch(4)).wait()
        _check_reports(heard)
    with agent(tmp_path) as heard:
        first = stop_after(heard, Script(script, heard, 1, str(tmp_path), variables={**SLOW, **batch(4)}), 5)
        one_each = {**SLOW, **batch(2)}
        second = stop_after(heard, Script(script, heard, 2, str(tmp_path), variables=one_each), first + 10)
        assert first < second < N_STEPS
        Script(script, heard, 1, str(tmp_path), variables=batch(4)).wait()
        _check_reports(heard)
    assert_same(tmp_path, whole)


@pytest.mark.parametrize(
    ("name", "packages"), [("transformers", ["transformers", "accelerate"]), ("lightning", ["lightning"])]
)
def test_gradients_accumulate_where_fewer_processes_compute_a_step(
    name: str, packages: list[str], tmp_path: Path
) -> None:
    """No process computes more than two examples at once: one takes two accumulation steps, two take one."""
    need(*packages)
    script, whole = f"{name}_script.py", tmp_path / "whole"
    whole.mkdir()
    with agent(whole) as heard:
        Script(script, heard, 1, str(whole), variables=batch(4)).wait()
    with agent(tmp_path) as heard:
        alone, two = {**SLOW, **batch(2, accumulation=2)}, {**SLOW, **batch(2)}
        first = stop_after(heard, Script(script, heard, 1, str(tmp_path), variables=alone), 5)
        second = stop_after(heard, Script(script, heard, 2, str(tmp_path), variables=two), first + 10)
        assert first < second < N_STEPS
        Script(script, heard, 1, str(tmp_path), variables=batch(2, accumulation=2)).wait()
        assert sorted(set(heard.steps)) == list(range(1, N_STEPS + 1))
    assert_same(tmp_path, whole)


def test_the_trainers_callback_alone_keeps_the_global_batch(tmp_path: Path) -> None:
    """It cannot set the batch of a process, so it sets how many of them are accumulated."""
    need("accelerate")
    code = """
from transformers import TrainingArguments
from optimus_client.transformers import OptimusCallback
for size in (4, 3):
    args = TrainingArguments("out", per_device_train_batch_size=size, use_cpu=True, report_to="none")
    OptimusCallback().on_init_end(args, None, None)
    print(args.per_device_train_batch_size, args.gradient_accumulation_steps)
"""
    code = f"import logging\nlogging.basicConfig(stream=__import__('sys').stdout)\n{code}"
    printed = run(code, {"OPTIMUS_GLOBAL_BATCH_SIZE": "16"}).splitlines()
    assert [line for line in printed if line[0].isdigit()] == ["4 4", "3 6"]
    assert "a step has 18 examples and not 16 (global_batch_size)" in "".join(printed)


@pytest.mark.parametrize(
    ("framework", "said", "code"),
    [
        (
            "transformers",
            "the Trainer finds its place",
            "from optimus_client.transformers import OptimusCallback; OptimusCallback().on_init_end(None, None, None)",
        ),
        (
            "lightning",
            "Lightning finds its place",
            "from optimus_client.lightning import OptimusCallback; OptimusCallback().setup(None, None, 'fit')",
        ),
    ],
)
def test_callbacks_refuse_weak_scaling(framework: str, said: str, code: str) -> None:
    need(framework)
    caught = f"try:\n    {code}\nexcept RuntimeError as error:\n    print(error)"
    printed = run(caught, {"OPTIMUS_BATCH_FACTOR": "1"})
    assert "scaling: weak is for optimus_client.elastic" in printed
    assert said in printed


def _check_reports(heard: Agent) -> None:
    assert sorted(set(heard.steps)) == list(range(1, N_STEPS + 1))
    assert {each.total_steps for each in heard.readings if each.step and not each.stopped} == {N_STEPS}
    assert all(each.resumes for each in heard.readings)
    losses = [each.loss for each in heard.readings if each.loss is not None]
    assert len(losses) >= N_STEPS // 5 - 2
    assert min(losses[-4:]) < losses[0]
    check_rates(heard)
    assert any("loss" in figure for each in heard.readings for figure in each.metrics)
