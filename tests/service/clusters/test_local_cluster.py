"""Processes of this machine as tasks: what must survive a killed service, and what must never be written down."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.service.clusters.cluster_harness import (
    LocalHarness,
    key_of,
    phase_of,
    task_of,
    wait_for_phase,
    wait_until,
    zombies,
)

from optimus_scheduler.model import Role, TaskPhase
from optimus_service.clusters.base import STOPPED_WITH_ALL, ClusterUnavailable, TaskLaunch
from optimus_service.clusters.local import LocalCluster, LocalClusterOptions, task_logs
from optimus_service.clusters.local.records import Intent, TaskRecord
from optimus_service.clusters.local.supervisor import spawn
from optimus_service.process import identity as kernel

KEY = key_of(0)


def record_of(local: LocalHarness) -> TaskRecord:
    return TaskRecord(local.directory / "cluster" / "tasks" / KEY.name)


def supervisor(local: LocalHarness) -> kernel.Process:
    process = record_of(local).process()
    assert process is not None
    return process


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def start(local: LocalHarness, **environment: str) -> None:
    local.cluster.start(local.launch(KEY, **environment))
    wait_for_phase(local.cluster, KEY, TaskPhase.RUNNING)


def wait_for_first_line(local: LocalHarness) -> None:
    """Until the task itself runs: its supervisor is seen before, and has children of its own for a moment."""
    wait_until("the task has printed", lambda: local.cluster.log_tail(KEY, 1000) != "")


# --- adoption --------------------------------------------------------------------------------------------------------


def test_second_instance_adopts_running_tasks(local: LocalHarness) -> None:
    start(local)
    wait_for_first_line(local)
    before = supervisor(local)
    second = local.open()
    assert task_of(second, KEY) == task_of(local.cluster, KEY)
    second.start(local.launch(KEY))
    assert supervisor(local) == before
    second.stop(KEY)
    wait_for_phase(second, KEY, TaskPhase.EXITED)
    assert task_of(second, KEY).exit_code == 143


@pytest.mark.parametrize("is_moved", [False, True])
def test_tasks_belong_to_the_directory_that_was_copied_and_not_to_the_copy(local: LocalHarness, is_moved: bool) -> None:
    start(local)
    process, first = supervisor(local), local.directory / "cluster"
    second = local.directory / "second"
    first.rename(second) if is_moved else shutil.copytree(first, second)
    other = LocalCluster(LocalClusterOptions(second, task_command=local.command))
    assert phase_of(other, KEY) is (TaskPhase.RUNNING if is_moved else TaskPhase.EXITED)
    other.stop(KEY, force=True)
    other.forget([KEY])
    if is_moved:
        wait_until("it has ended", lambda: not kernel.is_running(process))
    else:
        assert kernel.is_running(process)
        assert phase_of(local.cluster, KEY) is TaskPhase.RUNNING


def test_that_a_task_was_stopped_with_all_is_known_after_a_restart(local: LocalHarness) -> None:
    start(local)
    wait_for_first_line(local)
    other = local.open()
    other.stop(KEY, with_all=True)
    wait_until("its exit code is on disk", lambda: record_of(local).exit_code() == 143)
    assert task_of(local.open(), KEY).exit_code is None
    assert task_of(local.open(), KEY).trouble == STOPPED_WITH_ALL
    another = KEY._replace(incarnation=1)
    local.cluster.start(local.launch(another))
    local.end(another, 143)
    wait_for_phase(local.cluster, another, TaskPhase.EXITED)
    assert task_of(local.open(), another).exit_code == 143, "of its own doing"


def test_a_full_disk_keeps_no_task_from_being_stopped(local: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: TaskRecord) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(TaskRecord, "note_stopped", full)
    start(local)
    local.cluster.stop(KEY, with_all=True)
    wait_for_phase(local.cluster, KEY, TaskPhase.EXITED)
    assert task_of(local.cluster, KEY).exit_code == 143


def test_exit_while_no_service_looks_is_told_later(local: LocalHarness) -> None:
    start(local)
    local.end(KEY, 5)
    wait_until("the exit code is on disk", lambda: record_of(local).exit_code() is not None)
    assert task_of(local.open(), KEY).exit_code == 5


def test_record_of_an_earlier_boot_is_an_exited_task(local: LocalHarness) -> None:
    start(local)
    # The same pid and ticks may well belong to somebody else after a restart of the machine.
    record_of(local).write_intent(Intent(KEY, "local-0", boot_id="another"))
    task = task_of(local.open(), KEY)
    assert (task.phase, task.exit_code) == (TaskPhase.EXITED, 137)
    assert kernel.is_running(supervisor(local)), "a process of this boot is not ours to kill"
    local.cluster.stop(KEY, force=True)
    assert kernel.is_running(supervisor(local))
    os.killpg(supervisor(local).pid, signal.SIGKILL)


def test_a_task_that_prints_without_end_fills_no_disk(local: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on printing while its log is cut; the end of what it printed is there."""
    monkeypatch.setattr(task_logs, "MAX_BYTES", 200_000)
    monkeypatch.setattr(task_logs, "KEPT_BYTES", 50_000)
    count = "i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); echo line $i of many; done"
    cluster = local.open(("/bin/sh", "-c", f"{count}; while :; do echo printed; sleep 0.1; done"))
    cluster.start(local.launch(KEY))

    def has_printed() -> bool:
        cluster.tasks()
        return cluster.log_tail(KEY, 100).endswith("printed\n")

    wait_until("it has printed all", has_printed)
    cluster.tasks()
    told = (local.directory / "cluster" / "logs" / f"{KEY.name}.log").read_text()
    assert len(told) <= 200_000
    assert "[Optimus dropped the " in told
    assert told.endswith("printed\n")
    cluster.stop(KEY, force=True)


