"""Trainings that are watched by what stock libraries post to this service: the job of each run, its samples, its end.

What was counted is in the database: a service that was restarted, or another replica, goes on from there. Only figures
that came without a step of their own wait in memory for the next one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from pydantic import ValidationError

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.limits import MAX_SAMPLES_PER_POST
from optimus_contract.readings.kubeflow import Kubeflow
from optimus_contract.readings.mlflow import LoggedRun
from optimus_contract.readings.otlp import Otlp
from optimus_contract.readings.progress import Advance, Learned, Progress
from optimus_contract.readings.reading import Channel, Reading
from optimus_contract.readings.samples import first_of_run, sample_of
from optimus_contract.result import JobProfile
from optimus_contract.telemetry import Sample, SampleColumns
from optimus_scheduler.lifecycle import InvalidTransition, MembershipFormed, Outcome, ResultReported
from optimus_scheduler.model import Directive
from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import Caller
from optimus_service.api.http.problems import invalid, invalid_field
from optimus_service.api.http.validation import field_errors
from optimus_service.api.jobs import submission
from optimus_service.api.reports.from_tasks import end_job, is_finite, look_at_divergence, note_added
from optimus_service.api.services import Services, Turns
from optimus_service.api.task_checks import TaskChecks
from optimus_service.observe.silence import END_NOT_TOLD, last_heard, not_told
from optimus_service.requests import checked
from optimus_service.store.records import JobRecord, MembershipRecord, PostedSamples
from optimus_service.store.samples.sample_queue import SampleQueue

EPOCH = 1
"""A watched run has one membership, from its start to its end."""
HEARD_SECONDS = 10.0
"""How often it is noted at most that a run was heard of."""
MAX_RUNS = 2_000
"""Runs whose last figures are kept in memory, the newest: some kB each."""


@dataclass(slots=True)
class Memory:
    """What is known of a run beside what is stored."""

    progress: Progress
    kubeflow: Kubeflow = field(default_factory=Kubeflow)
    otlp: Otlp = field(default_factory=Otlp)
    mlflow: LoggedRun = field(default_factory=LoggedRun)


Tell = Callable[[Memory], Sequence[Reading]]
"""What one post says; it may depend on what was said before."""


class Watching:
    """The runs that are watched. Thread-safe."""

    def __init__(self, services: Services, task_checks: TaskChecks, queue: SampleQueue) -> None:
        self._services, self._task_checks, self._queue = services, task_checks, queue
        self._turns = Turns()
        self._lock = threading.Lock()
        """Guards the one below."""
        self._memories: OrderedDict[str, Memory] = OrderedDict()

    def make(
        self, services: Services, spec: JobSpec, key: str | None, caller: Caller, audit: Audit, begun_at: float
    ) -> JobRecord:
        """The job of a run, running. `services`: of the request, which is recorded if it makes the job; `key`: equal
        for repetitions of one request; `begun_at`: POSIX seconds.

        Raises:
            Problem: the caller may not submit to the project (403).
            IdempotencyConflict: the key was used for another request.
        """
        job, is_new = submission.submit(services, self._task_checks, spec, key, caller=caller, audit=audit)
        if job.membership_epoch == 0 and not job.state.is_final:
            workers = tuple(f"{job.id}-worker-{rank}-0" for rank in range(spec.workers.max))
            first = MembershipRecord(
                job_id=job.id,
                epoch=EPOCH,
                generation=0,
                at=begun_at,
                step=0,
                workers=workers,
                servers=(),
                cause="start",
            )
            with services.repository.write() as tx:
                tx.memberships.report(job.id, first)
                job = tx.jobs.advance(job.id, MembershipFormed(EPOCH), services.clock())
        if is_new:
            services.trigger_round("submit")
        return job

    def note(self, job_id: str, tell: Tell) -> None:
        """Count what a post says of a run. What comes after its end is not counted, and is no error: the training
        goes on whatever is thought of it here."""
        with self._turns.of(job_id):
            job = self._services.repository.jobs.get(job_id)
            if is_over(job):
                return
            memory = self._memory_of(job)
            try:
                self._count(job, memory, tell(memory))
            except BaseException:
                self._forget(job_id)  # it is ahead of what is stored: the repetition is to find what is
                raise

    def end(self, job_id: str, error: str | None, *, is_told: bool = True) -> None:
        """Note that a run has ended; `error`: why it failed, None if it did not. Only the first end counts.

        `is_told`: it says so now; otherwise it ended when it was heard of last, and said nothing of it."""
        with self._turns.of(job_id):
            job = self._services.repository.jobs.get(job_id)
            if is_over(job):
                return
            memory = self._memory_of(job)
            self._store(job, memory, memory.progress.settle())
            job = self._services.repository.jobs.get(job_id)
            event = ResultReported(
                outcome=Outcome.SUCCEEDED if error is None else Outcome.FAILED,
                step=job.step,
                metrics=dict(memory.progress.metrics),
                error=error,
                permanent=True,
            )
            now = self._services.clock()
            seconds_ago = 0.0 if is_told else now - last_heard(job)
            try:
                end_job(self._services, job_id, event, seconds_ago)
                if not is_told and error is None:
                    self._services.repository.events.add(job_id, END_NOT_TOLD, not_told(job), {}, now - seconds_ago)
            except InvalidTransition:  # its owner has cancelled it in between
                return
            finally:
                self._forget(job_id)

    def newest_at(self, job: JobRecord) -> float:
        """The time of the newest that was said of a run, by the clock of who said it."""
        newest = self._services.repository.samples.newest(job.id, 1)
        if newest:
            return newest[0].at
        began = self._services.repository.memberships.of_job(job.id)
        return began[0].at if began else job.created_at

    # --- what was said -----------------------------------------------------------------------------------------------

    def _count(self, job: JobRecord, memory: Memory, readings: Sequence[Reading]) -> None:
        self._store(job, memory, [each for reading in readings for each in memory.progress.add(reading)])
        now = self._services.clock()
        if job.heard_at is None or now > job.heard_at + HEARD_SECONDS:
            self._services.repository.memberships.heard(job.id, now)

    def _store(self, job: JobRecord, memory: Memory, advances: Sequence[Advance]) -> None:
        learned = memory.progress.learned
        advances = [each for each in advances if each.n_steps > 0]
        samples = [self._sample(job, advance, learned) for advance in advances]
        if samples and job.step == 0:
            # Of the first one it is not known when it began: as of tasks, its speed does not count (sequence 0).
            first = first_of_run(advances[0])
            samples[0] = replace(samples[0], n_steps=first.n_steps, sequence=0)
        for begin in range(0, len(samples), MAX_SAMPLES_PER_POST):
            columns = SampleColumns.of(samples[begin : begin + MAX_SAMPLES_PER_POST])
            added = self._queue.put(PostedSamples(job.id, columns, self._services.clock())).result()
            if added.accepted and not is_finite(columns):
                look_at_divergence(self._services, job)
            note_added(self._services, job.id, columns, added)
        self._store_profile(job, learned)

    def _sample(self, job: JobRecord, advance: Advance, learned: Learned) -> Sample:
        """Numbered by its step: what is said twice, to whichever replica, is counted once."""
        workers = max(1, job.running.workers)
        return replace(sample_of(advance, learned, membership_epoch=EPOCH, workers=workers), sequence=advance.step)

    def _store_profile(self, job: JobRecord, learned: Learned) -> None:
        known = job.profile or {}
        said = JobProfile(
            total_steps=learned.total_steps,
            steps_per_epoch=learned.steps_per_epoch,
            learned_from=None if learned.channel is None else learned.channel.value,
        )
        profile = {**known, **{name: value for name, value in write(said).items() if value is not None}}
        if profile != known:
            self._services.repository.jobs.put_profile(job.id, profile)

    # --- memory ------------------------------------------------------------------------------------------------------

    def _memory_of(self, job: JobRecord) -> Memory:
        """As it is after all that is stored: also what another replica was told."""
        with self._lock:
            memory = self._memories.get(job.id)
            if memory is not None:
                self._memories.move_to_end(job.id)
        if memory is None:
            memory = Memory(
                Progress(self.newest_at(job), job.step, _learned(job), n_workers=max(1, job.running.workers))
            )
        if job.step > (memory.progress.step or 0):
            memory.progress.step, memory.progress.last_at = job.step, self.newest_at(job)
        with self._lock:
            self._memories[job.id] = memory
            if len(self._memories) > MAX_RUNS:
                self._memories.popitem(last=False)
        return memory

    def _forget(self, job_id: str) -> None:
        with self._lock:
            self._memories.pop(job_id, None)


def _learned(job: JobRecord) -> Learned:
    profile = job.profile or {}
    channel = profile.get("learned_from")
    return Learned(
        channel=None if channel is None else Channel(channel),
        total_steps=profile.get("total_steps"),
        steps_per_epoch=profile.get("steps_per_epoch"),
    )


async def _watching_of(request: Request) -> Watching:
    return cast(Watching, request.app.state.watching)


WatchingDep = Annotated[Watching, Depends(_watching_of)]
"""The type of an endpoint's parameter."""


