"""The published Pollux simulations, to the second (needs the measured data)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optimus_scheduler.allocate.policies import policy_named
from optimus_simulator.errors import BadTrace
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.traces.pollux import read_pollux


@pytest.mark.parametrize(
    ("policy", "published", "mean"), [("optimus-paper", "optimus", 5301.875), ("tiresias", "tiresias", 3469.69375)]
)
def test_published_completion_times_are_reproduced(data: Path, policy: str, published: str, mean: float) -> None:
    trace = read_pollux(data / "pollux" / "workloads" / "workload-6.csv", faithful=True)
    outcome = Replay(trace, policy_named(policy), Options().like_pollux()).run()
    summary = data / "pollux" / "published" / "results-jobload" / f"{published}-1.0" / "summary.json"
    expected = json.loads(summary.read_text(encoding="utf-8"))["jcts"]["workload-6"]
    assert {job.id: job.jct_seconds for job in outcome.jobs} == pytest.approx(expected)
    assert outcome.figures()["mean_jct_seconds"] == pytest.approx(mean)


def test_step_times_know_no_beginning_of_the_ring(data: Path) -> None:
    trace = read_pollux(data / "pollux" / "workloads" / "workload-6.csv")
    truth = trace.jobs[0].truth
    assert truth.steps_per_second(((4, 0), (1, 0))) == truth.steps_per_second(((1, 0), (4, 0)))


def test_a_profile_that_is_missing_is_told(tmp_path: Path) -> None:
    workload = tmp_path / "workloads" / "one.csv"
    workload.parent.mkdir()
    workload.write_text("name,time,application,num_replicas,batch_size\na,0,nothing,1,32\n", encoding="utf-8")
    with pytest.raises(BadTrace, match="nothing"):
        read_pollux(workload)
