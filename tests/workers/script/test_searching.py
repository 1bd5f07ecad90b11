"""Patterns of the user's own take a limited time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from optimus_contract.readings.reading import Reading
from optimus_contract.telemetry import Note
from optimus_workers.script.channels import searching
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.channels.searching import MOST_TOO_LONG, LimitedSearch, given_up_words, plain_search
from optimus_workers.script.tracker import Output

STEP = r"step (?P<step>\d+) loss (?P<loss>\S+)"
TOO_LONG = {
    "nested": (r"(?P<x>(a+)+)$", "a" * 60 + "b"),
    "alternatives": (r"(?P<x>(a|aa)+)$", "a" * 99 + "b"),
    "in a row": (r"(?P<x>.*.*.*.*.*.*=)z", "x=" * 150),
}
"""Patterns, each with a line that takes it longer than anybody lives."""


@pytest.fixture
def limited() -> Iterator[Callable[..., LimitedSearch]]:
    made: list[LimitedSearch] = []

    def make(patterns: Sequence[str]) -> LimitedSearch:
        made.append(LimitedSearch(patterns))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_what_is_found_is_what_a_search_here_finds(limited: Callable[..., LimitedSearch]) -> None:
    patterns = [STEP, r"(?P<figure>[a-z]+) score (?P<loss>\S+)?", r"(?P<epoch>\d+)é"]
    here, there = plain_search(patterns), limited(patterns)
    for line in ("step 3 loss 0.5", "own score ", "7é", "", "nothing", 'step 1 loss "\\"', "\x00\x1b[1m \ufffd"):
        assert list(there(line)) == list(here(line))


@pytest.mark.parametrize("kind", TOO_LONG)
def test_a_pattern_that_takes_too_long_is_given_up_and_the_others_are_not(
    kind: str, limited: Callable[..., LimitedSearch]
) -> None:
    pattern, line = TOO_LONG[kind]
    search = limited([pattern, STEP])
    printed = Printed(search)
    for step in range(1, MOST_TOO_LONG + 3):
        (reading,) = printed.feed(f"{line}\nstep {step} loss 0.5\n".encode(), float(step))
        assert reading.step == step
        assert search.given_up == ([pattern] if step >= MOST_TOO_LONG else [])
    told = given_up_words(pattern)
    assert pattern in told
    assert "report with optimus_client" in told


def test_one_long_line_does_not_give_a_pattern_up(limited: Callable[..., LimitedSearch]) -> None:
    pattern, line = TOO_LONG["nested"]
    search = limited([pattern])
    assert search(line) == []
    assert search("aaa") == [{"x": "aaa"}]
    assert search.given_up == []


@pytest.mark.parametrize(
    "pattern",
    [
        STEP,
        r".*loss[ :=]+(?P<loss>\S+)",
        r"^.*step\s+(?P<step>\d+).*loss\s+(?P<loss>[\d.]+).*$",
        r"(?P<loss>\d+\.\d+)$",
        r".*?step (?P<step>\d+).*?loss (?P<loss>\S+)",
    ],
)
def test_common_patterns_are_not_given_up_for_long_lines(pattern: str, limited: Callable[..., LimitedSearch]) -> None:
    search = limited([pattern])
    lines = ["x" * 8000, "step 1 " * 1000, "loss 1.5 " * 800, "1.25 " * 1600]
    for _ in range(MOST_TOO_LONG):
        for line in lines:
            search(line)
    assert search.given_up == []
    usual = "step 12 of 200 loss 0.25"
    assert search(usual) == plain_search([pattern])(usual)


def test_a_search_that_was_killed_is_started_again(limited: Callable[..., LimitedSearch]) -> None:
    search = limited([STEP])
    for step in range(2 * MOST_TOO_LONG):
        assert search(f"step {step} loss 1") == [{"step": str(step), "loss": "1"}]
        assert search._process is not None
        os.kill(search._process.pid, signal.SIGKILL)
        assert search("step 7 loss 1") == []


def test_a_search_that_never_answers_is_tried_later_and_later_and_never_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, tried = 0.0, []
    search = LimitedSearch([STEP], lambda: now)
    executable = sys.executable
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    for second in range(4000):
        now = float(second)
        before = search._n_lost
        assert search("step 1 loss 1") == []
        tried += [second] * (search._n_lost > before)
    assert tried[:5] == [0, 1, 2, 4, 7]
    assert tried[-1] - tried[-2] == searching.LONGEST_PAUSE_SECONDS
    monkeypatch.setattr("sys.executable", executable)
    now += searching.LONGEST_PAUSE_SECONDS
    assert search("step 9 loss 1") == [{"step": "9", "loss": "1"}]
    search.close()


def test_a_search_that_does_not_answer_keeps_nobody_waiting_for_ever(
    limited: Callable[..., LimitedSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = limited([STEP])
    search("step 1 loss 1")
    assert search._process is not None
    os.kill(search._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(searching, "ANSWER_SECONDS", 0.1)
    assert search("step 2 loss 1") == []
    monkeypatch.undo()
    assert search("step 3 loss 1") == [{"step": "3", "loss": "1"}]


def test_a_search_that_cannot_be_started_finds_nothing(
    limited: Callable[..., LimitedSearch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert limited([STEP])("step 1 loss 1") == []


def test_the_search_ends_with_who_asks(limited: Callable[..., LimitedSearch]) -> None:
    search = limited([TOO_LONG["nested"][0]])
    search("a")
    process = search._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.write(b'"' + TOO_LONG["nested"][1].encode() + b'"\n')
    process.stdin.close()
    assert process.wait(30.0) == 0
    search._process = None
    assert process.stdout is not None
    process.stdout.close()


def test_what_a_tracked_command_prints_is_passed_on_and_its_slow_pattern_is_told() -> None:
    readings, notes = list[Reading](), list[Note]()
    pattern, line = TOO_LONG["nested"]
    output = Output([pattern, STEP], readings.append, notes.append)
    target_end, target = os.pipe()
    sink = output.tap(target)
    printed = "".join(f"{line}\nstep {step} loss 0.5\n" for step in range(1, 9)).encode()
    os.write(sink, printed)
    os.close(sink)
    for thread in output._threads:
        thread.join(60.0)
    output.close()
    os.close(target)
    with os.fdopen(target_end, "rb") as passed_on:
        assert passed_on.read() == printed
    assert [reading.step for reading in readings] == list(range(1, 9))
    assert [(note.kind, pattern in note.message) for note in notes] == [("PatternTooSlow", True)]
