"""The parts of the demo: what it compares, what it ends, what it leaves alone. The whole is tests/end_to_end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli import builders
from tests.cli.builders import interval
from tests.cli.conftest import Optimus

from optimus_cli.demo import summary as summaries
from optimus_cli.demo.processes import LocalService, end_processes
from optimus_cli.demo.run import MARKER, Options, arrivals, run, script_arrivals
from optimus_cli.demo.summary import Record, prediction_at, sizes, summarize
from optimus_cli.errors import DemoFailed
from optimus_contract.job import JobSpec
from optimus_service.requests import checked

END_SECONDS = 60.0


# --- the scenario


def test_the_jobs_are_three_different_networks_in_both_modes() -> None:
    coming = arrivals()
    specs = [checked(JobSpec, arrival.spec) for arrival in coming]
    assert len({spec.task for spec in specs}) >= 3
    assert {spec.mode for spec in specs} == {"sync", "async"}
    assert len({spec.convergence for spec in specs}) == len(specs)
    times = [arrival.at_seconds for arrival in coming]
    assert times == sorted(set(times)), "submitted in this order, each at its own time"


# --- the summary

HISTORY: list[Any] = [
    {"at": builders.CREATED, "step": 0, "total_steps": None},
    {"at": builders.CREATED, "step": 300, "total_steps": interval(800.0, 600.0, None)},
    {"at": builders.CREATED, "step": 500, "total_steps": None},
    {"at": builders.CREATED, "step": 900, "total_steps": interval(1050.0, 1000.0, 1100.0)},
]


@pytest.mark.parametrize(
    ("fraction", "at_step", "predicted"),
    [(0.25, None, None), (0.5, 300, 800.0), (0.75, 300, 800.0), (0.9, 900, 1050.0)],
)
def test_a_prediction_counts_from_when_it_was_made(fraction: float, at_step: int | None, predicted: Any) -> None:
    found = prediction_at(fraction, HISTORY, actual=1000)
    assert (found["at_fraction"], found["actual"]) == (fraction, 1000)
    assert (found["at_step"], found["predicted_total_steps"]) == (at_step, predicted)


def records() -> list[Record]:
    late = builders.finished_job(
        name="late", id="late-1", created_at="2026-01-02T03:04:35Z", finished_at="2026-01-02T03:07:05Z"
    )
    points = [builders.allocation(2, 1, 1), builders.allocation(30, 3, 2), builders.allocation(60, 3, 2)]
    return [Record(job, points, builders.predictions()) for job in (builders.finished_job(), late)]


def test_summary_has_the_fields_of_the_issue() -> None:
    summary = json.loads(json.dumps(summarize(records(), "optimus", 8.0, "0.1.0"), allow_nan=False))
    first, second = summary["jobs"]
    assert summary["makespan_seconds"] == 180.0
    assert (first["submitted_seconds"], second["submitted_seconds"]) == (0.0, 30.0)
    assert first["state"] == "succeeded"
    assert (first["jct_seconds"], first["first_step"], first["last_step"]) == (90.0, 0, 1300)
    assert (first["final_loss"], first["test_accuracy"]) == (0.12, 0.97)
    assert {"at_seconds": 2, "workers": 1, "servers": 1}.items() <= first["allocations"][0].items()
    assert [prediction["at_fraction"] for prediction in first["predictions"]] == [0.25, 0.5, 0.75]


def test_summary_of_jobs_that_failed_early() -> None:
    failed = builders.unknown_job(state="failed", finished_at="2026-01-02T03:04:06Z", failure="no data")
    nothing = builders.predictions(history=[], losses=[], fitted=[], speeds=[])
    summary = summarize([Record(failed, [], nothing)], "optimus", 8.0, "0.1.0")
    (job,) = summary["jobs"]
    assert (job["final_loss"], job["test_accuracy"], job["last_step"]) == (None, None, 0)
    assert summaries.runs([Record(failed, [], nothing)])[0].allocations == []
    summaries.closing_words(summary)


def test_sizes_are_told_once_per_change() -> None:
    points = [{"workers": w, "servers": p} for w, p in ((1, 1), (1, 1), (3, 2), (1, 1))]
    assert sizes(points) == "1+1 → 3+2 → 1+1"
    assert sizes([]) == "—"


# --- processes


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts; none survives it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(END_SECONDS)


def sleeper(job_directory: Path) -> subprocess.Popen[bytes]:
    """A process that lasts, deaf to SIGTERM; it has started when this returns."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    environment = {**os.environ, "OPTIMUS_JOB_DIRECTORY": str(job_directory)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    return process


