"""The demo as a user runs it."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from tests.end_to_end.harness import OPTIMUS, Service
from tests.packages import need

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1500)]


def test_demo_trains_rescales_and_cleans_up(tmp_path: Path) -> None:
    output = tmp_path / "demo-output"
    done = subprocess.run(
        [*OPTIMUS, "demo", "--directory", str(output)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    summary = json.loads((output / "summary.json").read_text())
    jobs = summary["jobs"]
    assert len(jobs) >= 3
    assert {job["state"] for job in jobs} == {"succeeded"}
    assert len({job["task"] for job in jobs}) >= 3
    assert {job["mode"] for job in jobs} == {"sync", "async"}
    changes = [pair for job in jobs for pair in pairwise(job["allocations"])]
    for role in ("workers", "servers"):
        pauses = [after["pause_seconds"] for before, after in changes if before[role] != after[role]]
        assert any(pause is not None and pause > 0 for pause in pauses), f"no change of {role} in place"
    for job in jobs:
        assert 0 <= job["first_step"] < job["last_step"]
        assert job["jct_seconds"] > 0
        assert job["test_accuracy"] > 0.8
        steps = [at["step"] for at in job["allocations"]]
        assert steps == sorted(steps), "steps went back"
        assert {at["at_fraction"] for at in job["predictions"]} == {0.25, 0.5, 0.75}
    pictures = list(output.glob("*.png"))
    assert pictures
    assert all(picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for picture in pictures)
    assert not Service(output).processes(), "the demo left processes behind"


def test_demo_of_scripts_learns_and_resizes_what_knows_nothing_of_it(tmp_path: Path) -> None:
    need("transformers", "accelerate")
    output = tmp_path / "demo-output"
    done = subprocess.run(
        [*OPTIMUS, "demo", "--scripts", "--directory", str(output)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    jobs = {job["name"]: job for job in json.loads((output / "summary.json").read_text())["jobs"]}
    assert {job["state"] for job in jobs.values()} == {"succeeded"}
    assert jobs["hugging-face"]["learned_from"] == "kubeflow"
    assert jobs["ddp"]["learned_from"] == "printed"
    assert jobs["ddp"]["last_step"] == 2400
    sizes = {name: {point["workers"] for point in job["allocations"]} for name, job in jobs.items()}
    assert len(sizes["ddp"] | sizes["hugging-face"]) > 1, "a script was resized"
    assert not Service(output).processes(), "the demo left processes behind"
