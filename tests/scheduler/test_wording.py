"""Errors in one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.model.format import HEADLINE_LENGTH, headline


def test_the_last_line_of_a_traceback_names_the_exception() -> None:
    error = 'worker 0 failed: Traceback (most recent call last):\n  File "a.py", line 1\n    f()\nValueError: bad\n\n'
    assert headline(error) == "worker 0 failed: ValueError: bad"


def test_what_was_printed_before_the_traceback_is_left_out() -> None:
    printed = "".join(f"step {step} loss 0.5\n" for step in range(100))
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1\nOSError: [Errno 28] No space left on device\n'
    said = headline(f"the command ended with exit code 1; it printed last:\n{printed}{trace}")
    assert said == "the command ended with exit code 1; it printed last: OSError: [Errno 28] No space left on device"


def test_the_last_line_is_told_with_what_the_error_begins_with() -> None:
    printed = "".join(f"step {step}/100 loss 0.5\n" for step in range(30))
    said = headline(f"the command ended with exit code 1; it printed last:\n{printed}no such file: data.bin\n")
    assert said == "the command ended with exit code 1; it printed last: no such file: data.bin"


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
