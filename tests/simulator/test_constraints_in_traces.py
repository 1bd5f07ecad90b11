"""Traces with GPU types, quotas and deadlines, replayed: the same rules as in the live service."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimus_scheduler.allocate.policies import POLICIES, policy_named
from optimus_scheduler.model import Node, Quota, Resources
from optimus_simulator.options import Options
from optimus_simulator.outcome.outcome import Outcome
from optimus_simulator.replay import Replay
from optimus_simulator.trace import Trace
from optimus_simulator.traces.own import read_own

EXACT = Options(speed_noise=0.0, restart_seconds=5.0)
CLUSTER: dict[str, Any] = {
    "nodes": [{"cpu": 16, "memory_gib": 64, "gpus": {"k80": 4}}, {"cpu": 16, "memory_gib": 64, "gpus": {"v100": 4}}]
}


def a_job(name: str, at: float = 0.0, **fields: Any) -> dict[str, Any]:
    """A job of ten minutes on one k80, which is five times as fast on a v100."""
    return {
        "id": name,
        "submitted_at": at,
        "architecture": "allreduce",
        "workers": {"cpu": 1, "memory_gib": 1, "gpus": {"gpu": 1}, "maximum": 4},
        "gpu_types": ["k80", "v100"],
        "convergence": {"max_steps": 600},
        "truth": {
            "total_steps": 600,
            "speed": {"compute_seconds": 1.0, "exchange_seconds": 0.1},
            "type_speeds": {"v100": 5.0},
        },
        **fields,
    }


def a_trace(folder: Path, jobs: list[dict[str, Any]], **cluster: Any) -> Trace:
    path = folder / "trace.jsonl"
    lines = [{**CLUSTER, **cluster}, *jobs]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return read_own(path)


def replayed(trace: Trace, policy: str = "optimus", options: Options = EXACT) -> Outcome:
    return Replay(trace, policy_named(policy), options).run()


def completion(outcome: Outcome) -> dict[str, float]:
    return {job.id: job.finished_at - job.submitted_at for job in outcome.jobs}


def test_everything_is_read(tmp_path: Path) -> None:
    trace = a_trace(
        tmp_path,
        [a_job("a", at=10.0, project="vision", deadline_seconds=300, family="net")],
        projects={"vision": {"share": 0.5}, "text": {"gpus": {"v100": 2}, "memory_gib": 1, "may_borrow": False}},
    )
    assert trace.quotas == (
        Quota("text", memory_bytes=2**30, gpus={"v100": 2}, may_borrow=False),
        Quota("vision", share=0.5),
    )
    (job,) = trace.jobs
    assert (job.spec.gpu_types, job.spec.project, job.spec.deadline_at) == (("k80", "v100"), "vision", 310.0)
    assert (job.speed_factor("v100"), job.speed_factor("k80"), job.speed_factor(None)) == (5.0, 1.0, 1.0)
    assert trace.with_load(2.0).jobs[0].spec.deadline_at == 305.0


@pytest.mark.parametrize(("times", "fast", "slow"), [(1.0, 2, 3), (0.5, 1, 2), (0.1, 1, 1), (2.5, 5, 8)])
def test_a_part_or_a_multiple_of_the_cluster(tmp_path: Path, times: float, fast: int, slow: int) -> None:
    trace = a_trace(tmp_path, [a_job("a")])
    kinds = [Resources(8.0, 2**30, {"v100": 4}), Resources(8.0, 2**30, {"k80": 4})]
    nodes = [Node(f"node-{number}", kinds[number % 2 == 0]) for number in range(5)]
    found = replace(trace, nodes=tuple(nodes)).with_cluster(times).nodes
    assert [sum(node.capacity == kind for node in found) for kind in kinds] == [fast, slow]
    names = {node.name for node in found}
    assert len(names) == len(found)
    assert names >= {node.name for node in nodes} or times < 1.0


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("oracle", [False, True])
def test_every_policy_ends_a_trace_of_two_types(tmp_path: Path, policy: str, oracle: bool) -> None:
    trace = a_trace(tmp_path, [a_job(f"j{i}", at=20.0 * i) for i in range(8)])
    outcome = replayed(trace, policy, Options(oracle=oracle, restart_seconds=5.0))
    assert len(outcome.jobs) == 8


def test_two_types_are_better_than_either(tmp_path: Path) -> None:
    jobs = [a_job(f"j{i}", at=10.0 * i) for i in range(16)]
    means = {}
    for kinds in (["k80"], ["v100"], ["k80", "v100"]):
        times = completion(replayed(a_trace(tmp_path, [{**job, "gpu_types": kinds} for job in jobs])))
        means[len(kinds), kinds[0]] = sum(times.values()) / len(times)
    assert means[2, "k80"] < min(means[1, "k80"], means[1, "v100"])


def test_a_deadline_is_met_that_would_be_missed_without(tmp_path: Path) -> None:
    crowd = [a_job(f"j{i}", gpu_types=["k80"]) for i in range(6)]
    fields: dict[str, Any] = {"at": 20.0, "gpu_types": ["k80"], "convergence": {"max_steps": 600}}
    times = {}
    for due in (None, 450.0):
        urgent = a_job("urgent", **fields, **({} if due is None else {"deadline_seconds": due}))
        times[due] = completion(replayed(a_trace(tmp_path, [*crowd, urgent])))["urgent"]
    assert times[450.0] <= 450.0 < times[None]


def test_deadlines_met_are_told_of_jobs_that_have_one(tmp_path: Path) -> None:
    free = a_job("free", gpu_types=["v100"])
    assert "deadlines_met" not in replayed(a_trace(tmp_path, [free])).figures()
    wishes = {"easy": 500.0, "impossible": 10.0}
    pressed = [a_job(name, gpu_types=["v100"], deadline_seconds=seconds) for name, seconds in wishes.items()]
    for policy in ("optimus", "fifo"):
        outcome = replayed(a_trace(tmp_path, [free, *pressed]), policy)
        assert outcome.figures()["deadlines_met"] == 0.5, policy


def test_the_owner_of_a_quota_does_not_wait_for_borrowers(tmp_path: Path) -> None:
    crowd = [a_job(f"b{i}", project="b", truth={**a_job("")["truth"], "total_steps": 6000}) for i in range(10)]
    waited = {}
    for share in (None, 0.5):
        projects = {"projects": {"a": {"share": share}}} if share else {}
        jobs = [*crowd, a_job("owner", at=200.0, project="a")]
        outcome = replayed(a_trace(tmp_path, jobs, **projects))
        owner = next(job for job in outcome.jobs if job.id == "owner")
        waited[share] = owner.started_at - owner.submitted_at
    assert waited[0.5] <= 2.0 < waited[None]