def test_old_logs_of_tasks_that_are_gone_are_dropped(local: LocalHarness) -> None:
    gone, recent = key_of(1), key_of(2)
    for key in (KEY, gone, recent):
        local.cluster.start(local.launch(key))
    for key in (gone, recent):
        local.end(key, 0)
        wait_for_phase(local.cluster, key, TaskPhase.EXITED)
    local.cluster.forget([gone, recent])
    for key in (KEY, gone):
        os.utime(local.directory / "cluster" / "logs" / f"{key.name}.log", (1.0, 1.0))
    local.cluster.forget_logs(before=1000.0)
    left = {path.stem for path in (local.directory / "cluster" / "logs").iterdir()}
    assert left == {KEY.name, recent.name}, "the first still runs, the other has printed lately"


def test_intent_without_a_process_is_started_again(local: LocalHarness) -> None:
    record = record_of(local)
    record.write_intent(Intent(KEY, "local-0", kernel.boot_id()))
    assert phase_of(local.cluster, KEY) is TaskPhase.STARTING
    long_ago = record.path / "intent.json"
    os.utime(long_ago, (1.0, 1.0))
    assert phase_of(local.cluster, KEY) is None
    start(local)


def test_two_supervisors_of_one_task_run_it_once(local: LocalHarness, tmp_path: Path) -> None:
    """The service died right after spawning; the next one, seeing no record, spawns again."""
    record = record_of(local)
    record.write_intent(Intent(KEY, "local-0", kernel.boot_id()))
    log = tmp_path / "log"
    command = ["/bin/sh", "-c", "echo once; sleep 1000"]
    first, *others = [spawn(record.path, log, str(tmp_path), command, {}) for _ in range(4)]
    pids = {first, *others}
    wait_until("somebody has claimed the task", lambda: record.process() is not None)
    winner = supervisor(local).pid
    for pid in pids - {winner}:
        assert os.waitpid(pid, 0)[1] == 0
    wait_until("the task has printed", lambda: log.read_text() == "once\n")
    local.cluster.stop(KEY, force=True)
    os.waitpid(winner, 0)


