"""Pictures of ordinary and of empty runs are valid PNGs."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.cli import builders
from tests.cli.builders import interval

from optimus_cli.show import plots
from optimus_cli.show.plots import Run

NAN = float("nan")
NOTHING_KNOWN = builders.predictions(speeds=[], losses=[], fitted=[], history=[], total_steps=None)
OPEN_ENDS = builders.predictions(
    speeds=[{"workers": 1, "servers": 1, "steps_per_second": 1.0, "remaining_seconds": interval(5000.0)}],
    losses=[{"step": 1, "loss": None}, {"step": 2, "loss": NAN}],
)


def png_size(path: Path) -> tuple[int, int]:
    """Width and height from the header."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def saved(figure: Figure, directory: Path) -> Path:
    path = directory / "picture.png"
    plots.save(figure, path)
    return path


@pytest.mark.parametrize("predictions", [builders.predictions(), NOTHING_KNOWN, OPEN_ENDS], ids=["full", "no", "open"])
def test_remaining_time(predictions: Any, tmp_path: Path) -> None:
    width, height = png_size(saved(plots.remaining_time(builders.job(), predictions), tmp_path))
    assert width > height > 400


def test_remaining_time_has_a_line_per_number_of_servers_and_units() -> None:
    (axes,) = plots.remaining_time(builders.job(), builders.predictions()).axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["p = 1", "p = 2"]
    assert axes.get_ylabel() == "time left (minutes)"


def review_point(step: int, seconds: float | None, true: float) -> dict[str, Any]:
    left = None if seconds is None else interval(seconds, 0.8 * seconds, 1.2 * seconds)
    at = (datetime.fromisoformat(builders.finished_job()["created_at"]) + timedelta(seconds=90.0 - true)).isoformat()
    return {"at": at, "step": step, "remaining_seconds": left, "true_remaining_seconds": true}


@pytest.mark.parametrize("n_points", [0, 1, 3])
def test_after_the_end_the_picture_is_of_what_was_measured_and_came(n_points: int, tmp_path: Path) -> None:
    review = [review_point(100 * number, 90.0 - 20 * number, 80.0 - 20 * number) for number in range(n_points)]
    outcome = {"steps": 1300, "review": [*review, review_point(900, None, 5.0)]}
    figure = plots.what_came(builders.finished_job(), builders.predictions(outcome=outcome))
    loss, steps, time = figure.axes
    assert [line.get_label() for line in loss.get_lines()] == ["measured", "fitted"]
    assert steps.get_lines()[-1].get_label() == "actual"
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in time.get_lines()}
    if n_points:
        assert drawn["actual"] == [point["true_remaining_seconds"] for point in review]
        assert drawn["predicted"] == [point["remaining_seconds"]["mean"] for point in review]
        times = np.asarray(time.get_lines()[0].get_xdata()).tolist()
        assert times == [90.0 - point["true_remaining_seconds"] for point in review], "also while it waits, at step 0"
    assert png_size(saved(figure, tmp_path))[1] > 400


def a_run(submitted: float = 0.0, **changes: Any) -> Run:
    run: dict[str, Any] = {
        "job": builders.finished_job(),
        "submitted_seconds": submitted,
        "finished_seconds": submitted + 90.0,
        "allocations": [builders.allocation(2, 1, 1), builders.allocation(30, 3, 2), builders.allocation(60, 1, 1)],
        "predictions": builders.predictions(),
        **changes,
    }
    return Run(**run)


@pytest.mark.parametrize(
    "runs",
    [
        [a_run()],
        [a_run(10.0 * number) for number in range(6)],
        [a_run(allocations=[], predictions=NOTHING_KNOWN)],
        [a_run(predictions=OPEN_ENDS)],
    ],
    ids=["one", "six", "nothing", "open"],
)
def test_whole_run(runs: list[Run], tmp_path: Path) -> None:
    width, height = png_size(saved(plots.whole_run(runs, 8.0), tmp_path))
    assert width > 800
    assert height > 800


def test_size_over_time() -> None:
    run = a_run(10.0)
    assert [plots.size_at(run, time) for time in (0, 11.9, 12, 40, 70, 99.9, 100)] == [
        (0, 0),
        (0, 0),
        (1, 1),
        (3, 2),
        (1, 1),
        (1, 1),
        (0, 0),
    ]
