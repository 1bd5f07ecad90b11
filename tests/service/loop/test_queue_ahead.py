"""Beside the rounds the queue is simulated forward: what jobs are told of their start and end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.scheduler.builders import ALL_SIZES, NOW, a_spec, law, samples
from tests.scheduler.test_alike_runs import GIB, ended, job
from tests.service.clusters.cluster_harness import wait_until
from tests.service.loop.loop_world import World

from optimus_contract import answers
from optimus_scheduler.ahead.corrected_times import corrected_times
from optimus_scheduler.ahead.queue import Hindrances, Queue
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.lifecycle import CancelRequested, PauseRequested, ResumeRequested
from optimus_scheduler.model import Allocation, ConvergenceRule, Interval, Node, Resources
from optimus_scheduler.settings import Settings
from optimus_service.insight.jobs.progress import expected_times, progress_of
from optimus_service.loop.queue_ahead import LOOK_AHEAD_FAILED, THREAD, times_of
from optimus_service.metrics.registry import Metrics
from optimus_service.observe.spec import promised_at
from optimus_service.observe.standstills import silent_jobs
from optimus_service.store.jobs.shown_predictions import DEADLINE_PROMISED
from optimus_service.store.records import ExpectedTimesRecord
from optimus_service.store.repository import LEADER_LEASE

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
BIG: dict[str, Any] = {"workers": {"min": 6, "max": 6}, "servers": {"max": 1}}
"""No two of them fit."""


def times(world: World, job_id: str) -> answers.ExpectedTimes | None:
    decision = world.repository.rounds.latest_decisions([job_id]).get(job_id)
    return progress_of(world.repository.jobs.get(job_id), decision, world.clock()).expected


def stored(world: World, job_id: str) -> ExpectedTimesRecord:
    found = world.repository.rounds.latest_decisions([job_id])[job_id].expected
    assert found is not None
    return found


def end_of(world: World, job_id: str) -> float:
    found = stored(world, job_id).end
    assert found is not None
    return found.mean


def metric(metrics: Metrics, name: str) -> float:
    lines = metrics.text().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture
def queue(world: World) -> World:
    """A job that trains, and two that wait; the task's speed is known."""
    world.submit("teacher", **BIG)
    world.live_until("it has ended", lambda: world.state("teacher").is_final, rounds=40)
    world.looks_ahead = True
    for job_id in ("first", "second", "third"):
        world.submit(job_id, **BIG)
        world.round()
    world.live_until("the first trains", lambda: world.repository.jobs.get("first").step > 0, seconds=2)
    world.round()
    assert [world.state(job_id) for job_id in ("first", "second", "third")] == ["running", "queued", "queued"]
    return world


@pytest.mark.parametrize("n_runs", [0, 3])
def test_with_its_first_steps_a_job_keeps_the_end_of_runs_like_it(n_runs: int) -> None:
    """Its age alone says next to nothing: 4 steps left after the first 4."""
    runs = [ended(f"run-{n}", 12.0) for n in range(n_runs)]
    spec, speeds = a_spec(rule=ConvergenceRule(), maximum=(2, 2)), samples(law(), ALL_SIZES)
    trains = job(*runs, step=4, spec=spec, speed_samples=speeds, allocation=Allocation(1, 1), started_at=NOW - 9.0)
    outlook = forecast(trains, NOW, Settings())
    assert outlook.forecast.remaining_steps is not None
    assert (outlook.forecast.remaining_steps.mean, outlook.forecast.rule) == (4.0, None)
    nodes = (Node("node-0", Resources(32.0, 256 * GIB)),)
    queue = Queue(NOW, nodes, [outlook], {"new": trains.allocation})
    (times,) = times_of(queue, corrected_times(queue, policy_named("optimus"), Settings()), NOW + 30.0)
    if not runs:
        assert (times.end, times.steps_left) == (None, None)
    else:
        assert times.end is not None
        assert times.steps_left == pytest.approx(116.0)
        assert times.end.mean > NOW + 40.0 / outlook.speeds.at(Allocation(2, 2))


def test_a_job_that_loses_what_the_round_looked_at_gave_it_is_told_no_start_until_the_next_look() -> None:
    spec, speeds = a_spec(maximum=(2, 2)), samples(law(), ALL_SIZES)
    outlook = forecast(job(spec=spec, speed_samples=speeds), NOW, Settings())
    queue = Queue(NOW, (Node("node-0", Resources(32.0, 256 * GIB)),), [outlook], {outlook.id: Allocation(1, 1)})
    (times,) = times_of(queue, corrected_times(queue, policy_named("optimus"), Settings()), NOW + 30.0)
    assert times.end is not None
    assert expected_times(times, NOW + 10.0, waits=False) is not None
    assert expected_times(times, NOW + 10.0, waits=True) is None


