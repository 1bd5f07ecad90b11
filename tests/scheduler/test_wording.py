"""Errors in one line, and instants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.model.format import HEADLINE_LENGTH, headline, instant_words


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


def test_of_a_process_that_hangs_the_owners_innermost_frame_is_told() -> None:
    library = [
        '  File "/usr/lib/python3.11/threading.py", line 327 in wait',
        '  File "/x/optimus_workers/worker/loop.py", line 69 in step',
        '  File "/x/site-packages/tqdm/_monitor.py", line 69 in run',
        '  File "<frozen runpy>", line 88 in _run_code',
    ]
    own = ['  File "/home/me/train.py", line 33 in loss', '  File "/home/me/train.py", line 90 in main']
    stacks = ["Thread 0x1 (most recent call first):", *library, "", "Thread 0x2 (most recent call first):"]
    hung = "it hung; the end of its log:\n"
    told = headline(hung + "\n".join([*stacks, library[0], *own, *library[1:]]))
    assert told == 'it hung; the end of its log: File "train.py", line 33 in loss'
    assert headline(hung + "\n".join([*stacks, *library])).endswith("in _run_code")


def test_the_time_and_the_module_of_a_logs_line_are_left_out() -> None:
    log = "step 58 loss 0.5\n2026-11-25 15:30:39,181 ERROR optimus_workers.script.ending: it was killed\n"
    said = headline(f"worker 0 failed 6 times; the end of its log:\n{log}")
    assert said == "worker 0 failed 6 times; the end of its log: it was killed"
    assert headline("2026-11-25 15:30:39,181 ERROR optimus: \n")


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


@pytest.mark.parametrize(
    ("at", "told"),
    [(0.0, "1970-01-01 00:00:00"), (-9e9, "1970-01-01 00:00:00"), (253_402_300_799.9, "9999-12-31 23:59:59")]
    + [(each, "9999-12-31 23:59:59") for each in (1e15, float("inf"))],
)
def test_every_instant_has_words(at: float, told: str) -> None:
    assert instant_words(at) == f"{told} UTC"
