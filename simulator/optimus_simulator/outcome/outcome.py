"""The outcome of a simulation: a record of each job, a timeline, and the figures made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.ahead.deadlines import Answer
from optimus_scheduler.model import JobSpec, Resources
from optimus_simulator.bounds.bound import Bound
from optimus_simulator.shown_predictions import Judged, summary
from optimus_simulator.trace import TraceJob

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
    step_predictions: tuple[tuple[float, float], ...] = ()
    """Predictions of its end on the way: (part of its steps done, predicted steps in all by the true ones)."""
    deadline_at: float | None = None
    predictions: tuple[Judged, ...] = ()
    """What it was told of its time left, and what came of it."""
    answer: Answer | None = None
    """What was said of its deadline at its submission; None: nothing was asked, or it has none."""
    promised: bool = False
    """Whether it was promised, then or later, that it meets its deadline."""
    dropped: bool = False
    """Whether it was declined and left, without a start and an end: both are its submission then."""

    @property
    def in_time(self) -> bool:
        """Whether it met its deadline; True without one."""
        return self.deadline_at is None or (not self.dropped and self.finished_at <= self.deadline_at)

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


OF_JOBS_THAT_RAN = (
    *("mean_jct_seconds", "p50_jct_seconds", "p99_jct_seconds", "makespan_seconds", "restarts_per_job"),
    *("utilisation", "useful_utilisation", "fairness_p90", "fairness_worst"),
    *("mean_wait_seconds", "longest_wait_seconds"),
)
"""Figures that there are not where every job was dropped."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulation."""

    trace: str
    policy: str
    seed: int
    jobs: tuple[JobRecord, ...]
    timeline: tuple[Moment, ...]
    rounds: int
    bound: Bound | None = None
    """What no scheduler can do better than on this trace; None: that is not known."""
    no_bound: str = ""
    """Why it is not known."""

    def figures(self) -> dict[str, float]:
        """The figures by which policies are compared, by name. `deadlines_met` only if jobs have deadlines: the part of
        those that ended in time. Jobs that were dropped count in no other figure: `OF_JOBS_THAT_RAN` only if one ran.
        `above_bound` and `makespan_above_bound` only with a bound and if all jobs ran: how much above it, 0.1 for a
        tenth.
        """
        in_time = [job.in_time for job in self.jobs if job.deadline_at is not None]
        deadlines = {"deadlines_met": sum(in_time) / len(in_time)} if in_time else {}
        ran = [job for job in self.jobs if not job.dropped]
        if not ran:
            return deadlines
        jct = np.array([job.jct_seconds for job in ran])
        fairness = np.array([job.fairness for job in ran])
        first = min(job.submitted_at for job in self.jobs)
        makespan = max(job.finished_at for job in self.jobs) - first
        figures = {
            "mean_jct_seconds": float(jct.mean()),
            "p50_jct_seconds": float(np.percentile(jct, 50)),
            "p99_jct_seconds": float(np.percentile(jct, 99)),
            "makespan_seconds": makespan,
            "restarts_per_job": sum(job.restarts for job in ran) / len(ran),
            "utilisation": sum(job.held_share_seconds for job in self.jobs) / makespan,
            "useful_utilisation": sum(job.trained_share_seconds for job in self.jobs) / makespan,
            "fairness_p90": float(np.percentile(fairness, 90)),
            "fairness_worst": float(fairness.max()),
            "mean_wait_seconds": float(np.mean([job.started_at - job.submitted_at for job in ran])),
            "longest_wait_seconds": max(job.started_at - job.submitted_at for job in ran),
        }
        return {**figures, **deadlines, **self._above_bound(figures)}

    def _above_bound(self, figures: Mapping[str, float]) -> dict[str, float]:
        if self.bound is None or any(job.dropped for job in self.jobs):  # it is one of all jobs
            return {}
        least = {"above_bound": "mean_jct_seconds", "makespan_above_bound": "makespan_seconds"}
        bounds = {name: (figures[of], getattr(self.bound, of)) for name, of in least.items()}
        return {name: reached / possible - 1.0 for name, (reached, possible) in bounds.items() if possible > 0}


def deadline_answers(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How true the answers to deadlines were: jobs `promised` at their submission and how many `met` theirs, promised
    `later` and met, `declined` at their submission and how many `missed` theirs; `open`: nothing was said then."""
    jobs = [job for outcome in outcomes for job in outcome.jobs if job.answer is not None]
    promised = [job.in_time for job in jobs if job.answer is Answer.PROMISED]
    later = [job.in_time for job in jobs if job.promised and job.answer is not Answer.PROMISED]
    declined = [not job.in_time for job in jobs if job.answer is Answer.DECLINED]
    return {
        "promised": len(promised),
        "promised_met": sum(promised),
        "promised_later": len(later),
        "promised_later_met": sum(later),
        "declined": len(declined),
        "declined_missed": sum(declined),
        "open": sum(job.answer is Answer.OPEN for job in jobs),
    }


def time_left(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """How true the predicted times left were, by kind and part of life (`shown_predictions.summary`)."""
    return summary(judged for outcome in outcomes for job in outcome.jobs for judged in job.predictions)


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


def finish_time_fairness(
    jobs: Sequence[TraceJob], finished: Sequence[float], capacity: Resources, start_seconds: float
) -> list[float]:
    """Finish-time fairness ρ = T_shared / T_alone of each job; above 1: sharing delayed it beyond its equal part.

    T_alone is the time on 1/N of the cluster, N the mean number of active jobs during the job's life. `start_seconds`
    is the time of a start, alone as well.

    References: Mahajan et al., "Themis", NSDI 2020, section 3; Qiao et al., "Pollux", OSDI 2021, section 5.
    """
    n_active = mean_active([job.submitted_at for job in jobs], finished)
    alone = [
        start_seconds + _alone_seconds(job, capacity, active)
        for job, active in zip(jobs, n_active.tolist(), strict=True)
    ]
    shared = [end - job.submitted_at for job, end in zip(jobs, finished, strict=True)]
    return [together / max(by_itself, 1e-9) for together, by_itself in zip(shared, alone, strict=True)]


def _alone_seconds(job: TraceJob, capacity: Resources, n_active: float) -> float:
    """On its part of the cluster, with the GPU type that suits it best there."""
    gpu_types = job.gpu_types_of(capacity)
    return min(_seconds_on(job, gpu_type, capacity, n_active) / job.speed_factor(gpu_type) for gpu_type in gpu_types)


def _seconds_on(job: TraceJob, gpu_type: str | None, capacity: Resources, n_active: float) -> float:
    """On a part of the cluster in which workers come with as many servers as they have on average at the minimum."""
    spec = job.spec.on(gpu_type)
    servers_each = spec.server.minimum / max(spec.worker.minimum, 1)
    fair = 1.0 / _bundle_share(spec, capacity, servers_each) / n_active  # workers, not whole
    workers = int(min(max(math.floor(fair), spec.worker.minimum), spec.worker.maximum))
    servers = min(max(round(workers * servers_each), spec.server.minimum), spec.server.maximum)
    seconds = job.truth.begin().seconds_left(job.truth.fastest(workers, servers))
    # With less than the minimum as its part, a job would have that minimum only for a part of the time.
    return seconds * max(1.0, spec.worker.minimum / fair)


def _bundle_share(spec: JobSpec, capacity: Resources, servers_each: float) -> float:
    worker = spec.worker.resources.dominant_share(capacity)
    server = spec.server.resources.dominant_share(capacity)
    return max(worker + server * servers_each, 1e-12)
