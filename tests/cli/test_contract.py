"""The bodies that the command line reads are those that the service answers with."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli import builders
from tests.cli.conftest import Answer, Optimus, ScriptedService

from optimus_contract.codec import field_types
from optimus_contract.job import ElasticBatch, JobSpec
from optimus_contract.message import Message
from optimus_service.requests import checked
from scripts import cli_types


def test_bodies_are_those_of_the_contract() -> None:
    assert cli_types.FILE.read_text() == cli_types.text(), "run `python -m scripts.cli_types`"


FLAGS = """
    --task a:b --name n --set x=1 --project p --batch-size 8 --mode sync --architecture ps --scaling weak
    --warmup-epochs 2 --max-gradient-norm 1 --compression topk --compression-keep 0.1 --gradient-statistics --seed 3
    --device cpu --precision bf16 --compile --deterministic --no-overlap --hang-seconds 90
    --loss-decrease 0.01 --relative-to maximum --patience-epochs 2 --target-loss 0.5 --max-epochs 9 --max-steps 90
    --max-seconds 900 --target-metric accuracy>=0.9 --max-cost 3 --evaluate-epochs 2 --on-nonfinite warn
    --workers-min 1 --workers-max 2 --worker-cpu 1 --worker-memory 1Gi --worker-gpus 1 --gpu-types a100
    --servers-min 1 --servers-max 2 --server-cpu 1 --server-memory 1Gi
    --priority 2 --deadline-seconds 900 --retries 1 --checkpoint-seconds 60 --checkpoint-url s3://bucket/here
    --working-directory / --env A=1 --from job-1 --label team=vision --paused
"""
ELASTIC = "--task a:b --architecture allreduce --elastic-batch 32:512:64"
INSTEAD = {
    "deadline": "--deadline, the same as a date",
    "elastic_batch.minimum": "--elastic-batch, which goes with other flags",
    "elastic_batch.maximum": "the same flag",
    "elastic_batch.per_pass": "the same flag",
    "elastic_batch.most_passes": "files only",
    "elastic_batch.warmup_epochs": "files only",
    "convergence.target_metric.at_most": "--target-metric with <=",
    "convergence.target_metric.best": "files only",
    "servers.resources.gpus": "files only: servers use none",
    "convergence.command_ends": "files only: the default of a script",
    "command": "what follows --",
    "tracked": "optimus track",
    "python": "a script's, see SCRIPT",
    "image": "a script's",
    "resumes": "a script's",
    "preload": "a script's",
    "stop_seconds": "a script's",
    "max_worker_batch_size": "a script's",
    "progress_patterns": "a script's",
}
SCRIPT = """
    --python /usr/bin/python3 --image images.example.com/train:1 --resumes --no-preload --stop-seconds 45
    --progress-pattern "it (?P<step>[0-9]+)" --progress-pattern "obj (?P<loss>[0-9.]+)" --workers-max 4
    --batch-size 64 --max-worker-batch-size 8
