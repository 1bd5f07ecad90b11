"""How long a job's first tasks take until they take part: a job that is given tasks does not train yet. Pure."""

from __future__ import annotations

import math

from optimus_scheduler.ahead.queue import until_later
from optimus_scheduler.forecast.precedents import with_belief
from optimus_scheduler.model import REACH, Interval, Job, JobSpec, StartUps

_LEAST_SECONDS = 1e-3


def is_starting(job: Job) -> bool:
    """Whether it has been given tasks and none of them takes part yet."""
    return not job.allocation.is_empty and job.formed is not None and job.formed.is_empty


def untold_since_start(seen: StartUps, job: Job, elapsed: float) -> float:
    """Seconds that a job is taken to have trained whose tasks were started `elapsed` seconds ago, though it has told no
    step: one that tells only some of its steps begins when such jobs do."""
    whole = start_up_seconds(seen, job.spec, 0.0) if job.report_seconds else None
    return 0.0 if whole is None else min(max(elapsed - whole.mean, 0.0), job.report_seconds)


def start_up_seconds(seen: StartUps, spec: JobSpec, elapsed: float) -> Interval | None:
    """Seconds from now until the first tasks of such a job take part, which were started `elapsed` seconds ago.

    By jobs of its task, else by all of its architecture; None where none was seen. Log-normal, as lengths of runs are.
    """
    like_it = seen.get((spec.family, spec.architecture)) or [
        seconds for (_, architecture), each in seen.items() if architecture is spec.architecture for seconds in each
    ]
    if not like_it:
        return None
    middle, spread = with_belief([math.log(max(seconds, _LEAST_SECONDS)) for seconds in like_it])
    whole = Interval(math.exp(middle), math.exp(middle - REACH * spread), math.exp(middle + REACH * spread))
    return until_later(whole, 0.0, elapsed)
