"""Jobs that are likely to be submitted: as many as lately, and like those."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimus_scheduler.ahead.world import Expected, as_fresh
from optimus_scheduler.forecast.outlook import Outlook

_REMEMBERED = 40
"""Newest submissions by which later ones are foreseen."""
_LEAST_REMEMBERED = 3
"""Fewer show no rate."""
_MOST_EXPECTED = 24
_GOLDEN = 0.6180339887498949
"""Multiples of it are spread evenly over [0, 1), for any number of them (a Kronecker sequence)."""


class RecentJobs:
    """The newest submissions, as they were seen last. One thread may note while others ask."""

    def __init__(self) -> None:
        self._seen: dict[str, Outlook] = {}

    def note(self, outlooks: Sequence[Outlook]) -> None:
        """The jobs of a round."""
        seen = self._seen | {one.id: one for one in outlooks}
        newest = sorted(seen.values(), key=lambda one: (one.job.submitted_at, one.id))[-_REMEMBERED:]
        self._seen = {one.id: one for one in newest}

    def expected(self, now: float) -> tuple[Expected, ...]:
        """The next submissions, in order of time: at the rate of the remembered ones, and like each of them in turn.

        Intervals are exponential.
        """
        like = sorted(self._seen.values(), key=lambda one: (one.job.submitted_at, one.id))
        if len(like) < _LEAST_REMEMBERED:
            return ()
        span = now - like[0].job.submitted_at
        if span <= 0:
            return ()
        time, found = now, list[Expected]()
        for number in range(_MOST_EXPECTED):
            part = (0.5 + number * _GOLDEN) % 1.0
            time -= math.log(1.0 - part) * span / len(like)
            model = like[int(((number + 1) * _GOLDEN) % 1.0 * len(like))]
            total = model.forecast.total_steps
            if total is not None and model.speeds.is_known:
                found.append(Expected(time, as_fresh(model, f"expected-{number}", time), max(total.mean, 1.0)))
        return tuple(found)
