"""The thread that runs scheduling rounds: on a period, and soon after something happened.

::

    trigger(why) ──┐                        ┌──▶ follower: try for the lease again in a while
                   ├─▶ wait ─▶ claim lease ─┤
    period ────────┤                        └──▶ leader: debounce ─▶ round ─┐
    a task exited ─┘      ▲                                                 │
                          └─────────────────────────────────────────────────┘
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from optimus_scheduler.model import TaskKey, TaskPhase
from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_service.loop.leader import Leadership
from optimus_service.loop.round import Phases, Round
from optimus_service.metrics.registry import Metrics
from optimus_service.store.errors import DatabaseNotAvailable, StaleLeader
from optimus_service.store.records import RoundRecord

WATCH_SECONDS = 1.0
"""How late an exit is noticed: a lost worker should not be missed for a whole period."""
_FOLLOW_SECONDS = 2.0
"""How often a follower looks whether the lease is free."""
_RETRY_SECONDS = 5.0
"""After a round that failed; sooner if the period is shorter."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""After an unexpected error; twice as long after each that follows without a good turn between."""
_MAX_DOUBLINGS = 16
_LATE_ROUNDS = 3
"""Periods without a successful round after which a leader calls itself unhealthy."""
_STUCK_SECONDS = 900.0
"""A round that takes longer is called stuck: a leader that is slow still serves the API, and must not be taken out of
service for it. Far above the slowest round of a large cluster whose database is slow."""
_MOST_ASKED = 5
"""Rounds that one job has by what it tells, in `learning_round_seconds`."""
_MAX_REASONS = 5
"""Reasons that are named in the trigger of one round."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """Seconds."""

    round_seconds: float
    learning_round_seconds: float
    """Between rounds while the speed of a job is being learned, if shorter: waiting a whole period for each new size
    would leave short jobs at their first one. As well the least from a round to one for a job whose speed has changed.
    """
    debounce_seconds: float
    lease_seconds: float


class Condition(Protocol):
    """What the loop uses of `threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(self, *error: Any) -> None: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class SchedulingLoop:
    """Runs rounds while this process leads. `trigger`, `health` and `stop` may be called from any thread."""

    def __init__(
        self,
        rounds: Round,
        leadership: Leadership,
        cluster: Cluster,
        metrics: Metrics,
        times: LoopTimes,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
        wake_up: Condition | None = None,
    ) -> None:
        """`monotonic` only grows; waits are made at `wake_up`, by the time of `monotonic`."""
        self._rounds = rounds
        self._leadership = leadership
        self._cluster = cluster
        self._metrics = metrics
        self._times = times
        self._clock = clock
        self._monotonic = monotonic
        self._thread = threading.Thread(target=self.run, name="scheduling-loop", daemon=True)
        self._wake_up: Condition = wake_up or threading.Condition()
        self._reasons: list[str] = []
        self._asked_at: dict[str, tuple[float, ...]] = {}
        """When rounds were asked for by what each job told, in the last `learning_round_seconds` ..."""
        self._asked_for: tuple[float, str] | None = None
        """... and when one is due that a job may not have yet, and why."""
        self._stopping = False
        self._started_at = self._monotonic()
        self._next_round_at = self._monotonic()
        self._succeeded_at: float | None = None
        self._round_begun_at: float | None = None
        """Of the round in progress."""
        self._leads = False
        self._problem: str | None = None
        self._live: frozenset[TaskKey] = frozenset()
        """Tasks that had not exited when the cluster was last asked."""
        self._open_nodes: frozenset[str] | None = None
        """Nodes that tasks could be placed on then."""

    # --- from any thread --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; the first round follows at once."""
        self.trigger("start")
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End after the round in progress, and give the lease up. Tasks go on."""
        with self._wake_up:
            self._stopping = True
            self._wake_up.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def trigger(self, why: str) -> None:
        """Ask for a round soon. Returns at once."""
        with self._wake_up:
            if why not in self._reasons and len(self._reasons) < _MAX_REASONS:
                self._reasons.append(why)
            self._wake_up.notify_all()

    def told(self, job_id: str, why: str) -> None:
        """Ask for a round for what a job has told. It may tell such things without end, so one job has
        `_MOST_ASKED` in `learning_round_seconds`: what it tells then is seen after that. Returns at once."""
        with self._wake_up:
            now, since = self._monotonic(), self._monotonic() - self._times.learning_round_seconds
            of_each = {each: tuple(at for at in asked if at > since) for each, asked in self._asked_at.items()}
            self._asked_at = {each: asked for each, asked in of_each.items() if asked}
            asked = self._asked_at.get(job_id, ())
            if len(asked) >= _MOST_ASKED:
                due = asked[0] + self._times.learning_round_seconds, why
                self._asked_for = due if self._asked_for is None else min(self._asked_for, due)
                return
            self._asked_at[job_id] = (*asked, now)
        self.trigger(why)

    def trained(self, job_id: str, step: int, at: float | None = None) -> None:
        """Telemetry has come: ask for a round if the job may be done at this step, or has another pace than expected.
        Returns at once. `at`: when its worker 0 had made it, by that worker's clock; None: it did not tell."""
        if self._rounds.ends.has_passed(job_id, step):
            self.told(job_id, "expected end")
        if at is None or not self._rounds.paces.is_left(job_id, step, at):
            return
        last = self._succeeded_at
        if last is not None and self._monotonic() - last >= self._times.learning_round_seconds:
            self.trigger("changed pace")

    def health(self) -> str | None:
        """What is wrong, in words; None when nothing is. A follower that waits for the lease is healthy."""
        if not self._thread.is_alive() and not self._stopping:
            return "the scheduling loop is not running"
        now, begun = self._monotonic(), self._round_begun_at
        if begun is not None:
            stuck = now - begun > _STUCK_SECONDS
            return f"a scheduling round has been running for {now - begun:.0f} seconds" if stuck else self._problem
        late = now - (self._succeeded_at or self._started_at)
        if self._leads and late > _LATE_ROUNDS * self._times.round_seconds + _RETRY_SECONDS:
            return f"no scheduling round has succeeded for {late:.0f} seconds: {self._problem or 'none was begun'}"
        return self._problem

    @property
    def leads(self) -> bool:
        """Whether this process runs the rounds."""
        return self._leads

    @property
    def is_in_round(self) -> bool:
        """Whether a round is in progress."""
        return self._round_begun_at is not None

    # --- the thread -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """What the thread does until `stop`; whoever has threads of another kind calls it in one of them."""
        n_failures = 0
        while not self._stopping:
            try:
                self._turn()
                n_failures = 0
            except Exception as error:  # noqa: BLE001 - without this thread nothing would ever be scheduled again
                _log.exception("the scheduling loop failed and goes on")
                self._metrics.count_unexpected_error("scheduling loop")
                self._report(f"the scheduling loop failed: {type(error).__name__}: {error}")
                self._pause(min(_FIRST_PAUSE_SECONDS * 2**n_failures, _LONGEST_PAUSE_SECONDS))
                n_failures = min(n_failures + 1, _MAX_DOUBLINGS)
        self._resign()

    def _turn(self) -> None:
        """Claim the lease; as the leader run a round if one is due, else wait a little."""
        fence = self._claim()
        if fence is None:
            self._wait(min(_FOLLOW_SECONDS, self._times.lease_seconds))
            return
        self._watch()
        self._look(fence)
        if self._problem is not None:  # whether it is over, a round shows
            self._next_round_at = min(self._next_round_at, self._monotonic() + _RETRY_SECONDS)
        due_at, asked_for = self._next_round_at, self._asked_for
        if asked_for is not None and asked_for[0] < due_at:
            due_at = asked_for[0]
            if self._monotonic() >= due_at:
                self.trigger(asked_for[1])
        if self._monotonic() >= due_at or self._reasons:
            self._next_round_at = self._monotonic() + self._round(fence)
        else:
            self._wait(min(due_at - self._monotonic(), WATCH_SECONDS))

    def _claim(self) -> int | None:
        try:
            fence = self._leadership.claim()
        except DatabaseNotAvailable as error:
            self._report(f"the database is not available: {error}")
            return None
        if (fence is not None) != self._leads:
            _log.info("leading" if fence is not None else "following")
        self._leads = fence is not None
        self._metrics.set_leader(self._leads)
        if fence is None:
            self._problem = None
        return fence

    def _resign(self) -> None:
        if not self._leads:
            return
        self._leads = False
        self._metrics.set_leader(False)
        try:
            if (fence := self._leadership.claim()) is not None:
                self._rounds.keep_histories(fence)
            self._leadership.resign()
        except Exception as error:  # noqa: BLE001 - the service ends; nothing else can be done about it
            _log.warning("the lease could not be given up and will run out", error=str(error))

    def _watch(self) -> None:
        """Ask for a round when a task has exited or vanished, or nodes came or went, since the last look."""
        try:
            live = frozenset(task.key for task in self._cluster.tasks() if task.phase is not TaskPhase.EXITED)
            open_nodes = frozenset(node.name for node in self._cluster.nodes() if node.schedulable)
        except ClusterUnavailable as error:
            self._report(f"the cluster is not available: {error}")
            return
        if self._live - live:
            self.trigger("task exited")
        if self._open_nodes is not None and open_nodes != self._open_nodes:
            self.trigger("nodes changed")
        self._live, self._open_nodes = live, open_nodes

    def _look(self, fence: int) -> None:
        try:
            self._rounds.look(fence)
        except DatabaseNotAvailable as error:
            self._report(f"the database is not available: {error}")
        except StaleLeader as error:
            _log.warning("another process leads", error=str(error))
            self._leadership.step_down()

    def _round(self, fence: int) -> float:
        """Run a round; how many seconds later the next one is due."""
        trigger = self._debounced_trigger()
        if self._stopping:
            return 0.0
        self._round_begun_at = self._monotonic()
        try:
            times, succeeded = self._times, self._attempt(trigger, fence)
        finally:
            self._round_begun_at = None
        if not succeeded:
            return min(times.round_seconds, _RETRY_SECONDS)
        period = times.round_seconds
        if self._rounds.learning:
            period = min(period, times.learning_round_seconds)
        wakes_at = self._rounds.wakes_at
        return period if wakes_at is None else min(period, max(wakes_at - self._clock(), 0.0))

    def _attempt(self, trigger: str, fence: int) -> bool:
        phases = Phases()
        try:
            with self._leadership.kept():
                record = self._rounds.run(trigger, fence, phases)
        except (ClusterUnavailable, DatabaseNotAvailable) as error:
            self._report(f"a scheduling round was skipped: {error}")
        except StaleLeader as error:
            _log.warning("another process leads", error=str(error))
            self._leadership.step_down()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one round must not end all scheduling
            _log.exception("a scheduling round failed", trigger=trigger)
            self._fail(trigger, error, phases, fence)
        else:
            self._metrics.observe_round(record.seconds, record.phase_seconds, failed=record.error is not None)
            if self._rounds.seen is not None:
                self._metrics.observe_plan(record.at, self._rounds.seen.nodes, self._rounds.decided)
            self._metrics.set_unknown_tasks(len(self._rounds.unknown.found))
            self._succeeded_at, self._problem = self._monotonic(), None
            return True
        self._metrics.observe_round(phases.total_seconds, phases.seconds, failed=True)
        return False

    def _fail(self, trigger: str, error: Exception, phases: Phases, fence: int) -> None:
        """Make a programming error visible where people look: health, the list of rounds, metrics, the log."""
        message = f"{type(error).__name__}: {error}"
        self._report(f"a scheduling round failed: {message}")
        record = RoundRecord(
            at=self._clock(),
            trigger=trigger,
            seconds=phases.total_seconds,
            phase_seconds=phases.seconds,
            n_jobs=0,
            n_actions=0,
            error=message,
        )
        self._metrics.count_unexpected_error("scheduling loop")
        try:
            self._rounds.note_failure(record, fence)
        except (DatabaseNotAvailable, StaleLeader) as unavailable:
            _log.warning("the failed round could not be recorded", error=str(unavailable))

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning(problem)
        self._problem = problem

    def _debounced_trigger(self) -> str:
        """Why a round is run: events that follow each other closely share one."""
        with self._wake_up:
            if self._reasons:
                self._wake_up.wait_for(lambda: self._stopping, self._times.debounce_seconds)
            trigger = ", ".join(self._reasons) or "period"
            self._reasons.clear()
            self._asked_for = None
        return trigger

    def _pause(self, seconds: float) -> None:
        """Like `_wait`, whatever asks for a round."""
        with self._wake_up:
            self._wake_up.wait_for(lambda: self._stopping, seconds)

    def _wait(self, seconds: float) -> None:
        with self._wake_up:
            self._wake_up.wait_for(lambda: self._stopping or (self._leads and bool(self._reasons)), max(seconds, 0.0))
