"""The earliest starts of the jobs that wait, if none of the others grows: by all the ends that free capacity. Pure.

A future in which every job ends as it is likeliest to names one end that a waiting job starts with. Another job may
well end sooner: of many doubtful ends the first comes before the likeliest of them. So ends are drawn together, and the
waiting jobs take the capacity that they free, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.model import TOLERANCE, Resources

FloatArray = NDArray[np.float64]

DRAWS = 63
"""Of all ends together."""
_SEED = 0


def earliest_starts(
    now: float,
    free: Resources,
    allocated: Sequence[Resources],
    ends: Sequence[FloatArray],
    needed: Sequence[Resources],
) -> FloatArray:
    """(len(needed), DRAWS) instants at which what each waiting job needs is free, with what those before it take.

    Args:
        now: the present.
        free: what nobody holds now.
        allocated: what each job with tasks holds.
        ends: equally likely instants of its end, for each of these; inf where none is known.
        needed: by the jobs that wait, in their order.

    Returns:
        Not before `now`; inf where it does not fit even after all ends.
    """
    gpu_types = sorted({gpu_type for each in (*allocated, *needed) for gpu_type in each.gpus})
    coming, order = _together(ends)
    freed = np.cumsum(_columns(allocated, gpu_types)[order], axis=1)  # (DRAWS, n, gpu_types)
    freed = np.concatenate([np.zeros((DRAWS, 1, len(gpu_types) + 2)), freed], axis=1) + _columns([free], gpu_types)[0]
    at = np.concatenate([np.full((DRAWS, 1), now), np.maximum(coming, now), np.full((DRAWS, 1), np.inf)], axis=1)
    # Nobody takes anything back: what is free only grows, so the first instant with enough of each kind is found by
    # bisection.
    total = np.cumsum(_columns(needed, gpu_types), axis=0) - TOLERANCE
    found = np.empty((len(needed), DRAWS))
    for draw, (free_by_kind, instants) in enumerate(zip(freed.transpose(0, 2, 1), at, strict=True)):
        first = [np.searchsorted(*each) for each in zip(free_by_kind, total.T, strict=True)]
        found[:, draw] = instants[np.max(first, axis=0)]
    return found


def drawn(instants: FloatArray, random: np.random.Generator) -> FloatArray:
    """(DRAWS,) of equally likely instants (n,), in any order, each about equally often."""
    return np.sort(instants)[random.permutation(DRAWS) * len(instants) // DRAWS]


def _together(ends: Sequence[FloatArray]) -> tuple[FloatArray, NDArray[np.int64]]:
    """(DRAWS, n) ends that come together, in order of time, and (DRAWS, n) whose they are."""
    random = np.random.default_rng(_SEED)
    found = np.stack([drawn(each, random) for each in ends], axis=1) if ends else np.zeros((DRAWS, 0))
    order = np.argsort(found, axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1), order


def _columns(amounts: Sequence[Resources], gpu_types: Sequence[str]) -> FloatArray:
    """(n, gpu_types + 2)."""
    rows = [[each.cpu, each.memory_bytes, *(each.gpus.get(gpu_type, 0) for gpu_type in gpu_types)] for each in amounts]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(gpu_types) + 2)
