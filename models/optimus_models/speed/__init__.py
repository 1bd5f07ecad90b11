"""Models of the speed of one job, by the sizes that it measured. All of them are a `SpeedLaw`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from statistics import NormalDist
from typing import Protocol

from numpy.typing import ArrayLike

from optimus_models.history import FloatArray


class SpeedLaw(Hashable, Protocol):
    """A fitted model of one job's speed; speeds are in steps per second."""

    @property
    def n_points(self) -> int:
        """Distinct sizes that the job itself has measured."""
        ...

    @property
    def confidence(self) -> float:
        """0 (no measurement) to 1."""
        ...

    @property
    def error(self) -> float:
        """Relative error of one measurement round the model."""
        ...

    @property
    def coefficients(self) -> Mapping[str, float]:
        """What describes the fit, for people."""
        ...

    def predict(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """(n,) speed at each size, above 0; a job without servers ignores `servers`."""
        ...

    def predict_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold a measured speed with probability `coverage`."""
        ...

    def predict_with_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What both say, (mean, low, high), at less than the cost of both."""
        ...


@lru_cache(maxsize=64)
def half_width(coverage: float) -> float:
    """Standard deviations from the middle of a normal distribution to the ends of its interval of `coverage`."""
    return NormalDist().inv_cdf(0.5 + coverage / 2.0)


@lru_cache(maxsize=1024)
def student_half_width(coverage: float, freedom: float) -> float:
    """The same of Student's t distribution with so many degrees of freedom, in units of its scale."""
    from scipy.special import stdtrit  # takes as long as all else of this package

    return float(stdtrit(freedom, 0.5 + coverage / 2.0))
