"""The benchmark of a random day judges what was told as it says."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

from benchmarks.random_day.jobs import kind_of, random_job
from benchmarks.random_day.judge import Day, Look, ends, silent, starts, wrong_speeds


def looks(n: int = 30, **fields: Any) -> list[Look]:
    """A job that starts at 10, makes a step a second, and ends at `n`."""
    found = []
    for at in range(n + 1):
        job = {
            "id": "a",
            "name": "ends-1",
            "state": "succeeded" if at == n else "running" if at >= 10 else "queued",
            "step": max(at - 10, 0),
            "progress": 1.0,
            "attempt": 1,
            "membership_epoch": 1,
            "wanted": {"workers": 1},
            "steps_per_second": 1.0,
            "standstill": None,
            "remaining_seconds": {"low": n - at - 4.0, "mean": n - at, "high": n - at + 4.0},
            "expected": {"start_seconds": {"low": 3.0, "mean": 5.0, "high": 7.0}},
            "started_at": datetime.fromtimestamp(10, UTC).isoformat(),
            "finished_at": datetime.fromtimestamp(n, UTC).isoformat() if at == n else None,
        }
        told = {"sentences": [f"It ends in {n - at} s."], "what_would_change_it": "Nothing."}
        found.append(Look(float(at), {**job, **fields}, None if at == n else told))
    return found


def test_told_ends_and_starts_are_judged_by_what_came() -> None:
    assert [each.holds for each in ends(looks())] == [True] * 30
    late = {"low": 40.0, "mean": 50.0, "high": 60.0}
    assert not any(each.holds for each in ends(looks(remaining_seconds=late)))
    # From 3 to 7 s with 1.5 s to spare: told right from 1.5 to 8.5 s before it starts.
    assert [each.holds for each in starts(looks())] == [False, *[False], *[True] * 7, False]
    assert list(ends(looks(state="failed"))) == []


def test_a_told_speed_is_compared_with_the_steps() -> None:
    assert wrong_speeds(looks()) == []
    assert len(wrong_speeds(looks(steps_per_second=3.0))) == 13, "with 6 s of steps behind it"
    assert wrong_speeds(looks(steps_per_second=None)) == []


def test_a_job_without_steps_is_to_be_told_so() -> None:
    assert silent(looks()) == []
    assert len(silent(looks(40, step=7))) == 17
    assert silent(looks(40, step=7, standstill={"since": 10})) == []
    assert silent(looks(40, step=0)) == [], "a script that prints nothing"


def test_a_day_counts_kinds_of_sentences_without_their_figures() -> None:
    day = Day({"a": looks(), "b": looks(20, id="b", progress=0.9)})
    figures = day.figures()
    assert figures["jobs"] == 2
    assert figures["end"] == {"ends": {"told": 50, "held": 1.0}}
    day.changed["a"] = 19.5
    assert day.figures()["end"] == {"ends": {"told": 30, "held": 1.0}}, "told before the change that they had"
    assert figures["unfinished_successes"] == 1
    assert [(each.n, each.example) for each in day.sentences()] == [
        (50, "It ends in 30 s."),
        (50, "To get more: Nothing."),
    ]


def test_random_jobs_follow_from_the_seed_and_say_their_kind() -> None:
    def jobs(seed: int) -> list[Any]:
        random = Random(seed)
        return [random_job(random, number) for number in range(60)]

    assert jobs(1) == jobs(1) != jobs(2)
    kinds = {kind_of(job["name"]) for job in jobs(1)}
    assert kinds == {"task", "ends", "fails", "hangs", "stops-early", "silent", "limited"}
