"""Beside the rounds: the queue simulated forward, so that each job has an expected start and end.

::

    a round ─▶ what it saw and decided ─▶ the newest only ─▶ corrected_times ─▶ expected_times, promises
    (its thread)                          (own thread, one look at a time, a tenth of one core at most)

Never inside a round, and a look that fails hurts none: it is counted, told once as an event, and tried again with the
next round. What was expected before is shown until it is too old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from optimus_scheduler.ahead.corrected_times import CorrectedTimes, corrected_times
from optimus_scheduler.ahead.deadlines import Answer, answer_to
from optimus_scheduler.ahead.look_ahead import expected_steps, untold_steps
from optimus_scheduler.ahead.queue import Hindrances, Queue
from optimus_scheduler.allocate.policy import Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.time_left import less_untold
from optimus_scheduler.model import Plan, Snapshot
from optimus_scheduler.model.format import instant_words
from optimus_scheduler.settings import Settings
from optimus_service.loop.told_predictions import Told
from optimus_service.metrics.registry import Metrics
from optimus_service.observe.past_jobs import PastJobs
from optimus_service.observe.shown_predictions import (
    START_PARTS,
    TIME_PARTS,
    PredictedParts,
    start_prediction,
    time_prediction,
)
from optimus_service.observe.standstills import GOES_ON_SECONDS, SECONDS_OLD
from optimus_service.store.errors import DatabaseNotAvailable, StaleLeader
from optimus_service.store.records import ExpectedTimesRecord, PredictionRecord, PromisedDeadline
from optimus_service.store.repository import LeaderRepository
from optimus_service.store.rounds.forecasts import known

THREAD = "queue ahead"
LOOK_AHEAD_FAILED = "LookAheadFailed"
_LOAD = 0.1
"""Part of one core that looks take at most: after a long one the next waits. Not after one that itself waited for a
core: on a busy machine what is told would be old when much happens."""
_AGAIN_SECONDS, _AGAIN_LOAD = SECONDS_OLD, 0.02
"""After so long without a round, and so small a part of one core, it is asked which jobs have stalled, or are late with
their next step: where these are others than before, the newest queue is looked at again. Rounds may be a minute apart.
Where the last look knew of some that have stalled, it is asked after `GOES_ON_SECONDS`: before the next look nothing is
told of their ends and of starts behind."""
_VALID_ROUNDS, _VALID_SECONDS = 3.0, 30.0
"""What is expected is shown for so many periods of rounds, and at least so long, after which it is too old."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """A round that went well."""

    queue: Queue
    leader: LeaderRepository

    @property
    def key(self) -> object:
        """Two rounds with equal keys see the same queue."""
        jobs = tuple(
            (
                job.id,
                job.spec,
                job.state,
                job.step,
                job.directive,
                each.forecast.remaining_steps,
                job.retry,
                job.promised_at,
            )
            for each in self.queue.outlooks
            for job in (each.job,)
        )
        return (
            jobs,
            self.queue.sizes,
            self.queue.nodes,
            self.queue.quotas,
            self.queue.stalled,
            self.queue.fails_at,
            self.queue.late,
        )


def promised_deadlines(queue: Queue, found: Mapping[str, CorrectedTimes]) -> list[PromisedDeadline]:
    """Of jobs whose deadlines can be promised now, and were not before."""
    promised = []
    for job in (one.job for one in queue.outlooks):
        deadline = job.spec.deadline_at
        if deadline is None or job.promised_at is not None or job.owner_paused:
            continue
        if answer_to(deadline, found[job.id].shown.left(queue.now), queue.now).answer is Answer.PROMISED:
            words = f"Its deadline at {instant_words(deadline)} is promised: others give way where it would be missed"
            promised.append(PromisedDeadline(job.id, deadline, queue.now, f"{words}."))
    return promised


def times_of(queue: Queue, found: Mapping[str, CorrectedTimes], valid_until: float) -> list[ExpectedTimesRecord]:
    """What a look says, as it is stored, by job id."""
    steps = {one.id: known(expected_steps(one)) for one in queue.outlooks}
    untold = {one.id: untold_steps(one, queue) for one in queue.outlooks}
    report = {one.id: one.job.report_seconds for one in queue.outlooks}
    waiting = {one.id for one in queue.outlooks if queue.sizes.get(one.id, one.present).is_empty}
    left = {job_id: less_untold(each, untold[job_id]).mean for job_id, each in steps.items() if each is not None}
    return [
        ExpectedTimesRecord(
            job_id=job_id,
            at=queue.now,
            valid_until=valid_until,
            start=each.shown.start if job_id in waiting else None,
            end=each.shown.end,
            steps_left=left.get(job_id),
            report_seconds=report.get(job_id, 0.0),
            late_seconds=queue.late.get(job_id),
            awaited=each.shown.awaited,
            at_once=each.shown.at_once,
            cut=each.shown.cut,
            freed_by=each.shown.freed_by,
        )
        for job_id, each in sorted(found.items())
    ]


class QueueAhead:
    """`note` is called by the thread of the rounds; `start` begins a thread that looks. `look` is one look."""

    def __init__(
        self,
        outlooks: Callable[[], Sequence[Outlook]],
        policy: Policy,
        constants: Settings,
        metrics: Metrics,
        round_seconds: float,
        past: PastJobs,
        hindrances: Callable[[], Hindrances] = Hindrances,
        told: Told = list,
    ) -> None:
        """`outlooks`: what the newest round believed of its jobs; `policy`: not shared with the rounds; `past`: what
        earlier jobs tell; `hindrances`: jobs that tell no step; `told`: what users are told now of predictions, once
        the times that they are of are stored."""
        self._outlooks = outlooks
        self._hindrances = hindrances
        self._told = told
        self._policy = policy
        self._constants = constants
        self._metrics = metrics
        self._valid_seconds = max(_VALID_ROUNDS * round_seconds, _VALID_SECONDS)
        self._past = past
        self._predicted = PredictedParts(TIME_PARTS, START_PARTS)
        self._wake_up = threading.Condition()
        self._newest: Seen | None = None
        self._last: Seen | None = None
        """Looked at last, and well."""
        self._last_key: object = None
        self._valid_until = 0.0
        self._failure: str | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)

    # --- from other threads ------------------------------------------------------------------------------------------

    def note(self, snapshot: Snapshot, plan: Plan, leader: LeaderRepository) -> None:
        """A round went well: its queue takes the place of one that nobody has looked at yet. Returns at once."""
        queue = Queue.after_round(snapshot, plan, self._outlooks())
        with self._wake_up:
            self._newest = Seen(queue, leader)
            self._wake_up.notify_all()

    def start(self) -> None:
        """Begin to look after each round."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End after the look in progress."""
        with self._wake_up:
            self._stopping = True
            self._wake_up.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        computed = 0.0
        while not self._stopping:
            with self._wake_up:
                again = max(_AGAIN_SECONDS, computed / _AGAIN_LOAD)
                if self._last is not None and self._last.queue.stalled:
                    again = min(again, GOES_ON_SECONDS)
                self._wake_up.wait_for(lambda: self._stopping or self._newest is not None, again)
            if self._stopping:
                return
            computed = self.look()
            with self._wake_up:
                self._wake_up.wait_for(lambda: self._stopping, computed / _LOAD - computed)

    def look(self) -> float:
        """Look at the newest queue that was noted, if it is another one than before, or other jobs of it have stalled;
        the seconds of a core that it took."""
        with self._wake_up:
            seen, self._newest, self._last = self._newest or self._last, None, None
        if seen is None:
            return 0.0
        started, computed = time.monotonic(), time.thread_time()
        try:
            seen = replace(seen, queue=seen.queue.with_hindrances(self._hindrances()))
            if not self._is_known(seen):
                self._look(seen)
                self._metrics.observe_look_ahead(seen.queue.now, time.monotonic() - started)
        except (DatabaseNotAvailable, StaleLeader) as error:
            _log.warning("what is expected of jobs could not be stored", error=str(error))
        except Exception as error:  # noqa: BLE001 - without this thread nothing would be expected any more
            self._fail(seen, error)
        else:
            self._failure, self._last, self._last_key = None, seen, seen.key
        return time.thread_time() - computed

    def _is_known(self, seen: Seen) -> bool:
        """Whether nothing has happened since the last look, and that is young enough to be shown for a while."""
        return seen.key == self._last_key and seen.queue.now < self._valid_until - self._valid_seconds / 2.0

    def _look(self, seen: Seen) -> None:
        queue, now = seen.queue, seen.queue.now
        queue = replace(queue, arrivals=self._past.arrivals(queue.outlooks, now), lengths=self._past.lengths)
        started, computed = time.monotonic(), time.thread_time()
        found = corrected_times(queue, self._policy, self._constants)
        rest = (time.thread_time() - computed) / _LOAD + time.monotonic() - started
        valid_until = now + self._valid_seconds + 2.0 * rest
        times = times_of(queue, found, valid_until)
        said = [of(one, found[one.id], now) for one in queue.outlooks for of in (time_prediction, start_prediction)]
        predictions = [prediction for prediction in said if prediction is not None]
        seen.leader.rounds.put_expected_times(times, promised_deadlines(queue, found))
        new = self._told(self._new(predictions, seen))
        seen.leader.rounds.add_predictions(new)
        self._predicted.stored(new, (one.id for one in queue.outlooks))
        self._valid_until = valid_until

    def _new(self, predictions: Sequence[PredictionRecord], seen: Seen) -> list[PredictionRecord]:
        """Those that are made for the first time."""
        steps = {one.id: one.job.step for one in seen.queue.outlooks}
        if unknown := self._predicted.unknown(steps):
            self._predicted.know(
                seen.leader.shown_predictions.parts_of(unknown), {each: steps[each] for each in unknown}
            )
        return self._predicted.new(predictions)

    def _fail(self, seen: Seen, error: Exception) -> None:
        """Make a mistake in code visible where people look: a metric, the list of events, the log."""
        message = f"{type(error).__name__}: {error}"
        _log.exception("the queue could not be simulated forward")
        self._metrics.count_unexpected_error(THREAD)
        if message == self._failure:
            return
        self._failure = message
        words = f"The queue could not be simulated forward, times are those at present sizes: {message}"
        try:
            seen.leader.events.add(None, LOOK_AHEAD_FAILED, words, {}, seen.queue.now)
        except (DatabaseNotAvailable, StaleLeader) as unavailable:
            _log.warning("the failure could not be told", error=str(unavailable))
