"""How fast jobs train with what they have, where their forecasts are of before that: a few statements for many jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optimus_service.insight.jobs.progress import SPEED_SAMPLES, is_of_earlier_steps, speed_here
from optimus_service.store.records import DecisionRecord, JobRecord
from optimus_service.store.repository import Repository


def speeds_here(
    repository: Repository, jobs: Iterable[JobRecord], decisions: Mapping[str, DecisionRecord], now: float
) -> dict[str, float]:
    """Steps/s by job id, of these jobs whose forecasts know nothing of their newest steps (`is_of_earlier_steps`): few,
    for a round follows soon."""
    asked = {job.id: job for job in jobs if not job.state.is_final and is_of_earlier_steps(job, decisions.get(job.id))}
    if not asked:
        return {}
    newest = repository.samples.newest_of_each(asked, SPEED_SAMPLES)
    speeds = {each: speed_here(job, newest.get(each, ()), now) for each, job in asked.items()}
    return {each: speed for each, speed in speeds.items() if speed is not None}
