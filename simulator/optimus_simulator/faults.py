"""What goes wrong: failing tasks and nodes, late nodes, spot nodes, stragglers, interference. All drawn from one
generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np

from optimus_scheduler.model import Node, TaskKey
from optimus_simulator.cluster import Cluster
from optimus_simulator.engine import CHANGE, Engine
from optimus_simulator.options import Options
from optimus_simulator.running import RunningJob

Disturbed = Callable[[set[str]], None]
"""Told the ids of jobs that lost tasks; an empty set when nodes came back, or will leave."""


class Faults:
    """Makes things happen on the engine's agenda."""

    def __init__(
        self, engine: Engine, cluster: Cluster, options: Options, random: np.random.Generator, disturbed: Disturbed
    ) -> None:
        self._engine, self._cluster, self._options = engine, cluster, options
        self._random, self._disturbed = random, disturbed
        self._spot: frozenset[str] = frozenset()
        """Names of the nodes that are taken away with a notice."""

    def begin(self, nodes: Sequence[Node]) -> None:
        """Faults of nodes: some are late, some are spot nodes, all may fail."""
        n_late = round(self._options.late_nodes * len(nodes))
        for index in self._random.permutation(len(nodes))[:n_late].tolist():
            self._cluster.fail_node(nodes[index].name)
            self._engine.at(self._options.late_seconds, CHANGE, partial(self._repair, nodes[index].name))
        n_spot = round(self._options.spot_nodes * len(nodes))
        if n_spot:
            self._spot = frozenset(nodes[index].name for index in self._random.permutation(len(nodes))[:n_spot])
        for node in nodes:
            self._expect_loss(node.name)

    def expect(self, job: RunningJob) -> None:
        """Draw when one of the job's present tasks fails."""
        if not self._options.task_hours:
            return
        mean = self._options.task_hours * 3600 / len(job.wanted)
        after = float(self._random.exponential(mean))
        victim = job.wanted[int(self._random.integers(len(job.wanted)))].key
        self._engine.at(self._engine.now + after, CHANGE, partial(self._fail_task, victim))

    def stop_seconds(self) -> float:
        """How long a job stands still when it gets other tasks."""
        options = self._options
        if not options.restart_spread:
            return options.restart_seconds
        return options.restart_seconds * float(np.exp(options.restart_spread * self._random.standard_normal()))

    def speed_factor(self, job: RunningJob, others: Iterable[RunningJob]) -> float:
        """What stragglers and neighbours leave of a job's speed with its new tasks."""
        options, factor = self._options, 1.0
        if options.straggling and self._random.random() < 1.0 - (1.0 - options.straggling) ** job.allocation.workers:
            factor *= options.straggler_speed
        if options.interference and _shares_network(job, others):
            factor *= 1.0 - options.interference
        return factor

    def _fail_task(self, key: TaskKey) -> None:
        if self._cluster.fail_task(key):
            self._disturbed({key.job_id})

    def _expect_loss(self, name: str) -> None:
        """Draw when a node fails, or is taken away if it is a spot node: what comes first."""
        fails = self._after(self._options.node_hours) if self._options.node_hours else math.inf
        leaves = self._after(self._options.spot_hours) if name in self._spot else math.inf
        if min(fails, leaves) < math.inf:
            happens = self._tell if leaves < fails else self._lose
            self._engine.at(self._engine.now + min(fails, leaves), CHANGE, partial(happens, name))

    def _after(self, hours: float) -> float:
        return float(self._random.exponential(hours * 3600))

    def _tell(self, name: str) -> None:
        """The notice of a spot node: it is drained as an operator drains one."""
        self._cluster.drain_node(name)
        self._engine.at(self._engine.now + self._options.notice_seconds, CHANGE, partial(self._lose, name))
        self._disturbed(set())

    def _lose(self, name: str) -> None:
        self._disturbed(self._cluster.fail_node(name))
        self._engine.at(self._engine.now + self._options.repair_seconds, CHANGE, partial(self._repair_and_expect, name))

    def _repair_and_expect(self, name: str) -> None:
        self._repair(name)
        self._expect_loss(name)

    def _repair(self, name: str) -> None:
        self._cluster.repair_node(name)
        self._disturbed(set())


def _shares_network(job: RunningJob, others: Iterable[RunningJob]) -> bool:
    """Whether the job and another one both send between nodes and meet on one of them."""
    nodes = {placed.node for placed in job.wanted}
    if len(nodes) < 2:
        return False
    crossing = (other for other in others if other is not job and len(other.shape) > 1)
    return any(placed.node in nodes for other in crossing for placed in other.wanted)
