"""Lines in which no step was recognised, and the pattern that is suggested for them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_contract.readings.progress import Progress
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.channels.searching import plain_search
from optimus_workers.script.channels.unread import (
    NOTHING_PRINTED,
    has_figures,
    says_more,
    suggested_pattern,
    unread_line,
)
from optimus_workers.script.learning import UNREAD_SECONDS, Learning
from optimus_workers.script.run import Run
from optimus_workers.script.standstill import Standstill
from optimus_workers.wire.messages import StartCommand
from optimus_workers.wire.values import GlobalBatch


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
    (reading,) = Printed(plain_search([pattern])).feed(f"{line}\n".encode(), 1.0)
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
    assert unread_line(None, None, 0) == NOTHING_PRINTED
    assert unread_line(None, None, 3) is None, "what it prints is of errors"
    assert unread_line(None, "no steps", 3) == "no steps"
    assert unread_line("it=7 :: 0.5", "no steps", 9) == "it=7 :: 0.5"
    assert suggested_pattern(NOTHING_PRINTED) is None


def test_what_is_shown_is_replaced_by_what_tells_more_alone() -> None:
    told = [None, NOTHING_PRINTED, "loading", "it=7 :: 0.5"]
    for number, line in enumerate(told[1:], 1):
        assert line is not None
        assert [says_more(line, other) for other in told] == [place < number for place in range(len(told))]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"", NOTHING_PRINTED),
        (b"no steps\n", "no steps"),
        (b"\x1b[1mno steps\x1b[0m\n\n", "no steps"),
        (b"loading\npart 3 of 7 in 0.5 s\nloading on\n", "part 3 of 7 in 0.5 s"),
        (b"acc 0.01 took 0.25\nacc 0.02 took 0.25\n", "acc 0.02 took 0.25"),
        (b"Test set: score 0.5 of 9\n", "Test set: score 0.5 of 9"),
        (b"step 3 loss 0.5\n", None),
    ],
)
def test_an_agent_tells_what_it_does_not_understand_once_it_is_late(printed: bytes, shown: str | None) -> None:
    begun, batch = 100.0, GlobalBatch(size=1, slots=1, base_size=1, first_step=0, first_example=0)
    progress = Progress(1.0, 0)
    order = StartCommand(epoch=1, rank=0, n_workers=1, step=0, batch=batch)
    run = Run(order, [], progress, Printed(), begun, Standstill(begun), batch)
    told: list[str | None] = []
    agent = SimpleNamespace(_report_learned=lambda of: told.append(of.progress.learned.unread_line))
    for reading in run.printed.feed(printed, 1.0):
        progress.add(reading)
    Learning._look_at_unread(cast(Learning, agent), run, begun + UNREAD_SECONDS - 1)
    assert told == []
    for _ in range(2):
        Learning._look_at_unread(cast(Learning, agent), run, begun + UNREAD_SECONDS)
    assert told == ([] if shown is None else [shown])
