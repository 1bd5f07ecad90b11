"""Scripts as jobs of real processes: they change their size, lose workers, fail, and are learned meanwhile."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.packages import need
from tests.workers.protocol.conftest import Job, worker
from tests.workers.protocol.test_script_frameworks import Hold
from tests.workers.script.test_tensorboard import event, record, simple

from optimus_workers.script.channels.unread import NOTHING_PRINTED

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def make_script_job(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    def make(*command: str, **spec: Any) -> Job:
        whole = {"task": None, "command": list(command), "architecture": "script", "working_directory": str(tmp_path)}
        workers = {"min": 1, "max": 4, "resources": {}}
        return make_job(**{**whole, "workers": workers, **spec})

    return make


def undisturbed(*command: str) -> None:
    """Run a script without Optimus, in one process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    subprocess.run([sys.executable, *command], check=True, env=environment, capture_output=True)


@pytest.mark.parametrize("at_once", [None, 10])
def test_an_elastic_loop_loses_no_step_and_computes_what_one_process_does(
    make_script_job: Callable[..., Job], tmp_path: Path, at_once: int | None
) -> None:
    """With at most ten examples at once, one process takes six accumulation steps, three take two, two take three."""
    script, out = str(SCRIPTS / "elastic_train.py"), tmp_path / "final.pt"
    hold = Hold(tmp_path / "hold", 25)
    options = ["--step-seconds", "0.02", "--out", str(out), "--hold", str(hold.path)]
    options += ["--accumulates"] if at_once else []
    job = make_script_job("torchrun", script, *options, global_batch_size=48, max_worker_batch_size=at_once)
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    hold.wait(job)
    job.scale(worker(0), worker(1), worker(2))
    three = job.wait_for_size(3, 0)
    hold.after(three["step"] + 25)
    hold.wait(job)
    job.scale(worker(1), worker(2))
    two = job.wait_for_size(2, 0, after_epoch=three["epoch"])
    hold.after(1000)
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 200)
    assert [each["lost_steps"] for each in (one, three, two)] == [0, 0, 0]
    assert one["pause_parts"] is None
    assert one["at"] <= job.service.samples[0]["at"] - 0.02, "it trains from the start of its processes on"
    assert all(each["pause_parts"]["save_seconds"] > 0 for each in (three, two)), "the client says how long"
    assert all(each["pause_parts"]["load_seconds"] > 0 for each in (three, two))
    assert job.service.profile is not None
    assert job.service.profile["learned_from"] == "client"
    assert job.service.profile["steps_per_epoch"] == 20.0
    steps = [sample["step"] for sample in job.service.samples]
    whole = [(each["membership_epoch"], each["rank"], each["sequence"], each["step"]) for each in job.service.samples]
    assert steps == sorted(set(steps)), f"each step once: {whole}, of {(one, three, two)}"
    plan = job.service.wait_for("the plan", lambda: job.service.planned_rates)
    rates = dict(zip(plan["steps"], plan["rates"], strict=True))
    assert max(rates) == 199
    assert {149, 150} <= set(rates) or min(rates) >= 150, "of the last start, which may be after the fall"
    assert rates == {step: pytest.approx(0.02 if step < 150 else 0.002) for step in rates}
    told = {sample["step"]: sample["learning_rate"] for sample in job.service.samples}
    assert told == {step: pytest.approx(0.02 if step <= 150 else 0.002) for step in steps}
    alone = tmp_path / "alone.pt"
    checkpoints = tmp_path / "elsewhere"
    checkpoints.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(checkpoints)
        undisturbed(script, "--out", str(alone))
    expected, found = torch.load(alone), torch.load(out)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("first", "then"), [(60, 150), (500, 130), (None, 140)])
def test_processes_end_at_the_very_step_of_a_limit_that_is_changed_meanwhile(
    make_script_job: Callable[..., Job], tmp_path: Path, first: int | None, then: int
) -> None:
    rule = {} if first is None else {"convergence": {"max_steps": first}}
    options = ["--epochs", "50", "--step-seconds", "0.03", "--out", str(tmp_path / "final.pt")]
    job = make_script_job("torchrun", str(SCRIPTS / "elastic_train.py"), *options, global_batch_size=48, **rule)
    workers = [worker(0), worker(1)]
    job.service.want(workers, limits={"max_steps": first})
    job.start(*workers)
    formed = job.wait_for_size(2, 0)
    job.wait_for_step(20)
    job.service.want(workers, limits={"max_steps": then})
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", then)
    assert job.service.memberships[-1]["epoch"] == formed["epoch"], "they went on"


