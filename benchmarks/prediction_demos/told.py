"""What the service said of one job, and how true it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from benchmarks.repeated_job import Said, figures, judged

from optimus_client.answers import Interval


class Look(NamedTuple):
    """What was said at one moment: seconds from `at` on."""

    at: float
    """Seconds since the epoch."""
    start: Interval | None
    end: Interval | None
    workers: int


@dataclass
class Told:
    """One job of a demo."""

    name: str
    at_submission: Look
    """By the dry run, just before the job is submitted."""
    submitted_at: float
    looks: list[Look] = field(default_factory=list)
    started_at: float = float("nan")
    ended_at: float = float("nan")

    def figures(self) -> dict[str, Any]:
        """What came, and how what was said lay beside it: `end` of looks from 10 to 95 % of the life, `start` of all
        looks while it waited."""
        said = [Said(each.at, 0, None, each.end) for each in self.looks]
        return {
            "name": self.name,
            "waited_seconds": self.started_at - self.submitted_at,
            "seconds": self.ended_at - self.submitted_at,
            "said_at_submission": {
                "start": _numbers(self.at_submission.start),
                "end": _numbers(self.at_submission.end),
            },
            "end": figures(judged(said, self.ended_at, 0)["seconds"]),
            "start": self._of_start(),
        }

    def _of_start(self) -> dict[str, Any]:
        """Exact to one second."""
        said = [(each.start, self.started_at - each.at) for each in self.looks if each.at < self.started_at]
        known = [(start, left) for start, left in said if start is not None]
        if not known:
            return {"looks": len(said), "judged": 0}
        held = [(start.low or 0.0) - 1.0 <= left <= _or_ever(start.high) + 1.0 for start, left in known]
        errors = [abs(start.mean - left) for start, left in known]
        return {
            "looks": len(said),
            "judged": len(known),
            "held": sum(held) / len(held),
            "median_error_seconds": median(errors),
        }


def _or_ever(high: float | None) -> float:
    return float("inf") if high is None else high


def _numbers(said: Interval | None) -> Sequence[float | None] | None:
    return None if said is None else (said.low, said.mean, said.high)
