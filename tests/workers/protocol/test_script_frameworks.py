"""Stock scripts of each framework go 1 → 3 → 2 workers, lose a worker, and train as undisturbed ones do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.packages import need
from tests.workers.protocol.conftest import Job, worker

SCRIPTS = Path(__file__).parents[2] / "scripts"
N_SEEDS = 3
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FINAL_LOSS = re.compile(r"eval_loss\D*([\d.]+(?:e[-+]\d+)?)")
"""What each script prints at its end: the loss of all examples."""

STOPPED = b"the command stopped within"
"""What an agent says when its processes have ended."""


class Framework(NamedTuple):
    """A script of tests/scripts, and how it is started."""

    words: tuple[str, ...]
    module: str
    """What it imports, and does not run without."""
    n_steps: int = 160


FRAMEWORKS = {
    "DDP": Framework(("ddp_train.py", "--snapshot", "{folder}/snapshot.pt"), "torch.nn.parallel"),
    "FSDP": Framework(("fsdp_train.py", "--directory", "{folder}"), "torch.distributed.fsdp"),
    "transformers": Framework(("hf_trainer.py", "--batch", "24", "--output-dir", "{folder}"), "transformers.trainer"),
    "Lightning": Framework(("lightning_trainer.py", "--directory", "{folder}"), "lightning.pytorch"),
    "Lightning, the same batch in each process": Framework(
        ("lightning_trainer.py", "--directory", "{folder}", "--worker-batch", "16"), "lightning.pytorch"
    ),
    "Accelerate": Framework(("accelerate_loop.py", "--directory", "{folder}"), "accelerate"),
    "JAX": Framework(("jax_loop.py", "--directory", "{folder}"), "jax"),
}


def command(framework: Framework, folder: str, *, seed: str) -> list[str]:
    """The script and its arguments; it writes below `folder`."""
    script, *words = framework.words
    options = ["--steps", str(framework.n_steps), "--seed", seed]
    return [str(SCRIPTS / script), *(word.format(folder=folder) for word in words), *options]


class Hold:
    """Holds a script between two checkpoints while the agents of a change start, however long that takes.

    Agents that start one after the other make two changes, and a script that is killed in a checkpoint may not go on.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step
        self.after(step)

    def after(self, step: int) -> None:
        """Let it train until `step`."""
        self.step = step
        scratch = self.path.with_suffix(".new")
        scratch.write_text(str(step))
        scratch.replace(self.path)

    def during_change(self, job: Job, *names: str) -> dict[str, Any]:
        """Have these workers; the membership, which may train 30 steps more than the one before."""
        self.wait(job)
        log = job.directory / f"{worker(0)}.log"
        before = job.service.memberships[-1]["epoch"]
        n_stops = log.read_bytes().count(STOPPED)
        job.scale(*names)
        job.wait_for("the stop of the processes", lambda: log.read_bytes().count(STOPPED) > n_stops)
        held = self.step
        self.after(held + 4)  # enough to tell where it goes on, too few for a checkpoint
        found = job.wait_for_size(len(names), 0, after_epoch=before)
        self.after(held + 30)
        return found

    def wait(self, job: Job) -> None:
        """Until it has come so far, as it tells, or as it says where it holds: of some that print every fifth step, the
        last one is told only when there are more."""
        job.wait_for(f"the hold at step {self.step}", lambda: self._is_there() or job.service.step >= self.step - 3)

    def _is_there(self) -> bool:
        at = self.path.with_suffix(".at")
        return at.exists() and int(at.read_text() or 0) >= self.step


