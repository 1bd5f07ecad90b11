"""Jobs whose telemetry passes the step at which they were predicted to end: their rules are looked at at once.

Rules are judged in rounds, on the fitted curve. Between two rounds a job would train past its end: at a period of a
minute, by as much as a minute. So each round leaves the step at which each job is expected to end, and the first sample
that passes it asks for a round. From the low end of the interval on, and after the expected end, a job that is not done
is looked at again after a twentieth more steps.

A job whose own speed has not been measured, or whose time left is not known, is looked at when its first step comes
and whenever its steps have doubled since: a job of a minute has progress and an end within seconds, and one of which
nothing can be told asks for few rounds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping

from optimus_scheduler.model import Decision, Interval, Plan, Snapshot, SpeedSource

_AGAIN_AFTER = 1.05


def expected_ends(snapshot: Snapshot, plan: Plan) -> dict[str, float]:
    """By job, the step from which it may be done: or from which more is known of it; of jobs that train."""
    steps = {job.id: job.step for job in snapshot.jobs}
    found = {}
    for decision in plan.decisions:
        total, step = decision.forecast.total_steps, steps[decision.job_id]
        if decision.forecast.converged or decision.allocation.is_empty:
            continue
        looks = [max(step + 1.0, 2.0 * step)] if _is_new(decision) else []
        if total is not None and math.isfinite(total.mean):
            looks.append(_next_look(step, total))
        if looks:
            found[decision.job_id] = min(looks)
    return found


def _is_new(decision: Decision) -> bool:
    """Whether its telemetry has not told how fast it is and how much is left."""
    forecast = decision.forecast
    return forecast.remaining_seconds is None or forecast.speed_from is not SpeedSource.MEASURED


def _next_look(step: float, total: Interval) -> float:
    if step < total.low:
        return total.low
    again = max(_AGAIN_AFTER * step, step + 1.0)
    return min(again, total.mean) if step < total.mean else again


class ExpectedEnds:
    """The steps of the last round; empty where no rounds are run. Thread-safe."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._lock = threading.Lock()

    def put(self, ends: Mapping[str, float]) -> None:
        """Those of a new round."""
        with self._lock:
            self._ends = dict(ends)

    def has_passed(self, job_id: str, step: int) -> bool:
        """Whether the job may be done, at `step`; said once, until the next round."""
        with self._lock:
            if step < self._ends.get(job_id, math.inf):
                return False
            del self._ends[job_id]
            return True
