from __future__ import annotations

import numpy as np
import pytest

from optimus_models.speed.form import SpeedResidual
from optimus_models.speed.measurements import SpeedPoints

MEASURED = SpeedPoints.of([4, 8], [6, 2], [1.0, 1.0])


@pytest.fixture
def residual() -> SpeedResidual:
    """Steps take 20 % longer than the formula says at (4, 6), and as long as it says at (8, 2)."""
    return SpeedResidual.fit(MEASURED, np.log([1.2, 1.0]))


def mean_at(residual: SpeedResidual, w: float, p: float) -> float:
    return float(np.exp(residual.mean(np.array([w]), np.array([p])))[0])


def test_what_was_measured_is_believed(residual: SpeedResidual) -> None:
    assert mean_at(residual, 4, 6) == pytest.approx(1.2, abs=0.01)
    assert mean_at(residual, 8, 2) == pytest.approx(1.0, abs=0.01)


def test_the_same_number_of_servers_shares_a_part_of_it(residual: SpeedResidual) -> None:
    assert 1.03 < mean_at(residual, 16, 6) < 1.2


def test_far_away_the_formula_stands_alone(residual: SpeedResidual) -> None:
    assert mean_at(residual, 1, 1) == pytest.approx(1.0, abs=0.005)


def test_measuring_takes_uncertainty_away(residual: SpeedResidual) -> None:
    _, variance = residual.mean_with_variance(np.array([4.0, 5.0, 30.0]), np.array([6.0, 6.0, 30.0]))
    assert variance[0] < variance[1] < variance[2]


def test_without_measurements_there_is_no_correction() -> None:
    empty = SpeedPoints.of([], [], [])
    assert mean_at(SpeedResidual.fit(empty, np.zeros(0)), 4, 6) == 1.0
