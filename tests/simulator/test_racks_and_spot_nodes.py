"""Racks, between which a job is slower, and spot nodes, which are taken away a moment after they are told so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimus_scheduler.allocate.policies import policy_named
from optimus_simulator.cluster import Cluster
from optimus_simulator.errors import BadTrace
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.trace import Trace
from optimus_simulator.traces.own import read_own

EXACT = Options(speed_noise=0.0, restart_seconds=0.0, debounce_seconds=0.0)
RACKS = {"nodes": [{"count": 2, "gpus": {"a100": 4}, "labels": {"rack": name}} for name in "ab"]}


def a_job(name: str, gpus: int, at: float = 0.0, **truth: Any) -> dict[str, Any]:
    """A job that cannot shrink; of several GPUs it takes a thousand seconds where it is undisturbed."""
    return {
        "id": name,
        "submitted_at": at,
        "architecture": "allreduce",
        "workers": {"gpus": {"a100": 1}, "minimum": gpus, "maximum": gpus, "requested": gpus},
        "convergence": {"max_steps": 1000},
        "truth": {
            "total_steps": 1000,
            "speed": {"compute_seconds": 0.5 * gpus, "exchange_seconds": 0.5 * gpus / max(gpus - 1, 1)},
            **truth,
        },
    }


def a_trace(folder: Path, cluster: dict[str, Any], *jobs: dict[str, Any]) -> Trace:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in (cluster, *jobs)), encoding="utf-8")
    return read_own(path)


def seconds(trace: Trace, options: Options = EXACT, policy: str = "optimus") -> list[float]:
    outcome = Replay(trace, policy_named(policy), options, seed=1).run()
    return [job.finished_at - job.submitted_at for job in outcome.jobs]


def test_a_job_is_slower_on_several_racks_than_on_several_nodes_of_one(tmp_path: Path) -> None:
    slower: dict[str, Any] = {"crossing_factor": 0.8, "rack_crossing_factor": 0.5}
    found = {
        gpus: seconds(a_trace(tmp_path, RACKS, a_job("one", gpus, **slower)))[0] for gpus in (4, 8, 16)
    }  # a node, a rack, two racks
    assert found == pytest.approx({4: 1000.0, 8: 1000.0 / 0.8, 16: 1000.0 / 0.8 / 0.5})


def test_what_racks_cost_is_measured_as_exchange(tmp_path: Path) -> None:
    trace = a_trace(tmp_path, RACKS, a_job("one", 16, rack_crossing_factor=0.5))
    replay = Replay(trace, policy_named("optimus"), EXACT)
    replay.run()
    (job,) = replay._ended.values()
    (sample,) = job.telemetry.samples
    assert sample.steps_per_second == pytest.approx(0.5)
    assert sample.exchange_seconds == pytest.approx(1.5)  # half a second of a step of two is computed


def test_further_nodes_are_in_racks_of_their_own(tmp_path: Path) -> None:
    trace = a_trace(tmp_path, RACKS, a_job("one", 4)).with_cluster(2)
    assert [node.labels["rack"] for node in trace.nodes] == ["a", "a", "b", "b", "a-1", "a-1", "b-1", "b-1"]


@pytest.mark.parametrize(
    ("cluster", "job", "said"),
    [
        (RACKS, {"crossing_factor": 0.5}, "line 2: job one: unknown field 'crossing_factor' of a job"),
        (RACKS, {"truth": {"total_steps": 1, "speeds": {}}}, "line 2: job one: unknown field 'speeds' of the truth"),
        (RACKS, {"workers": {"gpu": 1}}, "line 2: job one: unknown field 'gpu' of a task"),
        (RACKS, a_job("one", 1, rack_crossing_factor=0.0), "rack_crossing_factor is 0, but must be from 1e-09 to 1"),
        ({"nodes": [], "quotas": {}}, {}, "line 1: unknown field 'quotas' of the cluster"),
        ({"nodes": [{"rack": "a"}]}, {}, "line 1: unknown field 'rack' of nodes"),
    ],
)
def test_a_field_in_the_wrong_place_is_refused(
    tmp_path: Path, cluster: dict[str, Any], job: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadTrace, match=said):
        a_trace(tmp_path, cluster, {**a_job("one", 1), **job})


# --- spot nodes ------------------------------------------------------------------------------------------------------

SPOT = replace(EXACT, spot_nodes=0.5, spot_hours=0.2, notice_seconds=120.0, repair_seconds=300.0)
NODES = {"nodes": [{"count": 4, "gpus": {"a100": 4}}]}


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The jobs that lost tasks, each time that a node was lost."""
    found: list[set[str]] = []
    real = Cluster.fail_node

    def watched(cluster: Cluster, name: str) -> set[str]:
        found.append(real(cluster, name))
        return found[-1]

    monkeypatch.setattr(Cluster, "fail_node", watched)
    return found


def test_jobs_leave_a_spot_node_before_it_is_taken_away(tmp_path: Path, lost: list[set[str]]) -> None:
    jobs = [a_job(f"job-{n}", 4) for n in range(2)]  # two of the four nodes are enough
    assert seconds(a_trace(tmp_path, NODES, *jobs), SPOT) == [1000.0, 1000.0]
    assert lost
    assert not any(lost)


def test_without_a_notice_they_lose_their_tasks(tmp_path: Path, lost: list[set[str]]) -> None:
    jobs = [a_job(f"job-{n}", 4) for n in range(4)]
    seconds(a_trace(tmp_path, NODES, *jobs), replace(SPOT, notice_seconds=0.0))
    assert any(lost)


@pytest.mark.parametrize("policy", ["optimus", "tiresias", "drf"])
@pytest.mark.parametrize("failing", [0.0, 0.3])
def test_every_job_ends_on_spot_nodes_that_may_fail_as_well(
    tmp_path: Path, policy: str, failing: float, lost: list[set[str]]
) -> None:
    jobs = [a_job(f"job-{n}", 1 + n, at=60.0 * n) for n in range(6)]
    options = replace(SPOT, spot_nodes=1.0, node_hours=failing, restart_seconds=5.0)
    assert len(seconds(a_trace(tmp_path, NODES, *jobs), options, policy)) == len(jobs)
    assert lost
