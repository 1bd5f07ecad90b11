"""The telemetry client: records never block the training, a thread sends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from optimus_workers.errors import ServiceAway, ServiceRefused
from optimus_workers.telemetry.outbox import Outbox
from optimus_workers.telemetry.samples import Aggregator, Record, Sample

log = logging.getLogger(__name__)


class Post(Protocol):
    """Sends samples; raises `ServiceAway` or `ServiceRefused`. (`ServiceClient.post_telemetry`.)"""

    def __call__(self, samples: list[Sample], /) -> dict[str, Any]: ...


class Telemetry:
    """Takes one record per step and sees to it that the service learns of it, at least once, some time.

    While the service is away samples wait in a bounded queue; losing telemetry costs the job nothing.
    """

    def __init__(
        self,
        post: Post,
        *,
        aggregator: Aggregator | None = None,
        outbox: Outbox | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._post = post
        self._clock = clock
        self._aggregator = aggregator or Aggregator()
        self._outbox = outbox or Outbox()
        self._closed = False
        self._away = False
        self._refusal = ""
        self._changed = threading.Condition()  # guards everything above; notified when something was put or sent
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    @property
    def n_dropped(self) -> int:
        """Samples given up, because the service was away for too long or did not want them."""
        with self._changed:
            return self._outbox.n_dropped + self._outbox.n_refused

    def record(self, record: Record) -> None:
        """Take in one step. Does not wait for the network; after `close` records are ignored."""
        with self._changed:
            samples = [] if self._closed else self._aggregator.add(record)
            if samples:
                self._outbox.put(samples)
                self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Send what is there, the unfinished sample too; whether all of it arrived (or was refused) in time."""
        with self._changed:
            self._outbox.put(self._aggregator.take())
            self._outbox.hurry()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._outbox.is_empty or self._closed, timeout_seconds)
            return self._outbox.is_empty

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
                pause = self._outbox.seconds_until_due(self._clock())
                if pause == 0.0:
                    return self._outbox.take()
                self._changed.wait(pause)
            return None

    def _send(self, batch: list[Sample]) -> None:
        settle = self._outbox.sent
        try:
            self._post(batch)
        except ServiceAway as error:
            settle = self._outbox.failed
            self._note_away(error)
        except ServiceRefused as error:
            settle = self._outbox.refused
            self._note_refused(error)
        else:
            self._note_back()
        with self._changed:
            settle(self._clock())
            self._changed.notify_all()

    def _note_away(self, error: ServiceAway) -> None:
        if not self._away:
            log.warning("telemetry waits until the service is back: %s", error)
        self._away = True

    def _note_refused(self, error: ServiceRefused) -> None:
        if str(error) != self._refusal:  # once, not every second
            log.warning("telemetry is refused, and the samples are lost: %s", error)
        self._refusal = str(error)

    def _note_back(self) -> None:
        if self._away:
            log.info("the service is back, telemetry goes on")
        self._away = False
