"""The coordinator's calls to the service, each kind on a thread of its own: wanted memberships, reports, usage."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from optimus_contract.membership import MembershipReport, PauseParts, WantedMembership
from optimus_contract.result import JobProfile, JobResult
from optimus_contract.telemetry import Note, TaskUsageReport, Usage
from optimus_workers.coordinator.handlers.ending import failure, storable
from optimus_workers.coordinator.job_settings import steps_per_epoch
from optimus_workers.coordinator.journal import Ended, Formed
from optimus_workers.errors import ServiceAway, ServiceProblem, ServiceRefused
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry.usage import ProcessMeter
from optimus_workers.wire.messages import Pong
from optimus_workers.wire.values import TaskProfile

log = logging.getLogger(__name__)

POLL_SECONDS = 25.0
RETRY_SECONDS = 1.0
"""Between two attempts while the service is away: less than the telemetry's, whose samples need the membership."""
REFUSED_SECONDS = 60.0
"""Longest pause after a long poll that was refused. The job trains on, as it does without a service."""
MESSAGE_CHARACTERS = 2000
"""The service takes no more of a membership's message."""

# --- what the service wants ------------------------------------------------------------------------------------------


OnWanted = Callable[[WantedMembership], None]


def watch_wanted(client: ServiceClient, on_wanted: OnWanted) -> Callable[[], None]:
    """Call `on_wanted`, on threads of its own, with what is wanted: now, at a change, and unchanged after a poll.

    Returns:
        Asks beside the poll, for those to whom its end is too far away. Does not wait for the answer.
    """
    asked = threading.Event()
    threading.Thread(target=_watch, args=(client, on_wanted), name="wanted", daemon=True).start()
    threading.Thread(target=_answer, args=(client, on_wanted, asked), name="wanted now", daemon=True).start()
    return asked.set


def _answer(client: ServiceClient, on_wanted: OnWanted, asked: threading.Event) -> None:
    """Whoever asks while a call is under way gets the answer of the next one."""
    while asked.wait():
        asked.clear()
        try:
            on_wanted(client.wanted(0, 0.0))
        except ServiceAway:
            time.sleep(RETRY_SECONDS)
            asked.set()
        except ServiceRefused as error:
            log.debug("the poll says when this is over: %s", error)


def _watch(client: ServiceClient, on_wanted: OnWanted) -> None:
    generation = -1
    logged, pause = "", RETRY_SECONDS
    while True:
        try:
            wanted = client.wanted(max(generation, 0), POLL_SECONDS if generation >= 0 else 0.0)
        except ServiceProblem as error:
            if str(error) != logged:  # once, not every time
                log.warning("cannot learn what is wanted: %s", error)
            logged = str(error)
            # It may be refused for long: the job may not be known (any more), or the service's secret be another.
            pause = min(2 * pause, REFUSED_SECONDS) if isinstance(error, ServiceRefused) else RETRY_SECONDS
            time.sleep(pause)
            continue
        logged, pause = "", RETRY_SECONDS
        generation = max(generation, wanted.generation)
        on_wanted(wanted)


# --- reports ---------------------------------------------------------------------------------------------------------

Call = Callable[[], None]


