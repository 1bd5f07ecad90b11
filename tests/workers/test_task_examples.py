from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.workers.sampling import step_indices

from optimus_contract.job import JobSpec
from optimus_service.requests import checked
from optimus_workers.check_task import check
from optimus_workers.task import TrainingTask
from optimus_workers.task.user_code import load_task
from optimus_workers.try_task import judge

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN_CODE = ("my_training", "hugging_face")
JOBS = sorted((EXAMPLES / "jobs").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _leave_imports_as_they_were() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for module in OWN_CODE:
        sys.modules.pop(module, None)


def specification(file: Path) -> JobSpec:
    """As `optimus submit` sends it: a relative working directory is relative to the file."""
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    if "working_directory" in document:
        document["working_directory"] = str((file.parent / document["working_directory"]).resolve())
    return checked(JobSpec, document)


def loss_after_a_step(task: TrainingTask) -> tuple[float, float]:
    """Loss on one batch before and after one plain gradient step on it."""
    model = task.build_model(0).eval()  # without dropout, whose chance would be compared
    batch = task.batch(step_indices(0, 0, task.global_batch_size, task.n_examples))
    before = task.loss(model, batch)
    before.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.01)
        return before.item(), task.loss(model, batch).item()


def test_there_are_jobs_of_both_modes_and_of_own_code() -> None:
    specifications = [specification(file) for file in JOBS]
    assert {one.mode for one in specifications} == {"sync", "async"}
    assert {f"{module}:task" for module in OWN_CODE} <= {one.task for one in specifications}


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_job_files_are_valid_and_their_tasks_train(file: Path) -> None:
    spec = specification(file)
    assert spec.task is not None
    assert check(spec.task, spec.working_directory).ok
    task = load_task(spec.task, spec.task_args, spec.working_directory)
    before, after = loss_after_a_step(task.with_global_batch_size(spec.global_batch_size))
    assert after < before
    assert task.evaluate is not None
    assert task.evaluate(task.build_model(0))


@pytest.mark.parametrize("module", OWN_CODE)
def test_own_training_code_is_short(module: str) -> None:
    assert len((EXAMPLES / f"{module}.py").read_text().splitlines()) < 60


def test_a_hugging_face_model_starts_from_saved_weights(tmp_path: Path) -> None:
    saved = load_task("hugging_face:task", working_directory=EXAMPLES).build_model(seed=3)
    saved.save_pretrained(tmp_path)  # type: ignore[operator]
    task = load_task("hugging_face:task", {"weights": str(tmp_path)}, EXAMPLES)
    loaded = task.build_model(seed=4)
    name = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(loaded.get_parameter(name), saved.get_parameter(name))
    before, after = loss_after_a_step(task)
    assert after < before


TASKS_PAGE = (EXAMPLES.parent / "docs" / "tasks.md").read_text()


def test_the_whole_task_of_the_page_can_be_submitted(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", TASKS_PAGE, re.DOTALL)
    assert code is not None
    (tmp_path / "my_task.py").write_text(code[1])
    job = {"task": "my_task:line", "task_args": {"slope": 3}, "working_directory": str(tmp_path)}
    try:
        assert judge(job).ok
        task = load_task("my_task:line", {}, str(tmp_path))
        batch = task.collate([task.dataset[index] for index in range(8)])
        model = task.model()
        assert torch.isfinite(task.loss(model, batch))
        assert task.evaluate is not None
        assert set(task.evaluate(model)) == {"at_one"}
    finally:
        sys.modules.pop("my_task", None)


def test_the_page_lists_every_field_of_a_task() -> None:
    table = TASKS_PAGE.partition("| field | what it is |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [each.name for each in fields(TrainingTask)]
