"""`elastic` in real processes that train together over gloo: stopped, killed and started in other numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.client.agent import Agent, Script, agent, assert_same, stop_after, wait_until

SCRIPT = "elastic_script.py"
N_STEPS = 3 * 26
"""Three epochs of 103 examples in steps of four; the last one of an epoch has three."""


def used(directory: Path) -> list[int]:
    """How often each example was used, over all processes and starts."""
    counts = [0] * 103
    for path in directory.glob("used-*"):
        for line in path.read_text().split():
            counts[int(line)] += 1
    return counts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the training at one go."""
    directory = tmp_path_factory.mktemp("undisturbed")
    with agent(directory) as heard:
        Script(SCRIPT, heard, 1, str(directory)).wait()
        assert heard.steps == list(range(1, N_STEPS + 1))
        assert heard.readings[-1].total_steps == N_STEPS
        assert all(each.resumes and each.examples == 4 for each in heard.readings if each.step is not None)
    assert used(directory) == [3] * 103
    return directory


def test_one_process_three_two(heard: Agent, tmp_path: Path, undisturbed: Path) -> None:
    """The same optimizer steps, each example of an epoch once, the same parameters in the end."""
    slow = {"STEP_SECONDS": "0.05"}
    first = stop_after(heard, Script(SCRIPT, heard, 1, str(tmp_path), variables=slow), 5)
    second = stop_after(heard, Script(SCRIPT, heard, 3, str(tmp_path), variables=slow), first + 20)
    assert first < second
    Script(SCRIPT, heard, 2, str(tmp_path)).wait()
    assert heard.steps == list(range(1, N_STEPS + 1))
    assert used(tmp_path) == [3] * 103
    assert_same(tmp_path, undisturbed)


def test_a_global_batch_that_accumulates(heard: Agent, tmp_path: Path, undisturbed: Path) -> None:
    """One process computes two examples at once where the step has four; three processes, two, one and one."""
    batch = {"OPTIMUS_GLOBAL_BATCH_SIZE": "4", "OPTIMUS_WORKER_BATCH_SIZE": "2", "OPTIMUS_ACCUMULATION_STEPS": "2"}
    slow = {**batch, "STEP_SECONDS": "0.05"}
    stop_after(heard, Script(SCRIPT, heard, 1, str(tmp_path), variables=slow), 7)
    Script(SCRIPT, heard, 3, str(tmp_path), variables={**batch, "OPTIMUS_WORKER_BATCH_SIZE": "1"}).wait()
    assert heard.steps == list(range(1, N_STEPS + 1))
    assert used(tmp_path) == [3] * 103
    assert_same(tmp_path, undisturbed)


def test_sharded_models_go_on_with_another_number_of_processes(heard: Agent, tmp_path: Path, undisturbed: Path) -> None:
    slow = {"STEP_SECONDS": "0.05"}
    stop_after(heard, Script(SCRIPT, heard, 2, str(tmp_path), "--fsdp", variables=slow), 5)
    Script(SCRIPT, heard, 3, str(tmp_path), "--fsdp").wait()
    assert heard.steps == list(range(1, N_STEPS + 1))
    assert used(tmp_path) == [3] * 103
    assert_same(tmp_path, undisturbed)


def test_killed_in_the_middle_of_a_save(heard: Agent, tmp_path: Path) -> None:
    """What was saved before is whole, and the training goes on from there."""
    scratch, saved = heard.checkpoints / "elastic.pt.new", heard.checkpoints / "elastic.pt"
    for _ in range(10):  # it may have ended its save a moment before it is killed
        script = Script(SCRIPT, heard, 1, str(tmp_path), "--large")
        wait_until(lambda: saved.exists() and scratch.exists())
        script.kill()
        if scratch.exists():
            break
    else:
        pytest.fail("never in the middle of a save")
    step = torch.load(saved, weights_only=True)["progress"]["step"]
    del heard.readings[:]
    again = Script(SCRIPT, heard, 1, str(tmp_path), "--large")
    stopped_at = stop_after(heard, again, step + 1)
    assert heard.steps[0] == step + 1
    assert torch.load(saved, weights_only=True)["progress"]["step"] == stopped_at


def test_a_loop_that_steps_by_itself(heard: Agent, tmp_path: Path) -> None:
    """Without run.backward and run.step: a step is not divided within a process, also when there are fewer of them."""
    first = Script(SCRIPT, heard, 2, str(tmp_path), "--plain", variables={"STEP_SECONDS": "0.05"})
    stop_after(heard, first, 5)
    Script(SCRIPT, heard, 1, str(tmp_path), "--plain", variables={"OPTIMUS_WORKER_BATCH_SIZE": "2"}).wait()
    assert heard.steps == list(range(1, N_STEPS + 1))
    assert used(tmp_path) == [3] * 103
    divided = {"OPTIMUS_GLOBAL_BATCH_SIZE": "8", "OPTIMUS_CHECKPOINT_DIRECTORY": str(tmp_path / "other")}
    (process,) = Script(SCRIPT, heard, 1, str(tmp_path), "--plain", variables=divided).processes
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a step of 8 examples is divided into parts of 4 here: call run.backward(loss) and run.step()" in errors
