"""What sizes are chosen for: one goal, or several with a part each. A value; `allocate.optimus.goals` has the rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self


class UnknownObjective(ValueError):
    """The words name no objective."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The part of each goal; together 1."""

    jct: float = 0.0
    """A small mean completion time."""
    makespan: float = 0.0
    """An early end of the last job."""
    deadlines: float = 0.0
    """Many deadlines met, whatever becomes of jobs without one."""
    fairness: float = 0.0
    """No job much later than with an equal part of the cluster for itself."""

    @classmethod
    def of(cls, words: str) -> Self:
        """Of `makespan` or, with the part of each, `jct:0.7,makespan:0.3`.

        Raises:
            UnknownObjective: a goal is unknown or named twice, or a part is not above 0; the message says all goals.
        """
        found: dict[str, float] = {}
        for word in words.split(","):
            name, _, text = (each.strip() for each in word.partition(":"))
            part = _number(text) if text else 1.0
            if name not in GOALS or name in found or not 0.0 < part < math.inf:
                raise UnknownObjective(
                    f"unknown objective {words!r}: choose one of {', '.join(GOALS)}, "
                    "or several, each once, with a part above 0: jct:0.7,makespan:0.3"
                )
            found[name] = part
        total = sum(found.values())
        return cls(**{name: part / total for name, part in found.items()})

    @property
    def parts(self) -> dict[str, float]:
        """By goal, those above 0."""
        return {name: part for name in GOALS if (part := getattr(self, name)) > 0.0}

    def __str__(self) -> str:
        only_one = len(self.parts) == 1
        return ",".join(name if only_one else f"{name}:{part:g}" for name, part in self.parts.items())


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


GOALS = tuple(goal.name for goal in fields(Objective))
"""By name."""

MEAN_JCT = Objective(jct=1.0)
"""The default."""
