"""Jobs whose telemetry shows another pace than their forecast: they are looked at at once.

Time left is told by the pace that a round has measured. A job that becomes slower or faster for good would be told a
time left of before until the next round, which may be a minute away. So each round leaves the seconds of a step that it
expects of each job, with their interval, and telemetry is held against it:

::

    since the round ─┬─ window ─┬─ window ─┬─ ...     each `WINDOW_SECONDS`, or one report where that is longer
                     │ inside   │ too slow │ too slow ─▶ a round: it measures anew (`present_speeds`)

One window outside is a hiccup; two after each other, on the same side, are what the round's own models take for a
change. Slow ones have as many slow reports as those take for slower steps, for one or two may have an evaluation and a
checkpoint in them. Nothing that is told comes from here: a round that was asked for by chance says what it said before.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from optimus_models.speed.course import AS_MEASURED, CourseToCome
from optimus_scheduler.model import Plan
from optimus_service.observe.speeds import SLOWER_IN_A_ROW, WINDOW_SECONDS

_LEAST_OUTSIDE = 2
"""Windows in a row, as `optimus_models.speed.measurements` asks for."""


class ExpectedPace(NamedTuple):
    """Seconds of a step of one job, as they are expected over some of its steps."""

    fastest: float
    """Without evaluations, checkpoints and stops, which may not have been among them."""
    slowest: float
    """With all of these."""
    course: CourseToCome = AS_MEASURED
    """How the pace is expected to change on the way: steps are counted by the time that they are to take."""


def expected_paces(plan: Plan) -> dict[str, ExpectedPace]:
    """By job, of those that train with the size that they keep and whose own speed has been measured."""
    found = {}
    for decision in plan.decisions:
        pace, speed = decision.forecast.seconds_per_step, decision.forecast.steps_per_second
        is_steady = decision.previous == decision.allocation and not decision.allocation.is_empty
        if pace is None or not speed or not is_steady or decision.forecast.converged:
            continue
        course = decision.forecast.course
        found[decision.job_id] = ExpectedPace(pace.low / pace.mean / speed * course.ratio, pace.high, course)
    return found


@dataclass(slots=True)
class _Watch:
    """The window that is being filled of one job, and those before it."""

    step: int
    at: float
    """Where it was when the window began, POSIX seconds ..."""
    newest: tuple[int, float]
    """... and by the newest report."""
    n_outside: int = 0
    """Windows in a row: below 0 faster, above 0 slower than expected."""
    n_slow: int = 0
    """Reports since the last window that was not slower, of steps that took longer than expected."""

    @property
    def is_left(self) -> bool:
        """Whether the job has another pace."""
        is_slower = self.n_outside >= _LEAST_OUTSIDE and self.n_slow >= SLOWER_IN_A_ROW
        return is_slower or self.n_outside <= -_LEAST_OUTSIDE

    def add(self, step: int, at: float, expected: ExpectedPace) -> None:
        """The job was at this step then."""
        even = expected.course.even
        last_step, last_at = self.newest
        if step < last_step:  # it has gone back to a checkpoint, or its reports come in another order
            self.step, self.at, self.newest, self.n_outside, self.n_slow = step, at, (step, at), 0, 0
            return
        if step == last_step or at <= last_at:
            return
        self.newest = step, at
        self.n_slow += (at - last_at) / (even(step) - even(last_step)) > expected.slowest
        if at - self.at < WINDOW_SECONDS:
            return
        pace = (at - self.at) / (even(step) - even(self.step))
        side = int(pace > expected.slowest) - int(pace < expected.fastest)
        self.n_outside = self.n_outside + side if side * self.n_outside > 0 else side
        self.n_slow = self.n_slow if side > 0 else 0
        self.step, self.at = step, at

    def anew(self) -> _Watch:
        """From the newest report on."""
        return _Watch(*self.newest, self.newest)


class ExpectedPaces:
    """Those of the last round; empty where no rounds are run. Thread-safe."""

    def __init__(self) -> None:
        self._expected: dict[str, ExpectedPace] = {}
        self._watches: dict[str, _Watch] = {}
        self._lock = threading.Lock()

    def put(self, paces: Mapping[str, ExpectedPace]) -> None:
        """Those of a new round."""
        with self._lock:
            self._expected = dict(paces)
            self._watches = {job_id: each.anew() for job_id, each in self._watches.items() if job_id in paces}

    def is_left(self, job_id: str, step: int, at: float) -> bool:
        """Whether the job has another pace, as it has come to `step` at the time `at`, by one clock; from then on,
        until the next round or until it has the expected pace again."""
        with self._lock:
            expected = self._expected.get(job_id)
            if expected is None:
                return False
            watch = self._watches.get(job_id)
            if watch is None:
                watch = self._watches[job_id] = _Watch(step, at, (step, at))
            watch.add(step, at, expected)
            return watch.is_left
