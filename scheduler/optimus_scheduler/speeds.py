"""Predicted speeds of one job, looked up many times in a round."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from optimus_models.speed_model import SpeedModel
from optimus_scheduler.types import Allocation

_BLOCK = 8
"""Speeds are predicted for 8 × 8 sizes at once: one vectorised call costs about as much as a single prediction."""


class SpeedSource(StrEnum):
    """What predicted speeds rest on."""

    MEASURED = "measured"
    SIMILAR_JOBS = "similar jobs"
    """Ended jobs of the same task; the job itself has measured nothing yet."""
    ANALYSIS = "analysis"
    """The layers of its network and the data sheet of its device."""


class Speeds:
    """Steps per second by (workers, servers), predicted block by block when first asked for."""

    def __init__(self, model: SpeedModel, source: SpeedSource | None = SpeedSource.MEASURED) -> None:
        """`source`: None when nothing is known."""
        self.model = model
        self.source = source
        self._known: dict[tuple[int, int], float] = {}

    def at(self, allocation: Allocation) -> float:
        """Predicted steps per second, above 0; 0 for a size without workers."""
        if allocation.workers < 1:
            return 0.0
        size = (allocation.workers, max(allocation.servers, 1))
        if size not in self._known:
            self._predict_block(*size)
        return self._known[size]

    def _predict_block(self, workers: int, servers: int) -> None:
        first_w, first_p = _block_start(workers), _block_start(servers)
        w, p = np.meshgrid(np.arange(first_w, first_w + _BLOCK), np.arange(first_p, first_p + _BLOCK), indexing="ij")
        speeds = self.model.predict(w.reshape(-1), p.reshape(-1))  # (64,)
        sizes = zip(w.reshape(-1).tolist(), p.reshape(-1).tolist(), strict=True)
        self._known.update(zip(sizes, speeds.tolist(), strict=True))


def _block_start(count: int) -> int:
    return (count - 1) // _BLOCK * _BLOCK + 1
