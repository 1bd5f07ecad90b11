"""A trace: a cluster and the jobs that are submitted to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType

from optimus_scheduler.forecast.gpu_types import ANY_GPU
from optimus_scheduler.model import JobSpec, Node, Quota, Resources
from optimus_scheduler.place.free_capacity import RACK_LABELS
from optimus_simulator.truth.truth import Truth


def _alike() -> Mapping[str, float]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job: what its owner asks for, and what it really is."""

    id: str
    submitted_at: float
    """Seconds since the beginning of the trace."""
    spec: JobSpec
    truth: Truth
    type_speeds: Mapping[str, float] = field(default_factory=_alike)
    """How many times as fast as its truth says it is on each GPU type; once where a type is not named."""

    rack_crossing_factor: float = 1.0
    """Speed that is left of it on several racks, in (0, 1], beside what more than one node leaves."""

    def speed_factor(self, gpu_type: str | None) -> float:
        """How many times as fast as its truth says it is on this GPU type."""
        return self.type_speeds.get(gpu_type or "", 1.0)

    def gpu_types_of(self, capacity: Resources) -> tuple[str | None, ...]:
        """The GPU types that it may run on here; just the one that it names, or None, when there is no choice."""
        named = self.spec.gpu_type
        wanted = self.spec.gpu_types or (sorted(capacity.gpus) if named == ANY_GPU else ())
        return tuple(kind for kind in wanted if capacity.gpus.get(kind, 0) > 0) or (named,)

    def without_deadline(self) -> TraceJob:
        """The same job, whose owner told no deadline."""
        return self if self.spec.deadline_at is None else replace(self, spec=replace(self.spec, deadline_at=None))

    def arriving_at(self, submitted_at: float) -> TraceJob:
        """The same job at another time, with as much time to its deadline."""
        deadline = self.spec.deadline_at
        if deadline is None:
            return replace(self, submitted_at=submitted_at)
        spec = replace(self.spec, deadline_at=deadline + submitted_at - self.submitted_at)
        return replace(self, submitted_at=submitted_at, spec=spec)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a trace tells of the service that wrote it and of what happened there."""

    round_seconds: float | None = None
    """Between its rounds; None: not told."""
    learning_round_seconds: float | None = None
    """The same while the speed or end of a job is being learned."""
    starts: tuple[float, ...] = ()
    """Seconds from the first tasks of a job to its training."""
    changes: tuple[float, ...] = ()
    """Seconds for which training stood still at changes of size, and where tasks took the places of others."""
    jct_seconds: tuple[float, ...] = ()
    """Of its jobs, from submission to end, however that was."""
    with_deadline: int = 0
    """Jobs with one that were not cancelled ..."""
    deadlines_met: int = 0
    """... and those of them that ended before it."""

    @property
    def restart_seconds(self) -> float | None:
        """The median of the starts and changes; None: none was measured."""
        stops = (*self.starts, *self.changes)
        return median(stops) if stops else None

    @property
    def measured_stops(self) -> str:
        """What `restart_seconds` is the median of: `3 starts and 1 change of size`."""
        counts = ((len(self.starts), "start"), (len(self.changes), "change"))
        words = [f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts if count]
        return " and ".join(words) + (" of size" if self.changes else "")

    def as_json(self) -> dict[str, float | int | None]:
        """What happened."""
        mean = sum(self.jct_seconds) / len(self.jct_seconds) if self.jct_seconds else None
        counts = {"jobs": len(self.jct_seconds), "with_deadline": self.with_deadline}
        return {"mean_jct_seconds": mean, **counts, "deadlines_met": self.deadlines_met}


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of submission, and the nodes that they share."""

    name: str
    nodes: tuple[Node, ...]
    jobs: tuple[TraceJob, ...]
    quotas: tuple[Quota, ...] = ()
    recorded: Recorded | None = None
    """None: nobody has lived it."""

    @property
    def capacity(self) -> Resources:
        total = Resources()
        for node in self.nodes:
            total = total + node.capacity
        return total

    def with_load(self, load: float) -> Trace:
        """The same jobs arriving `load` times as fast."""
        jobs = tuple(job.arriving_at(job.submitted_at / load) for job in self.jobs)
        return replace(self, jobs=jobs)

    def with_cluster(self, times: float) -> Trace:
        """The same jobs on so many `times` the nodes of each capacity, rounded, at least one of each. Further nodes are
        in racks of their own, as large as those of the trace.
        """
        alike: dict[tuple[object, ...], list[Node]] = {}
        for node in self.nodes:
            offered = node.capacity
            alike.setdefault((offered.cpu, offered.memory_bytes, *sorted(offered.gpus.items())), []).append(node)
        found: list[Node] = []
        for nodes in alike.values():
            for number in range(max(round(times * len(nodes)), 1)):
                copy, place = divmod(number, len(nodes))
                found.append(_another(nodes[place], copy) if copy else nodes[place])
        return replace(self, nodes=tuple(found))


def _another(node: Node, copy: int) -> Node:
    labels = {name: f"{value}-{copy}" if name in RACK_LABELS else value for name, value in node.labels.items()}
    return replace(node, name=f"{node.name}-{copy}", labels=labels)


def in_order(jobs: Iterable[TraceJob]) -> tuple[TraceJob, ...]:
    """Jobs by time of submission; those of the same time in the order in which they came."""
    return tuple(sorted(jobs, key=lambda job: job.submitted_at))


def equal_nodes(count: int, capacity: Resources) -> tuple[Node, ...]:
    """node-0000, node-0001, ...: alike."""
    return tuple(Node(f"node-{number:04d}", capacity) for number in range(count))
