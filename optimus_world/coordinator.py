"""A job's coordinator: the real state machine, journal and checkpoints, with the simulation as its shell."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path

from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_contract.membership import WantedMembership
from optimus_contract.result import JobProfile
from optimus_workers.checkpoint.manifest import manifest_name, newest_manifest, write_manifest
from optimus_workers.coordinator.events import (
    Append,
    CheckpointRead,
    Effect,
    Effects,
    Event,
    ManifestWritten,
    MembershipRefused,
    MessageArrived,
    ReadCheckpoint,
    ReportCheckpoints,
    ReportMembership,
    ReportProfile,
    ReportResult,
    ReportSilence,
    Send,
    Stop,
    TaskArrived,
    TaskLost,
    TaskSilent,
    Ticked,
    WantedArrived,
    WriteManifest,
)
from optimus_workers.coordinator.job_settings import JobSettings, steps_per_epoch
from optimus_workers.coordinator.journal import Formed, Journal, Reported, Superseded, replay
from optimus_workers.coordinator.service_calls import (
    REFUSED_SECONDS,
    RETRY_SECONDS,
    membership_report,
)
from optimus_workers.coordinator.shell import LEASE_SECONDS
from optimus_workers.coordinator.transitions import InvalidTransition, begin, handle
from optimus_workers.errors import TERMINATED, ServiceAway, ServiceRefused
from optimus_workers.service_client import ServiceClient
from optimus_workers.wire.messages import FromTask, Hello
from optimus_workers.wire.values import TaskProfile
from optimus_world.cluster import RunningTask
from optimus_world.tasks import Link, Surroundings, storage_of

MAX_WAIT_SECONDS = 60.0
"""The longest poll that the service answers. Real coordinators ask again sooner; what they see is the same."""
TICK_SECONDS = 2.0
"""Rarer than the real one's 0.1 s, so that hours are cheap: deadlines are noticed a little later."""


