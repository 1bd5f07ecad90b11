"""A trace: a cluster and the jobs that are submitted to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from optimus_scheduler.types import JobSpec, Node, Resources
from optimus_simulator.truth import Truth


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job: what its owner asks for, and what it really is."""

    id: str
    submitted_at: float
    """Seconds since the beginning of the trace."""
    spec: JobSpec
    truth: Truth


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of submission, and the nodes that they share."""

    name: str
    nodes: tuple[Node, ...]
    jobs: tuple[TraceJob, ...]

    @property
    def capacity(self) -> Resources:
        total = Resources()
        for node in self.nodes:
            total = total + node.capacity
        return total

    def with_load(self, load: float) -> Trace:
        """The same jobs arriving `load` times as fast."""
        jobs = tuple(replace(job, submitted_at=job.submitted_at / load) for job in self.jobs)
        return replace(self, jobs=jobs)


def in_order(jobs: Iterable[TraceJob]) -> tuple[TraceJob, ...]:
    """Jobs by time of submission; those of the same time in the order in which they came."""
    return tuple(sorted(jobs, key=lambda job: job.submitted_at))


def equal_nodes(count: int, capacity: Resources) -> tuple[Node, ...]:
    """node-0000, node-0001, ...: alike."""
    return tuple(Node(f"node-{number:04d}", capacity) for number in range(count))
