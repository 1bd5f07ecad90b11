"""Times that are shown on one page come from one forecast."""

from __future__ import annotations

from tests.scheduler.builders import a_job, law, samples
from tests.service.store.store_builders import a_forecast

from optimus_models.cost import Estimate
from optimus_scheduler.forecast.fits import Fits
from optimus_scheduler.model import Allocation
from optimus_scheduler.settings import Settings
from optimus_service.insight.predictions import learned_then
from optimus_service.insight.sizes import Ahead, sizes

SETTINGS = Settings()
SIZES = [Allocation(1, 1), Allocation(2, 1), Allocation(4, 2)]
JOB = a_job("a", has=(2, 1), measured=samples(law(), [(1, 1), (2, 1), (2, 2), (4, 2)]))


def left_with_each(shown: Estimate | None) -> list[Estimate]:
    (fitted,) = Fits().of([JOB], SETTINGS)
    found = sizes(JOB, fitted.speeds, SIZES, Estimate(500, 400, 600), Ahead(0.0, SETTINGS, shown))
    return [each.left.seconds for each in found if each.left is not None]


def test_the_cell_of_the_present_size_is_the_time_left_that_is_shown() -> None:
    shown = Estimate(39.0, 29.0, 60.0)
    alone, beside = left_with_each(None), left_with_each(shown)
    assert len(alone) == len(beside) == len(SIZES)
    assert beside[1] == shown
    assert alone[1].mean != shown.mean
    for before, now in zip(alone, beside, strict=True):
        assert abs(now.mean / shown.mean - before.mean / alone[1].mean) < 1e-9


def test_of_an_ended_job_the_last_forecast_says_what_it_rested_on() -> None:
    learned = learned_then(a_forecast(finished_runs=0, finished_runs_share=0.0, speed_from="measured"))
    assert (learned.finished_runs, learned.share, learned.speeds_from) == (0, 0.0, "measured")
    assert learned_then(a_forecast()).speeds_from is None
