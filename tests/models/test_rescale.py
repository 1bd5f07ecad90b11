from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models import RescaleCost
from optimus_models.rescale import PRIOR_SECONDS


def test_before_any_observation_the_prior_speaks() -> None:
    cost = RescaleCost.fit()
    assert cost.predict() == pytest.approx(PRIOR_SECONDS)
    low, high = cost.predict_interval()
    assert low < 0.6
    assert high > 5.0


def test_observations_take_over() -> None:
    observed = np.random.default_rng(5).lognormal(np.log(0.1), 0.3, 200)
    cost = RescaleCost.fit(observed)
    assert cost.predict() == pytest.approx(0.1, rel=0.1)


def test_its_interval_covers_what_it_says() -> None:
    stops = np.random.default_rng(6).lognormal(np.log(0.5), 0.5, (300, 9))
    inside = 0
    for row in stops:
        low, high = RescaleCost.fit(row[:8]).predict_interval(0.8)
        inside += bool(low <= row[8] <= high)
    assert 0.75 <= inside / len(stops) <= 0.92


def test_other_jobs_tell_what_the_first_own_change_will_cost() -> None:
    stops = np.random.default_rng(7).lognormal(np.log(30.0), 0.2, 20)
    others = RescaleCost.fit(stops)
    first = RescaleCost.fit(others=others)
    assert first.predict() == pytest.approx(30.0, rel=0.2)
    assert RescaleCost.fit([3.0] * 10, others=others).predict() == pytest.approx(3.0, rel=0.3)
    low, high = first.predict_interval()
    assert 5.0 < low < 20.0 < 45.0 < high < 200.0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_no_observations_make_it_raise(observed: list[float]) -> None:
    cost = RescaleCost.fit(observed)
    low, high = cost.predict_interval()
    assert 0 < low <= cost.predict() <= high
