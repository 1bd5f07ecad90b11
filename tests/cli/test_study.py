"""`optimus study`: any table of logs becomes a report, and a wrong one a complaint that says where."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from optimus_cli.app import app
from optimus_cli.errors import BadInput
from optimus_cli.study.reading import parse_columns, parse_prices, read_runs

HEADER = ["layers", "gpu", "epoch", "train_loss", "train_accuracy", "seconds"]


def _rows(n: int = 30) -> list[list[Any]]:
    """Three depths on two types; the deepest takes twice the epochs."""
    rows = []
    for layers, stretch in ((20, 1.0), (32, 0.9), (44, 2.0)):
        for gpu, seconds in (("K80", 40.0), ("V100", 5.0)):
            for epoch in range(1, n + 1):
                loss = 2.0 / (0.4 * epoch / stretch + 0.6)
                rows.append([layers, gpu, epoch, loss, 1.0 - loss / 4.0, seconds + layers / 10])
    return rows


def _write(path: Path, rows: list[list[Any]], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return _write(tmp_path / "logs.csv", _rows())


def _run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["study", *(str(argument) for argument in arguments)])


def test_json_has_every_figure(logs: Path) -> None:
    result = _run(logs, "--json", "--target-accuracy", "0.9")
    assert result.exit_code == 0, result.output
    study = json.loads(result.stdout)
    assert len(study["runs"]) == 4
    assert study["held_out"] == 44
    assert {forecast["gpu"] for forecast in study["forecasts"]} == {"K80", "V100"}
    for forecast in study["forecasts"]:
        truth = forecast["measured_epoch"]
        assert abs(forecast["after_epoch"]["mean"] - truth) < abs(forecast["plain_epoch"] - truth)
        assert forecast["after_curve_error"] < forecast["plain_curve_error"]
    assert {(curve["gpu"], curve["servers"]) for curve in study["time_to_target"]} == {
        (gpu, servers) for gpu in ("K80", "V100") for servers in (2, 4)
    }
    assert {one["kind"] for one in study["scaling"]} == {"strong", "weak"}
    assert len(study["analytic"]) == 6


def test_the_html_report_needs_no_other_file(logs: Path, tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.html"
    assert _run(logs, "--output", report).exit_code == 0
    text = report.read_text()
    assert text.count("data:image/png;base64,") == 5
    assert "http" not in text
    assert list(report.parent.iterdir()) == [report]


def test_the_markdown_report_names_the_pictures_beside_it(logs: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    assert _run(logs, "-o", report).exit_code == 0
    pictures = {f"report-pictures/{path.name}" for path in (tmp_path / "report-pictures").iterdir()}
    assert len(pictures) == 5
    assert all(f"({picture})" in report.read_text() for picture in pictures)


def test_own_columns_without_accuracy_and_unknown_hardware(tmp_path: Path) -> None:
    rows = [[layers, "laptop", epoch, loss, 1000 * layers] for layers, gpu, epoch, loss, *_ in _rows() if gpu == "K80"]
    path = _write(tmp_path / "own.csv", rows, ["width", "device", "round", "loss", "weights"])
    columns = ("layers=width", "gpu=device", "epoch=round", "train_loss=loss", "parameters=weights")
    result = _run(path, "--json", *(part for column in columns for part in ("--column", column)))
    assert result.exit_code == 0, result.output
    study = json.loads(result.stdout)
    assert study["target"]["accuracy"] is None
    assert study["analytic"] == []
    assert study["remarks"] == ["No time on laptop: its seconds per epoch were not logged."]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ([20, "K80", 31, "much", 0.5, 1], "logs.csv:182:train_loss: 'much' is not a number"),
        (["deep", "K80", 31, 1.0, 0.5, 1], "logs.csv:182:layers: 'deep' is not a number"),
        ([20, "K80", 1.5, 1.0, 0.5, 1], "logs.csv:182:epoch: expected a whole number from 1 to 1000000, found 1.5"),
        ([20, "", 31, 1.0, 0.5, 1], "logs.csv:182:gpu: empty"),
        ([20, "K80", 30, 1.0, 0.5, 1], "logs.csv:182:epoch: epoch 30 of 20 on K80 is in line 31 too"),
        ([56, "K80", 1, "nan", 0.5, 1], "logs.csv:182:train_loss: 56 on K80 has no finite loss at all"),
    ],
)
def test_a_wrong_cell_is_named(tmp_path: Path, row: list[Any], complaint: str) -> None:
    path = _write(tmp_path / "logs.csv", [*_rows(), row])
    result = _run(path, "--json")
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_a_missing_column_says_how_to_name_it(tmp_path: Path) -> None:
    path = _write(tmp_path / "logs.csv", [[1, 2]], ["depth", "loss"])
    with pytest.raises(BadInput, match=r"logs.csv:1: no column 'layers' \(has depth, loss\).*--column layers=NAME"):
        read_runs(path, parse_columns([]))


def test_files_that_are_no_logs_are_refused(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.csv", tmp_path / "binary.csv"
    empty.write_text("")
    binary.write_bytes(b"\xff\xfe\x00\x01" * 100)
    for path in (empty, binary, tmp_path / "absent.csv"):
        with pytest.raises(BadInput, match=path.name):
            read_runs(path, parse_columns([]))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--column", "depth=x"), "expected ROLE=NAME"),
        (("--held-out", "7"), "the file has 20, 32, 44"),
        (("--price", "V100=cheap"), "expected GPU=USD"),
        (("--price", "A100=3"), "the file has K80, V100"),
        (("--output", "report.pdf"), "ends in .html or .md"),
    ],
)
def test_wrong_options_are_named(logs: Path, options: tuple[str, str], complaint: str) -> None:
    result = _run(logs, *options)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_one_size_alone_cannot_be_compared(tmp_path: Path) -> None:
    path = _write(tmp_path / "logs.csv", [row for row in _rows() if row[0] == 20])
    result = _run(path, "--json")
    assert result.exit_code == 2
    assert "at least two sizes" in result.stderr


def test_own_prices_come_first() -> None:
    prices = parse_prices(["V100=9", "server=1"], ["V100", "K80", "laptop"])
    assert prices.gpu_hour == {"K80": 0.45, "V100": 9.0, "laptop": 0.0}
    assert prices.server_hour == 1.0


def test_the_example_in_the_repository_can_be_studied() -> None:
    example = Path(__file__).parents[2] / "examples" / "digits_depths.csv"
    result = _run(example, "--column", "gpu=device", "--batch-size", 120, "--examples", 1437, "--json")
    assert result.exit_code == 0, result.output
    study = json.loads(result.stdout)
    assert study["held_out"] == 6
    assert study["forecasts"][0]["before_epoch"]["low"] <= 17 <= study["forecasts"][0]["before_epoch"]["high"]
    assert study["time_to_target"]


# --- measured speeds -------------------------------------------------------------------------------------------------


def _speed(workers: int, servers: int) -> float:
    return 1.0 / (0.08 / workers + 0.01 + 0.02 * max(workers / servers, 1.0) + 0.001 * (workers + servers))


def _speeds(path: Path, gpus: list[str] | None = None) -> Path:
    sizes = [(w, p) for w in (1, 2, 4, 8) for p in (1, 2, 4)]
    rows = [[w, p, _speed(w, p), gpu] for gpu in gpus or [""] for w, p in sizes]
    return _write(path, rows, ["workers", "servers", "steps_per_second", "gpu"])


def test_times_follow_measured_speeds(logs: Path, tmp_path: Path) -> None:
    speeds = _speeds(tmp_path / "speeds.csv", ["V100"])
    study = json.loads(_run(logs, "--json", "--speeds", speeds, "--examples", 12_800).stdout)
    curves = {(curve["gpu"], curve["servers"]): curve for curve in study["time_to_target"]}
    assert curves["V100", 4]["speeds"] == "measured"
    assert curves["K80", 4]["speeds"] == "arithmetic"
    assert any("No measured speeds on K80" in remark for remark in study["remarks"])
    (check,) = study["measured_speeds"]
    assert (check["gpu"], check["sizes"]) == ("V100", 12)
    assert check["held_out_error"] < 0.1
    epochs = next(each["after_epoch"]["mean"] for each in study["forecasts"] if each["gpu"] == "V100")
    eight = curves["V100", 4]["points"][7]
    assert eight["workers"] == 8
    assert eight["seconds"]["mean"] == pytest.approx(epochs * 100 / _speed(8, 4), rel=0.05)


def test_speeds_measured_elsewhere_say_how_it_scales(logs: Path, tmp_path: Path) -> None:
    study = json.loads(_run(logs, "--json", "--speeds", _speeds(tmp_path / "speeds.csv")).stdout)
    for gpu in ("K80", "V100"):
        points = next(c["points"] for c in study["time_to_target"] if (c["gpu"], c["servers"]) == (gpu, 2))
        ratio = points[0]["seconds"]["mean"] / points[3]["seconds"]["mean"]
        assert ratio == pytest.approx(_speed(4, 2) / _speed(1, 2), rel=0.05)


def test_the_report_says_what_times_rest_on(logs: Path, tmp_path: Path) -> None:
    report = tmp_path / "study.md"
    assert _run(logs, "--speeds", _speeds(tmp_path / "speeds.csv"), "-o", report).exit_code == 0
    assert "held-out error %" in report.read_text()


@pytest.mark.parametrize(
    ("header", "row", "complaint"),
    [
        (["workers", "steps_per_second"], [1, 2.0], "no column 'servers'"),
        (["workers", "servers", "speed"], [1, 1, "fast"], "speeds.csv:2:speed: expected a number above 0"),
        (["w", "p", "speed"], [1.5, 1, 2.0], "speeds.csv:2:w: expected a whole number"),
        (["workers", "servers", "speed"], None, "no rows"),
    ],
)
def test_wrong_speeds_are_named(
    logs: Path, tmp_path: Path, header: list[str], row: list[Any] | None, complaint: str
) -> None:
    result = _run(logs, "--speeds", _write(tmp_path / "speeds.csv", [row] if row else [], header))
    assert result.exit_code != 0
    assert complaint in " ".join(result.output.split())


def test_of_several_models_one_is_chosen(logs: Path, tmp_path: Path) -> None:
    rows = [[name, w, 1, _speed(w, 1)] for name in ("a", "b") for w in (1, 2, 4)]
    speeds = _write(tmp_path / "speeds.csv", rows, ["model", "workers", "ps", "steps_per_second"])
    assert "choose one with --speeds-model" in " ".join(_run(logs, "--speeds", speeds).output.split())
    assert "has a, b" in " ".join(_run(logs, "--speeds", speeds, "--speeds-model", "c").output.split())
    study = json.loads(_run(logs, "--json", "--speeds", speeds, "--speeds-model", "b").stdout)
    assert study["measured_speeds"][0]["sizes"] == 3


def test_on_the_measured_logs_the_better_prior_is_better(tmp_path: Path) -> None:
    folder = os.environ.get("OPTIMUS_DATA")
    if not folder:
        pytest.skip("OPTIMUS_DATA does not name the folder with resnet_cifar10_gpus.csv")
    result = _run(Path(folder) / "resnet_cifar10_gpus.csv", "--json")
    study = json.loads(result.stdout)
    assert len(study["runs"]) == 15
    for forecast in study["forecasts"]:
        assert 26 <= forecast["measured_epoch"] <= 33
        assert forecast["plain_epoch"] < 16
        assert forecast["after_epoch"]["mean"] > 20
        assert forecast["after_curve_error"] < 0.6 * forecast["plain_curve_error"]
    assert len(study["analytic"]) == 18
