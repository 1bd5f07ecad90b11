"""Builders for what the store takes, with defaults for what a test does not care about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from optimus_contract.codec import read
from optimus_contract.telemetry import SAMPLE_FIELDS, Sample, SampleColumns
from optimus_scheduler.model import NOTHING, Allocation, Directive, Forecast, PlacedTask, Role, SetWanted, TaskKey
from optimus_service.store.records import (
    AddedSamples,
    DecisionRecord,
    JobRecord,
    MembershipRecord,
    PostedSamples,
    RoundRecord,
    SampleBatch,
    SampleRecord,
)
from optimus_service.store.repository import MAX_PAGE, Repository
from optimus_service.store.rounds.forecasts import from_json

MakeJob = Callable[..., JobRecord]
"""What the fixture `make_job` gives."""


def a_sample(**changes: Any) -> Sample:
    """A sample of step 1 by worker 0 of membership epoch 1."""
    values: dict[str, Any] = {
        "membership_epoch": 1,
        "rank": 0,
        "sequence": 0,
        "workers": 2,
        "servers": 1,
        "at": 10.0,
        "step": 1,
        "data_epoch": 0.5,
        "loss": 2.5,
        "n_examples": 32,
        "seconds": 0.25,
    }
    return read(Sample, values | changes)


def a_membership(job_id: str = "job-1", epoch: int = 1, **changes: Any) -> MembershipRecord:
    """A membership of two workers and one server that began at step 0."""
    values: dict[str, Any] = {
        "generation": epoch,
        "at": 5.0,
        "step": 0,
        "workers": (f"{job_id}-worker-0-0", f"{job_id}-worker-1-0"),
        "servers": (f"{job_id}-server-0-0",),
        "cause": "start" if epoch == 1 else "rescale",
    }
    return MembershipRecord(job_id=job_id, epoch=epoch, **(values | changes))


def a_round(**changes: Any) -> RoundRecord:
    """A round without decisions."""
    values: dict[str, Any] = {
        "at": 1.0,
        "trigger": "period",
        "seconds": 0.1,
        "phase_seconds": {"forecast": 0.05},
        "n_jobs": 1,
        "n_actions": 0,
    }
    return RoundRecord(**(values | changes))


def a_forecast(job_id: str = "job-1", **said: Any) -> Forecast:
    """A forecast that says this, in the words of what is stored; nothing else is known."""
    return from_json(job_id, said)


def a_decision(job_id: str = "job-1", **changes: Any) -> DecisionRecord:
    """A first grant."""
    values: dict[str, Any] = {
        "at": 1.0,
        "allocation": Allocation(1, 1),
        "previous": NOTHING,
        "reason": "GrantedMore",
        "message": "It was given its first tasks.",
        "forecast": a_forecast(job_id),
    }
    return DecisionRecord(job_id=job_id, **(values | changes))


def put_task(repository: Repository, key: TaskKey, node: str, now: float, gpu_type: str | None = None) -> None:
    """Remember one task that is about to be started."""
    repository.tasks.put([(key, node, gpu_type)], {}, now)


def samples_of(repository: Repository, job_id: str, after_id: int = 0, limit: int = MAX_PAGE) -> list[SampleRecord]:
    """The counted samples of one job, by id; of the last post perhaps more than `limit`."""
    return records_in(repository.samples.after_each({job_id: after_id}, limit).get(job_id, []))


def batches_of(samples: Iterable[SampleRecord]) -> list[SampleBatch]:
    """Each by itself, as a post."""
    return [
        SampleBatch(each.id, each.received_at, {name: [getattr(each, name)] for name in SAMPLE_FIELDS})
        for each in samples
    ]


def records_in(batches: Iterable[SampleBatch]) -> list[SampleRecord]:
    """Samples one by one."""
    return [sample for batch in batches for sample in batch.records()]


def placed(job_id: str, role: Role, rank: int, incarnation: int = 0, node: str = "local-0") -> PlacedTask:
    """A wanted task."""
    return PlacedTask(TaskKey(job_id, role, rank, incarnation), node)


def set_wanted(
    repository: Repository,
    job_id: str,
    allocation: Allocation,
    directive: Directive,
    tasks: Sequence[PlacedTask],
    now: float,
    batch: int | None = None,
) -> int:
    """What one job should have, as a round stores it; the generation in force."""
    repository.wanted.put([SetWanted(job_id, allocation, directive, tuple(tasks), batch)], now)
    return repository.wanted.get(job_id).generation


def add_samples(repository: Repository, job_id: str, posted: Sequence[Sample], now: float) -> AddedSamples:
    """Store one post. Raises what the store gives in the place of a result."""
    (added,) = repository.samples.add([PostedSamples(job_id, SampleColumns.of(posted), now)])
    if isinstance(added, Exception):
        raise added
    return added
