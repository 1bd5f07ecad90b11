"""The sample histories of many jobs: read on from round to round, and kept beyond the process.

::

    samples ──read on──▶ JobHistory ──after a round, where much is new──▶ table job_histories
                             ▲                                                   │
                             └──────────── one read after a restart ─────────────┘
"""

from __future__ import annotations

import json
import math
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from optimus_scheduler.model import Architecture, Mode
from optimus_service.observe.spec import readable_spec
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.histories import SAMPLES_KEPT
from optimus_service.store.records import Document, JobRecord, KeptHistory, MembershipRecord
from optimus_service.store.repository import MAX_PAGE, LeaderRepository, Repository

SAMPLES_AT_ONCE = 1_000_000
"""Samples read by one call, of all jobs together: about four seconds of computing. A restarted service that finds more
catches up over some rounds."""
_MAX_PAGE_OF_ALL = 10_000
"""Samples of one page of many jobs: bounds the memory, about 20 MB."""
KEPT_AFTER = 256
"""New samples after which a history is stored: they take more room than it does."""
_KEPT_AT_ONCE = 200
"""Histories stored by one transaction: about 3 MB."""


@dataclass(slots=True)
class _Known:
    """What is known of one job."""

    history: JobHistory
    basis: Document
    kept_id: int = 0
    """The newest sample in what is stored of the history."""

    def kept(self) -> KeptHistory:
        """What is to be stored."""
        with self.history.turn:
            return KeptHistory(self.history.last_id, pack(self.history, self.basis))