def test_only_the_demos_own_tasks_are_ended(tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]) -> None:
    mine = sleeper(tmp_path / "data" / "jobs" / "a")
    neighbour = sleeper(tmp_path / "data-of-another" / "jobs" / "a")
    sleepers += [mine, neighbour]
    end_processes(tmp_path / "data")
    assert mine.wait(END_SECONDS) == -signal.SIGKILL
    assert neighbour.poll() is None


def test_a_service_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the data directory should be")
    service = LocalService(tmp_path / "data", tmp_path / "service.log", ["--port", "0"])
    with pytest.raises(DemoFailed, match="The service ended"):
        service.start()
    service.stop()


def test_the_service_starts_and_stops(tmp_path: Path) -> None:
    service = LocalService(tmp_path / "data", tmp_path / "service.log", ["--port", "0", "--slots", "1"])
    try:
        assert service.start().startswith("http://127.0.0.1:")
    finally:
        service.stop()
    assert service.process is not None
    assert service.process.returncode is not None


def test_a_service_that_outlived_its_demo_is_ended(tmp_path: Path) -> None:
    service = LocalService(tmp_path / "data", tmp_path / "service.log", ["--port", "0", "--slots", "1"])
    service.start()
    assert service.process is not None
    end_processes(tmp_path / "dat")
    assert service.process.poll() is None, "a directory with a similar name has nothing to do with it"
    end_processes(tmp_path / "data")
    assert service.process.wait(END_SECONDS) == -signal.SIGKILL


def options(directory: Path) -> Options:
    return Options(directory, slots=8, port=0, round_seconds=3.0, keep_running=False, as_json=True)


def test_a_directory_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    treasure = tmp_path / "data" / "treasure"
    treasure.parent.mkdir()
    treasure.touch()
    with pytest.raises(DemoFailed, match="not made by a demo"):
        run(options(tmp_path))
    assert treasure.exists()


def test_one_demo_per_directory(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DemoFailed, match="Another demo"):
            run(options(tmp_path))


def test_a_demo_that_cannot_begin_is_exit_code_1(tmp_path: Path, optimus: Optimus) -> None:
    (tmp_path / "file").touch()
    done = optimus("demo", "--directory", str(tmp_path / "file"), "--json")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert MARKER not in done.stderr


@pytest.mark.parametrize(("states", "exit_code"), [(["succeeded"] * 3, 0), (["succeeded", "failed"], 1)])
def test_exit_code_says_whether_every_job_succeeded(
    optimus: Optimus, monkeypatch: pytest.MonkeyPatch, states: list[str], exit_code: int
) -> None:
    summary = {"jobs": [{"state": state} for state in states]}
    monkeypatch.setattr("optimus_cli.demo.run.run", lambda _options: summary)
    assert optimus("demo").exit_code == exit_code


def test_ctrl_c_ends_the_demo_and_all_it_started(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "optimus_cli", "demo", "--directory", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with demo:
        assert demo.stderr is not None
        assert "The service runs at" in demo.stderr.readline()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
        assert "Traceback" not in demo.stderr.read()
    assert not (tmp_path / "data" / "service.json").exists(), "the service has ended in order"
    assert not _processes_of(tmp_path)


def _processes_of(directory: Path) -> list[str]:
    """Command lines of processes that name the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in command and int(entry.name) != os.getpid():
            found.append(command.decode(errors="replace"))
    return found


# --- scripts


def test_the_scripts_are_jobs_beside_one_with_servers(tmp_path: Path) -> None:
    coming = script_arrivals(tmp_path)
    specs = [checked(JobSpec, arrival.spec) for arrival in coming]
    assert [spec.architecture for spec in specs] == ["script", "script", "ps"]
    for spec in specs[:2]:
        assert spec.command is not None
        text = (tmp_path / spec.command[1]).read_text()
        assert "optimus" not in text.replace("It knows nothing of Optimus", "").replace("knows nothing of Optimus", "")
        assert (spec.working_directory, spec.resumes) == (str(tmp_path), True)


def test_a_library_that_is_missing_is_told_before_anything_starts(
    optimus: Optimus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("optimus_cli.demo.run.find_spec", lambda name: None if name == "transformers" else name)
    done = optimus("demo", "--scripts", "--directory", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "pip install transformers" in done.stderr
    assert not (tmp_path / "out").exists()
