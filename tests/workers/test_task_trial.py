"""Trying a job's task in a process that is thrown away: what is refused, and what is never called."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.forks import Forks

CODE = """
from pathlib import Path
from functools import partial
from dataclasses import replace
import torch
from optimus_workers.task import TorchOptimizer, TrainingTask
from optimus_workers.zoo import digits

def task(width: int = 8) -> TrainingTask:
    print("noise")
    return digits.mlp(width=width)
def unsaid(width=8): return digits.mlp(width=width) or TrainingTask
half = partial(task, width=4)
def wrong() -> TrainingTask: return 5
def no_data() -> TrainingTask: raise FileNotFoundError("/data/images")
def picky(width=8) -> TrainingTask:
    if width < 1: raise ValueError("width must be at least 1")
    raise FileNotFoundError("/data/cats")
def leaves() -> TrainingTask: raise SystemExit(3)
def other() -> str: return str(Path(__file__).with_name("landmine").write_text("called"))
def greedy() -> TrainingTask: bytearray(2**60)
def greedy_tensor() -> TrainingTask:
    import torch
    torch.zeros(2**50)
def radam() -> TrainingTask: return replace(digits.mlp(), optimizer=TorchOptimizer(torch.optim.RAdam, 1e-3))
number = 5
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("own")
    (found / "mine.py").write_text(CODE)
    (found / "elsewhere.py").write_text(
        "from pathlib import Path\ndef loads(): Path(__file__).with_name('landmine').write_text('called')\n"
    )
    return found


TRIALS = Forks("optimus_workers.task", "optimus_workers.zoo.digits")
"""What trials are forked from: to import what one needs takes a second."""
atexit.register(TRIALS.close)


def verdict(directory: Path, task: str, **job: Any) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        trial = TRIALS.start(
            [],
            module="optimus_workers.try_task",
            variables=os.environ,
            out=out.fileno(),
            errors=errors.fileno(),
            given=words_of(directory, task, **job),
        )
        exit_code = trial.wait(120)
        for file in (out, errors):
            file.seek(0)
        assert exit_code == 0, errors.read().decode()
        found: dict[str, Any] = json.loads(out.read())
        return found


def words_of(directory: Path, task: str, **job: Any) -> str:
    return json.dumps({"task": task, "working_directory": str(directory), **job})


def test_a_trial_is_a_command(directory: Path) -> None:
    """As the service runs it."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "optimus_workers.try_task"],
        input=words_of(directory, "mine:task"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


@pytest.mark.parametrize("name", ["task", "unsaid", "half"])
def test_tasks_are_accepted(directory: Path, name: str) -> None:
    found = verdict(directory, f"mine:{name}", task_args={"width": 4}, global_batch_size=7)
    assert found == {"ok": True, "problem": None, "field": None, "n_examples": 1437, "global_batch_size": 7}


def test_a_torch_optimizer_is_accepted_without_servers(directory: Path) -> None:
    assert verdict(directory, "mine:radam", architecture="allreduce")["ok"]


@pytest.mark.parametrize("name", ["greedy", "greedy_tensor"])
def test_task_that_takes_too_much_memory_is_not_judged(directory: Path, name: str) -> None:
    assert verdict(directory, f"mine:{name}")["ok"]


def test_trial_is_bounded_in_memory_and_the_first_that_the_kernel_ends() -> None:
    code = "from optimus_workers.try_task import _limit_memory as limit; limit(); import resource; "
    code += "print(resource.getrlimit(resource.RLIMIT_DATA)[1], open('/proc/self/oom_score_adj').read())"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    limit, score = done.stdout.split()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < int(limit) <= max(4 * 2**30, machine // 4)
    assert score == "1000"


@pytest.mark.parametrize(
    ("task", "job", "field", "words"),
    [
        ("mine:task", {"task_args": {"widht": 4}}, "task_args", "'widht'; did you mean width? It takes"),
        ("mine:task", {"task_args": {"width": "abc"}}, "task_args", "width='abc' is not of type int"),
        ("mine:task", {"task_args": {"width": True}}, "task_args", "width=True is not of type int"),
        ("mine:task", {"global_batch_size": 100_000}, "global_batch_size", "the data has 1437 examples"),
        ("mine:wrong", {}, "task", "must return a TrainingTask, not a value of type int"),
        ("mine:no_data", {}, "task", "FileNotFoundError: /data/images"),
        ("mine:leaves", {}, "task", "SystemExit: 3"),
        ("mine:picky", {"task_args": {"width": 0}}, "task_args", "mine:picky(width=0) failed: ValueError: width must"),
        (
            "mine:picky",
            {"task_args": {"width": 4}},
            "task",
            "mine:picky(width=4) failed: FileNotFoundError",
        ),
        ("mine:other", {}, "task", "this one returns str"),
        ("mine:radam", {"architecture": "ps"}, "architecture", "TorchOptimizer is for jobs without parameter servers"),
        ("mine:number", {}, "task", "not a value of type int"),
        ("mine:missing", {}, "task", "has no 'missing'"),
        ("elsewhere:loads", {}, "task", "def loads(...) -> TrainingTask"),
        ("json:loads", {"task_args": {"s": "1"}}, "task", "json:loads is not a training task"),
        ("os:system", {"task_args": {"command": "touch landmine"}}, "task", "not a built-in function"),
        ("subprocess:Popen", {"task_args": {"args": "true"}}, "task", "not the class Popen"),
    ],
)
def test_what_cannot_train_is_refused_by_its_field(
    directory: Path, task: str, job: dict[str, Any], field: str, words: str
) -> None:
    found = verdict(directory, task, **job)
    assert (found["ok"], found["field"]) == (False, field), found
    assert words in found["problem"]
    assert not (directory / "landmine").exists(), "it was called"
