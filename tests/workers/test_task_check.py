from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from optimus_workers.check_task import Answer, check

LANDMINE = "raise AssertionError('the check ran the code')\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A package that must not be run: own/__init__.py and own/training.py."""
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "__init__.py").write_text(LANDMINE)
    (tmp_path / "own" / "training.py").write_text(
        LANDMINE
        + """
from somewhere import imported
import package.module
import numpy as renamed
if True:
    def conditional(): ...
try:
    from fast import either
except ImportError:
    def fallback(): ...
with open("x") as handle:
    inside = 1
assigned, (unpacked, *rest) = lambda: 0, (1, 2)
annotated: int = 3
class Network: ...
def network(width): ...
"""
    )
    return tmp_path


def problem(import_path: str, directory: Path | None) -> str:
    answer = check(import_path, None if directory is None else str(directory))
    assert not answer.ok
    assert answer.problem is not None
    return answer.problem


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
def test_finds_the_digits_tasks(name: str) -> None:
    assert check(f"optimus_workers.zoo.digits:{name}") == Answer(ok=True)


@pytest.mark.parametrize(
    "name",
    [
        "imported",
        "package",
        "renamed",
        "conditional",
        "either",
        "fallback",
        "handle",
        "inside",
        "assigned",
        "unpacked",
        "rest",
        "annotated",
        "Network",
        "network",
    ],
)
def test_finds_every_way_to_make_a_name(directory: Path, name: str) -> None:
    assert check(f"own.training:{name}", str(directory)) == Answer(ok=True)


@pytest.mark.parametrize("source", ["from os.path import *", "def __getattr__(name): return name"])
def test_gives_the_benefit_of_the_doubt_to_names_made_at_run_time(tmp_path: Path, source: str) -> None:
    (tmp_path / "dynamic_names.py").write_text(source)
    assert check("dynamic_names:anything", str(tmp_path)).ok


def test_suggests_the_name_that_was_meant(directory: Path) -> None:
    text = problem("own.training:netwrok", directory)
    assert "has no 'netwrok'" in text
    assert "did you mean network" in text
    assert str(directory / "own" / "training.py") in text


def test_names_that_a_module_imports_are_not_listed_beside_its_own(tmp_path: Path) -> None:
    imports = "from abc import ABC\nfrom collections import OrderedDict\nimport os\n"
    (tmp_path / "with_imports.py").write_text(imports + "def zebra(): ...\n")
    (tmp_path / "imports_only.py").write_text(imports)
    assert problem("with_imports:qqqq", tmp_path).endswith("has no 'qqqq'; it has zebra")
    assert "OrderedDict" in problem("imports_only:qqqq", tmp_path)
    assert check("with_imports:OrderedDict", str(tmp_path)).ok, "one may be a task all the same"


def test_lists_names_when_none_is_similar(directory: Path) -> None:
    assert "it has Network, " in problem("own.training:zzz", directory)


def test_suggests_the_module_that_was_meant(directory: Path) -> None:
    assert (
        problem("own.trainings:network", directory) == "there is no module 'trainings' in own; did you mean training?"
    )
    looked = f" (looked in {directory} and among the installed packages)"
    assert problem("owm.training:network", directory) == f"there is no module 'owm'; did you mean own?{looked}"
    assert problem("own/training.py:network", directory).endswith("is not of the form package.module:name")
    assert problem("training.py:network", directory) == "write training:network, without .py"
    assert "working_directory (--working-directory) names where your own code is" in problem("owm:network", None)


def test_explains_what_is_not_a_module(directory: Path) -> None:
    assert "own.training is a module, not a package" in problem("own.training.x:y", directory)
    assert "a folder without code" in problem("own.deep:task", directory)


def test_points_to_the_line_of_a_syntax_error(tmp_path: Path) -> None:
    (tmp_path / "unfinished.py").write_text("x = 1\n\ndef task(:\n")
    answer = check("unfinished:task", str(tmp_path))
    assert (answer.ok, answer.line) == (False, 3)
    assert "unfinished.py" in str(answer.problem)


def test_explains_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "noise.py").write_bytes(b"x = '\xff\xfe'\n")
    assert "noise.py" in problem("noise:task", tmp_path)


@pytest.mark.parametrize("import_path", ["", "a", "a:", ":a", "a b:c", "a..b:c", "a:b.c", "a:b:c"])
def test_wants_module_and_name(import_path: str) -> None:
    assert "not of the form" in str(check(import_path).problem)


def test_module_without_source_is_left_to_the_job() -> None:
    assert check("sys:exit") == Answer(ok=True)


def test_as_a_command_without_torch(directory: Path) -> None:
    watched = f"import sys, runpy; sys.argv = ['check', 'own.training:x', '--directory', {str(directory)!r}]\n"
    watched += "try: runpy.run_module('optimus_workers.check_task', run_name='__main__')\n"
    watched += "except SystemExit as end: assert not end.code\n"
    watched += "assert not {'torch', 'numpy', 'own'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", watched], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer.keys() == {"ok", "problem", "line"}
    assert answer["ok"] is False
