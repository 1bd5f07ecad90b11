"""The all-reduce benchmark counts errors as it says, and the models keep their lead on the measured data."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks import allreduce_models


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("OPTIMUS_DATA")
    if not folder:
        pytest.skip("OPTIMUS_DATA does not name the folder with pollux/profiles and gavel_throughputs.json")
    return Path(folder)


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    """One application on up to six nodes, and three jobs on three types of GPU."""
    folder = tmp_path / "pollux" / "profiles" / "toy"
    folder.mkdir(parents=True)
    seconds = {(n, m): 0.1 + 0.01 * m + 0.1 * (n > 1) + 0.01 * (n - 1) for n in range(1, 7) for m in range(8, 80, 8)}
    placed = [("1" * n, m, t, 0.1 * t) for (n, m), t in seconds.items() if n < 6]
    scaled = [(n, n, m, t, 0.1 * t) for (n, m), t in seconds.items() if n == 6]
    write(folder / "placements.csv", "placement,local_bsz,step_time,sync_time", placed)
    write(folder / "scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time", scaled)
    rows = {f"('Net (batch size {b})', 1)": {"null": 100.0 / b} for b in (8, 16, 32)}
    rows["('Other', 1)"] = {"null": 5.0}
    faster = {key: {"null": 4 * value["null"]} for key, value in rows.items()}
    table = {"k80": rows, "p100": faster, "v100": faster}
    (tmp_path / "gavel_throughputs.json").write_text(json.dumps(table))
    return tmp_path


def write(path: Path, header: str, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])


def test_it_reports_as_json(small_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert allreduce_models.main(["--data", str(small_data), "--json", "--draws", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    error = {(row["design"], row["model"], row["samples"]): row["mean_error"] for row in report["step_times"]}
    assert error["random", "ours", 40] < 5.0
    assert error["random", "ours", 40] < error["random", "nearest", 40]
    assert {row["known_types"] for row in report["gpu_types"]} == {1, 2}


def test_a_table_without_json(small_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert allreduce_models.main(["--data", str(small_data), "--draws", "1"]) == 0
    assert "coverage_80" in capsys.readouterr().out


def test_growing_never_fits_to_what_it_predicts(small_data: Path) -> None:
    (profile,) = allreduce_models.load_profiles(small_data / "pollux" / "profiles")
    drawn, rest = allreduce_models.draw_small(profile, 5, np.random.default_rng(0))
    assert profile.nodes[drawn].max() <= allreduce_models.FEW_NODES < profile.nodes[rest].min()


def test_measured_steps_are_predicted_better_than_by_the_linear_form(data: Path) -> None:
    profiles = allreduce_models.load_profiles(data / "pollux" / "profiles")
    rows = list(allreduce_models.step_times(profiles, n_draws=3))
    error = {(row["design"], row["samples"], row["model"]): row["mean_error"] for row in rows}
    for design, samples in (("random", 5), ("random", 40), ("growing", 10)):
        ours, linear = error[design, samples, "ours"], error[design, samples, "pollux"]
        assert isinstance(ours, float)
        assert isinstance(linear, float)
        assert ours < linear


def test_speeds_on_unmeasured_types_are_predicted_within_stated_intervals(data: Path) -> None:
    speeds = allreduce_models.load_speeds(data / "gavel_throughputs.json")
    for workers in (1.0, 4.0):
        rows = [row for row in speeds if row.job.workers == workers]
        results = np.array(list(allreduce_models.leave_one_out(rows, n_known=1, same_family=True)))
        assert results[:, 0].mean() < 0.2
        assert results[:, 0].mean() < 0.6 * results[:, 1].mean()
        assert 0.72 < results[:, 2].mean() < 0.92
