"""A job that becomes slower or faster: when a round comes for it, and the time left that is told then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from tests.scheduler.builders import NOW
from tests.service.loop.loop_world import VirtualClock, World
from tests.service.loop.test_loop_thread import KNOWN
from tests.service.store.store_builders import add_samples

from optimus_contract.telemetry import Sample
from optimus_scheduler.lifecycle import Outcome, ResultReported
from optimus_scheduler.model import NOTHING, Allocation, Decision, Interval, Plan, Reason
from optimus_service.insight.jobs.progress import progress_of
from optimus_service.loop.changed_paces import ExpectedPace, ExpectedPaces, expected_paces
from optimus_service.loop.leader import Leadership
from optimus_service.loop.loop import LoopTimes, SchedulingLoop
from optimus_service.metrics.registry import Metrics
from optimus_service.store.repository import LEADER_LEASE, Repository

SIZE = Allocation(1, 0)
TOLD = KNOWN._replace(seconds_per_step=Interval(0.6, 0.48, 0.75), steps_per_second=2.0)
"""Steps of 0.5 s, a sixth of the time goes into evaluations."""


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Decision("a", SIZE, SIZE, Reason.UNCHANGED, "", TOLD), ExpectedPace(0.4, 0.75)),
        (Decision("a", SIZE, NOTHING, Reason.UNCHANGED, "", TOLD), None),
        (Decision("a", NOTHING, NOTHING, Reason.UNCHANGED, "", TOLD), None),
        (Decision("a", SIZE, SIZE, Reason.UNCHANGED, "", TOLD._replace(seconds_per_step=None)), None),
        (Decision("a", SIZE, SIZE, Reason.UNCHANGED, "", TOLD._replace(converged=True)), None),
    ],
    ids=["steady", "of another size", "waits", "not measured", "ends"],
)
def test_paces_are_expected_of_jobs_that_train_as_they_were_measured(
    decision: Decision, expected: ExpectedPace | None
) -> None:
    """With all that is between steps where it is slow, without where it is fast."""
    found = expected_paces(Plan((decision,), ()))
    assert found == ({} if expected is None else {"a": expected})


def surprises(seconds: Sequence[float]) -> list[int]:
    """Numbers of the steps, from 1, at which a job whose steps take so long is said to have another pace."""
    paces = ExpectedPaces()
    paces.put({"a": ExpectedPace(0.4, 0.75)})
    assert not paces.is_left("a", 0, NOW)
    assert not paces.is_left("other", 1, NOW)
    moments = accumulate(seconds, initial=NOW)
    next(moments)
    return [step for step, at in enumerate(moments, 1) if paces.is_left("a", step, at)]


@pytest.mark.parametrize(("seconds", "first"), [(2.0, 6), (0.1, 101), (0.9, 12), (30.0, 3)])
def test_two_windows_in_a_row_beside_what_is_expected_are_a_change(seconds: float, first: int) -> None:
    """Each takes 5 s or one step; slower ones have three reports at least."""
    assert min(surprises([0.5] * 50 + [seconds] * 200)) - 50 in (first - 1, first)


@pytest.mark.parametrize(
    "seconds",
    [
        [0.5] * 300,
        [0.42, 0.7] * 150,
        ([0.5] * 29 + [15.0]) * 10,
        ([0.5] * 29 + [15.0, 8.0]) * 10,
        [*[0.5] * 20, *[2.0] * 3, *[0.1] * 50, *[0.5] * 40],
        [*[0.5] * 20, 100.0, *[0.5] * 40],
    ],
    ids=["steady", "noisy", "evaluations", "and checkpoints after them", "slow, then fast", "a standstill"],
)
def test_noise_and_pauses_are_none(seconds: list[float]) -> None:
    assert surprises(seconds) == []


def test_steps_that_are_made_again_are_counted_from_the_checkpoint_on() -> None:
    paces = ExpectedPaces()
    paces.put({"a": ExpectedPace(0.4, 0.75)})
    told = [(10, 0.0), (20, 5.0), (25, 15.0), (8, 40.0), (18, 45.0), (25, 55.0), (18, 55.0)]
    assert not any(paces.is_left("a", step, NOW + at) for step, at in told)


def test_a_new_round_begins_anew_with_the_newest_report() -> None:
    paces = ExpectedPaces()

    def told(*steps: int) -> list[bool]:
        """Each takes 2 s."""
        return [paces.is_left("a", step, NOW + 2.0 * step) for step in steps]

    paces.put({"a": ExpectedPace(0.4, 0.75)})
    assert told(0, 2, 3, 5, 6) == [False] * 4 + [True]
    paces.put({"a": ExpectedPace(1.6, 3.0)})
    assert told(9, 12) == [False, False]
    paces.put({"a": ExpectedPace(0.4, 0.75)})
    assert told(15, 16, 18, 19) == [False, False, True, True]
    paces.put({})
    assert told(22) == [False]


# --- what is told ----------------------------------------------------------------------------------------------------


@dataclass
class Script:
    """A script whose steps take `seconds`, in a service whose rounds are its loop's. A condition that the loop waits
    at: while it waits, time passes and the script trains."""

    world: World
    seconds: Sequence[float]
    told_every: int = 1
    job_id: str = "job-1"
    told: list[tuple[float, float, float, float]] = field(default_factory=list)
    """When, and the seconds left and their bounds that were told then."""
    on_step: Callable[[str, int, float], None] = lambda *_: None
    is_over: Callable[[], None] = lambda: None
    step: int = 0
    reported_at: float = 0.0
    ends: Sequence[float] = ()
    """When each step ends."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *error: object) -> None: ...

    def notify_all(self) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        clock, until = self.world.clock, self.world.clock.now + (timeout or 0.0)
        self.begin()
        while self.step < len(self.seconds) and not predicate():
            at = self.ends[min(self.step + self.told_every, len(self.seconds)) - 1]
            if at > until:
                clock.now = until
                return predicate()
            clock.now = max(at, clock.now)
            self.report(at)
        if self.step >= len(self.seconds):
            self.is_over()
        return predicate()

    def begin(self) -> None:
        if not self.reported_at:
            self.world.train(0)
            self.reported_at = self.world.clock.now
            self.ends = [*accumulate(self.seconds, initial=self.reported_at)][1:]

    def report(self, at: float) -> None:
        state = self.world.coordinators[self.job_id]
        n_steps = min(self.told_every, len(self.seconds) - self.step)
        self.step += n_steps
        told = Sample(
            membership_epoch=state.epoch,
            rank=0,
            sequence=self.step,
            workers=1,
            servers=0,
            at=at,
            step=self.step,
            n_steps=n_steps,
            data_epoch=0.0,
            n_examples=0,
            seconds=at - self.reported_at,
        )
        self.reported_at = at
        add_samples(self.world.repository, self.job_id, [told], at)
        self.on_step(self.job_id, self.step, at)
        job = self.world.repository.jobs.get(self.job_id)
        decision = self.world.repository.rounds.latest_decisions([self.job_id])[self.job_id]
        left = progress_of(job, decision, at).remaining_seconds
        if left is not None and left.low is not None and left.high is not None:
            self.told.append((at, left.mean, left.low, left.high))


