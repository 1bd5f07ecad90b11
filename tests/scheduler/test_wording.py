"""Errors in one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.model.format import HEADLINE_LENGTH, headline


def test_the_last_line_of_a_traceback_names_the_exception() -> None:
    error = 'worker 0 failed: Traceback (most recent call last):\n  File "a.py", line 1\n    f()\nValueError: bad\n\n'
    assert headline(error) == "worker 0 failed: ValueError: bad"


def test_one_line_is_its_own_headline() -> None:
    assert headline("its tasks kept failing") == "its tasks kept failing"
    assert headline("first\nlast\n") == "last"
    assert headline("") == ""


@given(st.text())
def test_a_headline_is_one_bounded_line(error: str) -> None:
    found = headline(error)
    assert len(found.splitlines()) <= 1
    assert len(found) <= HEADLINE_LENGTH
    assert bool(found) == bool(error.strip())
