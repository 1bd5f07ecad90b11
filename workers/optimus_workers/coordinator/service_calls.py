"""The coordinator's calls to the service, each kind on a thread of its own: wanted memberships, reports, usage."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass

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


Ask = Callable[[int, float], WantedMembership]
"""`ServiceClient.wanted`, or the reporter's."""
OnWanted = Callable[[WantedMembership], None]


def watch_wanted(ask: Ask, on_wanted: OnWanted) -> Callable[[], None]:
    """Call `on_wanted`, on threads of its own, with what is wanted: now, at a change, and unchanged after a poll. A
    service that was away is asked without a wait, as at first: it may be another one by now, or know less.

    Returns:
        Asks beside the poll, for those to whom its end is too far away. Does not wait for the answer.
    """
    asked = threading.Event()
    threading.Thread(target=_watch, args=(ask, on_wanted), name="wanted", daemon=True).start()
    threading.Thread(target=_answer, args=(ask, on_wanted, asked), name="wanted now", daemon=True).start()
    return asked.set


def _answer(ask: Ask, on_wanted: OnWanted, asked: threading.Event) -> None:
    """Whoever asks while a call is under way gets the answer of the next one."""
    while asked.wait():
        asked.clear()
        try:
            on_wanted(ask(0, 0.0))
        except ServiceAway:
            time.sleep(RETRY_SECONDS)
            asked.set()
        except ServiceRefused as error:
            log.debug("the poll says when this is over: %s", error)


def _watch(ask: Ask, on_wanted: OnWanted) -> None:
    generation, waits = 0, False
    logged, pause = "", RETRY_SECONDS
    while True:
        try:
            wanted = ask(generation, POLL_SECONDS) if waits else ask(0, 0.0)
        except ServiceProblem as error:
            if str(error) != logged:  # once, not every time
                log.warning("cannot learn what is wanted: %s", error)
            logged, waits = str(error), False
            # It may be refused for long: the job may not be known (any more), or the service's secret be another.
            pause = min(2 * pause, REFUSED_SECONDS) if isinstance(error, ServiceRefused) else RETRY_SECONDS
            time.sleep(pause)
            continue
        logged, pause, waits = "", RETRY_SECONDS, True
        generation = max(generation, wanted.generation)
        on_wanted(wanted)


# --- reports ---------------------------------------------------------------------------------------------------------

Call = Callable[[], None]


@dataclass(eq=False, frozen=True, slots=True)
class _Taken:
    """One answer of the service that it has taken this membership."""

    formed: Formed


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
        self._taken: _Taken | None = None
        """The newest membership that the service has taken; None: it has taken none, or has forgotten it."""
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
                if self._taken is None or formed.epoch >= self._taken.formed.epoch:
                    self._taken = _Taken(formed)
            self._on_reported(formed.epoch)

        self._put(report)

    def wanted(self, after: int, timeout_seconds: float) -> WantedMembership:
        """`ServiceClient.wanted`; what the answer shows to be forgotten is reported again.

        The answer tells the newest membership that the service knows. If it had taken a later one before it was asked,
        its database was restored from an older backup: without that membership, what its workers tell does not count.
        """
        with self._changed:
            taken = self._taken
        wanted = self._client.wanted(after, timeout_seconds)
        if taken is None or wanted.membership_epoch >= taken.formed.epoch:
            return wanted
        with self._changed:
            if self._taken is not taken:
                return wanted  # another answer has shown that already, or a later membership was taken since
            self._taken = None
        log.warning("the service has forgotten membership epoch %d: it is reported again", taken.formed.epoch)
        if (profile := self._profile) is not None:
            self._put(lambda: self._client.put_profile(profile))
        self.membership(taken.formed)
        return wanted

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
