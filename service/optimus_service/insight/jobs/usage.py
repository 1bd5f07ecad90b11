"""What a job's tasks take of their machines, from what they reported last: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from optimus_contract.codec import write
from optimus_contract.telemetry import Sample, Usage
from optimus_scheduler.model import Role
from optimus_service.store.records import MembershipRecord, SampleRecord, TaskRecord

LATELY_SECONDS = 60.0
"""How old the word of a server or a coordinator may be: they tell it every 5 s."""

_S = TypeVar("_S", bound=Sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUsage:
    """Sums over the workers that told it, each from its newest sample. `None`: nobody has a GPU."""

    workers: int
    cpu_cores: float
    memory_bytes: float
    gpu_utilization: float | None = None
    """Mean over the workers, 0 to 1; of a shared GPU each tells the whole."""
    gpu_memory_bytes: float | None = None


def job_usage(newest: Sequence[Sample]) -> JobUsage | None:
    """Of the newest membership among these samples (any order); None when nothing was reported."""
    reported = [as_amounts(sample.usage) for sample in _latest_by_rank(newest).values() if sample.usage]
    if not reported:
        return None
    busy = _values(reported, "gpu_utilization")
    gpu_memory = _values(reported, "gpu_memory_bytes")
    return JobUsage(
        workers=len(reported),
        cpu_cores=sum(_values(reported, "cpu_cores")),
        memory_bytes=sum(_values(reported, "memory_bytes")),
        gpu_utilization=sum(busy) / len(busy) if busy else None,
        gpu_memory_bytes=sum(gpu_memory) if gpu_memory else None,
    )


def _latest_by_rank(newest: Sequence[_S]) -> dict[int, _S]:
    """The newest sample with a usage of each worker in the newest membership among these."""
    epoch = max((sample.membership_epoch for sample in newest), default=0)
    by_rank: dict[int, _S] = {}
    for sample in newest:
        latest = by_rank.get(sample.rank)
        if sample.membership_epoch == epoch and sample.usage and (latest is None or sample.sequence > latest.sequence):
            by_rank[sample.rank] = sample
    return by_rank


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """What one task took of its machine, and when that was heard (POSIX seconds)."""

    at: float
    usage: Mapping[str, float]


def reported_by_tasks(tasks: Iterable[TaskRecord], now: float) -> dict[str, ReportedUsage]:
    """By name, of the servers and coordinators that reported it lately."""
    return {
        task.key.name: ReportedUsage(task.usage_at, task.usage)
        for task in tasks
        if task.usage and task.usage_at is not None and now - task.usage_at <= LATELY_SECONDS
    }


def reported_by_workers(
    newest: Sequence[SampleRecord], memberships: Iterable[MembershipRecord]
) -> dict[str, ReportedUsage]:
    """By name, from the newest sample of each worker; `memberships` say who has which rank."""
    names = {membership.epoch: membership.workers for membership in memberships}
    found: dict[str, ReportedUsage] = {}
    for rank, sample in _latest_by_rank(newest).items():
        workers = names.get(sample.membership_epoch, ())
        if rank < len(workers) and sample.usage:
            found[workers[rank]] = ReportedUsage(sample.received_at, as_amounts(sample.usage))
    return found


def usage_of_role(tasks: Iterable[TaskRecord], role: Role, now: float) -> Mapping[str, float] | None:
    """`cpu_cores` and `memory_bytes` of a job's servers, or of its coordinator, together; None: unknown."""
    reported = [
        each.usage for each in reported_by_tasks([task for task in tasks if task.key.role is role], now).values()
    ]
    return {name: sum(_values(reported, name)) for name in ("cpu_cores", "memory_bytes")} if reported else None


def as_amounts(usage: Usage) -> Mapping[str, float]:
    """What the task told, by name."""
    return write(usage, without_none=True)


def _values(reported: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [usage[name] for usage in reported if name in usage]
