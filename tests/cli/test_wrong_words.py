"""What is misspelled is named, with what would be right: no empty answer with exit code 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli import builders
from tests.cli.conftest import Optimus, Request, ScriptedService, problem

from optimus_cli import background
from optimus_cli.commands import logs as logs_command
from optimus_cli.show import wording

JOB = "digits-mlp-x7k2p"


@pytest.fixture
def service(scripted: ScriptedService) -> ScriptedService:
    scripted.has_job(builders.job())
    tasks = [f"{JOB}-coordinator-0-0", f"{JOB}-worker-0-0"]

    def logs(request: Request) -> object:
        if request.query.get("task", tasks[0]) not in tasks:
            return problem(422, "the job has no task of this name", ("task", "no"))
        return {"logs": [{"task": task, "text": "one\n"} for task in tasks]}

    scripted.on("GET", f"/v1/jobs/{JOB}/logs", logs)
    scripted.on("GET", "/v1/projects", {"projects": [{"name": "vision"}]})
    return scripted


def test_logs_of_no_task_name_those_that_there_are(service: ScriptedService, optimus: Optimus) -> None:
    done = optimus("logs", JOB, "--task", "nobody", "--url", service.url)
    assert done.exit_code == 2
    assert f"{JOB}-worker-0-0" in done.stderr
    assert not done.stdout
    assert optimus("logs", JOB, "--task", "worker-0", "--url", service.url).exit_code == 0


def test_followed_logs_of_no_task_are_an_error_at_the_end(
    service: ScriptedService, optimus: Optimus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs_command, "FOLLOW_SECONDS", 0.0)
    service.on("GET", f"/v1/jobs/{JOB}", builders.job(state="succeeded"))
    done = optimus("logs", JOB, "--task", "nobody", "--follow", "--url", service.url)
    assert done.exit_code == 2
    assert done.stderr.startswith("No task is called nobody yet.")
    assert "the job has no such task" in done.stderr


def test_jobs_of_no_project_name_those_that_have_a_quota(service: ScriptedService, optimus: Optimus) -> None:
    service.on("GET", "/v1/jobs", {"jobs": [], "next_cursor": None})
    done = optimus("list", "--project", "visoin", "--url", service.url)
    assert done.exit_code == 2
    assert "vision" in done.stderr
    done = optimus("list", "--project", "vision", "--url", service.url)
    assert done.exit_code == 0
    assert done.stdout == "No job matches --project vision.\n"
    trace = optimus("export-trace", "-", "--project", "visoin", "--url", service.url)
    assert trace.exit_code == 2


def test_usage_errors_are_json_for_programs(service: ScriptedService, optimus: Optimus) -> None:
    for arguments in (["list", "--limit", "x"], ["list", "--nope"], ["lits"], ["describe"]):
        done = optimus(*arguments, "--json", "--url", service.url)
        assert done.exit_code == 2
        assert json.loads(done.stderr)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit", "python", "plain.py"], "optimus submit -- python train.py"),
        (["track", "python", "plain.py"], "optimus track -- python train.py"),
        (["submit", "my_task:wave"], "my_task:wave: No such file or directory; is it a task? optimus submit --task"),
        (["submit", "no/[red]:100:1:.yaml"], "no/[red]:100:1:.yaml: No such file or directory"),
        (["submit", "--", "python"], "python is given no script"),
        (["track", "--", "/usr/bin/python3.12"], "is given no script"),
        (["stop", "--data-directory", "/nowhere/dta"], "/nowhere/dta does not exist"),
    ],
)
def test_a_command_in_the_wrong_form_is_told_the_right_one(optimus: Optimus, arguments: list[str], said: str) -> None:
    done = optimus(*arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_bug_is_one_line_and_a_file(optimus: Optimus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_url: str) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("optimus_cli.commands.node.connect", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(AssertionError, match="ZeroDivisionError: of ours"):
        optimus("nodes")  # the fixture refuses what a bug says
    (report,) = tmp_path.glob("optimus-error-*.txt")
    assert "Traceback" in report.read_text()


@pytest.mark.parametrize(
    ("mean", "low", "high", "words"),
    [
        (77.0, 0.0, 77.0, "at most 77 s"),
        (77.0, None, 77.0, "at most 77 s"),
        (77.0, 77.0, 77.0, "77 s"),
        (0.0, 0.0, 0.0, "0 s"),
        (77.0, 20.0, 90.0, "77 s (20–90)"),
    ],
)
def test_limit_is_no_prediction(mean: float, low: float | None, high: float | None, words: str) -> None:
    assert wording.duration_interval({"mean": mean, "low": low, "high": high}) == words


def test_only_serve_is_taken_for_a_service() -> None:
    is_service = background._is_service
    assert is_service(["/venv/bin/python", "/venv/bin/optimus", "serve", "--port", "0", ""])
    assert is_service(["python", "-P", "-m", "optimus_cli", "serve", ""])
    assert not is_service(["optimus", "submit", "--name", "serve", ""])
    assert not is_service(["serve"])


@pytest.mark.parametrize(("said", "meant"), [("events", "describe"), ("ps", "list"), ("kill", "cancel")])
def test_a_command_by_the_name_that_others_give_it_is_told(optimus: Optimus, said: str, meant: str) -> None:
    done = optimus(said, JOB)
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.stderr


def test_an_argument_of_training_that_is_given_as_an_option_is_told_where_it_goes(optimus: Optimus) -> None:
    done = optimus("submit", "--lr", "0.1", "--", "python", "train.py")
    assert done.exit_code == 2
    assert "Arguments of a script go behind its name, after --" in done.stderr
    assert "--set NAME=VALUE" in done.stderr
