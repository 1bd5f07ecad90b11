"""Jobs that are likely to be submitted: as many as lately, and like those; and how long earlier ones took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from optimus_scheduler.ahead.queue import Arrival, as_fresh
from optimus_scheduler.forecast.outlook import Outlook

REMEMBERED = 40
"""Newest submissions by which later ones are foreseen."""
_LEAST_REMEMBERED = 3
"""Fewer show no rate."""
_MOST_EXPECTED = 24
LENGTHS = 200
"""Jobs that ended last by which those of unknown length are judged."""
_GOLDEN = 0.6180339887498949
"""Multiples of it are spread evenly over [0, 1), for any number of them (a Kronecker sequence)."""


class RecentJobs:
    """The newest submissions, as they were seen last, for who sees all rounds from the first one on. One thread may
    note while others ask."""

    def __init__(self) -> None:
        self._seen: dict[str, Outlook] = {}
        self._oldest = (-math.inf, "")
        """When the oldest of them was submitted, and its id; none is older than that as long as there is room."""
        self._active: dict[str, float] = {}
        self._lengths: tuple[float, ...] = ()

    @property
    def lengths(self) -> tuple[float, ...]:
        """Seconds from the first tasks to the end of the jobs that are gone, the newest last."""
        return self._lengths

    def note(self, outlooks: Sequence[Outlook], now: float) -> None:
        """The jobs of a round; those of the round before that are not among them have ended."""
        active = {one.id: one.job.started_at for one in outlooks if one.job.started_at is not None}
        ended = [max(now - began, 0.0) for job_id, began in self._active.items() if job_id not in active]
        self._active, self._lengths = active, (*self._lengths, *ended)[-LENGTHS:]
        known, oldest = self._seen, self._oldest
        # Most rounds show only jobs that were there before, of which the remembered ones are the newest.
        seen = known | {one.id: one for one in outlooks if one.id in known or _by_time(one) > oldest}
        if len(seen) > REMEMBERED:
            newest = sorted(seen.values(), key=_by_time)[-REMEMBERED:]
            seen, self._oldest = {one.id: one for one in newest}, _by_time(newest[0])
        self._seen = seen

    def arrivals(self, now: float) -> tuple[Arrival, ...]:
        """See `later_submissions`."""
        return later_submissions(self._seen.values(), now)


def later_submissions(recent: Iterable[Outlook], now: float) -> tuple[Arrival, ...]:
    """The next submissions, in order of time: at the rate of these `recent` ones, and like each of them in turn.

    Intervals are exponential.
    """
    like = sorted(recent, key=_by_time)
    if len(like) < _LEAST_REMEMBERED:
        return ()
    span = now - like[0].job.submitted_at
    if span <= 0:
        return ()
    time, found = now, list[Arrival]()
    for number in range(_MOST_EXPECTED):
        part = (0.5 + number * _GOLDEN) % 1.0
        time -= math.log(1.0 - part) * span / len(like)
        model = like[int(((number + 1) * _GOLDEN) % 1.0 * len(like))]
        total = model.forecast.total_steps
        if total is not None and model.speeds.is_measured:
            found.append(Arrival(time, as_fresh(model, f"expected-{number}", time), max(total.mean, 1.0)))
    return tuple(found)


def _by_time(one: Outlook) -> tuple[float, str]:
    return one.job.submitted_at, one.id
