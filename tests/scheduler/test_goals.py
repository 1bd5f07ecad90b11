"""What the policy `optimus` may be for, and how each goal weighs jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_job, a_spec, law, samples

from optimus_scheduler.allocate.optimus.frontier import Frontiers
from optimus_scheduler.allocate.optimus.goals import Round, goal_weights
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.allocate.optimus.weights import remaining_work, weights
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.model import Job, Resources
from optimus_scheduler.objective import MEAN_JCT, Objective, UnknownObjective
from optimus_scheduler.settings import Settings

CAPACITY = Resources(16.0, 64 * GIB)
LONG, SHORT = 40, 4
"""Seconds that a step takes, about, of jobs with as many steps left."""


def running(name: str, seconds: float = SHORT, age: float = 100.0, deadline_in: float | None = None) -> Job:
    measured = samples(law(seconds, 0.0, seconds / 10, 0.0), ALL_SIZES)
    spec = replace(a_spec(), deadline_at=None if deadline_in is None else NOW + deadline_in)
    return a_job(name, has=(1, 1), spec=spec, measured=measured, submitted_at=NOW - age)


def found(words: str, *jobs: Job, settings: Settings | None = None) -> NDArray[np.float64]:
    """Weights of the jobs, in the order of their ids."""
    settings = replace(settings or Settings(), objective=Objective.of(words))
    outlooks = JobColumns(forecast_all(jobs, NOW, settings))
    frontiers = Frontiers(outlooks, CAPACITY)
    return goal_weights(outlooks, Round(frontiers, frontiers.best_speed_per_share, NOW), settings)


def test_the_default_is_the_mean_completion_time_to_the_last_bit() -> None:
    jobs = [running("a", LONG), running("b"), a_job("c", spec=a_spec(priority=3.0))]
    outlooks = JobColumns(forecast_all(jobs, NOW, Settings()))
    frontiers = Frontiers(outlooks, CAPACITY)
    by_length = weights(outlooks, frontiers.best_speed_per_share, frontiers.least_shares, Settings())
    assert Settings().objective == MEAN_JCT == Objective.of("jct")
    np.testing.assert_array_equal(found("jct", *jobs), by_length)


def test_for_the_makespan_all_jobs_would_end_at_once() -> None:
    """Of jobs of speed k^p: max Σ weight · part^p under Σ part = 1 has parts in proportion to weight^(1 / (1 - p))."""
    jobs, p = [running("a", LONG), running("b"), running("c", 9.0)], 0.5
    outlooks = JobColumns(forecast_all(jobs, NOW, Settings()))
    frontiers = Frontiers(outlooks, CAPACITY)
    work = remaining_work(outlooks, frontiers.best_speed_per_share, frontiers.least_shares)
    parts = found("makespan", *jobs, settings=Settings(speed_exponent=p)) ** (1.0 / (1.0 - p))
    ends = work / parts**p
    np.testing.assert_allclose(ends, ends[0])


def test_for_fairness_the_later_of_two_equal_jobs_weighs_more() -> None:
    old, young = found("fairness", running("a-old", age=5000.0), running("b-young", age=0.0))
    assert old > 2.0 * young


def test_for_deadlines_a_job_whose_deadline_is_to_come_outweighs_others_of_its_work() -> None:
    weight = found(
        "deadlines", running("a-due", deadline_in=60.0), running("b-none"), running("c-late", deadline_in=-1)
    )
    np.testing.assert_allclose(weight / weight[1], [10.0, 1.0, 1.0])


def test_a_mix_lies_between_its_goals() -> None:
    jobs = [running("long", LONG), running("short")]
    ratios = [a / b for a, b in (found(words, *jobs) for words in ("jct", "jct:3,makespan:1", "makespan"))]
    np.testing.assert_allclose(ratios[1], ratios[0] ** 0.75 * ratios[2] ** 0.25)
    assert ratios[0] < 1.0 < ratios[2]


def test_parts_add_up_to_one_and_are_written_as_they_are_read() -> None:
    mix = Objective.of("jct:7, makespan:3")
    assert mix == Objective(jct=0.7, makespan=0.3)
    assert str(mix) == "jct:0.7,makespan:0.3"
    assert Objective.of(str(mix)) == mix
    assert str(Objective.of("fairness:2")) == "fairness"


@pytest.mark.parametrize(
    "words", ["", "speed", "jct:0", "jct:-1,makespan:2", "jct:nan", "jct:inf", "jct:much", "jct,jct", "jct;makespan"]
)
def test_words_that_are_no_objective_are_refused_with_the_choices(words: str) -> None:
    with pytest.raises(UnknownObjective, match="choose one of jct, makespan, deadlines, fairness"):
        Objective.of(words)
