"""Tasks as another user: what is the service's, and what is another job's, is out of their reach."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.service.clusters.cluster_harness import key_of, task_of, wait_for_phase, wait_until

from optimus_scheduler.model import Resources, TaskKey, TaskPhase
from optimus_service import server
from optimus_service.clusters import origins
from optimus_service.clusters.base import ClusterUnavailable, TaskLaunch, TaskObjection
from optimus_service.clusters.local import LocalCluster, LocalClusterOptions
from optimus_service.clusters.local.records import TaskRecord
from optimus_service.clusters.local.task_users import TaskUsers
from optimus_service.process import identity as kernel
from optimus_service.settings import Settings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")

RANGE = "70000-70002"
SPY = """
import json, os, signal, sys
def readable(path):
    try:
        return open(path, "rb").read(1) is not None
    except OSError:
        return False
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "home": os.environ["HOME"], "cwd": os.getcwd(),
    "readable": [path for path in os.environ["PATHS"].split(":") if readable(path)],
}), flush=True)
open(os.environ["OPTIMUS_JOB_DIRECTORY"] + "/checkpoint", "w").close()
signal.pause()
"""


@pytest.fixture
def data_directory() -> Iterator[Path]:
    """pytest's own directories let nobody else pass."""
    path = Path(tempfile.mkdtemp(prefix="optimus-task-users-"))
    for secret in ("secret.key", "optimus.db", "service.json"):
        (path / secret).write_text("secret")
        (path / secret).chmod(0o644)  # as somebody with another umask left it
    yield path
    shutil.rmtree(path)


class Machine:
    """A local cluster whose tasks tell what they can read."""

    def __init__(self, data_directory: Path, setting: str) -> None:
        self.directory = data_directory
        # Not the tests' own interpreter: its environment may lie in a directory of root's.
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        users = TaskUsers.from_setting(setting)
        users.prepare(data_directory, python)
        self.options = LocalClusterOptions(
            data_directory / "local", n_slots=8, task_command=(python, "-c", SPY), users=users
        )
        self.cluster = LocalCluster(self.options)

    def job_directory(self, job_id: str) -> Path:
        path = self.directory / "jobs" / job_id
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def start(self, key: TaskKey, *paths: Path) -> None:
        variables = {
            "OPTIMUS_JOB_DIRECTORY": str(self.job_directory(key.job_id)),
            "PATHS": ":".join(map(str, paths)),
        }
        self.cluster.start(TaskLaunch(key, "local-0", Resources(1.0, 2**20), variables))
        wait_for_phase(self.cluster, key, TaskPhase.RUNNING)

    def told(self, key: TaskKey) -> dict[str, object]:
        wait_until("the task has told", lambda: self.cluster.log_tail(key, 10_000).endswith("\n"))
        found: dict[str, object] = json.loads(self.cluster.log_tail(key, 10_000))
        return found

    def end(self, *keys: TaskKey) -> None:
        for key in keys:
            self.cluster.stop(key, force=True)
            wait_for_phase(self.cluster, key, TaskPhase.EXITED)


def test_tasks_of_each_job_have_a_user_of_their_own(data_directory: Path) -> None:
    machine = Machine(data_directory, RANGE)
    first, second = key_of(0, job_id="job-1"), key_of(0, job_id="job-2")
    machine.start(first)
    assert machine.told(first)["uid"] == 70001
    pid = process_of(machine, first).pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    service = [data_directory / name for name in ("secret.key", "optimus.db", "service.json")]
    others = [
        machine.job_directory("job-1") / "checkpoint",
        Path(f"/proc/{child}/environ"),
        Path(f"/proc/{pid}/environ"),  # the supervisor's
        data_directory / "local" / "logs" / f"{first.name}.log",
        data_directory / "local" / "tasks" / first.name / "intent.json",
    ]
    assert all(path.exists() for path in (*service, *others))

    machine.start(second, *service, *others, Path(f"/proc/{os.getpid()}/environ"), Path("/etc/passwd"))
    told = machine.told(second)
    directory = str(machine.job_directory("job-2"))
    assert told == {
        "uid": 70002,
        "gid": 70002,
        "home": directory,
        "cwd": directory,
        "readable": ["/etc/passwd"],
    }

    third = key_of(0, job_id="job-3")
    with pytest.raises(ClusterUnavailable, match="every user id of OPTIMUS_TASK_USER has a job's directory"):
        machine.start(third)
    again = key_of(1, job_id="job-1")
    machine.start(again, machine.job_directory("job-1") / "checkpoint")
    assert machine.told(again)["uid"] == 70001
    assert machine.told(again)["readable"] == [str(machine.job_directory("job-1") / "checkpoint")]
    machine.end(first, second, again)