class CoordinatorAgent:
    """One incarnation of a job's coordinator."""

    def __init__(self, world: Surroundings, running: RunningTask) -> None:
        self.world = world
        self.kernel = world.kernel
        self.running = running
        self.process = running.process
        environment = running.launch.environment
        self.job_id = running.launch.key.job_id
        self._attempt = int(environment["OPTIMUS_ATTEMPT"])
        self._links: dict[str, Link] = {}
        self._hellos: dict[str, Hello] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._leaves_from: float | None = None
        self._is_over = False
        self._code: int | None = None
        directory = Path(environment["OPTIMUS_JOB_DIRECTORY"])
        self._storage = storage_of(directory)
        self._client = ServiceClient(
            environment["OPTIMUS_SERVICE_URL"],
            self.job_id,
            environment["OPTIMUS_JOB_TOKEN"],
            transport=world.transport(self.process),
        )
        running.terminate = self.terminate
        plan = JobSettings.from_spec(read(JobSpec, json.loads(environment["OPTIMUS_JOB_SPEC"])))
        self._journal = Journal(directory, running.launch.key.incarnation)
        try:
            past = replay(self._journal.take_over(self._attempt))
        except Superseded:
            self._is_over = True
            self._end(TERMINATED)
            return
        self.state, effects = begin(plan, past, world.now())
        self._carry_out_all(effects)
        self.kernel.spawn(self.process, "wanted", self._watch)
        self.kernel.spawn(self.process, "reports", self._report)
        self._tick()

    # --- connections -------------------------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        return self.process.is_alive and not self._is_over

    def accept(self, link: Link, hello: Hello) -> None:
        """A task has dialled."""

        def arrive() -> None:
            before = self._links.pop(hello.task, None)
            if before is not None:
                before.end()
                self._happened(TaskLost(hello.task))
            self._links[hello.task] = link
            self._happened(TaskArrived(hello))

        self.kernel.after(0.01, arrive, self.process)

    def heard(self, link: Link, message: FromTask) -> None:
        self._happened(MessageArrived(link.task.name, message))

    def lost(self, link: Link) -> None:
        """A connection is over."""
        if self._links.get(link.task.name) is link:
            del self._links[link.task.name]
            self._happened(TaskLost(link.task.name))

    def silence(self, task: str) -> None:
        """A task has not answered for long."""
        link = self._links.get(task)
        if link is not None:
            self._happened(TaskSilent(task, LEASE_SECONDS))
            link.end()

    def hang_up(self) -> None:
        """The process is gone: so are its connections."""
        for link in list(self._links.values()):
            link.end()
        self._journal.close()

    # --- events and effects ------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        if self._is_over:
            return
        try:
            self._carry_out_all(handle(self.state, event, self.world.now()))
        except InvalidTransition:
            return  # as the real one does: it is logged, and has changed nothing

    def _carry_out_all(self, effects: Effects) -> None:
        for effect in effects:
            try:
                if isinstance(effect, WriteManifest):
                    self._journal.check()
                self._carry_out(effect)
            except Superseded:
                self._is_over = True
                self._end(TERMINATED)
                return

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                link = self._links.get(effect.task)
                if link is not None:
                    link.to_task(effect.message)
            case Append():
                self._journal.append(effect.record)
            case ReportProfile():
                profile = _profile(effect.profile)
                self._calls.append(lambda: self._client.put_profile(profile))
            case ReportMembership():
                formed = effect.formed
                self._calls.append(lambda: self._report_membership(formed))
            case ReportResult():
                ended = effect.ended
                self._calls.append(lambda: self._client.post_result(ended.as_result(self._attempt, self.world.now())))
            case ReportCheckpoints():
                news = effect.news
                self._calls.append(lambda: self._client.post_checkpoints(news))
            case ReportSilence():
                words = effect.news
                self._calls.append(lambda: self._client.post_silence(words))
            case ReadCheckpoint():
                self._later(lambda: self._read_checkpoint(effect.epoch))
            case WriteManifest():
                self._later(lambda: self._write_manifest(effect))
            case Stop():
                self._end(effect.code)
            case _:
                pass

    def _later(self, call: Callable[[], None]) -> None:
        self.kernel.after(0.1, call, self.process)

    def _read_checkpoint(self, epoch: int) -> None:
        manifest, _ = newest_manifest(self._storage)
        path = "" if manifest is None else self._storage.location(manifest_name(manifest.version))
        self._happened(CheckpointRead(epoch, manifest, path))

    def _write_manifest(self, effect: WriteManifest) -> None:
        path = write_manifest(self._storage, effect.manifest)
        self._happened(ManifestWritten(effect.manifest.version, path))

    # --- time, and the end -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._happened(Ticked())
        if not self._is_over:
            try:
                self._journal.check()
            except Superseded:
                self._is_over = True
                self._end(TERMINATED)
        if self._leaves_from is not None and self.kernel.now >= self._leaves_from and self.state.is_settled:
            self._end(TERMINATED)
        if not self._is_over:
            self.kernel.after(TICK_SECONDS, self._tick, self.process)

    def terminate(self) -> None:
        """SIGTERM."""
        if not self._links:
            self._end(TERMINATED)
            return
        self._leaves_from = self.kernel.now + 1.5
        self.kernel.after(10.0, lambda: self._end(TERMINATED), self.process)

    def _end(self, code: int) -> None:
        """Exit once all reports are made, but at once when another coordinator has begun or this one is stopped."""
        if self._code is not None and code != TERMINATED:
            return
        self._code = code
        if code == TERMINATED or not self._calls:
            self._is_over = True
            self.world.leave(self.running, code)

    # --- the service -------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        while True:
            if not self._calls:
                self.kernel.sleep(1.0)
            elif self._made(self._calls[0]):
                self._calls.popleft()
                if self._code is not None and not self._calls:
                    self._end(self._code)
                    self.world.leave(self.running, self._code)
            else:
                self.kernel.sleep(RETRY_SECONDS)

    def _made(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except ServiceAway:
            return False
        except ServiceRefused:
            return True
        return True

    def _report_membership(self, formed: Formed) -> None:
        try:
            self._client.report_membership(membership_report(formed))
        except ServiceRefused as error:
            if error.is_about_the_body:
                self._happened(MembershipRefused(error.detail))
            raise
        self._carry_out_all([Append(Reported(formed.epoch))])

    def _watch(self) -> None:
        generation, pause = -1, RETRY_SECONDS
        while True:
            try:
                wanted: WantedMembership = self._client.wanted(
                    max(generation, 0), MAX_WAIT_SECONDS if generation >= 0 else 0.0
                )
            except ServiceAway:
                self.kernel.sleep(RETRY_SECONDS)
                continue
            except ServiceRefused:
                pause = min(2 * pause, REFUSED_SECONDS)
                self.kernel.sleep(pause)
                continue
            pause = RETRY_SECONDS
            generation = max(generation, wanted.generation)
            self._happened(WantedArrived(wanted))


def _profile(profile: TaskProfile) -> JobProfile:
    return JobProfile(
        n_parameters=profile.n_parameters,
        n_examples=profile.n_examples,
        global_batch_size=profile.global_batch_size,
        steps_per_epoch=steps_per_epoch(profile),
    )
