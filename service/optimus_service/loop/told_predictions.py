"""The predictions that users are told, of those that a round or a look at the queue has made: these alone are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optimus_service.insight.jobs.progress import Ends
from optimus_service.insight.jobs.speeds_here import speeds_here
from optimus_service.insight.predictions.told import as_told
from optimus_service.observe.standstills import standstills
from optimus_service.store.records import PredictionRecord
from optimus_service.store.repository import Repository

Told = Callable[[Sequence[PredictionRecord]], list[PredictionRecord]]
"""Of these predictions what users are told now."""


def told_predictions(
    repository: Repository, made: Sequence[PredictionRecord], now: float, listens_since: float
) -> list[PredictionRecord]:
    """Of these predictions what lists and explanations tell now, from the same rows: what they are made of is stored.

    A few statements, whatever the number; none for none. `listens_since`: see `standstills`.
    """
    if not made:
        return []
    jobs = repository.jobs.by_id({each.job_id for each in made})
    decisions = repository.rounds.latest_decisions(jobs)
    still = standstills(repository, jobs.values(), decisions, now, listens_since)
    speeds = speeds_here(repository, jobs.values(), decisions, now)
    ends: Ends = {}
    found = [
        as_told(each, jobs[each.job_id], decisions.get(each.job_id), now, ends, still, speeds.get(each.job_id))
        for each in made
        if each.job_id in jobs
    ]
    return [each for each in found if each is not None]
