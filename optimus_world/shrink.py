"""Finds a short history that still breaks the same invariant: faults and acts are dropped, and the world is run
again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from optimus_world.faults import Fault
from optimus_world.users import Act
from optimus_world.world import Outcome, Script, run, without

_NEAR_SECONDS = 300.0
"""The end of the accidents is looked for as exactly as that."""
_LATER_SECONDS = 1800.0
"""An invariant that breaks so much later without a fault is given up."""


def shrunk(failed: Outcome, seconds: float) -> Outcome:
    """The shortest that was found in so many seconds of this machine.

    Halves of what is left are dropped, then quarters, and so on (Zeller's delta debugging). What comes after the
    violation is dropped first: it cannot matter. Then the accidents end as early as they may.
    """
    give_up_at = time.monotonic() + seconds
    best = _dropped(failed, give_up_at)
    return _sooner(best, give_up_at)


def _sooner(failed: Outcome, give_up_at: float) -> Outcome:
    """What breaks only after the accidents is looked for with an earlier end of them, by halves."""
    assert failed.violation is not None
    best, end = failed, failed.script.storm_seconds
    begin = max([0.0, *(each.at for each in _all(failed.script))])
    if failed.violation.at < end:
        return failed  # it ends right there
    while end - begin > _NEAR_SECONDS and time.monotonic() < give_up_at:
        middle = (begin + end) / 2.0
        found = _same(failed, run(replace(best.script, calm_after=round(middle / 3600.0, 3))))
        best, begin, end = (best, middle, end) if found is None else (found, begin, middle)
    return best


def _dropped(failed: Outcome, give_up_at: float) -> Outcome:
    assert failed.violation is not None
    best, moment = failed, failed.violation.at
    late = [each for each in _all(best.script) if each.at > moment]
    best = _tried(best, late) or best
    size = max(len(_all(best.script)) // 2, 1)
    while size >= 1:
        dropped = False
        for first in range(0, len(_all(best.script)), size):
            if time.monotonic() > give_up_at:
                return best
            found = _tried(best, _all(best.script)[first : first + size])
            if found is not None:
                best, dropped = found, True
        if not dropped:
            size //= 2
    return best


def _all(script: Script) -> list[Fault | Act]:
    return [*script.faults, *script.acts]


def _tried(failed: Outcome, dropped: Sequence[Fault | Act]) -> Outcome | None:
    """What comes of the world without these, if it breaks the same invariant."""
    if not dropped:
        return None
    assert failed.violation is not None
    script, moment = without(failed.script, dropped), failed.violation.at
    # What breaks in the storm breaks at about the same time, or not by the same cause: the rest is not simulated.
    return _same(failed, run(script, moment + _LATER_SECONDS if moment < script.storm_seconds else None))


def _same(failed: Outcome, found: Outcome) -> Outcome | None:
    assert failed.violation is not None
    same = found.violation is not None and found.violation.invariant == failed.violation.invariant
    return found if same else None
