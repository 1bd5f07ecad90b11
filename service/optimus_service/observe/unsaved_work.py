"""What a script that keeps no checkpoint has trained since it last began: a stop loses all of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optimus_service.store.records import MembershipRecord


def since_its_beginning(memberships: Sequence[MembershipRecord]) -> Sequence[MembershipRecord]:
    """Those since it last began with its first step, oldest first. Those after its beginning let it go on where it was,
    as when its coordinator began anew."""
    first = max((number for number, each in enumerate(memberships) if not each.step and each.workers), default=0)
    return memberships[first:]


def worked_seconds(memberships: Sequence[MembershipRecord], until: float) -> float:
    """For how long these, oldest first, have trained; the newest until `until`."""
    ends = [*(each.at - (each.pause_seconds or 0.0) for each in memberships[1:]), until]
    return math.fsum(max(end - each.at, 0.0) for each, end in zip(memberships, ends, strict=True) if each.workers)