def test_once_a_job_has_tasks_its_end_is_counted_from_then_on_until_the_next_look() -> None:
    """The wait may have ended sooner than was foreseen."""
    waited = ExpectedTimesRecord(
        job_id="a", at=NOW, valid_until=NOW + 99.0, start=Interval(*(NOW + each for each in (60.0, 50.0, 80.0))),
        end=Interval(*(NOW + each for each in (90.0, 70.0, 120.0))),
    )  # fmt: skip
    assert expected_times(waited, NOW + 10.0, waits=True) is not None
    assert expected_times(waited, NOW + 10.0, waits=False, granted_at=NOW - 5.0) is None, "another grant is meant"
    found = expected_times(waited, NOW + 10.0, waits=False, granted_at=NOW + 8.0)
    assert found is not None
    assert found.start_seconds is None
    assert found.end_seconds is not None
    assert found.end_seconds.mean == pytest.approx(30.0 - 2.0, abs=1.0)
    assert (found.end_seconds.low or 0.0) == pytest.approx(20.0 - 2.0, abs=1.0)


def test_waiting_jobs_have_intervals_of_start_and_end(queue: World) -> None:
    for job_id in ("second", "third"):
        found = times(queue, job_id)
        assert found is not None
        assert found.start_seconds is not None
        assert found.end_seconds is not None
        for name in ("low", "mean", "high"):
            assert 0 <= getattr(found.start_seconds, name) <= getattr(found.end_seconds, name)
    assert stored(queue, "first").start is None, "it trains"
    decision = queue.repository.rounds.latest_decisions(["second"])["second"]
    started = replace(queue.repository.jobs.get("second"), wanted=Allocation(6, 1))
    assert progress_of(started, decision, queue.clock()).expected is None, "it has tasks since"
    assert end_of(queue, "first") <= end_of(queue, "second") <= end_of(queue, "third")


@once
def test_an_end_moves_when_a_job_ahead_is_cancelled(queue: World) -> None:
    before = end_of(queue, "third")
    queue.repository.jobs.advance("second", CancelRequested(has_tasks=False), queue.clock())
    queue.round()
    assert end_of(queue, "third") < before


@once
def test_time_left_is_until_the_expected_end(queue: World) -> None:
    decision = queue.repository.rounds.latest_decisions(["second"])["second"]
    found = progress_of(queue.repository.jobs.get("second"), decision, queue.clock())
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean == pytest.approx(end_of(queue, "second") - queue.clock())
    too_late = stored(queue, "second").valid_until + 1.0
    assert progress_of(queue.repository.jobs.get("second"), decision, too_late).expected is None


@once
def test_a_job_that_goes_on_after_its_expected_end_is_never_said_to_end_now(queue: World) -> None:
    times_ = stored(queue, "first")
    assert times_.end is not None
    decision = queue.repository.rounds.latest_decisions(["first"])["first"]
    now = min(times_.end.high + 1.0, times_.valid_until)
    found = progress_of(queue.repository.jobs.get("first"), decision, now)
    assert found.remaining_seconds is not None
    assert found.remaining_seconds.mean > 0


@once
def test_an_unchanged_queue_is_not_looked_at_again(queue: World) -> None:
    queue.round()
    at = stored(queue, "first").at
    looks = metric(queue.metrics, "optimus_look_ahead_seconds_count")
    queue.clock.now += 1.0
    queue.round()
    assert metric(queue.metrics, "optimus_look_ahead_seconds_count") == looks
    assert stored(queue, "first").at == at
    queue.clock.now = stored(queue, "first").valid_until
    queue.round()
    assert stored(queue, "first").at == queue.clock.now, "else it would be too old to be shown"


@once
def test_what_stalls_between_two_rounds_is_looked_at_without_another_one(queue: World) -> None:
    """Else who waits for its end is told no start until the next round, or too late a one once it goes on."""
    looked_at, foreseen = stored(queue, "second").at, stored(queue, "second").start
    assert foreseen is not None
    queue.ahead.look()
    queue.ahead._hindrances = lambda: Hindrances({"first": None})
    queue.ahead.look()
    found = stored(queue, "second")
    assert (found.at, found.start) == (looked_at, None)
    queue.ahead._hindrances = Hindrances
    queue.ahead.look()
    assert stored(queue, "second").start == foreseen


