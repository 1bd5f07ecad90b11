"""Lines in which no step was recognised, and the pattern that is suggested for them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.channels.unread import NOTHING_PRINTED, has_figures, suggested_pattern, unread_line


@pytest.mark.parametrize(
    ("line", "step", "loss"),
    [
        ("[00010] obj 0.33 lr 0.05", 10, 0.33),
        ("3,0.25,0.5,0.1", 3, 0.25),
        ("it 12: J=3.25 (0.1 s)", 12, 3.25),
        ("2026-01-01 12:00:00,123 INFO k 17 of 100 cost 0.25", 17, 0.25),
        ("phase 1 n=20 fit=-5e-3", 1, -5e-3),
    ],
)
def test_the_suggested_pattern_reads_its_line(line: str, step: int, loss: float) -> None:
    assert has_figures(line)
    pattern = suggested_pattern(line)
    assert pattern is not None
    (reading,) = Printed([pattern]).feed(f"{line}\n".encode(), 1.0)
    assert (reading.step, reading.loss) == (step, loss)


@pytest.mark.parametrize("line", ["hello", "3 files were read", "12:00:01 done", "1 2 3"])
def test_lines_without_a_count_and_a_figure_suggest_nothing(line: str) -> None:
    assert suggested_pattern(line) is None


@given(st.text(max_size=300))
def test_any_line_gives_a_pattern_that_matches_it_or_none(line: str) -> None:
    has_figures(line)
    pattern = suggested_pattern(line)
    assert pattern is None or re.search(pattern, line)


def test_only_lines_that_say_nothing_are_kept() -> None:
    printed = Printed()
    printed.feed(b"step 1 loss 0.5\nloading 3 of 7 parts in 0.5 s\nhello\n", 1.0)
    assert (printed.unread, printed.n_unread) == ("loading 3 of 7 parts in 0.5 s", 1)


def test_a_silent_script_is_said_to_be_silent() -> None:
    assert unread_line(None, 0) == NOTHING_PRINTED
    assert unread_line(None, 3) is None, "it may begin to train"
    assert unread_line("it=7 :: 0.5", 9) == "it=7 :: 0.5"
    assert suggested_pattern(NOTHING_PRINTED) is None
