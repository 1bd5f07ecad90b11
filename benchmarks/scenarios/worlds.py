"""The worlds of the comparison: each a trace in our own format, drawn from a seed, and the options it is replayed with.

All but those that say otherwise have 64 GPUs (8 nodes of 8). Jobs arrive 150 seconds apart (Poisson), take 48 minutes
at the size that they ask for (median of a log-normal) and may have 1 to 32 workers of one GPU. They ask for up to twice
what there is. A world changes one thing of that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from optimus_simulator.options import Options

Document = dict[str, Any]
_ARRIVAL_SECONDS = 150.0
_MEDIAN_SECONDS, _SPREAD = 2880.0, 0.9
_SIZES = (1, 1, 2, 4, 4, 8, 8, 16)
_FAMILIES = 6
_DAY, _WEEK = 86_400.0, 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a world is made with; the defaults are the plain one."""

    gpus: tuple[tuple[str, int], ...] = (("a100", 8),)
    """GPU type and number of nodes with 8 of them."""
    rack_nodes: int = 0
    """So many nodes, one after the other, are in a rack; 0: nobody says where they are."""
    seconds: float = _MEDIAN_SECONDS
    """What jobs take at the size that they ask for, median."""
    arrival_seconds: float = _ARRIVAL_SECONDS
    rate: Callable[[float], float] = lambda _at: 1.0
    """Arrivals at one moment (seconds) over the mean rate; at most 3."""
    burst: float = 0.0
    """This part of the jobs comes at once, after an hour."""
    rigid: bool = False
    """Jobs have the size that they ask for or nothing."""
    sizes: tuple[int, ...] = _SIZES
    exchange: tuple[float, float] = (0.02, 0.2)
    """Seconds of a step that workers exchange, over those that one worker computes, uniform."""
    crossing: float = 1.0
    """What is left of the speed of a job that is on more than one node."""
    crossing_racks: float = 1.0
    """What is left of that on more than one rack."""
    ends_early: float = 0.0
    """Part of the jobs that end after a tenth to a half of the steps of their limit."""
    priorities: tuple[float, ...] = (1.0,)
    projects: Document | None = None
    """Quotas by project; jobs belong to each alike."""


def trace_lines(knobs: Knobs, seed: int, n_jobs: int) -> Iterator[str]:
    """The cluster, then a line for each job."""
    random = np.random.default_rng(seed)
    nodes: list[Document] = [{"count": count, "cpu": 64, "gpus": {kind: 8}} for kind, count in knobs.gpus]
    if knobs.rack_nodes:
        each = [{**group, "count": 1} for group in nodes for _ in range(group["count"])]
        nodes = [{**one, "labels": {"rack": f"rack-{n // knobs.rack_nodes}"}} for n, one in enumerate(each)]
    yield json.dumps({"nodes": nodes} | ({"projects": knobs.projects} if knobs.projects else {}))
    for number, at in enumerate(sorted(_arrivals(knobs, random, n_jobs))):
        yield json.dumps({"id": f"job-{number:04d}", "submitted_at": at, **_job(knobs, random, number)})


def _arrivals(knobs: Knobs, random: np.random.Generator, n_jobs: int) -> list[float]:
    """By thinning: of three times as many, those are kept that the rate of the moment asks for."""
    found, at = [3600.0] * int(knobs.burst * n_jobs), 0.0
    while len(found) < n_jobs:
        at += random.exponential(knobs.arrival_seconds / 3.0)
        if random.random() < knobs.rate(at) / 3.0:
            found.append(at)
    return found


