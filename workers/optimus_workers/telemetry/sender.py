"""The telemetry client: steps are gathered into samples, wait in a bounded queue, and are sent by a thread.

Recording a step never blocks the training.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Protocol

from optimus_contract.telemetry import Sample, Usage
from optimus_workers.errors import ServiceAway, ServiceBusy, ServiceRefused

AWAY_SECONDS = 3600.0
"""How long a task that is done stays to report to a service that is away, as its coordinator does."""
TRY_SECONDS = 1.0
"""Between two attempts of such a task."""

# --- from steps to samples -------------------------------------------------------------------------------------------

SAMPLE_SECONDS = 0.25
"""Steps are gathered for at least this long: short steps would otherwise cost more to report than to compute."""

OPEN_SECONDS = 1.0
"""Steps after which none came for so long are sent as they are: the next one may never come."""

_SUMMED = (
    "n_steps",
    "n_examples",
    "seconds",
    "data_seconds",
    "compute_seconds",
    "push_seconds",
    "wait_seconds",
    "pull_seconds",
    "sent_bytes",
    "received_bytes",
)


class Aggregator:
    """Gathers consecutive steps of one origin into samples, and numbers them per (membership epoch, rank).

    An origin is a worker in one membership: epoch, rank, workers and servers.
    """

    def __init__(self, sample_seconds: float = SAMPLE_SECONDS, usage: Callable[[], Usage] | None = None) -> None:
        """`usage`: what the task took of its machine since the last sample."""
        self._sample_seconds = sample_seconds
        self._usage = usage
        self._open: list[Sample] = []
        self._sequences: dict[tuple[int, int], int] = {}

    def add(self, step: Sample) -> list[Sample]:
        """Take in one step, whose `sequence` does not count; the samples that are complete now (none, one or two)."""
        complete = self.take() if self._open and _origin(self._open[0]) != _origin(step) else []
        self._open.append(step)
        # Figures of an evaluation belong to one step: the sample ends with it.
        if step.metrics is not None or sum(each.seconds for each in self._open) >= self._sample_seconds:
            complete += self.take()
        return complete

    @property
    def is_open(self) -> bool:
        """Whether steps were taken in that no sample has yet."""
        return bool(self._open)

    def take(self) -> list[Sample]:
        """Close the open sample, if any, however short it is."""
        steps, self._open = self._open, []
        merged = self._merged(steps)
        if merged is None:
            return []
        key = merged.membership_epoch, merged.rank
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        return [replace(merged, sequence=sequence)]

    def _merged(self, steps: list[Sample]) -> Sample | None:
        """Consecutive steps of one origin as one; None: there is nothing to report."""
        if not any(step.n_examples for step in steps):
            return None  # a worker without a micro-batch has trained on nothing and has no loss to report
        last = steps[-1]
        return replace(
            last,
            updates=None if last.global_batch is None else len(steps),
            loss=_mean_loss(steps),
            staleness=_mean(step.staleness for step in steps if step.staleness is not None),
            usage=None if self._usage is None else self._usage(),
            **{name: sum(getattr(step, name) for step in steps) for name in _SUMMED},
        )


def _origin(sample: Sample) -> tuple[int, int, int, int]:
    return sample.membership_epoch, sample.rank, sample.workers, sample.servers


def _mean_loss(steps: list[Sample]) -> float:
    """The mean over all examples of these steps."""
    weighed = [(step.loss, step.n_examples) for step in steps if step.n_examples and step.loss is not None]
    return sum(loss * n for loss, n in weighed) / sum(n for _, n in weighed)


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


# --- the queue -------------------------------------------------------------------------------------------------------

CAPACITY = 10_000
"""About 40 minutes of samples at the densest; some 10 MB."""
BATCH_SAMPLES = 500
"""Well below what the service accepts in one post (1000 samples, 1 MiB)."""
POST_PERIOD_SECONDS = 1.0
"""Seconds between two posts: what the service sees is late by this at most."""
FIRST_RETRY_SECONDS = 0.5
MAX_POST_PERIOD_SECONDS = 30.0
"""While the service is busy posts become rarer, and larger: the same samples cost it less."""
MAX_RETRY_SECONDS = 5.0
"""A service that came back hears of us within this time; the attempts cost next to nothing."""


class Outbox:
    """Samples in order of age. At most one batch is out at a time; when full, the oldest are dropped and counted."""

    def __init__(self, capacity: int = CAPACITY, post_period_seconds: float = POST_PERIOD_SECONDS) -> None:
        self._capacity = capacity
        self._least_period = self._period = post_period_seconds
        self._waiting: deque[Sample] = deque()
        self._out: list[Sample] = []
        self._due_at = float("-inf")
        self._hurried = False
        self._retry_seconds = FIRST_RETRY_SECONDS
        self.n_sent = 0
        self.n_dropped = 0
        """Lost because the service was away for too long."""
        self.n_refused = 0
        """Lost because the service did not want them."""

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is out."""
        return not self._waiting and not self._out

    def put(self, samples: Iterable[Sample]) -> None:
        """Add samples, the youngest last."""
        self._waiting.extend(samples)
        self._drop_oldest()

    def seconds_until_due(self, now: float) -> float | None:
        """How long to wait before the next batch should be taken; None when there is nothing to send."""
        return max(0.0, self._due_at - now) if self._waiting else None

    def hurry(self) -> None:
        """Make the next attempt due at once, and leave out the period until all that waits is sent."""
        self._due_at = float("-inf")
        self._hurried = not self.is_empty

    def take(self) -> list[Sample]:
        """The oldest samples, to be sent now. To be followed by `sent`, `sent_but_for`, `refused` or `failed`."""
        assert not self._out, "one batch is out already"
        self._out = [self._waiting.popleft() for _ in range(min(BATCH_SAMPLES, len(self._waiting)))]
        return self._out

    def sent(self, now: float) -> None:
        """The batch that is out arrived."""
        self.n_sent += len(self._out)
        self._period = max(self._period / 2, self._least_period)
        self._settle(now)

    def sent_but_for(self, again: Iterable[Sample], now: float) -> None:
        """The batch that is out arrived, but these of it, whose membership is not known there, wait again."""
        n_out, self._out = len(self._out), list(again)
        self.n_sent += n_out - len(self._out)
        self.failed(now)

    def refused(self, now: float) -> None:
        """The service will not take the batch that is out, ever."""
        self.n_refused += len(self._out)
        self._settle(now)

    def failed(self, now: float) -> None:
        """The batch that is out may not have arrived: it waits again, and the pause before the next attempt doubles."""
        self._waiting.extendleft(reversed(self._out))
        self._out = []
        self._drop_oldest()
        self._due_at = now + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, MAX_RETRY_SECONDS)

    def postponed(self, now: float, retry_after: float) -> None:
        """The service is too busy for the batch that is out: it waits for `retry_after` seconds at least, and posts
        become rarer until the service takes them again."""
        self._period = min(max(2 * self._period, retry_after), MAX_POST_PERIOD_SECONDS)
        self.failed(now)
        self._due_at = now + max(retry_after, self._period)

    def _settle(self, now: float) -> None:
        self._out = []
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._hurried = self._hurried and not self.is_empty
        piled_up = len(self._waiting) >= BATCH_SAMPLES
        is_busy = self._period > self._least_period
        self._due_at = now if self._hurried or (piled_up and not is_busy) else now + self._period

    def _drop_oldest(self) -> None:
        while len(self._waiting) > self._capacity:
            self._waiting.popleft()
            self.n_dropped += 1


