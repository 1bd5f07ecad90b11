"""`elastic` in real processes that train together over gloo: stopped, killed and started in other numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.client.agent import Agent, Script, agent, assert_same, check_rates, stop_after, wait_until

from optimus_client.loop import _Rate
from optimus_workers.coordinator.job_settings import JobSettings, next_batch
from optimus_workers.script.agent import script_profile
from optimus_workers.wire.values import GlobalBatch, followed

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
    check_rates(heard)
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


def test_a_batch_that_grows_with_the_processes(heard: Agent, tmp_path: Path) -> None:
    """Weak scaling: each example of an epoch once; schedule and learning rate go by the batch of one process."""
    one = {"OPTIMUS_GLOBAL_BATCH_SIZE": "4", "OPTIMUS_BATCH_FACTOR": "1", "STEP_SECONDS": "0.05"}
    three = {"OPTIMUS_GLOBAL_BATCH_SIZE": "12", "OPTIMUS_BATCH_FACTOR": "3", "OPTIMUS_WORKER_BATCH_SIZE": "4"}
    first = stop_after(heard, Script(SCRIPT, heard, 1, str(tmp_path), variables=one), 5)
    Script(SCRIPT, heard, 3, str(tmp_path), variables={**three, "OPTIMUS_WARMUP_EPOCHS": "1"}).wait()
    assert used(tmp_path) == [3] * 103
    assert heard.steps == list(range(1, len(heard.steps) + 1))
    in_first, rest = divmod(103 - 4 * first, 12)
    assert len(heard.steps) == heard.readings[-1].total_steps == first + in_first + (rest > 0) + 2 * 9
    rates = {each.step: each.learning_rate for each in heard.readings if each.learning_rate is not None}

    def expected(step: int, seen: int) -> float:
        """After `step` steps; `seen`: examples before the last of them."""
        counted = step - 1 if step <= first else first + 3 * (step - 1 - first)
        factor = 1.0 if step <= first else 1 + 2 * min(1.0, (seen - 4 * first) / 103)
        return float(factor * 0.01 * (1 + math.cos(math.pi * counted / 78)) / 2)

    assert rates[first] == pytest.approx(expected(first, 0))
    assert rates[first + 1] == pytest.approx(expected(first + 1, 4 * first))
    assert rates[first + 5] == pytest.approx(expected(first + 5, 4 * first + 48))
    last = len(heard.steps)
    assert rates[last - 3] == pytest.approx(expected(last - 3, 3 * 103), rel=1e-6), "the warm-up is over"
    plan = dict([each for each in heard.readings if each.planned_rates][-1].planned_rates)
    assert sorted(plan) == list(range(first, last))
    assert 3 * plan[last - 4] == pytest.approx(rates[last - 3], rel=1e-6), (
        "the schedule alone, a step of three as three"
    )


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 40)), min_size=1, max_size=6), st.sampled_from([0.0, 0.5, 3.0])
)
def test_the_learning_rate_grows_as_in_jobs_with_a_task(memberships: list[tuple[int, int]], warmup: float) -> None:
    """Memberships: workers and steps."""
    plan, task = JobSettings(is_weak=True, warmup_epochs=warmup), script_profile(10)
    task = replace(task, n_examples=500)
    batches, step, rate = tuple[GlobalBatch, ...](), 0, _Rate()
    for n_workers, n_steps in memberships:
        batch = next_batch(plan, task, n_workers, step, batches)
        rate = rate.changed(n_workers, batch.first_example, warmup * 500)
        for each in range(step, step + n_steps + 1):
            assert rate.at(batch.position(each)) == pytest.approx(batch.learning_rate_factor(each))
        batches, step = followed(batches, batch), step + n_steps


def test_a_loop_that_steps_by_itself_is_not_divided_where_the_job_says_it_must_be(heard: Agent, tmp_path: Path) -> None:
    """It had two processes, and goes on with one that cannot compute the whole step."""
    slow = {"STEP_SECONDS": "0.05", "OPTIMUS_GLOBAL_BATCH_SIZE": "4", "OPTIMUS_WORKER_BATCH_SIZE": "2"}
    stop_after(heard, Script(SCRIPT, heard, 2, str(tmp_path), "--plain", variables=slow), 5)
    small = {**slow, "OPTIMUS_ACCUMULATION_STEPS": "2"}
    (process,) = Script(SCRIPT, heard, 1, str(tmp_path), "--plain", variables=small).processes
    exit_code, errors = process.end()
    assert exit_code == 1
    assert "call run.backward(loss) and run.step()" in errors


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
    exit_code, errors = process.end()
    assert exit_code == 1
    assert "a step of 8 examples is divided into parts of 4 here: call run.backward(loss) and run.step()" in errors
