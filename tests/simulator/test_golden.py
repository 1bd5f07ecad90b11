"""Completion times of a small trace, as they were when the numbers were last looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from optimus_scheduler.allocate.policies import policy_named
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.trace import Trace

GOLDEN: dict[str, dict[str, float]] = json.loads(
    (Path(__file__).parent / "golden_rings.json").read_text(encoding="utf-8")
)
"""Policy → job → completion time in seconds; baselines only, as `optimus` is meant to become better."""


@pytest.mark.parametrize("policy", sorted(GOLDEN))
def test_completion_times_are_the_golden_ones(policy: str, ring_trace: Callable[..., Trace]) -> None:
    options = Options(oracle=True, restart_seconds=5.0)
    outcome = Replay(ring_trace(8, 1), policy_named(policy), options).run()
    assert {job.id: round(job.jct_seconds, 3) for job in outcome.jobs} == GOLDEN[policy]