"""


def test_every_field_of_a_specification_has_a_flag(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("GET", "/v1/jobs/job-1", Answer(200, builders.job(id="job-1")))
    scripted.on("POST", "/v1/jobs", Answer(201, builders.job()))
    done = optimus("submit", *shlex.split(FLAGS), "--url", scripted.url)
    assert done.exit_code == 0, done.stderr
    sent = scripted.requests[-1].body
    checked(JobSpec, sent)
    assert set(_given(sent)) == set(_fields(JobSpec)) - INSTEAD.keys()
    booleans = {name for name, kind in _kinds(JobSpec).items() if bool in kind} - INSTEAD.keys()
    assert {name for name in booleans if sent[name]} == booleans - {"overlap"}


def test_what_follows_two_dashes_is_the_command_of_a_script(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("POST", "/v1/jobs", Answer(201, builders.job()))
    command = ["torchrun", "jobs/fine_tune.py", "--lr", "3e-4", "--", "-x"]
    done = optimus("submit", *shlex.split(SCRIPT), "--url", scripted.url, "--", *command)
    assert done.exit_code == 0, done.stderr
    sent = scripted.requests[-1].body
    assert sent == {
        "name": "fine-tune",
        "command": command,
        "working_directory": str(Path.cwd()),
        "python": "/usr/bin/python3",
        "image": "images.example.com/train:1",
        "resumes": True,
        "preload": False,
        "stop_seconds": 45.0,
        "progress_patterns": ["it (?P<step>[0-9]+)", "obj (?P<loss>[0-9.]+)"],
        "global_batch_size": 64,
        "max_worker_batch_size": 8,
        "workers": {"max": 4},
    }
    spec = checked(JobSpec, sent)
    assert (spec.architecture, spec.servers.max, spec.convergence.command_ends) == ("script", 0, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--"], "give a command after --"),
        (["--task", "a:b", "--", "python", "x.py"], "Leave out --task, or the command after --"),
        (["job.yaml", "--", "python", "x.py"], "Leave out the command in job.yaml, or the command after --"),
        ([], "or a training script (-- python train.py)"),
    ],
)
def test_a_script_and_a_task_are_two_things(
    arguments: list[str], said: str, optimus: Optimus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("command: [python, y.py]")
    done = optimus("submit", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_activated_environment_is_the_scripts(
    scripted: ScriptedService, optimus: Optimus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.on("POST", "/v1/jobs", Answer(201, builders.job()))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    (tmp_path / "job.yaml").write_text("command: [python, train.py]")
    ways = [["--", "python", "train.py"], [str(tmp_path / "job.yaml")]]
    for way in ways:
        assert optimus("submit", "--url", scripted.url, *way).exit_code == 0
        assert scripted.requests[-1].body["python"] == str(python)
    monkeypatch.delenv("VIRTUAL_ENV")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    for way in ways:
        assert optimus("submit", "--url", scripted.url, *way).exit_code == 0
        assert "python" not in scripted.requests[-1].body


def test_an_elastic_batch_is_one_flag(scripted: ScriptedService, optimus: Optimus) -> None:
    scripted.on("POST", "/v1/jobs", Answer(201, builders.job()))
    done = optimus("submit", *shlex.split(ELASTIC), "--url", scripted.url)
    assert done.exit_code == 0, done.stderr
    spec = checked(JobSpec, scripted.requests[-1].body)
    assert spec.elastic_batch == ElasticBatch(minimum=32, maximum=512, per_pass=64)


def _given(sent: Mapping[str, Any]) -> Iterator[str]:
    """Dotted names of what a document sets, down to what is no body of fields."""
    for name, value in sent.items():
        if isinstance(value, dict) and name not in ("task_args", "environment", "labels"):
            yield from (f"{name}.{inner}" for inner in _given(value))
        else:
            yield name


def _fields(body: type[Message]) -> Iterator[str]:
    for name, kinds in _kinds(body).items():
        inner = next((kind for kind in kinds if issubclass(kind, Message)), None)
        if inner is None:
            yield name
        else:
            yield from (f"{name}.{each}" for each in _fields(inner))


def _kinds(body: type[Message]) -> dict[str, list[type]]:
    """The classes in the annotation of each field."""
    return {name: list(_classes(annotation)) for name, annotation in field_types(body).items()}


def _classes(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def test_the_command_line_needs_its_own_extra_only() -> None:
    absent = ["fastapi", "sqlalchemy", "torch", "pydantic", "uvicorn", "optimus_service", "optimus_workers", "numpy"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import optimus_cli.app"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_service_is_said_in_a_sentence() -> None:
    code = "import sys; sys.modules['optimus_service'] = None; from optimus_cli.__main__ import main; main()"
    for arguments in (["serve"], ["db", "current"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "pip install 'optimus-scheduler[service]'" in done.stderr
        assert "Traceback" not in done.stderr