def test_a_script_with_weak_scaling_counts_steps_of_one_workers_batch(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Also when a worker is lost, and the script goes on from a step of a smaller membership."""
    script, out = str(SCRIPTS / "elastic_train.py"), tmp_path / "final.pt"
    hold = Hold(tmp_path / "hold", 13)  # in steps of the optimizer, of which the job counts at least as many
    options = ["--accumulates", "--step-seconds", "0.02", "--out", str(out), "--hold", str(hold.path)]
    weak = {"scaling": "weak", "warmup_epochs": 1.0, "global_batch_size": 48}
    job = make_script_job("torchrun", script, *options, **weak)
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    hold.wait(job)
    job.scale(worker(0), worker(1), worker(2))
    three = job.wait_for_size(3, 0)
    assert three["step"] >= 10
    hold.after(three["step"] + 8)
    job.wait_for_step(three["step"] + 12)
    job.kill(worker(2))
    job.scale(worker(0), worker(1))
    two = job.wait_for_size(2, 0, after_epoch=three["epoch"])
    hold.after(1000)
    assert (two["cause"], two["step"]) == ("worker_lost", three["step"]), "it was saved when the size changed"
    assert two["lost_steps"] >= 12
    result = job.wait_for_result()
    # Ten epochs of twenty steps; the last step of an epoch may have fewer examples than it counts.
    assert result["outcome"] == "succeeded"
    assert 200 <= result["step"] <= 210
    counts = {membership["epoch"]: membership["step"] for membership in job.service.memberships}
    for sample in job.service.samples:
        epoch, workers = sample["membership_epoch"], sample["workers"]
        assert sample["n_steps"] % workers == 0
        assert sample["step"] - sample["n_steps"] == counts[epoch], "no step is missing or twice"
        counts[epoch] = sample["step"]
    assert counts[two["epoch"]] == result["step"]
    profile = job.service.profile
    assert profile is not None
    assert (profile["total_steps"], profile["steps_per_epoch"]) == (result["step"], 20.0)


def test_a_trainer_that_counts_epochs_goes_on_at_the_size_it_began_with(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """128 steps of one process. Resumed at step 80 by two, whose 64 steps are fewer, it ends at once: nothing of that
    counts, the service hears at which size it can go on, and there it makes all its steps."""
    need("accelerate")
    options = ["--output-dir", str(tmp_path / "out"), "--epochs", "2", "--step-seconds", "0.1"]
    hold = Hold(tmp_path / "hold", 90)
    job = make_script_job("torchrun", str(SCRIPTS / "hf_trainer.py"), *options, "--hold", str(hold.path))
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    two = hold.during_change(job, worker(0), worker(1))
    hold.after(128)
    job.wait_for("the only size is known", lambda: (job.service.profile or {}).get("fixed_workers") == 1)
    assert "went on from the wrong step" in job.logs()
    assert job.service.result is None
    job.scale(worker(0))
    one = job.wait_for_size(1, 0, after_epoch=two["epoch"])
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 128)
    assert one["step"] >= 80
    assert {sample["workers"] for sample in job.service.samples} == {1}, "nothing of the two counts"


def test_steps_of_an_epoch_count_on_through_a_change_of_size(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """A loop that names epochs and the steps in them, and goes on with the epoch that it was in. One process does not
    get through the fourth: the second worker comes in time, however long that takes."""
    script = tmp_path / "loop.py"
    script.write_text(
        "import os, pathlib, time\n"
        "kept = pathlib.Path('epoch')\n"
        "epoch = int(kept.read_text()) if kept.exists() else 1\n"
        "world = int(os.environ['WORLD_SIZE'])\n"
        "each = 40 // world\n"
        "for epoch in range(epoch, 7):\n"
        "    mine = pathlib.Path('epoch.' + os.environ['RANK'])\n"
        "    mine.write_text(str(epoch))\n"
        "    mine.replace(kept)\n"
        "    while epoch == 4 and world == 1 and kept.read_text():\n"
        "        time.sleep(0.05)\n"
        "    for step in range(1, each + 1):\n"
        "        time.sleep(0.03)\n"
        "        if step % 5 == 0:\n"
        "            print(f'Epoch [{epoch}/6], Step [{step}/{each}], Loss: {1 / (epoch * each + step):.4f}')\n"
    )
    job = make_script_job("torchrun", str(script))
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    job.wait_for_step(90)
    job.scale(worker(0), worker(1))
    two = job.wait_for_size(2, 0)
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 240), result["error"]
    assert two["step"] >= 80
    profile = job.service.profile
    assert profile is not None
    assert (profile["total_steps"], profile["steps_per_epoch"], profile["resumes"]) == (240, 40.0, True)


def test_a_plain_command_that_is_allowed_more_workers_later_trains_with_them_together(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Its owner had allowed one worker when this one was started: its process was alone, and told of no others."""
    script = tmp_path / "loop.py"
    script.write_text(
        "import os, pathlib, time\n"
        "rank, world = int(os.environ.get('RANK', '0')), int(os.environ.get('WORLD_SIZE', '1'))\n"
        "kept = pathlib.Path('step')\n"
        "first = int(kept.read_text()) if kept.exists() else 0\n"
        "print(f'rank {rank} of {world}', flush=True)\n"
        "for step in range(first + 1, 101):\n"
        "    while step > 50 and world == 1:\n"
        "        time.sleep(0.05)\n"
        "    time.sleep(0.02)\n"
        "    if rank == 0:\n"
        "        pathlib.Path('step.new').write_text(str(step))\n"
        "        pathlib.Path('step.new').replace(kept)\n"
        "        print(f'step {step}/100 loss {1 / step:.4f}', flush=True)\n"
    )
    job = make_script_job("python", str(script), workers={"min": 1, "max": 1, "resources": {}})
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    job.wait_for_step(50)
    job.scale(worker(0), worker(1))
    job.wait_for_size(2, 0)
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 100), result["error"]
    assert "rank 0 of 2" in job.logs()
    assert "rank 1 of 2" in job.logs()


