"""The ways that docs/architecture.md and CONTRIBUTING.md describe exist in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_STEP = re.compile(r"`([\w/]+\.py)` `(\w+)`")
_FOLDERS = "benchmarks|cli|client|contract|models|scheduler|service|simulator|workers|web|tests|scripts|helm"
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+)`")


def steps() -> list[tuple[str, str]]:
    return _STEP.findall("".join((ROOT / page).read_text() for page in ("docs/architecture.md", "workers/README.md")))


def test_the_ways_are_short() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    first = _STEP.findall(text[text.index("## The way of a sample") : text.index("## The way of a submission")])
    assert 15 < len(first) <= 25
    assert len({file for file, _ in first}) <= 30


@pytest.mark.parametrize(("file", "name"), steps())
def test_each_step_is_there(file: str, name: str) -> None:
    source = (ROOT / file).read_text()
    assert re.search(rf"(def|class) {name}\b", source), f"{file} has no {name}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_files_that_newcomers_are_sent_to_exist(page: str) -> None:
    named = _FILE.findall((ROOT / page).read_text())
    assert named
    assert [file for file in named if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_the_commands_that_newcomers_are_told_exist(page: str) -> None:
    modules = re.findall(r"`(?:\.venv/bin/)?python -m ([\w.]+)", (ROOT / page).read_text())
    ours = [module for module in modules if (ROOT / module.partition(".")[0]).is_dir()]
    places = [ROOT.joinpath(*module.split(".")) for module in ours]
    assert [str(at) for at in places if not (at.with_suffix(".py").exists() or (at / "__main__.py").exists())] == []


TASKS = (
    "an overdue job protected?",
    "another loss model",
    "a policy",
    "a reason code",
    "a field of the job specification",
)


@pytest.mark.parametrize("task", TASKS)
def test_a_newcomer_is_told_in_eight_lines(task: str) -> None:
    (entry,) = re.findall(
        rf"^\* \*\*{re.escape(task)}\*\*.*\n(?:  .*\n)*", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    assert 1 <= entry.count("\n") <= 8
    named = [ROOT / file for file in _FILE.findall(entry)]
    assert named, "it names a file"
    sources = " ".join(at.read_text() for each in named for at in ([each] if each.is_file() else each.glob("*.py")))
    names = set(re.findall(r"`([A-Za-z_]+)`", entry)) - {"OPTIMUS_POLICY"}
    assert {name for name in names if not re.search(rf"\b{name}\b", sources)} == set()
