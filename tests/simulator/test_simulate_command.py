"""`optimus simulate` from the command line: JSON, table, report, errors; processes change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from optimus_cli.app import app
from optimus_scheduler.settings import Settings
from optimus_simulator.options import Options
from optimus_simulator.outcome.comparison import Estimate, compare
from optimus_simulator.scenario import Scenario, run_all

CSV = "# nodes=2 gpus=4\nid,submitted_at,workers,duration_seconds\nx,0,4,600\ny,30,2,300\nz,60,8,900\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["simulate", *map(str, words)])
    return result.exit_code, result.output


def test_json_has_the_figures_of_every_policy_and_seed(trace: Path) -> None:
    code, text = run("--trace", trace, "--policy", "fifo,drf", "--seeds", 2, "--processes", 1, "--json")
    assert code == 0
    document = json.loads(text)
    assert [result["policy"] for result in document["policies"]] == ["fifo", "drf"]
    assert all(result["seeds"] == [0, 1] and len(result["runs"]) == 2 for result in document["policies"])
    assert document["policies"][0]["figures"]["makespan_seconds"] > 900


def test_table_and_report_name_the_policies(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.html"
    code, text = run("--trace", trace, "--policy", "fifo,tiresias", "--processes", 1, "--html", report)
    assert code == 0
    assert "tiresias" in text
    html = report.read_text(encoding="utf-8")
    assert html.count("<svg") == 6
    assert "optimus simulate --trace" in html


def test_constants_of_changes_are_those_of_rounds_and_can_be_set(trace: Path) -> None:
    assert Options().settings() == Settings()
    words = ("--trace", trace, "--policy", "optimus", "--processes", 1, "--json")
    changes = []
    for speedup in ("0.075", "1"):  # no change makes a job twice as fast here
        code, text = run(*words, "--set", f"least_speedup={speedup}")
        assert code == 0
        changes.append(json.loads(text)["policies"][0]["figures"]["restarts_per_job"])
    assert changes[0] > changes[1] == 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "best"], "unknown policy 'best'"),
        (["--set", "speed=2"], "unknown option 'speed'"),
        (["--objective", "speed"], "choose one of jct, makespan, deadlines, fairness"),
        (["--set", "objective=jct:0"], "choose one of jct, makespan, deadlines, fairness"),
        (["--set", "cluster=0"], "cluster is 0, but must be from 1e-09 to 1e+06"),
        (["--set", "cluster=nan"], "cluster is nan, but must be from 1e-09 to 1e+06"),
        (["--set", "cluster=1e6"], "may be 100,000 at most"),
        (["--set", "restart_seconds=nan"], "restart_seconds is nan, but must be from 0 to 1e+09"),
        (["--set", "restart_seconds=-5"], "restart_seconds is -5, but must be from 0 to 1e+09"),
        (["--set", "restart_seconds=1e400"], "restart_seconds is inf, but must be from 0 to 1e+09"),
        (["--set", "round_seconds=1e-9"], "round_seconds is 1e-09, but must be from 0.1 to 1e+09"),
        (["--set", "node_hours=1e-300"], "must be 0, or 0.01 at least"),
        (["--load", ","], "--load: name at least one"),
        (["--load", "nan"], "--load: from 1e-06 to 1e+06, please"),
        (["--policy", ","], "name at least one"),
        (["--elastic-batch", "--like-pollux"], "fixed batches"),
        (["--elastic-batch", "--policy", "fifo"], "no batches to choose from"),
    ],
)
def test_what_cannot_be_used_is_refused(trace: Path, words: list[str], said: str) -> None:
    code, text = run("--trace", trace, *words)
    assert code == 2
    assert said in text


def test_loads_and_intervals_are_swept_in_one_go(trace: Path) -> None:
    words = ("--trace", trace, "--policy", "fifo,drf", "--load", "1,2", "--interval", "60,300", "--processes", 1)
    code, text = run(*words, "--json")
    assert code == 0
    names = [result["policy"] for result in json.loads(text)["policies"]]
    assert len(names) == 8
    assert names[0] == "fifo, load 1, interval 60"
    assert names[-1] == "drf, load 2, interval 300"
    assert run("--trace", trace, "--load", "none")[0] == 2


def test_a_missing_trace_is_bad_input() -> None:
    code, text = run("--trace", "missing.csv", "--processes", 1)
    assert code == 2
    assert "missing.csv" in text


def test_processes_change_nothing(trace: Path) -> None:
    scenarios = [Scenario(str(trace), policy, seed) for policy in ("optimus", "fifo") for seed in (0, 1)]
    assert run_all(scenarios, 2, lambda *_: None) == run_all(scenarios, 1, lambda *_: None)


def test_intervals_are_students() -> None:
    """Mean 2, standard deviation 1, n = 3: t(2, 0.975) = 4.3027."""
    estimate = Estimate.of([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.half_width == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert Estimate.of([5.0]) == Estimate(5.0, 0.0)


def test_policies_keep_their_order(trace: Path) -> None:
    outcomes = run_all([Scenario(str(trace), name) for name in ("srtf", "fifo")], 1, lambda *_: None)
    assert [result.policy for result in compare(outcomes)] == ["srtf", "fifo"]


def test_what_a_service_wrote_is_replayed_with_its_rounds_and_stops(tmp_path: Path) -> None:
    """And what is assumed and what happened is said beside what would have happened."""
    job = {
        "workers": {"gpus": {"gpu": 1}, "maximum": 4},
        "architecture": "allreduce",
        "truth": {"total_steps": 300, "speed": {"compute_seconds": 1.0, "exchange_seconds": 0.1}},
        "deadline_seconds": 200,
    }
    ends = {
        "a": ("succeeded", 150.0, 0.2, [0.4]),
        "b": ("succeeded", 250.0, 3.0, []),
        "c": ("cancelled", 20.0, None, []),
    }
    lived: list[dict[str, Any]] = [
        {**job, "id": name, "submitted_at": 10}
        | {"happened": {"state": state, "finished_at": 10 + took, "start_seconds": start, "change_seconds": changes}}
        for name, (state, took, start, changes) in ends.items()
    ]
    lived[0]["happened"]["stops"] = [0.4, 60.0]  # one of them after an error
    cluster = {"nodes": [{"count": 2, "gpus": {"gpu": 4}}], "round_seconds": 40, "learning_round_seconds": 5}
    path = tmp_path / "day.jsonl"
    path.write_text("\n".join(map(json.dumps, [cluster, *lived])), encoding="utf-8")
    words = ("--trace", path, "--policy", "optimus", "--processes", 1)
    document = json.loads(run(*words, "--json")[1])
    assert document["assumed"] == {
        "round_seconds": [40.0],
        "learning_round_seconds": [5.0],
        "restart_seconds": [0.4],
    }
    happened = {"mean_jct_seconds": 140.0, "jobs": 3, "with_deadline": 2, "deadlines_met": 1}
    assert document["happened"] == happened
    said = " ".join(run(*words)[1].split())
    assert "Assumed: a round every 40 s, every 5 s while the speed or end of a job is learned;" in said
    assert "no progress for 0.4 s (median of 2 starts and 1 change of size that were measured) at a start or" in said
    assert "What happened: mean JCT 140 s of 3 jobs, deadlines met 1 of 2." in said
    given = json.loads(run(*words, "--interval", 60, "--set", "restart_seconds=1", "--json")[1])
    assert (given["assumed"]["round_seconds"], given["assumed"]["restart_seconds"]) == ([60.0], [1.0])
    options = (Options(learning_round_seconds=seconds) for seconds in (5.0, 0.0))
    often, seldom = run_all([Scenario(str(path), "optimus", options=each) for each in options], 1, lambda *_: None)
    assert often.rounds > seldom.rounds


def test_a_trace_that_nobody_lived_is_replayed_with_what_is_said(trace: Path) -> None:
    code, text = run("--trace", trace, "--policy", "fifo", "--processes", 1)
    assert code == 0
    assert "Assumed: a round every 60 s; no progress for 30 s at a start or change of size." in " ".join(text.split())
    assert "What happened" not in text
