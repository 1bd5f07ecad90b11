"""Stock scripts of each framework go 1 → 3 → 2 workers, lose a worker, and train as undisturbed ones do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest
import torch
from tests.workers.protocol.conftest import Job, free_port, worker

from optimus_workers.script.channels.printed import Printed

SCRIPTS = Path(__file__).parents[2] / "scripts"
N_STEPS = 160
SEEDS = (0, 1, 2)
LAST = 20
"""So many reported losses are one figure: one alone is of a few examples."""
LEAST_SPREAD = 0.1
"""Of the loss. Three seeds may end closer together than the batches of two sizes let them."""


class Framework(NamedTuple):
    """A script of tests/scripts, and how it is started."""

    words: tuple[str, ...]
    needs: str
    """The module without which it does not run."""
    n_steps: int = N_STEPS


FRAMEWORKS = {
    "DDP": Framework(("torchrun", "ddp_train.py", "--snapshot", "{folder}/snapshot.pt"), "torch"),
    "FSDP": Framework(("torchrun", "fsdp_train.py", "--directory", "{folder}/out"), "torch"),
    "Lightning": Framework(("torchrun", "lightning_trainer.py", "--directory", "{folder}/out"), "lightning"),
    "Accelerate": Framework(("torchrun", "accelerate_loop.py", "--directory", "{folder}/out"), "accelerate"),
    "JAX": Framework(("torchrun", "jax_loop.py", "--directory", "{folder}/out"), "jax", 600),
}
# JAX catches SIGTERM (jax.distributed waits for a checkpoint of its own), so that it trains on until it is killed.


def command(framework: Framework, folder: Path, seed: int, step_seconds: float) -> list[str]:
    folder.mkdir(parents=True)
    words = [word.format(folder=folder) for word in framework.words]
    words[1] = str(SCRIPTS / words[1])
    return [*words, "--steps", str(framework.n_steps), "--seed", str(seed), "--step-seconds", str(step_seconds)]


def undisturbed_loss(words: list[str]) -> float:
    """The loss at the end of a run in one process, without Optimus."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    environment = {**kept, **place, "MASTER_PORT": str(free_port()), "TTY_COMPATIBLE": "1", "COLUMNS": "160"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *words],
        check=True,
        env=environment,
        capture_output=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )
    lines = (done.stdout + b"\n" + done.stderr).splitlines()
    printed = Printed()
    readings = [each for index, line in enumerate(lines) for each in printed.feed(line + b"\n", float(index))]
    return fmean([each.loss for each in readings if each.loss is not None][-LAST:])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_stock_script_is_resized_and_loses_a_worker_and_trains_as_if_undisturbed(
    name: str, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    framework = FRAMEWORKS[name]
    pytest.importorskip(framework.needs, reason=f"{framework.needs} is not installed")
    spec: dict[str, Any] = {"architecture": "script", "task": None, "working_directory": str(tmp_path)}
    words = command(framework, tmp_path / "job", seed=0, step_seconds=0.12)
    job = make_job(command=words, workers={"min": 1, "max": 3, "resources": {}}, **spec)
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    job.wait_for_step(framework.n_steps // 10)
    profile = job.wait_for("its end is known", lambda: (job.service.profile or {}).get("total_steps"))
    assert profile == framework.n_steps, "from a tenth of its life on"
    job.scale(worker(0), worker(1), worker(2))
    three = job.wait_for_size(3, 0)
    job.wait_for_step(three["step"] + 10)
    job.scale(worker(0), worker(1))
    two = job.wait_for_size(2, 0, after_epoch=three["epoch"])  # two may have begun before the third was there
    job.wait_for_step(two["step"] + 10)
    job.kill(worker(1))
    again = job.wait_for_size(1, 0, after_epoch=two["epoch"])
    result = job.wait_for_result()
    assert result["outcome"] == "succeeded"
    if name == "Lightning":  # its bar counts within epochs, whose length has changed: only it knows the steps
        made = torch.load(tmp_path / "job" / "out" / "last.ckpt", weights_only=False)["global_step"]
    else:
        made = result["step"]
    assert made == framework.n_steps
    assert [each["cause"] for each in (one, three, two, again)] == ["start", "rescale", "rescale", "worker_lost"]
    if name not in ("Lightning", "JAX"):
        assert all(each["lost_steps"] <= 11 for each in (three, two, again)), "a checkpoint every ten steps"
    losses = [sample["loss"] for sample in job.service.samples if sample.get("loss") is not None][-LAST:]
    alone = [undisturbed_loss(command(framework, tmp_path / "alone" / str(seed), seed, 0.0)[1:]) for seed in SEEDS]
    spread = max(max(alone) - min(alone), LEAST_SPREAD * max(alone))
    assert min(alone) - spread <= fmean(losses) <= max(alone) + spread, (losses, alone)


@pytest.mark.timeout(600)
def test_a_plain_loop_goes_on_after_its_worker_was_lost(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """It is one process, so that its job has one worker."""
    words = ["python", str(SCRIPTS / "plain_loop.py"), "--directory", str(tmp_path / "out"), "--step-seconds", "0.1"]
    spec: dict[str, Any] = {"architecture": "script", "task": None, "working_directory": str(tmp_path)}
    job = make_job(command=words, workers={"min": 1, "max": 1, "resources": {}}, **spec)
    job.scale(worker(0))
    one = job.wait_for_size(1, 0)
    job.wait_for_step(45)
    job.kill(worker(0))
    job.scale(worker(0, 1))
    again = job.wait_for_size(1, 0, after_epoch=one["epoch"])
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 120)
    assert 0 <= again["lost_steps"] <= 10, "its checkpoint is of the last epoch"
    assert job.service.profile is not None
    assert (job.service.profile["total_steps"], job.service.profile["steps_per_epoch"]) == (120, 10.0)