# --- death -----------------------------------------------------------------------------------------------------------


def test_killed_task_is_seen_with_137(local: LocalHarness) -> None:
    start(local)
    wait_for_first_line(local)
    os.kill(children_of(supervisor(local).pid)[0], signal.SIGKILL)
    wait_for_phase(local.cluster, KEY, TaskPhase.EXITED)
    assert task_of(local.cluster, KEY).exit_code == 137


def test_killed_supervisor_takes_its_task_along(local: LocalHarness) -> None:
    start(local)
    leader = supervisor(local)
    wait_until("the task runs", lambda: len(children_of(leader.pid)) == 1)
    child = children_of(leader.pid)[0]
    parsed = kernel.parse_stat(Path(f"/proc/{child}/stat").read_text())
    assert parsed is not None
    os.kill(leader.pid, signal.SIGKILL)
    wait_for_phase(local.cluster, KEY, TaskPhase.EXITED)
    assert task_of(local.cluster, KEY).exit_code == 137
    wait_until("the orphan is gone", lambda: not kernel.is_running(parsed[0]))


def test_end_that_cannot_be_written_down_hides_no_task(local: LocalHarness) -> None:
    """As on a full disk: reading the tasks goes on, and the end is written when that is possible."""
    start(local)
    leader, record = supervisor(local), record_of(local)
    in_the_way = record.path / f"exit_code.{os.getpid()}"
    in_the_way.mkdir()
    os.kill(leader.pid, signal.SIGKILL)
    wait_for_phase(local.cluster, KEY, TaskPhase.EXITED)
    assert task_of(local.cluster, KEY).exit_code == 137
    assert record.exit_code() is None
    in_the_way.rmdir()
    assert task_of(local.cluster, KEY).exit_code == 137
    assert record.exit_code() == 137


def test_what_a_task_leaves_behind_ends_with_it(local: LocalHarness) -> None:
    command = ("/bin/sh", "-c", 'sleep 1000 & echo $! > "$FIFO.pid"; exit 0')
    cluster = local.open(command)
    cluster.start(local.launch(KEY))
    wait_for_phase(cluster, KEY, TaskPhase.EXITED)
    left = int(Path(f"{local.fifo(KEY)}.pid").read_text())
    wait_until("the background process is gone", lambda: not Path(f"/proc/{left}").exists())
    assert task_of(cluster, KEY).exit_code == 0


def test_task_may_end_in_its_own_way_on_sigterm(local: LocalHarness) -> None:
    command = ("/bin/sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
    cluster = local.open(command)
    cluster.start(local.launch(KEY))
    wait_until("the trap is set", lambda: cluster.log_tail(KEY, 100) == "ready\n")
    cluster.stop(KEY)
    wait_for_phase(cluster, KEY, TaskPhase.EXITED)
    assert task_of(cluster, KEY).exit_code == 0


def test_ended_supervisors_do_not_stay_zombies(local: LocalHarness) -> None:
    keys = [key_of(rank) for rank in range(5)]
    for key in keys:
        local.cluster.start(local.launch(key))
    for key in keys:
        local.end(key, 0)
    wait_until("all have exited", lambda: all(t.phase is TaskPhase.EXITED for t in local.cluster.tasks()))
    wait_until("no zombie is left", lambda: (local.cluster.tasks(), not zombies())[1])


# --- what a task sees, and what is written down ----------------------------------------------------------------------


def test_nothing_secret_reaches_disk_or_log(local: LocalHarness) -> None:
    start(local, OPTIMUS_JOB_TOKEN="secret-of-the-job", DATABASE_PASSWORD="secret-of-the-user")
    local.end(KEY, 0)
    wait_for_phase(local.cluster, KEY, TaskPhase.EXITED)
    for path in local.directory.rglob("*"):
        if path.is_file():
            assert "secret-of-the" not in path.read_text(), path


def test_no_value_of_a_variable_is_an_argument_of_a_process(local: LocalHarness) -> None:
    start(local, OPTIMUS_JOB_TOKEN="secret-of-the-job", DATABASE_PASSWORD="secret-of-the-user")
    wait_for_first_line(local)
    processes = [supervisor(local).pid, *children_of(supervisor(local).pid)]
    assert len(processes) > 1
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in processes]
    assert any(b"secret-of-the-user" in each for each in environments), "it is there, and where it belongs"
    arguments = [path.read_bytes() for path in map(Path, (f"/proc/{pid}/cmdline" for pid in processes))]
    assert not [each for each in arguments if b"secret-of-the" in each]


