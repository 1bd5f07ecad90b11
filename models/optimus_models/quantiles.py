"""Quantiles of weighted values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optimus_models.history import FloatArray


def weighted_quantiles(values: FloatArray, weights: FloatArray, levels: Sequence[float]) -> list[FloatArray]:
    """Quantiles of `values` (m, n) down the first axis, row i weighing `weights[i]`: one array (n,) per level.

    The quantile is the smallest value at which the cumulated weight reaches the level, so infinities are fine.
    """
    order = np.argsort(values, axis=0)
    ranked = np.take_along_axis(values, order, axis=0)
    cumulated = np.cumsum(weights[order], axis=0)
    total = cumulated[-1]
    results = []
    for level in levels:
        row = np.argmax(cumulated >= level * total - 1e-12, axis=0)
        results.append(np.take_along_axis(ranked, row[None], axis=0)[0])
    return results
