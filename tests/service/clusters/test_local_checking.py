"""Asking the tasks' interpreter whether it can load a training task."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.service.clusters.cluster_harness import wait_until

from optimus_service.clusters.base import TaskObjection, TaskSizes
from optimus_service.clusters.local import LocalClusterOptions, checking
from optimus_workers.wire.ports import reserve_port

ECHO = (
    "import json, sys; print('noise'); "
    "print(json.dumps({'ok': 'bad' not in sys.argv[1], 'problem': sys.argv[1:], 'line': 7}))"
)


def test_reason_is_the_last_line_of_the_check() -> None:
    command = [sys.executable, "-c", ECHO]
    assert checking.check_task(command, "mine:task", None) is None
    assert checking.check_task(command, "bad:task", None) == "['bad:task'] (line 7)"


def test_check_is_told_where_tasks_would_look_first(tmp_path: Path) -> None:
    reason = checking.check_task([sys.executable, "-c", ECHO], "bad:task", str(tmp_path))
    assert reason is not None
    assert str(tmp_path) in reason


@pytest.mark.parametrize("import_path", ["optimus_workers.no_such_module:task", "no_such_package:task"])
def test_real_check_names_what_is_missing(tmp_path: Path, import_path: str) -> None:
    command = LocalClusterOptions(tmp_path).check_command
    reason = checking.check_task(command, import_path, str(tmp_path))
    assert reason is not None
    assert "no_such" in reason


def test_missing_directory_is_named() -> None:
    reason = checking.check_task([sys.executable], "mine:task", "/no/such/place")
    assert reason is not None
    assert "/no/such/place" in reason


@pytest.mark.parametrize(
    ("command", "environment", "where"),
    [
        ("no-such", {}, "the PATH that tasks have on their node"),
        ("no-such", {"PATH": "/mine"}, "the job's PATH, /mine"),
        ("./no-such", {}, "its directory /tmp"),
    ],
    ids=["node", "own", "path"],
)
def test_a_command_that_is_not_found_is_told_where_it_was_looked_for(
    command: str, environment: dict[str, str], where: str
) -> None:
    """The service's own PATH is nobody's business."""
    job = {"command": [command], "working_directory": "/tmp", "environment": environment}
    found = checking.check_command(job, {"PATH": "/secret/of/the/service"})
    assert found is not None
    assert found.message == f"{command}: command not found in {where}"


def test_a_script_without_its_interpreter_is_told_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    for program in ("train.py", "./train.py"):
        found = checking.check_command({"command": [program], "working_directory": str(tmp_path)}, {})
        assert found is not None
        assert found.message.endswith(f"; did you mean `python {program}`?")


def test_a_program_that_is_misspelled_is_told_the_one_that_is_there(tmp_path: Path) -> None:
    for name in ("python3", "bash"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    told = {"pyton": "python3", "pyhton3": "python3", "torchrn": "torchrun", "bsh": "bash", "accelerat": None}
    for program, meant in told.items():
        found = checking.check_command({"command": [program], "environment": {"PATH": str(tmp_path)}}, {})
        assert found is not None
        hint = "" if meant is None else f"; did you mean `{meant}`?"
        assert found.message == f"{program}: command not found in the job's PATH, {tmp_path}{hint}"


def test_shell_code_that_ends_in_a_file_is_no_file(tmp_path: Path) -> None:
    job = {"command": ["sh", "-c", "python train.py"], "working_directory": str(tmp_path)}
    assert checking.check_command(job, {}) is None
    missing = checking.check_command({**job, "command": ["sh", "train.py"]}, {})
    assert missing is not None
    assert missing.message.startswith("train.py is no file in ")


@pytest.mark.parametrize(
    "command", ["bash x.sh", "sh x.sh", "bash -x -o pipefail -- x.sh", "env A=b bash x.sh", "nohup perl -w x.pl 7"]
)
def test_a_script_of_any_interpreter_is_looked_for(tmp_path: Path, command: str) -> None:
    job = {"command": command.split(), "working_directory": str(tmp_path)}
    script = "x.pl" if "perl" in command else "x.sh"
    missing = checking.check_command(job, {})
    assert missing is not None
    assert missing.message == f"{script} is no file in {tmp_path}"
    (tmp_path / script).write_text("")
    assert checking.check_command(job, {}) is None


def test_a_script_that_a_shell_finds_as_a_program_is_there(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("")
    path = f"{tmp_path}:{os.environ['PATH']}"
    job = {"command": ["bash", "x.sh"], "working_directory": "/", "environment": {"PATH": path}}
    assert checking.check_command(job, {}) is None


@pytest.mark.parametrize(
    "command",
    [
        "env -C /elsewhere bash x.sh",
        "sudo --chdir=/elsewhere bash x.sh",
        "bash -c x.sh",
        "bash -s x.sh",
        "node --max-old-space-size 4096 x.js",
        "bash train",
        "echo x.sh",
    ],
)
def test_what_may_be_no_script_of_this_directory_is_not_looked_for(tmp_path: Path, command: str) -> None:
    program = command.split()[0]
    for name in (program, "bash"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    job = {"command": command.split(), "working_directory": "/", "environment": {"PATH": str(tmp_path)}}
    assert checking.check_command(job, {}) is None


def test_checkpoints_are_removed_where_the_tasks_have_the_store(tmp_path: Path) -> None:
    command, kept = LocalClusterOptions(tmp_path).remove_command, tmp_path / "kept"
    for name in ("job-1/manifest-000000000010.json", "job-1/000000000010-0.safetensors", "job-2/manifest-1.json"):
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text("{}")
    job = {"checkpoint_url": f"file://{kept}", "environment": {"A": "1"}, "working_directory": None}
    assert checking.remove_checkpoints(command, job, "job-1") is None
    assert not list((kept / "job-1").iterdir())
    assert list((kept / "job-2").iterdir()), "those of other jobs stay"
    assert checking.remove_checkpoints(command, job, "job-1") is None, "again is harmless"
    away = checking.remove_checkpoints(command, {**job, "checkpoint_url": "no-such-store://x/y"}, "job-1")
    assert away is not None
    assert "no-such-store" in away
    broken = checking.remove_checkpoints([sys.executable, "-c", "raise SystemExit(9)"], job, "job-1")
    assert broken == "the tasks' Python could not do it: see that it has the workers' packages"


@pytest.mark.parametrize("code", ["print('not json')", "", "print(5)", "raise SystemExit(9)"])
def test_unclear_answer_does_not_refuse_a_job(code: str) -> None:
    assert checking.check_task([sys.executable, "-c", code], "mine:task", None) is None


def test_slow_or_missing_check_does_not_refuse_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "CHECK_SECONDS", 0.05)
    assert (
        checking.check_task([sys.executable, "-c", "import threading; threading.Event().wait()"], "m:t", None) is None
    )
    assert checking.check_task(["/no/such/python"], "m:t", None) is None


# --- trying a task ----------------------------------------------------------------------------------------------------

JOB = {"task": "optimus_workers.zoo.digits:mlp", "task_args": {"widht": 3}}


def test_real_trial_names_the_field(tmp_path: Path) -> None:
    objection = checking.try_task(LocalClusterOptions(tmp_path).trial_command, JOB)
    assert isinstance(objection, TaskObjection)
    assert objection.field == "task_args"
    assert "did you mean width?" in objection.message
    good = {**JOB, "task_args": {"width": 3}, "global_batch_size": 5}
    assert checking.try_task(LocalClusterOptions(tmp_path).trial_command, good) == TaskSizes(1437, 5)


def test_a_store_that_cannot_be_reached_is_found_by_the_trial(tmp_path: Path) -> None:
    command, good = LocalClusterOptions(tmp_path).trial_command, {**JOB, "task_args": {}}
    closed = reserve_port("127.0.0.1")
    for url in (f"ftp://127.0.0.1:{closed}/y", "no-such-store://x/y"):
        objection = checking.try_task(command, {**good, "checkpoint_url": url})
        assert isinstance(objection, TaskObjection)
        assert objection.field == "checkpoint_url"
        assert "checkpoints cannot be kept there" in objection.message
    assert checking.try_task(command, {**good, "checkpoint_url": f"file://{tmp_path}/kept"}) == TaskSizes(1437, 120)


@pytest.mark.parametrize("code", ["print('not json')", "", "print(5)", "raise SystemExit(9)", "import os; os.abort()"])
def test_unclear_trial_does_not_refuse_a_job(code: str) -> None:
    assert checking.try_task([sys.executable, "-c", code], JOB) is None


def test_trial_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "CHECK_SECONDS", 5.0)
    code = "import subprocess, sys; child = subprocess.Popen(['sleep', '1000']); "
    code += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); child.wait()"
    assert checking.try_task([sys.executable, "-c", code], JOB) is None
    child = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    wait_until(
        "the child is gone", lambda: not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"
    )


def test_trial_that_writes_without_end_is_ended() -> None:
    code = "import itertools, sys\nfor _ in itertools.count(): sys.stdout.write('x' * 65536)"
    assert checking.try_task([sys.executable, "-c", code], JOB) is None


def test_trial_sees_what_the_first_worker_will_see(tmp_path: Path) -> None:
    """A module may read these variables, and write beside itself, when it is imported."""
    (tmp_path / "reads.py").write_text(
        "import os, pathlib\n"
        "names = 'JOB_ID', 'TASK_NAME', 'TASK_RANK', 'JOB_DIRECTORY', 'JOB_SPEC', 'ATTEMPT'\n"
        "seen = {name: os.environ['OPTIMUS_' + name] for name in names} | {'mine': os.environ['MINE']}\n"
        "pathlib.Path(seen['JOB_DIRECTORY'], 'cache').write_text('')\n"
        "raise ValueError(seen['TASK_NAME'], seen['TASK_RANK'], seen['ATTEMPT'], seen['mine'])\n"
    )
    job = {"task": "reads:task", "working_directory": str(tmp_path), "environment": {"MINE": "my own"}}
    objection = checking.try_task(LocalClusterOptions(tmp_path).trial_command, job)
    assert isinstance(objection, TaskObjection)
    assert "ValueError: ('trial-worker-0-0', '0', '0', 'my own')" in objection.message


def test_trial_sees_none_of_the_services_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPTIMUS_TOKEN", "OPTIMUS_SECRET", "OPTIMUS_DATABASE_URL", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of the service")
    code = "import json, os; print(json.dumps({'ok': False, 'problem': ' '.join(os.environ)}))"
    job = {**JOB, "environment": {"MINE": "1", "OPTIMUS_TOKEN": "stolen"}}
    objection = checking.try_task([sys.executable, "-c", code], job)
    assert isinstance(objection, TaskObjection)
    assert "MINE" in objection.message
    assert not {"OPTIMUS_TOKEN", "OPTIMUS_SECRET", "OPTIMUS_DATABASE_URL", "AWS_SECRET_ACCESS_KEY"} & set(
        objection.message.split()
    )
