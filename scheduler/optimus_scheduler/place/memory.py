"""What a shell may keep from one round to the next, so that a round in which little has changed is sooner done.

A plan does not depend on it: it holds answers to questions that will be asked again, and what they were answered from.
Everything in it is recognised by its value: a service reads its database and its cluster anew in every round, so no
object of a snapshot is there a second time. And it holds no more than the last round was about.

Models are remembered by `optimus_scheduler.forecast.forecast.RememberingForecaster`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from optimus_scheduler.place.place import Placer


@dataclass(slots=True)
class Memory:
    """Belongs to one shell; not to be shared between threads."""

    placer: Placer = field(default_factory=Placer)
    """The tasks that jobs had on the nodes."""
