"""How far jobs come over time along one trajectory: their speeds change at a few instants."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Progress:
    """Speeds of n jobs from instant to instant. A job makes no step between an instant and its `resumes` there."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._speeds: list[FloatArray] = []
        self._resumes: list[FloatArray] = []

    def note(self, time: float, speeds: FloatArray, resumes: FloatArray) -> None:
        """From `time` on, until the next one. `speeds` (n,) steps/s; `resumes` (n,) instants.

        n may grow: later jobs come behind.
        """
        self._times.append(time)
        self._speeds.append(speeds.copy())
        self._resumes.append(resumes.copy())

    def end(self, job: int, steps: FloatArray) -> FloatArray:
        """The instants at which the job has done so many steps; inf where it never does.

        After the last instant it goes on at its last speed.
        """
        times, speeds, resumes = self._of(job)
        begins = np.maximum(times, resumes)  # of making steps
        ends = np.append(times[1:], np.inf)
        begins = np.minimum(begins, ends)
        done = speeds[:-1] * (ends[:-1] - begins[:-1])
        before = np.concatenate([[0.0], np.cumsum(done)])  # (k,) at each instant
        at: Any = np.searchsorted(before, steps, side="left") - 1
        at = np.clip(at, 0, len(times) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = begins[at] + (steps - before[at]) / speeds[at]
        ends_at: FloatArray = np.where(np.isnan(found), begins[at], found)
        return ends_at

    def end_without_pause(self, job: int, steps: FloatArray) -> FloatArray | None:
        """The instants at which a job that has tasks at first and then loses them would have done so many steps with
        what it has at first; None: it has none at first, or does not lose them."""
        times, speeds, resumes = self._of(job)
        if speeds[0] <= 0 or (speeds > 0).all():
            return None
        ends_at: FloatArray = max(times[0], resumes[0]) + steps / speeds[0]
        return ends_at

    def _of(self, job: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        first = next(k for k, speeds in enumerate(self._speeds) if len(speeds) > job)
        return (
            np.array(self._times[first:]),
            np.array([speeds[job] for speeds in self._speeds[first:]]),
            np.array([resumes[job] for resumes in self._resumes[first:]]),
        )
