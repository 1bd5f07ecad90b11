"""The whole shell: every job ends, nothing is over capacity, the same seed gives the same outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimus_scheduler import round as cycle
from optimus_scheduler.allocate.policies import POLICIES, policy_named
from optimus_scheduler.model import Resources
from optimus_simulator import replay as replay_module
from optimus_simulator.errors import Stuck
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.trace import Trace

MakeTrace = Callable[..., Trace]
FAULTY = Options(
    task_hours=0.5,
    node_hours=2.0,
    repair_seconds=120.0,
    late_nodes=0.5,
    late_seconds=200.0,
    straggling=0.2,
    interference=0.3,
    restart_spread=0.5,
)


@contextmanager
def watched_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Checks every snapshot: what the tasks of a node need never exceeds the node."""
    rounds: list[float] = []
    real = cycle.plan

    def checked(snapshot: Any, *args: Any, **kwargs: Any) -> Any:
        specs = {job.id: job.spec for job in snapshot.jobs}
        used = {node.name: Resources() for node in snapshot.nodes}
        for task in snapshot.tasks:
            if task.phase != "exited" and task.key.role != "coordinator":
                spec = specs[task.key.job_id]
                need = spec.worker if task.key.role == "worker" else spec.server
                used[task.node] = used[task.node] + need.resources
        assert all(used[node.name].fits_in(node.capacity) for node in snapshot.nodes)
        rounds.append(snapshot.now)
        return real(snapshot, *args, **kwargs)

    monkeypatch.setattr(replay_module, "plan", checked)
    yield rounds


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("kind", ["ring_trace", "server_trace"])
def test_every_job_ends_within_capacity(
    policy: str, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = request.getfixturevalue(kind)()
    with watched_rounds(monkeypatch) as rounds:
        outcome = Replay(trace, policy_named(policy), Options(restart_seconds=5.0)).run()
    assert rounds == sorted(rounds)
    assert [job.id for job in outcome.jobs] == [job.id for job in trace.jobs]
    assert all(job.submitted_at <= job.started_at < job.finished_at for job in outcome.jobs)
    assert 0 < outcome.figures()["useful_utilisation"] <= outcome.figures()["utilisation"] <= 1 + 1e-9


@pytest.mark.parametrize("policy", ["optimus", "tiresias"])
def test_every_job_ends_whatever_fails(policy: str, ring_trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched_rounds(monkeypatch):
        outcome = Replay(ring_trace(), policy_named(policy), FAULTY, seed=3).run()
    assert len(outcome.jobs) == 6
    assert sum(job.restarts for job in outcome.jobs) > 0


@pytest.mark.parametrize("options", [Options(), FAULTY, Options(oracle=True, speed_error=0.1, convergence_error=0.2)])
def test_one_seed_has_one_outcome(options: Options, ring_trace: MakeTrace) -> None:
    first = Replay(ring_trace(), policy_named("optimus"), options, seed=5).run()
    again = Replay(ring_trace(), policy_named("optimus"), options, seed=5).run()
    assert first == again


def test_another_seed_has_another(ring_trace: MakeTrace) -> None:
    outcomes = [Replay(ring_trace(), policy_named("optimus"), FAULTY, seed=seed).run() for seed in (1, 2)]
    assert outcomes[0].jobs != outcomes[1].jobs


def test_a_lone_job_takes_what_its_truth_says(ring_trace: MakeTrace) -> None:
    """One round after the arrival, a restart, then the true speed of two GPUs to the end."""
    options = Options(restart_seconds=7.0, debounce_seconds=1.0)
    outcome = Replay(ring_trace(1), policy_named("tiresias"), options).run()
    (job,) = outcome.jobs
    assert job.started_at == 1.0
    assert job.finished_at == pytest.approx(1.0 + 7.0 + 200.0 * (1.0 + 0.1) / 2)
    assert job.held_share_seconds == pytest.approx((job.finished_at - 1.0) * 2 / 8)
    assert job.trained_share_seconds == pytest.approx((job.finished_at - 8.0) * 2 / 8)
    assert job.restarts == 0


def test_rounds_on_ticks_only_wait_for_the_tick(ring_trace: MakeTrace) -> None:
    options = Options(rounds_on_events=False, restart_seconds=7.0)
    (job,) = Replay(ring_trace(1), policy_named("tiresias"), options).run().jobs
    assert job.started_at == 60.0
    assert job.finished_at == pytest.approx(60.0 + 7.0 + 110.0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**16), policy=st.sampled_from(["optimus", "srtf", "drf"]))
def test_training_is_conserved_under_faults(seed: int, policy: str, ring_trace: MakeTrace) -> None:
    """Nobody trains more than it held, nobody holds more than there is, nobody finishes sooner than it could."""
    outcome = Replay(ring_trace(4), policy_named(policy), FAULTY, seed=seed).run()
    for job, entry in zip(outcome.jobs, ring_trace(4).jobs, strict=True):
        assert job.trained_share_seconds <= job.held_share_seconds + 1e-6
        fastest = entry.truth.begin().seconds_left(entry.truth.fastest(4, 0))
        assert job.jct_seconds >= fastest
    assert max(moment.share for moment in outcome.timeline) <= 1 + 1e-9


def test_stuck_jobs_are_named(ring_trace: MakeTrace) -> None:
    trace = ring_trace(2)
    impossible = replace(trace, nodes=())
    with pytest.raises(Stuck, match=r"2 jobs have not ended after \d+ virtual days, such as job-0, job-1"):
        Replay(impossible, policy_named("fifo"), Options(limit_days=0.1)).run()


def test_each_objective_is_better_than_the_others_at_what_it_is_for(ring_trace: MakeTrace) -> None:
    def figures(objective: str) -> dict[str, float]:
        options = Options(oracle=True, restart_seconds=5.0, objective=objective)
        return Replay(ring_trace(8), policy_named("optimus"), options).run().figures()

    runs = {words: figures(words) for words in ("jct", "makespan", "fairness", "jct:0.5,makespan:0.5")}
    mean, makespan, worst = (
        {words: run[name] for words, run in runs.items()}
        for name in ("mean_jct_seconds", "makespan_seconds", "fairness_worst")
    )
    assert min(mean, key=lambda words: mean[words]) == "jct"
    assert min(makespan, key=lambda words: makespan[words]) == "makespan"
    assert worst["fairness"] < worst["jct"]
    assert mean["jct"] < mean["jct:0.5,makespan:0.5"] < mean["makespan"]
    assert makespan["makespan"] < makespan["jct:0.5,makespan:0.5"] < makespan["jct"]
