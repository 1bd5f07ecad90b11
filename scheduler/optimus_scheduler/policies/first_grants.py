"""Who may run at all: each job's minimum, running jobs first, then the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimus_scheduler.outlook import Outlook
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import Resources


@dataclass(frozen=True, slots=True)
class FirstGrants:
    """The outcome of the first grants."""

    admitted: tuple[Outlook, ...]
    """Jobs whose minimum fits, in the order in which they were taken."""
    waiting: tuple[Outlook, ...]
    room: Resources
    """What the minima of the admitted leave free."""


def first_grants(outlooks: Sequence[Outlook], capacity: Resources, settings: Settings) -> FirstGrants:
    """Give each job its minimum as long as that fits.

    Running jobs come first: taking everything from a job costs its owner more than waiting does. Then comes the job
    with the highest response ratio, 1 + waited / remaining: the shortest first, yet waiting outweighs any length in
    the end. Smaller jobs may pass one that does not fit until that one has waited for `patience_seconds`.

    References: Brinch Hansen, "An analysis of response ratio scheduling", 1971. Optimus reference, section 3.6.
    """
    admitted, waiting, room = [], [], capacity
    blocked = False
    for outlook in sorted(outlooks, key=queue_order):
        demand = outlook.demand(outlook.minimum)
        if demand.fits_in(room) and not (blocked and not outlook.is_held):
            admitted.append(outlook)
            room = room - demand
            continue
        waiting.append(outlook)
        blocked |= outlook.waited_seconds > settings.patience_seconds and demand.fits_in(capacity)
    return FirstGrants(tuple(admitted), tuple(waiting), room)


def queue_order(outlook: Outlook) -> tuple[bool, float, float, float, str]:
    """Sorts jobs into the order of first grants."""
    remaining = max(outlook.remaining_seconds(outlook.minimum), 1.0)
    response_ratio = 1.0 + outlook.job.spec.priority * outlook.waited_seconds / remaining
    return (not outlook.is_held, -response_ratio, remaining, outlook.job.submitted_at, outlook.id)
