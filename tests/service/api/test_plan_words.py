"""What a dry run says of other jobs."""

from __future__ import annotations

import pytest

from optimus_contract import answers
from optimus_service.api.jobs.plan import _delay


def effect(workers: int, later: float) -> answers.Effect:
    return answers.Effect(
        job_id="job-1",
        name="job",
        before=answers.Allocation(workers=1, servers=0, gpu_type=None),
        after=answers.Allocation(workers=workers, servers=0, gpu_type=None),
        finish_seconds_before=answers.Interval(mean=60.0, low=50.0, high=70.0),
        finish_seconds_after=answers.Interval(mean=60.0 + later, low=50.0, high=70.0),
    )


@pytest.mark.parametrize(
    ("workers", "later", "words"),
    [
        (0, -3.0, " at first, and end no later, by what is foreseen"),
        (0, 20.0, " and end 20 s later"),
        (2, -20.0, " and end 20 s sooner"),
    ],
    ids=["paused and sooner", "paused", "more workers"],
)
def test_a_job_that_loses_workers_and_ends_sooner_does_so_in_spite_of_it(
    workers: int, later: float, words: str
) -> None:
    assert _delay(effect(workers, later)) == words
