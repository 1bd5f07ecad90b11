"""Several deadlines at once, on a cluster full of jobs that have just begun: who gives way to whom, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import GIB, NOW, a_job, a_snapshot, a_spec

from optimus_scheduler.ahead.queue import Queue
from optimus_scheduler.ahead.trajectory import Rules, Trajectory
from optimus_scheduler.allocate.deadline_budget import most_by_alike_runs
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import forecast, forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    Decision,
    EndedJob,
    Job,
    Node,
    Plan,
    Reason,
    Resources,
    SpeedSample,
)
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

SETTINGS = Settings()
YOUNG = SETTINGS.least_run_seconds
PLAIN = ConvergenceRule(max_steps=None)


def script(name: str, seconds: int, *, ran: float | None = None, due: float | None = None, told: bool = True) -> Job:
    """A script of one worker that keeps no checkpoint, takes so many seconds more and makes a step in each.

    `ran`: seconds since it got its tasks; None: it waits. `due`: seconds until its deadline. Not `told`: it has told
    nothing by itself yet, and two runs with its arguments took as long.
    """
    made = 0 if ran is None or not told else int(ran)
    rule = ConvergenceRule(max_steps=made + seconds) if told else PLAIN
    spec = a_spec(rule=rule, minimum=(1, 0), maximum=(1, 0))
    spec = replace(
        spec,
        architecture=Architecture.SCRIPT,
        server=replace(spec.server, maximum=0),
        arguments=(str(seconds),),
        deadline_at=None if due is None else NOW + due,
    )
    job = a_job(name, has=(0, 0) if ran is None else (1, 0), spec=spec, submitted_at=NOW - (ran or 0.0) - 1.0)
    if told:
        job = replace(job, speed_samples=(SpeedSample(1, 0, 1.0, n_steps=20, at=NOW - 1),) * 3, step=made)
    else:
        job = replace(job, similar=(_ended(seconds, "one"), _ended(seconds, "two")))
    if ran is None:
        return job
    return replace(job, started_at=NOW - ran, allocated_at=NOW - ran, unsaved_seconds=float(made))


def _ended(seconds: int, name: str) -> EndedJob:
    """A run like it."""
    return EndedJob(
        name,
        "t",
        "default",
        None,
        speed_samples=(SpeedSample(1, 0, 1.0, n_steps=20, at=NOW - 500),),
        architecture=Architecture.SCRIPT,
        global_batch_size=64,
        total_steps=seconds,
        arguments=(str(seconds),),
    )


def slots(number: int) -> tuple[Node, ...]:
    return (Node("node-0", Resources(float(number), 512 * GIB)),)


def planned(jobs: list[Job], number: int = 4, now: float = NOW, policy: str = "optimus") -> Plan:
    return plan(replace(a_snapshot(jobs, slots(number)), now=now), policy_named(policy))


def decided(jobs: list[Job], number: int = 4) -> dict[str, Decision]:
    return {each.job_id: each for each in planned(jobs, number).decisions}


def trains(jobs: list[Job], number: int = 4, now: float = NOW, policy: str = "optimus") -> set[str]:
    return {each.job_id for each in planned(jobs, number, now, policy).decisions if not each.allocation.is_empty}


# --- one that runs, and one that waits -------------------------------------------------------------------------------


@pytest.mark.parametrize("promised", [False, True])
def test_a_deadline_that_can_wait_does_not_pause_one_that_cannot_which_has_told_nothing_yet(promised: bool) -> None:
    """Nothing is known of either but how long runs like it took; what was promised is in no danger."""
    first, second, other = script("first", 30, ran=5.0, due=90.0), script("second", 30, ran=4.0, due=90.0), "other"
    sooner = script("sooner", 30, ran=0.6, due=39.0, told=False)
    later = replace(script("later", 30, due=198.0, told=False), promised_at=NOW - 0.5 if promised else None)
    jobs = [first, second, script(other, 40, ran=25.0), sooner, later]
    assert trains(jobs) == {"first", "second", "other", "sooner"}


def test_a_promise_that_cannot_wait_comes_before_a_deadline_that_is_not_promised() -> None:
    sooner = script("sooner", 30, ran=0.6, due=90.0, told=False)
    later = replace(script("later", 100, due=104.0, told=False), promised_at=NOW - 0.5)
    assert trains([sooner, later], 1) == {"later"}


def test_that_another_deadline_runs_does_not_make_one_pause_a_script_that_it_can_wait_for() -> None:
    """The same with and without the one that runs."""
    runs = script("runs", 30, ran=20.0, due=200.0)
    scripts = [script(f"old-{number}", 54 + number, ran=36.0) for number in range(3)]
    waits = script("waits", 30, due=200.0)
    assert trains([runs, *scripts, waits]) == {"runs", "old-0", "old-1", "old-2"}
    assert trains([*scripts, waits], 3) == {"old-0", "old-1", "old-2"}


def test_a_deadline_waits_for_the_end_of_another_job_with_a_deadline() -> None:
    """What runs with a deadline ends, too: its room comes in time."""
    runs = script("runs", 30, ran=400.0, due=200.0)
    jobs = [runs, script("old", 3000, ran=400.0), script("waits", 30, due=140.0)]
    assert trains(jobs, 2, policy="fifo") == {"runs", "old"}, "a policy that pauses nobody by itself"


def test_one_that_cannot_wait_does_not_make_another_pause_a_job_that_it_can_wait_for() -> None:
    young = [script(f"young-{number}", 2000, ran=10.0 + number) for number in range(3)]
    urgent, patient = script("urgent", 60, due=70.0), script("patient", 60, due=1000.0)
    found = trains([*young, urgent, patient], 3)
    assert "urgent" in found
    assert "patient" not in found
    assert len(found) == 3, "one gave way, not two"


def test_a_wait_that_would_cost_the_deadline_is_no_wait() -> None:
    """By then the script has made more than is left of it, and would not be paused; unless it ends soon enough."""
    assert trains([script("young", 200, ran=100.0), script("due", 60, due=200.0)], 1) == {"due"}
    assert trains([script("young", 90, ran=10.0), script("due", 60, due=200.0)], 1) == {"young"}
    assert trains([script("young", 2000, ran=10.0), script("due", 60, due=200.0)], 1) == {"young"}


# --- how long --------------------------------------------------------------------------------------------------------


def test_a_round_is_due_when_one_that_waits_has_to_begin_and_pauses_others_then() -> None:
    young, due = script("young", 2000, ran=10.0), script("due", 60, due=200.0)
    first = planned([young, due], 1)
    assert first.again_at is not None
    assert NOW + 60.0 < first.again_at < NOW + 140.0, "60 s and a margin are left, and the time that tasks may take"
    told = {each.job_id: each for each in first.decisions}["due"]
    assert "It can wait until" in told.message
    assert told.reason is not Reason.DEADLINE_CANNOT_BE_MET

    def later(seconds: float) -> set[str]:
        passed = replace(young, unsaved_seconds=10.0 + seconds, step=int(10 + seconds))
        return trains([passed, due], 1, NOW + seconds)

    assert later(first.again_at - NOW - 5.0) == {"young"}
    assert later(first.again_at - NOW) == {"due"}
    assert planned([young], 1).again_at is None


def test_a_length_that_nothing_tells_is_told_as_an_assumption() -> None:
    """The time that it can wait was told as if it were known how long it trains."""
    young, known = script("young", 90, ran=10.0), script("due", 60, due=1200.0)
    by_runs = script("due", 60, due=1200.0, told=False)
    assumed = "That is if it takes 12 min, an assumption: nothing tells how long it takes."
    for job, said in ((known, False), (by_runs, False), (replace(by_runs, similar=()), True)):
        message = decided([young, job], 1)["due"].message
        assert "It can wait until" in message
        assert (assumed in message) is said


def test_the_look_ahead_starts_it_in_that_round() -> None:
    young, due = script("young", 2000, ran=10.0), script("due", 60, due=200.0)
    jobs = [due, young]
    again_at = planned(jobs, 1).again_at
    outlooks = forecast_all(jobs, NOW, SETTINGS)
    queue = Queue(NOW, slots(1), outlooks, {job.id: job.allocation for job in jobs}, (), ())
    trajectory = Trajectory(queue, [60.0, 2000.0], Rules(policy_named("optimus"), SETTINGS, 64, 20, 0))
    trajectory.run()
    assert again_at is not None
    assert trajectory.start_of(0) == pytest.approx(again_at, abs=15.0), "instants are some seconds apart"


# --- any number, at random -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """A cluster whose slots are all taken, and jobs with deadlines that wait."""

    running: list[Job]
    waiting: list[Job]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    running = []
    for number in range(draw(st.integers(1, 5))):
        ran, left = draw(st.integers(1, 600)), draw(st.integers(5, 900))
        told = draw(st.booleans()) or ran > 5
        due = left + draw(st.integers(2, 900)) if draw(st.booleans()) else None
        one = script(f"run-{number}", left, ran=float(ran), due=due, told=told)
        running.append(one if draw(st.booleans()) else replace(one, unsaved_seconds=0.0))
    waiting = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(5, 300))
        due = length + draw(st.integers(1, 900))
        waiting.append(script(f"new-{number}", length, due=due, told=draw(st.booleans())))
    return World(running, waiting)


def spare(outlook: Outlook) -> float:
    """Seconds that a waiting job has more than it needs, with the margin of deadlines."""
    job, needed = outlook.job, most_by_alike_runs(outlook)
    if outlook.forecast.remaining_steps is not None or needed is None:
        needed = SETTINGS.deadline_margin * outlook.remaining_seconds(outlook.minimum)
    assert job.spec.deadline_at is not None
    return job.spec.deadline_at - NOW - needed - outlook.stop_seconds - SETTINGS.drain_seconds


def could_still_be_paused(victim: Outlook, after: float) -> bool:
    """Whether it does not come to lose more than it still takes, or has ended by then."""
    made, left = victim.job.unsaved_seconds, victim.remaining_seconds(victim.present)
    return made <= 0 or made + after <= left - after or left <= after


def begins_by(outlook: Outlook, is_alone: bool) -> float:
    """Seconds from now, at face value; of one that takes more than half of the cluster, when it has to end."""
    assert outlook.job.spec.deadline_at is not None
    left = outlook.remaining_seconds(outlook.minimum) if outlook.has_tasks else float(outlook.job.spec.arguments[0])
    return outlook.job.spec.deadline_at - NOW - (0.0 if is_alone else left)


@hypothesis_settings(max_examples=100, deadline=None)
@given(world=worlds())
def test_no_deadline_that_can_wait_pauses_a_young_job_or_one_that_has_to_begin_as_soon(world: World) -> None:
    jobs = [*world.running, *world.waiting]
    found = decided(jobs, len(world.running))
    seen = {job.id: forecast(job, NOW, SETTINGS) for job in jobs}
    paused = [seen[job.id] for job in world.running if found[job.id].allocation.is_empty]
    started = [seen[job.id] for job in world.waiting if not found[job.id].allocation.is_empty]
    young = [one for one in paused if one.allocated_seconds < YOUNG and one.job.spec.deadline_at is None]

    def has_to_pause(one: Outlook, victim: Outlook) -> bool:
        after = spare(one)
        return after <= 1.0 or not could_still_be_paused(victim, after)

    for victim in young:
        assert any(has_to_pause(one, victim) for one in started)
    assert len(young) <= sum(any(has_to_pause(one, victim) for victim in young) for one in started)

    for victim in paused:
        if victim.job.spec.deadline_at is None or "gives it no room now" in found[victim.id].message:
            continue  # more than the cluster can do: as many others as possible are in time
        if found[victim.id].reason is Reason.DEADLINE_CANNOT_BE_MET or "probably be missed" in found[victim.id].message:
            continue
        is_alone = len(world.running) == 1
        soonest = begins_by(victim, is_alone)
        assert any(begins_by(one, is_alone) <= soonest - YOUNG + 5.0 for one in started), found[victim.id].message
