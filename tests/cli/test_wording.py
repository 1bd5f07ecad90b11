from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.cli.builders import interval

from optimus_cli.show import wording

NAN = float("nan")
INFINITY = float("inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (NAN, "—"),
        (INFINITY, "—"),
        (-INFINITY, "—"),
        (0.0, "0.00"),
        (0.03124, "0.0312"),
        (14.25, "14.2"),
        (1310.4, "1310"),
        (-2.5, "-2.50"),
        (1.23e-7, "1.23e-07"),
        (5e9, "5.00e+09"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "—"),
        (NAN, "—"),
        (INFINITY, "—"),
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_durations_are_in_the_unit_that_suits_them(seconds: float | None, text: str) -> None:
    assert wording.duration(seconds) == text


def test_intervals_show_open_ends() -> None:
    assert wording.duration_interval(None) == "—"
    assert wording.duration_interval(interval(NAN)) == "—"
    assert wording.duration_interval(interval(24)) == "24 s"
    assert wording.duration_interval(interval(24, 18, 33)) == "24 s (18–33)"
    assert wording.duration_interval(interval(24, 18, None)) == "24 s (18–?)"
    assert wording.duration_interval(interval(24, NAN, INFINITY)) == "24 s (?–?)"
    assert wording.duration_interval(interval(324, 126, 540)) == "5.4 min (2.1–9.0)"
    assert wording.duration_interval(interval(3e5, None, 3e5)) == "at most 3.5 d"
    assert wording.duration_interval(interval(83, 0, 154)) == "83 s (0–154)"
    assert wording.duration_interval(interval(2484, 198, 67446)) == "41.4 min (3.3 min–18.7 h)"
    assert wording.duration_interval(interval(118, 15, 1130)) == "118 s (15 s–18.8 min)"
    assert wording.duration_interval(interval(0, 0, 0)) == "0 s"
    assert wording.duration_interval(interval(0.1, 0, 0.3)) == "0 s"
    assert wording.count_interval(interval(2e4, None, 2e4)) == "at most 20 000"
    assert wording.count_interval(interval(0, 0, 0)) == "0"
    assert wording.count_interval(interval(719, 719, 719)) == "719"
    assert wording.count_interval(None) == "—"


def test_what_is_not_finished_is_never_shown_as_whole() -> None:
    assert wording.percent(0.9999) == wording.percent(1.0 - 1e-12) == "99 %"
    assert [wording.percent(n / 100) for n in range(101)] == [f"{n} %" for n in range(101)]
    assert wording.percent(1.0) == "100 %"
    assert wording.percent(1.7) == "100 %"
    assert wording.percent(-1) == "0 %"
    assert wording.percent(None) == wording.percent(NAN) == "—"


def test_sizes_are_binary() -> None:
    assert [wording.size(n) for n in (0, 512, 1536, 512 * 2**20, 3 * 2**50)] == [
        "0 B",
        "512 B",
        "1.5 KiB",
        "512 MiB",
        "3072 TiB",
    ]


def test_times_without_a_zone_are_utc() -> None:
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert wording.ago("2026-01-01T00:00:00", now) == wording.ago("2026-01-01T00:00:00Z", now) == "1 min 00 s ago"
    assert wording.ago("2026-01-01T01:00:00+01:00", now) == "1 min 00 s ago"
    assert wording.ago(None, now) == "—"


def test_a_failure_is_told_without_frames_of_optimus() -> None:
    text = (
        "worker 0 failed:\nstep 1\nstep 2\nTraceback (most recent call last):\n"
        '  File "/x/site-packages/optimus_workers/worker/run.py", line 5, in run\n    train()\n    ^^^^^^^\n'
        '  File "/home/ada/my_task.py", line 9, in loss\n    return a + b\n           ~~^~~\nTypeError: no\n'
    )
    assert wording.failure(text).splitlines() == [
        "worker 0 failed:",
        "Traceback (most recent call last):",
        "  (1 of Optimus' own frames left out)",
        '  File "/home/ada/my_task.py", line 9, in loss',
        "    return a + b",
        "           ~~^~~",
        "TypeError: no",
    ]
    assert wording.failure("it was killed") == "it was killed"