# --- the sending thread ----------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)


class Post(Protocol):
    """Sends samples, and returns those that wait for their membership to be known; raises `ServiceAway` or
    `ServiceRefused`. (`ServiceClient.post_telemetry`.)"""

    def __call__(self, samples: list[Sample], /) -> list[Sample]: ...


class Telemetry:
    """Takes one record per step and sees to it that the service learns of it, at least once, some time.

    While the service is away, or does not know their membership, samples wait in a bounded queue; losing telemetry
    costs the job nothing. The coordinator may reach the service later than its workers do, and reports a membership
    again that the service has forgotten.
    """

    def __init__(
        self,
        post: Post,
        *,
        aggregator: Aggregator | None = None,
        outbox: Outbox | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_back: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_back`: called on the sending thread when the service takes samples again after it was away; it may know
        less than before."""
        self._post = post
        self._on_back = on_back
        self._clock = clock
        self._aggregator = aggregator or Aggregator()
        self._outbox = outbox or Outbox()
        self._newest_at = 0.0
        """When the newest step came."""
        self._closed = False
        self._away = False
        self._unknown = False
        """Whether samples of the last post wait for their membership."""
        self._refusal = ""
        self._changed = threading.Condition()  # guards everything above; notified when something was put or sent
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    @property
    def n_dropped(self) -> int:
        """Samples given up, because the service was away for too long or did not want them."""
        with self._changed:
            return self._outbox.n_dropped + self._outbox.n_refused

    def record(self, step: Sample) -> None:
        """Take in one step. Does not wait for the network; after `close` steps are ignored."""
        with self._changed:
            if self._closed:
                return
            was_open = self._aggregator.is_open
            samples = self._aggregator.add(step)
            self._newest_at = self._clock()
            self._outbox.put(samples)
            if samples or not was_open:
                self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Send what is there, the unfinished sample too; whether all of it arrived (or was refused) in time."""
        with self._changed:
            self._outbox.put(self._aggregator.take())
            self._outbox.hurry()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._outbox.is_empty or self._closed, timeout_seconds)
            return self._outbox.is_empty

    def outlast(self, is_over: Callable[[], bool]) -> None:
        """`flush` while the service is away, for an hour at most and until `is_over()`.

        For a task whose job is over: what it has not reported yet is lost with it. No other task gets its place before
        the service is back. Samples of a membership that the service does not know are not waited for: who reports it
        may have ended.
        """
        give_up_at = self._clock() + AWAY_SECONDS
        while not is_over() and self._clock() < give_up_at and not self.flush(TRY_SECONDS):
            if self._unknown:
                return

    def close(self, timeout_seconds: float) -> bool:
        """`flush`, then stop. Returns after `timeout_seconds` at the latest; what is left then is lost."""
        arrived = self.flush(timeout_seconds)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return arrived

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._send(batch)

    def _next_batch(self) -> list[Sample] | None:
        """Wait until a batch is due; None when closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                open_for = self._newest_at + OPEN_SECONDS - now if self._aggregator.is_open else None
                if open_for is not None and open_for <= 0.0:
                    self._outbox.put(self._aggregator.take())
                    continue
                pause = self._outbox.seconds_until_due(now)
                if pause == 0.0:
                    return self._outbox.take()
                self._changed.wait(min((each for each in (pause, open_for) if each is not None), default=None))
            return None

    def _send(self, batch: list[Sample]) -> None:
        settle: Callable[[float], None] = self._outbox.sent
        try:
            again = self._post_what_is_taken(batch)
        except ServiceBusy as error:
            settle = partial(self._outbox.postponed, retry_after=error.retry_after)
        except ServiceAway as error:
            settle = self._outbox.failed
            if not self._away:
                log.warning("telemetry waits until the service is back: %s", error)
            self._away = True
        except ServiceRefused as error:
            settle = self._outbox.refused
            if str(error) != self._refusal:  # once, not every second
                log.warning("telemetry is refused, and the samples are lost: %s", error)
            self._refusal = str(error)
        else:
            if self._away:
                log.info("the service is back, telemetry goes on")
                self._on_back()
            if again and not self._unknown:
                log.info("samples wait until the service knows membership epoch %d", again[0].membership_epoch)
            self._away, self._unknown = False, bool(again)
            if again:
                settle = partial(self._outbox.sent_but_for, again)
        with self._changed:
            settle(self._clock())
            self._changed.notify_all()

    def _post_what_is_taken(self, batch: list[Sample]) -> list[Sample]:
        """Post a batch; where a figure is refused, such as a learning rate of 1e20, without those it can do without."""
        try:
            return self._post(batch)
        except ServiceRefused as error:
            needed = [
                replace(sample, learning_rate=None, staleness=None, usage=None, gradients=None, metrics=None)
                for sample in batch
            ]
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or needed == batch:
                raise
            again = self._post(needed)
            if str(error) != self._refusal:
                log.warning("a figure is refused, and the samples are sent with step, loss and times only: %s", error)
            self._refusal = str(error)
            return again
