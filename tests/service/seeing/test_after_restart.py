"""What is told of jobs after a restart of the service: the same as before, as it is all made from the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.service.loop.loop_world import World
from tests.service.loop.test_script_sizes import SCRIPT
from tests.service.seeing.previews import preview_of
from tests.service.seeing.test_explanation import explained

from optimus_scheduler.lifecycle import CancelRequested, PauseRequested, TooManyFailures
from optimus_scheduler.model import JobState
from optimus_service.insight.jobs.progress import progress_of
from optimus_service.observe.standstills import standstills
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import Repository

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
FAMILIES: dict[str, dict[str, Any]] = {
    "script": {**SCRIPT, "workers": {"max": 1}},
    "silent": {**SCRIPT, "workers": {"max": 1}, "command": ["python", "silent.py"]},
    "task": {"task": "m:f", "workers": {"max": 2}, "servers": {"max": 1}},
}
RARE: dict[str, Any] = {**SCRIPT, "workers": {"max": 1}, "command": ["python", "rare.py"]}
"""No job like it has ended."""
BIG: dict[str, Any] = {"workers": {"min": 6, "max": 6}, "servers": {"max": 1}}
"""It does not fit beside the jobs that train."""


class Day(World):
    """A world in which some jobs tell no step."""

    def _second(self, job: JobRecord) -> None:
        if not job.name.startswith("silent"):
            super()._second(job)

    def restarted(self) -> Day:
        """In the same moment: what time changes is not meant here."""
        after = Day(self.repository, self.directory, self.cluster, self.clock)
        after.coordinators, after.looks_ahead = self.coordinators, True
        return after

    def goes_on(self, seconds: float) -> None:
        """Rounds and training take turns."""
        for _ in range(int(seconds // 5)):
            self.round()
            self.train(5)
        self.round()

    def ends(self, job_id: str, event: CancelRequested | TooManyFailures | None) -> None:
        """A job with tasks does so: well, or by `event`."""
        if event is None:
            self._finish(self.repository.jobs.get(job_id), self.coordinators[job_id])
        else:
            self.repository.jobs.advance(job_id, event, self.clock())
            self._let_go(job_id, keep=())


@pytest.fixture
def day(repository: Repository, tmp_path: Path) -> Day:
    """Jobs that ended in every way, and one in each state."""
    world = Day(repository, tmp_path)
    world.looks_ahead = True
    by_others = (None, TooManyFailures("it broke"), CancelRequested(has_tasks=False))
    for number, (seconds, by) in enumerate(zip((20, 35, 60), by_others, strict=True)):
        for name, spec in FAMILIES.items():
            world.submit(f"{name}-{number}", **spec)
        world.goes_on(seconds)
        for name in FAMILIES:
            world.ends(f"{name}-{number}", by)
    world.submit("cancelled", **BIG)
    world.repository.jobs.advance("cancelled", CancelRequested(has_tasks=False), world.clock())
    world.submit("paused", **FAMILIES["task"])
    world.goes_on(20)
    world.repository.jobs.advance("paused", PauseRequested(has_tasks=True), world.clock())
    world.goes_on(10)
    world.submit("running", **FAMILIES["task"], convergence={"max_steps": 2000})
    world.submit("silent", **FAMILIES["silent"])
    world.submit("silent-and-rare", **RARE)
    world.goes_on(15)
    world.submit("waiting", **BIG, convergence={"max_steps": 500})
    world.submit("new", **{**BIG, "task": "other:kind"})
    states = {job.id: job.state for job in world.repository.jobs.active()}
    trains, waits = JobState.RUNNING, JobState.QUEUED
    assert states == {"paused": JobState.PAUSED, "new": waits, "waiting": waits} | dict.fromkeys(
        ("running", "silent", "silent-and-rare"), trains
    )
    return world


def told(world: World) -> dict[str, Any]:
    """All that is said of all jobs, and of one that somebody thinks of."""
    world.round()
    ids = [job.id for job in world.repository.jobs.page(limit=100).items]
    decisions = world.repository.rounds.latest_decisions(ids)
    found: dict[str, Any] = {"a dry run": preview_of(world).of(world.repository.jobs.get("new").spec, {})}
    for job_id in ids:
        job, decision = world.repository.jobs.get(job_id), decisions.get(job_id)
        words = "" if decision is None else decision.message
        found[job_id] = words, progress_of(job, decision, world.clock()), explained(world, job_id)
    return found


def parts(said: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Each number and word of it, and where it stands."""
    if is_dataclass(said):
        said = {each.name: getattr(said, each.name) for each in fields(said)}
    elif names := getattr(said, "_fields", ()):
        said = dict(zip(names, said, strict=True))
    if isinstance(said, Mapping):
        for name, value in said.items():
            yield from parts(value, f"{place}.{name}")
    elif isinstance(said, Sequence) and not isinstance(said, str):
        for number, value in enumerate(said):
            yield from parts(value, f"{place}.{number}")
    else:
        yield place, said


def test_everything_is_told_as_before(day: Day) -> None:
    before, after = dict(parts(told(day))), dict(parts(told(day.restarted())))
    assert before.keys() == after.keys()
    # Instants are left out: a round stores what is new to it, so that the same stands there as of another time.
    numbers = {place: value for place, value in before.items() if isinstance(value, float)}
    words = {place: value for place, value in before.items() if isinstance(value, str | int | None) and value}
    assert {place: after[place] for place in words} == words
    assert {place: after[place] for place in numbers} == pytest.approx(numbers, rel=0.02)


@once
def test_behind_a_job_of_unknown_length_a_start_is_told_after_a_restart_too(day: Day) -> None:
    """It was told that nothing tells when that one ends."""
    known = day.restarted()
    known.round()
    assert explained(known, "waiting").expected.start_seconds is not None
    assert known.known.past.lengths == day.known.past.lengths
    assert len(day.known.past.lengths) == 3 * len(FAMILIES), "the cancelled one had not begun"
    outlooks = known.ahead._outlooks()
    coming = known.known.past.arrivals(outlooks, known.clock())
    assert {one.outlook.job.spec.family for one in coming} >= {"m:f", "/srv/train.py"}, "ended ones"


@once
def test_of_a_job_that_tells_no_step_nothing_is_to_be_heard(day: Day) -> None:
    """While others are not heard of yet, it goes on as before."""
    told(day)
    begins = day.clock() + 1.0
    found = standstills(day.repository, day.repository.jobs.active(), {}, begins + 3.0, begins)
    assert found["running"].is_unheard
    assert not {"silent", "silent-and-rare"} & found.keys()
    day.submit("counted", **FAMILIES["task"])
    day.goes_on(5)
    job = day.repository.jobs.get("counted")
    expected = explained(day, "counted").expected.finish_seconds
    assert expected is not None
    untold = replace(job, first_step=None)
    later = standstills(day.repository, [untold], {}, day.clock() + 3.0, day.clock() + 1.0)
    assert later["counted"].is_unheard, "steps tell its end, and it may have made some"
