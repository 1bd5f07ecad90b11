"""How often a training should write its checkpoint: each takes time, and an interruption repeats what came after it."""

from __future__ import annotations

import math

PRIOR_SECONDS = 7 * 86_400.0
"""Before anything was observed, one interruption a week is expected. It counts as one that was observed."""


def seconds_between(interruptions: int, seconds: float) -> float:
    """Expected seconds between two interruptions, after so many in `seconds` of running: the mean of a gamma posterior
    of their rate, whose prior is one in `PRIOR_SECONDS`."""
    return (PRIOR_SECONDS + max(seconds, 0.0)) / (1 + interruptions)


def best_interval(write_seconds: float, between: float) -> float:
    """Seconds of training between two checkpoints by which the least time is lost.

    Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (2006), equation 37.

    Args:
        write_seconds: how long training stands still for one checkpoint, >= 0.
        between: mean seconds between two interruptions, > 0.
    """
    half = write_seconds / (2.0 * between)
    if half >= 1.0:
        return between
    first = math.sqrt(2.0 * write_seconds * between)
    return max(first * (1.0 + math.sqrt(half) / 3.0 + half / 9.0) - write_seconds, 0.0)


def lost_share(interval: float, write_seconds: float, between: float) -> float:
    """Part of the time, 0 to 1, that checkpoints after every `interval` seconds of training cost: writing them, and
    after an interruption repeating what came since the last one, on average half of what lies between two.

    Young, A first order approximation to the optimum checkpoint interval (1974). Not for `interval` and `write_seconds`
    both 0.
    """
    whole = interval + write_seconds
    return min(1.0, write_seconds / whole + whole / (2.0 * between))
