"""`optimus simulate` from the command line: JSON, table, report, errors; processes change nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optimus_cli.app import app
from optimus_simulator.comparison import Estimate, compare
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "best"], "unknown policy 'best'"),
        (["--set", "speed=2"], "unknown option 'speed'"),
        (["--set", "cluster=0"], "cluster is 0.0, but must be above 0"),
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
