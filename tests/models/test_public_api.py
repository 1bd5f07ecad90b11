"""What users import is there, and what the README shows works."""

from __future__ import annotations

import doctest
from pathlib import Path

import optimus_models

README = Path(__file__).parents[2] / "models" / "README.md"


def test_the_examples_of_the_readme_work() -> None:
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted > 25
    assert result.failed == 0


def test_every_public_name_exists_and_explains_itself() -> None:
    for name in optimus_models.__all__:
        value = getattr(optimus_models, name)
        assert not callable(value) or value.__doc__, name