def undisturbed_losses(module: str, words: list[str]) -> list[float]:
    """The final losses of runs in one process, without Optimus, with the seeds that come first."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("undisturbed.py")), module, words[0], str(N_SEEDS), *words[1:]],
        env={**kept, **place, "GLOO_SOCKET_IFNAME": "lo", "TTY_COMPATIBLE": "1", "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=600,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return final_losses(done.stdout)


def final_losses(output: str) -> list[float]:
    return [float(found) for found in FINAL_LOSS.findall(ANSI.sub("", output))]


def assert_is_of_the_same_training(loss: float, undisturbed: list[float]) -> None:
    """Within the spread of three seeds: as far as they are apart, on both sides of them.

    A fourth seed is outside of the range of three in half of all cases, so that the bare range would be too narrow.
    """
    assert len(undisturbed) == N_SEEDS
    spread = max(undisturbed) - min(undisturbed)
    assert min(undisturbed) - spread <= loss <= max(undisturbed) + spread, (loss, undisturbed)


def check_ddp(job: Job, folder: Path, changes: list[dict[str, Any]]) -> None:
    """What its changes cost by parts, and what was learned from what it prints."""
    assert torch.load(folder / "snapshot.pt")["step"] == 160
    for each in changes:
        assert each["pause_seconds"] > 0
        parts = [each["pause_parts"][f"{part}_seconds"] for part in ("save", "stop", "start", "load")]
        assert all(part >= 0 for part in parts)
        assert 0 < sum(parts) <= each["pause_seconds"] + 0.1
    profile = job.service.profile
    assert profile is not None
    assert (profile["total_steps"], profile["learned_from"], profile["resumes"]) == (160, "printed", True)
    assert all(sample["rank"] == 0 and sample["loss"] is not None for sample in job.service.samples)


def check_transformers(job: Job, folder: Path, _changes: list[dict[str, Any]]) -> None:
    assert (job.service.profile or {}).get("resumes") is True
    assert (folder / "checkpoint-160").is_dir()


CHECKS = {"DDP": check_ddp, "transformers": check_transformers}
"""What of these is looked at besides."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_stock_script_is_resized_and_loses_a_worker_and_trains_as_if_undisturbed(
    name: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    framework = FRAMEWORKS[name]
    need(framework.module.partition(".")[0])
    (tmp_path / "job").mkdir()
    spec: dict[str, Any] = {"architecture": "script", "task": None, "working_directory": str(tmp_path)}
    workers = {"min": 1, "max": 3, "resources": {}}
    elsewhere = command(framework, str(tmp_path / "alone-{seed}"), seed="{seed}")
    for seed in range(N_SEEDS):
        (tmp_path / f"alone-{seed}").mkdir()
    hold = Hold(tmp_path / "hold", framework.n_steps // 4 + 5)
    words = ["torchrun", *command(framework, str(tmp_path / "job"), seed="0"), "--step-seconds", "0.05"]
    with ThreadPoolExecutor(1) as beside:
        undisturbed = beside.submit(undisturbed_losses, framework.module, elsewhere)
        job = make_job(command=[*words, "--hold", str(hold.path)], workers=workers, **spec)
        job.scale(worker(0))
        one = job.wait_for_size(1, 0)
        job.wait_for_step(framework.n_steps // 10)
        total = job.wait_for("its end is known", lambda: (job.service.profile or {}).get("total_steps"))
        assert total == framework.n_steps, "from a tenth of its life on"
        three = hold.during_change(job, worker(0), worker(1), worker(2))
        two = hold.during_change(job, worker(0), worker(1))
        hold.wait(job)
        job.kill(worker(1))
        hold.after(framework.n_steps)
        again = job.wait_for_size(1, 0, after_epoch=two["epoch"])
        result = job.wait_for_result()
        assert (result["outcome"], result["step"]) == ("succeeded", framework.n_steps)
        assert [each["cause"] for each in (one, three, two, again)] == ["start", "rescale", "rescale", "worker_lost"]
        lost = [each["lost_steps"] for each in (three, two, again)]
        assert max(lost) <= 11, f"a checkpoint every ten steps: {lost}"
        assert max(sample["step"] for sample in job.service.samples) == framework.n_steps
        if name in CHECKS:
            CHECKS[name](job, tmp_path / "job", [three, two, again])
        printed = final_losses((job.directory / f"{worker(0)}.log").read_text(errors="replace"))
        assert_is_of_the_same_training(printed[-1], undisturbed.result())


@pytest.mark.timeout(600)
def test_a_plain_loop_goes_on_after_its_worker_was_lost(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """It is one process, so that its job has one worker."""
    words = [str(SCRIPTS / "plain_loop.py"), "--directory", str(tmp_path / "out"), "--step-seconds", "0.1"]
    spec: dict[str, Any] = {"architecture": "script", "task": None, "working_directory": str(tmp_path)}
    alone = [words[0], "--directory", str(tmp_path / "alone-{seed}"), "--seed", "{seed}"]
    with ThreadPoolExecutor(1) as beside:
        undisturbed = beside.submit(undisturbed_losses, "torch", alone)
        job = make_job(command=["python", *words], workers={"min": 1, "max": 1, "resources": {}}, **spec)
        job.scale(worker(0))
        one = job.wait_for_size(1, 0)
        job.wait_for_step(12)
        total = job.wait_for("its end is known", lambda: (job.service.profile or {}).get("total_steps"))
        assert total == 120, "from a tenth of its life on"
        job.wait_for_step(45)
        job.kill(worker(0))
        job.scale(worker(0, 1))
        again = job.wait_for_size(1, 0, after_epoch=one["epoch"])
        result = job.wait_for_result()
        assert (result["outcome"], result["step"]) == ("succeeded", 120)
        assert 0 <= again["lost_steps"] <= 10, "its checkpoint is of the last epoch"
        assert job.service.profile is not None
        assert (job.service.profile["total_steps"], job.service.profile["steps_per_epoch"]) == (120, 10.0)
        printed = final_losses((job.directory / f"{worker(0, 1)}.log").read_text(errors="replace"))
        assert_is_of_the_same_training(printed[-1], undisturbed.result())
