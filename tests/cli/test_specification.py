"""Flags over the file, defaults of the command line."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Optimus, ScriptedService

from optimus_cli.errors import BadInput
from optimus_cli.job.jobfile import JobFile
from optimus_cli.job.specification import (
    Flag,
    assemble,
    parse_assignments,
    parse_elastic,
    parse_target,
)
from optimus_contract.job_name import name_for
from optimus_workers.errors import ServiceRefused
from optimus_workers.script import tracker


def job_file(path: Path, **document: Any) -> JobFile:
    return JobFile(path, document, {})


def test_flags_override_single_fields_of_the_file(tmp_path: Path) -> None:
    file = job_file(
        tmp_path / "job.yaml", task="a:b", name="n", workers={"max": 4, "min": 2}, convergence={"max_epochs": 9}
    )
    flags = [
        Flag("--workers-max", ("workers", "max"), 8),
        Flag("--target-loss", ("convergence", "target_loss"), 0.1),
        Flag("--server-cpu", ("servers", "resources", "cpu"), 0.5),
        Flag("--mode", ("mode",), None),
    ]
    assert assemble(file, flags, tmp_path).document == {
        "task": "a:b",
        "name": "n",
        "workers": {"max": 8, "min": 2},
        "convergence": {"max_epochs": 9, "target_loss": 0.1},
        "servers": {"resources": {"cpu": 0.5}},
    }
    assert file.document["workers"] == {"max": 4, "min": 2}, "the file's content is not changed"


def test_assignments_are_merged_into_the_files(tmp_path: Path) -> None:
    file = job_file(tmp_path / "job.yaml", task="a:b", task_args={"lr": 0.1, "depth": 2})
    flag = Flag("--set", ("task_args",), {"lr": 0.5})
    assert assemble(file, [flag], tmp_path).document["task_args"] == {"lr": 0.5, "depth": 2}


def test_a_task_is_needed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--task"):
        assemble(None, [], tmp_path)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("pkg.train:BigNet", "bignet"),
        ("my_training:task", "my-training"),
        ("pkg.bert:make_task", "bert"),
        ("a:my_task", "my-task"),
        ("a:" + "x" * 99, "x" * 63),
        ("a:___", "job"),
        ("scripts/train.py", "train"),
        ("python3.11 -c 3f9a01ab", "python3-11"),
        ("bash -", "bash"),
        ("jobs/run_all.sh", "run-all"),
        ("runs/2.py", "2-py"),
        ("./2", "job"),
    ],
)
def test_the_name_comes_from_the_task(task: str, name: str) -> None:
    assert name_for(task) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["sh", "-c", "cd x && python train.py --a"], "train"),
        (["bash", "runs/all.sh", "x"], "all"),
        (["bash", "-c", "exit 1"], "bash"),
        (["bash", "-c", "2>&1 <in >x"], "bash"),
    ],
)
def test_a_script_is_named_alike_whether_it_is_submitted_or_tracked(
    command: list[str],
    name: str,
    tmp_path: Path,
    scripted: ScriptedService,
    optimus: Optimus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert assemble(None, [], tmp_path, command=command).document["name"] == name

    def registered(_command: object, register: Callable[[], object], **_: object) -> int:
        with contextlib.suppress(ServiceRefused):
            register()
        return 0

    monkeypatch.setattr(tracker, "run_tracked", registered)
    level = logging.getLogger("optimus_workers").level
    assert optimus("track", "--url", scripted.url, "--", *command).exit_code == 0
    assert [request.body["name"] for request in scripted.requests] == [name]
    assert logging.getLogger("optimus_workers").level == level, "what else runs in this process is told no warnings"


def test_tasks_import_from_here_when_their_module_is_here(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "pkg" / "train").mkdir(parents=True)
    (tmp_path / "pkg" / "train" / "__init__.py").touch()
    for task in ("mine:task", "pkg.train:task"):
        document = assemble(None, [Flag("--task", ("task",), task)], tmp_path).document
        assert document["working_directory"] == str(tmp_path)
    elsewhere = assemble(None, [Flag("--task", ("task",), "other:task")], tmp_path).document
    assert "working_directory" not in elsewhere


def test_a_slip_in_the_modules_name_is_looked_for_here_too(tmp_path: Path) -> None:
    (tmp_path / "my_training.py").touch()
    (tmp_path / "mine").mkdir()
    for task in ("my_trainin:task", "mine.trainin:task"):
        assert assemble(None, [Flag("--task", ("task",), task)], tmp_path).document["working_directory"] == str(
            tmp_path
        )
    (tmp_path / "jsonn.py").touch()
    for task in ("json.tool:main", "quite.other:task", ":task"):
        assert "working_directory" not in assemble(None, [Flag("--task", ("task",), task)], tmp_path).document


def test_a_relative_directory_in_a_file_starts_at_the_file(tmp_path: Path) -> None:
    file = job_file(tmp_path / "jobs" / "job.yaml", task="a:b", working_directory="../code")
    assert assemble(file, [], Path("/somewhere")).document["working_directory"] == str(tmp_path / "code")


def test_a_command_runs_where_it_was_written(tmp_path: Path) -> None:
    file = job_file(tmp_path / "jobs" / "job.yaml", command=["python", "train.py"])
    other = job_file(tmp_path / "jobs" / "job.yaml", name="n")
    typed = ["python", "train.py"]
    assert assemble(file, [], tmp_path).document["working_directory"] == str(tmp_path / "jobs")
    assert assemble(None, [], tmp_path, command=typed).document["working_directory"] == str(tmp_path)
    assert assemble(other, [], tmp_path, command=typed).document["working_directory"] == str(tmp_path), "behind --"


def test_the_activated_environment_is_that_of_a_files_command_too(tmp_path: Path) -> None:
    def python(file: JobFile | None, *flags: Flag, **more: Any) -> object:
        return assemble(file, flags, tmp_path, python="/venv/bin/python", **more).document.get("python")

    file = job_file(tmp_path / "job.yaml", command=["python", "train.py"])
    assert python(file) == "/venv/bin/python"
    assert python(None, command=["python", "train.py"]) == "/venv/bin/python"
    assert python(file, Flag("--python", ("python",), "/other/python")) == "/other/python"
    assert python(job_file(tmp_path / "job.yaml", command=["python", "t.py"], python="/own/python")) == "/own/python"
    assert python(job_file(tmp_path / "job.yaml", task="a:b")) is None, "the service's environment runs tasks"


def test_assignments_have_types() -> None:
    given = ["lr=0.1", "depth=3", "deep=true", "tag=v1.2", "eps=1e-3", "path=a=b", "empty="]
    assert parse_assignments("--set", given, typed=True) == {
        "lr": 0.1,
        "depth": 3,
        "deep": True,
        "tag": "v1.2",
        "eps": 0.001,
        "path": "a=b",
        "empty": "",
    }
    assert parse_assignments("--env", ["N=1"], typed=False) == {"N": "1"}
    assert parse_assignments("--env", [], typed=False) is None


def test_a_target_is_a_name_and_a_bound() -> None:
    assert parse_target("--target-metric", None) is None
    assert parse_target("--target-metric", "test_accuracy >= 0.95") == {"name": "test_accuracy", "at_least": 0.95}
    assert parse_target("--target-metric", "perplexity<=2e1") == {"name": "perplexity", "at_most": 20.0}


@pytest.mark.parametrize("wrong", ["accuracy", "accuracy=0.9", "accuracy>=high", ">=0.9"])
def test_a_wrong_target_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(BadInput, match=r"test_accuracy>=0\.95"):
        parse_target("--target-metric", wrong)


def test_an_elastic_batch_is_three_numbers() -> None:
    assert parse_elastic("--elastic-batch", None) is None
    assert parse_elastic("--elastic-batch", "32:512 : 64") == {"minimum": 32, "maximum": 512, "per_pass": 64}


@pytest.mark.parametrize("wrong", ["32", "32:512", "32:512:64:8", "a:b:c", "-1:2:3"])
def test_a_wrong_elastic_batch_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(BadInput, match="32:512:64"):
        parse_elastic("--elastic-batch", wrong)


@pytest.mark.parametrize("wrong", ["novalue", "=x"])
def test_an_assignment_needs_a_name_and_a_value(wrong: str) -> None:
    with pytest.raises(BadInput, match="KEY=VALUE"):
        parse_assignments("--set", [wrong], typed=True)
