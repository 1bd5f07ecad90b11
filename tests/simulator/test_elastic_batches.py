"""Jobs whose batch is chosen, in the simulator: their truth, what they tell, what becomes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import goodput
from hypothesis import given, settings
from hypothesis import strategies as st

import optimus_simulator.replay as replay_module
from optimus_models.speed.goodput import ElasticBatch
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Plan, SetWanted
from optimus_scheduler.round import plan
from optimus_simulator.errors import BadTrace
from optimus_simulator.options import Options
from optimus_simulator.outcome.outcome import Outcome
from optimus_simulator.replay import Replay
from optimus_simulator.scenario import load
from optimus_simulator.trace import Trace
from optimus_simulator.traces.own import read_own
from optimus_simulator.traces.pollux import read_pollux
from optimus_simulator.truth.elastic import ElasticTruth
from optimus_simulator.truth.truth import AllReduceLaw

LIMITS = ElasticBatch(64, 4096, 256)
TRUTH = ElasticTruth(20_000.0, AllReduceLaw(1.0, 0.2, pass_seconds=0.05), 512, LIMITS, (100.0, 20_000.0))
FOUR = ((4, 0),)


# --- the truth -------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.1, 2000.0), min_size=1, max_size=6), st.sampled_from([64, 512, 4096]))
def test_training_in_parts_is_training_in_one_go(parts: list[float], batch: int) -> None:
    whole, cut_up = TRUTH.begin(), TRUTH.begin()
    whole.batch = cut_up.batch = batch
    trained = sum(cut_up.advance(part, FOUR) for part in parts)
    assert whole.advance(sum(parts), FOUR) == pytest.approx(trained, rel=1e-5)
    assert whole.step == pytest.approx(cut_up.step, rel=1e-5)
    assert whole.updates == pytest.approx(cut_up.updates, rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([64, 200, 4096]), st.floats(1.0, 1e5), st.floats(1.0, 1e5))
def test_updates_are_the_integral_of_one_by_gain(batch: int, first: float, last: float) -> None:
    truth = replace(TRUTH, noise=(first, last))
    steps = np.linspace(0.0, 15_000.0, 20_001)
    noise = np.array([truth.noise_at(step) for step in steps.tolist()])
    by_gain = (1.0 + noise / batch) / (1.0 + noise / LIMITS.minimum)
    assert truth.updates(15_000.0, batch) == pytest.approx(float(np.trapezoid(by_gain, steps)), rel=1e-4)


def test_a_job_ends_when_it_said_it_would() -> None:
    training = TRUTH.begin()
    training.batch = 1024
    assert not training.is_done
    needed = training.seconds_left(FOUR)
    assert training.advance(2.0 * needed, FOUR) == pytest.approx(needed)
    assert training.is_done
    assert training.step == TRUTH.total_steps
    assert training.steps_left() == 0.0


def test_goodput_is_progress_by_time() -> None:
    training = TRUTH.begin()
    training.batch = 1024
    goodput = training.goodput(4, 1024)
    training.advance(1.0, FOUR)
    assert training.step == pytest.approx(goodput, rel=1e-3)


def test_a_fixed_batch_is_the_one_of_the_trace() -> None:
    fixed, told = TRUTH.begin(), TRUTH.begin()
    told.batch = TRUTH.batch
    assert fixed.seconds_left(FOUR) == told.seconds_left(FOUR)


# --- whole simulations -----------------------------------------------------------------------------------------------

LINE = {
    "global_batch_size": 512,
    "architecture": "allreduce",
    "family": "net",
    "workers": {"gpus": {"t4": 1}, "maximum": 8, "requested": 2},
    "elastic_batch": {"minimum": 64, "maximum": 4096, "per_pass": 256},
    "convergence": {"max_epochs": 10},
}


def job_line(name: str, at: float, **changes: Any) -> str:
    truth = {"total_steps": 10_000, "steps_per_epoch": 1000, "noise_scale": [100, 20_000]}
    truth["speed"] = {"compute_seconds": 0.5, "exchange_seconds": 0.1, "pass_seconds": 0.02}
    return json.dumps({"id": name, "submitted_at": at, **LINE, "truth": truth, **changes})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.jsonl"
    lines = [job_line(f"job-{i}", 200.0 * i) for i in range(6)]
    path.write_text("\n".join([json.dumps({"nodes": [{"count": 4, "gpus": {"t4": 4}}]}), *lines]), encoding="utf-8")
    return path


def run(trace: Trace, policy: str = "optimus", **options: Any) -> Outcome:
    return Replay(trace, policy_named(policy), Options(**options), seed=1).run()


def test_choosing_the_batch_pays_and_knowing_everything_pays_more(own: Path) -> None:
    trace = read_own(own)
    fixed = replace(trace, jobs=tuple(replace(job, spec=replace(job.spec, elastic_batch=None)) for job in trace.jobs))
    bound, free = (run(each).figures()["mean_jct_seconds"] for each in (fixed, trace))
    assert free < 0.95 * bound
    assert run(trace, oracle=True).figures()["mean_jct_seconds"] < free


def test_the_same_seed_gives_the_same_outcome(own: Path) -> None:
    assert run(read_own(own)) == run(read_own(own))


@pytest.mark.parametrize("policy", ["optimus", "drf"])
def test_batches_keep_their_bounds_all_the_way(own: Path, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[SetWanted] = []

    def watched(*args: Any, **kwargs: Any) -> Plan:
        outcome = plan(*args, **kwargs)
        told.extend(action for action in outcome.actions if isinstance(action, SetWanted) and action.tasks)
        return outcome

    monkeypatch.setattr(replay_module, "plan", watched)
    run(read_own(own), policy)
    batches = [(action.batch or 0, action.allocation.workers) for action in told]
    assert all(LIMITS.minimum <= batch <= LIMITS.most(workers) for batch, workers in batches)
    chosen = {batch for batch, _ in batches}
    assert len(chosen) > 3 if policy == "optimus" else chosen == {512}


def test_another_batch_alone_stops_nobody(own: Path) -> None:
    one = read_own(own)
    alone = replace(one, jobs=one.jobs[:1])
    replay = Replay(alone, policy_named("optimus"), Options(), seed=1)
    job = None

    def look(_ended: int, _now: float) -> None:
        nonlocal job
        job = job or next(iter(replay.active.values()), None)

    replay._progress = look
    outcome = replay.run()
    assert job is not None
    assert job.batch_changes > 0
    assert outcome.jobs[0].restarts == len(job.telemetry.stops)


# --- traces ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"architecture": "ps"}, "all-reduce"),
        ({"global_batch_size": 5000}, "5000 is not between"),
        ({"elastic_batch": {"minimum": 64, "maximum": 32, "per_pass": 8}}, "cannot be"),
        ({"elastic_batch": {"minimum": 64, "maximum": 320, "per_pas": 8}}, "per_pas"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join([json.dumps({"nodes": [{"gpus": {"t4": 4}}]}), job_line("a", 0.0, **changes)]))
    with pytest.raises(BadTrace, match=why):
        read_own(path)


def test_jobs_that_know_no_batches_cannot_be_elastic() -> None:
    with pytest.raises(BadTrace, match="no batches"):
        load("paper", Options(elastic_batch=True), 0)


def test_pollux_jobs_are_elastic_only_if_asked(data: Path) -> None:
    path = data / "pollux" / "workloads" / "workload-6.csv"
    assert all(job.spec.elastic_batch is None for job in read_pollux(path).jobs)
    elastic = {job.spec.family: job.spec.elastic_batch for job in read_pollux(path, elastic=True).jobs}
    assert elastic["ncf"] is None, "the published simulations fix it, too"
    assert elastic["cifar10"] == ElasticBatch(128, 4096, 1024)


def test_the_benchmark_of_goodput_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goodput.main(["--data", str(data / "pollux" / "profiles"), "--draws", "1", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == len(goodput.APPLICATIONS) * len(goodput.ENDED)
    assert all(0.5 < row["efficiency"] <= 1.0 for row in rows)


def test_measured_jobs_gain_by_elastic_batches(data: Path) -> None:
    path = data / "pollux" / "workloads" / "workload-6.csv"
    traces = (read_pollux(path, elastic=each) for each in (False, True))
    fixed, free = (run(replace(trace, jobs=trace.jobs[:6])) for trace in traces)
    assert free.figures()["mean_jct_seconds"] < fixed.figures()["mean_jct_seconds"]
