"""What jobs were told about the time that they still need, and whether it came true.

A prediction is the 10th, 50th and 90th percentile of the seconds until the end, as it was said in one round. It is
judged at the submission and when a tenth, a quarter, half and three quarters of the job's life were over. A job has two
lives: the one from its submission to its end, waiting included, and the one from its first tasks to its end. Of a job
that waits, the seconds until its first tasks are a prediction, too, judged by the part of the wait that was over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimus_scheduler.model import Interval

PARTS = (0.1, 0.25, 0.5, 0.75)
"""Parts of a job's life after which its predictions are judged."""
AT_SUBMISSION, IN_LIFE, WHILE_RUNNING, START = "at_submission", "of_life", "of_running", "start"
"""The kinds of predictions: the first one, those by the part of the life from submission, those by the part of the life
from the first tasks on, and those of the start by the part of the wait."""
KINDS = (AT_SUBMISSION, IN_LIFE, WHILE_RUNNING, START)
_LEAST_SECONDS = 20.0
"""Predictions are kept no sooner than after so long."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time left as it was said at one instant; seconds."""

    at: float
    left: Interval | None
    """None: nothing was said."""
    uncorrected: Interval | None = None
    """The same before it was corrected by how earlier predictions turned out."""
    wait: Interval | None = None
    """Until the first tasks; None: it has had some, or nothing was said ..."""
    uncorrected_wait: Interval | None = None
    """... and before it was corrected."""


@dataclass(slots=True)
class Predictions:
    """What one job was told on its way, as much of it as is needed to judge it when it has ended."""

    submitted_at: float
    kept: list[Prediction]

    def is_due(self, now: float, started_at: float | None, spacing: float) -> bool:
        """Whether its age has grown by this factor since the one before, or that was of an earlier part of its life."""
        if not self.kept:
            return True
        before, since = self.kept[-1].at, self.submitted_at if started_at is None else started_at
        if before < since:
            return True
        return now - since >= max((before - since) * spacing, before - since + _LEAST_SECONDS)

    def note(self, prediction: Prediction) -> None:
        self.kept.append(prediction)

    def judged(self, started_at: float, finished_at: float) -> tuple[Judged, ...]:
        """The predictions at each judged instant, now that the job has ended."""
        found = [Judged(AT_SUBMISSION, 0.0, self.kept[0], finished_at)] if self.kept else []
        for kind, begin in ((IN_LIFE, self.submitted_at), (WHILE_RUNNING, started_at)):
            for part in PARTS:
                newest = self._newest(begin + part * (finished_at - begin), begin)
                if newest is not None:
                    found.append(Judged(kind, part, newest, finished_at))
        return (*found, *self._judged_starts(started_at))

    def _judged_starts(self, started_at: float) -> list[Judged]:
        """Those of a job that had to wait: what begins at once is no prediction."""
        begin = self.submitted_at
        parts = [(0.0, self.kept[0] if self.kept else None)]
        parts += [(part, self._newest(begin + part * (started_at - begin), begin)) for part in PARTS]
        said = [(part, each) for part, each in parts if each is not None and each.wait is not None]
        return [Judged(START, part, each, started_at) for part, each in said if each.at < started_at]

    def _newest(self, instant: float, begin: float) -> Prediction | None:
        """The newest prediction at that instant; None if there was none since `begin`."""
        newest = None
        for prediction in self.kept:
            if prediction.at > instant:
                break
            newest = prediction
        return newest if newest is not None and newest.at >= begin else None


@dataclass(frozen=True, slots=True)
class Judged:
    """A prediction of a job that has ended."""

    kind: str
    part: float
    """Of its life that was over."""
    prediction: Prediction
    came_at: float
    """When what was predicted came."""

    @property
    def said(self) -> Interval | None:
        """Seconds from the prediction on."""
        return self.prediction.wait if self.kind == START else self.prediction.left

    @property
    def true_left(self) -> float:
        """Seconds that it took from the prediction on."""
        return self.came_at - self.prediction.at

    @property
    def is_held(self) -> bool:
        """Whether it came within the interval; an interval is as exact as a second."""
        left = self.said
        return left is not None and left.low - 1.0 <= self.true_left <= left.high + 1.0

    @property
    def error(self) -> float:
        """|predicted - true| / true."""
        left = self.said
        return abs(left.mean - self.true_left) / max(self.true_left, 1.0) if left is not None else float("nan")


def summary(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    """For each kind and part: how many jobs were told something, how often the intervals of 80 % held, the median
    and mean error of the time left, and how wide the intervals were (high by low, median)."""
    groups: dict[tuple[str, float], list[Judged]] = {}
    for one in judged:
        groups.setdefault((one.kind, one.part), []).append(one)
    return [_row(*key, groups[key]) for key in sorted(groups, key=lambda key: (KINDS.index(key[0]), key[1]))]


def _row(kind: str, part: float, judged: Sequence[Judged]) -> dict[str, Any]:
    said = [one for one in judged if one.said is not None]
    row: dict[str, Any] = {"kind": kind, "part": part, "jobs": len(judged), "promised": len(said)}
    if said:
        errors = np.array([one.error for one in said])
        row["held"] = float(np.mean([one.is_held for one in said]))
        row["median_error"] = float(np.median(errors))
        row["mean_error"] = float(np.mean(errors))
        row["median_width"] = float(np.median([_width(one.said) for one in said if one.said]))
    return row


def _width(left: Interval) -> float:
    return max(left.high, 1.0) / max(left.low, 1.0)
