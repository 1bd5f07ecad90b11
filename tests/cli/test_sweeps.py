"""`--sweep`, folders of job files and cancelling by label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Optimus, Request, ScriptedService, problem

from optimus_cli.errors import BadInput
from optimus_cli.job.specification import Specification
from optimus_cli.job.sweeps import Sweep, parse_sweeps, swept
from optimus_contract.job import JobSpec
from optimus_service.requests import checked

TASK = {"name": "digits", "task": "m:f", "task_args": {"width": 8}, "labels": {"team": "a"}}
SCRIPT = {"name": "train", "command": ["python", "train.py"]}


def made(document: dict[str, Any], *texts: str) -> list[dict[str, Any]]:
    found = swept(Specification(document, None, {}), parse_sweeps(texts), "abc123")
    return [each.document for each in found]


def test_a_job_for_each_combination() -> None:
    jobs = made(TASK, "lr=1e-4,3e-4", "workers-max=2,4")
    assert [(job["task_args"]["lr"], job["workers"]["max"]) for job in jobs] == [
        (1e-4, 2),
        (1e-4, 4),
        (3e-4, 2),
        (3e-4, 4),
    ]
    assert jobs[0]["task_args"]["width"] == 8
    assert [job["name"] for job in jobs] == [
        "digits-lr-1e-4-workers-max-2",
        "digits-lr-1e-4-workers-max-4",
        "digits-lr-3e-4-workers-max-2",
        "digits-lr-3e-4-workers-max-4",
    ]
    assert jobs[0]["labels"] == {"sweep": "digits-abc123", "lr": "1e-4", "workers-max": "2", "team": "a"}
    assert TASK["task_args"] == {"width": 8}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("batch-size", "global_batch_size"),
        ("global_batch_size", "global_batch_size"),
        ("seed", "seed"),
    ],
)
def test_a_name_may_be_a_field_or_a_flag(name: str, field: str) -> None:
    assert [job[field] for job in made(TASK, f"{name}=32,64")] == [32, 64]


def test_an_argument_that_is_named_like_a_field() -> None:
    assert [job["task_args"]["seed"] for job in made(TASK, "task_args.seed=1,2")] == [1, 2]


def test_a_script_gets_an_option_or_a_word() -> None:
    script = {"name": "train", "command": ["python", "train.py", "--rate={rate}"]}
    assert [job["command"] for job in made(script, "rate=0.1,0.2")] == [
        ["python", "train.py", "--rate=0.1"],
        ["python", "train.py", "--rate=0.2"],
    ]
    assert made(script, "width=8")[0]["command"] == ["python", "train.py", "--rate={rate}", "--width", "8"]


@pytest.mark.parametrize("name", ["seed", "batch-size", "workers-max"])
def test_a_word_of_a_command_that_names_it_is_meant_before_a_flag(name: str) -> None:
    script = {"name": "train", "command": ["python", "train.py", "--it", f"{{{name}}}"]}
    jobs = made(script, f"{name}=1,2")
    assert [job["command"] for job in jobs] == [["python", "train.py", "--it", value] for value in "12"]
    assert {*jobs[0]} == {"name", "command", "labels"}, "the field of this name is not set"


@pytest.mark.parametrize("name", ["seed", "device", "precision", "compile", "checkpoint-seconds", "task"])
def test_what_no_script_reads_is_an_argument_of_the_script(name: str) -> None:
    first, second = (checked(JobSpec, job) for job in made(SCRIPT, f"{name}=cpu,bf16"))
    assert first.command == ["python", "train.py", f"--{name}", "cpu"]
    assert second.command == ["python", "train.py", f"--{name}", "bf16"]


def test_what_a_script_is_given_by_optimus_is_a_field() -> None:
    assert [job["global_batch_size"] for job in made(SCRIPT, "batch-size=32,64")] == [32, 64]
    assert [job["workers"] for job in made(SCRIPT, "workers-max=1,2")] == [{"max": 1}, {"max": 2}]
    assert made(SCRIPT, "task_args.seed=1")[0]["task_args"] == {"seed": 1}, "which the service refuses, by name"


def test_a_command_that_is_no_list_stays_for_the_service_to_refuse() -> None:
    assert made({"name": "train", "command": "python train.py"}, "lr=1")[0]["command"] == "python train.py"


@pytest.mark.parametrize(
    ("sweep", "field", "value"),
    [
        ("gpu-types=a100,v100", "gpu_types", ["a100"]),
        ("gpu_types=a100,v100", "gpu_types", ["a100"]),
        ("env=A=1,A=2", "environment", {"A": "1"}),
        ("label=team=b,team=c", "labels", {"team": "b", "label": "team_b", "sweep": "digits-abc123"}),
        (
            "target-metric=test_accuracy>=0.9",
            "convergence",
            {"target_metric": {"name": "test_accuracy", "at_least": 0.9}},
        ),
        ("elastic-batch=8:16:8,8:32:8", "elastic_batch", {"minimum": 8, "maximum": 16, "per_pass": 8}),
        ("worker-memory=512Mi,1Gi", "workers", {"resources": {"memory_bytes": "512Mi"}}),
        ("project=7,8", "project", "7"),
        ("working-directory=/a,/b", "working_directory", "/a"),
    ],
)
def test_a_value_is_read_as_the_flag_reads_it(sweep: str, field: str, value: object) -> None:
    job = made(TASK, sweep)[0]
    assert job[field] == value
    checked(JobSpec, job | {"architecture": "allreduce"})


def test_a_directory_is_that_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [job["working_directory"] for job in made(SCRIPT, "working-directory=a,b")] == [
        str(tmp_path / each) for each in "ab"
    ]


def test_labels_that_are_none_are_refused_and_are_no_bug() -> None:
    for name in ("label", "labels"):
        with pytest.raises(BadInput, match="--label 'a': expected KEY=VALUE"):
            made(TASK, f"{name}=a,b")
    assert made(TASK | {"labels": "team"}, "lr=1")[0]["labels"] == "team", "the service refuses it"


def test_names_and_labels_are_such_as_the_service_takes() -> None:
    (job,) = made({"name": "n" * 60, "task": "m:f"}, "rate=-0.5")
    assert job["name"] == "n" * 60 + "-0"
    assert job["labels"]["rate"] == "0.5"
    assert len(job["labels"]["sweep"]) <= 63


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["lr"], "expected NAME=VALUE,VALUE"),
        (["lr="], "expected NAME=VALUE,VALUE"),
        (["lr=1,,2"], "expected NAME=VALUE,VALUE"),
        (["=1"], "expected NAME=VALUE,VALUE"),
        (["lr=1,1"], "twice"),
        (["lr=1", "lr=2"], "given twice"),
        (["a=" + ",".join(map(str, range(40))), "b=" + ",".join(map(str, range(40)))], "1600 jobs"),
    ],
    ids=["no value", "empty", "hole", "no name", "same value", "same name", "too many"],
)
def test_what_is_no_sweep_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_sweeps(texts)


def test_no_sweep_is_one_job() -> None:
    assert parse_sweeps([]) == []
    assert parse_sweeps(["lr=1"]) == [Sweep("lr", ("1",))]
    assert len(made(TASK)) == 1


# --- over HTTP -------------------------------------------------------------------------------------------------------


def outcome(request: Request) -> dict[str, Any]:
    jobs = [
        {"index": index, "id": f"{job['name']}-x7k2p", "name": job["name"], "new": True, "problem": None}
        for index, job in enumerate(request.body["jobs"])
    ]
    return {"jobs": jobs, "done": len(jobs), "refused": 0}


def test_a_folder_is_one_request(optimus: Optimus, scripted: ScriptedService, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("name: second\ntask: m:f\n")
    (tmp_path / "a.json").write_text('{"name": "first", "task": "m:f"}')
    (tmp_path / "notes.txt").write_text("no job")
    scripted.on("POST", "/v1/jobs:batch", outcome)
    done = optimus("submit", str(tmp_path), "--priority", "2", "--idempotency-key", "k", "--url", scripted.url)
    assert (done.exit_code, done.stdout.split()) == (0, ["first-x7k2p", "second-x7k2p"])
    (request,) = scripted.requests
    assert [(job["name"], job["priority"]) for job in request.body["jobs"]] == [("first", 2.0), ("second", 2.0)]
    assert request.body["atomic"] is True
    assert {name.lower(): value for name, value in request.headers.items()}["idempotency-key"] == "k"


def test_an_empty_folder_is_refused(optimus: Optimus, tmp_path: Path) -> None:
    done = optimus("submit", str(tmp_path))
    assert done.exit_code == 2
    assert "no job file" in done.stderr


def test_a_refused_field_names_its_file_or_sweep(optimus: Optimus, scripted: ScriptedService, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: first\ntask: m:f\npriority: 5000\n")
    errors = [(f"jobs.{index}.{field}", "is wrong") for index in (0, 1) for field in ("priority", "task_args.lr")]
    scripted.on("POST", "/v1/jobs:batch", problem(422, "no", *errors))
    done = optimus("submit", str(tmp_path), "--sweep", "lr=1,x", "--url", scripted.url)
    assert done.exit_code == 2
    assert done.stderr.count("job.yaml:3:11: priority: is wrong") == 1
    assert "--sweep lr=1: is wrong" in done.stderr
    assert "--sweep lr=x: is wrong" in done.stderr


def test_each_says_what_was_refused(optimus: Optimus, scripted: ScriptedService) -> None:
    refusal = {"type": "t", "title": "t", "status": 409, "detail": "jobs.0: too many", "errors": [], "request_id": None}
    jobs = [
        {"index": 0, "id": None, "name": "a", "new": False, "problem": refusal},
        {"index": 1, "id": "b-x7k2p", "name": "b", "new": True, "problem": None},
    ]
    scripted.on("POST", "/v1/jobs:batch", {"jobs": jobs, "done": 1, "refused": 1})
    done = optimus("submit", "--task", "m:f", "--sweep", "lr=1,2", "--each", "--url", scripted.url)
    assert (done.exit_code, done.stdout.split()) == (1, ["b-x7k2p"])
    assert "refused: a: jobs.0: too many" in done.stderr
    assert scripted.requests[0].body["atomic"] is False


def test_cancel_by_label(optimus: Optimus, scripted: ScriptedService) -> None:
    jobs = [{"index": 0, "id": "a-x7k2p", "name": "a", "new": False, "problem": None}]
    scripted.on("POST", "/v1/jobs:cancel", {"jobs": jobs, "done": 1, "refused": 0})
    done = optimus("cancel", "--label", "sweep=a", "--label", "lr", "--json", "--url", scripted.url)
    assert (done.exit_code, json.loads(done.stdout)["done"]) == (0, 1)
    assert scripted.requests[0].body == {"labels": {"sweep": "a", "lr": None}, "project": None}


@pytest.mark.parametrize("arguments", [[], ["job", "--label", "a=b"], ["job", "--project", "p"]], ids=str)
def test_cancel_needs_a_job_or_a_label(optimus: Optimus, arguments: list[str]) -> None:
    assert optimus("cancel", *arguments).exit_code == 2
