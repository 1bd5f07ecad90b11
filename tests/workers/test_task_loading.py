from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimus_contract.job import JobSpec
from optimus_service.requests import checked
from optimus_workers.errors import TaskError
from optimus_workers.task import TrainingTask
from optimus_workers.task.user_code import load_job_task, load_task

SYNTHETIC = "optimus_workers.zoo.synthetic:classification"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's own; what was imported from it is forgotten afterwards."""
    modules, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_passes_the_arguments() -> None:
    task = load_task(SYNTHETIC, {"n_examples": 30, "global_batch_size": 6})
    assert (task.n_examples, task.global_batch_size) == (30, 6)


@pytest.mark.parametrize("batch", [30, 31])
def test_a_batch_that_is_larger_than_the_data_is_an_error(batch: int) -> None:
    """Where the task was not tried at submission, as of one of many jobs."""
    spec = checked(
        JobSpec, {"name": "a", "task": SYNTHETIC, "task_args": {"n_examples": 30}, "global_batch_size": batch}
    )
    if batch <= 30:
        assert load_job_task(spec).global_batch_size == batch
        return
    with pytest.raises(TaskError, match="global_batch_size is 31 and the data has 30 examples only"):
        load_job_task(spec)


def test_loads_from_the_working_directory(directory: Path) -> None:
    (directory / "own_training_a.py").write_text(f"from {SYNTHETIC.partition(':')[0]} import regression as task\n")
    assert isinstance(load_task("own_training_a:task", working_directory=directory), TrainingTask)


def test_keeps_the_users_traceback(directory: Path) -> None:
    (directory / "own_training_b.py").write_text("def task(n):\n    return 1 // n\n")
    with pytest.raises(TaskError, match=r"own_training_b:task\(n=0\) failed: ZeroDivisionError") as caught:
        load_task("own_training_b:task", {"n": 0}, directory)
    assert "return 1 // n" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package_at_all", "cannot import own_training_c: ModuleNotFoundError"),
        ("def task(:", "cannot import own_training_c: SyntaxError"),
        ("def other(): ...", "own_training_c has no 'task'"),
        ("task = 3", "must be a function that returns a TrainingTask, not int"),
        ("def task(): return 3", "must return a TrainingTask, not int"),
        ("def task(width): ...", "missing 1 required positional argument: 'width'"),
    ],
)
def test_says_what_is_wrong_with_the_code(directory: Path, source: str, message: str) -> None:
    (directory / "own_training_c.py").write_text(source + "\n")
    with pytest.raises(TaskError, match=message):
        load_task("own_training_c:task", working_directory=directory)


def test_wants_module_and_name() -> None:
    with pytest.raises(TaskError, match="not of the form"):
        load_task("my_training")
