"""However low its priority and however much of the cluster it needs, a waiting job gets its turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulator.test_constraints_in_traces import EXACT, a_trace, replayed

from optimus_scheduler.settings import Settings

CORES = 8
SMALL_SECONDS = 600.0
LOAD = 0.62
HOURS = 7.0


def small(number: int) -> dict[str, Any]:
    """A job of ten minutes on one core; together they load the cluster by 62 %."""
    return {
        "id": f"small-{number}",
        "submitted_at": number * SMALL_SECONDS / CORES / LOAD,
        "architecture": "allreduce",
        "workers": {"cpu": 1, "memory_gib": 1, "maximum": 1},
        "convergence": {"max_steps": 600},
        "truth": {"total_steps": 600, "speed": {"compute_seconds": 1.0, "exchange_seconds": 0.0}},
    }


def gang(priority: float) -> dict[str, Any]:
    """A job of an hour that needs the whole cluster and comes when nearly all of it is in use."""
    return {
        **small(0),
        "id": "gang",
        "submitted_at": 1800.0,
        "priority": priority,
        "workers": {"cpu": 1, "memory_gib": 1, "minimum": CORES, "maximum": CORES},
        "convergence": {"max_steps": 28_800},
        "truth": {"total_steps": 28_800, "speed": {"compute_seconds": 1.0, "exchange_seconds": 0.0}},
    }


@pytest.mark.parametrize("priority", [0.001, 0.01, 0.1, 1.0])
def test_a_job_that_needs_the_whole_cluster_is_not_passed_for_ever(priority: float, tmp_path: Path) -> None:
    stream = [small(number) for number in range(int(HOURS * 3600.0 * CORES * LOAD / SMALL_SECONDS))]
    cluster = {"nodes": [{"cpu": CORES, "memory_gib": 64}]}
    outcome = replayed(a_trace(tmp_path, [*stream, gang(priority)], **cluster))
    (job,) = (each for each in outcome.jobs if each.id == "gang")
    settings = Settings()
    # Then it is its turn: before it come only jobs that were started less than `least_run_seconds` ago.
    assert job.started_at - job.submitted_at <= settings.most_patience_seconds + settings.least_run_seconds + 60.0


def test_a_deadline_waits_for_a_job_that_has_just_begun_as_long_as_it_can(tmp_path: Path) -> None:
    """The round that it has to begin in comes in time, however seldom rounds come."""
    minute = {"max_steps": 60}, {**small(0)["truth"], "total_steps": 60}
    due = {"id": "due", "submitted_at": 20.0, "deadline_seconds": 240.0, "convergence": minute[0], "truth": minute[1]}
    trace = a_trace(tmp_path, [small(0), {**small(1), **due}], nodes=[{"cpu": 1, "memory_gib": 64}])
    outcome = replayed(trace, options=replace(EXACT, oracle=True, round_seconds=3600.0))
    (job,) = (each for each in outcome.jobs if each.id == "due")
    assert 60.0 < job.started_at - job.submitted_at < 180.0
    assert job.finished_at - job.submitted_at <= 240.0
