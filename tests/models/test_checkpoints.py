"""How often a checkpoint should be written."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimus_models.checkpoints import PRIOR_SECONDS, best_interval, lost_share, seconds_between

WRITES = st.floats(0.001, 600.0)
BETWEEN = st.floats(600.0, 1e7)


def test_one_week_is_expected_before_anything_was_seen() -> None:
    assert seconds_between(0, 0.0) == PRIOR_SECONDS
    assert seconds_between(9, 9 * PRIOR_SECONDS) == PRIOR_SECONDS
    assert seconds_between(99, 100 * 3600.0) == pytest.approx((PRIOR_SECONDS + 360_000.0) / 100)


def test_it_is_dalys_interval() -> None:
    """sqrt(2 · 20 · 80000) (1 + 0.0111803/3 + 0.000125/9) - 20, worked out by hand."""
    assert best_interval(20.0, 80_000.0) == pytest.approx(1775.55, abs=0.05)
    assert best_interval(500.0, 200.0) == 200.0, "checkpoints that take longer than training lives"


@given(write=WRITES, between=BETWEEN)
def test_no_other_interval_loses_clearly_less(write: float, between: float) -> None:
    if write > between / 10:
        return
    best = lost_share(best_interval(write, between), write, between)
    others = [lost_share(each, write, between) for each in np.geomspace(write / 10, 10 * between, 200)]
    assert best <= min(others) * 1.02


@given(write=WRITES, between=BETWEEN, interval=st.floats(0.0, 1e8))
def test_shares_are_shares(write: float, between: float, interval: float) -> None:
    assert 0.0 < lost_share(interval, write, between) <= 1.0
    assert 0.0 <= best_interval(write, between) < math.inf


@given(write=WRITES, between=BETWEEN)
def test_rarer_interruptions_ask_for_rarer_checkpoints(write: float, between: float) -> None:
    if write < between:
        assert best_interval(write, 2 * between) >= best_interval(write, between)
