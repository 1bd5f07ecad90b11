"""Processes that train together stop at one step, whichever of them is asked first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optimus_workers.wire.ports import reserve_port

LOOP = """
import itertools, time
import torch.distributed as dist
import optimus_client

dist.init_process_group("gloo")
for step in itertools.count(1):
    time.sleep(0.002 * (1 + dist.get_rank()))
    if optimus_client.stop_agreed(step):
        print(step)
        break
dist.destroy_process_group()
"""


def test_all_processes_stop_at_the_same_step_though_one_alone_is_asked(tmp_path: Path) -> None:
    asked = tmp_path / "stop"
    asked.touch()
    port = str(reserve_port("127.0.0.1"))
    found = []
    for rank in range(2):
        stop_file = asked if rank == 1 else tmp_path / "not there"
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OPTIMUS_STOP_FILE": str(stop_file)}
        found.append(subprocess.Popen([sys.executable, "-c", LOOP], env=environment, stdout=subprocess.PIPE, text=True))
    steps = [process.communicate(timeout=120)[0].strip() for process in found]
    assert steps[0] == steps[1] != ""


@pytest.mark.parametrize(("first", "then", "last"), [("40", "90", 90), ("100000", "60", 60), ("", "70", 70)])
def test_all_processes_end_at_the_step_of_a_limit_that_is_changed_meanwhile(
    tmp_path: Path, first: str, then: str, last: int
) -> None:
    """One agent tells its processes after the other."""
    port = str(reserve_port("127.0.0.1"))
    files = [tmp_path / f"stop-at-{rank}" for rank in range(2)]
    found = []
    for rank, file in enumerate(files):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        environment |= {"OPTIMUS_STOP_AT_STEP": first, "OPTIMUS_STOP_AT_STEP_FILE": str(file)}
        code = LOOP.replace("0.002 *", "0.02 *")
        code = code.replace("    time.sleep", "    step == 1 and print('trains', flush=True)\n    time.sleep")
        found.append(subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True))
    for process, file in zip(found, files, strict=True):
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
        file.write_text(then)
    steps = [process.communicate(timeout=120)[0].strip() for process in found]
    assert steps == [str(last)] * 2