class Reporter:
    """Makes reports to the service, one after the other.

    A report that finds the service away is repeated until it gets through. One that is refused is logged and never
    repeated; if the job cannot do without it, the job fails with the service's words.
    """

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
        self._profile: JobProfile | None = None
        self._known: Formed | None = None
        """The newest membership that the service has taken ..."""
        self._is_doubted = False
        """... of which its last answer did not know."""
        self._calls: deque[Call] = deque()
        self._changed = threading.Condition()  # guards _calls; notified when it changes
        threading.Thread(target=self._run, name="reporter", daemon=True).start()

    def profile(self, profile: TaskProfile) -> None:
        report = JobProfile(
            n_parameters=profile.n_parameters,
            n_examples=profile.n_examples,
            global_batch_size=profile.global_batch_size,
            steps_per_epoch=steps_per_epoch(profile),
        )
        self._profile = report
        self._put(lambda: self._client.put_profile(report))

    def membership(self, formed: Formed) -> None:
        body = membership_report(formed)

        def report() -> None:
            try:
                self._client.report_membership(body)
            except ServiceRefused as error:
                if error.is_about_the_body:
                    self._on_refused(error.detail)
                raise
            with self._changed:
                if self._known is None or formed.epoch >= self._known.epoch:
                    self._known = formed
            self._on_reported(formed.epoch)

        self._put(report)

    def service_knows(self, epoch: int) -> None:
        """The service has said which membership is the newest that it knows. If it has taken a later one, its database
        was restored from an older backup: without that membership, what its workers tell would not count.

        One answer may have been under way while the membership was taken; the next one was asked for after that.
        """
        with self._changed:
            is_older = self._known is not None and epoch < self._known.epoch
            forgotten = self._known if is_older and self._is_doubted else None
            self._is_doubted = is_older and forgotten is None
            if forgotten is not None:
                self._known = None  # until it is taken again
        if forgotten is None:
            return
        log.warning("the service has forgotten membership epoch %d: it is reported again", forgotten.epoch)
        if (profile := self._profile) is not None:
            self._put(lambda: self._client.put_profile(profile))
        self.membership(forgotten)

    def checkpoints(self, news: str) -> None:
        self._put(lambda: self._client.post_checkpoints(news))

    def silence(self, news: str) -> None:
        self._put(lambda: self._client.post_silence(news))

    def note(self, note: Note) -> None:
        self._put(lambda: self._client.post_note(note))

    def result(self, ended: Ended) -> None:
        self._put(lambda: self._post_result(ended))

    def _post_result(self, ended: Ended) -> None:
        try:
            self._client.post_result(self._result(ended))
        except ServiceRefused as error:
            if not error.is_about_the_body:
                raise  # the job has ended, or is not known
            log.error("the service refused the result; the job fails: %s", error)  # noqa: TRY400 - its text says all
            self._post_refusal(ended, error.detail)

    def _post_refusal(self, ended: Ended, detail: str) -> None:
        failed = failure(ended.step, None, f"the service refused the job's result: {detail}", None, permanent=True)
        try:
            self._client.post_result(self._result(failed))
        except ServiceRefused:
            self.is_result_refused = True
            raise

    def _result(self, ended: Ended) -> JobResult:
        return ended.as_result(self._attempt, time.time())

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until all reports have been made; whether they were in time."""
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


def membership_report(formed: Formed) -> MembershipReport:
    """The service's view of a membership: steps are those of the base batch."""
    batch = formed.batch
    return MembershipReport(
        epoch=formed.epoch,
        generation=formed.generation,
        at=formed.at,
        step=formed.reported_step,
        workers=list(formed.workers),
        servers=list(formed.servers),
        cause=formed.cause,
        global_batch=batch.size if batch is not None and batch.is_elastic else None,
        pause_seconds=formed.pause_seconds,
        pause_parts=None if formed.pause_parts is None else PauseParts(**asdict(formed.pause_parts)),
        lost_steps=formed.lost_steps,
        message=None if formed.message is None else storable(formed.message)[-MESSAGE_CHARACTERS:],
    )


# --- usage -----------------------------------------------------------------------------------------------------------


class UsageReporter:
    """Reports the cores and memory that the servers (from their pongs) and the coordinator itself use.

    `heard`, `forget` and `report` are called on one thread and do not wait. Only the newest counts: what the service
    missed while it was away is not repeated.
    """

    def __init__(self, client: ServiceClient, own_task: str) -> None:
        """`own_task`: the coordinator's name."""
        self._client = client
        self._own_task = own_task
        self._meter = ProcessMeter()
        self._heard: dict[str, Usage] = {}
        self._waiting: list[TaskUsageReport] = []
        self._changed = threading.Condition()  # guards _waiting; notified when there is something
        threading.Thread(target=self._run, name="usage", daemon=True).start()

    def heard(self, task: str, pong: Pong) -> None:
        """A task answered a ping. Workers answer without their usage."""
        if pong.cpu_cores is not None and pong.memory_bytes is not None:
            self._heard[task] = Usage(cpu_cores=pong.cpu_cores, memory_bytes=pong.memory_bytes)

    def forget(self, task: str) -> None:
        """The task is gone."""
        self._heard.pop(task, None)

    def report(self) -> None:
        """Send what was heard since the last report, and what this process used since then."""
        heard, self._heard = self._heard, {}
        newest = heard | {self._own_task: self._meter.read()}
        with self._changed:
            self._waiting = [TaskUsageReport(task=task, usage=usage) for task, usage in newest.items()]
            self._changed.notify_all()

    def _run(self) -> None:
        refusal = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                waiting, self._waiting = self._waiting, []
            try:
                self._client.post_usage(waiting)
            except ServiceAway as error:
                log.debug("the usage of the tasks was not reported: %s", error)
            except ServiceRefused as error:
                if str(error) != refusal:  # once, not every few seconds
                    log.warning("the service refused the usage of the tasks: %s", error)
                refusal = str(error)