@once
def test_a_job_that_is_late_with_its_step_is_looked_at_again_until_it_makes_one(queue: World) -> None:
    """Between two rounds, with what the service finds in the database."""

    def hindrances() -> Hindrances:
        now = queue.clock()
        return Hindrances(at=now, silent_since=silent_jobs(queue.repository, now, listens_since=0.0))

    queue.ahead._hindrances = hindrances
    queue.ahead.look()
    before, foreseen = stored(queue, "first"), stored(queue, "second").start
    assert foreseen is not None
    assert before.end is not None
    assert before.late_seconds is None
    queue.clock.now += 12.0
    assert hindrances().silent_since.keys() == {"first"}
    assert silent_jobs(queue.repository, queue.clock(), listens_since=queue.clock()) == {}, "not heard of since"
    queue.ahead.look()
    late, start = stored(queue, "first"), stored(queue, "second").start
    assert late.late_seconds is not None
    assert late.late_seconds.mean == pytest.approx(12.0 + 10.0, abs=2.0), "until now, and as long again as it is late"
    assert late.end is not None
    assert late.end.mean > before.end.mean + 10.0
    assert start is not None
    assert start.mean > foreseen.mean + 10.0
    queue.train(5.0)
    queue.ahead.look()
    assert stored(queue, "first").late_seconds is None


@once
def test_of_a_job_that_goes_on_again_no_end_is_told_before_starts_behind_it(queue: World) -> None:
    """The look that took it for one that does not end told no start behind it."""

    def told() -> tuple[bool, bool]:
        decisions = queue.repository.rounds.latest_decisions(["first", "second"])
        first = progress_of(queue.repository.jobs.get("first"), decisions["first"], queue.clock())
        assert first.remaining_steps is not None
        start = times(queue, "second")
        return first.remaining_seconds is not None, start is not None and start.start_seconds is not None

    assert told() == (True, True)
    queue.ahead._hindrances = lambda: Hindrances({"first": None})
    queue.ahead.look()
    assert told() == (False, False), "it makes steps: the next look knows it"
    queue.ahead._hindrances = Hindrances
    queue.ahead.look()
    assert told() == (True, True)
    queue.ahead._hindrances = lambda: Hindrances({"first": 10_000})
    queue.ahead.look()
    assert told() == (True, True), "it may fail at that step: the start behind it counts that"


@once
@pytest.mark.parametrize(("stalled", "again"), [({"first": None}, 1.0), ({}, 60.0)])
def test_the_thread_asks_soon_whether_a_job_that_stalled_goes_on(
    queue: World, monkeypatch: pytest.MonkeyPatch, stalled: dict[str, None], again: float
) -> None:
    monkeypatch.setattr("optimus_service.loop.queue_ahead._AGAIN_SECONDS", 60.0)
    queue.ahead._hindrances = lambda: Hindrances(stalled)
    queue.ahead.look()
    waits = list[float | None]()

    def wait_for(_: object, timeout: float | None = None) -> bool:
        waits.append(timeout)
        queue.ahead._stopping = True
        return True

    monkeypatch.setattr(queue.ahead._wake_up, "wait_for", wait_for)
    queue.ahead._run()
    assert waits == [again]


