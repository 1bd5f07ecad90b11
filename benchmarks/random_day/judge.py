"""How true was what jobs were told: what was said of starts, ends and speeds beside what came. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from benchmarks.random_day.jobs import kind_of

EXACT_SECONDS = 1.5
"""Looks are a second apart: what is said is judged with so much to spare."""
SPEED_SECONDS = 12.0
"""Over so long the speed is measured that a told one is compared with."""
SPEED_RATIO = 1.7
SILENT_SECONDS = 12.0
"""A job that trains and makes no step for longer is told of it."""
ENDED = ("succeeded", "failed", "cancelled")


class Look(NamedTuple):
    """What one job was told at one moment."""

    at: float
    """POSIX seconds."""
    job: Mapping[str, Any]
    """The answer of `GET /v1/jobs/{id}`."""
    told: Mapping[str, Any] | None
    """The answer of `GET /v1/jobs/{id}/explanation`; None: it had ended."""

    @property
    def is_ended(self) -> bool:
        return self.job["state"] in ENDED


class Judged(NamedTuple):
    """What was said of an interval, beside what came."""

    look: Look
    said: Mapping[str, Any]
    came: float

    @property
    def words(self) -> str:
        said = self.said
        high = "?" if said["high"] is None else f"{said['high']:.0f}"
        return f"{said['mean']:.0f} s ({said['low'] or 0.0:.0f} to {high}) was said, {self.came:.0f} s came"

    @property
    def holds(self) -> bool:
        low, high = self.said["low"] or 0.0, self.said["high"]
        return low - EXACT_SECONDS <= self.came and (high is None or self.came <= high + EXACT_SECONDS)


class Sentence(NamedTuple):
    """One kind of sentence, without its figures and names."""

    n: int
    job: str
    example: str


@dataclass
class Day:
    """All looks, by job id."""

    looks: dict[str, list[Look]] = field(default_factory=dict)
    changed: dict[str, float] = field(default_factory=dict)
    """When each job's owner last changed, paused or resumed it, POSIX seconds: what was told before cannot know it."""

    def _judged(self, looks: Sequence[Look]) -> tuple[list[Judged], list[Judged]]:
        """What was told of its end and its start since its owner changed the job."""
        since = self.changed.get(looks[-1].job["id"], -math.inf)
        return (
            [each for each in ends(looks) if each.look.at > since],
            [each for each in starts(looks) if each.look.at > since],
        )

    def figures(self) -> dict[str, Any]:
        """Of jobs that came to their own end: parts of 80 % intervals that held, by the kind of job; and how often what
        was said beside them was wrong."""
        kinds: dict[str, list[list[Look]]] = {}
        for looks in self.looks.values():
            kinds.setdefault(kind_of(looks[-1].job["name"]), []).append(looks)
        return {
            "jobs": len(self.looks),
            "states": Counter(looks[-1].job["state"] for looks in self.looks.values()),
            "end": {
                kind: _held(each for looks in those for each in self._judged(looks)[0]) for kind, those in kinds.items()
            },
            "start": _held(each for looks in self.looks.values() for each in self._judged(looks)[1]),
            "wrong_speeds": sum(len(wrong_speeds(looks)) for looks in self.looks.values()),
            "silent_untold": sum(len(silent(looks)) for looks in self.looks.values()),
            "unfinished_successes": sum(
                looks[-1].job["state"] == "succeeded" and looks[-1].job["progress"] != 1.0
                for looks in self.looks.values()
            ),
        }

    def wrong(self) -> list[str]:
        """A line for each look with an interval that did not hold, a wrong speed or an untold standstill."""
        found: list[tuple[Look, str]] = []
        for looks in self.looks.values():
            for what, judged in zip(("end", "start"), self._judged(looks), strict=True):
                found += [(each.look, f"{what} {each.words}") for each in judged if not each.holds]
            found += [(each, f"{each.job['steps_per_second']:.2f} steps/s") for each in wrong_speeds(looks)]
            found += [(each, "no step, untold") for each in silent(looks)]
        return [
            f"{datetime.fromtimestamp(look.at, UTC):%H:%M:%S} {look.job['id']} {look.job['state']} "
            f"step {look.job['step']}: {what}"
            for look, what in found
        ]

    def sentences(self) -> list[Sentence]:
        """Every kind of sentence, in the order in which they came."""
        found: dict[str, Sentence] = {}
        for looks in self.looks.values():
            for look in looks:
                for sentence in _sentences(look):
                    kind = _without_figures(sentence)
                    n, job, example = found.get(kind, Sentence(0, look.job["name"], sentence))
                    found[kind] = Sentence(n + 1, job, example)
        return list(found.values())


def ends(looks: Sequence[Look]) -> Iterator[Judged]:
    """What was said of the end of a job that succeeded."""
    last = looks[-1].job
    if last["state"] != "succeeded":
        return
    ended_at = _seconds(last["finished_at"])
    for look in looks:
        if not look.is_ended and look.job["remaining_seconds"] is not None:
            yield Judged(look, look.job["remaining_seconds"], ended_at - look.at)


def starts(looks: Sequence[Look]) -> Iterator[Judged]:
    """What was said of the start of a job that started."""
    last = looks[-1].job
    if last["started_at"] is None:
        return
    started_at = _seconds(last["started_at"])
    for look in looks:
        said = (look.job["expected"] or {}).get("start_seconds")
        if look.at < started_at and said is not None:
            yield Judged(look, said, started_at - look.at)


def wrong_speeds(looks: Sequence[Look]) -> list[Look]:
    """Looks at a job that trained steadily with a told speed far from the one that its steps show."""
    found = []
    for index, look in enumerate(looks):
        told = look.job["steps_per_second"]
        recent = (each for each in looks[: index + 1] if each.at >= look.at - SPEED_SECONDS and each.job["step"] > 0)
        before = [each for each in recent if _is_alike(each, look)]
        if not told or not before or look.at - before[0].at < SPEED_SECONDS / 2:
            continue
        measured = (look.job["step"] - before[0].job["step"]) / (look.at - before[0].at)
        if not 1 / SPEED_RATIO <= (measured + 0.05) / (told + 0.05) <= SPEED_RATIO:
            found.append(look)
    return found


def silent(looks: Sequence[Look]) -> list[Look]:
    """Looks at a job that makes no step for long and is not told so; scripts that never print any are left out."""
    if looks[-1].job["step"] == 0:
        return []
    found: list[Look] = []
    since: Look | None = None
    for look in looks:
        trains = look.job["state"] == "running" and look.job["wanted"]["workers"] > 0
        if since is None or not trains or not _is_alike(since, look) or since.job["step"] != look.job["step"]:
            since = look if trains else None
        elif look.at - since.at > SILENT_SECONDS and not look.job["standstill"]:
            found.append(look)
    return found


def _is_alike(one: Look, other: Look) -> bool:
    """Whether the job had the same membership and trained at both."""
    keys = ("state", "attempt", "membership_epoch")
    return one.job["state"] == "running" and all(one.job[key] == other.job[key] for key in keys)


def _held(judged: Iterable[Judged]) -> dict[str, float | int]:
    those = list(judged)
    return {"told": len(those)} | ({"held": sum(each.holds for each in those) / len(those)} if those else {})


def _sentences(look: Look) -> list[str]:
    if look.told is None:
        return []
    return [*look.told["sentences"], f"To get more: {look.told['what_would_change_it']}"]


def _without_figures(sentence: str) -> str:
    return re.sub(r"\d[\d.,:]*", "#", re.sub(r"\b[\w-]+-\w{5}\b", "JOB", sentence))


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
