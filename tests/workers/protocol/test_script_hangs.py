"""Scripts whose processes wait for something that never comes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workers.protocol.conftest import Job, worker

from optimus_workers.errors import HUNG

HANGS = """
import os, sys, time
from pathlib import Path

def waits_for_ever():
    time.sleep(1000)

for step in range(1, 9):
    print(f"step {step}/8 loss {1 / step}", flush=True)
    time.sleep(0.02)
    if step == 5 and Path(sys.argv[1]).exists():
        waits_for_ever()
"""
HANGS_AT_ITS_END = """
import os, time

if os.environ["RANK"] == "0":
    for step in range(1, 9):
        print(f"step {step}/8 loss {1 / step}", flush=True)
else:
    time.sleep(1000)
"""
DESTROYS_ITS_GROUP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 13):
        loss = model(torch.ones(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}/12 loss {loss.item()}")
    dist.destroy_process_group()

main()
"""


@pytest.fixture
def make_script_job(make_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    def make(code: str, *arguments: str, launcher: str = "torchrun", **spec: Any) -> Job:
        script = tmp_path / "train.py"
        script.write_text(code)
        whole = {
            "task": None,
            "command": [launcher, str(script), *arguments],
            "architecture": "script",
            "working_directory": str(tmp_path),
            "workers": {"min": 1, "max": 4, "resources": {}},
        }
        return make_job(**{**whole, **spec})

    return make


def test_a_worker_of_a_script_that_hangs_shows_where_and_is_replaced(
    make_script_job: Callable[..., Job], tmp_path: Path
) -> None:
    hangs_if = tmp_path / "hang"
    hangs_if.touch()
    job = make_script_job(HANGS, str(hangs_if), launcher="python", hang_seconds=6.0)
    job.scale(worker(0))
    process = job.processes[worker(0)]
    job.wait_for("the worker's end", lambda: process.poll() is not None)
    assert process.returncode == HUNG
    log = (job.directory / f"{worker(0)}.log").read_text()
    assert "the processes of the command hang, see hang_seconds" in log
    assert re.search(r"line \d+ in waits_for_ever", log), log
    hangs_if.unlink()
    job.scale(worker(0, 1))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 8)


def test_a_job_does_not_wait_for_processes_that_hang_after_the_training(make_script_job: Callable[..., Job]) -> None:
    job = make_script_job(HANGS_AT_ITS_END)
    job.scale(worker(0), worker(1))
    result = job.wait_for_result()
    assert (result["outcome"], result["step"]) == ("succeeded", 8)


def test_processes_that_destroy_their_group_end_by_themselves(make_script_job: Callable[..., Job]) -> None:
    """PyTorch deadlocks there in about every second process, unless the group is kept (`keep_process_groups`)."""
    job = make_script_job(DESTROYS_ITS_GROUP)
    job.scale(worker(0), worker(1), worker(2))
    assert job.wait_for_result()["outcome"] == "succeeded"
    log = (job.directory / "job-coordinator-0-0.log").read_text()
    assert "the training is over; processes" not in log, log