def test_records_are_for_the_owner_only(local: LocalHarness) -> None:
    start(local)
    folder = record_of(local).path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (local.directory / "cluster" / "logs" / f"{KEY.name}.log").stat().st_mode & 0o077 == 0
    intent = json.loads((folder / "intent.json").read_text())
    assert (intent["name"], intent["node"]) == (KEY.name, "local-0")


def test_task_sees_little_of_the_services_environment(local: LocalHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPTIMUS_TOKEN", "OPTIMUS_SECRET", "OPTIMUS_DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, f"value-of-{name}")
    cluster = local.open(("/usr/bin/env",))
    cluster.start(local.launch(KEY, OPTIMUS_JOB_ID="job-1", MINE="a b'c", OPTIMUS_SECRET="smuggled"))
    wait_for_phase(cluster, KEY, TaskPhase.EXITED)
    seen = dict(line.split("=", 1) for line in cluster.log_tail(KEY, 10_000).splitlines())
    assert (seen["OPTIMUS_JOB_ID"], seen["MINE"], seen["PYTHONPATH"]) == ("job-1", "a b'c", "value-of-PYTHONPATH")
    assert not {"OPTIMUS_TOKEN", "OPTIMUS_SECRET", "OPTIMUS_DATABASE_URL", "AWS_SECRET_ACCESS_KEY"} & set(seen)
    assert seen["PWD"] == str(local.directory)


@pytest.mark.parametrize(
    ("role", "n_cores", "limit"),
    [(Role.WORKER, 2.0, "0.25"), (Role.SERVER, 2.0, "0.25"), (Role.COORDINATOR, 2.0, ""), (Role.WORKER, 8.0, "")],
)
def test_slots_beyond_the_cores_limit_a_task(tmp_path: Path, role: Role, n_cores: float, limit: str) -> None:
    command = ("/bin/sh", "-c", 'echo "{role} $OPTIMUS_CPU_LIMIT"')
    local = LocalHarness(tmp_path, command, n_slots=8, n_cores=n_cores)
    key = key_of(0, role)
    local.cluster.start(local.launch(key))
    wait_for_phase(local.cluster, key, TaskPhase.EXITED)
    assert local.cluster.log_tail(key, 100) == f"{role} {limit}\n"
    local.close()


def test_missing_working_directory_is_the_users_error(local: LocalHarness) -> None:
    launch = local.launch(KEY)
    local.cluster.start(TaskLaunch(KEY, launch.node, launch.resources, launch.environment, "/no/such/place"))
    wait_for_phase(local.cluster, KEY, TaskPhase.EXITED)
    assert task_of(local.cluster, KEY).exit_code == 3
    assert "/no/such/place" in local.cluster.log_tail(KEY, 1000)


def test_missing_interpreter_is_a_crash(local: LocalHarness) -> None:
    cluster = local.open(("/no/such/python", "-m", "optimus_workers", "{role}"))
    cluster.start(local.launch(KEY))
    wait_for_phase(cluster, KEY, TaskPhase.EXITED)
    assert task_of(cluster, KEY).exit_code == 127


def test_unreadable_records_make_the_cluster_unavailable(local: LocalHarness, tmp_path: Path) -> None:
    records = tmp_path / "cluster" / "tasks"
    records.rmdir()
    with pytest.raises(ClusterUnavailable, match="records"):
        local.cluster.tasks()
    records.mkdir()
    assert local.cluster.tasks() == ()
