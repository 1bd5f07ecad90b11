"""What a simulation tells in the end: a record of each job, a timeline, and the figures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job that has ended. Times in seconds since the beginning of the trace."""

    id: str
    submitted_at: float
    started_at: float
    finished_at: float
    restarts: int
    held_share_seconds: float
    trained_share_seconds: float
    fairness: float
    """Finish-time fairness ρ: its completion time by what it would have been on its fair part of the cluster."""
    predictions: tuple[tuple[float, float], ...] = ()
    """Predictions of its end on the way: (part of its steps done, predicted steps in all by the true ones)."""
    deadline_at: float | None = None

    @property
    def jct_seconds(self) -> float:
        return self.finished_at - self.submitted_at


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster right after a round."""

    at: float
    running: int
    waiting: int
    share: float
    """Dominant shares held, summed over the jobs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulation."""

    trace: str
    policy: str
    seed: int
    jobs: tuple[JobRecord, ...]
    timeline: tuple[Moment, ...]
    rounds: int

    def figures(self) -> dict[str, float]:
        """The figures by which policies are compared, by name. `deadlines_met` only if jobs have deadlines: the part of
        those that ended in time.
        """
        jct = np.array([job.jct_seconds for job in self.jobs])
        fairness = np.array([job.fairness for job in self.jobs])
        first = min(job.submitted_at for job in self.jobs)
        makespan = max(job.finished_at for job in self.jobs) - first
        in_time = [job.finished_at <= job.deadline_at for job in self.jobs if job.deadline_at is not None]
        figures = {
            "mean_jct_seconds": float(jct.mean()),
            "p50_jct_seconds": float(np.percentile(jct, 50)),
            "p99_jct_seconds": float(np.percentile(jct, 99)),
            "makespan_seconds": makespan,
            "restarts_per_job": sum(job.restarts for job in self.jobs) / len(self.jobs),
            "utilisation": sum(job.held_share_seconds for job in self.jobs) / makespan,
            "useful_utilisation": sum(job.trained_share_seconds for job in self.jobs) / makespan,
            "fairness_p90": float(np.percentile(fairness, 90)),
            "fairness_worst": float(fairness.max()),
            "mean_wait_seconds": float(np.mean([job.started_at - job.submitted_at for job in self.jobs])),
            "longest_wait_seconds": max(job.started_at - job.submitted_at for job in self.jobs),
        }
        return {**figures, "deadlines_met": sum(in_time) / len(in_time)} if in_time else figures


def mean_active(submitted: Sequence[float], finished: Sequence[float]) -> FloatArray:
    """(n,) how many jobs were active on average during each job's life, itself included."""
    begins, ends = np.asarray(submitted, dtype=np.float64), np.asarray(finished, dtype=np.float64)
    times = np.concatenate([begins, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    active = np.cumsum(np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])[order])
    # Integral of the number of active jobs up to each event, then its difference over each life.
    integral = np.concatenate([[0.0], np.cumsum(active[:-1] * np.diff(times))])
    life = np.interp(ends, times, integral) - np.interp(begins, times, integral)
    lengths = ends - begins
    return np.where(lengths > 0, life / np.where(lengths > 0, lengths, 1.0), 1.0)
