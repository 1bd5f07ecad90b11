"""The thread: when rounds are run, what its health says, and that nothing kills it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.scheduler.builders import NOW, a_cluster, a_job, a_snapshot, a_spec
from tests.service.clusters.cluster_harness import wait_until
from tests.service.loop.loop_world import NODES, World
from tests.service.postgres_cluster import PostgresCluster
from tests.service.store.store_builders import put_task

from optimus_scheduler import round as cycle
from optimus_scheduler.granted_places import Timer
from optimus_scheduler.model import (
    Allocation,
    ConvergenceRule,
    Decision,
    Forecast,
    Interval,
    Job,
    JobSpec,
    JobState,
    Plan,
    Reason,
    Resources,
    Role,
    Snapshot,
    SpeedSource,
    TaskDemand,
    TaskKey,
)
from optimus_service.clusters.base import TaskLaunch
from optimus_service.clusters.fake import FakeCluster
from optimus_service.loop import loop as loop_module
from optimus_service.loop.expected_ends import expected_ends
from optimus_service.loop.leader import Leadership
from optimus_service.loop.loop import LoopTimes, SchedulingLoop
from optimus_service.loop.round import next_moment
from optimus_service.metrics.registry import Metrics
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.repository import LEADER_LEASE, Repository

NEVER = 3600.0
"""A period that no test lives to see."""


class Planner:
    """Counts rounds; raises when told to; otherwise plans nothing, or what the real one would."""

    def __init__(self) -> None:
        self.n_begun = self.n_rounds = 0
        self.decisions: tuple[Decision, ...] = ()
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, snapshot: Snapshot, timer: Timer) -> Plan:
        self.n_begun += 1
        self.gate.wait(60)
        self.n_rounds += 1
        if self.error is not None:
            raise self.error
        return Plan(self.decisions, ())


class Running:
    """A loop with its parts at hand."""

    def __init__(self, repository: Repository, directory: Path) -> None:
        self.repository = repository
        self.planner = Planner()
        self.world = World(repository, directory, FakeCluster(NODES), planner=self.planner)
        repository.leases.release(LEADER_LEASE, f"world-{id(self.world)}")
        self.metrics = Metrics()
        self.loops: list[SchedulingLoop] = []

    def loop(
        self, round_seconds: float = NEVER, learning_round_seconds: float = NEVER, debounce_seconds: float = 0.0
    ) -> SchedulingLoop:
        loop = SchedulingLoop(
            self.world.rounds,
            Leadership(self.repository, 10.0, time.monotonic),
            self.world.cluster,
            self.metrics,
            LoopTimes(round_seconds, learning_round_seconds, debounce_seconds, 10.0),
            time.time,
        )
        self.loops.append(loop)
        return loop

    def started(self, **times: float) -> SchedulingLoop:
        loop = self.loop(**times)
        loop.start()
        wait_until("the first round is stored", lambda: bool(self.repository.rounds.page().items))
        wait_until("and over", lambda: not loop.is_in_round)
        return loop

    def triggers(self) -> list[str]:
        return [record.trigger for record in reversed(self.repository.rounds.page().items)]

    def errors(self) -> list[str | None]:
        return [record.error for record in self.repository.rounds.page().items]

    def unexpected_errors(self) -> float:
        labels = {"thread": "scheduling loop"}
        value = self.metrics.registry.get_sample_value("optimus_unexpected_errors_total", labels)
        assert value is not None
        return value

    def failed_rounds(self) -> float:
        value = self.metrics.registry.get_sample_value("optimus_rounds_failed_total")
        assert value is not None
        return value


@pytest.fixture
def running(repository: Repository, tmp_path: Path) -> Iterator[Running]:
    found = Running(repository, tmp_path)
    yield found
    found.planner.gate.set()
    for loop in found.loops:
        loop.stop(20)


def test_first_round_follows_the_start(running: Running) -> None:
    loop = running.started()
    assert running.triggers() == ["start"]
    assert loop.leads
    assert loop.health() is None
    loop.stop(20)
    assert not loop.leads


def test_trigger_asks_for_a_round_soon(running: Running) -> None:
    loop = running.started()
    loop.trigger("submit")
    wait_until("the round has run", lambda: running.triggers() == ["start", "submit"])


def test_events_during_a_round_share_the_next_one(running: Running) -> None:
    loop = running.started()
    running.planner.gate.clear()
    loop.trigger("first")
    wait_until("the round has begun", lambda: not loop._reasons)
    for why in ("submit", "submit", "cancel"):
        loop.trigger(why)
    running.planner.gate.set()
    wait_until("both rounds have run", lambda: running.triggers() == ["start", "first", "submit, cancel"])


def test_rounds_come_by_the_period(running: Running) -> None:
    running.started(round_seconds=0.05)
    wait_until("three rounds have run", lambda: running.triggers()[:3] == ["start", "period", "period"])


@pytest.mark.parametrize(
    ("began", "rule", "learning"),
    [(20.0, None, True), (20.0, "command_ends", False), (90.0, None, False)],
    ids=["new", "known", "old"],
)
def test_a_job_that_has_just_begun_is_asked_for_its_end(began: float, rule: str | None, learning: bool) -> None:
    """Else a script of half a minute has none before it ends, as its size is never learned."""
    seen = a_snapshot([a_job("a", has=(1, 0), started_at=NOW - began)], a_cluster(4.0))
    forecast = Forecast("a", None, None, confidence=0.0, rule=rule)
    size = Allocation(1, 0)
    plan = Plan((Decision("a", size, size, Reason.AT_MAXIMUM, "Has all.", forecast),), ())
    assert cycle.learns(seen, plan) is learning


def test_a_round_comes_when_a_job_has_to_begin_for_its_deadline() -> None:
    """A period later may be too late."""
    nobody, begins = a_snapshot([], ()), Plan((), (), again_at=NOW + 40.0)
    assert next_moment(nobody, begins) == NOW + 40.0
    assert next_moment(nobody, Plan((), ())) is None
    due = a_job("due", spec=replace(a_spec(), deadline_at=NOW + 30.0))
    assert next_moment(a_snapshot([due], ()), begins) == NOW + 30.0


def test_rounds_come_sooner_while_a_speed_is_being_learned(running: Running) -> None:
    running.world.submit()
    size = Allocation(1, 1)
    forecast = Forecast("job-1", None, None, confidence=0.0)
    running.planner.decisions = (Decision("job-1", size, size, Reason.LEARNING_SPEED, "Learning.", forecast),)
    loop = running.started(learning_round_seconds=0.05)
    wait_until("three rounds have run", lambda: running.triggers()[:3] == ["start", "period", "period"])
    running.planner.decisions = ()
    wait_until("a round without a learner has run", lambda: not running.world.rounds.learning)
    n_rounds = running.planner.n_rounds
    loop.trigger("submit")
    wait_until("the next round has run", lambda: running.triggers()[-1] == "submit")
    assert running.planner.n_rounds == n_rounds + 1, "without a learner only events and the long period ask for rounds"


KNOWN = Forecast(
    "job",
    Interval(100.0, 90.0, 110.0),
    None,
    confidence=0.9,
    remaining_seconds=Interval(50.0, 40.0, 60.0),
    speed_from=SpeedSource.MEASURED,
)
"""Of a job whose own speed was measured."""


@pytest.mark.parametrize(
    "forecast",
    [KNOWN._replace(remaining_seconds=None), KNOWN._replace(speed_from=SpeedSource.SIMILAR_JOBS)],
    ids=["no time left", "the speed of others"],
)
@pytest.mark.parametrize(("step", "look_at"), [(0, 1.0), (1, 2.0), (20, 40.0)], ids=["new", "one step", "later"])
def test_a_job_of_which_little_is_known_is_looked_at_as_it_tells_more(
    forecast: Forecast, step: int, look_at: float
) -> None:
    decision = Decision("job", Allocation(1, 1), Allocation(1, 1), Reason.UNCHANGED, "Keeps it.", forecast)
    spec = JobSpec(TaskDemand(Resources(1.0)), TaskDemand(Resources(1.0)), ConvergenceRule())
    snapshot = Snapshot(0.0, (), (Job("job", spec, JobState.RUNNING, 0.0, step=step),))
    assert expected_ends(snapshot, Plan((decision,), ())) == {"job": look_at}


def test_telemetry_that_passes_the_soonest_likely_end_asks_for_a_round_once(running: Running) -> None:
    running.world.submit()
    size = Allocation(1, 1)
    forecast = KNOWN._replace(job_id="job-1")
    running.planner.decisions = (Decision("job-1", size, size, Reason.UNCHANGED, "Keeps it.", forecast),)
    loop = running.started()
    loop.trained("job-1", 89)
    loop.trained("job-2", 500)
    assert running.triggers() == ["start"]
    loop.trained("job-1", 90)
    loop.trained("job-1", 91)
    wait_until("a round has run for it", lambda: running.triggers()[1:] == ["expected end"])


@pytest.mark.parametrize(
    ("step", "look_at"),
    [(10, 90.0), (90, 94.5), (98, 100.0), (100, 105.0), (200, 210.0)],
    ids=["before the interval", "from its low end on", "at the expected end", "then", "overtaken"],
)
def test_a_job_that_goes_on_is_looked_at_again_a_little_later(running: Running, step: int, look_at: float) -> None:
    job = running.world.submit()
    forecast = KNOWN._replace(job_id=job.id)
    decision = Decision(job.id, Allocation(1, 1), Allocation(1, 1), Reason.UNCHANGED, "Keeps it.", forecast)
    spec = JobSpec(TaskDemand(Resources(1.0)), TaskDemand(Resources(1.0)), ConvergenceRule())
    snapshot = Snapshot(0.0, (), (Job(job.id, spec, JobState.RUNNING, 0.0, step=step),))
    assert expected_ends(snapshot, Plan((decision,), ())) == {job.id: look_at}
    converged = decision._replace(forecast=forecast._replace(converged=True))
    assert expected_ends(snapshot, Plan((converged,), ())) == {}


@pytest.mark.parametrize("learning_round_seconds", [0.0, NEVER])
def test_telemetry_of_another_pace_asks_for_a_round(running: Running, learning_round_seconds: float) -> None:
    """Not right after another one."""
    running.world.submit()
    size = Allocation(1, 1)
    forecast = KNOWN._replace(job_id="job-1", total_steps=Interval(1e4, 1e4, 1e4))
    forecast = forecast._replace(seconds_per_step=Interval(0.5, 0.4, 0.7), steps_per_second=2.0)
    running.planner.decisions = (Decision("job-1", size, size, Reason.UNCHANGED, "Keeps it.", forecast),)
    loop = running.started(learning_round_seconds=learning_round_seconds)
    for step, at in [(1, 0.0), (3, 4.0), (4, 6.0), (7, 12.0)]:
        assert running.triggers() == ["start"]
        loop.trained("job-1", step, NOW + at)
        loop.trained("job-1", step + 1, None)
    if learning_round_seconds:
        assert not loop._reasons
    else:
        wait_until("a round has run for it", lambda: running.triggers()[1:] == ["changed pace"])


def test_what_one_job_tells_asks_for_few_rounds_and_for_a_last_one_later(running: Running) -> None:
    loop = running.started(learning_round_seconds=NEVER)
    for n_rounds in range(1, 6):
        loop.told("job-1", "loss")
        wait_until("a round has run for it", lambda n=n_rounds: len(running.triggers()) == n + 1)  # type: ignore[misc]
    for _ in range(20):
        loop.told("job-1", "loss")
    assert not loop._reasons
    assert loop._asked_for is not None
    loop.told("job-2", "loss")
    wait_until("another job has its own", lambda: len(running.triggers()) == 7)
    assert loop._asked_for is None, "a round has seen all that was told until then"


def test_what_a_job_told_too_often_is_seen_at_the_latest_after_a_while(running: Running) -> None:
    loop = running.started(learning_round_seconds=1.0)
    for _ in range(8):
        loop.told("job-1", "loss")
        wait_until("it is taken", lambda: not loop._reasons)
    wait_until("a round sees the last one", lambda: loop._asked_for is None)
    assert set(running.triggers()) <= {"start", "loss"}


def test_exit_of_a_task_is_noticed_between_rounds(running: Running) -> None:
    loop = running.started()
    running.world.submit()
    key = TaskKey("job-1", Role.WORKER, 0)
    put_task(running.repository, key, "node-0", 0.0)
    running.world.cluster.start(TaskLaunch(key, "node-0", Resources(), {}))
    wait_until("the task was seen", lambda: key in loop._live)
    running.world.cluster.exit(key, 1)
    wait_until("a round has run for it", lambda: running.triggers() == ["start", "task exited"])


def test_follower_waits_and_takes_over(running: Running) -> None:
    repository = running.repository
    other = repository.leases.acquire(LEADER_LEASE, "somebody else", 300.0)
    assert other is not None
    loop = running.loop()
    loop.start()
    wait_until("the follower runs", lambda: loop._thread.is_alive())
    assert loop.health() is None
    assert not loop.leads
    assert running.triggers() == []
    repository.leases.release(LEADER_LEASE, "somebody else")
    wait_until("it has taken over", lambda: running.triggers() == ["start"])


def test_unavailable_cluster_is_waited_for(running: Running) -> None:
    loop = running.started(round_seconds=0.05)
    running.world.cluster.available = False
    wait_until("health shows it", lambda: "cluster" in (loop.health() or ""))
    running.world.cluster.available = True
    wait_until("it is well again", lambda: loop.health() is None)


def test_error_in_a_round_is_shown_and_survived(running: Running) -> None:
    loop = running.started(round_seconds=0.05)
    running.planner.error = ZeroDivisionError("by nothing")
    wait_until("health shows it", lambda: "ZeroDivisionError: by nothing" in (loop.health() or ""))
    wait_until("it is counted", lambda: running.failed_rounds() >= 1)
    wait_until("the round is recorded", lambda: "ZeroDivisionError: by nothing" in running.errors())
    running.planner.error = None
    wait_until("it is well again", lambda: loop.health() is None)


def test_a_slow_round_is_no_illness_but_one_that_never_ends_is(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "_RETRY_SECONDS", 0.01)
    loop = running.started(round_seconds=0.01)
    running.planner.gate.clear()
    begun_before, cleared_at = running.planner.n_begun, time.monotonic()
    wait_until("a round is in progress", lambda: running.planner.n_begun > begun_before)
    wait_until("it takes long", lambda: time.monotonic() > cleared_at + 1.0)
    assert loop.health() is None
    monkeypatch.setattr(loop_module, "_STUCK_SECONDS", 0.5)
    assert "has been running for" in (loop.health() or "")
    running.planner.gate.set()
    wait_until("it is well again", lambda: loop.health() is None)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_read_only_database_is_waited_for(running: Running, postgres_cluster: PostgresCluster) -> None:
    """As in a failover: the loop goes on by itself when the database can be written to again."""
    loop = running.started(round_seconds=0.05)
    with postgres_cluster.read_only():
        wait_until("health shows it", lambda: "read-only" in (loop.health() or ""))
        with pytest.raises(DatabaseNotAvailable, match="read-only") as refused:
            running.repository.events.add(None, "Test", "Nothing happened.", {}, 0.0)
        assert refused.value.for_users.startswith("the database is read-only")
    n_rounds = running.planner.n_rounds
    wait_until("rounds run again", lambda: running.planner.n_rounds > n_rounds)
    wait_until("it is well again", lambda: loop.health() is None)
    assert running.unexpected_errors() == 0, "a database that is away is none"


@pytest.mark.parametrize("place", ["nodes", "tasks"])
def test_no_error_ends_the_loop(running: Running, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = running.started(round_seconds=0.05)

    def fail() -> None:
        raise ZeroDivisionError("nobody foresaw it")

    with monkeypatch.context() as patched:
        patched.setattr(running.world.cluster, place, fail)
        wait_until("health shows it", lambda: "nobody foresaw it" in (loop.health() or ""))
        wait_until("it is counted", lambda: running.unexpected_errors() >= 2)
    n_rounds = running.planner.n_rounds
    wait_until("rounds run again", lambda: running.planner.n_rounds > n_rounds)
    wait_until("it is well again", lambda: loop.health() is None)


def test_health_before_the_start_and_after_the_end(running: Running) -> None:
    loop = running.loop()
    assert loop.health() == "the scheduling loop is not running"
    loop.start()
    loop.stop(20)
    assert loop.health() is None, "being stopped is no illness"
