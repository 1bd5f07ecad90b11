"""The ways that docs/architecture.md and CONTRIBUTING.md describe exist in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_STEP = re.compile(r"`([\w/]+\.py)` `(\w+)`")
_FOLDERS = "cli|contract|models|scheduler|service|simulator|workers|web|tests|scripts|helm"
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w./-]+)`")


def steps() -> list[tuple[str, str]]:
    return _STEP.findall((ROOT / "docs/architecture.md").read_text())


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