def test_how_a_script_writes_its_checkpoints_is_learned(make_script_job: Callable[..., Job], tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(
        "import pathlib, time\n"
        "for step in range(1, 41):\n"
        "    print(f'step {step}/40 loss {1 / step}')\n"
        "    time.sleep(0.2)\n"
        "    if step % 10 == 0:\n"
        "        pathlib.Path('checkpoint').write_bytes(bytes(2**20))\n"
    )
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    assert job.wait_for_result()["outcome"] == "succeeded"
    profile = job.service.profile
    assert profile is not None
    assert 1.5 < profile["checkpoint_every_seconds"] < 60
    assert 0 < profile["checkpoint_write_seconds"] < profile["checkpoint_every_seconds"] / 2


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_command_that_does_not_exist_fails_for_good(make_script_job: Callable[..., Job]) -> None:
    job = make_script_job("there-is-no-such-program", "x")
    job.scale(worker(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["permanent"]) == ("failed", True)
    assert result["error"] == (
        "the command ended with exit code 127; it printed last:\nthere-is-no-such-program: command not found"
    )


def test_a_script_that_raises_fails_with_its_own_traceback(make_script_job: Callable[..., Job], tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("print('step 1 loss 2.0')\nraise ValueError('no such column')\n")
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["permanent"]) == ("failed", False)
    assert "ValueError: no such column" in result["error"]
    assert "broken.py" in result["error"]
    assert "starter.py" not in result["error"], "frames of ours are no help"
    assert "exit code 1" in result["error"]


def test_a_pattern_that_takes_too_long_is_told_and_holds_nothing_up(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import pathlib, time\n"
        "for n in range(1, 9):\n"
        "    print('a' * 60 + 'b')\n"
        "    print('it', n, 'objective', 1 / n)\n"
        "    while n == 8 and not pathlib.Path('told').exists():\n"
        "        time.sleep(0.02)\n"
    )
    patterns = [r"(?P<x>(a+)+)$", r"it (?P<step>\d+) objective (?P<loss>\S+)"]
    job = make_script_job("python", str(script), progress_patterns=patterns)
    job.scale(worker(0))
    job.wait_for("the note", lambda: job.service.notes)
    (tmp_path / "told").touch()
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 8)
    assert [(note["kind"], patterns[0] in note["message"]) for note in job.service.notes] == [("PatternTooSlow", True)]


def test_a_script_that_wants_another_number_of_processes_says_so_itself(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "picky.py"
    script.write_text("import os, sys\nsys.exit(f\"two processes are wanted, not {os.environ['WORLD_SIZE']}\")\n")
    job = make_script_job("torchrun", str(script))
    job.scale(worker(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["error"]) == (
        "failed",
        "the command ended with exit code 1; it printed last:\ntwo processes are wanted, not 1",
    )


def test_another_attempt_knows_how_far_the_script_had_come(make_script_job: Callable[..., Job], tmp_path: Path) -> None:
    script, state = tmp_path / "flaky.py", tmp_path / "state"
    script.write_text(
        "import pathlib, sys, time\n"
        f"state = pathlib.Path({str(state)!r})\n"
        "step = int(state.read_text()) if state.exists() else 0\n"
        "while step < 60:\n"
        "    step += 1\n"
        "    state.write_text(str(step))\n"
        "    print(f'step {step}/60 loss {1 / step}')\n"
        "    time.sleep(0.03)\n"
        "    if step == 40:\n"
        "        raise RuntimeError('the storage is away')\n"
    )
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    assert "the storage is away" in job.wait_for_result()["error"]
    job.wait_for("the end", lambda: all(each.poll() is not None for each in job.processes.values()))
    job.service.result = None
    job.attempt = 1
    job.start_coordinator()
    job.scale(worker(0, 1))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 60)
    again = job.service.memberships[-1]
    assert (again["cause"], again["step"], again["lost_steps"]) == ("resume", 40, 0)
    job.wait_for("what was learned", lambda: job.service.profile and job.service.profile["resumes"] is True)


def test_a_script_that_ignores_sigterm_is_killed_after_its_time(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for step in range(1, 100000):\n"
        "    print('step', step, 'loss', 1.0 / step)\n"
        "    time.sleep(0.05)\n"
    )
    job = make_script_job("python", str(script), stop_seconds=1.0)
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    job.wait_for_step(one["step"] + 5)
    job.scale(worker(0), worker(1))
    two = job.wait_for_size(2, 0)
    assert two["step"] == 0, "it began anew"
    assert two["lost_steps"] > 0
    said = f"the command of {worker(0)} did not end within 1 s of being asked to (--stop-seconds), and was killed"
    assert two["message"] == said
    job.wait_for("what was learned", lambda: job.service.profile and job.service.profile["resumes"] is False)


def test_what_another_job_of_the_same_directory_logs_is_not_of_this_one(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Both write TensorBoard's files below `runs`, and the other one's loss is no number."""
    name = f"events.out.tfevents.1.{socket.gethostname()}"
    other = tmp_path / "runs" / "other" / f"{name}.{os.getpid()}.0"
    other.parent.mkdir(parents=True)
    other.write_bytes(record(event(1e10, 90, simple("loss", math.nan))))
    os.utime(other, (1e10, 1e10))  # written while the job runs
    script, own = tmp_path / "logs.py", b"".join(record(event(1e10, step, simple("loss", 0.5))) for step in (1, 2, 3))
    script.write_text(
        "import os\n"
        "os.makedirs('runs/own')\n"
        f"with open(f'runs/own/{name}.{{os.getpid()}}.0', 'wb') as file:\n"
        f"    file.write({own!r})\n"
    )
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 3)
    assert {each["loss"] for each in job.service.samples} == {0.5}
    assert (job.service.profile or {})["learned_from"] == "tensorboard"


def test_a_million_lines_and_a_line_without_end_are_passed_on_in_bounded_memory(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "loud.py"
    script.write_text(
        "import sys, time\n"
        "for block in range(100):\n"
        "    lines = [f'step {step} loss 1.0\\n' for step in range(block * 10000 + 1, block * 10000 + 10001)]\n"
        "    sys.stdout.write(''.join(lines))\n"
        "for _ in range(100):\n"
        "    sys.stdout.write('x' * 1_000_000)\n"
        "print('\\nstep 1000001 loss 0.5', flush=True)\n"
        "time.sleep(1000)\n"
    )
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    job.wait_for_step(1_000_001)
    assert _peak_memory(job.processes[worker(0)].pid) < 100e6
    job.service.want([worker(0)], "finish")
    result = job.wait_for_result()
    assert result["outcome"] == "succeeded"
    assert result["step"] == 1_000_001
    assert len(job.service.samples) < 1000
    output = (job.directory / f"{worker(0)}.log").read_bytes()
    assert output.count(b"\nstep ") >= 999_999, "all of it is in the log"
    assert output.count(b"x" * 1_000_000) == 100


def _peak_memory(pid: int) -> int:
    """Bytes of a process that runs."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def test_a_process_that_is_killed_counts_as_a_lost_worker(make_script_job: Callable[..., Job], tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, time\n"
        "print('process', os.getpid(), flush=True)\n"
        "for step in range(1, 100000):\n"
        "    print('step', step, 'loss', 1.0 / step)\n"
        "    time.sleep(0.05)\n"
    )
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    job.wait_for_step(one["step"] + 3)
    log = (job.directory / f"{worker(0)}.log").read_text()
    os.kill(int(log.partition("process ")[2].split()[0]), signal.SIGKILL)
    assert job.exit_code(worker(0)) == 128 + signal.SIGKILL


COUNTS = """
import os, time
for step in range(1, 100000):
    with open("steps", "a") as file:
        file.write(f"{os.environ['RANK']} {os.getpid()}\\n")
    print("step", step, "loss", 1.0 / step)
    time.sleep(0.05)
"""


STOPS_ITSELF = """
import os, pathlib, signal
from optimus_workers.script.watching import Watching
def look_at_flood(self, run):
    wish = pathlib.Path(os.environ["OPTIMUS_JOB_DIRECTORY"], "stop-" + os.environ["OPTIMUS_TASK_NAME"])
    if wish.exists():
        wish.unlink()
        os.kill(os.getpid(), signal.SIGSTOP)
Watching._look_at_flood = look_at_flood
"""
"""A worker with this stops in the middle of a look at its processes: the worst moment, for it then notices their end
first when it wakes."""


def test_no_two_processes_of_one_rank_train_while_a_worker_is_stopped(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Its own end before its rank is given to another; when it wakes it takes part again. A worker that stays stopped
    is ended, so that another may take its place."""
    script = tmp_path / "counts.py"
    script.write_text(COUNTS)
    job = make_script_job("torchrun", str(script), lease_seconds=3.0)
    flag, program = job.impatient_agents
    job.impatient_agents = flag, f"{STOPS_ITSELF}\n{program}"
    job.scale(worker(0), worker(1))
    two = job.wait_for_size(2, 0)
    job.wait_for_step(two["step"] + 5)
    (job.directory / f"stop-{worker(0)}").touch()
    alone = job.wait_for_size(1, 0, after_epoch=two["epoch"])
    assert (alone["cause"], alone["workers"]) == ("worker_lost", [worker(1)])
    assert job.service.silence[0].startswith(f"{worker(0)} has not answered for")
    job.wait_for("steps of the other one", lambda: job.service.samples[-1]["membership_epoch"] == alone["epoch"])
    job.processes[worker(0)].send_signal(signal.SIGCONT)
    both = job.wait_for_size(2, 0, after_epoch=alone["epoch"])
    job.wait_for("the news", lambda: len(job.service.silence) == 2)
    assert job.service.silence[1].startswith(f"{worker(0)} answers again")
    job.wait_for_step(both["step"] + 5)
    order = [line.split()[1] for line in (tmp_path / "steps").read_text().splitlines() if line.startswith("0 ")]
    turns = [pid for pid, before in zip(order, [None, *order], strict=False) if pid != before]
    assert len(turns) == len(set(turns)), "one after the other"
    job.processes[worker(1)].send_signal(signal.SIGSTOP)
    assert job.exit_code(worker(1)) == -signal.SIGKILL


def test_a_coordinator_that_was_stopped_judges_no_worker_by_its_own_silence(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    script, steps = tmp_path / "counts.py", tmp_path / "steps"
    script.write_text(COUNTS)
    lease_seconds = 3.0
    job = make_script_job("python", str(script), lease_seconds=lease_seconds)
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    job.wait_for_step(one["step"] + 5)
    (coordinator,) = (process for name, process in job.processes.items() if "coordinator" in name)
    coordinator.send_signal(signal.SIGSTOP)
    at, before = time.monotonic(), steps.stat().st_size
    job.wait_for("the end of a lease", lambda: time.monotonic() > at + 1.5 * lease_seconds)
    assert steps.stat().st_size > before, "it trains on"
    coordinator.send_signal(signal.SIGCONT)
    job.wait_for("its words", lambda: "this coordinator was stopped for" in job.logs())
    job.service.want([worker(0)], "finish")
    result = job.wait_for_result()
    assert [each["epoch"] for each in job.service.memberships] == [one["epoch"]]
    assert result["step"] > 2
    assert not job.service.silence


SAVES_TOGETHER = """
import os, pathlib, time

def write(path, seconds):
    with open(path, "wb") as file:
        for _ in range(int(seconds * 20)):
            file.write(bytes(40000))
            file.flush()
            time.sleep(0.05)
    pathlib.Path(f"{path}.whole").touch()

def wait_for(path):
    while not os.path.exists(f"{path}.whole"):
        time.sleep(0.02)

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for step in range(1, 100000):
    if rank == 0:
        print("step", step, "loss", 1.0 / step, flush=True)
    time.sleep(0.05)
    if step == 20 and world == 2:
        if rank == 0:
            write("part-0", 1.5)
            wait_for("part-1")
            write("metadata", 0.5)
        else:
            wait_for("part-0")
            write("part-1", 0.5)
            wait_for("metadata")
"""


def test_a_checkpoint_that_several_workers_write_in_turn_is_not_cut_in_two(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """While one writes the other waits, and writes nothing: it is not ended before the checkpoint is whole."""
    script = tmp_path / "together.py"
    script.write_text(SAVES_TOGETHER)
    job = make_script_job("torchrun", str(script))
    job.scale(worker(0), worker(1))
    job.wait_for("the checkpoint's begin", lambda: (tmp_path / "part-0").exists())
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    assert (tmp_path / "metadata.whole").exists()


SAVES_IN_A_FOLDER = """
import os, pathlib, sys, time

out = pathlib.Path(sys.argv[sys.argv.index("--output-dir") + 1])
for step in range(1, 100000):
    print("step", step, "loss", 1.0 / step, flush=True)
    time.sleep(0.05)
    if step % 20 == 0:
        folder = out / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        time.sleep(0.7)
        (folder / "config.json").write_text("{}")
        time.sleep(0.7)
        (folder / "model").write_bytes(bytes(500000))
"""


def test_a_checkpoint_whose_folder_alone_is_there_is_not_cut(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """Its parts take longer to come than a process has to be quiet for."""
    script = tmp_path / "folders.py"
    script.write_text(SAVES_IN_A_FOLDER)
    job = make_script_job("python", str(script), "--output-dir", "out")
    job.scale(worker(0))
    job.wait_for("the third checkpoint's begin", lambda: (tmp_path / "out/checkpoint-60").exists())
    job.scale(worker(0), worker(1))
    job.wait_for_size(2, 0)
    assert (tmp_path / "out/checkpoint-60/model").exists()


def test_the_processes_of_a_killed_agent_end_with_it(make_script_job: Callable[..., Job], tmp_path: Path) -> None:
    script = tmp_path / "orphan.py"
    script.write_text("import os, time\nprint('process', os.getpid(), 'step 1 loss 1', flush=True)\ntime.sleep(1000)\n")
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    job.wait_for_step(1)
    log = (job.directory / f"{worker(0)}.log").read_text()
    pid = int(log.partition("process ")[2].split()[0])
    job.kill(worker(0))
    job.wait_for("the end of its process", lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_processes_go_on_while_the_coordinator_is_replaced(make_script_job: Callable[..., Job], tmp_path: Path) -> None:
    out, hold = tmp_path / "final.pt", Hold(tmp_path / "hold", 30)
    options = ["--epochs", "10", "--step-seconds", "0.02", "--out", str(out), "--hold", str(hold.path)]
    job = make_script_job("torchrun", str(SCRIPTS / "elastic_train.py"), *options)
    job.scale(worker(0), worker(1))
    two = job.wait_for_size(2, 0)
    hold.wait(job)
    job.kill("job-coordinator-0-0")
    job.start_coordinator()
    again = job.wait_for_size(2, 0, after_epoch=two["epoch"])
    hold.after(1000)
    assert again["cause"] == "coordinator_restart"
    assert again["lost_steps"] == 0
    assert job.wait_for_result()["outcome"] == "succeeded"
    for name in (worker(0), worker(1)):
        log = (job.directory / f"{name}.log").read_text()
        assert f"the processes go on in membership {again['epoch']}" in log
        after = log.partition("the coordinator is lost")[2]  # the second worker may have come to a training of one
        assert after
        assert "the command stopped" not in after


def test_processes_go_on_although_the_journal_of_a_backup_was_restored(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    """And with it the database, which knows no more than the journal."""
    out, hold = tmp_path / "final.pt", Hold(tmp_path / "hold", 30)
    options = ["--epochs", "10", "--step-seconds", "0.02", "--out", str(out), "--hold", str(hold.path)]
    job = make_script_job("torchrun", str(SCRIPTS / "elastic_train.py"), *options)
    journal, agent = job.directory / "journal.jsonl", job.directory / f"{worker(0)}.log"
    job.scale(worker(0))
    job.wait_for_size(1, 0)
    backup = journal.read_bytes()
    hold.wait(job)
    newest = 1
    for name in ("job-coordinator-0-0", "job-coordinator-0-1"):
        job.kill(name)
        job.start_coordinator()
        newest = job.wait_for_size(1, 0, after_epoch=newest)["epoch"]
    job.kill("job-coordinator-0-2")
    journal.write_bytes(backup)
    del job.service.memberships[1:]
    job.start_coordinator()
    again = job.wait_for_size(1, 0, after_epoch=newest)
    hold.after(1000)
    assert (again["cause"], again["lost_steps"]) == ("coordinator_restart", 0)
    assert job.wait_for_result()["outcome"] == "succeeded"
    assert "the command stopped" not in agent.read_text()


def test_a_job_that_is_paused_or_finished_stops_its_processes(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    options = ["--epochs", "1000", "--step-seconds", "0.03", "--out", str(tmp_path / "final.pt")]
    job = make_script_job("torchrun", str(SCRIPTS / "elastic_train.py"), *options)
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    job.wait_for_step(one["step"] + 10)
    job.service.want([worker(0)], "pause")
    paused = job.wait_for_size(0, 0)
    assert paused["cause"] == "pause"
    assert paused["step"] >= one["step"] + 10
    job.wait_for("the coordinator's end", lambda: job.processes["job-coordinator-0-0"].poll() is not None)
    job.start_coordinator()
    job.scale(worker(0, 1))
    again = job.wait_for_size(1, 0, after_epoch=paused["epoch"])
    assert (again["cause"], again["step"], again["lost_steps"]) == ("resume", paused["step"], 0)
    result = job.finish()
    assert result["outcome"] == "succeeded"
    assert result["step"] >= again["step"] + 10


# --- odd scripts -----------------------------------------------------------------------------------------------------

DAEMON = """
import os, subprocess, sys, time
code = "import os, time; os.setsid(); os.fork() and os._exit(0); os.write(1, b'daemon %d\\\\n' % os.getpid())"
code += "; time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", code]).wait()
print("step 1 loss 1", flush=True)
"""


@pytest.mark.parametrize("ending", ["the script ends", "the job is finished", "the agent is killed"])
def test_what_a_script_leaves_behind_in_another_session_ends_with_it(
    make_script_job: Callable[..., Job], tmp_path: Path, ending: str
) -> None:
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON + ("" if ending == "the script ends" else "time.sleep(1000)\n"))
    job = make_script_job("python", str(script), stop_seconds=2.0)
    job.scale(worker(0))
    log = job.directory / f"{worker(0)}.log"
    said = job.wait_for("the daemon", lambda: re.search(r"daemon (\d+)\n", log.read_text()))
    pid = int(said[1])
    job.wait_for_size(1, 0)
    if ending == "the job is finished":
        job.service.want([worker(0)], "finish")
    elif ending == "the agent is killed":
        job.kill(worker(0))
    if ending != "the agent is killed":
        assert job.wait_for_result()["outcome"] == "succeeded"
    job.wait_for("the daemon's end", lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))


ODD = {
    "changes its directory": "os.chdir('/'); print('step 7 loss 0.5')",
    "prints binary garbage": "os.write(1, bytes(range(256)) * 1000 + b'\\nstep 7 loss 0.5\\n')",
    "closes its output": "print('step 7 loss 0.5', flush=True); os.close(1); os.close(2)",
    "reads its input": "assert sys.stdin.read() == ''; print('step 7 loss 0.5')",
    "leaves without flushing": "os.write(1, b'step 7 loss 0.5'); os.write(1, b'\\n'); os._exit(0)",
    "ends its last line with no newline": "sys.stdout.write('step 6 loss 0.6\\nstep 7 loss 0.5')",
    "ends with a bar": "sys.stdout.write('step 6 loss 0.6\\rstep 7 loss 0.5')",
}


@pytest.mark.parametrize("name", ODD)
def test_a_script_that(make_script_job: Callable[..., Job], tmp_path: Path, name: str) -> None:
    script = tmp_path / "odd.py"
    script.write_text(f"import os, sys\n{ODD[name]}\n")
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 7)
    assert "step 7 loss 0.5" in (job.directory / f"{worker(0)}.log").read_text(errors="replace")


def test_a_script_that_ends_at_once_and_says_nothing(make_script_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_script_job("true")
    job.scale(worker(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"], result["error"]) == ("succeeded", 0, None)
    assert job.service.profile is not None
    assert job.service.profile["unread_line"] == NOTHING_PRINTED


def test_what_a_script_that_ends_soon_printed_without_a_step_is_told_before_its_end(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "figures.py"
    script.write_text("for turn in range(1, 5):\n    print(f'acc 0.{turn} took 0.25')\n")
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    assert job.wait_for_result()["step"] == 0
    assert job.service.profile is not None
    assert job.service.profile["unread_line"] == "acc 0.4 took 0.25"


@pytest.mark.parametrize("steps_again", [0, 3])
def test_a_change_of_size_after_the_last_step_ends_the_job(
    make_script_job: Callable[..., Job], tmp_path: Path, steps_again: int
) -> None:
    """The processes are stopped between their last step and their end: new ones find little or nothing to do."""
    script = tmp_path / "late.py"
    script.write_text(
        "import os, pathlib, time\n"
        "saved, wait = pathlib.Path('saved'), not pathlib.Path('saved').exists()\n"
        "for step in range(int(saved.read_text()) if saved.exists() else 1, 41):\n"
        "    if os.environ['RANK'] == '0':\n"
        "        print(f'step {step}/40 loss {1 / step:.3f}', flush=True)\n"
        "    time.sleep(0.02)\n"
        "if wait:\n"
        "    part = pathlib.Path('part')\n"
        f"    part.write_text('{41 - steps_again}')\n"
        "    part.rename(saved)  # whole at once: each of two processes reads it\n"
        "while wait:\n"
        "    time.sleep(0.05)\n"
    )
    job = make_script_job("torchrun", str(script))
    job.scale(worker(0))
    job.wait_for_step(40)
    job.wait_for("what the script saves", (tmp_path / "saved").exists)
    job.scale(worker(0), worker(1))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 40)


@pytest.mark.parametrize("first", ["nan", "0.5"])
def test_losses_that_are_no_numbers_are_told_as_such(
    make_script_job: Callable[..., Job], tmp_path: Path, first: str
) -> None:
    script = tmp_path / "nan.py"
    script.write_text(
        "import time\n"
        "for step in range(1, 62):\n"
        f"    step % 5 or print(f'step {{step}}/61 loss', 'nan' if step > 20 else '{first}')\n"
        "    time.sleep(0.05)\n"
    )
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"], result["final_loss"]) == ("succeeded", 61, None)
    assert {str(sample["loss"]) for sample in job.service.samples if sample["step"] > 20} == {"NaN"}


def test_output_that_is_not_understood_is_told_until_a_step_is(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import pathlib, time\n"
        "for turn in range(1, 250):\n"
        "    print(f'turn {turn}: J={1 / turn:.4f}')\n"
        "while not pathlib.Path('go').exists():\n"
        "    time.sleep(0.02)\n"
        "print('step 7 loss 0.5', flush=True)\n"
        "time.sleep(1000)\n"
    )
    job = make_script_job("python", str(script))
    job.scale(worker(0))
    told = job.wait_for("what is not understood", lambda: (job.service.profile or {}).get("unread_line"))
    assert told.startswith("turn ")
    assert job.service.profile is not None
    pattern = re.compile(job.service.profile["suggested_pattern"])
    assert pattern.search("turn 12: J=3.25")
    (tmp_path / "go").touch()
    job.wait_for_step(7)
    job.wait_for("its withdrawal", lambda: job.service.profile and job.service.profile["unread_line"] is None)