class Histories:
    """The sample history of each active job, kept between rounds and, by the leader, between restarts.

    Threads may share it: samples are counted once, whoever reads them, and nobody waits for what another one reads, but
    for the beginning of a history. What a history says is to be read in its `turn`.
    """

    def __init__(self, repository: Repository, samples_at_once: int = SAMPLES_AT_ONCE) -> None:
        """`samples_at_once`: read by one call at most; what is left over is read by the next."""
        self._repository = repository.reading()
        self._samples_at_once = samples_at_once
        self._by_job: dict[str, _Known] = {}
        self._turn = threading.Lock()
        """Of who changes which histories there are."""

    def updated(self, job: JobRecord, memberships: Iterable[MembershipRecord]) -> JobHistory:
        """The history of this job with the samples that came in since. `is_current` says whether it has all."""
        return self.update([job], {job.id: memberships})[job.id]

    def update(
        self, jobs: Iterable[JobRecord], memberships: Mapping[str, Iterable[MembershipRecord]]
    ) -> dict[str, JobHistory]:
        """Read what came in since of all these jobs: one statement, and more for those with many new samples; one more
        where learning rates were planned anew.

        No job waits for another one's: each has an equal part of a page.

        Returns:
            Their histories, by job id.
        """
        jobs = list(jobs)
        histories = behind = self._begin(jobs)
        for job_id, history in histories.items():
            with history.turn:
                history.learn_memberships(memberships.get(job_id, ()))
        left = self._samples_at_once
        while behind and left > 0:
            each = max(1, min(MAX_PAGE, min(_MAX_PAGE_OF_ALL, left) // len(behind)))
            last_ids = {job_id: history.last_id for job_id, history in behind.items()}
            found = self._repository.samples.after_each(last_ids, each)
            n_found = {job_id: sum(map(len, batches)) for job_id, batches in found.items()}
            for job_id, batches in found.items():
                with behind[job_id].turn:
                    behind[job_id].add(batches)
            left -= sum(n_found.values())
            behind = {job_id: behind[job_id] for job_id, n_samples in n_found.items() if n_samples >= each}
        for job_id, history in histories.items():
            history.is_current = job_id not in behind
        self._read_planned_rates(jobs, histories)
        return histories

    def _read_planned_rates(self, jobs: Iterable[JobRecord], histories: Mapping[str, JobHistory]) -> None:
        """The learning rates that these jobs are to have, where they were told since."""
        versions = {job.id: job.planned_rates_version for job in jobs}
        changed = [job for job, version in versions.items() if histories[job].planned_rates_version != version]
        found = self._repository.jobs.planned_rates_of(changed) if changed else {}
        for job_id, document in found.items():
            planned = tuple(map(float, document["steps"])), tuple(document["rates"])
            with histories[job_id].turn:
                histories[job_id].learn_planned_rates(planned, versions[job_id])

    def _begin(self, jobs: Sequence[JobRecord]) -> dict[str, JobHistory]:
        """The histories of these jobs. Those of jobs that are new here begin with what is stored, and so do those of
        which somebody else has read on: the samples between may be gone."""
        started = [job.id for job in jobs if job.first_step is not None]
        with self._turn:
            reached = self._repository.histories.reach(started) if started else {}
            behind = {job_id for job_id, last_id in reached.items() if last_id > self._last_id_of(job_id)}
            stored = self._repository.histories.of_jobs(behind) if behind else {}
            for job in jobs:
                if job.id in stored or job.id not in self._by_job:
                    self._by_job[job.id] = _begun(job, stored.get(job.id))
            return {job.id: self._by_job[job.id].history for job in jobs}

    def _last_id_of(self, job_id: str) -> int:
        known = self._by_job.get(job_id)
        return 0 if known is None else known.history.last_id

    def keep(self, leader: LeaderRepository, job_ids: Iterable[str] | None = None, least: int = KEPT_AFTER) -> None:
        """Store the histories (None: all) to which `least` samples were added since they were stored.

        Raises:
            StaleLeader: another process leads by now.
        """
        everything = self._by_job.copy()
        chosen = everything if job_ids is None else everything.keys() & set(job_ids)
        due = [each for each in chosen if everything[each].history.last_id - everything[each].kept_id >= least]
        for first in range(0, len(due), _KEPT_AT_ONCE):
            some = {job_id: everything[job_id].kept() for job_id in due[first : first + _KEPT_AT_ONCE]}
            leader.histories.put(some)
            for job_id, kept in some.items():
                everything[job_id].kept_id = kept.last_id

    def keep_only(self, job_ids: Iterable[str]) -> None:
        """Drop the histories of all other jobs, but for those that are half read: they are to teach something once
        they are read."""
        with self._turn:
            for job_id in self.others(job_ids):
                if self._by_job[job_id].history.is_current:
                    del self._by_job[job_id]

    def others(self, job_ids: Iterable[str]) -> set[str]:
        """The jobs that have a history here and are none of these."""
        return self._by_job.keys() - set(job_ids)


def _begun(job: JobRecord, stored: KeptHistory | None) -> _Known:
    """With what is stored. What cannot be read is begun anew with the samples that are still there."""
    basis = basis_of(job)
    history = None if stored is None else unpack(stored.document, basis)
    if history is None:
        history = begun(basis)
        history.last_id = 0 if stored is None else max(stored.last_id - SAMPLES_KEPT, 0)
    return _Known(history, basis, history.last_id)


# --- What is known of a job by its samples, as bytes: so that it outlives the process that read them -----------------
# ::
#
#     length of the header │ header: JSON of `JobHistory.state`, where an array is {"~": [type, …shape]} │ the arrays
#     4 bytes              │                                                                             │ in this order

FORMAT: Final = 1
"""Of the documents. Those of another one are not read, and most of the samples that they were made of are gone: who
changes what a history knows reads the former format as well."""
_LENGTH: Final = struct.Struct("<I")
_ARRAY: Final = "~"


def basis_of(job: JobRecord) -> Document:
    """What a job's history depends on beside its samples: the arguments of `begun`."""
    spec = readable_spec(job)
    target = None if spec is None else spec.convergence.target_metric
    return {
        "format": FORMAT,
        "mode": (Mode.SYNC if spec is None else spec.mode).value,
        "metric": None if target is None else target.name,
        "measures_parts": spec is None or spec.architecture is not Architecture.SCRIPT,
    }


def begun(basis: Document) -> JobHistory:
    """A history without samples."""
    mode, metric = Mode(basis["mode"]), basis["metric"]
    return JobHistory(mode, metric, measures_parts=basis["measures_parts"])


def pack(history: JobHistory, basis: Document) -> bytes:
    """The document of what is known by now."""
    arrays: list[bytes] = []

    def take(value: Any) -> Document:
        arrays.append(value.tobytes())
        return {_ARRAY: [value.dtype.str, *value.shape]}

    text = json.dumps({"basis": basis, **history.state()}, default=take, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *arrays])


def unpack(document: bytes, basis: Document) -> JobHistory | None:
    """The history, equal in every bit; None when it was made on another basis, but for the figure of its rule: what is
    known of every figure is there."""
    (length,) = _LENGTH.unpack_from(document)
    place = _LENGTH.size + length

    def read(value: Document) -> Any:
        nonlocal place
        if _ARRAY not in value:
            return value
        kind, *shape = value[_ARRAY]
        array = np.frombuffer(document, kind, math.prod(shape), place).reshape(shape).copy()
        place += array.nbytes
        return array

    state = json.loads(document[_LENGTH.size : place], object_hook=read)
    if state["basis"] | {"metric": None} != basis | {"metric": None}:
        return None
    history = begun(basis)
    history.restore(state)
    return history