def told_of(
    repository: Repository,
    directory: Path,
    seconds: Sequence[float],
    told_every: int = 1,
    job_id: str = "job-1",
    clock: VirtualClock | None = None,
) -> Script:
    """What was told, every step, of a script whose steps take so long, with a round each minute."""
    world = World(repository, directory, clock=clock)
    script: dict[str, Any] = {"workers": {"max": 1}, "servers": {"min": 0, "max": 0}, "task": None}
    script |= {"architecture": "script", "command": ["python", "train.py"], "working_directory": "/srv"}
    world.submit(job_id, **script, convergence={"max_steps": len(seconds)})
    found = Script(world, seconds, told_every, job_id)
    repository.leases.release(LEADER_LEASE, f"world-{id(world)}")
    leadership = Leadership(repository, 10.0, world.clock)
    times = LoopTimes(60.0, 10.0, 0.0, 10.0)
    loop = SchedulingLoop(world.rounds, leadership, world.cluster, Metrics(), times, world.clock, world.clock, found)
    found.on_step, found.is_over = loop.trained, lambda: loop.stop(0.0)
    loop.run()
    return found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("before", "after", "told_every"),
    [(0.5, 2.0, 1), (0.5, 1.0, 1), (0.1, 0.5, 5), (0.05, 0.3, 5), (2.0, 0.5, 1), (0.5, 0.1, 5)],
)
@pytest.mark.parametrize("phase", [0.0, 21.0, 45.0])
def test_the_time_left_of_a_script_that_changes_its_speed_is_right_within_half_a_minute(
    repository: Repository, tmp_path: Path, before: float, after: float, told_every: int, phase: float
) -> None:
    """Wherever it is between two rounds."""
    first = round((70.0 + phase) / before)
    seconds = [before] * first + [after] * round(75.0 / after)
    script = told_of(repository, tmp_path, seconds, told_every)
    changed, end = script.ends[first - 1], script.ends[-1]
    late = [(at - changed, end - at, *told) for at, *told in script.told if changed + 27.0 <= at < end - 5.0]
    assert late
    for since, left, mean, low, high in late:
        assert mean == pytest.approx(left, rel=0.25), f"{since} s after the change"
        assert low <= left <= high, f"{since} s after the change"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_evaluations_ask_for_no_rounds_and_leave_the_time_left_as_it_is(repository: Repository, tmp_path: Path) -> None:
    seconds = ([0.5] * 39 + [12.0]) * 8
    script = told_of(repository, tmp_path, seconds)
    triggers = [record.trigger for record in script.world.repository.rounds.page().items]
    assert not [each for each in triggers if "changed pace" in each]


def ended(script: Script) -> None:
    """What the service knows of the script after its end."""
    world = script.world
    world.fence = world.take_lease()
    result = ResultReported(Outcome.SUCCEEDED, script.step, None, {})
    world.repository.jobs.advance(script.job_id, result, world.clock())
    world.round()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("before", "after", "told_every"), [(0.1, 0.35, 5), (0.5, 2.0, 1), (0.4, 0.1, 5), (2.0, 5.0, 1)]
)
def test_a_script_whose_earlier_runs_changed_their_pace_is_told_its_time_left_before_it_does(
    repository: Repository, tmp_path: Path, before: float, after: float, told_every: int
) -> None:
    """From its first measured speed on, through the change, and between all rounds."""
    seconds = [before] * round(40.0 / before) + [after] * round(60.0 / after)
    clock, world = VirtualClock(), World(repository, tmp_path)
    repository.leases.release(LEADER_LEASE, f"world-{id(world)}")
    for number in range(2):
        ended(told_of(repository, tmp_path, seconds, told_every, f"job-{number}", clock))
        clock.now += 10.0
    script = told_of(repository, tmp_path, seconds, told_every, "job-2", clock)
    began, end = script.ends[0], script.ends[-1]
    told = [(at - began, end - at, *told) for at, *told in script.told if began + 7.0 <= at < end - 5.0]
    assert len(told) > 10
    for since, left, mean, low, high in told:
        assert low <= left <= high, f"{since} s after its start {mean} ({low} to {high}) s of {left} were told"
        assert mean == pytest.approx(left, rel=0.3), f"{since} s after its start"
