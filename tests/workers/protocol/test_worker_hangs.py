"""A worker whose own code hangs ends itself, and the job goes on without it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tests.workers.protocol.conftest import Job, server, worker

from optimus_workers.errors import HUNG
from optimus_workers.worker.watchdog import FIRST_SECONDS, MIN_SECONDS, Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_limit_is_learned_from_the_slowest_micro_batch() -> None:
    clock = Clock()
    watchdog = Watchdog(clock=clock)
    assert watchdog.limit_seconds == FIRST_SECONDS
    watchdog.begin()
    for seconds in (1.0, 10.0, 2.0):
        clock.now += seconds
        watchdog.progress()
    assert watchdog.limit_seconds == 200.0
    watchdog.end()
    quick = Watchdog(clock=clock)
    quick.begin()
    for _ in range(3):
        quick.progress()
    assert quick.limit_seconds == MIN_SECONDS
    quick.end()


def test_it_bites_who_gives_no_sign_and_nobody_else() -> None:
    bitten = threading.Event()
    watchdog = Watchdog(0.01, on_hang=bitten.set)
    watchdog.begin()
    watchdog.end()
    assert not bitten.wait(0.1), "nothing is computed"
    watchdog.begin()
    assert bitten.wait(30)


def test_the_time_for_which_the_process_was_stopped_does_not_count() -> None:
    """The clock jumps while nobody looks, as it does for a process that is stopped and continued."""
    bitten, looked = threading.Event(), threading.Semaphore(0)
    clock = Clock()

    def told() -> float:
        looked.release()
        return clock()

    watchdog = Watchdog(100.0, clock=told, on_hang=bitten.set)
    watchdog.begin()
    assert looked.acquire(timeout=30)
    assert looked.acquire(timeout=30)  # the watchdog's own: it waits for its next look
    clock.now = 5000.0
    for _ in range(6):
        assert looked.acquire(timeout=30)
    assert not bitten.is_set()
    watchdog.end()


def test_a_job_goes_on_without_a_worker_that_hangs(make_job: Callable[..., Job], tmp_path: Path) -> None:
    hangs_if = tmp_path / "hang"
    job = make_job({"step_seconds": 0.002, "hangs_if": str(hangs_if)}, hang_seconds=6.0)
    job.scale(worker(0), worker(1), server(0))
    both = job.wait_for_size(2, 1)
    hangs_if.touch()
    alone = job.wait_for_size(1, 1, after_epoch=both["epoch"])
    assert alone["cause"] == "worker_lost"
    assert alone["lost_steps"] == 0
    (hung,) = (name for name in (worker(0), worker(1)) if name not in alone["workers"])
    assert job.exit_code(hung) == HUNG
    assert "tiny_training.py" in (job.directory / f"{hung}.log").read_text(), "it shows where it hung"
    assert job.finish()["outcome"] == "succeeded"