def test_a_job_reads_the_checkpoint_that_it_starts_from_though_not_that_jobs_directory(data_directory: Path) -> None:
    machine = Machine(data_directory, RANGE)
    first, second = key_of(0, job_id="job-1"), key_of(0, job_id="job-2")
    machine.start(first)
    machine.told(first)
    checkpoints = machine.job_directory("job-1") / "checkpoints"
    checkpoints.mkdir()
    manifest = checkpoints / "manifest-000000000010.json"
    manifest.write_text('{"files": []}')
    for path in (checkpoints, manifest):
        os.chown(path, 70001, 70001)
    origins.copy_checkpoint(data_directory / "jobs", "job-1", "job-2")
    copy = data_directory / "jobs" / "job-2" / origins.ORIGIN / manifest.name
    machine.start(second, manifest, copy)
    assert machine.told(second)["readable"] == [str(copy)]
    assert copy.stat().st_uid == 70002
    machine.end(first, second)


def test_another_instance_adopts_tasks_of_other_users_and_stops_them(data_directory: Path) -> None:
    machine, key = Machine(data_directory, RANGE), key_of(0)
    machine.start(key)
    machine.told(key)
    after = Machine(data_directory, RANGE)
    assert task_of(after.cluster, key).phase is TaskPhase.RUNNING
    after.cluster.stop(key)
    wait_for_phase(after.cluster, key, TaskPhase.EXITED)
    assert task_of(after.cluster, key).exit_code == 143
    machine.end(key)


def test_a_named_user_is_that_of_all_jobs_and_gets_directories_of_before(data_directory: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    (data_directory / "jobs" / "job-1").mkdir(parents=True)
    older = data_directory / "jobs" / "job-1" / "checkpoint"
    older.write_text("of a time without the setting")
    machine, key = Machine(data_directory, "nobody"), key_of(0)
    machine.start(key, older, data_directory / "secret.key")
    told = machine.told(key)
    assert (told["uid"], told["gid"], told["readable"]) == (nobody.pw_uid, nobody.pw_gid, [str(older)])
    machine.end(key)


def test_a_directory_of_somebody_else_is_not_taken(data_directory: Path) -> None:
    machine = Machine(data_directory, RANGE)
    os.chown(machine.job_directory("job-1"), 65000, 65000)
    with pytest.raises(ClusterUnavailable, match="belongs to user id 65000"):
        machine.start(key_of(0))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("root", "which is root"),
        ("no-such-user", "no such user"),
        ("0-5", "FIRST-LAST with 0 < FIRST"),
        ("9-8", "FIRST-LAST with 0 < FIRST"),
    ],
)
def test_a_setting_that_separates_nothing_is_refused(setting: str, problem: str) -> None:
    with pytest.raises(ClusterUnavailable, match=problem):
        TaskUsers.from_setting(setting)


def test_a_data_directory_out_of_reach_is_told_at_the_start(data_directory: Path) -> None:
    inner = data_directory / "closed" / "data"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    with pytest.raises(ClusterUnavailable, match=r"tasks cannot run as nobody .*chmod o\+x on the way"):
        TaskUsers.from_setting("nobody").prepare(inner, "/bin/sh")


def process_of(machine: Machine, key: TaskKey) -> kernel.Process:
    process = TaskRecord(machine.directory / "local" / "tasks" / key.name).process()
    assert process is not None
    return process


def test_trial_of_a_task_runs_as_its_user_and_reads_nothing_of_the_services(data_directory: Path) -> None:
    machine = Machine(data_directory, RANGE)
    secrets = [str(data_directory / name) for name in ("secret.key", "optimus.db", "service.json")]
    code = f"""
import json, os
def readable(path):
    try: return bool(open(path).read(1))
    except OSError: return False
own = os.environ["OPTIMUS_JOB_DIRECTORY"]
found = [os.getuid(), os.environ["HOME"] == os.getcwd() == own, [path for path in {secrets} if readable(path)]]
print(json.dumps({{"ok": False, "problem": json.dumps(found)}}))
"""
    options = replace(machine.options, trial_command=(machine.options.task_command[0], "-c", code))
    cluster = LocalCluster(options)
    try:
        objection = cluster.try_task({"task": "m:f", "environment": {"HOME": "/root"}})
    finally:
        cluster.close()
    assert isinstance(objection, TaskObjection)
    assert json.loads(objection.message) == [70000, True, []], "the first of the range, which no job gets"


def test_a_service_that_is_not_root_cannot_separate(data_directory: Path) -> None:
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        with pytest.raises(ClusterUnavailable, match="only root can start tasks as another user"):
            TaskUsers.from_setting("nobody")
    finally:
        os.seteuid(0)


def test_a_service_whose_tasks_can_read_its_secrets_says_so(data_directory: Path) -> None:
    with capture_logs() as told:
        server.warn_of_shared_user(Settings(data_directory=data_directory))
    assert [line["log_level"] for line in told] == ["warning"]
    assert "OPTIMUS_TASK_USER" in told[0]["instead"]
    with capture_logs() as told:
        server.warn_of_shared_user(Settings(data_directory=data_directory, task_user="nobody"))
    assert told == []
