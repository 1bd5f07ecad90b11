"""Our own format, the paper's workload, and what is said of files that are neither."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from optimus_scheduler.model import Architecture, Mode
from optimus_simulator.errors import BadTrace
from optimus_simulator.options import Options, option_value
from optimus_simulator.scenario import Scenario, load, simulate
from optimus_simulator.traces.own import read_own
from optimus_simulator.traces.paper import MODELS, end_epoch, paper_workload

NODES = {"nodes": [{"count": 2, "cpu": 4, "memory_gib": 8}, {"gpus": {"t4": 4}}]}
JOB: dict[str, Any] = {
    "id": "a",
    "submitted_at": 5,
    "workers": {"cpu": 1, "memory_gib": 0.5, "maximum": 4, "requested": 2},
    "servers": {"cpu": 1, "maximum": 2},
    "convergence": {"loss_decrease": 0.01, "max_epochs": 20},
    "global_batch_size": 32,
    "truth": {
        "total_steps": 100,
        "speed": {"theta": [0.03, 0.1, 0.1, 0.01, 0.01]},
        "loss": [0.5, 1, 0.1],
        "steps_per_epoch": 10,
    },
}


def written(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_jsonl_says_all_of_a_job(tmp_path: Path) -> None:
    ring = {
        "id": "b",
        "submitted_at": 0,
        "architecture": "allreduce",
        "workers": {"gpus": {"t4": 1}},
        "truth": {"total_steps": 10, "speed": {"compute_seconds": 1, "exchange_seconds": 0.1}},
    }
    trace = read_own(written(tmp_path / "mine.jsonl", NODES, JOB, ring))
    assert [node.name for node in trace.nodes] == ["node-0000", "node-0001", "node-0002"]
    assert [job.id for job in trace.jobs] == ["b", "a"]
    b, a = trace.jobs
    assert (a.spec.architecture, a.spec.mode, a.spec.requested_workers) == (Architecture.PS, Mode.SYNC, 2)
    assert (b.spec.server.minimum, b.spec.server.maximum) == (0, 0)
    assert a.truth.steps_per_second(((1, 1),)) == pytest.approx(1 / (0.03 * 32 + 0.1 + 0.1 + 0.01 + 0.01))


def test_csv_jobs_last_as_long_as_they_lasted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("# nodes=2 gpus=4\nid,submitted_at,workers,duration_seconds\nx,0,4,3600\n", encoding="utf-8")
    (job,) = read_own(path).jobs
    assert job.truth.begin().seconds_left(((4, 0),)) == pytest.approx(3600)
    assert job.truth.begin().seconds_left(((1, 0),)) == pytest.approx(3600 * 4 / 1.3)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([NODES, {**JOB, "truth": {}}], "line 2: job a: truth.total_steps is missing"),
        ([NODES, {**JOB, "mode": "lazy"}], 'line 2: job a: mode is "lazy", but must be sync or async'),
        ([{}], "line 1: nodes is missing"),
        ([{"nodes": [{"cpu": 1, "gpus": 2}]}], r"line 1: nodes\[0\]\.gpus has values by their names"),
        ([], "empty"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, lines: list[object], said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        read_own(written(tmp_path / "bad.jsonl", *lines))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"submitted_at": 1e30}, "submitted_at is 1e+30, but must be from 0 to 1e+11"),
        ({"deadline_seconds": 1e30}, "deadline_seconds is 1e+30, but must be from 0 to 1e+09"),
        (
            {"workers": {"cpu": 1, "maximum": 10**9}},
            "workers.maximum is 1e+09, but must be a whole number from 1 to 1024",
        ),
        (
            {"convergence": {"max_steps": 10**30}},
            "convergence.max_steps is 1e+30, but must be a whole number from 1 to 1e+12",
        ),
        (
            {"truth": {**JOB["truth"], "total_steps": 1e30}},
            "truth.total_steps is 1e+30, but must be from 1e-09 to 1e+12",
        ),
        (
            {"truth": {**JOB["truth"], "total_steps": math.nan}},
            "truth.total_steps is nan, but must be from 1e-09 to 1e+12",
        ),
        (
            {"truth": {**JOB["truth"], "speed": {"theta": [0.03, 1e30, 0.1, 0.01, 0.01]}}},
            "truth.speed.theta[1] is 1e+30, but must be from 0 to 1e+09",
        ),
    ],
)
def test_numbers_beyond_those_of_submitted_jobs_are_refused(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    path = written(tmp_path / "bad.jsonl", NODES, {**JOB, **changes})
    with pytest.raises(BadTrace, match=re.escape(f"{path}, line 2: job a: {said}")):
        read_own(path)


def test_durations_of_plain_jobs_have_the_limits_of_submitted_ones(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("# nodes=2 gpus=4\nid,submitted_at,workers,duration_seconds\nx,0,4,1e30\n", encoding="utf-8")
    with pytest.raises(BadTrace, match=re.escape(", line 3: duration_seconds is 1e+30, but must be from 0 to 1e+09")):
        read_own(path)


def test_a_job_that_cannot_end_in_the_time_of_a_simulation_is_told_before_it(tmp_path: Path) -> None:
    long = {**JOB, "truth": {**JOB["truth"], "total_steps": 1e9}}
    path = str(written(tmp_path / "long.jsonl", NODES, long))
    with pytest.raises(
        BadTrace, match=r"job a is submitted at 5 s and takes 6e\+08 s at its best size: .* limit of 400"
    ):
        simulate(Scenario(path, "srtf"))
    short = str(written(tmp_path / "short.jsonl", NODES, JOB))
    with pytest.raises(BadTrace, match="virtual days"):
        simulate(Scenario(short, "srtf", options=Options(limit_days=1e-4)))


def test_an_unknown_kind_of_trace_is_told() -> None:
    with pytest.raises(BadTrace, match="give pollux:FILE"):
        load("borg:x", Options(), 0)
    with pytest.raises(BadTrace, match="No such file"):
        load("missing.jsonl", Options(), 0)


@pytest.mark.parametrize("arrivals", ["uniform", "poisson", "google"])
def test_the_papers_workload_is_drawn_by_its_seed(arrivals: str) -> None:
    first, again, other = (paper_workload(seed, arrivals) for seed in (1, 1, 2))
    assert [(job.id, job.submitted_at) for job in first.jobs] == [(job.id, job.submitted_at) for job in again.jobs]
    assert [job.submitted_at for job in first.jobs] != [job.submitted_at for job in other.jobs]
    assert len(first.jobs) == 60
    assert all(left.submitted_at <= right.submitted_at for left, right in zip(first.jobs, first.jobs[1:], strict=False))


def test_the_papers_jobs_end_where_their_true_curve_flattens() -> None:
    job = paper_workload(0).jobs[0]
    model = next(model for model in MODELS if job.id.startswith(model.name))
    end = end_epoch(model.loss, job.spec.convergence)
    delta = job.spec.convergence.loss_decrease
    assert delta is not None
    falls = [1 - model.loss(epoch) / model.loss(epoch - 1) for epoch in range(1, end + 1)]
    assert all(fall < delta for fall in falls[-3:])
    assert end == 4 or falls[-4] >= delta  # the live rule needs an epoch to start from


def test_a_scenario_can_be_repeated_from_its_command(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", NODES, JOB)
    scenario = Scenario(str(path), "optimus", 7, Options(restart_seconds=3.0, oracle=True))
    assert scenario.command.endswith("--policy optimus --seed 7 --set restart_seconds=3.0 --set oracle=True")
    assert option_value("oracle", "True") is True
    assert simulate(scenario) == simulate(scenario)


@pytest.mark.parametrize(("name", "text"), [("oracle", "maybe"), ("speed", "1"), ("round_seconds", "soon")])
def test_options_that_do_not_exist_are_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"true or false|unknown option|is \"soon\", but must be a number"):
        option_value(name, text)


def test_a_file_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(BadTrace) as told:
        read_own(tmp_path / "none.jsonl")
    assert str(told.value) == f"{tmp_path / 'none.jsonl'}: No such file or directory"
