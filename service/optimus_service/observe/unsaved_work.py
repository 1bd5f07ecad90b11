"""What a script that keeps no checkpoint has trained since it last began: a stop loses all of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from optimus_service.store.records import MembershipRecord, SampleRecord

_SELDOM_SECONDS = 5.0
"""Reports of steps that are further apart than this leave out some of the work: others are as good as exact."""


class LastStep(NamedTuple):
    """The furthest step that was told of a membership."""

    at: float
    """When it was made, POSIX seconds (`made_at`): telemetry may come much later."""
    report_seconds: float = 0.0
    """Between two reports then: for so long others were made that were not told yet. 0: not known."""

    def untold_seconds(self, until: float) -> float:
        """For how long steps were made after it, until `until`, which were not told: later than the next one would have
        come nobody knows whether it went on."""
        return min(max(until - self.at, 0.0), self.report_seconds) if self.report_seconds > _SELDOM_SECONDS else 0.0


def made_at(at: float, received_at: float) -> float:
    """When a step was made that a worker told for `at`: its clock may be ahead of the service's."""
    return min(at, received_at)


def newest_made_at(newest: Sequence[SampleRecord]) -> float | None:
    """When the furthest step of the newest membership among these samples (any order) was made; None: of none."""
    if not newest:
        return None
    last = max(newest, key=lambda sample: (sample.membership_epoch, sample.step, -sample.id))
    return made_at(last.at, last.received_at)


def since_its_beginning(memberships: Sequence[MembershipRecord], began_at: int = 0) -> Sequence[MembershipRecord]:
    """Those since it last began, after the step `began_at`, oldest first. Those after its beginning let it go on where
    it was, as when its coordinator began anew."""
    begun = (number for number, each in enumerate(memberships) if each.step <= began_at and each.workers)
    first = max(begun, default=0)
    return memberships[first:]


def worked_seconds(memberships: Sequence[MembershipRecord], until: float) -> float:
    """For how long these, oldest first, have trained; the newest until `until`."""
    ends = [*(each.at - (each.pause_seconds or 0.0) for each in memberships[1:]), until]
    return math.fsum(max(end - each.at, 0.0) for each, end in zip(memberships, ends, strict=True) if each.workers)