# --- the job of a run ------------------------------------------------------------------------------------------------


def spec_of(name: str, project: str, labels: Mapping[str, str], size: Mapping[str, Any], where: str) -> JobSpec:
    """The specification of a watched run. `size`: `workers`, `gpus` of each, `gpu_type`, as far as they are known;
    `where`: what stands before the name of a field at fault.

    Raises:
        Problem: a value is not allowed (422).
    """
    n_workers, gpu_type = size.get("workers") or 1, size.get("gpu_type")
    document = {
        "name": name,
        "project": project,
        "tracked": True,
        "labels": dict(labels),
        "workers": {"min": n_workers, "max": n_workers, "resources": {"gpus": size.get("gpus") or 0}},
        "gpu_types": None if gpu_type is None else [gpu_type],
    }
    try:
        return checked(JobSpec, {name: value for name, value in document.items() if value is not None})
    except ValidationError as error:
        errors = field_errors([{**each, "loc": ("body", *each["loc"])} for each in error.errors()], JobSpec)
        raise invalid([replace(each, field=where + each.field) for each in errors]) from error


def project_of(caller: Caller, asked: str | None, field_name: str) -> str:
    """The project of a run: the one that is asked for, else `default`, else the only one that the caller may submit to.

    Raises:
        Problem: there are several, and none was named (422).
    """
    if asked is not None:
        return asked
    mine = caller.submits_to
    if mine is None or "default" in mine:
        return "default"
    if len(mine) != 1:
        raise invalid_field(field_name, f"say which project: one of {', '.join(sorted(mine))}")
    return next(iter(mine))


def is_over(job: JobRecord) -> bool:
    """Whether nothing more counts of what is said of a run: it has ended, or its owner does not want to watch it."""
    return job.state.is_final or job.directive is Directive.CANCEL
