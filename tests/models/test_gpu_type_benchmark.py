"""The benchmark of speeds by GPU type counts errors as it says, and the model keeps its lead on the measured data."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks import gpu_type_speeds


@pytest.fixture
def data() -> Path:
    folder = os.environ.get("OPTIMUS_DATA")
    if not folder:
        pytest.skip("OPTIMUS_DATA does not name the folder with gavel_throughputs.json")
    return Path(folder)


@pytest.fixture
def small_data(tmp_path: Path) -> Path:
    """Four jobs on three types of GPU."""
    rows = {f"('Net (batch size {b})', 1)": {"null": 100.0 / b} for b in (8, 16, 32)}
    rows["('Other', 1)"] = {"null": 5.0}
    faster = {key: {"null": 4 * value["null"]} for key, value in rows.items()}
    table = {"k80": rows, "p100": faster, "v100": faster}
    (tmp_path / "gavel_throughputs.json").write_text(json.dumps(table))
    return tmp_path


def test_it_reports_as_json(small_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_type_speeds.main(["--data", str(small_data), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["known_types"] for row in report["gpu_types"]} == {1, 2}


def test_a_table_without_json(small_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_type_speeds.main(["--data", str(small_data)]) == 0
    assert "coverage_80" in capsys.readouterr().out


def test_speeds_on_unmeasured_types_are_predicted_within_stated_intervals(data: Path) -> None:
    speeds = gpu_type_speeds.load_speeds(data / "gavel_throughputs.json")
    for workers in (1.0, 4.0):
        rows = [row for row in speeds if row.job.workers == workers]
        results = np.array(list(gpu_type_speeds.leave_one_out(rows, n_known=1, same_family=True)))
        assert results[:, 0].mean() < 0.2
        assert results[:, 0].mean() < 0.6 * results[:, 1].mean()
        assert 0.72 < results[:, 2].mean() < 0.92
