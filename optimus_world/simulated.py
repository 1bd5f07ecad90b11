"""The simulator (`optimus simulate`) beside a world without accidents: both have to decide the same.

::

    service's round ─▶ snapshot ─ what was measured ─▶ the simulator's jobs ─▶ its own round ─▶ plan ─┐
                 └───▶ plan ──────────────────────────────────────────────────────────────────────────┴─▶ compared

The simulator reads the jobs from a trace in its own format, at the times of the service's rounds. What it measures by
itself in `optimus simulate` is here what the world's workers measured: steps, losses, speeds, stops, starts and ends.
What it was given before (sizes, tasks, their nodes, since when, and what that makes of its share) it keeps itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Decision, Job, Node, Nodes, PlacedTask, Plan, SetWanted, Snapshot
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.running import RunningJob, Telemetry
from optimus_simulator.trace import Trace
from optimus_simulator.traces.own import read_own
from optimus_simulator.truth.truth import AllReduceLaw, ParametricTraining, ParametricTruth
from optimus_world.trained import PROFILE

_UNMEASURED = ParametricTruth(math.inf, AllReduceLaw(1.0, 0.0))
_GIB = 2**30
Document = Mapping[str, Any]


class _Training(ParametricTraining):
    """A run of which all is known by its reports."""

    def __init__(self) -> None:
        super().__init__(_UNMEASURED)
        self.epoch_steps: float | None = None

    def advance(self, seconds: float, shape: Any, factor: float = 1.0) -> float:  # noqa: ARG002 - the seam's
        return seconds

    def steps_per_epoch(self) -> float | None:
        return self.epoch_steps


class _Reports(Telemetry):
    """Its telemetry: what the service has of it."""

    def trained(self, now: float, steps: float, seconds: float, training: Any) -> None:
        """Nothing is drawn."""

    def stopped(self, seconds: float) -> None:
        """Stops are measured, too."""


class Simulated(Replay):
    """The simulator's decisions on the trace that a world runs, round by round."""

    def __init__(self, trace: Trace, policy: str) -> None:
        super().__init__(trace, policy_named(policy), Options(rounds_on_events=False))
        self._coming = {entry.id: entry for entry in trace.jobs}
        self._measured: Mapping[str, Job] = {}
        self._plan = Plan((), ())

    def differences(self, snapshot: Snapshot, plan: Plan, name_of: Callable[[str], str]) -> list[str]:
        """What it decides differently in a round of the service, in words. `name_of`: a job of the trace, by its id."""
        self._engine.now = snapshot.now
        self._measure(snapshot, name_of)
        self._plan = Plan((), ())
        self._round()
        simulated = {each.job_id: each for each in self._plan.decisions}
        given = {job.id: job.wanted_tasks for job in snapshot.jobs}
        given |= {each.job_id: each.tasks for each in plan.actions if isinstance(each, SetWanted)}
        found = []
        for decision in plan.decisions:
            job, other = decision.job_id, simulated[decision.job_id]
            here, there = _words(decision, given[job]), _words(other, self.active[job].wanted)
            if here != there:
                found.append(f"{job} is given {here}; by the simulator {there}")
        return found

    def _measure(self, snapshot: Snapshot, name_of: Callable[[str], str]) -> None:
        """Jobs arrive and end, and report, as they did for the service."""
        self._measured = {job.id: job for job in snapshot.jobs}
        for seen in sorted(snapshot.jobs, key=lambda job: job.submitted_at):
            if seen.id not in self.active:
                entry = self._coming.pop(name_of(seen.id))
                self._arrive(0, replace(entry, id=seen.id, submitted_at=seen.submitted_at))
                self.active[seen.id].training = _Training()
                self.active[seen.id].telemetry = _Reports(np.random.default_rng(0), self._options)
        for job in self.active.values():
            if job.id in self._measured:
                _report(job, self._measured[job.id])
            else:
                job.finished_at = snapshot.now

    def _seen(self, job: RunningJob, nodes: Nodes) -> Job:
        """What it gives the job, and how that came out."""
        real = self._measured[job.id]
        return replace(
            super()._seen(job, nodes),
            started_at=real.started_at,
            joining_seconds=real.joining_seconds,
            busy_part=real.busy_part,
            similar=real.similar,
            experience=real.experience,
        )

    def _predict(self, snapshot: Snapshot, outcome: Plan) -> None:  # noqa: ARG002 - the simulator's
        self._plan = outcome


def _report(job: RunningJob, real: Job) -> None:
    assert isinstance(job.training, _Training)
    batch = real.spec.global_batch_size  # the task says it, once it runs
    job.entry = replace(job.entry, spec=replace(job.entry.spec, global_batch_size=batch))
    job.training.step, job.training.epoch_steps = float(real.step), real.steps_per_epoch
    job.telemetry.samples, job.telemetry.stops = real.speed_samples, real.rescale_seconds
    job.telemetry.loss_steps, job.telemetry.losses = real.loss_steps, real.losses


def trace_of(
    path: Path, nodes: Sequence[Node], quotas: Mapping[str, Document], jobs: Mapping[float, Document]
) -> Trace:
    """The trace of these submissions by time, written to the file and read as `optimus simulate` reads it.

    `nodes`: alike, as they are taken in order of their names.
    """
    node = {"count": len(nodes), **_amount(nodes[0].capacity.cpu, nodes[0].capacity.memory_bytes)}
    projects = {name: {**_amount(**quota)} for name, quota in quotas.items()}
    lines: list[Document] = [{"nodes": [node], "projects": projects}]
    lines += [_line(at, job) for at, job in jobs.items()]
    path.write_text("\n".join(map(json.dumps, lines)))
    return replace(read_own(path), nodes=tuple(nodes))


def _line(at: float, job: Document) -> Document:
    convergence = dict(job["convergence"])
    if "loss_decrease" in convergence:
        convergence["loss_decrease"] = convergence["loss_decrease"]["below"]
    return {
        "id": job["name"],
        "submitted_at": at,
        "project": job["project"],
        "family": job["task"],
        "convergence": convergence,
        "global_batch_size": PROFILE.global_batch_size,
        "truth": {"total_steps": convergence["max_steps"], "speed": {"compute_seconds": 1.0, "exchange_seconds": 0.0}},
        **{each: {"maximum": job[each]["max"], **_amount(**job[each]["resources"])} for each in ("workers", "servers")},
    }


def _amount(cpu: float, memory_bytes: int, **others: Any) -> Document:
    return {"cpu": cpu, "memory_gib": memory_bytes / _GIB, **others}


def _words(decision: Decision, tasks: tuple[PlacedTask, ...]) -> str:
    size = decision.allocation
    places = ", ".join(f"{placed.key.role.value} {placed.key.rank} on {placed.node}" for placed in tasks)
    return f"{size.workers} workers and {size.servers} servers ({places or 'nothing'}; {decision.reason.value})"