@once
def test_the_thread_looks_again_when_a_job_stalls(queue: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimus_service.loop.queue_ahead._AGAIN_SECONDS", 0.05)
    monkeypatch.setattr("optimus_service.loop.queue_ahead._AGAIN_LOAD", 1.0)
    queue.ahead._hindrances = lambda: Hindrances({"first": None})
    queue.ahead.start()
    try:
        wait_until("another look", lambda: stored(queue, "second").start is None)
    finally:
        queue.ahead.stop(30.0)


@once
def test_a_look_that_fails_hurts_no_round_and_is_seen(queue: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored(queue, "second")

    def broken(*_: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr("optimus_service.loop.queue_ahead.corrected_times", broken)
    for _ in range(2):
        queue.train(1)
        assert queue.round().error is None
    found = [event for event in queue.repository.events.page(limit=50).items if event.type == LOOK_AHEAD_FAILED]
    assert [event.job_id for event in found] == [None], "told once"
    assert "ZeroDivisionError: made up" in found[0].message
    assert metric(queue.metrics, f'optimus_unexpected_errors_total{{thread="{THREAD}"}}') == 2
    assert stored(queue, "second") == before, "what was expected before is shown until it is too old"
    monkeypatch.undo()
    queue.train(1)
    queue.round()
    assert stored(queue, "second").at > before.at


@once
def test_another_leader_writes_over_nothing(queue: World) -> None:
    """A look that ends after its process has lost the lease."""
    before = stored(queue, "second")
    queue.train(1)
    queue.looks_ahead = False
    queue.round()
    lease = queue.repository.leases.current(LEADER_LEASE)
    assert lease is not None
    queue.repository.leases.release(LEADER_LEASE, lease.holder)
    queue.repository.leases.acquire(LEADER_LEASE, "another", 10.0)
    queue.ahead.look()
    assert stored(queue, "second") == before


@once
def test_the_thread_looks_after_a_round_and_ends(queue: World) -> None:
    queue.looks_ahead = False
    before = stored(queue, "second").at
    queue.ahead.start()
    try:
        queue.train(1)
        queue.round()
        wait_until("another look", lambda: stored(queue, "second").at > before)
    finally:
        queue.ahead.stop(30.0)
    assert not queue.ahead._thread.is_alive()


def left_of(world: World, job_id: str) -> answers.Interval:
    decision = world.repository.rounds.latest_decisions([job_id])[job_id]
    found = progress_of(world.repository.jobs.get(job_id), decision, world.clock()).remaining_seconds
    assert found is not None
    return found


def start_of(world: World, job_id: str) -> answers.Interval:
    found = times(world, job_id)
    assert found is not None
    assert found.start_seconds is not None
    return found.start_seconds


@once
def test_a_start_goes_by_the_steps_of_the_job_ahead_and_not_by_the_clock(queue: World) -> None:
    assert stored(queue, "second").awaited == stored(queue, "third").awaited == {"first": 1.0}
    before = start_of(queue, "second"), start_of(queue, "third"), left_of(queue, "second")
    queue.clock.now += 2.0
    after = start_of(queue, "second"), start_of(queue, "third"), left_of(queue, "second")
    for then, now in zip(before, after, strict=True):
        assert 0.0 <= then.mean - now.mean <= 1.1, "the first has made no step since, but those between two reports"
    queue.clock.now += 8.0
    late = start_of(queue, "second"), start_of(queue, "third"), left_of(queue, "second")
    for then, now in zip(after, late, strict=True):
        assert now.mean - then.mean == pytest.approx(8.0, abs=1.0), "it is so late with its next step"
        assert (now.high or 0.0) > (then.high or 0.0) + 8.0
    queue.clock.now -= 10.0
    queue.train(5.0)
    assert start_of(queue, "second").mean < before[0].mean - 1.0
    for name in ("low", "mean", "high"):
        start, end = getattr(start_of(queue, "second"), name), getattr(left_of(queue, "first"), name)
        assert start == pytest.approx(end, rel=0.3), "it starts when the first ends, and as surely"
    moved = before[0].mean - start_of(queue, "second").mean
    # A start that is corrected by earlier ones moves in proportion: that of the second is a tenth sooner.
    assert before[1].mean - start_of(queue, "third").mean == pytest.approx(moved, rel=0.15)


# --- deadlines -------------------------------------------------------------------------------------------------------


def promised(world: World, job_id: str) -> float | None:
    return promised_at(world.repository.jobs.get(job_id))


def promises_told(world: World, job_id: str) -> int:
    return sum(event.type == DEADLINE_PROMISED for event in world.repository.events.page(job_id).items)


def edit(world: World, job_id: str, **said: Any) -> None:
    before = world.repository.jobs.get(job_id).spec
    assert world.repository.jobs.set_spec(job_id, before, {**before, **said}, {}, world.clock())


def test_a_deadline_that_can_be_met_is_promised_once(queue: World) -> None:
    queue.submit("due", deadline_seconds=360_000.0, **BIG)
    queue.submit("hopeless", deadline_seconds=1.0, **BIG)
    queue.round()
    at = promised(queue, "due")
    assert at == queue.clock()
    assert promised(queue, "hopeless") is None
    queue.clock.now += 60.0
    queue.round()
    assert promised(queue, "due") == at, "what was promised stays promised"
    assert promises_told(queue, "due") == 1


@once
def test_a_promise_is_of_the_deadline_that_the_job_has(queue: World) -> None:
    queue.submit("due", deadline_seconds=360_000.0, **BIG)
    queue.round()
    edit(queue, "due", deadline_seconds=1.0)
    assert promised(queue, "due") is None, "another deadline was promised"
    queue.round()
    assert promised(queue, "due") is None
    edit(queue, "due", deadline_seconds=720_000.0)
    queue.clock.now += 60.0
    queue.round()
    assert promised(queue, "due") == queue.clock()
    assert promises_told(queue, "due") == 2


@once
def test_an_owner_who_pauses_a_job_gives_its_promise_back(queue: World) -> None:
    queue.submit("due", deadline_seconds=360_000.0, **BIG)
    queue.round()
    assert promised(queue, "due") is not None
    queue.repository.jobs.advance("due", PauseRequested(has_tasks=False), queue.clock())
    assert promised(queue, "due") is None
    queue.clock.now += 60.0
    queue.round()
    assert promised(queue, "due") is None, "it gets nothing"
    queue.repository.jobs.advance("due", ResumeRequested(), queue.clock())
    queue.round()
    assert promised(queue, "due") == queue.clock()
