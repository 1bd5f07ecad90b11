"""Whether the processes of a script do anything, as far as that shows from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from optimus_workers.script.standstill import LOOK_SECONDS, REPORT_SECONDS, Standstill, Usage, usage
from optimus_workers.worker.watchdog import FIRST_SECONDS, MIN_SECONDS, PATIENCE

STILL = Usage(frozenset({7}), 3.0, 1000, runs=False, wakes={7: 10})


def looks(standstill: Standstill, used: Usage, until: float) -> list[float]:
    """What is told by looks at the same usage."""
    told = []
    now = standstill._looked_at + LOOK_SECONDS
    while now <= until:
        told.append(standstill.look(used, now))
        now += LOOK_SECONDS
    return [each for each in told if each is not None]


def test_processes_that_do_nothing_are_told_now_and_then_until_they_go_on() -> None:
    standstill = Standstill(0.0)
    told = looks(standstill, STILL, 40.0)
    assert told == [10.0, 20.0, 30.0]  # from the first look, at which nothing was known before
    standstill.heard(41.0)
    assert standstill.look(STILL, 45.0) == 0.0
    assert standstill.look(STILL, 50.0) is None


@pytest.mark.parametrize(
    ("patience", "told"), [(15.0, [10.0, 15.0, 25.0]), (12.0, [10.0, 15.0, 25.0]), (3.0, [10.0, 20.0])]
)
def test_the_end_of_the_patience_is_told_by_the_first_look_after_it(patience: float, told: list[float]) -> None:
    """Not as much later as reports lie apart."""
    assert looks(Standstill(0.0, patience), STILL, 30.0) == told


@pytest.mark.parametrize(
    "busy",
    [
        replace(STILL, cpu_seconds=3.2),
        replace(STILL, n_bytes=100_000),
        replace(STILL, runs=True),
        replace(STILL, wakes={7: 30}),
        replace(STILL, processes=frozenset({7, 8})),
    ],
)
def test_whatever_processes_do_counts(busy: Usage) -> None:
    standstill = Standstill(0.0)
    assert looks(standstill, STILL, 20.0) == [10.0]
    assert standstill.look(busy, 25.0) == 0.0


def test_the_time_for_which_whoever_looks_was_stopped_does_not_count() -> None:
    standstill = Standstill(0.0)
    assert looks(standstill, STILL, 5.0) == []
    assert standstill.look(STILL, 300.0) is None
    assert looks(standstill, STILL, 310.0) == [10.0]


def test_threads_that_wake_up_now_and_then_do_nothing() -> None:
    standstill = Standstill(0.0)
    standstill.look(STILL, 5.0)
    standstill.look(replace(STILL, cpu_seconds=3.05, n_bytes=1100, wakes={7: 15}), 10.0)
    assert (
        standstill.look(replace(STILL, cpu_seconds=3.1, n_bytes=1200, wakes={7: 20}), 5.0 + REPORT_SECONDS)
        == REPORT_SECONDS
    )


@pytest.mark.parametrize(("sleep", "wakes"), [(0.02, True), (1000.0, False)])
def test_a_process_that_computes_little_and_often_wakes_up(sleep: float, wakes: bool) -> None:
    """A training that prints nothing and sleeps most of the time is none that hangs."""
    code = f"import time; print(flush=True)\nwhile True: sum(range(1000)); time.sleep({sleep})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        first = usage(os.getpid()).wakes[child.pid]
        if wakes:
            while usage(os.getpid()).wakes[child.pid] < first + 20:
                assert child.poll() is None
        else:
            assert usage(os.getpid()).wakes[child.pid] <= first + 2
        child.kill()


def test_patience_is_learned_from_the_longest_step() -> None:
    standstill = Standstill(0.0)
    standstill.stepped(1.0)
    standstill.stepped(11.0)
    assert standstill.patience_seconds == FIRST_SECONDS
    standstill.stepped(11.5)
    assert standstill.patience_seconds == PATIENCE * 10.0
    quick = Standstill(0.0)
    for step in range(1, 4):
        quick.stepped(step * 0.1)
    assert quick.patience_seconds == MIN_SECONDS
    assert Standstill(0.0, 6.0).patience_seconds == 6.0


def test_the_usage_is_that_of_all_processes_below_the_starter() -> None:
    code = "import sys; sum(range(10**7)); print('done', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        used = usage(os.getpid())
        assert child.pid in used.processes
        assert used.cpu_seconds > 0
        assert used.n_bytes > 0
        child.communicate(b"")
    assert child.pid not in usage(os.getpid()).processes
