"""Predicted speeds of one job, looked up many times in a round."""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimus_models.speed.goodput import Goodput
from optimus_models.speed.ring import RingSpeed
from optimus_models.speed.scaling import ScalingCurve
from optimus_models.speed.servers import SpeedModel
from optimus_scheduler.model import Allocation

Model = SpeedModel | ScalingCurve | RingSpeed | Goodput

_BLOCK = 8
"""Speeds are predicted for 8 × 8 sizes at once: one vectorised call costs about as much as a single prediction."""

_MOST_LADDERS = 8


class SpeedSource(StrEnum):
    """What predicted speeds rest on."""

    MEASURED = "measured"
    SIMILAR_JOBS = "similar jobs"
    """Ended jobs of the same task; the job itself has measured nothing yet."""
    ANALYSIS = "analysis"
    """The layers of its network and the data sheet of its device."""


class Speeds:
    """Steps per second by (workers, servers), predicted block by block when first asked for.

    Of a job with an elastic batch: scale-invariant steps, with the batch that suits each size.
    """

    def __init__(self, model: Model, source: SpeedSource | None = SpeedSource.MEASURED) -> None:
        """`source`: None when nothing is known."""
        self.model = model
        self.source = source
        self.is_known = source is not None
        self.confidence = model.confidence
        """How sure they are, from 0 (nothing is known) to 1."""
        self.frontiers: dict[Hashable, Any] = {}
        """What a policy derived from these speeds; lives as long as they do."""
        self._known: dict[tuple[int, int], float] = {}

    def at(self, allocation: Allocation) -> float:
        """Predicted steps per second, above 0; 0 for a size without workers."""
        if allocation.workers < 1:
            return 0.0
        size = (allocation.workers, max(allocation.servers, 1))
        if size not in self._known:
            self._predict_block(*size)
        return self._known[size]

    def many(self, workers: NDArray[np.int64], servers: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) speeds of sizes with at least one worker."""
        return self.model.predict(workers, np.maximum(servers, 1))

    def batch_at(self, workers: int) -> int | None:
        """The global batch that suits so many workers, at least 1; None for a job without an elastic batch."""
        return self.model.best_batch(workers) if isinstance(self.model, Goodput) else None

    def with_batch(self, workers: int, batch: int) -> float:
        """Steps per second with that batch, which may not be the best."""
        return self.model.at(workers, batch) if isinstance(self.model, Goodput) else 0.0

    def remember(self, key: Hashable, frontier: object) -> None:
        """Keep a frontier; of a few kinds only, as the cluster's capacity, which is part of the key, may change."""
        if len(self.frontiers) >= _MOST_LADDERS:
            self.frontiers.clear()
        self.frontiers[key] = frontier

    def _predict_block(self, workers: int, servers: int) -> None:
        first_w, first_p = _block_start(workers), _block_start(servers)
        speeds = self.model.predict(_BLOCK_W + first_w, _BLOCK_P + first_p)  # (64,)
        self._known.update(zip(_sizes(first_w, first_p), speeds.tolist(), strict=True))


_BLOCK_W, _BLOCK_P = (part.reshape(-1) for part in np.indices((_BLOCK, _BLOCK)))


@lru_cache
def _sizes(first_w: int, first_p: int) -> tuple[tuple[int, int], ...]:
    """The sizes of a block."""
    return tuple((first_w + w, first_p + p) for w, p in zip(_BLOCK_W.tolist(), _BLOCK_P.tolist(), strict=True))


def _block_start(count: int) -> int:
    return (count - 1) // _BLOCK * _BLOCK + 1