def _job(knobs: Knobs, random: np.random.Generator, number: int) -> Document:
    size = int(random.choice(knobs.sizes))
    compute_seconds = random.uniform(0.5, 2.0)
    exchange_seconds = compute_seconds * random.uniform(*knobs.exchange)
    seconds = knobs.seconds * math.exp(_SPREAD * random.standard_normal())
    step_seconds = compute_seconds / size + exchange_seconds * (size - 1) / size
    limit = max(int(seconds / step_seconds), 10)
    part = random.uniform(0.1, 0.5) if random.random() < knobs.ends_early else 1.0
    steps = max(int(limit * part), 10)
    least, most = (size, size) if knobs.rigid else (1, 32)
    truth = {
        "total_steps": steps,
        "steps_per_epoch": max(limit // 20, 1),
        "loss": [0.5, 1.0, 0.1],
        "speed": {"compute_seconds": compute_seconds, "exchange_seconds": exchange_seconds},
        "crossing_factor": knobs.crossing,
        "rack_crossing_factor": knobs.crossing_racks,
    }
    if len(knobs.gpus) > 1:
        truth["type_speeds"] = dict(zip([kind for kind, _ in knobs.gpus], _type_speeds(random), strict=True))
    job = {
        "architecture": "allreduce",
        "family": f"family-{number % _FAMILIES}",
        "global_batch_size": 512,
        "priority": float(random.choice(knobs.priorities)),
        "workers": {"cpu": 4, "gpus": {knobs.gpus[0][0]: 1}, "minimum": least, "maximum": most, "requested": size},
        "convergence": {"max_steps": limit},
        "truth": truth,
    }
    if len(knobs.gpus) > 1:
        job["gpu_types"] = [kind for kind, _ in knobs.gpus]
    if knobs.projects:
        job["project"] = sorted(knobs.projects)[number % len(knobs.projects)]
    return job


def _type_speeds(random: np.random.Generator) -> list[float]:
    """Of three types, the fastest first: how well a job uses a faster one differs."""
    middle = random.uniform(0.35, 0.7)
    return [1.0, middle, middle * random.uniform(0.25, 0.7)]


def _by_day_and_week(at: float) -> float:
    """Few jobs at night and on the weekend; the mean over a week is 1."""
    hour, day = (at % _DAY) / 3600.0, int(at % _WEEK // _DAY)
    rate = (1.8 if 9 <= hour < 19 else 0.45) * (1.0 if day < 5 else 0.4)
    return rate / (1.8 * 10 / 24 + 0.45 * 14 / 24) / ((5 + 2 * 0.4) / 7)


@dataclass(frozen=True, slots=True)
class World:
    """One row of the table."""

    about: str
    knobs: Knobs = Knobs()
    options: Options = field(default_factory=Options)
    jobs: int | None = None
    """It has so many, whatever the others have."""


_PLAIN = Knobs()
WORLDS: dict[str, World] = {
    "plain": World("nothing special"),
    "long-stops": World(
        "changes of size stop a job for 30 s to 10 minutes (log-normal, median 137 s)",
        options=Options(restart_seconds=137.0, restart_spread=1.17),
    ),
    "gangs": World("sizes of 8 to 32 GPUs that cannot shrink", replace(_PLAIN, rigid=True, sizes=(8, 8, 16, 32))),
    "domains": World(
        "on more than one node a job has 55 % of its speed, and neighbours take up to a fifth more",
        replace(_PLAIN, crossing=0.55),
        Options(interference=0.2),
    ),
    "racks": World(
        "two NVLink domains of four nodes: a job has 85 % of its speed on more than one node, and 45 % in both",
        replace(_PLAIN, crossing=0.85, rack_nodes=4, crossing_racks=0.53),
    ),
    "fragments": World(
        "sizes of 1 to 5 GPUs that cannot shrink, on nodes of 8", replace(_PLAIN, rigid=True, sizes=(1, 2, 3, 5, 5))
    ),
    "failing-nodes": World(
        "a node fails every day of its life, a task every 100 hours, repairs take half an hour",
        options=Options(node_hours=24.0, task_hours=100.0),
    ),
    "spot-nodes": World(
        "half of the nodes are taken away after four hours on average, with 2 minutes' notice, for half an hour",
        options=Options(spot_nodes=0.5, spot_hours=4.0),
    ),
    "priorities": World("priorities of 0.1 to 10", replace(_PLAIN, priorities=(0.1, 1.0, 1.0, 10.0))),
    "quotas": World(
        "three projects with a half, a quarter and a quarter, the last without borrowing",
        replace(
            _PLAIN,
            projects={"a": {"share": 0.5}, "b": {"share": 0.25}, "c": {"share": 0.25, "may_borrow": False}},
        ),
    ),
    "early-ends": World("half of the jobs end long before their limit", replace(_PLAIN, ends_early=0.5)),
    "burst": World("half of the jobs come at once", replace(_PLAIN, burst=0.5)),
    "burst-1000": World(
        "1,000 jobs come at once, on 1,024 GPUs, rounds each 10 minutes and none on events",
        replace(_PLAIN, gpus=(("a100", 128),), burst=1.0),
        Options(round_seconds=600.0, rounds_on_events=False),
        jobs=1000,
    ),
    "week": World(
        "days, nights and a weekend: 240 jobs of 4.5 hours in a week on 16 GPUs, rounds each 10 minutes",
        replace(
            _PLAIN,
            gpus=(("a100", 2),),
            sizes=(1, 1, 2, 4, 4, 8),
            rate=_by_day_and_week,
            arrival_seconds=_WEEK / 240,
            seconds=16_200.0,
        ),
        Options(round_seconds=600.0),
        jobs=240,
    ),
    "three-types": World(
        "A100, V100 and T4, each of which a job uses differently well",
        replace(_PLAIN, gpus=(("a100", 3), ("v100", 3), ("t4", 4))),
    ),
    "perfect-scaling": World("no exchange", replace(_PLAIN, exchange=(0.0, 0.0))),
    "hardly-scaling": World("exchange of 60 to 150 %", replace(_PLAIN, exchange=(0.6, 1.5))),
}
"""By name."""
