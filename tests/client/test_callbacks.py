"""The callbacks of Hugging Face's Trainer and of Lightning in real trainings: stopped, and resized."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.agent import Agent, Script, agent, assert_same, stop_after

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
    for package in packages:
        pytest.importorskip(package)
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


def _check_reports(heard: Agent) -> None:
    assert sorted(set(heard.steps)) == list(range(1, N_STEPS + 1))
    assert {each.total_steps for each in heard.readings if each.step and not each.stopped} == {N_STEPS}
    assert all(each.resumes for each in heard.readings)
    losses = [each.loss for each in heard.readings if each.loss is not None]
    assert len(losses) >= N_STEPS // 5 - 2
    assert min(losses[-4:]) < losses[0]
    assert any("loss" in figure for each in heard.readings for figure in each.metrics)
