"""Telling the service, in order, for as long as it takes: a thread with a queue."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from optimus_workers.coordinator.journal import Ended, Formed
from optimus_workers.coordinator.plan import steps_per_epoch
from optimus_workers.coordinator.results import failure, storable
from optimus_workers.errors import ServiceAway, ServiceRefused
from optimus_workers.service_client import ServiceClient
from optimus_workers.wire.values import TaskProfile

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""Between two attempts while the service is away: less than the telemetry's, whose samples need the membership."""

MESSAGE_CHARACTERS = 2000
"""Of a membership's message: the service takes no more."""

Call = Callable[[], None]


class Reporter:
    """Makes calls to the service one after the other; one that finds the service away is repeated until it gets
    through. One that is refused is never repeated: a line in the log tells it, and what the job cannot do without
    fails it in the service's words."""

    def __init__(
        self,
        client: ServiceClient,
        on_reported: Callable[[int], None],
        on_refused: Callable[[str], None],
        attempt: int = 0,
    ) -> None:
        """On the reporting thread, `on_reported(epoch)` is called when the service knows of a membership epoch, and
        `on_refused(reason)` when it will not take one. `attempt`: what results belong to."""
        self._client = client
        self._attempt = attempt
        self._on_reported = on_reported
        self._on_refused = on_refused
        self.is_result_refused = False
        """The service took neither the result nor, in its place, that it had refused it."""
        self._calls: deque[Call] = deque()
        self._changed = threading.Condition()  # guards _calls; notified when it changes
        threading.Thread(target=self._run, name="reporter", daemon=True).start()

    def profile(self, profile: TaskProfile) -> None:
        body = profile_body(profile)
        self._put(lambda: self._client.put_profile(body))

    def membership(self, formed: Formed) -> None:
        body = membership_body(formed)

        def report() -> None:
            try:
                self._client.report_membership(body)
            except ServiceRefused as error:
                if error.is_about_the_body:
                    self._on_refused(error.detail)
                raise
            self._on_reported(formed.epoch)

        self._put(report)

    def result(self, ended: Ended) -> None:
        self._put(lambda: self._tell_result(ended))

    def _tell_result(self, ended: Ended) -> None:
        try:
            self._client.post_result(result_body(ended, self._attempt))
        except ServiceRefused as error:
            if not error.is_about_the_body:
                raise  # the job has ended, or nobody knows it
            log.error("the service refused the result; the job fails: %s", error)  # noqa: TRY400 - its text says all
            self._tell_refusal(ended, error.detail)

    def _tell_refusal(self, ended: Ended, detail: str) -> None:
        failed = failure(ended.step, None, f"the service refused the job's result: {detail}", None, permanent=True)
        try:
            self._client.post_result(result_body(failed, self._attempt))
        except ServiceRefused:
            self.is_result_refused = True
            raise

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until everything has been told; whether it was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._calls, timeout_seconds)

    def _put(self, call: Call) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._calls))
                call = self._calls[0]
            if self._succeeds(call):
                with self._changed:
                    self._calls.popleft()
                    self._changed.notify_all()
            else:
                time.sleep(RETRY_SECONDS)

    def _succeeds(self, call: Call) -> bool:
        try:
            call()
        except ServiceAway as error:
            log.warning("the service is away: %s", error)
            return False
        except ServiceRefused as error:
            log.error("the service refused a report: %s", error)  # noqa: TRY400 - its text says all
        return True


def profile_body(profile: TaskProfile) -> dict[str, Any]:
    """A `JobProfile`."""
    return {
        "n_parameters": profile.n_parameters,
        "n_examples": profile.n_examples,
        "global_batch_size": profile.global_batch_size,
        "steps_per_epoch": steps_per_epoch(profile),
    }


def membership_body(formed: Formed) -> dict[str, Any]:
    """A `MembershipReport`."""
    return {
        "epoch": formed.epoch,
        "generation": formed.generation,
        "at": formed.at,
        "step": formed.told_step,
        "workers": list(formed.workers),
        "servers": list(formed.servers),
        "cause": formed.cause,
        "pause_seconds": formed.pause_seconds,
        "lost_steps": formed.lost_steps,
        "message": None if formed.message is None else storable(formed.message)[-MESSAGE_CHARACTERS:],
    } | ({"global_batch": formed.batch.size} if formed.batch is not None and formed.batch.is_elastic else {})


def result_body(ended: Ended, attempt: int = 0) -> dict[str, Any]:
    """A `JobResult`."""
    return {
        "outcome": ended.outcome,
        "step": ended.step,
        "final_loss": ended.final_loss,
        "metrics": ended.metrics,
        "checkpoint": ended.checkpoint,
        "model": ended.model,
        "error": ended.error,
        "attempt": attempt,
        "permanent": ended.permanent,
    }
